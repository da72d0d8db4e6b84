"""Reading a range of entries: read-ahead, failover to other replicas, and the order of delivery.

Entries are requested ahead of the consumer, within a window of entries and bytes that counts everything requested and
everything not yet taken; they are delivered in entry order (P4). The replicas of an entry are tried one after the other
(`replica_orders`) until one returns a good copy, digest and ids verified by the caller; when none is left, the retained
error is reported (`entry_read`). If a read gets no response for a while, and its bookie has returned nothing good
since, the next replica is tried as well (*speculation*); the first good copy counts. Different ledgers start at
different replicas.

Batches: if E = Qw, and a bookie is not known to lack batch reads, runs of entries are requested with one request each,
the runs alternating between all replicas so that they work in parallel. A response holds a good prefix of its run; the
remainder is requested again, and an error always concerns the first entry of a run. A bookie that closes the connection
on a batch read, or rejects it as a bad request, gets single reads from then on: the caller keeps that set
(`without_batches`) for as long as it likes. If no replica is left for a run, its first entry is read singly.

In an unbounded ledger a bookie serves a batch up to the LAC that it knows, which in a complete fragment may be below
the fragment's end. A single read can tell the bookie that end, a batch read can't; so a run that no replica serves as a
batch is read singly. The last fragment is read singly, since only such responses tell the bookie's term. "Entry not
confirmed" does not count as a failure of the bookie.

Events in: `on_entries`, `on_error`, `on_time`, `take`. Effects out: `next_reads` (what to send where), `failure`. Time
is an argument, in seconds.

Not its job: the LAC (the caller checks that the range is within it, P10), packets.

Source: docs/protocol/client-protocol.md#reading.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from bookgate.ledger.entry import Entry
from bookgate.ledger.entry_columns import EntryColumns
from bookgate.ledger.errors import (
    BKException,
    BookieHandleNotAvailableException,
    DigestMatchException,
    EntryNotConfirmedException,
    IncorrectParameterException,
    ProtocolVersionException,
    ReadException,
)
from bookgate.ledger.metadata import LedgerMetadata
from bookgate.thinclient.core.entry_read import MISSING, retained_error, write_set_bookies
from bookgate.thinclient.core.read_health import ReadHealth
from bookgate.thinclient.core.replica_orders import ReplicaOrders

_NO_BATCHES = (BookieHandleNotAvailableException, IncorrectParameterException, ProtocolVersionException)
"""Errors from a bookie that does not support batch reads: most close the connection, some report a bad request."""

_NOT_ITS_FAULT = (*MISSING, DigestMatchException, EntryNotConfirmedException)
"""Errors after which other entries are still requested from the bookie."""

_ENTRY_OVERHEAD = 200
"""Bytes of memory per entry besides its payload."""


class ReadEffect(NamedTuple):
    """Send a read of `entry_id` to `bookie_id`."""

    entry_id: int
    bookie_id: str


class BatchReadEffect(NamedTuple):
    """Send a batch read from `entry_id` on, of at most `max_count` entries and `max_size` bytes."""

    entry_id: int
    bookie_id: str
    max_count: int
    max_size: int


@dataclass(frozen=True, slots=True)
class BatchLimits:
    """The largest batch to request: number of entries, and bytes of the response."""

    entries: int
    size: int


class _Run:
    """The entries first … last, requested with one request at a time, or with several by speculation."""

    __slots__ = ("asked", "asked_at", "batch", "error", "errors", "first", "last", "position", "replicas", "reserved")

    def __init__(self, first: int, last: int, replicas: tuple[str, ...], now: float, batch: bool, reserved: int):
        self.first = first
        self.last = last
        self.replicas = replicas
        self.position = 1
        self.asked = [replicas[0]]
        self.asked_at = now
        self.batch = batch
        self.reserved = reserved
        self.error: BKException | None = None
        self.errors: dict[str, BKException] | None = None
        """Errors by bookie."""


class RangeReader:
    """An ordered read of the entries first … last."""

    __slots__ = (
        "_arrived",
        "_batch_count",
        "_batches",
        "_batches_to",
        "_failed_at",
        "_failure",
        "_heard",
        "_last",
        "_max_bytes",
        "_max_entries",
        "_metadata",
        "_next_to_deliver",
        "_open_bytes",
        "_open_entries",
        "_orders",
        "_repeats",
        "_runs",
        "_seen_bytes",
        "_seen_entries",
        "_singly_to",
        "_speculate_after",
        "_unasked",
        "taken_bytes",
    )

    def __init__(
        self,
        metadata: LedgerMetadata,
        first: int,
        last: int,
        *,
        preferred_index: int = 0,
        max_entries: int = 512,
        max_bytes: int = 4 * 1024 * 1024,
        batches: BatchLimits | None = None,
        without_batches: set[str] | None = None,
        speculate_after: float = 0,
        health: ReadHealth | None = None,
        batches_to: int | None = None,
    ) -> None:
        """`max_entries` limits single reads; `max_bytes` and the batch limits bound batches. Entries above `batches_to`
        are read singly.
        """
        self._metadata = metadata
        self._last = last
        self._max_entries = max_entries
        self._max_bytes = max_bytes
        self._batches = batches if metadata.ensemble_size == metadata.write_quorum_size else None
        self._orders = ReplicaOrders(
            metadata,
            preferred_index,
            ReadHealth() if health is None else health,
            with_batches=self._batches is not None,
            without_batches=set() if without_batches is None else without_batches,
        )
        self._speculate_after = speculate_after
        self._next_to_deliver = first
        self._unasked: list[tuple[int, int]] = [(first, last)] if first <= last else []
        """Ranges to request, ascending; the last one is the part that was never requested."""
        self._runs: dict[int, _Run] = {}
        self._arrived: dict[int, tuple[Sequence[Entry], int]] = {}
        """Consecutive entries and their size in bytes, keyed by the first entry id."""
        self.taken_bytes = 0
        """Bytes of all entries taken, as counted for `max_bytes`."""
        self._repeats: list[ReadEffect | BatchReadEffect] = []
        self._heard: dict[str, float] = {}
        # Requested or arrived, but not yet taken.
        self._open_entries = 0
        self._open_bytes = 0
        # Entry sizes are unknown in advance: entries in flight are estimated by the mean of those that arrived.
        self._seen_entries = 0
        self._seen_bytes = 0
        self._batch_count = 0
        self._batches_to = last if batches_to is None else batches_to
        self._singly_to = -1
        """The last entry of a run that no replica served as a batch."""
        self._failed_at: int | None = None
        self._failure: BKException | None = None

    @property
    def failure(self) -> BKException | None:
        """Why the next entry can't be delivered; entries before it are delivered first."""
        return self._failure if self._next_to_deliver == self._failed_at else None

    @property
    def finished(self) -> bool:
        """Whether all entries were taken."""
        return self._next_to_deliver > self._last

    @property
    def next_entry_id(self) -> int:
        """The entry to be delivered next."""
        return self._next_to_deliver

    @property
    def _is_empty(self) -> bool:
        return not (self._runs or self._arrived or self._open_entries or self._open_bytes)

    def asked_at(self, first: int, default: float) -> float:
        """When the last replica was asked for the run that begins at `first`; `default` if nothing is outstanding
        there.
        """
        run = self._runs.get(first)
        return default if run is None else run.asked_at

    def waited(self, first: int, bookie_id: str, now: float) -> float | None:
        """How long the bookie took for the run that begins at `first`; None where that can't be told: nothing is
        outstanding there, or another replica was asked since.
        """
        run = self._runs.get(first)
        if run is None or run.replicas[run.position - 1] != bookie_id:
            return None
        return now - run.asked_at

    # What to send

    def next_reads(self, now: float = 0.0) -> list[ReadEffect | BatchReadEffect]:
        """What to send now: retries at other replicas first, then as much read-ahead as the window allows."""
        if not self._unasked and not self._repeats:
            return []
        effects, self._repeats = self._repeats, []
        end = self._last + 1 if self._failed_at is None else self._failed_at
        # What a short batch left out is still to be delivered before a failure behind it.
        while self._unasked and self._unasked[0][0] < end:
            first, last = self._unasked[0]
            orders = self._orders.enter(first, now)
            last = min(last, end - 1, self._orders.fragment_end - 1)
            if first <= self._singly_to:
                last = min(last, self._singly_to)
                asked = self._ask_singles(first, last, now, effects, orders)
            elif self._orders.batches and min(last, self._batches_to) > first:
                asked = self._ask_batch(first, min(last, self._batches_to), now, effects)
            else:
                asked = self._ask_singles(first, last, now, effects, orders)
            if not asked:
                break
            self._take_unasked(asked)
        return effects

    def _ask_batch(self, first: int, last: int, now: float, effects: list[ReadEffect | BatchReadEffect]) -> int:
        """Requests one batch if the window allows it; returns its number of entries."""
        assert self._batches is not None
        entries, size = self._batches.entries, self._batches.size
        at_head = first == self._next_to_deliver
        if self._seen_entries:
            entries = max(1, min(entries, size // self._mean))
        elif not at_head:
            return 0  # the first entry will show how many fit in a batch
        if not at_head and self._open_bytes + size > self._max_bytes:
            return 0
        count = min(entries, last - first + 1)
        orders = self._orders.batches
        replicas = orders[self._batch_count % len(orders)]
        self._batch_count += 1
        self._runs[first] = _Run(first, first + count - 1, replicas, now, True, size)
        self._open_entries += count
        self._open_bytes += size
        effects.append(BatchReadEffect(first, replicas[0], count, size))
        return count

    def _ask_singles(
        self,
        first: int,
        last: int,
        now: float,
        effects: list[ReadEffect | BatchReadEffect],
        orders: list[tuple[str, ...]],
    ) -> int:
        """Requests as many single entries as the window allows; returns how many.

        The window is refilled when it is half empty, so that requests are sent in runs rather than one by one.
        """
        mean, runs, positions = self._mean, self._runs, len(orders)
        window = min(self._max_entries, max(1, self._max_bytes // mean)) if self._seen_entries else self._first_window
        room = min(window - self._open_entries, (self._max_bytes - self._open_bytes) // mean)
        if self._open_entries > window // 2:
            room = 0
        if first == self._next_to_deliver:
            room = max(1, room)
        count = min(room, last - first + 1)
        if count <= 0:
            return 0
        for entry_id in range(first, first + count):
            replicas = orders[entry_id % positions]
            runs[entry_id] = _Run(entry_id, entry_id, replicas, now, False, mean)
            effects.append(ReadEffect(entry_id, replicas[0]))
        self._open_entries += count
        self._open_bytes += count * mean
        return count

    @property
    def _mean(self) -> int:
        return max(1, self._seen_bytes // self._seen_entries) if self._seen_entries else 1

    @property
    def _first_window(self) -> int:
        return min(self._max_entries, 16)

    def _take_unasked(self, count: int) -> None:
        first, last = self._unasked[0]
        if first + count > last:
            del self._unasked[0]
        else:
            self._unasked[0] = (first + count, last)

    def _put_back(self, first: int, last: int) -> None:
        """Returns entries to the ranges to request."""
        at = bisect_left(self._unasked, (first, last))
        if at < len(self._unasked) and self._unasked[at][0] == last + 1:
            self._unasked[at] = (first, self._unasked[at][1])
        else:
            self._unasked.insert(at, (first, last))

    # Responses

    def on_entries(self, bookie_id: str, entries: Sequence[Entry], now: float = 0.0) -> None:
        """One or more good copies arrived, consecutive from the first entry of the request on.

        Copies that were not requested, or already arrived from another bookie, are ignored.
        """
        self._heard[bookie_id] = now
        first = entries[0].entry_id
        run = self._runs.pop(first, None)
        if run is None:
            return
        missing = run.last - first + 1 - len(entries)
        if missing < 0:
            entries = entries[:missing]
        elif missing:
            self._put_back(run.last - missing + 1, run.last)
            self._open_entries -= missing
        size = _size_of(entries)
        self._arrived[first] = (entries, size)
        self._seen_entries += len(entries)
        self._seen_bytes += size
        self._open_bytes += size - run.reserved

    def on_error(self, entry_id: int, bookie_id: str, error: BKException, now: float = 0.0) -> None:
        """A replica could not serve the request that begins at `entry_id`: the next one is tried, or the range
        fails.
        """
        run = self._runs.get(entry_id)
        if run is None or (self._failed_at is not None and entry_id >= self._failed_at):
            return
        if run.batch and isinstance(error, _NO_BATCHES):
            self._orders.without_batches.add(bookie_id)
        elif not (run.batch and self._metadata.is_unbounded) and not isinstance(error, _NOT_ITS_FAULT):
            self._orders.avoid(bookie_id, now)
        run.error = retained_error(run.error, error)
        run.errors = {**(run.errors or {}), bookie_id: error}
        if bookie_id in run.asked:
            run.asked.remove(bookie_id)
        if not run.asked:
            self._ask_next(run, now)

    def on_time(self, now: float) -> int:
        """Retries requests without a response for too long at the next replica as well. Returns how many.

        A bookie that has responded to anything since is working, and is given more time.
        """
        if not self._speculate_after:
            return 0
        speculated = 0
        asked_before = now - self._speculate_after
        for run in list(self._runs.values()):
            if run.asked_at > asked_before or run.position >= len(run.replicas):
                continue
            if any(self._heard.get(bookie, -1.0) >= run.asked_at for bookie in run.asked):
                continue
            for bookie in run.asked:
                self._orders.avoid(bookie, now)
            self._ask_next(run, now)
            speculated += 1
        return speculated

    def _ask_next(self, run: _Run, now: float) -> None:
        """Sends the run to its next replica, if one is left."""
        if run.position < len(run.replicas):
            bookie = run.replicas[run.position]
            run.position += 1
            run.asked.append(bookie)
            run.asked_at = now
            self._repeats.append(self._effect(run, bookie))
        elif run.asked:
            return
        elif run.batch and self._singles_may_do(run):
            self._read_first_alone(run, now)
        else:
            self._fail(run)

    def _singles_may_do(self, run: _Run) -> bool:
        if self._metadata.is_unbounded:
            self._singly_to = max(self._singly_to, run.last)
            return True
        return not self._orders.without_batches.isdisjoint(write_set_bookies(self._metadata, run.first))

    def _effect(self, run: _Run, bookie_id: str) -> ReadEffect | BatchReadEffect:
        if not run.batch:
            return ReadEffect(run.first, bookie_id)
        return BatchReadEffect(run.first, bookie_id, run.last - run.first + 1, run.reserved)

    def _read_first_alone(self, run: _Run, now: float) -> None:
        """Replaces a batch that replicas failed for what it is by a single read: they may have the entry."""
        if run.last > run.first:
            self._put_back(run.first + 1, run.last)
            self._open_entries -= run.last - run.first
        orders = self._orders.enter(run.first, now)
        replicas = orders[run.first % len(orders)]
        self._runs[run.first] = _Run(run.first, run.first, replicas, now, False, run.reserved)
        self._repeats.append(ReadEffect(run.first, replicas[0]))

    def _fail(self, run: _Run) -> None:
        self._failed_at = run.first
        bookies = write_set_bookies(self._metadata, run.first)
        self._failure = _unreadable(run.first, run.error or ReadException(), bookies)
        self._failure.first_entry_id = self._metadata.fragment_at(run.first).first_entry_id
        self._failure.bookies = run.errors or {}

    def take(self, max_entries: int) -> list[Entry]:
        """Removes and returns the next entries in order that have arrived, at most `max_entries`."""
        taken: list[Entry] = []
        while len(taken) < max_entries and self._next_to_deliver in self._arrived:
            run = self.take_run(max_entries - len(taken))
            taken = [*taken, *run] if taken else run if isinstance(run, list) else list(run)
        return taken

    def take_run(self, max_entries: int) -> Sequence[Entry]:
        """Like `take`, but returns one run of entries as it arrived."""
        position = self._next_to_deliver
        run = self._arrived.pop(position, None)
        if run is None:
            return ()
        entries, size = run
        assert entries[0].entry_id == position, "entries are delivered in order (P4)"
        if len(entries) > max_entries:
            rest, entries = entries[max_entries:], entries[:max_entries]
            rest_size = _size_of(rest)
            self._arrived[position + max_entries] = (rest, rest_size)
            size -= rest_size
        self._next_to_deliver = position + len(entries)
        self._open_entries -= len(entries)
        self._open_bytes -= size
        assert self._open_entries >= 0, "no more entries are taken than were requested"
        assert self._next_to_deliver <= self._last + 1, "nothing beyond the range is delivered (P10)"
        assert not self.finished or self._is_empty, "with the last entry, nothing is left or reckoned as left"
        self.taken_bytes += size
        return entries


def _size_of(entries: Sequence[Entry]) -> int:
    """Bytes of memory that the entries occupy."""
    if isinstance(entries, EntryColumns):
        return sum(entries.sizes) + _ENTRY_OVERHEAD * len(entries)
    if len(entries) == 1:
        return len(entries[0][4]) + _ENTRY_OVERHEAD
    return sum([len(entry[4]) for entry in entries]) + _ENTRY_OVERHEAD * len(entries)


def _unreadable(entry_id: int, error: BKException, bookies: Sequence[str]) -> BKException:
    """The error of an entry that no replica could serve, of the same class as the retained one."""
    message = f"entry {entry_id} can't be read from any of {', '.join(bookies)}: {error}"
    try:
        return type(error)(message)
    except TypeError:
        return ReadException(message)
