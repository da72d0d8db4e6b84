"""Offsets of a stream of ledgers: its position, what it may read, and how far a trigger takes it. Pure.

An offset gives the next entry to read of every ledger of the stream. It is JSON, because Spark writes it into the
checkpoint:

    {"v": 1, "ledgers": {"<ledger id>": <next entry>}, "done": "<set of ledger ids>"}

`ledgers` has those that were begun and are not finished; a ledger that is not named is begun at entry 0. A ledger that
is closed and read to its end moves into `done`, a set in the 64-bit Roaring serialisation (base64), where runs of ids
cost next to nothing, so an offset stays small however many ledgers were read. Ids are decimal strings, since JSON
readers lose bits of large numbers.

The end of a batch also has what its tasks depend on besides the options and the metadata of finished ledgers: `cores`
of the machine that planned it, and in `sizes` the bytes that were expected of ledgers that are not finished. So a batch
that another driver repeats is cut into the same tasks; a sink that writes by partition relies on it. `firsts` has the
ledgers that the batch begins behind entries which a trim has deleted: a trim that deletes more before the batch is
repeated is a loss, and the entries deleted before are none.

`of` says whose ledgers these are: the cluster's instance id, the scope, and the time from which on ledgers are read if
the query began with one. Ids mean other ledgers in another cluster or scope; with a later time, ledgers that were begun
would be left out.

What may be read is given by *ends*: a ledger's first entry that may not be read (yet), whether that end is final, and
the first entry that no trim has deleted.
Rules, which the tests hold for arbitrary ledgers:

* an offset never goes back, and never passes an end;
* the ranges of successive offsets are disjoint and leave nothing out, so a batch that is read again has the same rows;
* an offset changes only when there are rows to read. A ledger that is closed after its last entry was read is recorded
  as done along with the next rows of any ledger, so that no trigger runs without rows;
* within the limits of a trigger every ledger gets its share of what is waiting, in which deleted entries do not count.

Not its job: finding the ends (`available`), reading (`entries`).
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from pyroaring import BitMap64

VERSION = 1
_MASK = (1 << 64) - 1
_SIGN = 1 << 63


class OffsetError(ValueError):
    """The checkpoint contains an offset that this source did not write."""


@dataclass(frozen=True, slots=True)
class End:
    """What may be read of a ledger: from `first_entry_id` up to, but not including, `next_entry_id`. `size`: the bytes
    before `next_entry_id`, with those that a trim has deleted.
    """

    next_entry_id: int
    closed: bool
    size: int = 0
    first_entry_id: int = 0

    def waiting(self, position: int) -> int:
        """The number of entries left for a stream at this position."""
        return max(0, self.next_entry_id - self.next_at(position))

    def next_at(self, position: int) -> int:
        """The next entry for a stream at this position."""
        return max(position, self.first_entry_id)

    def size_of(self, entries: int) -> int:
        """The estimated bytes of so many entries."""
        return self.size * entries // max(1, self.next_entry_id)


@dataclass(frozen=True, slots=True)
class Range:
    """Entries `first` to `last`, both included; `last` None: up to the end of the ledger, which is closed."""

    ledger_id: int
    first: int
    last: int | None


class Trimmed(NamedTuple):
    """A trim has deleted entries from `first` on, which a stream has not read; `available` is the first one left."""

    ledger_id: int
    first: int
    available: int


class LedgerIds:
    """An immutable set of 64-bit ledger ids, compact for runs of them."""

    __slots__ = ("_bitmap", "_text")

    def __init__(self, ids: Iterable[int] = ()) -> None:
        self._bitmap: Any = BitMap64([ledger_id & _MASK for ledger_id in ids])
        self._text: str | None = None

    @classmethod
    def parse(cls, text: str) -> LedgerIds:
        """Raises OffsetError."""
        made = cls()
        try:
            if text:
                made._bitmap = BitMap64.deserialize(base64.b64decode(text, validate=True))
        except Exception as error:  # the library does not say what it raises
            raise OffsetError(f"{text[:40]!r} is not a set of ledger ids") from error
        made._text = text
        return made

    @property
    def text(self) -> str:
        if self._text is None:
            self._bitmap.run_optimize()
            self._text = base64.b64encode(self._bitmap.serialize()).decode() if self._bitmap else ""
        return self._text

    def __contains__(self, ledger_id: int) -> bool:
        return (ledger_id & _MASK) in self._bitmap

    def __len__(self) -> int:
        return len(self._bitmap)

    def __iter__(self) -> Iterator[int]:
        return (value - (value & _SIGN) * 2 for value in self._bitmap)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, LedgerIds) and bool(self._bitmap == other._bitmap)

    def __hash__(self) -> int:
        return hash(self.text)

    def with_more(self, ids: Iterable[int]) -> LedgerIds:
        """This set with additional ids."""
        made = LedgerIds()
        made._bitmap = self._bitmap | BitMap64([ledger_id & _MASK for ledger_id in ids])
        return made

    def both(self, other: LedgerIds) -> LedgerIds:
        """The intersection."""
        made = LedgerIds()
        made._bitmap = self._bitmap & other._bitmap
        return made

    def minus(self, other: LedgerIds) -> LedgerIds:
        """The difference."""
        made = LedgerIds()
        made._bitmap = self._bitmap - other._bitmap
        return made


@dataclass(frozen=True, slots=True)
class Basis:
    """What the tasks of the batch that ends here were planned with. `sizes`: expected bytes of the batch's entries in
    ledgers that are not done; those of the others are in their metadata, finally. `firsts`: the first entry of each
    ledger that the batch begins after entry 0, since a trim has deleted those before.
    """

    cores: int
    sizes: Mapping[int, int]
    firsts: Mapping[int, int]


@dataclass(frozen=True, slots=True)
class Origin:
    """Whose ledgers a query reads: what its checkpoint keeps from the first batch on. `since_ms`: ledgers created
    before are left out; None: none are.
    """

    cluster: str
    scope_id: int
    since_ms: int | None = None


@dataclass(frozen=True, slots=True)
class StreamOffset:
    """The position of a stream. `next_entries` has the ledgers begun and not done. `basis`, `origin`: earlier releases
    wrote none.
    """

    next_entries: Mapping[int, int]
    done: LedgerIds
    basis: Basis | None = None
    origin: Origin | None = None

    def to_json(self) -> dict[str, Any]:
        """Spark's form of the offset; equal offsets give equal text."""
        ledgers = {str(ledger_id): self.next_entries[ledger_id] for ledger_id in sorted(self.next_entries)}
        document: dict[str, Any] = {"v": VERSION, "ledgers": ledgers}
        if len(self.done):
            document["done"] = self.done.text
        if self.basis is not None:
            document["cores"] = self.basis.cores
            document["sizes"] = {str(each): self.basis.sizes[each] for each in sorted(self.basis.sizes)}
            if self.basis.firsts:
                document["firsts"] = {str(each): self.basis.firsts[each] for each in sorted(self.basis.firsts)}
        if self.origin is not None:
            document["of"] = {"cluster": self.origin.cluster, "scope": self.origin.scope_id}
            if self.origin.since_ms is not None:
                document["of"]["since"] = self.origin.since_ms
        return document

    @classmethod
    def from_json(cls, document: object) -> StreamOffset:
        """Raises OffsetError."""
        if not isinstance(document, dict) or not isinstance(document.get("ledgers"), dict):
            raise OffsetError(
                "the checkpoint's offset is none of a read of ledgers by the source 'bookkeeper': give the query a new "
                "checkpoint, or the options that it began with"
            )
        if document.get("v") != VERSION:
            raise OffsetError(
                f"the checkpoint's offset is of version {document.get('v')!r}, this source reads {VERSION}: "
                "use the release that wrote it, or begin with a new checkpoint"
            )
        try:
            next_entries = {int(ledger_id): _entry_id(entry) for ledger_id, entry in document["ledgers"].items()}
            return cls(next_entries, LedgerIds.parse(document.get("done", "")), _basis(document), _origin(document))
        except (KeyError, ValueError, TypeError, binascii.Error) as error:
            raise OffsetError(f"the checkpoint's offset can't be read: {error}") from error

    def position(self, ledger_id: int) -> int | None:
        """The ledger's next entry; None when it is done."""
        return None if ledger_id in self.done else self.next_entries.get(ledger_id, 0)


