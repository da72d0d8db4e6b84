"""Entry protocol v3: requests and responses as protobuf messages inside frames.

Encoders return a whole frame, length prefix included; decoders take a packet without it. The bytes equal those of
BookKeeper's own writer, including field order: the `flag` of an add or read precedes the other fields of its message. A
request whose header can't be parsed (including an unknown operation) raises ProtocolError, and the connection must then
be closed. One whose header can be parsed but not the remainder becomes an InvalidRequest, answered with its status
(F17). Source: docs/protocol/wire.md#v3-messages.

Not its job: frames (`frames`), executing requests (the bookie), protocol v2.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Any, Protocol, TypedDict, cast

from google.protobuf.message import DecodeError

from bookgate.ledger.ledger_id import HALF_MASK as _HALF_MASK
from bookgate.ledger.ledger_id import MAX_UNSCOPED, halves_of, number_of
from bookgate.ledger.varint import VARINTS, encode_varint
from bookgate.ledger.wire import messages
from bookgate.ledger.wire.messages import ADD_ENTRY, READ_ENTRY, Operation, Request, Response, Status
from bookgate.protos.bookkeeper.proto import bookkeeper_protocol_pb2 as wire

_LENGTH = struct.Struct(">I")
_VERSION = 3
_FENCE = wire.ReadRequest.FENCE_LEDGER
_PIGGYBACK = wire.ReadRequest.ENTRY_PIGGYBACK
_RECOVERY = wire.AddRequest.RECOVERY_ADD
_FLAG_TAG = b"\xa0\x06"
_SCOPE_TAG = b"\xc0\x3e"
"""The tag of `ledgerScopeId`, field 1000 of every sub-message with a ledger id."""
_TERM_TAG, _LAFR_TAG, _TRUNCATE, _KNOWN_LAC_TAG = b"\xc8\x3e", b"\xd0\x3e", b"\xd8\x3e\x01", b"\xe0\x3e"
"""The tags of fields 1001, 1002 and 1004; field 1003 with its value, since it is sent only if true."""
_FOLLOWING_TAG, _FOLLOWING_RECORDS_TAG = b"\xe8\x3e", b"\xea\x3e"
"""The tags of field 1005 in the request, a number, and in the response, bytes."""


class ProtocolError(Exception):
    """The packet does not belong to this protocol; the connection must be closed."""


# --- encoding -------------------------------------------------------------------------------------------------------


def _size(length: int) -> bytes:
    return VARINTS[length] if length < len(VARINTS) else encode_varint(length)


def _header(operation: int, txn_id: int, priority: int = 0) -> bytes:
    """Field 1 of a request or response: tag, size, version, operation, transaction id, priority."""
    body = b"\x08\x03\x10%b\x18%b" % (_size(operation), _size(txn_id))
    if priority:
        body += b"\x20" + _size(priority)
    return b"\x0a" + _size(len(body)) + body


def _frame(*parts: bytes) -> bytes:
    packet = b"".join(parts)
    return _LENGTH.pack(len(packet)) + packet


def _field_tag(operation: int) -> bytes:
    """Tag of an operation's sub-message; requests and responses use the same numbers."""
    return encode_varint(_FIELD_NUMBERS[operation] << 3 | 2)


_FIELD_NUMBERS: dict[int, int] = {
    Operation.READ_ENTRY: 100,
    Operation.ADD_ENTRY: 101,
    Operation.AUTH: 102,
    Operation.WRITE_LAC: 103,
    Operation.READ_LAC: 104,
    Operation.GET_BOOKIE_INFO: 105,
    Operation.START_TLS: 106,
    Operation.FORCE_LEDGER: 107,
    Operation.GET_LIST_OF_ENTRIES_OF_LEDGER: 108,
}
_FIELD_TAGS = {operation: _field_tag(operation) for operation in _FIELD_NUMBERS}
_ADD_TAG = _FIELD_TAGS[Operation.ADD_ENTRY]
_READ_TAG = _FIELD_TAGS[Operation.READ_ENTRY]


def _request(operation: int, txn_id: int, message: bytes, priority: int = 0) -> bytes:
    return _frame(_header(operation, txn_id, priority), _FIELD_TAGS[operation], _size(len(message)), message)


