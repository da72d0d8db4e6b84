"""Entry protocol v2 (packet versions 0 to 2): fixed-layout fields inside frames.

Encoders return a whole frame, length prefix included. Decoders take a packet without the prefix and copy what they
return, except for the entries of a batch: those are views of the packet, valid until its buffer is reused. A packet
begins with one word: version (8 bits), opcode (8), flags (16). In version 0 the whole word is the opcode, so version 0
has no flags. A response carries the version of its request and no flags. Source: docs/protocol/wire.md#v2-packets.

How the messages of `messages` map to v2:
- There is no transaction id, and `txn_id` reads as 0: a response identifies only its operation, ledger and entry. Batch
  reads are the exception: they carry it as their request id.
- The ids of an add are the first 16 bytes of its body; the id fields of the request are not written.
- `priority` is a single flag: anything above 0 is written as set, and reads as HIGH_PRIORITY.
- A fencing read carries the master key from version 2 on; in older versions it reads as fencing without a key.
- An AUTH response has no status: a rejected authentication can only be expressed by closing the connection.
- Other operations, long polls and deferred sync can't be encoded (ValueError), since dropping them would change the
  meaning of the request; nor can a scoped ledger or a term (IllegalOpException). The LAC in the response to a read is
  only a hint, and is dropped.

A packet that is too short, or whose opcode is unknown, raises ProtocolError; the connection must then be closed. A
request of a version above 2 becomes an InvalidRequest, answered with its status in that same version
(`error_response`). AUTH is accepted in every version, because its response has no status to reject it with. Bytes after
the last field of a fixed layout are ignored, as in BookKeeper.

Not its job: frames (`frames`), executing requests (the bookie), protocol v3, and distinguishing the two (a packet of v3
begins with the byte 0x0A).
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Any, NamedTuple

from google.protobuf.message import DecodeError

from bookgate.ledger.errors import IllegalOpException
from bookgate.ledger.ledger_id import MAX_UNSCOPED
from bookgate.ledger.wire import error_responses, messages
from bookgate.ledger.wire.messages import HIGH_PRIORITY, Operation, Request, Response, Status
from bookgate.ledger.wire.records import RECORD_LENGTH, read_records
from bookgate.ledger.wire.v3 import ProtocolError
from bookgate.protos.bookkeeper.proto import bookkeeper_protocol_pb2 as wire

CURRENT_VERSION = 2
"""The version that current clients send; 0 and 1 are served too."""

_ADD = 1
_READ = 2
_AUTH = 3
_BATCH_READ = 7

_DO_FENCING = 0x0001
_RECOVERY_ADD = 0x0002
_HIGH_PRIORITY = 0x0004

_MASTER_KEY_SIZE = 20
_NO_TXN_ID = 0

# The first bytes of frames: packet length, header word, fixed fields.
_HEAD = struct.Struct(">II")
_READ_REQUEST_HEAD = struct.Struct(">IIqq")
_BATCH_REQUEST_HEAD = struct.Struct(">IIqqQiq")
_ANSWER_HEAD = struct.Struct(">IIiqq")
_BATCH_ANSWER_HEAD = struct.Struct(">IIiqqQ")

# Parts of a packet after its header word.
_WORD = struct.Struct(">I")
_IDS = struct.Struct(">qq")
_BATCH_REQUEST = struct.Struct(">qqQiq")
_ANSWER = struct.Struct(">iqq")
_BATCH_ANSWER = struct.Struct(">iqqQ")

_KEY_END = _WORD.size + _MASTER_KEY_SIZE
_ADD_REQUEST_SIZE = _KEY_END + _IDS.size
_READ_REQUEST_SIZE = _WORD.size + _IDS.size
_BATCH_REQUEST_SIZE = _WORD.size + _BATCH_REQUEST.size
_ANSWER_SIZE = _WORD.size + _ANSWER.size
_BATCH_ANSWER_SIZE = _WORD.size + _BATCH_ANSWER.size

_CODES: dict[int, int] = {
    Status.EOK: 0,
    Status.ENOLEDGER: 1,
    Status.ENOENTRY: 2,
    Status.EBADREQ: 100,
    Status.EIO: 101,
    Status.EUA: 102,
    Status.EBADVERSION: 103,
    Status.EFENCED: 104,
    Status.EREADONLY: 105,
    Status.ETOOMANYREQUESTS: 106,
    Status.EUNKNOWNLEDGERSTATE: 107,
}
_STATUSES = {code: Status(status) for status, code in _CODES.items()}
_CODES |= {Status.EINVALIDTERM: _CODES[Status.EFENCED], Status.ENOTCONFIRMED: _CODES[Status.EIO]}
"""Statuses of ledgers with terms are sent in v2 as the most similar status."""


class VersionedRequest(NamedTuple):
    """A request and the packet version (0 to 255) it arrived in, which its response must carry."""

    request: Request
    version: int


# --- encoding -------------------------------------------------------------------------------------------------------


def _header(version: int, opcode: int, flags: int = 0) -> int:
    """The header word. Raises ValueError for flags, which version 0 can't carry."""
    if version:
        return version << 24 | opcode << 16 | flags
    if flags:
        raise ValueError(f"version 0 has no flags, so it can't carry {flags:#06x}; send version {CURRENT_VERSION}")
    return opcode


