"""Entries as records, each preceded by its length: the form of entry logs, batch answers and answers of take-overs.

Source: docs/protocol/wire.md#v2-responses, docs/protocol/unbounded-ledgers.md#on-the-wire.
"""

from __future__ import annotations

import struct

from bookgate.ledger.wire.v3 import ProtocolError

RECORD_LENGTH = struct.Struct(">i")


def read_records(data: bytes | memoryview, start: int = 0) -> tuple[bytes | memoryview, ...]:
    """The packets of all records from `start` to the end of `data`; not copied. Raises ProtocolError."""
    packets: list[bytes | memoryview] = []
    append, unpack, end = packets.append, RECORD_LENGTH.unpack_from, len(data)
    while start < end:
        packet = start + RECORD_LENGTH.size
        if packet > end:
            raise ProtocolError(f"{end - start} bytes at the end of a batch are no length")
        (length,) = unpack(data, start)
        start = packet + length
        if length < 0 or start > end:
            raise ProtocolError(f"an entry of {length} bytes in a batch with {end - packet} left")
        append(data[packet:start])
    return tuple(packets)
