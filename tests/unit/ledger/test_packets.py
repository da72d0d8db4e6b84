"""Runs of packets are the packets, whether all have one size or not, and wherever they are damaged."""

import struct

from hypothesis import given
from hypothesis import strategies as st

from bookgate.ledger.packets import Packets
from bookgate.ledger.wire.records import read_records
from bookgate.ledger.wire.v3 import ProtocolError

HEAD = struct.Struct(">3sH")

bodies = st.lists(st.binary(max_size=12), max_size=9) | st.integers(0, 12).flatmap(
    lambda size: st.lists(st.binary(min_size=size, max_size=size), max_size=9)
)


def _records(packets: list[bytes]) -> bytes:
    return b"".join(len(packet).to_bytes(4, "big") + packet for packet in packets)


def _one_by_one(data: bytes) -> list[bytes] | None:
    """What the records hold; None if they are no records."""
    packets = []
    while data:
        length = int.from_bytes(data[:4], "big", signed=True)
        if len(data) < 4 or not 0 <= length <= len(data) - 4:
            return None
        packets.append(data[4 : 4 + length])
        data = data[4 + length :]
    return packets


@given(bodies, st.binary(max_size=9), st.none() | st.tuples(st.integers(0, 200), st.integers(0, 255)))
def test_records_are_read_as_one_by_one(packets: list[bytes], before: bytes, damage: tuple[int, int] | None) -> None:
    data = bytearray(_records(packets))
    if damage is not None and data:
        data[damage[0] % len(data)] = damage[1]
    expected = _one_by_one(bytes(data))
    try:
        found = read_records(memoryview(before + data), len(before))
    except ProtocolError:
        assert expected is None
    else:
        assert found == expected


@given(bodies, st.integers(0, 9), st.integers(0, 9))
def test_heads_and_the_rest_are_those_of_each_packet(packets: list[bytes], start: int, stop: int) -> None:
    packets = packets[start:stop]
    expected = None
    if all(len(packet) >= HEAD.size for packet in packets):
        expected = [(*HEAD.unpack_from(packet), packet[HEAD.size :]) for packet in packets]
    for run in (Packets.of(packets), read_records(_records(packets)), read_records(_records([b"x", *packets]))[1:]):
        found = run.split(HEAD)
        assert (found if found is None else list(found)) == expected