def _priority_flag(priority: int) -> int:
    return _HIGH_PRIORITY if priority > 0 else 0


def _key(master_key: bytes | None) -> bytes:
    if master_key is None or len(master_key) != _MASTER_KEY_SIZE:
        size = "none" if master_key is None else f"one of {len(master_key)} bytes"
        raise ValueError(f"this request carries a master key of {_MASTER_KEY_SIZE} bytes, but was given {size}")
    return master_key


def _fencing_key(fence: bool, master_key: bytes | None, version: int) -> bytes:
    return _key(master_key) if fence and version >= 2 else b""


def _encode_add_request(request: messages.AddRequest, version: int) -> bytes:
    if request.write_flags:
        raise ValueError(f"the binary protocol has no write flags, so it can't carry {request.write_flags}; use v3")
    flags = (_RECOVERY_ADD if request.recovery else 0) | _priority_flag(request.priority)
    head = _HEAD.pack(_KEY_END + len(request.body), _header(version, _ADD, flags))
    return b"".join((head, _key(request.master_key), request.body))


def _encode_read_request(request: messages.ReadRequest, version: int) -> bytes:
    if request.previous_lac is not None:
        raise ValueError("the binary protocol has no long poll; read entry -1 or use v3")
    key = _fencing_key(request.fence, request.master_key, version)
    flags = (_DO_FENCING if request.fence else 0) | _priority_flag(request.priority)
    word = _header(version, _READ, flags)
    return _READ_REQUEST_HEAD.pack(_READ_REQUEST_SIZE + len(key), word, request.ledger_id, request.entry_id) + key


def _encode_batch_request(request: messages.BatchReadRequest, version: int) -> bytes:
    key = _fencing_key(request.fence, request.master_key, version)
    flags = (_DO_FENCING if request.fence else 0) | _priority_flag(request.priority)
    head = _BATCH_REQUEST_HEAD.pack(
        _BATCH_REQUEST_SIZE + len(key),
        _header(version, _BATCH_READ, flags),
        request.ledger_id,
        request.entry_id,
        request.txn_id,
        request.max_count,
        request.max_size,
    )
    return head + key


def _encode_auth(plugin_name: str, payload: bytes, word: int) -> bytes:
    message = wire.AuthMessage(authPluginName=plugin_name, payload=payload).SerializeToString()
    return _HEAD.pack(_WORD.size + len(message), word) + message


def _encode_auth_request(request: messages.AuthRequest, version: int) -> bytes:
    word = _header(version, _AUTH, _priority_flag(request.priority))
    return _encode_auth(request.plugin_name, request.payload, word)