def _int64(value: int) -> bytes:
    return _size(value if value >= 0 else value + (1 << 64))


def _lower(ledger_id: int) -> bytes:
    """The lower half of a ledger number."""
    return _int64(ledger_id & _HALF_MASK if ledger_id > MAX_UNSCOPED else ledger_id)


def scope_field(ledger_id: int) -> bytes:
    """The encoded scope of the ledger with this number, with which its sub-messages end; empty for scope 0."""
    return _SCOPE_TAG + _size(ledger_id >> 64) if ledger_id > MAX_UNSCOPED else b""


def term_fields(
    term: int | None, lafr: int | None = None, *, truncate: bool = False, known_lac: int | None = None
) -> bytes:
    """The encoded fields after the scope in messages of an unbounded ledger; empty for other ledgers."""
    return b"".join(
        (
            b"" if term is None else _TERM_TAG + _int64(term),
            b"" if lafr is None else _LAFR_TAG + _int64(lafr),
            _TRUNCATE if truncate else b"",
            b"" if known_lac is None else _KNOWN_LAC_TAG + _int64(known_lac),
        )
    )


class _Halves(TypedDict, total=False):
    ledgerId: int
    ledgerScopeId: int


def _halves(ledger_id: int) -> _Halves:
    """The sub-message fields that identify the ledger with this number."""
    scope_id, lower = halves_of(ledger_id)
    return {"ledgerId": lower, "ledgerScopeId": scope_id} if scope_id else {"ledgerId": lower}


def _encode_add_request(request: messages.AddRequest) -> bytes:
    message = b"%b\x08%b\x10%b\x1a%b%b\x22%b%b%b%b" % (
        _FLAG_TAG + _size(_RECOVERY) if request.recovery else b"",
        _lower(request.ledger_id),
        _int64(request.entry_id),
        _size(len(request.master_key)),
        request.master_key,
        _size(len(request.body)),
        request.body,
        b"\x28" + _size(request.write_flags) if request.write_flags else b"",
        scope_field(request.ledger_id),
    )
    message += term_fields(request.term, request.lafr, truncate=request.truncate)
    return _request(ADD_ENTRY, request.txn_id, message, request.priority)


def _encode_read_request(request: messages.ReadRequest) -> bytes:
    flag = _FENCE if request.fence else _PIGGYBACK if request.piggyback else 0
    message = b"%b\x08%b\x10%b" % (
        _FLAG_TAG + _size(flag) if flag else b"",
        _lower(request.ledger_id),
        _int64(request.entry_id),
    )
    if request.master_key is not None:
        message += b"\x1a" + _size(len(request.master_key)) + request.master_key
    if request.previous_lac is not None:
        message += b"\x20" + _int64(request.previous_lac)
    if request.timeout_ms is not None:
        message += b"\x28" + _int64(request.timeout_ms)
    message += scope_field(request.ledger_id) + term_fields(request.term, known_lac=request.known_lac)
    if request.following:
        message += _FOLLOWING_TAG + _size(request.following)
    return _request(READ_ENTRY, request.txn_id, message, request.priority)


def _encode_read_lac_request(request: messages.ReadLacRequest) -> bytes:
    message = wire.ReadLacRequest(**_halves(request.ledger_id))
    return _request(Operation.READ_LAC, request.txn_id, message.SerializeToString())


def _encode_write_lac_request(request: messages.WriteLacRequest) -> bytes:
    message = wire.WriteLacRequest(
        **_halves(request.ledger_id), lac=request.lac, masterKey=request.master_key, body=request.body
    )
    return _request(Operation.WRITE_LAC, request.txn_id, message.SerializeToString())


def _encode_force_request(request: messages.ForceLedgerRequest) -> bytes:
    message = wire.ForceLedgerRequest(**_halves(request.ledger_id))
    return _request(Operation.FORCE_LEDGER, request.txn_id, message.SerializeToString())


def _encode_info_request(request: messages.GetBookieInfoRequest) -> bytes:
    message = wire.GetBookieInfoRequest(requested=request.requested)
    return _request(Operation.GET_BOOKIE_INFO, request.txn_id, message.SerializeToString())


