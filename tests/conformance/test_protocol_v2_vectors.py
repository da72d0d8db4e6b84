"""The binary entry protocol, against frames of BookKeeper's own writer and captured traffic."""

from __future__ import annotations

import struct
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from bookgate.ledger.digest import digest_for, ledger_master_key
from bookgate.ledger.entry import encode_entry
from bookgate.ledger.metadata import DigestType
from bookgate.ledger.wire import messages
from bookgate.ledger.wire.frames import FrameDecoder
from bookgate.ledger.wire.messages import HIGH_PRIORITY, Operation, Request, Response, Status
from bookgate.ledger.wire.v2 import (
    CURRENT_VERSION,
    VersionedRequest,
    decode_request,
    decode_response,
    encode_request,
    encode_response,
    error_response,
)
from bookgate.ledger.wire.v3 import ProtocolError
from tests.conformance.golden import payload, rows

KEY = ledger_master_key(b"secret")
ENTRY = encode_entry(digest_for(DigestType.CRC32C, b"secret"), 7, 3, 2, 20, b"hello")
NO_TXN_ID = 0
DO_FENCING, RECOVERY_ADD, HIGH_PRIORITY_FLAG = 1, 2, 4
CODES = {
    0: Status.EOK,
    1: Status.ENOLEDGER,
    2: Status.ENOENTRY,
    100: Status.EBADREQ,
    101: Status.EIO,
    102: Status.EUA,
    103: Status.EBADVERSION,
    104: Status.EFENCED,
    105: Status.EREADONLY,
    106: Status.ETOOMANYREQUESTS,
    107: Status.EUNKNOWNLEDGERSTATE,
}

REQUESTS = rows("v2.jsonl", "request")
RESPONSES = rows("v2.jsonl", "response")
# A v2 client asks for what v2 lacks on a second connection, in v3.
CAPTURED = [row for row in rows("wire_capture.jsonl") if row["proto"] == "v2" and row["decoded"].startswith("v2 ")]


STATUSES_OF_V2 = [status for status in Status if status < Status.EINVALIDTERM]


def packet_of(row: dict[str, Any]) -> bytes:
    [packet] = FrameDecoder().feed(bytes.fromhex(row["frame"]))
    return bytes(packet)


def names(value: list[dict[str, Any]]) -> list[str]:
    return [f"{row['name']}-{row['params'].get('rc', '')}" for row in value]


def priority_of(flags: int) -> int:
    return HIGH_PRIORITY if flags & HIGH_PRIORITY_FLAG else 0


def expected_request(name: str, params: dict[str, Any]) -> Request:
    """What the inputs of a row mean."""
    ledger_id, entry_id, flags = params["ledgerId"], params["entryId"], params["flags"]
    key = bytes.fromhex(params["masterKey"]) if "masterKey" in params else None
    priority, fence = priority_of(flags), bool(flags & DO_FENCING)
    if name.startswith("add"):
        assert key is not None
        digest = digest_for(DigestType.CRC32C, b"secret")
        body = encode_entry(digest, ledger_id, entry_id, params["lac"], params["length"], payload(params))
        recovery = bool(flags & RECOVERY_ADD)
        return messages.AddRequest(NO_TXN_ID, ledger_id, entry_id, key, body, recovery, priority=priority)
    if name.startswith("batch-read"):
        return messages.BatchReadRequest(
            params["requestId"], ledger_id, entry_id, params["maxCount"], params["maxSize"], fence, key, priority
        )
    assert name.startswith("read")
    return messages.ReadRequest(NO_TXN_ID, ledger_id, entry_id, fence, key, priority=priority)


def expected_response(name: str, params: dict[str, Any]) -> Response:
    if name == "auth":
        return messages.AuthResponse(NO_TXN_ID, Status.EOK, params["authPluginName"], payload(params))
    ids = params["ledgerId"], params["entryId"]
    status = CODES[params["rc"]]
    if name == "add":
        return messages.AddResponse(NO_TXN_ID, status, *ids)
    if name.startswith("batch-read"):
        bodies = tuple(bytes.fromhex(body) for body in params.get("data", ()))
        return messages.BatchReadResponse(params["requestId"], status, *ids, bodies)
    assert name.startswith("read")
    return messages.ReadResponse(NO_TXN_ID, status, *ids, bytes.fromhex(params["data"]) if "data" in params else None)


@pytest.mark.parametrize("row", REQUESTS, ids=names(REQUESTS))
def test_requests_are_javas(row: dict[str, Any]) -> None:
    request = expected_request(row["name"], row["params"])
    assert encode_request(request).hex() == row["frame"]
    assert decode_request(packet_of(row)) == VersionedRequest(request, CURRENT_VERSION)
    assert decode_request(memoryview(packet_of(row))).request == request