_REQUEST_ENCODERS: dict[type, Callable[[Any, int], bytes]] = {
    messages.AddRequest: _encode_add_request,
    messages.ReadRequest: _encode_read_request,
    messages.BatchReadRequest: _encode_batch_request,
    messages.AuthRequest: _encode_auth_request,
}


def refuse_scope(ledger_id: int) -> None:
    """Raises IllegalOpException if the ledger with this number has a scope, for which v2 packets have no field."""
    if ledger_id > MAX_UNSCOPED:
        raise IllegalOpException(
            f"ledger {ledger_id:032x} has a scope, which the binary protocol (v2) can't carry; use protocol v3"
        )


def _refuse_term(request: Request) -> None:
    """Raises IllegalOpException for a request of an unbounded ledger, for whose values v2 packets have no field."""
    if isinstance(request, messages.AddRequest | messages.ReadRequest) and request.term is not None:
        raise IllegalOpException(
            f"a request with term {request.term} of ledger {request.ledger_id} can't be sent in the binary protocol "
            "(v2), which has no terms; use protocol v3"
        )


def encode_request(request: Request, version: int = CURRENT_VERSION) -> bytes:
    """Encodes the frame of a request.

    Raises:
        ValueError: This version can't express it.
        IllegalOpException: The ledger has a scope, or the request a term.
    """
    encoder = _REQUEST_ENCODERS.get(type(request))
    if encoder is None:
        raise ValueError(f"the binary protocol has no {type(request).__name__}; use v3")
    refuse_scope(getattr(request, "ledger_id", 0))
    _refuse_term(request)
    return encoder(request, version)


def _encode_add_response(response: messages.AddResponse, version: int) -> bytes:
    code = _CODES[response.status]
    return _ANSWER_HEAD.pack(_ANSWER_SIZE, _header(version, _ADD), code, response.ledger_id, response.entry_id)


def _encode_read_response(response: messages.ReadResponse, version: int) -> bytes:
    code = _CODES[response.status]
    body = b"" if code or response.body is None else response.body
    size = _ANSWER_SIZE + len(body)
    return _ANSWER_HEAD.pack(size, _header(version, _READ), code, response.ledger_id, response.entry_id) + body


def _encode_batch_response(response: messages.BatchReadResponse, version: int) -> bytes:
    records: list[bytes | memoryview] = []
    for body in response.bodies:
        records += (RECORD_LENGTH.pack(len(body)), body)
    return _encode_records(messages.BatchReadRecords(*response[:4], tuple(records), len(response.bodies)), version)


def _encode_records(response: messages.BatchReadRecords, version: int) -> bytes:
    code = _CODES[response.status]
    records = () if code else response.records
    head = _BATCH_ANSWER_HEAD.pack(
        _BATCH_ANSWER_SIZE + sum(map(len, records)),
        _header(version, _BATCH_READ),
        code,
        response.ledger_id,
        response.entry_id,
        response.txn_id,
    )
    return b"".join((head, *records))


def _encode_auth_response(response: messages.AuthResponse, version: int) -> bytes:
    if response.status != Status.EOK or response.plugin_name is None:
        raise ValueError("the binary protocol can't say that an authentication failed; close the connection")
    return _encode_auth(response.plugin_name, response.payload, _header(version, _AUTH))


_RESPONSE_ENCODERS: dict[type, Callable[[Any, int], bytes]] = {
    messages.AddResponse: _encode_add_response,
    messages.ReadResponse: _encode_read_response,
    messages.BatchReadResponse: _encode_batch_response,
    messages.BatchReadRecords: _encode_records,
    messages.AuthResponse: _encode_auth_response,
}


def encode_response(response: Response, version: int = CURRENT_VERSION) -> bytes:
    """Encodes the frame of a response, in the version of its request. Raises ValueError if v2 can't express it."""
    encoder = _RESPONSE_ENCODERS.get(type(response))
    if encoder is None:
        raise ValueError(f"the binary protocol has no {type(response).__name__}; close the connection")
    return encoder(response, version)


