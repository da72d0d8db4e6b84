"""The v3 entry protocol, against frames of BookKeeper's own writer and captured traffic."""

from __future__ import annotations

import struct
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bookgate.ledger.wire import fast_add, messages
from bookgate.ledger.wire.frames import FrameDecoder
from bookgate.ledger.wire.messages import Operation, Status
from bookgate.ledger.wire.v3 import ProtocolError, decode_request, decode_response, encode_request, encode_response
from bookgate.protos.bookkeeper.proto import bookkeeper_protocol_pb2 as wire
from tests.conformance.golden import rows


def packet_of(row: dict[str, Any]) -> bytes:
    [packet] = FrameDecoder().feed(bytes.fromhex(row["frame"]))
    return bytes(packet)


def names(value: list[dict[str, Any]]) -> list[str]:
    return [f"{row['name']}-{row['txnId']}-{row.get('status', '')}" for row in value]


REQUESTS = rows("v3.jsonl", "request")
RESPONSES = rows("v3.jsonl", "response")
CAPTURED = [row for row in rows("wire_capture.jsonl") if row["proto"] == "v3"]


@pytest.mark.parametrize("row", REQUESTS, ids=names(REQUESTS))
def test_requests_are_javas(row: dict[str, Any]) -> None:
    request = decode_request(packet_of(row))
    assert request.txn_id == row["txnId"]
    assert encode_request(request).hex() == row["frame"]
    params = row["params"]
    for theirs, ours in (("ledgerId", "ledger_id"), ("entryId", "entry_id"), ("writeFlags", "write_flags")):
        if theirs in params:
            assert getattr(request, ours) == params[theirs]
    for theirs, ours in (("masterKey", "master_key"), ("body", "body")):
        if theirs in params:
            assert getattr(request, ours).hex() == params[theirs]


@pytest.mark.parametrize("row", RESPONSES, ids=names(RESPONSES))
def test_responses_are_javas(row: dict[str, Any]) -> None:
    response = decode_response(packet_of(row))
    assert (response.txn_id, response.status) == (row["txnId"], Status[row["status"]])
    assert encode_response(response).hex() == row["frame"]


@given(*[st.integers(0, 2**63 - 1)] * 3)
def test_the_short_way_to_answer_a_stored_add_is_the_long_one(txn_id: int, ledger_id: int, entry_id: int) -> None:
    answer = messages.AddResponse(txn_id, Status.EOK, ledger_id, entry_id)
    body = struct.pack(">qqqq", ledger_id, entry_id, -1, 0)
    request = encode_request(messages.AddRequest(txn_id, ledger_id, entry_id, b"k" * 20, body))
    add = fast_add.read_v3(memoryview(request)[4:])
    assert isinstance(add, fast_add.FastAdd)
    assert add.stored == encode_response(answer)


def test_captured_traffic_is_read_and_written_again_the_same() -> None:
    directions = {"c2b": 0, "b2c": 0}
    for row in CAPTURED:
        packet, direction = packet_of(row), row["dir"]
        again = (
            encode_request(decode_request(packet)) if direction == "c2b" else encode_response(decode_response(packet))
        )
        assert again.hex() == row["frame"], row["step"]
        directions[direction] += 1
    assert min(directions.values()) > 20


def request_bytes(**fields: Any) -> bytes:
    return wire.Request(**fields).SerializePartialToString()


def header(operation: int = 2, version: int = 3, txn_id: int = 9, priority: int | None = None) -> wire.BKPacketHeader:
    fields = b"\x08%c\x10%c\x18%c" % (version, operation, txn_id)
    return wire.BKPacketHeader.FromString(fields + (b"\x20%c" % priority if priority else b""))


@pytest.mark.parametrize("packet", [b"", b"\xff\xff", b"\x0a\x02\x08\x03", b"\x02\x01\x00\x00" + b"\0" * 40])
def test_what_has_no_header_is_no_request(packet: bytes) -> None:
    with pytest.raises(ProtocolError):
        decode_request(packet)
    with pytest.raises(ProtocolError):
        decode_response(packet)


@pytest.mark.parametrize("fields", [{"operation": 13}, {"version": 7}])
def test_unknown_operations_and_versions_are_no_request(fields: dict[str, int]) -> None:
    with pytest.raises(ProtocolError):
        decode_request(request_bytes(header=header(**fields)))


@pytest.mark.parametrize("operation", [1, 2, 6, 7, 10, 11])
def test_a_missing_sub_message_is_a_bad_request(operation: int) -> None:
    """F17: Java closes the connection without an answer."""
    request = decode_request(request_bytes(header=header(operation)))
    assert request == messages.InvalidRequest(9, operation, Status.EBADREQ)


@pytest.mark.parametrize("operation", [3, 4, 12])
def test_operations_that_are_not_served_keep_the_priority(operation: int) -> None:
    request = decode_request(request_bytes(header=header(operation, priority=100)))
    assert request == messages.InvalidRequest(9, operation, Status.EBADREQ, priority=100)


@pytest.mark.parametrize("version", [1, 2])
def test_old_versions_are_refused_with_their_ids(version: int) -> None:
    add = wire.AddRequest(ledgerId=5, entryId=6, masterKey=b"k", body=b"b")
    request = decode_request(request_bytes(header=header(version=version), addRequest=add))
    assert request == messages.InvalidRequest(9, Operation.ADD_ENTRY, Status.EBADVERSION, 5, 6)


def test_a_request_that_lacks_a_field_is_a_bad_request() -> None:
    request = decode_request(request_bytes(header=header(), addRequest=wire.AddRequest(ledgerId=5, entryId=6)))
    assert request == messages.InvalidRequest(9, Operation.ADD_ENTRY, Status.EBADREQ, 5, 6)


def test_bookie_info_without_sub_message_asks_for_nothing() -> None:
    assert decode_request(request_bytes(header=header(8))) == messages.GetBookieInfoRequest(9, 0)


def test_a_response_without_sub_message_is_read() -> None:
    """What a bookie's dispatch answers by itself carries nothing but the status."""
    frame = encode_response(messages.StatusResponse(9, Operation.ADD_ENTRY, Status.EUA))
    assert decode_response(frame[4:]) == messages.AddResponse(9, Status.EUA, 0, 0)


def test_the_inner_status_counts_where_the_outer_is_ok() -> None:
    message = wire.Response(header=header(1), status=wire.EOK)
    message.readResponse.status = wire.ENOENTRY
    message.readResponse.ledgerId, message.readResponse.entryId = 5, 6
    assert decode_response(message.SerializeToString()) == messages.ReadResponse(9, Status.ENOENTRY, 5, 6)
