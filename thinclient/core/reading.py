"""Reading: which replica is asked for an entry, what happens when it can't serve, how far a range reads ahead.

One entry (`EntryRead`): its replicas are asked one after the other until one gives a good copy (digest and ids checked
by the caller). When none is left, the *retained error* is reported: an error replaces the one kept so far if that says
"no such entry" or "no such ledger" (so that these are reported only when every replica said so), or if that says "not
reachable" and the new one says more.

A range (`RangeReader`): entries are asked for ahead of the consumer, within a window of entries and bytes that counts
everything asked for and everything not yet taken; they are delivered in entry order (P4). A bookie that failed is asked
last from then on. Where every bookie has every entry (E = Qw) the range sticks to one replica, so that its disk reads
sequentially; different ledgers start at different replicas.

Events in: `on_entry`, `on_error`, `take`. Effects out: `next_reads` (what to send where), `failure`.

Not its job: the LAC (the caller checks that the range is within it, P10), packets, time.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import NamedTuple

from ledger.entry import Entry
from ledger.errors import (
    BKException,
    BookieHandleNotAvailableException,
    DigestMatchException,
    NoSuchEntryException,
    NoSuchLedgerExistsException,
    ReadException,
)
from ledger.metadata import LedgerMetadata
from ledger.quorum import write_set

MISSING = (NoSuchEntryException, NoSuchLedgerExistsException)
"""Answers that say the bookie does not have the entry."""


def retained_error(kept: BKException | None, new: BKException) -> BKException:
    """Which of two errors of one read is reported in the end (client-protocol page, 7.2)."""
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
    """The read of one entry: replicas not asked yet, and the error kept so far."""

    __slots__ = ("_replicas", "entry_id", "error")

    def __init__(self, entry_id: int, replicas: Sequence[str]) -> None:
        self.entry_id = entry_id
        self._replicas = iter(replicas)
        self.error: BKException | None = None

    def next_replica(self) -> str | None:
        """Whom to ask next; None when all were asked."""
        return next(self._replicas, None)

    def on_error(self, error: BKException) -> None:
        """A replica could not serve the entry."""
        self.error = retained_error(self.error, error)


class ReadEffect(NamedTuple):
    """Send a read of `entry_id` to `bookie_id`."""

    entry_id: int
    bookie_id: str


class RangeReader:
    """An ordered read of the entries first … last."""

    def __init__(
        self,
        metadata: LedgerMetadata,
        first: int,
        last: int,
        *,
        preferred_index: int = 0,
        max_entries: int = 512,
        max_bytes: int = 4 * 1024 * 1024,
    ) -> None:
        self._metadata = metadata
        self._last = last
        self._preferred = preferred_index
        self._max_entries = max_entries
        self._max_bytes = max_bytes
        self._next_to_ask = first
        self._next_to_deliver = first
        self._arrived: dict[int, Entry] = {}
        self._retries: dict[int, EntryRead] = {}
        self._repeats: deque[ReadEffect] = deque()
        self._suspects: dict[str, None] = {}
        # Entry sizes are unknown before they come: the mean of what came stands in for what is on its way.
        self._seen_entries = 0
        self._seen_bytes = 0
        self._fragment_start = 0
        self._fragment_end = -1
        self._orders: list[tuple[str, ...]] = []
        self._failed_at: int | None = None
        self._failure: BKException | None = None

    @property
    def failure(self) -> BKException | None:
        """Why the next entry can't be delivered; what stands before it is delivered first."""
        return self._failure if self._next_to_deliver == self._failed_at else None

    @property
    def finished(self) -> bool:
        """Everything was taken."""
        return self._next_to_deliver > self._last

    def next_reads(self) -> list[ReadEffect]:
        """What to send now: repeats at other replicas first, then as much read-ahead as the window allows.

        The window is refilled when it is half empty, so that requests leave in runs rather than one by one.
        """
        effects = list(self._repeats)
        self._repeats.clear()
        window = self._window()
        if self._failed_at is not None or self._next_to_ask - self._next_to_deliver > window // 2:
            return effects
        end = min(self._last + 1, self._next_to_deliver + window)
        effects += [ReadEffect(entry_id, self._order(entry_id)[0]) for entry_id in range(self._next_to_ask, end)]
        self._next_to_ask = max(self._next_to_ask, end)
        return effects

    def _window(self) -> int:
        if not self._seen_entries:
            return min(self._max_entries, 16)
        mean = max(1, self._seen_bytes // self._seen_entries)
        return max(1, min(self._max_entries, self._max_bytes // mean))

    def on_entry(self, entry: Entry) -> None:
        """A good copy has come; a second copy of the same entry is ignored."""
        entry_id = entry.entry_id
        if entry_id < self._next_to_deliver or entry_id in self._arrived:
            return
        self._arrived[entry_id] = entry
        self._seen_entries += 1
        self._seen_bytes += len(entry.payload) + 64
        self._retries.pop(entry_id, None)

    def on_error(self, entry_id: int, bookie_id: str, error: BKException) -> None:
        """A replica could not serve the entry: the next one is asked, or the range fails."""
        if entry_id < self._next_to_deliver or entry_id in self._arrived:
            return
        if self._failed_at is not None and entry_id >= self._failed_at:
            return
        if not isinstance(error, (*MISSING, DigestMatchException)):
            self._suspect(bookie_id)
        read = self._retries.get(entry_id)
        if read is None:
            others = [bookie for bookie in self._order(entry_id) if bookie != bookie_id]
            read = self._retries[entry_id] = EntryRead(entry_id, others)
        read.on_error(error)
        replica = read.next_replica()
        if replica is not None:
            self._repeats.append(ReadEffect(entry_id, replica))
            return
        self._failed_at = entry_id
        self._failure = _unreadable(entry_id, read.error or error, write_set_bookies(self._metadata, entry_id))

    def take(self, max_entries: int) -> list[Entry]:
        """The entries that are next in order and have come, at most `max_entries`."""
        taken: list[Entry] = []
        arrived = self._arrived
        position = self._next_to_deliver
        while len(taken) < max_entries:
            entry = arrived.pop(position, None)
            if entry is None:
                break
            taken.append(entry)
            position += 1
        self._next_to_deliver = position
        return taken

    def _suspect(self, bookie_id: str) -> None:
        if bookie_id not in self._suspects:
            self._suspects[bookie_id] = None
            self._fragment_end = -1

    def _order(self, entry_id: int) -> tuple[str, ...]:
        """Whom to ask for an entry, in order. Kept per fragment, since it depends on the entry mod E only."""
        if entry_id >= self._fragment_end or entry_id < self._fragment_start:
            self._enter_fragment(entry_id)
        return self._orders[entry_id % len(self._orders)]

    def _enter_fragment(self, entry_id: int) -> None:
        metadata = self._metadata
        fragment = metadata.fragment_at(entry_id)
        later = [f.first_entry_id for f in metadata.fragments if f.first_entry_id > entry_id]
        self._fragment_start = fragment.first_entry_id
        self._fragment_end = min(later, default=1 << 63)
        self._orders = [self._replicas(fragment.ensemble, position) for position in range(metadata.ensemble_size)]

    def _replicas(self, ensemble: tuple[str, ...], position: int) -> tuple[str, ...]:
        size = self._metadata.ensemble_size
        if size == self._metadata.write_quorum_size:
            position = self._preferred
        bookies = [ensemble[index] for index in write_set(position % size, size, self._metadata.write_quorum_size)]
        return tuple(sorted(bookies, key=lambda bookie: bookie in self._suspects))


def _unreadable(entry_id: int, error: BKException, bookies: Sequence[str]) -> BKException:
    """The error of an entry that no replica could serve, of the same class as the one retained."""
    message = f"entry {entry_id} can't be read from any of {', '.join(bookies)}: {error}"
    try:
        return type(error)(message)
    except TypeError:
        return ReadException(message)