def _encode_list_request(request: messages.ListEntriesRequest) -> bytes:
    message = wire.GetListOfEntriesOfLedgerRequest(**_halves(request.ledger_id))
    return _request(Operation.GET_LIST_OF_ENTRIES_OF_LEDGER, request.txn_id, message.SerializeToString())


def _encode_auth_request(request: messages.AuthRequest) -> bytes:
    message = wire.AuthMessage(authPluginName=request.plugin_name, payload=request.payload)
    return _request(Operation.AUTH, request.txn_id, message.SerializeToString(), request.priority)


def _encode_start_tls_request(request: messages.StartTlsRequest) -> bytes:
    return _request(Operation.START_TLS, request.txn_id, b"")


_REQUEST_ENCODERS: dict[type, Callable[[Any], bytes]] = {
    messages.AddRequest: _encode_add_request,
    messages.ReadRequest: _encode_read_request,
    messages.ReadLacRequest: _encode_read_lac_request,
    messages.WriteLacRequest: _encode_write_lac_request,
    messages.ForceLedgerRequest: _encode_force_request,
    messages.GetBookieInfoRequest: _encode_info_request,
    messages.ListEntriesRequest: _encode_list_request,
    messages.AuthRequest: _encode_auth_request,
    messages.StartTlsRequest: _encode_start_tls_request,
}


def encode_request(request: Request) -> bytes:
    """Encodes the frame of a request."""
    return _REQUEST_ENCODERS[type(request)](request)


def _response(operation: int, txn_id: int, status: int, message: bytes, priority: int = 0) -> bytes:
    header = _header(operation, txn_id, priority)
    return _frame(header, b"\x10", _size(status), _FIELD_TAGS[operation], _size(len(message)), message)


def _encode_add_response(response: messages.AddResponse) -> bytes:
    status = _size(response.status)
    ledger_id = response.ledger_id
    message = b"\x08%b\x10%b\x18%b%b" % (
        status,
        _lower(ledger_id),
        _int64(response.entry_id),
        scope_field(ledger_id),
    )
    if response.term is not None:
        message += term_fields(response.term)
    return _frame(_header(ADD_ENTRY, response.txn_id), b"\x10", status, _ADD_TAG, _size(len(message)), message)


def _encode_read_response(response: messages.ReadResponse) -> bytes:
    status = _size(response.status)
    parts = [b"\x08%b\x10%b\x18%b" % (status, _lower(response.ledger_id), _int64(response.entry_id))]
    if response.body is not None:
        parts += [b"\x22", _size(len(response.body)), response.body]
    if response.max_lac is not None:
        parts += [b"\x28", _int64(response.max_lac)]
    if response.lac_update_timestamp_ms is not None:
        parts += [b"\x30", _int64(response.lac_update_timestamp_ms)]
    if response.ledger_id > MAX_UNSCOPED:
        parts.append(scope_field(response.ledger_id))
    if response.term is not None:
        parts.append(term_fields(response.term, response.lafr))
    if response.following:
        parts += [_FOLLOWING_RECORDS_TAG, _size(len(response.following)), response.following]
    size = _size(sum(map(len, parts)))
    return _frame(_header(READ_ENTRY, response.txn_id), b"\x10", status, _READ_TAG, size, *parts)


def _encode_read_lac_response(response: messages.ReadLacResponse) -> bytes:
    message = wire.ReadLacResponse(
        status=_status(response.status),
        **_halves(response.ledger_id),
        lacBody=response.lac_body,
        lastEntryBody=response.last_entry_body,
    )
    return _response(Operation.READ_LAC, response.txn_id, response.status, message.SerializeToString())


def _encode_write_lac_response(response: messages.WriteLacResponse) -> bytes:
    message = wire.WriteLacResponse(status=_status(response.status), **_halves(response.ledger_id))
    return _response(Operation.WRITE_LAC, response.txn_id, response.status, message.SerializeToString())


def _encode_force_response(response: messages.ForceLedgerResponse) -> bytes:
    message = wire.ForceLedgerResponse(status=_status(response.status), **_halves(response.ledger_id))
    return _response(Operation.FORCE_LEDGER, response.txn_id, response.status, message.SerializeToString())


