"""Frames of the entry protocol: a four-byte big-endian length, then a packet of that many bytes.

The decoder owns one receive buffer, into which the transport reads directly. Packets are views of that buffer; only an
incomplete packet is copied, when the buffer is full. States: waiting for a length, waiting for a packet. A zero or
negative length, and a frame above the limit (which includes the length bytes), are errors: after them the byte stream
can't be decoded any further. Source: docs/protocol/wire.md#framing.

The buffer grows with the bytes received, not with the length announced: apart from `SMALLEST_BUFFER` it is at most four
times the number of bytes that it held at once. `trim` releases what the latest reads did not use.
"""

from __future__ import annotations

import struct
from collections.abc import Callable

LENGTH_SIZE = 4
"""Bytes of the length field."""

DEFAULT_MAX_FRAME_SIZE = 5 * 1024 * 1024
"""Maximum bytes of a frame, length field included: BookKeeper's nettyMaxFrameSizeBytes."""

SMALLEST_BUFFER = 4 * 1024
"""Minimum bytes of a decoder's buffer."""

_LENGTH = struct.Struct(">i")
_BUFFER_SIZE = 256 * 1024
"""Size to which reads that fill the buffer let it grow; beyond this it grows only for a frame that does not fit."""
_LEAST_READ = 64 * 1024


class FrameError(Exception):
    """The byte stream is not a valid sequence of frames; the connection must be closed.

    `packets` are the complete packets received together with the error, before it.
    """

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.packets: list[memoryview] = []


class FrameDecoder:
    """Splits a byte stream into packets. Packets are valid until the next call of `get_buffer` or `feed`."""

    def __init__(
        self, max_frame_size: int = DEFAULT_MAX_FRAME_SIZE, on_resized: Callable[[], None] = lambda: None
    ) -> None:
        """Starts with an empty buffer.

        Args:
            max_frame_size: Maximum bytes of a frame, length field included.
            on_resized: Called after each change of `size`.
        """
        self.max_frame_size = max_frame_size
        """May be changed between two calls."""
        self._on_resized = on_resized
        self._buffer = bytearray(SMALLEST_BUFFER)
        self._start = 0
        self._end = 0
        self._used = 0
        """The highest buffer position filled since the last `trim`."""

    @property
    def size(self) -> int:
        """Bytes of the receive buffer."""
        return len(self._buffer)

    @property
    def pending(self) -> int:
        """Bytes received that do not yet form a complete packet."""
        return self._end - self._start

    def get_buffer(self, _size_hint: int = -1) -> memoryview:
        """The part of the buffer into which the transport writes next; never empty."""
        self._make_room()
        return memoryview(self._buffer)[self._end :]

    def buffer_updated(self, count: int) -> list[memoryview]:
        """Records that `count` bytes were written; returns the packets that are now complete. Raises FrameError."""
        self.received(count)
        return self.packets()

    def received(self, count: int) -> memoryview:
        """Records that `count` bytes were written; returns all that is not decoded yet, for `skip` and `packets`."""
        self._end += count
        assert self._end <= len(self._buffer), "no more was written than the buffer holds"
        self._used = max(self._used, self._end)
        return memoryview(self._buffer)[self._start : self._end]

    def skip(self, size: int) -> None:
        """Leaves out whole frames of together `size` bytes, which the caller has decoded itself."""
        self._start += size
        assert self._start <= self._end, "no more is left out than was received"

    def packets(self) -> list[memoryview]:
        """The packets that are complete. Raises FrameError."""
        start, end = self._start, self._end
        packets = []
        view = memoryview(self._buffer)
        longest = self.max_frame_size - LENGTH_SIZE
        # Same rules as `_frame_size`, without a call per frame; `_frame_size` reports the error of the frame that ends
        # the loop.
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
        """The bytes received after the last complete frame."""
        return bytes(self._buffer[self._start : self._end])

    def feed(self, data: bytes) -> list[memoryview]:
        """Like `buffer_updated`, for bytes received elsewhere. The returned packets are copies."""
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
        """Size of the frame at the start, or None while its length field is incomplete."""
        if self._end - self._start < 4:
            return None
        length: int = _LENGTH.unpack_from(self._buffer, self._start)[0]
        if length <= 0:
            raise FrameError(f"a frame can't have the length {length}")
        if length + 4 > self.max_frame_size:
            raise FrameError(f"a frame of {length + 4} bytes is over the limit of {self.max_frame_size}")
        return length + 4

    def trim(self) -> None:
        """Releases buffer space that was not used since the last call, unless a frame is incomplete."""
        used, self._used = self._used, 0
        size = max(SMALLEST_BUFFER, 2 * used)
        if self._start == self._end and 2 * size <= len(self._buffer):
            self._move_to(size)

    def release(self) -> None:
        """Releases all buffer space, unless a frame is incomplete."""
        if self._start == self._end and len(self._buffer) > SMALLEST_BUFFER:
            self._move_to(SMALLEST_BUFFER)

    def _make_room(self) -> None:
        """Ensures free space in the buffer: keeps it if it has any, else moves the incomplete packet to the front of a
        larger one.
        """
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
        """Moves the incomplete frame to the front of a new buffer."""
        pending = self._end - self._start
        assert size >= pending, "an incomplete frame is never cut"
        buffer = bytearray(size)
        buffer[:pending] = memoryview(self._buffer)[self._start : self._end]
        self._buffer, self._start, self._end = buffer, 0, pending
        self._on_resized()