NOTHING = StreamOffset({}, LedgerIds())


def _entry_id(value: object) -> int:
    return _number(value, "an entry id")


def _number(value: object, what: str) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or value < 0:
        raise OffsetError(f"{value!r} is not {what}")
    return value


def _basis(document: Mapping[str, Any]) -> Basis | None:
    if "cores" not in document:
        return None
    sizes = {int(ledger_id): _number(size, "a size") for ledger_id, size in dict(document.get("sizes", {})).items()}
    firsts = {int(ledger_id): _entry_id(first) for ledger_id, first in dict(document.get("firsts", {})).items()}
    return Basis(_number(document["cores"], "a number of cores"), sizes, firsts)


def _origin(document: Mapping[str, Any]) -> Origin | None:
    if "of" not in document:
        return None
    of = dict(document["of"])
    since = None if of.get("since") is None else int(of["since"])
    return Origin(str(of["cluster"]), int(of["scope"]), since)


def earliest(starting: Mapping[int, int] | None) -> StreamOffset:
    """The beginning, except where `starting` says otherwise."""
    return StreamOffset({ledger_id: entry for ledger_id, entry in (starting or {}).items() if entry}, LedgerIds())


def latest(ends: Mapping[int, End]) -> StreamOffset:
    """After everything that may be read."""
    begun = {ledger_id: end.next_entry_id for ledger_id, end in ends.items() if not end.closed and end.next_entry_id}
    return StreamOffset(begun, LedgerIds(ledger_id for ledger_id, end in ends.items() if end.closed))


