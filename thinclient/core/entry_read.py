"""Reading one entry: replicas are tried one after the other until one returns a good copy.

The caller verifies digest and ids. When no replica is left, the *retained error* is reported. A new error replaces the
retained one if that is "no such entry" or "no such ledger" (so that these are reported only if every replica said so),
or if that is "not reachable" and the new one is more specific.

Events in: `next_replica`, `on_error`. Not its job: ranges (`reading`), the order of replicas (`replica_orders`),
packets.

Source: docs/protocol/client-protocol.md#reading.
"""

from __future__ import annotations

from collections.abc import Sequence

from bookgate.ledger.errors import (
    BKException,
    BookieHandleNotAvailableException,
    ClientClosedException,
    NoSuchEntryException,
    NoSuchLedgerExistsException,
    UnauthorizedAccessException,
)
from bookgate.ledger.metadata import LedgerMetadata
from bookgate.ledger.quorum import write_set

MISSING = (NoSuchEntryException, NoSuchLedgerExistsException)
"""Errors that mean the bookie does not have the entry."""

ENDS_AT_ONCE = (ClientClosedException, UnauthorizedAccessException)
"""Errors that other bookies can't avoid: a read of the last entry or in a recovery stops at once."""


def retained_error(kept: BKException | None, new: BKException) -> BKException:
    """Which of two errors of one read is retained (docs/protocol/client-protocol.md#reading-one-entry)."""
    if kept is None or isinstance(kept, MISSING):
        return new
    if isinstance(kept, BookieHandleNotAvailableException) and not isinstance(new, MISSING):
        return new
    return kept


def write_set_bookies(metadata: LedgerMetadata, entry_id: int) -> tuple[str, ...]:
    """The bookies that hold an entry, in write-set order."""
    ensemble = metadata.fragment_at(entry_id).ensemble
    return tuple(ensemble[i] for i in write_set(entry_id, metadata.ensemble_size, metadata.write_quorum_size))


class EntryRead:
    """The read of one entry: the replicas not tried yet, and the retained error."""

    __slots__ = ("_replicas", "entry_id", "error")

    def __init__(self, entry_id: int, replicas: Sequence[str]) -> None:
        self.entry_id = entry_id
        self._replicas = iter(replicas)
        self.error: BKException | None = None

    def next_replica(self) -> str | None:
        """The replica to try next; None when all were tried."""
        return next(self._replicas, None)

    def on_error(self, error: BKException) -> None:
        """A replica could not serve the entry."""
        self.error = retained_error(self.error, error)
