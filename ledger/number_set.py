"""Many ledgers by their numbers, small for those of scope 0, of which there may be millions.

`NumberSet` is a bitmap, and a set for ledgers with a scope; `NumberArray` has eight bytes for each, and a table for
those with a scope.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator, Sequence
from typing import overload

from pyroaring import BitMap64

from bookgate.ledger.ledger_id import MAX_UNSCOPED


class NumberSet:
    """See the module. Iterates in ascending order."""

    def __init__(self, numbers: Iterable[int] = ()) -> None:
        self._unscoped = BitMap64()
        self._scoped: set[int] = set()
        self.update(numbers)

    def update(self, numbers: Iterable[int]) -> None:
        """Adds these."""
        if isinstance(numbers, NumberSet):
            self._unscoped |= numbers._unscoped
            self._scoped |= numbers._scoped
            return
        unscoped, scoped = _apart(numbers)
        self._unscoped.update(unscoped)
        self._scoped.update(scoped)

    def take(self, wanted: Iterable[int]) -> list[int]:
        """Removes those of the wanted ones that are here, and returns them in ascending order."""
        unscoped, scoped = _apart(wanted)
        taken, others = self._unscoped & BitMap64(unscoped), self._scoped.intersection(scoped)
        self._unscoped -= taken
        self._scoped -= others
        return [*taken, *sorted(others)]

    def take_first(self, most: int) -> list[int]:
        """Removes the lowest ones, at most so many, and returns them."""
        return self.take([number for _, number in zip(range(most), self, strict=False)])

    def clear(self) -> None:
        self._unscoped.clear()
        self._scoped.clear()

    def copy(self) -> NumberSet:
        return NumberSet(self)

    def __iter__(self) -> Iterator[int]:
        yield from self._unscoped
        yield from sorted(self._scoped)

    def __len__(self) -> int:
        return len(self._unscoped) + len(self._scoped)

    def __contains__(self, number: int) -> bool:
        return number in self._unscoped if number <= MAX_UNSCOPED else number in self._scoped


class NumberArray(Sequence[int]):
    """Numbers in the order in which they were added; see the module."""

    _SCOPED = (1 << 64) - 1
    """Stands for a number in the table."""

    def __init__(self, numbers: Iterable[int] = ()) -> None:
        self._unscoped = array("Q")
        self._scoped: dict[int, int] = {}
        """By positions."""
        self.extend(numbers)

    def append(self, number: int) -> None:
        self._unscoped.append(self._SCOPED)
        self[len(self._unscoped) - 1] = number

    def extend(self, numbers: Iterable[int]) -> None:
        """Appends these."""
        kept = numbers if isinstance(numbers, (list, range, array)) else list(numbers)
        try:
            self._unscoped.extend(array("Q", kept))
        except OverflowError:
            for number in kept:
                self.append(number)

    def __len__(self) -> int:
        return len(self._unscoped)

    def __iter__(self) -> Iterator[int]:
        return super().__iter__() if self._scoped else iter(self._unscoped)

    @overload
    def __getitem__(self, index: int) -> int: ...

    @overload
    def __getitem__(self, index: slice) -> Sequence[int]: ...

    def __getitem__(self, index: int | slice) -> int | Sequence[int]:
        if isinstance(index, slice):
            return (
                [*self._unscoped[index]]
                if not self._scoped
                else [self[each] for each in range(*index.indices(len(self)))]
            )
        number = self._unscoped[index]
        return number if number != self._SCOPED else self._scoped[index if index >= 0 else len(self) + index]

    def __setitem__(self, index: int, number: int) -> None:
        if number <= MAX_UNSCOPED:
            self._unscoped[index] = number
            self._scoped.pop(index, None)
        else:
            self._unscoped[index] = self._SCOPED
            self._scoped[index] = number


def _apart(numbers: Iterable[int]) -> tuple[list[int], list[int]]:
    unscoped: list[int] = []
    scoped: list[int] = []
    for number in numbers:
        (unscoped if number <= MAX_UNSCOPED else scoped).append(number)
    return unscoped, scoped
