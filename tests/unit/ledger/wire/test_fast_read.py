"""The short way of reading a read request means what the long way means, or nothing."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bookgate.ledger.wire import fast_read, v2
from bookgate.ledger.wire.messages import LAST_ENTRY, ReadRequest, ReadResponse, Status
from bookgate.ledger.wire.v3 import ProtocolError, decode_request, encode_request, encode_response

IDS = st.one_of(st.integers(0, 300), st.integers(16_000, 17_000), st.integers(0, 2**63 - 1))
SIZES = st.one_of(st.integers(0, 200), st.integers(16_300, 16_400))
KEY = bytes(range(20))


def packet_of(request: ReadRequest) -> memoryview:
    return memoryview(encode_request(request))[4:]


def v2_packet_of(request: ReadRequest) -> memoryview:
    return memoryview(v2.encode_request(request))[4:]


@given(IDS, IDS, IDS, SIZES, IDS)
def test_a_common_read_is_read_and_answered_as_the_long_way_does(
    txn: int, ledger: int, entry: int, size: int, lac: int
) -> None:
    read = fast_read.read_v3(packet_of(ReadRequest(txn, ledger, entry)))
    assert read is not None
    assert (read.ledger_id, read.entry_id) == (ledger, entry)
    body = b"x" * size
    assert read.found(body, lac) == encode_response(ReadResponse(txn, Status.EOK, ledger, entry, body, lac))


@given(IDS, IDS, SIZES, IDS)
def test_a_common_read_of_v2_is_read_and_answered_as_the_long_way_does(
    ledger: int, entry: int, size: int, lac: int
) -> None:
    read = fast_read.read_v2(v2_packet_of(ReadRequest(0, ledger, entry)))
    assert read is not None
    assert (read.ledger_id, read.entry_id) == (ledger, entry)
    body = b"x" * size
    answer = ReadResponse(0, Status.EOK, ledger, entry, body, lac)
    assert read.found(body, lac) == v2.encode_response(answer, v2.CURRENT_VERSION)


@given(
    IDS,
    IDS,
    IDS,
    st.lists(st.tuples(st.integers(0, 40), st.integers(0, 255)), max_size=3),
    st.integers(0, 6),
    st.binary(max_size=2),
)
def test_whatever_else_it_reads_the_long_way_reads_the_same(
    txn: int, ledger: int, entry: int, flips: list[tuple[int, int]], cut: int, more: bytes
) -> None:
    packet = bytearray(packet_of(ReadRequest(txn, ledger, entry)))
    for position, value in flips:
        packet[position % len(packet)] = value
    mutated = memoryview(bytes(packet[: len(packet) - cut]) + more)
    read = fast_read.read_v3(mutated)
    if read is None:
        return
    request = decode_request(mutated)
    assert isinstance(request, ReadRequest)
    assert request == ReadRequest(request.txn_id, read.ledger_id, read.entry_id)
    answer = ReadResponse(request.txn_id, Status.EOK, read.ledger_id, read.entry_id, b"body", 5)
    assert read.found(b"body", 5) == encode_response(answer)


@given(st.binary(min_size=20, max_size=20).map(lambda tail: b"\x02\x02\0\0" + tail[4:]) | st.binary(max_size=30))
def test_whatever_it_reads_of_v2_the_long_way_reads_the_same(packet: bytes) -> None:
    read = fast_read.read_v2(memoryview(packet))
    if read is not None:
        request, version = v2.decode_request(packet)
        assert request == ReadRequest(request.txn_id, read.ledger_id, read.entry_id)
        assert version == v2.CURRENT_VERSION


@pytest.mark.parametrize(
    "request_",
    [
        ReadRequest(1, 2, 3, fence=True, master_key=KEY),
        ReadRequest(1, 2, 3, master_key=KEY),
        ReadRequest(1, 2, 3, previous_lac=2, timeout_ms=100),
        ReadRequest(1, 2, 3, priority=100),
        ReadRequest(1, 2, LAST_ENTRY),
        ReadRequest(1, -2, 3),
    ],
    ids=["fence", "key", "long poll", "priority", "last entry", "ledger"],
)
def test_what_is_not_common_is_left_to_the_long_way(request_: ReadRequest) -> None:
    assert fast_read.read_v3(packet_of(request_)) is None


@pytest.mark.parametrize(
    "request_",
    [
        ReadRequest(0, 2, 3, fence=True, master_key=KEY),
        ReadRequest(0, 2, 3, priority=100),
        ReadRequest(0, 2, LAST_ENTRY),
        ReadRequest(0, -2, 3),
    ],
    ids=["fence", "priority", "last entry", "ledger"],
)
def test_what_is_not_common_in_v2_is_left_to_the_long_way(request_: ReadRequest) -> None:
    assert fast_read.read_v2(v2_packet_of(request_)) is None


def test_numbers_longer_than_they_need_be_are_left_to_the_long_way() -> None:
    """Their answer repeats them in the shortest form."""
    packet = bytes(packet_of(ReadRequest(1, 2, 3)))
    longer = packet.replace(b"\x08\x02", b"\x08\x82\x00").replace(b"\xa2\x06\x04", b"\xa2\x06\x05")
    assert decode_request(longer) == ReadRequest(1, 2, 3)
    assert fast_read.read_v3(memoryview(longer)) is None


def test_what_is_no_request_is_neither() -> None:
    packet = packet_of(ReadRequest(1, 2, 3))[:-1]
    assert fast_read.read_v3(packet) is None
    with pytest.raises(ProtocolError):
        decode_request(packet)
