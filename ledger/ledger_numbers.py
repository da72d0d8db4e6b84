"""Sets of ledger numbers: Roaring bitmaps for those of scope 0, of which there are many, and plain sets for the others.

A number has 128 bits (`ledger_id`); a bitmap holds 64. Members are ascending, as numbers are: scope 0 comes first.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import chain, islice

from pyroaring import BitMap64

from bookgate.ledger.ledger_id import MAX_UNSCOPED


class LedgerNumbers:
    """A mutable set of numbers. Operators make new sets."""

    __slots__ = ("scoped", "unscoped")

    def __init__(self, numbers: Iterable[int] = ()) -> None:
        self.unscoped = BitMap64()
        self.scoped: set[int] = set()
        self.update(numbers)

    @classmethod
    def of_parts(cls, unscoped: BitMap64, scoped: Iterable[int] = ()) -> LedgerNumbers:
        """A set of both; the bitmap is not copied."""
        made = cls()
        made.unscoped, made.scoped = unscoped, set(scoped)
        return made

    def __contains__(self, number: object) -> bool:
        if not isinstance(number, int):
            return False
        return number in self.unscoped if 0 <= number <= MAX_UNSCOPED else number in self.scoped

    def __iter__(self) -> Iterator[int]:
        return chain(self.unscoped, sorted(self.scoped))

    def __len__(self) -> int:
        return len(self.unscoped) + len(self.scoped)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, LedgerNumbers):
            return NotImplemented
        return bool(self.unscoped == other.unscoped) and self.scoped == other.scoped

    __hash__ = None  # type: ignore[assignment]

    def add(self, number: int) -> None:
        if number <= MAX_UNSCOPED:
            self.unscoped.add(number)
        else:
            self.scoped.add(number)

    def discard(self, number: int) -> None:
        if number <= MAX_UNSCOPED:
            self.unscoped.discard(number)
        else:
            self.scoped.discard(number)

    def update(self, numbers: Iterable[int]) -> None:
        if isinstance(numbers, LedgerNumbers):
            self.unscoped |= numbers.unscoped
            self.scoped |= numbers.scoped
            return
        numbers = list(numbers)
        if not numbers or max(numbers) <= MAX_UNSCOPED:
            self.unscoped.update(numbers)
            return
        for number in numbers:
            self.add(number)

    def take(self, wanted: Iterable[int]) -> list[int]:
        """Removes those of the wanted ones that are here, and returns them in ascending order."""
        taken = self & LedgerNumbers(wanted)
        self.unscoped -= taken.unscoped
        self.scoped -= taken.scoped
        return list(taken)

    def take_first(self, most: int) -> list[int]:
        """Removes the lowest ones, at most so many, and returns them."""
        return self.take(islice(self, most))

    def clear(self) -> None:
        self.unscoped.clear()
        self.scoped.clear()

    def copy(self) -> LedgerNumbers:
        return LedgerNumbers.of_parts(self.unscoped.copy(), self.scoped)

    def __or__(self, other: LedgerNumbers) -> LedgerNumbers:
        return LedgerNumbers.of_parts(self.unscoped | other.unscoped, self.scoped | other.scoped)

    def __and__(self, other: LedgerNumbers) -> LedgerNumbers:
        return LedgerNumbers.of_parts(self.unscoped & other.unscoped, self.scoped & other.scoped)

    def __sub__(self, other: LedgerNumbers) -> LedgerNumbers:
        return LedgerNumbers.of_parts(self.unscoped - other.unscoped, self.scoped - other.scoped)


def union(sets: Iterable[LedgerNumbers]) -> LedgerNumbers:
    """All members of all sets."""
    made = LedgerNumbers()
    for each in sets:
        made.update(each)
    return made
