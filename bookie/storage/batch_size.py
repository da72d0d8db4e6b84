"""How many entries one answer to a batch read holds: BookKeeper's own arithmetic, so that clients plan with it.

An answer begins with 36 bytes (length, head and request id), and an entry counts its length and the four bytes of that
length. The first entry goes in whatever its size; after it the count is capped to what would fit if all were of that
size, and each further entry also has to fit by itself. The first that does not ends the batch. Source:
docs/protocol/wire.md#batch_read_entry.
"""

from __future__ import annotations

import sys
from bisect import bisect_right
from collections.abc import Sequence

_ANSWER_HEAD = 36


class BatchSize:
    """Counts the entries of one answer. `max_count` 0 or less sets no limit; sizes in bytes."""

    __slots__ = ("_limit", "room", "size")

    def __init__(self, max_count: int, max_size: int, server_limit: int) -> None:
        self._limit = min(max_size, server_limit)
        self.room = max_count if max_count > 0 else sys.maxsize
        """How many entries more go in at most; 0 once the batch has ended."""
        self.size = 0
        """Bytes of the answer so far; 0 before the first entry."""

    @property
    def bytes_left(self) -> int:
        """Bytes of records that still fit; the first goes in whatever its size."""
        return max(0, self._limit - (self.size or _ANSWER_HEAD))

    def take(self, ends: Sequence[int]) -> int:
        """Takes the next records as far as they go in.

        Args:
            ends: where each of the records ends, in bytes from the beginning of the first; a record is an entry's
                length in four bytes and the entry.

        Returns:
            How many of them are in the answer. Fewer than were given end the batch.
        """
        if not ends or self.room <= 0:
            return 0
        before, taken = self.size, 0
        if not before:
            before, taken = _ANSWER_HEAD, 1
            self.room = min(self.room - 1, max(0, (self._limit - before - ends[0]) // ends[0]))
        fitting = bisect_right(ends, self._limit - before, lo=taken)
        count = min(fitting, taken + self.room)
        self.room = self.room - (count - taken) if count == len(ends) else 0
        if count:
            self.size = before + ends[count - 1]
        return count
