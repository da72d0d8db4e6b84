"""How a scan of ledgers becomes tasks. Pure: values in, values out.

A *slice* is a run of entries of one ledger. The plan covers every entry of every slice it is given exactly once, in
this way:

* A ledger that fits into one task whole is small. Small ledgers are packed together in the order given, until a task
  would pass its size, whatever their ensembles.
* A larger ledger is cut at the borders of its fragments, so that a task speaks to one ensemble, and each piece into
  tasks of about equal size. Such a task holds nothing else.

A task's size is the smallest of `max_bytes`, `max_entries` and an even share of the whole. `max_entries` is kept
exactly. Bytes are an estimate (the ledger's length spread evenly over its entries), since nothing knows the size of an
entry before it is read, and the length in metadata can be wrong.

Source: spark page, "How a read is planned".
"""

from __future__ import annotations

import heapq
import os
import sys
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from ledger.errors import DigestMatchException
from ledger.ledger_id import NO_ENTRY
from ledger.manager import LedgerRecord
from ledger.metadata import DigestType, LedgerMetadata
from thinclient.spark.option_values import LedgerRange
from thinclient.spark.options import DEFAULT_MAX_BYTES_PER_PARTITION, Options

_ENTRY_COST = 64
"""Bytes that an entry weighs beyond its payload, so that ledgers of tiny entries spread out too."""
_LEDGER_COST = 64 * 1024
"""Bytes that opening one more ledger weighs: round trips to its bookies."""


@dataclass(frozen=True, slots=True)
class Slice:
    """Entries `first_entry_id` to `last_entry_id`, both included, of a ledger.

    The record is what a reader of bookies needs and no more: its metadata is closed at what may be read. `size` is the
    payload bytes expected.
    """

    record: LedgerRecord
    first_entry_id: int
    last_entry_id: int
    size: int

    @property
    def entries(self) -> int:
        return self.last_entry_id - self.first_entry_id + 1

    @property
    def weight(self) -> int:
        return self.size + _ENTRY_COST * self.entries + _LEDGER_COST

    def between(self, first_entry_id: int, last_entry_id: int) -> Slice:
        """A part of this slice, with its share of the size."""
        share = self.size * (last_entry_id - first_entry_id + 1) // self.entries
        return replace(self, first_entry_id=first_entry_id, last_entry_id=last_entry_id, size=share)


@dataclass(frozen=True, slots=True)
class Limits:
    """How large tasks become and how many there are.

    `spread_over` tasks are wished for, `min_partitions` there are where there are as many entries.
    """

    spread_over: int = 1
    min_partitions: int = 1
    max_entries: int | None = None
    max_bytes: int = DEFAULT_MAX_BYTES_PER_PARTITION


def limits_of(options: Options) -> Limits:
    """What the options say, and a task a core of the machine that plans at least."""
    return Limits(
        spread_over=os.cpu_count() or 1,
        min_partitions=options.min_partitions or 1,
        max_entries=options.max_entries_per_partition,
        max_bytes=options.max_bytes_per_partition,
    )


def readable_record(record: LedgerRecord, last_add_confirmed: int = NO_ENTRY, length: int = 0) -> LedgerRecord:
    """The record as a snapshot of what may be read, without what executors have no use for.

    A ledger that is not closed counts as closed at `last_add_confirmed`.
    """
    metadata: LedgerMetadata = replace(record.metadata, custom_metadata={})
    if not metadata.is_closed:
        metadata = metadata.close(last_add_confirmed, length)
    return replace(record, metadata=metadata)


def wanted_range(options: Options) -> LedgerRange | None:
    """The ids that a listing must cover; None for all of the scope."""
    if options.ledger_ids is not None:
        return LedgerRange(options.ledger_ids[0], options.ledger_ids[-1])
    return options.ledger_range


def is_wanted(record: LedgerRecord, options: Options) -> bool:
    """Whether the options take this ledger. Keys of custom metadata compare without case.

    A ledger that does not say when it was created is taken whatever `startingTimestamp` says.
    """
    created = record.metadata.ctime_ms
    if options.starting_timestamp_ms is not None and created is not None and created < options.starting_timestamp_ms:
        return False
    return _is_selected(record, options)