@pytest.mark.parametrize("row", RESPONSES, ids=names(RESPONSES))
def test_responses_are_javas(row: dict[str, Any]) -> None:
    response = expected_response(row["name"], row["params"])
    assert encode_response(response).hex() == row["frame"]
    assert decode_response(packet_of(row)) == response
    assert decode_response(memoryview(packet_of(row))) == response


def test_the_rows_hold_every_operation_and_status() -> None:
    assert {row["params"]["rc"] for row in RESPONSES if "rc" in row["params"]} == set(CODES)
    assert len(REQUESTS) + len(RESPONSES) == 31


def test_captured_traffic_is_read_and_written_again_the_same() -> None:
    directions = {"c2b": 0, "b2c": 0}
    for row in CAPTURED:
        packet, direction = packet_of(row), row["dir"]
        again = (
            encode_request(*decode_request(packet)) if direction == "c2b" else encode_response(decode_response(packet))
        )
        assert again.hex() == row["frame"], row["step"]
        directions[direction] += 1
    assert min(directions.values()) > 20


def test_adds_of_every_digest_are_javas() -> None:
    checked = 0
    for row in rows("digest.jsonl", "v2_add_frame"):
        digest = digest_for(DigestType[row["digest"]], row["password"].encode())
        ids = row["ledgerId"], row["entryId"]
        add = messages.AddRequest(
            NO_TXN_ID,
            *ids,
            ledger_master_key(row["password"].encode()),
            encode_entry(digest, *ids, row["lac"], row["length"], payload(row)),
            bool(row["flags"] & RECOVERY_ADD),
            priority=priority_of(row["flags"]),
        )
        assert encode_request(add).hex() == row["frame"]
        assert decode_request(packet_of(row)).request == add
        checked += 1
    assert checked == 245


# --- statuses and versions ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("code", "status"), CODES.items())
def test_every_status_has_its_code(code: int, status: Status) -> None:
    frame = encode_response(messages.AddResponse(NO_TXN_ID, status, 7, 3))
    assert struct.unpack_from(">i", frame, 8) == (code,)
    assert decode_response(frame[4:]) == messages.AddResponse(NO_TXN_ID, status, 7, 3)
    assert set(CODES.values()) == set(STATUSES_OF_V2)


def test_a_code_that_nobody_knows_is_refused() -> None:
    with pytest.raises(ProtocolError, match="108"):
        decode_response(struct.pack(">Iiqq", 0x02010000, 108, 7, 3))


def test_version_0_is_the_bare_opcode() -> None:
    read = messages.ReadRequest(NO_TXN_ID, 7, 3)
    frame = encode_request(read, 0)
    assert frame[4:8] == b"\0\0\0\x02"
    assert decode_request(frame[4:]) == VersionedRequest(read, 0)
    assert encode_response(messages.ReadResponse(NO_TXN_ID, Status.EOK, 7, 3, ENTRY), 0)[4:8] == b"\0\0\0\x02"
    with pytest.raises(ProtocolError):
        decode_request(b"\0\x02\0\0" + frame[8:])
    with pytest.raises(ValueError, match="version 0"):
        encode_request(read._replace(priority=HIGH_PRIORITY), 0)


def test_before_version_2_a_fence_has_no_key() -> None:
    fence = messages.ReadRequest(NO_TXN_ID, 7, -1, fence=True)
    frame = encode_request(fence._replace(master_key=KEY), 1)
    assert len(frame) == 4 + 20
    assert decode_request(frame[4:]) == VersionedRequest(fence, 1)
    assert decode_request(frame[4:] + KEY) == VersionedRequest(fence, 1)


@pytest.mark.parametrize("version", [3, 4, 9, 127, 255])
def test_other_versions_are_refused_in_their_own_form_and_version(version: int) -> None:
    add = messages.AddRequest(NO_TXN_ID, 7, 3, KEY, ENTRY)
    read = messages.ReadRequest(NO_TXN_ID, 7, 3, priority=HIGH_PRIORITY)
    batch = messages.BatchReadRequest(42, 7, 3, 10, 1000, fence=True, master_key=KEY)
    answers: dict[Request, Response] = {
        add: messages.AddResponse(NO_TXN_ID, Status.EBADVERSION, 7, 3),
        read: messages.ReadResponse(NO_TXN_ID, Status.EBADVERSION, 7, 3),
        batch: messages.BatchReadResponse(42, Status.EBADVERSION, 7, 3),
    }
    for request, answer in answers.items():
        invalid, came_in = decode_request(encode_request(request, version)[4:])
        assert isinstance(invalid, messages.InvalidRequest)
        assert came_in == version
        assert invalid.priority == request.priority  # type: ignore[union-attr]
        frame = encode_response(error_response(invalid, invalid.status), came_in)
        assert frame[4] == version
        assert decode_response(frame[4:]) == answer


