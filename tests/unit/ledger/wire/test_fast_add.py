"""The short way of reading an add means what the long way means, or nothing."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bookgate.ledger.digest import digest_for, ledger_master_key
from bookgate.ledger.entry import encode_entry
from bookgate.ledger.metadata import DigestType
from bookgate.ledger.wire import fast_add, v2
from bookgate.ledger.wire.fast_add import FastAdd, FastTermAdd
from bookgate.ledger.wire.messages import HIGH_PRIORITY, AddRequest, AddResponse, Status
from bookgate.ledger.wire.v3 import ProtocolError, decode_request, decode_response, encode_request, encode_response

DIGEST = digest_for(DigestType.CRC32C, b"secret")
KEY = ledger_master_key(b"secret")
IDS = st.one_of(st.integers(0, 300), st.integers(0, 2**63 - 1))
SIZES = st.one_of(st.integers(0, 200), st.integers(16_200, 16_500))


def packet_of(request: AddRequest) -> memoryview:
    return memoryview(encode_request(request))[4:]


def add_of(txn_id: int, ledger_id: int, entry_id: int, size: int = 10) -> AddRequest:
    body = encode_entry(DIGEST, ledger_id, entry_id, entry_id - 1, size, b"x" * size)
    return AddRequest(txn_id, ledger_id, entry_id, KEY, body)


@given(st.integers(0, 2**63 - 1), IDS, IDS, SIZES)
def test_an_ordinary_add_is_read_and_answered_as_the_long_way_does(
    txn: int, ledger: int, entry: int, size: int
) -> None:
    request = add_of(txn, ledger, entry, size)
    add = fast_add.read_v3(packet_of(request))
    assert isinstance(add, FastAdd)
    assert (add.ledger_id, add.entry_id, add.last_add_confirmed) == (ledger, entry, entry - 1)
    assert (add.master_key, add.body) == (KEY, request.body)
    answer = encode_response(AddResponse(txn, Status.EOK, ledger, entry))
    assert add.stored == answer


@given(
    st.integers(0, 2**40),
    IDS,
    IDS,
    st.lists(st.tuples(st.integers(0, 10_000), st.integers(0, 255)), max_size=3),
    st.integers(0, 40),
)
def test_whatever_else_it_reads_the_long_way_reads_the_same(
    txn: int, ledger: int, entry: int, flips: list[tuple[int, int]], cut: int
) -> None:
    packet = bytearray(packet_of(add_of(txn, ledger, entry)))
    for position, value in flips:
        packet[position % min(60, len(packet))] = value
    mutated = memoryview(bytes(packet[: len(packet) - cut] if cut < 5 else packet))
    add = fast_add.read_v3(mutated)
    if add is None:
        return
    assert isinstance(add, FastAdd)
    request = decode_request(mutated)
    assert isinstance(request, AddRequest)
    assert (request.ledger_id, request.entry_id) == (add.ledger_id, add.entry_id)
    assert (request.master_key, request.body) == (add.master_key, add.body)
    assert (request.recovery, request.write_flags, request.priority) == (False, 0, 0)
    answer = encode_response(AddResponse(request.txn_id, Status.EOK, request.ledger_id, request.entry_id))
    got = decode_both(add.stored)
    assert got == decode_both(answer)


def decode_both(frame: bytes) -> object:
    return decode_response(frame[4:])


@pytest.mark.parametrize(
    "request_",
    [
        add_of(1, 2, 3)._replace(recovery=True),
        add_of(1, 2, 3)._replace(write_flags=1),
        add_of(1, 2, 3)._replace(priority=100),
        add_of(1, 2, 3)._replace(master_key=b"short"),
        add_of(1, 2, 3)._replace(entry_id=4),
        add_of(1, 2, 3)._replace(ledger_id=4),
        add_of(1, 2, 3)._replace(body=b"x" * 31),
    ],
    ids=["recovery", "flags", "priority", "key", "entry", "ledger", "body"],
)
def test_what_is_not_ordinary_is_left_to_the_long_way(request_: AddRequest) -> None:
    assert fast_add.read_v3(packet_of(request_)) is None


@given(IDS, IDS, st.integers(0, 200), st.lists(st.tuples(st.integers(0, 60), st.integers(0, 255)), max_size=2))
def test_the_binary_protocol_likewise(ledger: int, entry: int, size: int, flips: list[tuple[int, int]]) -> None:
    packet = bytearray(v2.encode_request(add_of(0, ledger, entry, size))[4:])
    for position, value in flips:
        packet[position % len(packet)] = value
    add = fast_add.read_v2(memoryview(bytes(packet)))
    if add is None:
        assert flips
        return
    request, version = v2.decode_request(memoryview(bytes(packet)))
    assert isinstance(request, AddRequest)
    assert (request.ledger_id, request.entry_id, version) == (add.ledger_id, add.entry_id, 2)
    assert (request.master_key, request.body) == (add.master_key, add.body)
    assert (request.recovery, request.priority) == (False, 0)
    answer = AddResponse(0, Status.EOK, request.ledger_id, request.entry_id)
    assert add.stored == v2.encode_response(answer)


def test_negative_ids_are_left_to_the_long_way() -> None:
    body = b"\xff" * 16 + bytes(24)
    assert fast_add.read_v3(packet_of(AddRequest(1, -1, -1, KEY, body))) is None


def test_garbage_is_not_read_either_way() -> None:
    packet = memoryview(b"\x0a" + b"\xff" * 60)
    assert fast_add.read_v3(packet) is None
    with pytest.raises(ProtocolError):
        decode_request(packet)


@given(st.integers(0, 2**63 - 1), IDS, IDS, SIZES, IDS, st.integers(-1, 2**63 - 1))
def test_an_add_at_a_term_is_read_and_answered_as_the_long_way_does(
    txn: int, ledger: int, entry: int, size: int, term: int, lafr: int
) -> None:
    request = add_of(txn, ledger, entry, size)._replace(term=term, lafr=lafr)
    packet = packet_of(request)
    found = fast_add.read_v3(packet)
    assert isinstance(found, FastTermAdd)
    add = found.add
    assert (add.ledger_id, add.entry_id, add.last_add_confirmed) == (ledger, entry, entry - 1)
    assert (add.master_key, add.body, found.term, found.lafr) == (KEY, request.body, term, lafr)
    assert add.stored == encode_response(AddResponse(txn, Status.EOK, ledger, entry, term))
    others = (request._replace(truncate=True), request._replace(recovery=True), request._replace(priority=5))
    for other in (*others, request._replace(lafr=None), request._replace(write_flags=1)):
        assert fast_add.read_v3(packet_of(other)) is None


@given(
    st.integers(0, 2**40),
    IDS,
    st.lists(st.tuples(st.integers(0, 10_000), st.integers(0, 255)), min_size=1, max_size=3),
    st.booleans(),
    st.integers(0, 12),
)
def test_whatever_else_of_a_term_it_reads_the_long_way_reads_the_same(
    txn: int, ledger: int, flips: list[tuple[int, int]], at_the_end: bool, cut: int
) -> None:
    packet = bytearray(packet_of(add_of(txn, ledger, 7)._replace(term=3, lafr=300)))
    for position, value in flips:
        packet[-1 - position % 12 if at_the_end else position % 60] = value
    mutated = memoryview(bytes(packet[: len(packet) - cut]))
    found = fast_add.read_v3(mutated)
    if not isinstance(found, FastTermAdd):
        assert found is None
        return
    request = decode_request(mutated)
    assert isinstance(request, AddRequest)
    add = found.add
    assert request[:5] == (request.txn_id, add.ledger_id, add.entry_id, add.master_key, add.body)
    assert (request.term, request.lafr, request.truncate, request.recovery) == (found.term, found.lafr, False, False)
    assert add.stored == encode_response(
        AddResponse(request.txn_id, Status.EOK, request.ledger_id, request.entry_id, request.term)
    )


@given(st.integers(0, 2**63 - 1), IDS, IDS, SIZES)
def test_a_copy_is_read_and_answered_as_the_long_way_does(txn: int, ledger: int, entry: int, size: int) -> None:
    request = add_of(txn, ledger, entry, size)._replace(recovery=True, priority=HIGH_PRIORITY)
    packet = packet_of(request)
    assert fast_add.read_v3(packet) is None
    add = fast_add.read_copy(packet)
    assert isinstance(add, FastAdd)
    assert (add.ledger_id, add.entry_id, add.last_add_confirmed) == (ledger, entry, entry - 1)
    assert (add.master_key, add.body) == (KEY, request.body)
    assert add.stored == encode_response(AddResponse(txn, Status.EOK, ledger, entry))
    others = (request._replace(recovery=False), request._replace(priority=0), request._replace(priority=5))
    for other in (*others, request._replace(term=3, lafr=2, truncate=True), request._replace(write_flags=1)):
        assert fast_add.read_copy(packet_of(other)) is None
    at_term = fast_add.read_copy(packet_of(request._replace(term=3, lafr=-1)))
    assert isinstance(at_term, FastTermAdd)
    assert (at_term.add.body, at_term.term, at_term.lafr) == (request.body, 3, -1)
    assert at_term.add.stored == encode_response(AddResponse(txn, Status.EOK, ledger, entry, 3))


@given(
    st.integers(0, 2**40),
    IDS,
    IDS,
    st.lists(st.tuples(st.integers(0, 10_000), st.integers(0, 255)), max_size=3),
    st.integers(0, 4),
)
def test_whatever_it_reads_as_a_copy_the_long_way_reads_the_same(
    txn: int, ledger: int, entry: int, flips: list[tuple[int, int]], cut: int
) -> None:
    packet = bytearray(packet_of(add_of(txn, ledger, entry)._replace(recovery=True, priority=HIGH_PRIORITY)))
    for position, value in flips:
        packet[position % min(60, len(packet))] = value
    mutated = memoryview(bytes(packet[: len(packet) - cut]))
    add = fast_add.read_copy(mutated)
    if add is None:
        return
    assert isinstance(add, FastAdd)
    request = decode_request(mutated)
    assert isinstance(request, AddRequest)
    assert request[:6] == (request.txn_id, add.ledger_id, add.entry_id, add.master_key, add.body, True)
    assert (request.write_flags, request.priority, request.term) == (0, HIGH_PRIORITY, None)


LEDGERS = st.sampled_from([2, 2, 2, 3, 300])
ENTRIES = st.one_of(st.integers(16_380, 16_388), st.integers(0, 3), st.sampled_from([2**28 - 1, 2**28, 2**63 - 1]))
TXNS = st.one_of(st.integers(0, 300), st.integers(16_380, 16_388), st.sampled_from([2**56, 2**63 - 1]))
SEQUENCES = st.lists(st.tuples(TXNS, LEDGERS, ENTRIES, st.sampled_from([10, 10, 10, 11])), min_size=3, max_size=12)
FLIPS = st.lists(st.tuples(st.integers(0, 11), st.integers(0, 10_000), st.integers(0, 255)), max_size=2)


@given(SEQUENCES, FLIPS)
def test_adds_one_after_the_other_are_read_as_each_alone(
    adds: list[tuple[int, int, int, int]], flips: list[tuple[int, int, int]]
) -> None:
    packets = [bytearray(packet_of(add_of(*add))) for add in adds]
    for number, position, value in flips:
        packet = packets[number % len(packets)]
        packet[position % min(80, len(packet))] = value
    reader = fast_add.AddReader()
    for packet in packets:
        assert reader.read(memoryview(packet)) == fast_add.read_v3(memoryview(packet))


RUNS = st.lists(
    st.tuples(TXNS, st.just(2), st.one_of(st.integers(16_380, 16_420), ENTRIES), st.just(10)), min_size=3, max_size=30
)


@given(RUNS, FLIPS, st.booleans())
def test_a_run_of_adds_is_what_they_are_one_by_one(
    adds: list[tuple[int, int, int, int]], flips: list[tuple[int, int, int]], is_ascending: bool
) -> None:
    """Mostly as a writer sends them, but for some bytes that may be anything."""
    ordered = sorted(adds, key=lambda add: add[2]) if is_ascending else adds
    buffers = [bytearray(packet_of(add_of(*add))) for add in ordered]
    for number, position, value in flips:
        buffers[number % len(buffers)][position % min(80, len(buffers[number % len(buffers)]))] = value
    packets = [memoryview(bytes(buffer)) for buffer in buffers]
    reader = fast_add.AddReader()
    at = 0
    while at < len(packets):
        run = reader.read_run(packets, at)
        if run is None:
            assert reader.read(packets[at]) == fast_add.read_v3(packets[at])
            at += 1
            continue
        count = len(run.entry_ids)
        singly = [fast_add.read_v3(packet) for packet in packets[at : at + count]]
        found = [add for add in singly if isinstance(add, FastAdd)]
        assert len(found) == count >= 2
        assert [add.entry_id for add in found] == list(run.entry_ids) == sorted(set(run.entry_ids))
        assert [add.body for add in found] == list(run.bodies)
        assert b"".join(add.stored for add in found) == run.stored
        assert len({len(add.stored) for add in found}) == 1
        assert {(add.ledger_id, add.master_key) for add in found} == {(run.ledger_id, run.master_key)}
        assert max(add.last_add_confirmed for add in found) == run.last_add_confirmed
        at += count


def seen(reader: fast_add.AddReader) -> fast_add.AddReader:
    """One that has seen the shape of what follows."""
    for entry_id in (16_384, 16_385):
        assert reader.read(packet_of(add_of(20_000, 2, entry_id))) is not None
    return reader


def test_a_writers_adds_are_one_run_also_where_others_store_some_of_them() -> None:
    for entry_ids in (range(16_386, 16_486), range(16_386, 17_000, 3)):
        packets = [packet_of(add_of(20_000 + each, 2, each)) for each in entry_ids]
        run = seen(fast_add.AddReader()).read_run(packets, 0)
        assert run is not None
        assert list(run.entry_ids) == list(entry_ids)
        again = seen(fast_add.AddReader()).read_run(packets, 60)
        assert again is not None
        assert list(again.entry_ids) == list(entry_ids[60:])


def test_what_was_tried_as_a_run_is_not_tried_again() -> None:
    """It would cost the square of what was received."""
    packets = [packet_of(add_of(20_000 + each, 2, each)) for each in range(16_386, 16_406)]
    reader = seen(fast_add.AddReader())
    run = reader.read_run(packets, 0)
    assert run is not None
    reader.read_singly(len(run.entry_ids))
    assert [reader.read_run(packets, at) for at in range(1, 20)] == [None] * 19
    assert reader.read_run(packets, 0) is not None
    broken = bytearray(packets[12])
    broken[0] ^= 1
    packets[12] = memoryview(broken)
    reader = seen(fast_add.AddReader())
    assert [reader.read_run(packets, at) for at in range(20)] == [None] * 20
    assert reader.read_run(packets, 13) is not None


@pytest.mark.parametrize("position", range(len(packet_of(add_of(20_000, 2, 16_390)))))
def test_a_run_ends_before_an_add_that_differs_in_any_byte(position: int) -> None:
    """Or has none of those, for every value that a varint, a tag or an id could have there."""
    for value in (0, 1, 0x7F, 0x80, 0x81, 0xFF):
        packets = [packet_of(add_of(20_000 + each, 2, 16_386 + each)) for each in range(6)]
        buffer = bytearray(packets[3])
        buffer[position] = value
        packets[3] = memoryview(buffer)
        run = seen(fast_add.AddReader()).read_run(packets, 0)
        singly = [fast_add.read_v3(packet) for packet in packets]
        if run is not None:
            found = [add for add in singly[: len(run.entry_ids)] if isinstance(add, FastAdd)]
            assert b"".join(add.stored for add in found) == run.stored
            assert [add.body for add in found] == list(run.bodies)


@pytest.mark.parametrize("position", range(len(packet_of(add_of(20_000, 2, 16_390)))))
def test_an_add_that_differs_from_the_shape_of_the_last_ones_is_read_as_alone(position: int) -> None:
    """At every byte, for every value that a varint, a tag or an id could have there."""
    for value in (0, 1, 0x7F, 0x80, 0x81, 0xFF):
        reader = fast_add.AddReader()
        for entry_id in range(3):
            assert reader.read(packet_of(add_of(20_000 + entry_id, 2, 16_387 + entry_id))) is not None
        packet = bytearray(packet_of(add_of(20_003, 2, 16_390)))
        packet[position] = value
        assert reader.read(memoryview(packet)) == fast_add.read_v3(memoryview(packet))
