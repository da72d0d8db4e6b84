"""Divides a scan of ledgers into tasks. Pure: values in, values out.

A *slice* is a run of entries of one ledger. The plan covers every entry of every given slice exactly once:

* A ledger that fits into one task as a whole is small. Small ledgers are packed together in the given order, until a
  task would exceed its size, whatever their ensembles.
* A larger ledger is cut at the borders of its fragments, so that a task reads from one ensemble, and each piece is cut
  into tasks of about equal size. Such a task contains nothing else.
* A ledger of a stream that a batch does not read to its end is cut into such tasks at once. When the batch is repeated,
  the ledger may have more fragments below the batch's end: a recovery takes the last add confirmed from entries, which
  tell less than the bookies that a stream asks, and stores its change of the ensemble behind that. A sink that writes
  by partition needs the same tasks again (T7).

Nor is a ledger cut into more than MOST_PARTS tasks: its metadata may say any length, whoever wrote them.

A task's size is the smallest of `max_bytes`, `max_entries` and an even share of the whole, and a task packs at most
MOST_LEDGERS ledgers together. `max_entries` is exact. Bytes are an estimate (the ledger's length spread evenly over its
entries), since the size of an entry is unknown before it is read, and the length in metadata can be wrong.

Source: docs/spark.md#how-a-read-is-split.
"""

from __future__ import annotations

import heapq
import os
import sys
from array import array
from bisect import bisect_left
from collections.abc import Container, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from bookgate.ledger.errors import DigestMatchException, IllegalOpException
from bookgate.ledger.ledger_id import NO_ENTRY, LedgerId
from bookgate.ledger.metadata import DigestType, LedgerMetadata
from bookgate.ledger.metadata_store import LedgerRecord
from bookgate.ledger.unbounded import deleted_before
from bookgate.thinclient.spark.options.read_options import DEFAULT_MAX_BYTES_PER_PARTITION, Options
from bookgate.thinclient.spark.reading.pushdown import EVERYTHING, Bounds, Interval

_ENTRY_COST = 64
"""Bytes that an entry counts beyond its payload, so that ledgers of tiny entries are spread out too."""
_LEDGER_COST = 64 * 1024
"""Bytes that opening one more ledger counts, for the round trips to its bookies."""
MOST_LEDGERS = 4096
"""Limit of small ledgers in one task, so that a failed task does not lose the work on a million of them."""

MOST_PARTS = 1_000_000
"""Limit of tasks of one ledger; a driver has no memory for more."""


class Slice(NamedTuple):
    """Entries `first_entry_id` to `last_entry_id`, both included, of a ledger.

    There may be a million slices, so ledgers share one `shape`: their metadata without end, and without custom metadata
    and creation time unless rows have columns of them. `end` is the last entry of the ledger that may be read, `length`
    the payload bytes up to and including it. `size` is the expected number of payload bytes in the slice.
    """

    ledger_id: LedgerId
    shape: LedgerMetadata
    version: int
    end: int
    length: int
    first_entry_id: int
    last_entry_id: int
    size: int

    @property
    def record(self) -> LedgerRecord:
        """The minimal record to read the slice from bookies: closed at the last entry that may be read."""
        metadata: LedgerMetadata = replace(self.shape, last_entry_id=self.end, length=self.length)
        return LedgerRecord(self.ledger_id, metadata, self.version)

    @property
    def entries(self) -> int:
        return self.last_entry_id - self.first_entry_id + 1

    @property
    def weight(self) -> int:
        return self.size + _ENTRY_COST * self.entries + _LEDGER_COST

    def between(self, first_entry_id: int, last_entry_id: int) -> Slice:
        """A part of this slice, with its share of the size."""
        share = self.size * (last_entry_id - first_entry_id + 1) // self.entries
        return self._replace(first_entry_id=first_entry_id, last_entry_id=last_entry_id, size=share)


PackedSlices = tuple[tuple[LedgerMetadata, ...], tuple[bytes, ...]]
"""Slices in the form in which they are pickled: the shapes, and one column of 64-bit numbers for everything else."""


