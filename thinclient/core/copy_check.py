"""The rules that the copies of a ledger's entries must satisfy: which bookie holds which, and the length each one
carries.

Entry e is on the indexes (e + i) mod E for i below the write quorum, so a bookie of a striped ensemble holds runs as
long as the write quorum. Every entry carries the ledger's length up to and including itself. On every copy this is the
previous entry's length plus its own size, and that of the last entry equals the metadata's length. Source:
docs/protocol/client-protocol.md#quorums; an audit of these rules checks what is visible of P1 and P3 from outside.

Not its job: reading the copies, digests, distinguishing a lost copy from an unavailable bookie.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from bookgate.ledger.entry_columns import EntryColumns

_UNKNOWN = -1


def held_ranges(
    ensemble_size: int, write_quorum_size: int, index: int, first: int, last: int
) -> Iterator[tuple[int, int]]:
    """Ranges of entries, ascending and with both ends included, that the bookie at `index` should hold of first …
    last.
    """
    if ensemble_size == write_quorum_size:
        if first <= last:
            yield first, last
        return
    # The run that begins at or before `first`: this bookie is last in the write set of the run's first entry.
    start = first - (first - index + write_quorum_size - 1) % ensemble_size
    while start <= last:
        run = max(first, start), min(last, start + write_quorum_size - 1)
        if run[0] <= run[1]:
            yield run
        start += ensemble_size


def held_entries(ensemble_size: int, write_quorum_size: int, index: int, first: int, last: int) -> int:
    """The number of entries in `held_ranges`."""
    return sum(end - start + 1 for start, end in held_ranges(ensemble_size, write_quorum_size, index, first, last))


@dataclass(slots=True)
class LengthCheck:
    """Checks the lengths of the entries `first` to `last` in all copies that are otherwise good.

    `previous` is the ledger's length before `first`, None if unknown.
    """

    first: int
    last: int
    previous: int | None
    _sizes: array[int] = field(init=False)
    _lengths: array[int] = field(init=False)
    _copies: list[tuple[str, EntryColumns]] = field(init=False, default_factory=list)

    def __post_init__(self) -> None:
        unknown = array("q", [_UNKNOWN]) * (self.last - self.first + 1)
        self._sizes, self._lengths = unknown, unknown[:]

    def add(self, bookie_id: str, columns: EntryColumns) -> None:
        """Adds copies that a bookie holds. Only sizes and lengths are used; the caller may drop the payload."""
        self._copies.append((bookie_id, columns))
        start = columns.first_entry_id - self.first
        places = slice(start, start + len(columns))
        if _UNKNOWN not in self._sizes[places]:
            return
        for place, size, length in zip(range(start, places.stop), columns.sizes, columns.lengths, strict=True):
            if self._sizes[place] == _UNKNOWN:
                self._sizes[place], self._lengths[place] = size, length

    def finish(self) -> tuple[list[tuple[str, int]], int | None]:
        """(bookie, entry) of each copy with a wrong length, and the ledger's length after `last`, if known."""
        expected = self._expected()
        wrong = [
            (bookie_id, columns.first_entry_id + place)
            for bookie_id, columns in self._copies
            for place in self._wrong_places(columns, expected)
        ]
        end = expected[-1] if expected else self.previous
        return wrong, None if end == _UNKNOWN else end

    def _expected(self) -> array[int]:
        """The true length at each entry, unknown where every copy is lost; after such a gap the check starts again."""
        expected = array("q")
        before = self.previous
        for size, length in zip(self._sizes, self._lengths, strict=True):
            if size == _UNKNOWN:
                before = None
                expected.append(_UNKNOWN)
                continue
            before = length if before is None else before + size
            expected.append(before)
        return expected

    def _wrong_places(self, columns: EntryColumns, expected: array[int]) -> Sequence[int]:
        start = columns.first_entry_id - self.first
        stop = start + len(columns)
        right = expected[start:stop]
        if columns.lengths == right and columns.sizes == array("i", self._sizes[start:stop]):
            return ()
        return [
            place
            for place, (length, size) in enumerate(zip(columns.lengths, columns.sizes, strict=True))
            if length != right[place] or size != self._sizes[start + place]
        ]
