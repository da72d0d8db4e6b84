"""Frames of the entry protocol: four bytes of big-endian length, then that many bytes of packet.

The decoder owns one receive buffer, into which the transport reads in place; packets come out as views of it, so that
a packet is never copied but for what is left of it when the buffer is full. States: waiting for a length, waiting for a
packet. A length of 0, a negative one, and a frame over the limit (which counts the length bytes) are errors after which
the connection can't be followed any more. Source: docs/protocol/wire.md#framing.

The buffer grows with the bytes that have come, not with those that were announced: it is at most four times as long
as what it held at once, `SMALLEST_BUFFER` apart. `trim` gives back what the latest reads had no use for.
"""

from __future__ import annotations

import struct
from collections.abc import Callable

LENGTH_SIZE = 4
"""Bytes of a frame before its packet."""

DEFAULT_MAX_FRAME_SIZE = 5 * 1024 * 1024
"""Bytes of a whole frame, length bytes included: BookKeeper's nettyMaxFrameSizeBytes."""

SMALLEST_BUFFER = 4 * 1024
"""Bytes that a decoder holds in any case."""

_LENGTH = struct.Struct(">i")
_BUFFER_SIZE = 256 * 1024
"""What reads that fill their buffer make of it; only for a frame that does not fit it grows further."""
_LEAST_READ = 64 * 1024


class FrameError(Exception):
    """The byte stream is not a sequence of frames; the connection has to be closed.

    `packets` are the whole ones that were received together with the error, before it.
    """

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.packets: list[memoryview] = []


class FrameDecoder:
    """Cuts a byte stream into packets. Packets are valid until the next call of `get_buffer` or `feed`."""

    def __init__(
        self, max_frame_size: int = DEFAULT_MAX_FRAME_SIZE, on_resized: Callable[[], None] = lambda: None
    ) -> None:
        """`on_resized` is called when `size` has changed."""
        self.max_frame_size = max_frame_size
        """May change between two calls."""
        self._on_resized = on_resized
        self._buffer = bytearray(SMALLEST_BUFFER)
        self._start = 0
        self._end = 0
        self._used = 0
        """The furthest that bytes have come since the last `trim`."""

    @property
    def size(self) -> int:
        """Bytes of the buffer."""
        return len(self._buffer)

    @property
    def pending(self) -> int:
        """Bytes received that belong to no whole packet yet."""
        return self._end - self._start

    def get_buffer(self, _size_hint: int = -1) -> memoryview:
        """Where the transport may write next; never empty."""
        self._make_room()
        return memoryview(self._buffer)[self._end :]

    def buffer_updated(self, count: int) -> list[memoryview]:
        """Takes notice of `count` bytes written; returns the packets that are now whole. Raises FrameError."""
        end = self._end = self._end + count
        if end > self._used:
            self._used = end
        start = self._start
        packets = []
        view = memoryview(self._buffer)
        longest = self.max_frame_size - LENGTH_SIZE
        # The rules of `_frame_size`, without a call a frame; it says what is wrong with the one that ends the loop.
        while end - start >= LENGTH_SIZE:
            length = _LENGTH.unpack_from(view, start)[0]
            following = start + LENGTH_SIZE + length
            if length <= 0 or length > longest or following > end:
                break
            packets.append(view[start + LENGTH_SIZE : following])
            start = following
        self._start = start
        try:
            self._frame_size()
        except FrameError as error:
            error.packets = packets
            raise
        return packets

    @property
    def unread(self) -> bytes:
        """What was received behind the last whole frame."""
        return bytes(self._buffer[self._start : self._end])

    def feed(self, data: bytes) -> list[memoryview]:
        """The same for bytes that were received elsewhere. The returned packets are copies."""
        packets: list[memoryview] = []
        view = memoryview(data)
        while view:
            buffer = self.get_buffer()
            count = min(len(buffer), len(view))
            buffer[:count] = view[:count]
            packets += [memoryview(bytes(packet)) for packet in self.buffer_updated(count)]
            view = view[count:]
        return packets

    def _frame_size(self) -> int | None:
        """Size of the frame at the start, or None while its length is not there."""
        if self._end - self._start < 4:
            return None
        length: int = _LENGTH.unpack_from(self._buffer, self._start)[0]
        if length <= 0:
            raise FrameError(f"a frame can't have the length {length}")
        if length + 4 > self.max_frame_size:
            raise FrameError(f"a frame of {length + 4} bytes is over the limit of {self.max_frame_size}")
        return length + 4

    def trim(self) -> None:
        """Gives back what was not used since the last call, unless a frame has begun."""
        used, self._used = self._used, 0
        size = max(SMALLEST_BUFFER, 2 * used)
        if self._start == self._end and 2 * size <= len(self._buffer):
            self._move_to(size)

    def _make_room(self) -> None:
        """Keeps a buffer that has room; one that reads have filled grows, the rest of a packet comes to its front."""
        size, pending = len(self._buffer), self._end - self._start
        is_filled = self._end == size
        if not pending:
            self._start = self._end = 0
            if is_filled and size < _BUFFER_SIZE:
                self._move_to(min(4 * size, _BUFFER_SIZE))
            return
        if size - self._end >= min(_LEAST_READ, size // 4):
            return
        most = max(_BUFFER_SIZE, (self._frame_size() or 0) + _LEAST_READ)
        if size < most and (pending > size // 2 or (is_filled and size < _BUFFER_SIZE)):
            self._move_to(min(2 * size, most))
        else:
            view = memoryview(self._buffer)
            view[:pending] = view[self._start : self._end]
            self._start, self._end = 0, pending

    def _move_to(self, size: int) -> None:
        """Carries the unfinished frame over to the front of a fresh buffer."""
        pending = self._end - self._start
        buffer = bytearray(size)
        buffer[:pending] = memoryview(self._buffer)[self._start : self._end]
        self._buffer, self._start, self._end = buffer, 0, pending
        self._on_resized()