def packed(slices: Sequence[Slice]) -> PackedSlices:
    """Packs slices without one object per slice."""
    if not slices:
        return (), ()
    ledger_ids, shapes, *numbers = zip(*slices, strict=True)
    distinct = {id(shape): shape for shape in shapes}
    index_of = {key: index for index, key in enumerate(distinct)}
    columns = (
        [ledger_id.scope_id for ledger_id in ledger_ids],
        [ledger_id.low for ledger_id in ledger_ids],
        [index_of[id(shape)] for shape in shapes],
        *numbers,
    )
    return tuple(distinct.values()), tuple(array("q", column).tobytes() for column in columns)


def unpacked(travelled: PackedSlices) -> list[Slice]:
    """The inverse of `packed`."""
    shapes, columns = travelled
    if not shapes:
        return []
    scopes, ids, indexes, *numbers = (memoryview(column).cast("q") for column in columns)
    return [
        Slice(LedgerId(scope_id, ledger_id), shapes[index], *rest)
        for scope_id, ledger_id, index, *rest in zip(scopes, ids, indexes, *numbers, strict=True)
    ]


class TemplateTable:
    """Interns metadata: one object for all ledgers whose metadata, for a reader, differ only in id, version and end."""

    def __init__(self, *, with_ledger_columns: bool = False) -> None:
        """`with_ledger_columns` keeps custom metadata, and the creation time as `ctime_ms`."""
        self._known: dict[tuple[object, ...], LedgerMetadata] = {}
        self._with_ledger_columns = with_ledger_columns

    def slice_of(self, record: LedgerRecord) -> Slice:
        """The slice of all entries of a closed record, without those that a trim has deleted."""
        metadata = record.metadata
        shape = self.shape_of(record)
        last, length, first = metadata.last_entry_id, metadata.length, deleted_before(metadata)
        # The length counts the deleted entries too.
        size = length * (last + 1 - first) // (last + 1) if first else length
        return Slice(record.ledger_id, shape, record.version, last, length, first, last, size)

    def shape_of(self, record: LedgerRecord) -> LedgerMetadata:
        """The shape of all ledgers like this one."""
        metadata = record.metadata
        custom = metadata.custom_metadata if self._with_ledger_columns else {}
        ctime_ms = record.creation_ms if self._with_ledger_columns else None
        key: tuple[object, ...] = (
            metadata.fragments,
            metadata.write_quorum_size,
            metadata.ack_quorum_size,
            metadata.digest_type,
            metadata.password,
            metadata.password_check,
            metadata.format_version,
            metadata.terms,
            ctime_ms,
            tuple(custom.items()),
        )
        shape = self._known.get(key)
        if shape is None:
            shape = replace(
                metadata, custom_metadata=custom, ctime_ms=ctime_ms, creator_token=0, last_entry_id=-1, length=0
            )
            self._known[key] = shape
        return shape


@dataclass(frozen=True, slots=True)
class TaskLimits:
    """The size and number of tasks.

    `spread_over` is the desired number of tasks; `min_partitions` is the least number if there are as many entries.
    """

    spread_over: int = 1
    min_partitions: int = 1
    max_entries: int | None = None
    max_bytes: int = DEFAULT_MAX_BYTES_PER_PARTITION


def limits_of(options: Options, cores: int | None = None) -> TaskLimits:
    """The limits that the options set; the desired number of tasks is at least one per core, of this machine unless a
    number is given.
    """
    return TaskLimits(
        spread_over=cores or os.cpu_count() or 1,
        min_partitions=options.min_partitions or 1,
        max_entries=options.max_entries_per_partition,
        max_bytes=options.max_bytes_per_partition,
    )


def opened_with(record: LedgerRecord, password: bytes) -> LedgerRecord:
    """The record with this password, unless its metadata tell one: a task opens the ledger with what its slice has."""
    metadata = record.metadata
    if metadata.password is not None and metadata.password_check is None:
        return record
    return replace(record, metadata=replace(metadata, password=password, password_check=None))