# --- decoding -------------------------------------------------------------------------------------------------------


def _read_header(packet: bytes | memoryview) -> tuple[int, int, int]:
    """Version, opcode and flags."""
    _require(packet, _WORD.size)
    word: int = _WORD.unpack_from(packet)[0]
    version = word >> 24
    if version == 0:
        return 0, word, 0
    return version, word >> 16 & 0xFF, word & 0xFFFF


def _require(packet: bytes | memoryview, size: int) -> None:
    if len(packet) < size:
        raise ProtocolError(f"a packet of {len(packet)} bytes is too short: one of its kind has at least {size}")


def _read_priority(flags: int) -> int:
    return HIGH_PRIORITY if flags & _HIGH_PRIORITY else 0


def _read_fencing_key(packet: bytes | memoryview, start: int, flags: int, version: int) -> bytes | None:
    if not flags & _DO_FENCING or version != 2:
        return None
    end = start + _MASTER_KEY_SIZE
    _require(packet, end)
    return bytes(packet[start:end])


def _decode_add_request(packet: bytes | memoryview, _version: int, flags: int) -> messages.AddRequest:
    _require(packet, _ADD_REQUEST_SIZE)
    ledger_id, entry_id = _IDS.unpack_from(packet, _KEY_END)
    key, body = bytes(packet[_WORD.size : _KEY_END]), bytes(packet[_KEY_END:])
    recovery, priority = flags & _RECOVERY_ADD != 0, _read_priority(flags)
    return messages.AddRequest(_NO_TXN_ID, ledger_id, entry_id, key, body, recovery, priority=priority)


def _decode_read_request(packet: bytes | memoryview, version: int, flags: int) -> messages.ReadRequest:
    _require(packet, _READ_REQUEST_SIZE)
    ledger_id, entry_id = _IDS.unpack_from(packet, _WORD.size)
    key = _read_fencing_key(packet, _READ_REQUEST_SIZE, flags, version)
    fence, priority = flags & _DO_FENCING != 0, _read_priority(flags)
    return messages.ReadRequest(_NO_TXN_ID, ledger_id, entry_id, fence, key, priority=priority)


def _decode_batch_request(packet: bytes | memoryview, version: int, flags: int) -> messages.BatchReadRequest:
    _require(packet, _BATCH_REQUEST_SIZE)
    ledger_id, entry_id, request_id, max_count, max_size = _BATCH_REQUEST.unpack_from(packet, _WORD.size)
    key = _read_fencing_key(packet, _BATCH_REQUEST_SIZE, flags, version)
    fence, priority = flags & _DO_FENCING != 0, _read_priority(flags)
    return messages.BatchReadRequest(request_id, ledger_id, entry_id, max_count, max_size, fence, key, priority)


def _read_auth(packet: bytes | memoryview) -> tuple[str, bytes]:
    try:
        message = wire.AuthMessage.FromString(packet[_WORD.size :])  # type: ignore[arg-type]  # reads any buffer
        name = message.authPluginName
    except (DecodeError, UnicodeDecodeError) as error:
        raise ProtocolError(f"a packet of {len(packet)} bytes carries no AuthMessage: {error}") from error
    if not message.IsInitialized():
        raise ProtocolError("an AuthMessage without the name of a plugin or without a payload")
    if not isinstance(name, str):  # protobuf returns a string that is not UTF-8 as bytes
        raise ProtocolError(f"the name of an authentication plugin is not UTF-8: {name!r}")
    return name, message.payload


def _decode_auth_request(packet: bytes | memoryview, _version: int, flags: int) -> messages.AuthRequest:
    name, payload = _read_auth(packet)
    return messages.AuthRequest(_NO_TXN_ID, name, payload, _read_priority(flags))


_Decoded = messages.AddRequest | messages.ReadRequest | messages.BatchReadRequest | messages.AuthRequest