def _encode_info_response(response: messages.GetBookieInfoResponse) -> bytes:
    message = wire.GetBookieInfoResponse(
        status=_status(response.status),
        totalDiskCapacity=response.total_disk_capacity,
        freeDiskSpace=response.free_disk_space,
    )
    return _response(Operation.GET_BOOKIE_INFO, response.txn_id, response.status, message.SerializeToString())


def _encode_list_response(response: messages.ListEntriesResponse) -> bytes:
    message = wire.GetListOfEntriesOfLedgerResponse(
        status=_status(response.status),
        **_halves(response.ledger_id),
        availabilityOfEntriesOfLedger=response.availability,
    )
    operation = Operation.GET_LIST_OF_ENTRIES_OF_LEDGER
    return _response(operation, response.txn_id, response.status, message.SerializeToString())


def _encode_auth_response(response: messages.AuthResponse) -> bytes:
    if response.plugin_name is None:
        return _encode_status(
            messages.StatusResponse(response.txn_id, Operation.AUTH, response.status, response.priority)
        )
    message = wire.AuthMessage(authPluginName=response.plugin_name, payload=response.payload).SerializeToString()
    return _response(Operation.AUTH, response.txn_id, response.status, message, response.priority)


def _encode_start_tls_response(response: messages.StartTlsResponse) -> bytes:
    if response.status != Status.EOK:
        return _encode_status(messages.StatusResponse(response.txn_id, Operation.START_TLS, response.status))
    return _response(Operation.START_TLS, response.txn_id, response.status, b"")


def _encode_status(response: messages.StatusResponse) -> bytes:
    header = _header(response.operation, response.txn_id, response.priority)
    return _frame(header, b"\x10", _size(response.status))


def _status(status: int) -> wire.StatusCode:
    return cast("wire.StatusCode", int(status))


_RESPONSE_ENCODERS: dict[type, Callable[[Any], bytes]] = {
    messages.AddResponse: _encode_add_response,
    messages.ReadResponse: _encode_read_response,
    messages.ReadLacResponse: _encode_read_lac_response,
    messages.WriteLacResponse: _encode_write_lac_response,
    messages.ForceLedgerResponse: _encode_force_response,
    messages.GetBookieInfoResponse: _encode_info_response,
    messages.ListEntriesResponse: _encode_list_response,
    messages.AuthResponse: _encode_auth_response,
    messages.StartTlsResponse: _encode_start_tls_response,
    messages.StatusResponse: _encode_status,
}


def encode_response(response: Response) -> bytes:
    """Encodes the frame of a response."""
    return _RESPONSE_ENCODERS[type(response)](response)


# --- decoding -------------------------------------------------------------------------------------------------------


class _NamesLedger(Protocol):
    @property
    def ledgerId(self) -> int: ...  # noqa: N802  # the field's name
    @property
    def ledgerScopeId(self) -> int: ...  # noqa: N802


def _number(message: _NamesLedger) -> int:
    """The number of the ledger that a sub-message identifies."""
    return number_of(message.ledgerScopeId, message.ledgerId)


def decode_request(packet: bytes | memoryview) -> Request:
    """Decodes a request. Raises ProtocolError if its header can't be parsed."""
    try:
        message = wire.Request.FromString(packet)  # type: ignore[arg-type]  # reads any buffer
    except DecodeError as error:
        raise ProtocolError(f"a packet of {len(packet)} bytes is no v3 request: {error}") from error
    header = message.header
    operation = int(header.operation)
    # A missing version or operation reads as a value other than these two, a missing sub-message as one without fields.
    if operation == ADD_ENTRY and header.version == _VERSION and header.HasField("txnId"):
        return _decode_add_request(message.addRequest, header.txnId, header.priority)
    if not (header.HasField("version") and header.HasField("operation") and header.HasField("txnId")):
        raise ProtocolError("a request without a version, operation or transaction id that this bookie knows")
    if header.version != _VERSION:
        return _wrong_version(message)
    if operation == READ_ENTRY:
        return _decode_read_request(message.readRequest, header.txnId, header.priority)
    return _decode_rare_request(message, operation, header.txnId)


