"""The permission to continue the repair of a ledger: it ends with the ledger's lock, or when all work must end.

Source: docs/protocol/auto-recovery.md#locks.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from bookgate.bookie.replication.repairs.repair import RepairStoppedException
from bookgate.ledger.replication_store import LedgerLock, LockLost
from bookgate.runtime.logs import log_event

_log = logging.getLogger(__name__)


class Permission:
    """The permission for one ledger."""

    def __init__(self, why_not: Callable[[], str]) -> None:
        """`why_not` returns the reason why the repair must not continue, or an empty text."""
        self._why_not = why_not
        self.lock_lost = False

    def check(self) -> None:
        """Raises RepairStoppedException if the permission has ended."""
        reason = "the lock is lost" if self.lock_lost else self._why_not()
        if reason:
            raise RepairStoppedException(reason)


class Permissions:
    """The permissions for all ledgers that one process repairs."""

    def __init__(self, why_not: Callable[[], str] = lambda: "") -> None:
        """`why_not` applies to each of them."""
        self._why_not = why_not
        self._held: dict[LedgerLock, Permission] = {}

    @contextmanager
    def under(self, lock: LedgerLock) -> Iterator[Permission]:
        """The permission for a ledger during the block."""
        permission = self._held[lock] = Permission(self._why_not)
        try:
            yield permission
        finally:
            del self._held[lock]

    def lost(self, event: LockLost) -> None:
        """The store reports a lost lock, possibly one that is not in use any more."""
        permission = self._held.get(event.lock)
        if permission is not None:
            log_event(_log, "replication_lock_lost", logging.WARNING, ledger=event.lock.ledger_id)
            permission.lock_lost = True
