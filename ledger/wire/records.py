"""Entries as records, each preceded by its length: the form of entry logs, batch answers and answers of take-overs.

Source: docs/protocol/wire.md#v2-responses, docs/protocol/unbounded-ledgers.md#on-the-wire.
"""

from __future__ import annotations

import struct

from bookgate.ledger.packets import Packets
from bookgate.ledger.wire.v3 import ProtocolError

RECORD_LENGTH = struct.Struct(">i")


def read_records(data: bytes | memoryview, start: int = 0) -> Packets:
    """The packets of all records from `start` to the end of `data`; not copied. Raises ProtocolError."""
    unpack, end = RECORD_LENGTH.unpack_from, len(data)
    size = _one_size(data, start)
    if size:
        return Packets(data, range(start + RECORD_LENGTH.size, end, size), range(start + size, end + 1, size))
    starts: list[int] = []
    ends: list[int] = []
    while start < end:
        packet = start + RECORD_LENGTH.size
        if packet > end:
            raise ProtocolError(f"{end - start} bytes at the end of a batch are no length")
        (length,) = unpack(data, start)
        start = packet + length
        if length < 0 or start > end:
            raise ProtocolError(f"an entry of {length} bytes in a batch with {end - packet} left")
        starts.append(packet)
        ends.append(start)
    return Packets(data, starts, ends)


def _one_size(data: bytes | memoryview, start: int) -> int:
    """The size of each record from `start` on, if all have the same, found without a step for each; else 0."""
    length = bytes(data[start : start + RECORD_LENGTH.size])
    size = RECORD_LENGTH.size + int.from_bytes(length, "big", signed=True)
    if size <= RECORD_LENGTH.size or (len(data) - start) % size:
        return 0
    columns = [bytes(data[start + at :: size]) for at in range(RECORD_LENGTH.size)]
    same = all(column == length[at : at + 1] * len(column) for at, column in enumerate(columns))
    return size if same else 0