_REQUEST_DECODERS: dict[int, Callable[[bytes | memoryview, int, int], _Decoded]] = {
    _ADD: _decode_add_request,
    _READ: _decode_read_request,
    _AUTH: _decode_auth_request,
    _BATCH_READ: _decode_batch_request,
}
_OPERATIONS = {
    _ADD: Operation.ADD_ENTRY,
    _READ: Operation.READ_ENTRY,
    _AUTH: Operation.AUTH,
    _BATCH_READ: Operation.BATCH_READ_ENTRY,
}


def decode_request(packet: bytes | memoryview) -> VersionedRequest:
    """Decodes a request. Raises ProtocolError if it is too short or its opcode is unknown."""
    version, opcode, flags = _read_header(packet)
    decoder = _REQUEST_DECODERS.get(opcode)
    if decoder is None:
        raise ProtocolError(f"no request of the binary protocol has version {version} and opcode {opcode}")
    request = decoder(packet, version, flags)
    if version <= CURRENT_VERSION or isinstance(request, messages.AuthRequest):
        return VersionedRequest(request, version)
    invalid = messages.InvalidRequest(
        request.txn_id,
        _OPERATIONS[opcode],
        Status.EBADVERSION,
        request.ledger_id,
        request.entry_id,
        request.priority,
    )
    return VersionedRequest(invalid, version)


def _read_status(code: int) -> Status:
    status = _STATUSES.get(code)
    if status is None:
        raise ProtocolError(f"a response with the error code {code}, which this client doesn't know")
    return status


def _decode_add_response(packet: bytes | memoryview) -> Response:
    _require(packet, _ANSWER_SIZE)
    code, ledger_id, entry_id = _ANSWER.unpack_from(packet, _WORD.size)
    return messages.AddResponse(_NO_TXN_ID, _read_status(code), ledger_id, entry_id)


def _decode_read_response(packet: bytes | memoryview) -> Response:
    _require(packet, _ANSWER_SIZE)
    code, ledger_id, entry_id = _ANSWER.unpack_from(packet, _WORD.size)
    body = None if code or len(packet) == _ANSWER_SIZE else bytes(packet[_ANSWER_SIZE:])
    return messages.ReadResponse(_NO_TXN_ID, _read_status(code), ledger_id, entry_id, body)


def _decode_batch_response(packet: bytes | memoryview) -> Response:
    _require(packet, _BATCH_ANSWER_SIZE)
    code, ledger_id, entry_id, request_id = _BATCH_ANSWER.unpack_from(packet, _WORD.size)
    bodies = () if code else read_records(packet, _BATCH_ANSWER_SIZE)
    return messages.BatchReadResponse(request_id, _read_status(code), ledger_id, entry_id, bodies)


def _decode_auth_response(packet: bytes | memoryview) -> Response:
    name, payload = _read_auth(packet)
    return messages.AuthResponse(_NO_TXN_ID, Status.EOK, name, payload)


_RESPONSE_DECODERS: dict[int, Callable[[bytes | memoryview], Response]] = {
    _ADD: _decode_add_response,
    _READ: _decode_read_response,
    _AUTH: _decode_auth_response,
    _BATCH_READ: _decode_batch_response,
}


def decode_response(packet: bytes | memoryview) -> Response:
    """Decodes a response of any version. Raises ProtocolError if it is too short or any field is unknown."""
    version, opcode, _flags = _read_header(packet)
    decoder = _RESPONSE_DECODERS.get(opcode)
    if decoder is None:
        raise ProtocolError(f"no response of the binary protocol has version {version} and opcode {opcode}")
    return decoder(packet)


# --- error responses ------------------------------------------------------------------------------------------------


def error_response(request: Request, status: Status) -> Response:
    """A response that carries only a failure; unlike in v3, one to a batch read always carries its ids."""
    if isinstance(request, messages.InvalidRequest) and request.operation == Operation.BATCH_READ_ENTRY:
        return messages.BatchReadResponse(request.txn_id, status, request.ledger_id, request.entry_id)
    return error_responses.error_response(request, status)