def has_readable_end(record: LedgerRecord, options: Options) -> bool:
    """Whether a table can tell up to where the ledger may be read: not while an unbounded ledger is written.

    A snapshot of it would be closed metadata, with which a reader takes what another term has left (U4).

    Raises:
        IllegalOpException: It can't, and option `ledgerIds` names the ledger.
    """
    metadata = record.metadata
    if metadata.is_closed or not metadata.is_unbounded:
        return True
    if options.ledger_ids is not None:
        raise IllegalOpException(
            f"ledger {record.ledger_id} of option ledgerIds is unbounded and not closed: tables have its entries once "
            "it is closed",
            ledger_id=record.ledger_id,
        )
    return False


def readable_record(record: LedgerRecord, last_add_confirmed: int = NO_ENTRY, length: int = 0) -> LedgerRecord:
    """The record as a snapshot of what may be read: if it is not closed, it is returned closed at
    `last_add_confirmed`. Not for an unbounded ledger that is not closed (`has_readable_end`).
    """
    if record.metadata.is_closed:
        return record
    return replace(record, metadata=record.metadata.close(last_add_confirmed, length))


def wanted_range(options: Options, bounds: Bounds = EVERYTHING) -> Interval:
    """The ledger ids that a listing must cover. Ids of scope 0 are not negative."""
    wanted = bounds.listed_range()
    if options.scope_id == 0:
        wanted.narrow(0)
    if options.ledger_ids is not None:
        wanted.narrow(options.ledger_ids[0], options.ledger_ids[-1])
    if options.ledger_range is not None:
        wanted.narrow(options.ledger_range.first)
        if options.ledger_range.last is not None:
            wanted.narrow(last=options.ledger_range.last)
    return wanted


def is_wanted(record: LedgerRecord, options: Options) -> bool:
    """Whether the options select this ledger. Keys of custom metadata are compared without case.

    A ledger without creation time is selected whatever `startingTimestamp` is.
    """
    created = record.creation_ms
    if options.starting_timestamp_ms is not None and created is not None and created < options.starting_timestamp_ms:
        return False
    return _is_selected(record, options)


def _is_selected(record: LedgerRecord, options: Options) -> bool:
    ledger_id = record.ledger_id.low
    if options.ledger_ids is not None:
        index = bisect_left(options.ledger_ids, ledger_id)
        return options.ledger_ids[index : index + 1] == (ledger_id,)
    if options.ledger_range is not None:
        last = options.ledger_range.last
        return options.ledger_range.first <= ledger_id and (last is None or ledger_id <= last)
    if options.custom_metadata is None:
        return True
    held = {(key.lower(), value) for key, value in record.metadata.custom_metadata.items()}
    return held >= set(options.custom_metadata.items())


def check_digest_type(record: LedgerRecord, digest_type: DigestType | None) -> None:
    """Raises DigestMatchException when the ledger was written with another digest than the requested one."""
    actual = record.metadata.digest_type
    if digest_type is not None and actual is not None and actual is not digest_type:
        raise DigestMatchException(
            f"ledger {record.ledger_id} was written with digest type {actual.name}, and option digestType says "
            f"{digest_type.name}; leave the option out to take it from the metadata"
        )


def wanted_part(whole: Slice, options: Options, bounds: Bounds = EVERYTHING) -> Slice | None:
    """The entries of a readable ledger within offsets and bounds; None when there are none."""
    ledger_id = whole.ledger_id.low
    first, last = max(whole.first_entry_id, bounds.entry_id.first), min(whole.end, bounds.entry_id.last)
    if options.starting_offsets:
        first = max(first, options.starting_offsets.get(ledger_id, 0))
    if options.ending_offsets:
        last = min(last, options.ending_offsets.get(ledger_id, last + 1) - 1)
    if first > last:
        return None
    return whole if (first, last) == (whole.first_entry_id, whole.end) else whole.between(first, last)


def plan(slices: Sequence[Slice], limits: TaskLimits, unfinished: Container[int] = ()) -> list[list[Slice]]:
    """Tasks, each a list of slices to be read in order. No slices, no tasks. `unfinished`: the ids of ledgers that a
    batch of a stream does not read to their end.
    """
    bound = _Bound.of(slices, limits)
    tasks: list[list[Slice]] = []
    small: list[Slice] = []
    for piece in slices:
        if bound.takes(piece.weight, piece.size, piece.entries):
            small.append(piece)
        else:
            runs = (piece,) if piece.ledger_id.low in unfinished else by_fragment(piece)
            tasks.extend([part] for run in runs for part in bound.cut(run))
    planned = _at_least(limits.min_partitions, _packed(small, bound) + tasks)
    assert sum(map(_entries, planned)) == _entries(slices), "every entry is in one task"
    return planned


