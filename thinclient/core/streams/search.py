"""Finds an entry by its time, or by the bytes before it: both only grow, so a binary search reads some thirty entries.

States: searching → found. The caller reads the first entry with records in the range that `next` names and tells it.
Entries without records (the truncate entry of a take-over, the first of a term) have no value: they are passed over.

Not its job: reading.
"""

from __future__ import annotations


class FirstAtOrAfter:
    """The first entry whose value is at least the wanted one."""

    def __init__(self, first: int, last: int, wanted: int) -> None:
        """
        Args:
            first: The first entry that can be read.
            last: The last one; below `first` if there is none.
            wanted: A value that grows, or stays, from entry to entry.
        """
        self._low = first
        self._high = last + 1
        self._wanted = wanted
        self._found = last + 1

    @property
    def found(self) -> int:
        """The entry, once `next` returns None; the one after the last if there is none."""
        return self._found

    def next(self) -> tuple[int, int] | None:
        """The range whose first entry with records is to be told next; None at the end."""
        if self._low >= self._high:
            return None
        return (self._low + self._high) // 2, self._high - 1

    def tell(self, entry_id: int | None, value: int = 0) -> None:
        """The first entry with records in that range, or None if it has none."""
        probed = (self._low + self._high) // 2
        if entry_id is not None and value < self._wanted:
            self._low = entry_id + 1
            return
        if entry_id is not None:
            self._found = entry_id
        self._high = probed
