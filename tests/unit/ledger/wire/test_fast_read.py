"""The short way of reading a read request means what the long way means, or nothing."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bookgate.ledger.varint import encode_varint
from bookgate.ledger.wire import fast_read, v2
from bookgate.ledger.wire.fast_read import Found
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
    assert Found(read.ledger, lac).frame(read, body) == encode_response(
        ReadResponse(txn, Status.EOK, ledger, entry, body, lac)
    )


@given(IDS, IDS, SIZES, IDS)
def test_a_common_read_of_v2_is_read_and_answered_as_the_long_way_does(
    ledger: int, entry: int, size: int, lac: int
) -> None:
    read = fast_read.read_v2(v2_packet_of(ReadRequest(0, ledger, entry)))
    assert read is not None
    assert (read.ledger_id, read.entry_id) == (ledger, entry)
    body = b"x" * size
    answer = ReadResponse(0, Status.EOK, ledger, entry, body, lac)
    assert Found(read.ledger, lac).frame(read, body) == v2.encode_response(answer, v2.CURRENT_VERSION)


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
    assert Found(read.ledger, 5).frame(read, b"body") == encode_response(answer)


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


READS = st.lists(st.tuples(IDS, st.sampled_from([2, 3, 300]), st.integers(16_380, 16_390)), min_size=1, max_size=12)


@given(READS, st.booleans(), st.integers(0, 11), st.integers(0, 40), st.integers(0, 255))
def test_a_run_is_what_the_reads_are_one_by_one(
    reads: list[tuple[int, int, int]], is_v3: bool, damaged: int, position: int, value: int
) -> None:
    """In ascending order, as a sequential reader sends them, but for one packet that may be anything."""
    encode, decode = (packet_of, fast_read.read_v3) if is_v3 else (v2_packet_of, fast_read.read_v2)
    packets = [
        encode(ReadRequest(txn if is_v3 else 0, ledger, entry))
        for txn, ledger, entry in sorted(reads, key=lambda read: read[2])
    ]
    packets += [encode(ReadRequest(each if is_v3 else 0, 2, 16_391 + each)) for each in range(4)]
    broken = bytearray(packets[damaged % len(packets)])
    broken[position % len(broken)] = value
    packets[damaged % len(packets)] = memoryview(bytes(broken))
    for start, packet in enumerate(packets):
        first = decode(packet)
        if first is None:
            continue
        run = fast_read.read_run(first, packets, start + 1)
        assert list(run) == [decode(each) for each in packets[start : start + len(run)]]
        behind = [decode(each) for each in packets[start + len(run) : start + len(run) + 1]]
        assert all(
            (read.ledger_id, read.entry_id) == (first.ledger_id, first.entry_id + index)
            for index, read in enumerate(run)
        )
        assert not any(
            each and (each.ledger_id, each.entry_id) == (first.ledger_id, first.entry_id + len(run)) for each in behind
        )


@given(READS, st.booleans(), st.integers(0, 11), st.integers(0, 40), st.integers(0, 255))
def test_scattered_reads_are_what_they_are_one_by_one(
    reads: list[tuple[int, int, int]], is_v3: bool, damaged: int, position: int, value: int
) -> None:
    """In any order, with one packet that may be anything: they end before it, another ledger, or a run."""
    encode, decode = (packet_of, fast_read.read_v3) if is_v3 else (v2_packet_of, fast_read.read_v2)
    packets = [encode(ReadRequest(txn if is_v3 else 0, ledger, entry)) for txn, ledger, entry in reads]
    broken = bytearray(packets[damaged % len(packets)])
    broken[position % len(broken)] = value
    packets[damaged % len(packets)] = memoryview(bytes(broken))
    singly = [decode(packet) for packet in packets]
    for start, first in enumerate(singly):
        if first is None:
            continue
        found = fast_read.read_scattered(first, packets, start + 1)
        assert list(found) == singly[start : start + len(found)]
        assert {read.ledger_id for read in found} == {first.ledger_id}
        for behind in singly[start + len(found) : start + len(found) + 1]:
            is_next = behind is not None and behind.entry_id == found[-1].entry_id + 1
            assert behind is None or behind.ledger_id != first.ledger_id or is_next


@given(st.lists(st.tuples(IDS, IDS, SIZES), min_size=1, max_size=6), IDS, IDS)
def test_responses_one_after_the_other_are_as_the_long_way_makes_them(
    reads: list[tuple[int, int, int]], ledger: int, lac: int
) -> None:
    found = Found(encode_varint(ledger), lac)
    for txn, entry, size in reads:
        read = fast_read.read_v3(packet_of(ReadRequest(txn, ledger, entry)))
        assert read is not None
        body = b"x" * size
        assert found.frame(read, body) == encode_response(ReadResponse(txn, Status.EOK, ledger, entry, body, lac))


@pytest.mark.parametrize("entry", [0, 300, 20_000, 2**40, 2**63 - 2, 2**63 - 1])
@pytest.mark.parametrize("is_v3", [True, False])
def test_what_no_read_can_be_ends_a_run(entry: int, is_v3: bool) -> None:
    """Packets of any length, and ids above which there is none."""
    encode, decode = (packet_of, fast_read.read_v3) if is_v3 else (v2_packet_of, fast_read.read_v2)
    packet = encode(ReadRequest(1 if is_v3 else 0, 2, entry))
    first = decode(packet)
    assert first is not None
    for size in range(1, len(packet)):
        for short in (packet[:size], packet[-size:], memoryview(b"\0" * size)):
            assert list(fast_read.read_run(first, [packet, short], 1)) == [first]
            assert list(fast_read.read_scattered(first, [packet, short], 1)) == [first]
    assert list(fast_read.read_run(first, [packet, packet], 1)) == [first]
    assert list(fast_read.read_scattered(first, [packet, packet], 1)) == [first, first]
