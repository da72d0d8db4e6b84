"""The short cuts of the hot path say what the general codec says."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bookgate.ledger.entry import encode_ids
from bookgate.ledger.wire import v2
from bookgate.ledger.wire.fast_requests import AddRequestEncoder, ReadRequestEncoder
from bookgate.ledger.wire.fast_responses import found_entry, stored_add
from bookgate.ledger.wire.messages import (
    AddRequest,
    AddResponse,
    Operation,
    ReadLacResponse,
    ReadRequest,
    ReadResponse,
    Response,
    Status,
    StatusResponse,
)
from bookgate.ledger.wire.v3 import decode_response, encode_request, encode_response
from bookgate.thinclient.bookies.connection_v2 import V2AddRequestEncoder

ids = st.integers(0, 2**63 - 1) | st.integers(0, 40_000)


@given(ids, ids, ids, st.binary(min_size=20, max_size=20), st.binary(max_size=300))
def test_an_add_is_encoded_as_always(ledger_id: int, txn_id: int, entry_id: int, key: bytes, body: bytes) -> None:
    expected = encode_request(AddRequest(txn_id, ledger_id, entry_id, key, body))
    assert AddRequestEncoder(ledger_id, key).encode(txn_id, entry_id, body) == expected


@given(
    ids, st.lists(ids, max_size=20), st.integers(0, 2**62) | st.integers(0, 40_000), st.lists(st.binary(max_size=200))
)
def test_runs_of_adds_are_encoded_as_always(
    ledger_id: int, txn_ids: list[int], first: int, bodies: list[bytes]
) -> None:
    count = min(len(txn_ids), len(bodies))
    txn_ids, bodies, key = txn_ids[:count], bodies[:count], b"k" * 20
    expected = [
        encode_request(AddRequest(txn_id, ledger_id, entry_id, key, body))
        for entry_id, (txn_id, body) in enumerate(zip(txn_ids, bodies, strict=True), first)
    ]
    assert AddRequestEncoder(ledger_id, key).encode_run(txn_ids, first, bodies) == expected
    expected = [
        v2.encode_request(AddRequest(txn_id, ledger_id, entry_id, key, encode_ids(ledger_id, entry_id) + body))
        for entry_id, (txn_id, body) in enumerate(zip(txn_ids, bodies, strict=True), first)
    ]
    bodies = [encode_ids(ledger_id, entry_id) + body for entry_id, body in enumerate(bodies, first)]
    assert V2AddRequestEncoder(ledger_id, key).encode_run(txn_ids, first, bodies) == expected


@given(ids, ids, ids, st.binary(max_size=200), st.binary(max_size=300), st.booleans(), st.sampled_from([0, 1]))
def test_flags_and_priority_of_an_add_are_encoded_as_always(
    ledger_id: int, txn_id: int, entry_id: int, key: bytes, body: bytes, recovery: bool, flags: int
) -> None:
    for priority in (0, 100, 1000):
        expected = encode_request(AddRequest(txn_id, ledger_id, entry_id, key, body, recovery, flags, priority))
        encoder = AddRequestEncoder(ledger_id, key, recovery=recovery, write_flags=flags, priority=priority)
        assert encoder.encode(txn_id, entry_id, body) == expected


@given(ids, ids, ids, st.binary(max_size=200) | st.none(), st.sampled_from([0, 100, 1000]), st.integers(0, 2**31 - 1))
def test_a_read_is_encoded_as_always(
    ledger_id: int, txn_id: int, entry_id: int, key: bytes | None, priority: int, following: int
) -> None:
    request = ReadRequest(txn_id, ledger_id, entry_id, key is not None, key, priority=priority)
    encoder = ReadRequestEncoder(ledger_id, key, priority)
    assert encoder.encode(txn_id, entry_id) == encode_request(request)
    assert encoder.encode(txn_id, entry_id, following) == encode_request(request._replace(following=following))


@given(ids, ids, ids)
def test_stored_is_recognised(txn_id: int, ledger_id: int, entry_id: int) -> None:
    packet = encode_response(AddResponse(txn_id, Status.EOK, ledger_id, entry_id))[4:]
    assert stored_add(packet) == stored_add(memoryview(packet)) == (txn_id, None)


@given(ids, st.integers(0, 2**63 - 1) | st.integers(2**64, 2**128 - 1), ids, st.none() | ids)
def test_stored_is_recognised_in_every_scope_and_at_every_term(
    txn_id: int, ledger_id: int, entry_id: int, term: int | None
) -> None:
    packet = encode_response(AddResponse(txn_id, Status.EOK, ledger_id, entry_id, term))[4:]
    assert stored_add(packet) == (txn_id, term)
    assert decode_response(packet) == AddResponse(txn_id, Status.EOK, ledger_id, entry_id, term)


@pytest.mark.parametrize("txn_id", [1, 127, 128, 70_000, 2**40])
@pytest.mark.parametrize(
    "response",
    [
        AddResponse(0, Status.EFENCED, 1, 2),
        ReadResponse(0, Status.EOK, 1, 2, b"body"),
        ReadLacResponse(0, Status.EOK, 1),
        StatusResponse(0, Operation.ADD_ENTRY, Status.EUA),
        StatusResponse(0, Operation.ADD_ENTRY, Status.EOK, priority=100),
    ],
)
def test_nothing_else_is_taken_for_stored(response: Response, txn_id: int) -> None:
    assert stored_add(encode_response(response._replace(txn_id=txn_id))[4:]) is None


@given(st.binary(max_size=40))
def test_garbage_is_left_to_the_decoder(packet: bytes) -> None:
    assert stored_add(packet) is None


def test_a_header_with_more_than_the_transaction_id_is_left_to_the_decoder() -> None:
    packet = bytearray(encode_response(AddResponse(5, Status.EOK, 1, 2))[4:])
    packet[1] += 2
    packet[8:8] = b"\x20\x64"
    assert stored_add(bytes(packet)) is None


@given(ids, ids, ids, st.binary(max_size=300), st.none() | ids)
def test_an_entry_is_found_in_the_answer_to_a_read(
    txn_id: int, ledger_id: int, entry_id: int, body: bytes, max_lac: int | None
) -> None:
    response = ReadResponse(txn_id, Status.EOK, ledger_id, entry_id, body, max_lac)
    packet = encode_response(response)[4:]
    assert found_entry(packet) == found_entry(memoryview(packet)) == response


@pytest.mark.parametrize("txn_id", [1, 127, 128, 70_000, 2**40])
@pytest.mark.parametrize(
    "response",
    [
        AddResponse(0, Status.EOK, 1, 2),
        ReadResponse(0, Status.ENOENTRY, 1, 2),
        ReadResponse(0, Status.EOK, 1, 2, None, 7),
        ReadResponse(0, Status.EOK, 1, 2, b"body", 7, 1_700_000_000_000),
        ReadResponse(0, Status.EOK, 1, 2, b"body", None, 1_700_000_000_000),
        ReadResponse(0, Status.EOK, 1, 2, b"body", -1),
        StatusResponse(0, Operation.READ_ENTRY, Status.EUA),
        StatusResponse(0, Operation.READ_ENTRY, Status.EOK, priority=100),
    ],
)
def test_nothing_else_is_taken_for_an_entry(response: Response, txn_id: int) -> None:
    assert found_entry(encode_response(response._replace(txn_id=txn_id))[4:]) is None


@given(
    ids,
    st.binary(max_size=20),
    st.none() | st.integers(0, 300),
    st.lists(st.tuples(st.integers(0, 60), st.binary(max_size=2)), min_size=1, max_size=3),
)
def test_what_two_readers_of_a_damaged_answer_understand_is_the_same(
    txn_id: int, body: bytes, max_lac: int | None, damage: list[tuple[int, bytes]]
) -> None:
    packet = encode_response(ReadResponse(txn_id, Status.EOK, 3, 4, body, max_lac))[4:]
    for at, instead in damage:
        packet = packet[:at] + instead + packet[at + 1 :]
    found = found_entry(packet)
    assert found is None or found == decode_response(packet)