def test_authentication_is_read_in_every_version() -> None:
    auth = messages.AuthRequest(NO_TXN_ID, "plugin", b"token")
    for version in (0, 1, 2, 9):
        assert decode_request(encode_request(auth, version)[4:]) == VersionedRequest(auth, version)


def test_a_refused_batch_read_keeps_its_ids() -> None:
    batch = messages.BatchReadRequest(42, 7, 3, 10, 1000)
    assert error_response(batch, Status.ETOOMANYREQUESTS) == messages.BatchReadResponse(
        42, Status.ETOOMANYREQUESTS, 7, 3
    )


# --- what can't be written ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "request_",
    [
        messages.ReadLacRequest(1, 7),
        messages.ForceLedgerRequest(1, 7),
        messages.StartTlsRequest(1),
        messages.AddRequest(1, 7, 3, KEY, ENTRY, write_flags=messages.DEFERRED_SYNC),
        messages.AddRequest(1, 7, 3, KEY[:19], ENTRY),
        messages.ReadRequest(1, 7, -1, previous_lac=2),
        messages.ReadRequest(1, 7, -1, fence=True),
        messages.BatchReadRequest(1, 7, 0, 1, 1, fence=True, master_key=KEY + b"x"),
    ],
    ids=repr,
)
def test_requests_that_would_change_their_meaning_are_refused(request_: Request) -> None:
    with pytest.raises(ValueError, match=r"binary protocol|master key"):
        encode_request(request_)


@pytest.mark.parametrize(
    "response",
    [
        messages.ReadLacResponse(1, Status.EOK, 7),
        messages.StatusResponse(1, Operation.ADD_ENTRY, Status.EUA),
        messages.AuthResponse(1, Status.EUA, "plugin"),
        messages.AuthResponse(1, Status.EOK),
    ],
    ids=repr,
)
def test_answers_that_cannot_be_said_are_refused(response: Response) -> None:
    with pytest.raises(ValueError, match="close the connection"):
        encode_response(response)


def test_failures_carry_no_entries() -> None:
    read = encode_response(messages.ReadResponse(NO_TXN_ID, Status.EIO, 7, 3, ENTRY))
    assert len(read) == 4 + 24
    assert decode_response(read[4:] + ENTRY) == messages.ReadResponse(NO_TXN_ID, Status.EIO, 7, 3)
    batch = encode_response(messages.BatchReadResponse(42, Status.EIO, 7, 3, (ENTRY,)))
    assert len(batch) == 4 + 32
    assert decode_response(batch[4:] + ENTRY) == messages.BatchReadResponse(42, Status.EIO, 7, 3)


# --- damaged packets ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("opcode", [0, 4, 5, 6, 8, 100])
def test_unknown_opcodes_are_no_packet(opcode: int) -> None:
    for head in (bytes((2, opcode, 0, 0)), bytes((0, 0, 0, opcode))):
        with pytest.raises(ProtocolError, match=f"opcode {opcode}$"):
            decode_request(head + bytes(64))
        with pytest.raises(ProtocolError, match=f"opcode {opcode}$"):
            decode_response(head + bytes(64))


@pytest.mark.parametrize("row", REQUESTS, ids=names(REQUESTS))
def test_no_request_is_read_past_its_end(row: dict[str, Any]) -> None:
    packet = packet_of(row)
    least = 40 if row["name"].startswith("add") else len(packet)
    for size in range(least):
        with pytest.raises(ProtocolError):
            decode_request(packet[:size])
    decode_request(packet[:least])


@pytest.mark.parametrize(("opcode", "least"), [(1, 24), (2, 24), (7, 32)])
def test_no_response_is_read_past_its_end(opcode: int, least: int) -> None:
    packet = bytes((2, opcode)) + bytes(30)
    for size in range(least):
        with pytest.raises(ProtocolError):
            decode_response(packet[:size])
    decode_response(packet[:least])


@pytest.mark.parametrize("length", [-1, -(2**31), len(ENTRY) + 1, 2**31 - 1])
def test_entries_of_a_batch_end_within_it(length: int) -> None:
    packet = bytearray(encode_response(messages.BatchReadResponse(42, Status.EOK, 7, 3, (b"first", ENTRY)))[4:])
    struct.pack_into(">i", packet, 32 + 4 + len(b"first"), length)
    with pytest.raises(ProtocolError, match="batch"):
        decode_response(bytes(packet))


@pytest.mark.parametrize("rest", [1, 2, 3])
def test_a_batch_does_not_end_inside_a_length(rest: int) -> None:
    packet = encode_response(messages.BatchReadResponse(42, Status.EOK, 7, 3, (ENTRY,)))[4:]
    with pytest.raises(ProtocolError):
        decode_response(packet + bytes(rest))


