"""Read-ahead for sequential readers of a ledger, in bounded memory.

A miss for the entry after the last one read of its ledger is sequential: the read then takes a longer part of the log,
and the records that follow in it are kept as long as they belong to the same ledger and have consecutive ids. The
amount grows as long as the kept records are used, and shrinks if a ledger has few records in a row.

Kept packets are found by their location, which the index returns, so a copy of an entry that the index no longer refers
to is never served. The oldest packets are dropped first, and none is served for longer than a minute: a bookie that has
room for all it is asked for would otherwise never notice what has become of the disk below. Any thread.

Source: docs/protocol/storage.md#reading-ahead. Not its job: files, validating the requested records (`reader`).
"""

from __future__ import annotations

import time
from collections import OrderedDict, deque
from threading import Lock

from bookgate.bookie.entry_logs import format as fmt

MIN_WINDOW = 8192
MAX_WINDOW = 1 << 20
PACKET_OVERHEAD = 150
"""Bytes of memory that a kept packet needs beyond its own size."""

_LONGEST_SECONDS = 60.0
"""How long a kept packet is served: a sequential reader asks for it within moments."""

_MAX_LEDGERS = 10_000
_LENGTH_SIZE = 4


class ReadAhead:
    """`capacity` is the limit of the kept packets in bytes; 0 disables read-ahead."""

    def __init__(self, capacity: int) -> None:
        self._capacity = capacity
        self._max_window = max(MIN_WINDOW, min(MAX_WINDOW, capacity // 4))
        self._lock = Lock()
        self._packets: dict[int, tuple[bytes, float]] = {}
        """By location: the packet, and until when it is served."""
        self._order: deque[int] = deque()
        self._bytes = 0
        self._expected: OrderedDict[int, tuple[int, int]] = OrderedDict()
        """By ledger: the entry id that a sequential reader requests next, and the bytes to read then."""

    def get(self, location: int) -> bytes | None:
        """A kept packet, or None."""
        kept = self._packets.get(location)
        return kept[0] if kept is not None and time.monotonic() < kept[1] else None

    @property
    def usage(self) -> tuple[int, int]:
        """Number of packets kept, and the bytes of memory they use."""
        return len(self._packets), self._bytes

    def window(self, ledger_id: int, entry_id: int) -> int:
        """Bytes to read for an entry that was not kept: at least MIN_WINDOW, or 0 for a random read."""
        if not self._capacity:
            return 0
        with self._lock:
            expected, window = self._expected.get(ledger_id, (-1, 0))
            if expected == entry_id:
                return window
            self._expect(ledger_id, entry_id + 1, MIN_WINDOW)
            return 0

    def keep(self, location: int, ledger_id: int, entry_id: int, data: bytes, window: int) -> int:
        """Keeps the records after the first one of `data`, which begins with the length of the record at `location`.

        Returns their number. `data` must be final: nothing there is overwritten or appended to any more.
        """
        base = location - _LENGTH_SIZE
        position = _LENGTH_SIZE + fmt.decode_prefix(data)[0]
        found: list[tuple[int, bytes]] = []
        end = len(data)
        is_cut = False
        while position + fmt.RECORD_PREFIX_SIZE <= end:
            length, record_ledger_id, record_entry_id = fmt.decode_prefix(
                data[position : position + fmt.LONGEST_PREFIX_SIZE]
            )
            if record_ledger_id != ledger_id or record_entry_id != entry_id + 1 + len(found):
                break
            start = position + _LENGTH_SIZE
            if length < fmt.MIN_ENTRY_SIZE or start + length > end:
                is_cut = True
                break
            found.append((base + start, data[start : start + length]))
            position = start + length
        else:
            is_cut = True
        following = min(2 * window, self._max_window) if is_cut else max(MIN_WINDOW, min(window, 2 * position))
        with self._lock:
            self._expect(ledger_id, entry_id + 1 + len(found), following)
            until = time.monotonic() + _LONGEST_SECONDS
            for kept_at, packet in found:
                self._put(kept_at, packet, until)
        return len(found)

    def _expect(self, ledger_id: int, entry_id: int, window: int) -> None:
        self._expected[ledger_id] = (entry_id, window)
        self._expected.move_to_end(ledger_id)
        if len(self._expected) > _MAX_LEDGERS:
            self._expected.popitem(last=False)

    def _put(self, location: int, packet: bytes, until: float) -> None:
        former = self._packets.get(location)
        self._packets[location] = packet, until
        if former is not None:
            self._bytes += len(packet) - len(former[0])
        else:
            self._order.append(location)
            self._bytes += len(packet) + PACKET_OVERHEAD
        while self._bytes > self._capacity:
            oldest, _ = self._packets.pop(self._order.popleft())
            self._bytes -= len(oldest) + PACKET_OVERHEAD