def _decode_add_request(add: wire.AddRequest, txn_id: int, priority: int) -> Request:
    if not add.IsInitialized():
        return _lacking(ADD_ENTRY, txn_id, number_of(add.ledgerScopeId, add.ledgerId), add.entryId)
    return messages.AddRequest(
        txn_id,
        number_of(add.ledgerScopeId, add.ledgerId),
        add.entryId,
        add.masterKey,
        add.body,
        add.flag == _RECOVERY and add.HasField("flag"),
        add.writeFlags,
        priority,
        add.ledgerTerm if add.HasField("ledgerTerm") else None,
        add.lastAddFullyReplicated if add.HasField("lastAddFullyReplicated") else None,
        add.truncate,
    )


def _decode_read_request(read: wire.ReadRequest, txn_id: int, priority: int) -> Request:
    if not read.IsInitialized():
        return _lacking(READ_ENTRY, txn_id, number_of(read.ledgerScopeId, read.ledgerId), read.entryId)
    flag = read.flag if read.HasField("flag") else 0
    return messages.ReadRequest(
        txn_id,
        number_of(read.ledgerScopeId, read.ledgerId),
        read.entryId,
        flag == _FENCE,
        read.masterKey if read.HasField("masterKey") else None,
        read.previousLAC if read.HasField("previousLAC") else None,
        read.timeOut if read.HasField("timeOut") else None,
        flag == _PIGGYBACK,
        priority,
        read.ledgerTerm if read.HasField("ledgerTerm") else None,
        read.lastAddConfirmed if read.HasField("lastAddConfirmed") else None,
        max(read.following, 0),
    )


def _decode_rare_request(message: wire.Request, operation: int, txn_id: int) -> Request:
    priority = message.header.priority
    match operation:
        case Operation.READ_LAC if message.readLacRequest.IsInitialized():
            return messages.ReadLacRequest(txn_id, _number(message.readLacRequest))
        case Operation.WRITE_LAC if message.writeLacRequest.IsInitialized():
            lac = message.writeLacRequest
            return messages.WriteLacRequest(txn_id, _number(lac), lac.lac, lac.masterKey, lac.body)
        case Operation.FORCE_LEDGER if message.forceLedgerRequest.IsInitialized():
            return messages.ForceLedgerRequest(txn_id, _number(message.forceLedgerRequest))
        case Operation.GET_BOOKIE_INFO:
            return messages.GetBookieInfoRequest(txn_id, message.getBookieInfoRequest.requested)
        case Operation.GET_LIST_OF_ENTRIES_OF_LEDGER if message.getListOfEntriesOfLedgerRequest.IsInitialized():
            return messages.ListEntriesRequest(txn_id, _number(message.getListOfEntriesOfLedgerRequest))
        case Operation.AUTH:
            auth = message.authRequest
            return messages.AuthRequest(txn_id, auth.authPluginName, auth.payload, priority)
        case Operation.START_TLS:
            return messages.StartTlsRequest(txn_id, message.HasField("startTLSRequest"))
    return messages.InvalidRequest(txn_id, operation, Status.EBADREQ, priority=priority)


def _lacking(operation: Operation, txn_id: int, ledger_id: int, entry_id: int) -> messages.InvalidRequest:
    return messages.InvalidRequest(txn_id, operation, Status.EBADREQ, ledger_id, entry_id)


_REQUEST_FIELDS = {
    Operation.READ_ENTRY: "readRequest",
    Operation.ADD_ENTRY: "addRequest",
    Operation.WRITE_LAC: "writeLacRequest",
    Operation.READ_LAC: "readLacRequest",
    Operation.FORCE_LEDGER: "forceLedgerRequest",
    Operation.GET_LIST_OF_ENTRIES_OF_LEDGER: "getListOfEntriesOfLedgerRequest",
}


def _wrong_version(message: wire.Request) -> messages.InvalidRequest:
    header = message.header
    field = _REQUEST_FIELDS.get(Operation(header.operation))
    body = getattr(message, field) if field else None
    return messages.InvalidRequest(
        header.txnId,
        header.operation,
        Status.EBADVERSION,
        number_of(getattr(body, "ledgerScopeId", 0), getattr(body, "ledgerId", 0)),
        getattr(body, "entryId", 0),
        header.priority,
    )


