"""ZooKeeper's protocol from the server's side: requests out of bytes, answers into bytes. No I/O.

A frame is a length in 4 bytes and so many bytes. The first frame of a connection asks for a session; every later one
begins with a number (xid) that its answer repeats, and the operation's type. An answer has xid, zxid, error and,
without an error, a body. Only what kazoo and Bookgate's own requests send is known; anything else is Unknown.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from tests.simulation.znode_tree import Check, Code, Create, Delete, Multi, Operation, Result, SetData, Stat

MAX_FRAME = 0xFFFFF
"""ZooKeeper's `jute.maxbuffer`: whoever sends more loses the connection."""

WATCH_XID, PING_XID, AUTH_XID = -1, -2, -4

_INT = struct.Struct(">i")
_REPLY = struct.Struct(">iqi")
_HEADER = struct.Struct(">i?i")
_STAT = struct.Struct(">qqqqiiiqiiq")
_CONNECT = struct.Struct(">iqiq")
_CONNECTED = struct.Struct(">iiq")
_CONNECTED_STATE = 3

_CREATE, _DELETE, _EXISTS, _GET_DATA, _SET_DATA, _GET_CHILDREN, _SYNC, _PING, _GET_CHILDREN2 = (
    1,
    2,
    3,
    4,
    5,
    8,
    9,
    11,
    12,
)
_CHECK, _MULTI, _REMOVE_WATCHES, _MULTI_READ, _AUTH, _ADD_WATCH, _CLOSE = 13, 14, 18, 22, 100, 106, -11
_ANY_WATCH = 3


class ConnectRequest(NamedTuple):
    last_zxid: int
    timeout_ms: int
    session: int
    password: bytes


@dataclass(frozen=True, slots=True)
class Read:
    """`exists`, `get` or one of the two forms of `children`."""

    kind: str
    path: str
    watch: bool


@dataclass(frozen=True, slots=True)
class ReadMany:
    paths: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Sync:
    path: str


@dataclass(frozen=True, slots=True)
class RemoveWatch:
    """The data watch of a node, or every watch of it."""

    path: str
    every: bool


@dataclass(frozen=True, slots=True)
class WatchTree:
    """A node and all below it, until the connection ends."""

    path: str


@dataclass(frozen=True, slots=True)
class Ping:
    pass


@dataclass(frozen=True, slots=True)
class Authenticate:
    pass


@dataclass(frozen=True, slots=True)
class Close:
    pass


@dataclass(frozen=True, slots=True)
class Unknown:
    type: int


Request = Read | ReadMany | Sync | RemoveWatch | WatchTree | Ping | Authenticate | Close | Unknown | Operation | Multi

_READS = {_EXISTS: "exists", _GET_DATA: "get", _GET_CHILDREN: "children", _GET_CHILDREN2: "children2"}


class FrameReader:
    """Frames out of a stream of bytes."""

    def __init__(self) -> None:
        self._buffer = bytearray()

    def feed(self, data: bytes) -> list[bytes]:
        """The frames that are complete by now. Raises ValueError for one over the limit."""
        self._buffer += data
        frames = []
        while len(self._buffer) >= _INT.size:
            length = _INT.unpack_from(self._buffer)[0]
            if not 0 <= length <= MAX_FRAME:
                raise ValueError(f"a frame of {length} bytes")
            if len(self._buffer) < _INT.size + length:
                break
            frames.append(bytes(self._buffer[_INT.size : _INT.size + length]))
            del self._buffer[: _INT.size + length]
        return frames


def frame(body: bytes) -> bytes:
    return _INT.pack(len(body)) + body


def decode_connect(body: bytes) -> ConnectRequest:
    _, last_zxid, timeout_ms, session = _CONNECT.unpack_from(body)
    password, _ = _buffer(body, _CONNECT.size)
    return ConnectRequest(last_zxid, timeout_ms, session, password)


def encode_connected(timeout_ms: int, session: int, password: bytes) -> bytes:
    """The answer to a connect request; a timeout of 0 says that the session is over."""
    return _CONNECTED.pack(0, timeout_ms, session) + _with_length(password) + b"\0"


def decode_request(body: bytes) -> tuple[int, Request]:
    xid = _INT.unpack_from(body)[0]
    if len(body) == _INT.size:
        return xid, Unknown(0)
    return xid, _decode(_INT.unpack_from(body, _INT.size)[0], body, 2 * _INT.size)