@dataclass(frozen=True, slots=True)
class _Bound:
    """The largest load of a task."""

    weight: int
    size: int
    entries: int

    @classmethod
    def of(cls, slices: Sequence[Slice], limits: TaskLimits) -> _Bound:
        total = sum(piece.weight for piece in slices)
        share = max(1, total // max(limits.spread_over, limits.min_partitions))
        return cls(
            share,
            limits.max_bytes,
            sys.maxsize if limits.max_entries is None else limits.max_entries,
        )

    def takes(self, weight: int, size: int, entries: int) -> bool:
        return weight <= self.weight and size <= self.size and entries <= self.entries

    def cut(self, piece: Slice) -> Iterator[Slice]:
        """Parts of about equal size, as few as the bound allows, with at least one entry each.

        Raises IllegalOpException for more than MOST_PARTS.
        """
        parts = max(
            _ceil(piece.weight - _LEDGER_COST, self.weight),
            _ceil(piece.size, self.size),
            _ceil(piece.entries, self.entries),
        )
        parts = min(parts, piece.entries)
        if parts > MOST_PARTS:
            raise IllegalOpException(
                f"ledger {piece.ledger_id} has {piece.entries} entries of {piece.size} bytes to read, as its metadata "
                f"say, which would be {parts} tasks: raise maxBytesPerPartition and maxEntriesPerPartition, or leave "
                "the ledger out by ledgerIds or ledgerRange",
                ledger_id=piece.ledger_id,
            )
        return _equal_parts(piece, parts)


def _ceil(dividend: int, divisor: int) -> int:
    return -(-dividend // divisor)


def _equal_parts(piece: Slice, parts: int) -> Iterator[Slice]:
    for index in range(parts):
        first = piece.first_entry_id + piece.entries * index // parts
        end = piece.first_entry_id + piece.entries * (index + 1) // parts
        yield piece.between(first, end - 1)


def by_fragment(piece: Slice) -> Iterator[Slice]:
    """The slice cut where a new ensemble begins."""
    borders = [fragment.first_entry_id for fragment in piece.shape.fragments]
    inner = [border for border in borders if piece.first_entry_id < border <= piece.last_entry_id]
    starts = [piece.first_entry_id, *inner]
    ends = [*inner, piece.last_entry_id + 1]
    for start, end in zip(starts, ends, strict=True):
        yield piece.between(start, end - 1)


def _packed(pieces: Iterable[Slice], bound: _Bound) -> list[list[Slice]]:
    """Groups neighbouring slices as long as a task has room for the next one."""
    tasks: list[list[Slice]] = []
    weight = size = entries = 0
    for piece in pieces:
        weight, size, entries = weight + piece.weight, size + piece.size, entries + piece.entries
        if not tasks or len(tasks[-1]) >= MOST_LEDGERS or not bound.takes(weight, size, entries):
            tasks.append([])
            weight, size, entries = piece.weight, piece.size, piece.entries
        tasks[-1].append(piece)
    return tasks


def _at_least(count: int, tasks: list[list[Slice]]) -> list[list[Slice]]:
    """Halves the tasks with most entries until there are `count`, or none has two entries left."""
    heap = [(-_entries(task), index, task) for index, task in enumerate(tasks)]
    heapq.heapify(heap)
    while heap and len(heap) < count and heap[0][0] < -1:
        _, index, task = heapq.heappop(heap)
        for half, number in zip(_halves(task), (index, len(heap) + len(tasks) + 1), strict=True):
            heapq.heappush(heap, (-_entries(half), number, half))
    return [task for _, _, task in sorted(heap, key=lambda item: item[1])]


def _entries(task: Sequence[Slice]) -> int:
    return sum(piece.entries for piece in task)


def _halves(task: list[Slice]) -> tuple[list[Slice], list[Slice]]:
    if len(task) > 1:
        return task[: len(task) // 2], task[len(task) // 2 :]
    first, second = _equal_parts(task[0], 2)
    return [first], [second]
