"""Deferred sync: adds that need not be durable when acknowledged, and the bookies that may have lost some of them.

A restarted bookie has lost its unsynced entries, and still responds to a force with success. The client sees that the
connection was lost: entries stored over it and not yet forced are then not relied upon (P1).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from bookgate.ledger.errors import WriteException
from bookgate.ledger.ledger_id import LedgerId
from bookgate.ledger.wire.fast_requests import AddRequestEncoder
from bookgate.ledger.wire.messages import DEFERRED_SYNC
from bookgate.thinclient.bookies.pool import BookiePool


class UnforcedAdds:
    """Encodes the adds of one ledger with deferred sync, and remembers the connections on which they began."""

    def __init__(self, pool: BookiePool, ledger_id: int, master_key: bytes, ensemble: Iterable[str]) -> None:
        self._encoder = AddRequestEncoder(ledger_id, master_key, write_flags=DEFERRED_SYNC)
        self._connections = {bookie_id: pool.connection(bookie_id, ledger_id) for bookie_id in ensemble}
        self._losses: dict[str, int] | None = None
        """Number of lost connections by bookie when the first add not yet forced began; None if there is no such add.
        """

    def encode(self, txn_id: int, entry_id: int, body: bytes) -> bytes:
        """The frame of one add."""
        return self.encode_run((txn_id,), entry_id, (body,))[0]

    def encode_run(self, txn_ids: Sequence[int], first_entry_id: int, bodies: Sequence[bytes]) -> list[bytes]:
        """The frames of adds of consecutive entries."""
        if self._losses is None:
            self._losses = {bookie_id: connection.losses for bookie_id, connection in self._connections.items()}
        return self._encoder.encode_run(txn_ids, first_entry_id, bodies)

    def may_have_forgotten(self, bookie_id: str) -> bool:
        """Whether the connection to the bookie was lost since the first add not yet forced began."""
        return self._losses is not None and self._connections[bookie_id].losses != self._losses[bookie_id]

    def forced(self) -> None:
        """All adds begun so far are durable."""
        self._losses = None


def forgotten(ledger_id: LedgerId, bookie_id: str, last_forced: int) -> WriteException:
    """The error of a ledger with a bookie that may have lost acknowledged entries."""
    return WriteException(
        f"ledger {ledger_id} takes no more entries: the connection to bookie {bookie_id} was lost while entries were "
        "not forced, and a bookie that was restarted has them no more. Everything up to entry "
        f"{last_forced}, the last that was forced, is kept",
        ledger_id=ledger_id,
    )
