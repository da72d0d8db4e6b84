"""A worker's share of the limits for all workers together: its locks, in proportion to all locks.

Before it copies, the worker counts all locks and reads the cluster's limit from the store, unless it has done so in the
last two seconds. If the store does not respond the share stays as it is. Source: docs/protocol/auto-recovery.md#budget
(R15). Not its job: applying the share (`budget`).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator
from contextlib import contextmanager

from bookgate.bookie.replication.copies.budget import WorkerBudget
from bookgate.ledger.errors import BKException
from bookgate.ledger.replication_control import cluster_rate
from bookgate.ledger.replication_store import ReplicationMetadata
from bookgate.runtime.logs import log_event

_log = logging.getLogger(__name__)

_LOOK_AGAIN_SECONDS = 2.0


class BudgetShare:
    """The share of one worker."""

    def __init__(self, metadata: ReplicationMetadata, budget: WorkerBudget) -> None:
        self._metadata = metadata
        self._budget = budget
        self._own_locks = 0
        self._looking = asyncio.Lock()
        self._next_look = 0.0

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Counts a lock of the worker during the block."""
        self._own_locks += 1
        try:
            yield
        finally:
            self._own_locks -= 1

    async def renew(self) -> None:
        """Updates the share; must be awaited, with a lock, before bytes are taken from the budget."""
        loop = asyncio.get_running_loop()
        async with self._looking:
            if loop.time() < self._next_look:
                return
            try:
                rate, held = await cluster_rate(self._metadata), len(await self._metadata.lock_holders())
                self._budget.share(self._own_locks / max(self._own_locks, held), rate, loop.time())
            except (BKException, TimeoutError) as error:
                log_event(_log, "replication_budget_not_read", logging.WARNING, error=error)
            self._next_look = loop.time() + _LOOK_AGAIN_SECONDS
