"""Ledger numbers in the order in which they were added: eight bytes for each, and a table for those with a scope."""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator, Sequence
from typing import overload

from bookgate.ledger.ledger_id import MAX_UNSCOPED


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