def decode_response(packet: bytes | memoryview) -> Response:
    """Decodes a response. The inner status counts only if the outer one is EOK. Raises ProtocolError."""
    try:
        message = wire.Response.FromString(packet)  # type: ignore[arg-type]  # reads any buffer
    except DecodeError as error:
        raise ProtocolError(f"a packet of {len(packet)} bytes is no v3 response: {error}") from error
    header = message.header
    if not (header.HasField("operation") and header.HasField("txnId") and message.HasField("status")):
        raise ProtocolError("a response without an operation, transaction id or status that this client knows")
    decoder = _RESPONSE_DECODERS.get(header.operation)
    if decoder is None:
        return messages.StatusResponse(header.txnId, header.operation, message.status, header.priority)
    return decoder(message, header.txnId)


def _outcome(message: wire.Response, inner: int) -> int:
    return message.status or inner


def _decode_add_response(message: wire.Response, txn_id: int) -> Response:
    add = message.addResponse
    term = add.ledgerTerm if add.HasField("ledgerTerm") else None
    return messages.AddResponse(txn_id, message.status or add.status, _number(add), add.entryId, term)


def _decode_read_response(message: wire.Response, txn_id: int) -> Response:
    read = message.readResponse
    return messages.ReadResponse(
        txn_id,
        message.status or read.status,
        _number(read),
        read.entryId,
        read.body if read.HasField("body") else None,
        read.maxLAC if read.HasField("maxLAC") else None,
        read.lacUpdateTimestamp if read.HasField("lacUpdateTimestamp") else None,
        read.ledgerTerm if read.HasField("ledgerTerm") else None,
        read.lastAddFullyReplicated if read.HasField("lastAddFullyReplicated") else None,
        read.following,
    )


def _decode_read_lac_response(message: wire.Response, txn_id: int) -> Response:
    lac = message.readLacResponse
    return messages.ReadLacResponse(
        txn_id,
        _outcome(message, lac.status),
        _number(lac),
        lac.lacBody if lac.HasField("lacBody") else None,
        lac.lastEntryBody if lac.HasField("lastEntryBody") else None,
    )


def _decode_write_lac_response(message: wire.Response, txn_id: int) -> Response:
    lac = message.writeLacResponse
    return messages.WriteLacResponse(txn_id, _outcome(message, lac.status), _number(lac))


def _decode_force_response(message: wire.Response, txn_id: int) -> Response:
    force = message.forceLedgerResponse
    return messages.ForceLedgerResponse(txn_id, _outcome(message, force.status), _number(force))


def _decode_info_response(message: wire.Response, txn_id: int) -> Response:
    info = message.getBookieInfoResponse
    return messages.GetBookieInfoResponse(
        txn_id,
        _outcome(message, info.status),
        info.totalDiskCapacity if info.HasField("totalDiskCapacity") else None,
        info.freeDiskSpace if info.HasField("freeDiskSpace") else None,
    )


def _decode_list_response(message: wire.Response, txn_id: int) -> Response:
    entries = message.getListOfEntriesOfLedgerResponse
    availability = entries.availabilityOfEntriesOfLedger
    return messages.ListEntriesResponse(
        txn_id,
        _outcome(message, entries.status),
        _number(entries),
        availability if entries.HasField("availabilityOfEntriesOfLedger") else None,
    )


def _decode_auth_response(message: wire.Response, txn_id: int) -> Response:
    auth = message.authResponse
    name = auth.authPluginName if message.HasField("authResponse") else None
    return messages.AuthResponse(txn_id, message.status, name, auth.payload, message.header.priority)


def _decode_start_tls_response(message: wire.Response, txn_id: int) -> Response:
    return messages.StartTlsResponse(txn_id, message.status)


_RESPONSE_DECODERS: dict[int, Callable[[wire.Response, int], Response]] = {
    Operation.ADD_ENTRY: _decode_add_response,
    Operation.READ_ENTRY: _decode_read_response,
    Operation.READ_LAC: _decode_read_lac_response,
    Operation.WRITE_LAC: _decode_write_lac_response,
    Operation.FORCE_LEDGER: _decode_force_response,
    Operation.GET_BOOKIE_INFO: _decode_info_response,
    Operation.GET_LIST_OF_ENTRIES_OF_LEDGER: _decode_list_response,
    Operation.AUTH: _decode_auth_response,
    Operation.START_TLS: _decode_start_tls_response,
}
