"""The order in which a ranged read tries an entry's replicas, for single entries and for batches.

It is the order of the write set. If every bookie has every entry (E = Qw) it begins at the preferred position, so that
the range stays with one replica, whose disk then reads sequentially. Batches alternate: there is one order for each
healthy replica, beginning with it. A bookie that failed comes last (`read_health`), and one that is known not to serve
batches gets none.

Orders are cached for the fragment entered last, and rebuilt when a bookie fails.
"""

from __future__ import annotations

from bookgate.ledger.metadata import LedgerMetadata
from bookgate.ledger.quorum import write_set
from bookgate.thinclient.core.read_health import ReadHealth

_NO_END = 1 << 63


class ReplicaOrders:
    """The replica orders of one range. Time is an argument, in seconds."""

    __slots__ = (
        "_fragment_start",
        "_health",
        "_metadata",
        "_orders",
        "_preferred",
        "_with_batches",
        "batches",
        "fragment_end",
        "without_batches",
    )

    def __init__(
        self,
        metadata: LedgerMetadata,
        preferred_index: int,
        health: ReadHealth,
        *,
        with_batches: bool,
        without_batches: set[str],
    ) -> None:
        """`without_batches`: bookies that get no batch reads; the caller may add to the set at any time."""
        self._metadata = metadata
        self._preferred = preferred_index
        self._health = health
        self._with_batches = with_batches
        self.without_batches = without_batches
        self._fragment_start = 0
        self.fragment_end = -1
        """The first entry after the fragment entered last."""
        self._orders: list[tuple[str, ...]] = []
        self.batches: list[tuple[str, ...]] = []
        """Orders for batches, used in turn; empty if no replica supports batches."""

    def avoid(self, bookie_id: str, now: float) -> None:
        """A bookie failed: it is tried last from now on."""
        self._health.failed(bookie_id, now)
        self.fragment_end = -1

    def enter(self, entry_id: int, now: float) -> list[tuple[str, ...]]:
        """The orders for entries of its fragment: entry e uses the one at e modulo the list's length. Cached per
        fragment.
        """
        if not self._fragment_start <= entry_id < self.fragment_end:
            self._enter_fragment(entry_id, now)
        return self._orders

    def _enter_fragment(self, entry_id: int, now: float) -> None:
        metadata = self._metadata
        fragment = metadata.fragment_at(entry_id)
        self._fragment_start, self.fragment_end = fragment.first_entry_id, _NO_END
        if fragment is not metadata.fragments[-1]:
            self.fragment_end = min(f.first_entry_id for f in metadata.fragments if f.first_entry_id > entry_id)
        if metadata.ensemble_size == metadata.write_quorum_size:
            self._orders = [self._replicas(fragment.ensemble, self._preferred, now)]
        else:
            self._orders = [self._replicas(fragment.ensemble, index, now) for index in range(metadata.ensemble_size)]
        self.batches = self._orders_of_batches(fragment.ensemble, now) if self._with_batches else []

    def _replicas(self, ensemble: tuple[str, ...], position: int, now: float) -> tuple[str, ...]:
        size = self._metadata.ensemble_size
        bookies = [ensemble[index] for index in write_set(position % size, size, self._metadata.write_quorum_size)]
        return self._health.ordered(bookies, now)

    def _orders_of_batches(self, ensemble: tuple[str, ...], now: float) -> list[tuple[str, ...]]:
        """One order for each healthy replica, beginning with it; empty if no replica supports batches."""
        able = [
            bookie for bookie in self._replicas(ensemble, self._preferred, now) if bookie not in self.without_batches
        ]
        well = [bookie for bookie in able if not self._health.avoids(bookie, now)] or able
        rest = [bookie for bookie in able if bookie not in well]
        return [(*well[turn:], *well[:turn], *rest) for turn in range(len(well))]
