"""How many entries one answer to a batch read holds: BookKeeper's own arithmetic, so that clients plan with it.

An answer begins with 36 bytes (length, head and request id), and an entry counts its length and the four bytes of that
length. The first entry goes in whatever its size; after it the count is capped to what would fit if all were of that
size, and each further entry also has to fit by itself. The first that does not ends the batch. Source:
docs/protocol/wire.md#batch_read_entry.
"""

from __future__ import annotations

import sys

_ANSWER_HEAD = 36
_RECORD_HEAD = 4


class BatchSize:
    """Counts the entries of one answer. `max_count` 0 or less sets no limit; sizes in bytes."""

    __slots__ = ("_limit", "_room", "size")

    def __init__(self, max_count: int, max_size: int, server_limit: int) -> None:
        self._limit = min(max_size, server_limit)
        self._room = max_count if max_count > 0 else sys.maxsize
        self.size = 0
        """Bytes of the answer so far; 0 before the first entry."""

    def takes(self, entry_size: int) -> bool:
        """Whether the next entry goes into the answer; False ends the batch."""
        record = entry_size + _RECORD_HEAD
        if not self.size:
            self.size = _ANSWER_HEAD + record
            self._room = min(self._room - 1, max(0, (self._limit - self.size) // record))
            return True
        if self._room <= 0 or self.size + record > self._limit:
            self._room = 0
            return False
        self.size += record
        self._room -= 1
        return True
