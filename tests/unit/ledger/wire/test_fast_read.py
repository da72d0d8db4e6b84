"""The short way of reading a read request means what the long way means, or nothing."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bookgate.ledger.varint import encode_varint
from bookgate.ledger.wire import fast_read, v2
from bookgate.ledger.wire.fast_read import FastRead, Found, Reads
from bookgate.ledger.wire.messages import LAST_ENTRY, ReadRequest, ReadResponse, Status
from bookgate.ledger.wire.v3 import ProtocolError, decode_request, encode_request, encode_response

IDS = st.one_of(st.integers(0, 300), st.integers(16_000, 17_000), st.integers(0, 2**63 - 1))
SIZES = st.one_of(st.integers(0, 200), st.integers(16_300, 16_400))
KEY = bytes(range(20))


def packet_of(request: ReadRequest) -> memoryview:
    return memoryview(encode_request(request))[4:]


def v2_packet_of(request: ReadRequest) -> memoryview:
    return memoryview(v2.encode_request(request))[4:]


def frame_of(read: FastRead, lac: int, body: bytes) -> bytes:
    return Found(read.ledger, lac).frames(fast_read.read_together(read, (), 0), 0, [body])


@given(IDS, IDS, IDS, SIZES, IDS)
def test_a_common_read_is_read_and_answered_as_the_long_way_does(
    txn: int, ledger: int, entry: int, size: int, lac: int
) -> None:
    read = fast_read.read_v3(packet_of(ReadRequest(txn, ledger, entry)))
    assert read is not None
    assert (read.ledger_id, read.entry_id) == (ledger, entry)
    body = b"x" * size
    assert frame_of(read, lac, body) == encode_response(ReadResponse(txn, Status.EOK, ledger, entry, body, lac))


@given(IDS, IDS, SIZES, IDS)
def test_a_common_read_of_v2_is_read_and_answered_as_the_long_way_does(
    ledger: int, entry: int, size: int, lac: int
) -> None:
    read = fast_read.read_v2(v2_packet_of(ReadRequest(0, ledger, entry)))
    assert read is not None
    assert (read.ledger_id, read.entry_id) == (ledger, entry)
    body = b"x" * size
    answer = ReadResponse(0, Status.EOK, ledger, entry, body, lac)
    assert frame_of(read, lac, body) == v2.encode_response(answer, v2.CURRENT_VERSION)


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
    assert frame_of(read, 5, b"body") == encode_response(answer)


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


def singly(reads: Reads) -> list[FastRead]:
    """The columns as rows."""
    count = len(reads.entry_ids)
    txn_ids = reads.txn_ids or [b""] * count
    entries = reads.entries or [b""] * count
    rows = zip(reads.entry_ids, txn_ids, entries, strict=True)
    return [FastRead(reads.ledger_id, entry_id, txn_id, reads.ledger, entry) for entry_id, txn_id, entry in rows]


@given(READS, st.booleans(), st.booleans(), st.integers(0, 30), st.integers(0, 40), st.integers(0, 255))
def test_reads_together_are_what_they_are_one_by_one(
    reads: list[tuple[int, int, int]], is_v3: bool, is_ascending: bool, damaged: int, position: int, value: int
) -> None:
    """With one packet that may be anything; they end before it, or another ledger."""
    encode, decode = (packet_of, fast_read.read_v3) if is_v3 else (v2_packet_of, fast_read.read_v2)
    if is_ascending:
        reads = sorted(reads, key=lambda read: read[2])
    packets = [encode(ReadRequest(txn if is_v3 else 0, ledger, entry)) for txn, ledger, entry in reads]
    packets += [encode(ReadRequest(each if is_v3 else 0, 2, 16_391 + each)) for each in range(20)]
    broken = bytearray(packets[damaged % len(packets)])
    broken[position % len(broken)] = value
    packets[damaged % len(packets)] = memoryview(bytes(broken))
    alone = [decode(packet) for packet in packets]
    for start, first in enumerate(alone):
        if first is None:
            continue
        found = singly(fast_read.read_together(first, packets, start + 1))
        end = start + len(found)
        assert found == alone[start:end]
        assert not any(each is not None and each.ledger_id == first.ledger_id for each in alone[end : end + 1])


@given(st.lists(st.integers(0, 12), min_size=1, max_size=20), st.booleans())
def test_parts_are_rows_and_what_lies_between(ids: list[int], is_ascending: bool) -> None:
    if is_ascending:
        ids = sorted(set(ids))
    reads = Reads(1, ids, b"\x01", [b"\x01"] * len(ids), [b"\x01"] * len(ids))
    start = 0
    while start < len(ids):
        end, in_a_row = reads.part(start)
        part = ids[start:end]
        assert part
        is_row = part == list(range(part[0], part[0] + len(part)))
        assert is_row == in_a_row
        if in_a_row:
            assert len(part) == 1 or ids[end : end + 1] != [part[-1] + 1], "a row is whole"
        else:
            assert all(after != before + 1 for before, after in itertools.pairwise(part))
        start = end


@given(st.lists(st.tuples(IDS, IDS, SIZES), min_size=1, max_size=6), IDS, IDS)
def test_responses_one_after_the_other_are_as_the_long_way_makes_them(
    reads: list[tuple[int, int, int]], ledger: int, lac: int
) -> None:
    found = Found(encode_varint(ledger), lac)
    for txn, entry, size in reads:
        read = fast_read.read_v3(packet_of(ReadRequest(txn, ledger, entry)))
        assert read is not None
        body = b"x" * size
        together = fast_read.read_together(read, (), 0)
        response = encode_response(ReadResponse(txn, Status.EOK, ledger, entry, body, lac))
        assert found.frames(together, 0, [body]) == response


@given(IDS, IDS, st.lists(SIZES, min_size=1, max_size=20), st.booleans(), st.booleans())
def test_responses_to_reads_together_are_those_to_each(
    ledger: int, lac: int, sizes: list[int], is_v3: bool, is_one_size: bool
) -> None:
    encode, decode = (packet_of, fast_read.read_v3) if is_v3 else (v2_packet_of, fast_read.read_v2)
    packets = [encode(ReadRequest(300 + each if is_v3 else 0, ledger, 500 - 3 * each)) for each in range(len(sizes))]
    first = decode(packets[0])
    assert first is not None
    reads = fast_read.read_together(first, packets, 1)
    bodies = [bytes([each]) * (sizes[0] if is_one_size else size) for each, size in enumerate(sizes)]
    expected = [
        encode_response(ReadResponse(300 + each, Status.EOK, ledger, 500 - 3 * each, body, lac))
        if is_v3
        else v2.encode_response(ReadResponse(0, Status.EOK, ledger, 500 - 3 * each, body), v2.CURRENT_VERSION)
        for each, body in enumerate(bodies)
    ]
    found = Found(reads.ledger, lac)
    assert found.frames(reads, 0, bodies) == b"".join(expected)
    middle = len(bodies) // 2
    assert not bodies[middle:] or found.frames(reads, middle, bodies[middle:]) == b"".join(expected[middle:])


@pytest.mark.parametrize("entry", [0, 300, 20_000, 2**40, 2**63 - 2, 2**63 - 1])
@pytest.mark.parametrize("is_v3", [True, False])
def test_what_no_read_can_be_ends_reads_together(entry: int, is_v3: bool) -> None:
    """Packets of any length, and ids above which there is none."""
    encode, decode = (packet_of, fast_read.read_v3) if is_v3 else (v2_packet_of, fast_read.read_v2)
    packet = encode(ReadRequest(1 if is_v3 else 0, 2, entry))
    first = decode(packet)
    assert first is not None
    for size in range(1, len(packet)):
        for short in (packet[:size], packet[-size:], memoryview(b"\0" * size)):
            assert singly(fast_read.read_together(first, [packet, short], 1)) == [first]
    assert singly(fast_read.read_together(first, [packet, packet], 1)) == [first, first]