def _is_selected(record: LedgerRecord, options: Options) -> bool:
    ledger_id = record.ledger_id.ledger_id
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
    """Raises DigestMatchException when the ledger was written with another digest than the one asked for."""
    actual = record.metadata.digest_type
    if digest_type is not None and actual is not None and actual is not digest_type:
        raise DigestMatchException(
            f"ledger {record.ledger_id} was written with digest type {actual.name}, and option digestType says "
            f"{digest_type.name}; leave the option out to take it from the metadata"
        )


def slice_of(record: LedgerRecord, options: Options) -> Slice | None:
    """The entries of a readable record that the offsets of the options leave; None when there are none."""
    ledger_id, metadata = record.ledger_id.ledger_id, record.metadata
    if metadata.last_entry_id == NO_ENTRY:
        return None
    first = (options.starting_offsets or {}).get(ledger_id, 0)
    end = (options.ending_offsets or {}).get(ledger_id, metadata.last_entry_id + 1)
    last = min(metadata.last_entry_id, end - 1)
    if first > last:
        return None
    return Slice(record, 0, metadata.last_entry_id, metadata.length).between(first, last)


def plan(slices: Sequence[Slice], limits: Limits) -> list[list[Slice]]:
    """Tasks, each a list of slices to be read in order. No slices, no tasks."""
    bound = _Bound.of(slices, limits)
    tasks: list[list[Slice]] = []
    small: list[Slice] = []
    for piece in slices:
        if bound.takes(_Load().plus(piece)):
            small.append(piece)
        else:
            tasks.extend([part] for fragment in by_fragment(piece) for part in bound.cut(fragment))
    return _at_least(limits.min_partitions, _packed(small, bound) + tasks)


@dataclass(frozen=True, slots=True)
class _Load:
    """What a task holds in sum."""

    weight: int = 0
    size: int = 0
    entries: int = 0

    def plus(self, piece: Slice) -> _Load:
        return _Load(self.weight + piece.weight, self.size + piece.size, self.entries + piece.entries)


@dataclass(frozen=True, slots=True)
class _Bound:
    """The largest load of a task."""

    weight: int
    size: int
    entries: int

    @classmethod
    def of(cls, slices: Sequence[Slice], limits: Limits) -> _Bound:
        total = sum(piece.weight for piece in slices)
        share = max(1, total // max(limits.spread_over, limits.min_partitions))
        return cls(share, limits.max_bytes, sys.maxsize if limits.max_entries is None else limits.max_entries)

    def takes(self, load: _Load) -> bool:
        return load.weight <= self.weight and load.size <= self.size and load.entries <= self.entries

    def cut(self, piece: Slice) -> Iterator[Slice]:
        """Parts of about equal size, as few as the bound allows, of an entry at least."""
        parts = max(
            _ceil(piece.weight - _LEDGER_COST, self.weight),
            _ceil(piece.size, self.size),
            _ceil(piece.entries, self.entries),
        )
        return _equal_parts(piece, min(parts, piece.entries))


def _ceil(dividend: int, divisor: int) -> int:
    return -(-dividend // divisor)


def _equal_parts(piece: Slice, parts: int) -> Iterator[Slice]:
    for index in range(parts):
        first = piece.first_entry_id + piece.entries * index // parts
        end = piece.first_entry_id + piece.entries * (index + 1) // parts
        yield piece.between(first, end - 1)


def by_fragment(piece: Slice) -> Iterator[Slice]:
    """The slice cut where a new ensemble begins."""
    borders = [fragment.first_entry_id for fragment in piece.record.metadata.fragments]
    inner = [border for border in borders if piece.first_entry_id < border <= piece.last_entry_id]
    starts = [piece.first_entry_id, *inner]
    ends = [*inner, piece.last_entry_id + 1]
    for start, end in zip(starts, ends, strict=True):
        yield piece.between(start, end - 1)


def _packed(pieces: Iterable[Slice], bound: _Bound) -> list[list[Slice]]:
    """Neighbours together, as long as a task takes one more."""
    tasks: list[list[Slice]] = []
    load = _Load()
    for piece in pieces:
        load = load.plus(piece)
        if not tasks or not bound.takes(load):
            tasks.append([])
            load = _Load().plus(piece)
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