@dataclass(frozen=True, slots=True)
class Backlog:
    """What is waiting in a ledger: entries, and an estimate of their payload bytes."""

    entries: int
    size: int


def backlogs(start: StreamOffset, ends: Mapping[int, End]) -> dict[int, Backlog]:
    """The backlogs of ledgers with unread entries."""
    waiting = {}
    for ledger_id, end in ends.items():
        position = start.position(ledger_id)
        if position is not None and (entries := end.waiting(position)):
            waiting[ledger_id] = Backlog(entries, end.size_of(entries))
    return waiting


def trimmed(start: StreamOffset, ends: Mapping[int, End]) -> list[Trimmed]:
    """What trims have deleted of ledgers that were begun. Of one that was not, the stream promised nothing yet.

    Whether a deleted id had an entry can't be known: a gap that a take-over left at the position counts too.
    """
    begun = ((ledger_id, first, ends.get(ledger_id)) for ledger_id, first in start.next_entries.items())
    return [
        Trimmed(ledger_id, first, end.first_entry_id)
        for ledger_id, first, end in begun
        if end is not None and first < min(end.first_entry_id, end.next_entry_id)
    ]


def advance(start: StreamOffset, ends: Mapping[int, End], grants: Mapping[int, int]) -> StreamOffset:
    """The offset after the granted numbers of entries per ledger. Without any grant it is `start` itself."""
    if not any(grants.values()):
        return start
    next_entries, done = dict(start.next_entries), []
    for ledger_id, end in ends.items():
        position = start.position(ledger_id)
        if position is None:
            continue
        if granted := grants.get(ledger_id, 0):
            position = end.next_at(position) + granted
        if end.closed and not end.waiting(position):
            done.append(ledger_id)
            next_entries.pop(ledger_id, None)
        elif position:
            next_entries[ledger_id] = position
    done_by_now = start.done.with_more(done) if done else start.done
    return replace(start, next_entries=next_entries, done=done_by_now, basis=None)


def without(offset: StreamOffset, ledger_ids: Iterable[int]) -> StreamOffset:
    """The offset with these ledgers given up: treated as done."""
    gone = set(ledger_ids)
    kept = {ledger_id: entry for ledger_id, entry in offset.next_entries.items() if ledger_id not in gone}
    return replace(offset, next_entries=kept, done=offset.done.with_more(gone), basis=None)


def ranges(start: StreamOffset, end: StreamOffset) -> list[Range]:
    """The ranges between two offsets, by ledger id. A finished ledger whose last entry was read before has none."""
    finished = end.done.minus(start.done)
    firsts = {} if end.basis is None else end.basis.firsts
    found = [Range(each, firsts.get(each, start.next_entries.get(each, 0)), None) for each in finished]
    found += [Range(each, firsts.get(each, first), stop - 1) for each, first, stop in _unfinished(start, end)]
    return sorted(found, key=lambda each: each.ledger_id)


def _unfinished(start: StreamOffset, end: StreamOffset) -> Iterator[tuple[int, int, int]]:
    """Ledger, first entry and the entry behind the last of each range that does not finish its ledger."""
    for ledger_id, stop in end.next_entries.items():
        first = start.position(ledger_id)
        if first is not None and first < stop:
            yield ledger_id, first, stop


def with_basis(start: StreamOffset, end: StreamOffset, ends: Mapping[int, End], cores: int) -> StreamOffset:
    """The end of a batch with what its tasks are planned with, now and whenever it is repeated."""
    sizes = {}
    for ledger_id, first, stop in _unfinished(start, end):
        if (known := ends.get(ledger_id)) is not None:
            sizes[ledger_id] = known.size_of(stop - known.next_at(first))
    return replace(end, basis=Basis(cores, sizes, _firsts(start, end, ends)))


def _firsts(start: StreamOffset, end: StreamOffset, ends: Mapping[int, End]) -> dict[int, int]:
    """Where the batch begins ledgers of which a trim has deleted the beginning."""
    after_a_trim = {ledger_id: known.first_entry_id for ledger_id, known in ends.items() if known.first_entry_id}
    return {
        ledger_id: first
        for ledger_id, first in after_a_trim.items()
        if start.position(ledger_id) == 0 and end.position(ledger_id) != 0
    }


def behind_latest(offset: StreamOffset, ends: Mapping[int, End]) -> dict[str, str]:
    """How far an offset is behind, over the ledgers that are not done."""
    positions = {ledger_id: offset.position(ledger_id) for ledger_id in ends}
    return lag([ends[each].waiting(at) for each, at in positions.items() if at is not None] or [0])


def lag(waiting: Sequence[int]) -> dict[str, str]:
    """Metrics of entries that wait in each ledger, with the keys of Spark's source for Kafka."""
    return {
        "minOffsetsBehindLatest": str(min(waiting)),
        "maxOffsetsBehindLatest": str(max(waiting)),
        "avgOffsetsBehindLatest": str(sum(waiting) / len(waiting)),
    }
