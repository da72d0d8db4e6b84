"""The number of entries in one response to a batch read: BookKeeper's own arithmetic, on which clients rely.

A response begins with 36 bytes (length, header and request id), and an entry counts its length and the four bytes of
that length. The first entry is included whatever its size. After it the count is limited to what would fit if all
entries had that size, and each further entry must also fit by itself. The first that does not fit ends the batch.
Source: docs/protocol/wire.md#batch_read_entry.
"""

from __future__ import annotations

import sys
from bisect import bisect_right
from collections.abc import Sequence

_ANSWER_HEAD = 36


class BatchSize:
    """Counts the entries of one response. `max_count` 0 or less sets no limit; sizes are in bytes."""

    __slots__ = ("_limit", "room", "size")

    def __init__(self, max_count: int, max_size: int, server_limit: int) -> None:
        self._limit = min(max_size, server_limit)
        self.room = max_count if max_count > 0 else sys.maxsize
        """Maximum number of further entries; 0 once the batch has ended."""
        self.size = 0
        """Bytes of the response so far; 0 before the first entry."""

    @property
    def bytes_left(self) -> int:
        """Bytes of records that still fit; the first record is included whatever its size."""
        return max(0, self._limit - (self.size or _ANSWER_HEAD))

    def take(self, ends: Sequence[int]) -> int:
        """Takes the next records as far as they fit.

        Args:
            ends: The end of each record, in bytes from the beginning of the first; a record is an entry's length in
                four bytes and the entry.

        Returns:
            The number of records taken; fewer than given end the batch.
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