def _decode(kind: int, body: bytes, offset: int) -> Request:
    if kind in _READS:
        path, offset = _string(body, offset)
        return Read(_READS[kind], path, bool(body[offset]))
    if kind == _MULTI:
        return Multi(tuple(_operations(body, offset)))
    if kind == _MULTI_READ:
        return ReadMany(tuple(_read_paths(body, offset)))
    if kind in (_CREATE, _DELETE, _SET_DATA, _CHECK):
        return _operation(kind, body, offset)[0]
    if kind == _SYNC:
        return Sync(_string(body, offset)[0])
    if kind == _REMOVE_WATCHES:
        path, offset = _string(body, offset)
        return RemoveWatch(path, _INT.unpack_from(body, offset)[0] == _ANY_WATCH)
    if kind == _ADD_WATCH:
        return WatchTree(_string(body, offset)[0])
    if kind == _AUTH:
        return Authenticate()
    return Ping() if kind == _PING else Close() if kind == _CLOSE else Unknown(kind)


def _operations(body: bytes, offset: int) -> list[Operation]:
    found: list[Operation] = []
    while True:
        kind, done, _ = _HEADER.unpack_from(body, offset)
        offset += _HEADER.size
        if done:
            return found
        operation, offset = _operation(kind, body, offset)
        found.append(operation)


def _operation(kind: int, body: bytes, offset: int) -> tuple[Operation, int]:
    path, offset = _string(body, offset)
    if kind in (_DELETE, _CHECK):
        version = _INT.unpack_from(body, offset)[0]
        return (Delete if kind == _DELETE else Check)(path, version), offset + _INT.size
    data, offset = _buffer(body, offset)
    if kind == _SET_DATA:
        return SetData(path, data, _INT.unpack_from(body, offset)[0]), offset + _INT.size
    count = _INT.unpack_from(body, offset)[0]
    offset += _INT.size
    for _ in range(count):
        _, offset = _string(body, offset + _INT.size)
        _, offset = _string(body, offset)
    flags = _INT.unpack_from(body, offset)[0]
    return Create(path, data, bool(flags & 1), bool(flags & 2)), offset + _INT.size


def _read_paths(body: bytes, offset: int) -> list[str]:
    paths: list[str] = []
    while True:
        _, done, _ = _HEADER.unpack_from(body, offset)
        offset += _HEADER.size
        if done:
            return paths
        path, offset = _string(body, offset)
        paths.append(path)
        offset += 1


def _string(body: bytes, offset: int) -> tuple[str, int]:
    content, offset = _buffer(body, offset)
    return content.decode(), offset


def _buffer(body: bytes, offset: int) -> tuple[bytes, int]:
    """Content and where it ends; an absent one (length -1) counts as empty."""
    length = max(0, _INT.unpack_from(body, offset)[0])
    start = offset + _INT.size
    return body[start : start + length], start + length


def _with_length(content: bytes) -> bytes:
    return _INT.pack(len(content)) + content


# --- answers --------------------------------------------------------------------------------------------------------


def answer(xid: int, zxid: int, code: Code, body: bytes = b"") -> bytes:
    return frame(_REPLY.pack(xid, zxid, code) + body)


def event(kind: int, path: str) -> bytes:
    """What a watch tells."""
    body = _INT.pack(kind) + _INT.pack(_CONNECTED_STATE) + _with_length(path.encode())
    return frame(_REPLY.pack(WATCH_XID, -1, 0) + body)


def encode_stat(stat: Stat) -> bytes:
    return _STAT.pack(*stat)


def encode_content(data: bytes, stat: Stat) -> bytes:
    return _with_length(data) + encode_stat(stat)


def encode_names(names: Sequence[str]) -> bytes:
    return _INT.pack(len(names)) + b"".join(_with_length(name.encode()) for name in names)


def encode_text(text: str) -> bytes:
    return _with_length(text.encode())


def encode_result(result: Result) -> bytes:
    """The body of the answer to one operation that succeeded."""
    if isinstance(result, str):
        return encode_text(result)
    if isinstance(result, Stat):
        return encode_stat(result)
    return b""


def encode_results(operations: Sequence[Operation], results: Sequence[Result]) -> bytes:
    """The body of the answer to a transaction."""
    kinds = {Create: _CREATE, Delete: _DELETE, SetData: _SET_DATA, Check: _CHECK}
    parts = []
    for operation, result in zip(operations, results, strict=True):
        if isinstance(result, Code):
            parts.append(_HEADER.pack(-1, False, result) + _INT.pack(result))
        else:
            parts.append(_HEADER.pack(kinds[type(operation)], False, 0) + encode_result(result))
    return b"".join((*parts, _HEADER.pack(-1, True, -1)))


def encode_contents(found: Sequence[tuple[bytes, Stat] | Code]) -> bytes:
    """The body of the answer to a read of many nodes."""
    parts = []
    for each in found:
        if isinstance(each, Code):
            parts.append(_HEADER.pack(-1, False, each) + _INT.pack(each))
        else:
            parts.append(_HEADER.pack(_GET_DATA, False, 0) + encode_content(*each))
    return b"".join((*parts, _HEADER.pack(-1, True, -1)))
