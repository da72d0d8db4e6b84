"""A run of entry packets within the bytes of one response that brought them.

Not its job: what the packets say (`entry`, `entry_columns`), and what stands between them (`wire.records`).
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence
from itertools import accumulate
from typing import Any, overload


class Packets(Sequence[bytes | memoryview]):
    """Packets in the order in which they lie in `data`; a view of one is made when it is asked for."""

    __slots__ = ("data", "ends", "starts")

    def __init__(self, data: bytes | memoryview, starts: Sequence[int], ends: Sequence[int]) -> None:
        self.data = data
        self.starts = starts
        """Where each packet begins, and in `ends` where it ends: ranges if all have the same size and distance."""
        self.ends = ends

    @classmethod
    def of(cls, packets: Sequence[bytes | memoryview]) -> Packets:
        """The packets as a run: copies, unless they are one."""
        if isinstance(packets, Packets):
            return packets
        bounds = list(accumulate(map(len, packets), initial=0))
        return cls(b"".join(packets), bounds[:-1], bounds[1:])

    def __len__(self) -> int:
        return len(self.starts)

    @overload
    def __getitem__(self, index: int) -> bytes | memoryview: ...
    @overload
    def __getitem__(self, index: slice) -> Packets: ...
    def __getitem__(self, index: int | slice) -> bytes | memoryview | Packets:
        """One packet, or the run of a slice."""
        if isinstance(index, slice):
            return Packets(self.data, self.starts[index], self.ends[index])
        return self.data[self.starts[index] : self.ends[index]]

    def __eq__(self, other: object) -> bool:
        """Whether another sequence has the same packets."""
        return isinstance(other, Sequence) and list(self) == list(other)

    def split(self, head: struct.Struct) -> Iterable[tuple[Any, ...]] | None:
        """Of each packet the fields of `head`, with which it begins, and the rest; None if one is too short."""
        data, starts, ends = self.data, self.starts, self.ends
        if not starts:
            return ()
        if isinstance(starts, range) and isinstance(ends, range):
            size = ends[0] - starts[0]
            gap = starts.step - size
            if head.size <= size and gap <= starts[0]:
                each = f"{head.format[0]}{gap}x{head.format[1:]}{size - head.size}s"
                return struct.iter_unpack(each, memoryview(data)[starts[0] - gap : ends[-1]])
        fields, before = head.unpack_from, head.size
        if any(end - start < before for start, end in zip(starts, ends, strict=True)):
            return None
        return [
            (*fields(data, start), bytes(data[start + before : end])) for start, end in zip(starts, ends, strict=True)
        ]