@pytest.mark.parametrize("message", [b"", b"\x0a\x01a", b"\x0a\x7fa", b"\x0a\x01\xff\x12\x00"])
def test_authentication_needs_its_whole_message(message: bytes) -> None:
    with pytest.raises(ProtocolError):
        decode_request(b"\x02\x03\0\0" + message)
    with pytest.raises(ProtocolError):
        decode_response(b"\x02\x03\0\0" + message)


HEADS = st.builds(
    lambda version, opcode, flags: bytes((version, opcode)) + flags.to_bytes(2, "big"),
    st.integers(0, 3),
    st.integers(0, 8),
    st.integers(0, 7),
) | st.integers(0, 8).map(lambda opcode: opcode.to_bytes(4, "big"))
AUTHS = st.builds(lambda tail: b"\x02\x03\0\0\x0a\x03" + tail, st.binary(max_size=20))


@given(st.binary(max_size=200) | st.builds(bytes.__add__, HEADS, st.binary(max_size=120)) | AUTHS)
@example(b"\x02\x03\0\0\x0a\x03\xff\xfe\xfd\x12\x00")
def test_random_bytes_are_read_or_no_packet(packet: bytes) -> None:
    for decode in (decode_request, decode_response):
        try:
            decode(packet)
        except ProtocolError:
            continue


# --- round trips ----------------------------------------------------------------------------------------------------

LONGS = st.integers(-(2**63), 2**63 - 1)
IDS = st.integers(0, 2**64 - 1)
KEYS = st.binary(min_size=20, max_size=20)
PRIORITIES = st.sampled_from([0, HIGH_PRIORITY])
ENTRIES = st.binary(min_size=16, max_size=100)


def add_request(key: bytes, body: bytes, recovery: bool, priority: int) -> messages.AddRequest:
    ledger_id, entry_id = struct.unpack_from(">qq", body)
    return messages.AddRequest(NO_TXN_ID, ledger_id, entry_id, key, body, recovery, priority=priority)


def read_request(ledger_id: int, entry_id: int, key: bytes | None, priority: int) -> messages.ReadRequest:
    return messages.ReadRequest(NO_TXN_ID, ledger_id, entry_id, key is not None, key, priority=priority)


def batch_request(ids: tuple[int, int, int], limits: tuple[int, int], key: bytes | None, priority: int) -> Request:
    return messages.BatchReadRequest(*ids, *limits, key is not None, key, priority)


REQUEST_VALUES = st.one_of(
    st.builds(add_request, KEYS, ENTRIES, st.booleans(), PRIORITIES),
    st.builds(read_request, LONGS, LONGS, st.none() | KEYS, PRIORITIES),
    st.builds(
        batch_request,
        st.tuples(IDS, LONGS, LONGS),
        st.tuples(st.integers(-(2**31), 2**31 - 1), LONGS),
        st.none() | KEYS,
        PRIORITIES,
    ),
    st.builds(messages.AuthRequest, st.just(NO_TXN_ID), st.text(), st.binary(), PRIORITIES),
)
STATUSES = st.sampled_from(STATUSES_OF_V2)
FAILURES = st.sampled_from([status for status in STATUSES_OF_V2 if status is not Status.EOK])
BODIES = st.lists(st.binary(max_size=40), max_size=5).map(tuple)
RESPONSE_VALUES: st.SearchStrategy[Response] = st.one_of(
    st.tuples(st.just(NO_TXN_ID), STATUSES, LONGS, LONGS).map(lambda fields: messages.AddResponse(*fields)),
    st.tuples(st.just(NO_TXN_ID), FAILURES, LONGS, LONGS, st.none()).map(lambda fields: messages.ReadResponse(*fields)),
    st.tuples(st.just(NO_TXN_ID), st.just(Status.EOK), LONGS, LONGS, st.none() | ENTRIES).map(
        lambda fields: messages.ReadResponse(*fields)
    ),
    st.tuples(IDS, FAILURES, LONGS, LONGS, st.just(())).map(lambda fields: messages.BatchReadResponse(*fields)),
    st.tuples(IDS, st.just(Status.EOK), LONGS, LONGS, BODIES).map(lambda fields: messages.BatchReadResponse(*fields)),
    st.tuples(st.just(NO_TXN_ID), st.just(Status.EOK), st.text(), st.binary()).map(
        lambda fields: messages.AuthResponse(*fields)
    ),
)


@given(REQUEST_VALUES)
def test_requests_come_back(request: Request) -> None:
    frame = encode_request(request)
    [packet] = FrameDecoder().feed(frame)
    assert decode_request(packet) == VersionedRequest(request, CURRENT_VERSION)


@given(RESPONSE_VALUES, st.integers(0, 255))
def test_responses_come_back_in_every_version(response: Response, version: int) -> None:
    frame = encode_response(response, version)
    [packet] = FrameDecoder().feed(frame)
    assert packet[0] == version
    assert decode_response(packet) == response
