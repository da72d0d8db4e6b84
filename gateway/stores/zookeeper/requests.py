"""Requests of ZooKeeper's protocol that kazoo lacks, or whose responses it decodes one object at a time.

Each class is what kazoo sends: a `type` (ZooKeeper's operation number), `serialize`, and `deserialize` for the body of
the response. All integers are big-endian; a string or buffer is its length in 4 bytes and its bytes. A transaction and
a multi-read are sequences of (header, record), where the header is the operation's type, whether this is the end, and
an error; the response has the same shape, an error record being one more integer. A failed transaction responds with
errors only: 0 for what was rolled back, the failing operation's own error, then "runtime inconsistency" for what was
not tried. kazoo expects the response to a transaction as a list.

Not its job: all other requests, which are in `kazoo.protocol.serialization`.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import ClassVar, NamedTuple

from kazoo.exceptions import EXCEPTIONS, RolledBackError, RuntimeInconsistency
from kazoo.protocol.states import ZnodeStat

_INT = struct.Struct(">i")
_HEADER = struct.Struct(">i?i")
_ERROR = struct.Struct(">i?ii")
_STAT = struct.Struct(">qqqqiiiqiiq")
_ABSENT = _INT.pack(-1)
_END = _HEADER.pack(-1, True, -1)

_CREATE, _DELETE, _GET_DATA, _FAILED = 1, 2, 4, -1
_EPHEMERAL_SEQUENTIAL = 3
_DATA_WATCH, _ANY_WATCH = 2, 3
_PERSISTENT_RECURSIVE = 1
_ANY_VERSION = -1


class AclEntry(NamedTuple):
    """Permissions (a set of bits) of an identity (scheme and id)."""

    permissions: int
    scheme: str
    identity: str


OPEN_TO_ALL = (AclEntry(31, "world", "anyone"),)
CREATOR_ONLY = (AclEntry(31, "auth", ""),)


class RemoveDataWatch:
    """Removes this session's data watch from a node."""

    type: ClassVar[int] = 18

    def __init__(self, path: str) -> None:
        self.path = path

    def serialize(self) -> bytes:
        return _buffer(self.path.encode()) + _INT.pack(_DATA_WATCH)

    @staticmethod
    def deserialize(data: bytes, offset: int) -> bool:
        return True


class AddTreeWatch:
    """Watches a node and all nodes below it until the connection ends. Supported since ZooKeeper 3.6."""

    type: ClassVar[int] = 106

    def __init__(self, path: str) -> None:
        self._path = path

    def serialize(self) -> bytes:
        return _buffer(self._path.encode()) + _INT.pack(_PERSISTENT_RECURSIVE)

    @staticmethod
    def deserialize(data: bytes, offset: int) -> bool:
        return True


class RemoveWatches:
    """Removes all watches of this session from a node, including one on the tree below it."""

    type: ClassVar[int] = 18

    def __init__(self, path: str) -> None:
        self._path = path

    def serialize(self) -> bytes:
        return _buffer(self._path.encode()) + _INT.pack(_ANY_WATCH)

    deserialize = staticmethod(AddTreeWatch.deserialize)


class CreateNodes:
    """Creates persistent nodes, all or none. The response: empty, or the error of the node that failed."""

    type: ClassVar[int] = 14

    def __init__(self, nodes: Sequence[tuple[str, bytes]], acl: Sequence[AclEntry]) -> None:
        self._nodes = nodes
        self._acl = _acl(acl)

    def serialize(self) -> bytes:
        create = _HEADER.pack(_CREATE, False, -1)
        tail = self._acl + _INT.pack(0)
        parts = [create + _buffer(path.encode()) + _buffer(data) + tail for path, data in self._nodes]
        return b"".join((*parts, _END))

    @staticmethod
    def deserialize(data: bytes, offset: int) -> list[Exception]:
        error = _failure(data, offset)
        return [error] if error is not None else []


class DeleteNodes:
    """Deletes nodes of any version, all or none. The response: empty, or the error of the node that failed."""

    type: ClassVar[int] = 14

    def __init__(self, paths: Sequence[str]) -> None:
        self._paths = paths

    def serialize(self) -> bytes:
        delete, version = _HEADER.pack(_DELETE, False, -1), _INT.pack(_ANY_VERSION)
        return b"".join((*(delete + _buffer(path.encode()) + version for path in self._paths), _END))

    deserialize = staticmethod(CreateNodes.deserialize)


class ReserveNumbers:
    """Takes `count` consecutive numbers from the counter of a node's children.

    Creates an ephemeral sequential node, whose name contains the first number, and then creates and deletes a node once
    per further number. It is one transaction, so no other client's number is in between. The response: the path of the
    sequential node, or the error of the operation that failed.
    """

    type: ClassVar[int] = 14

    def __init__(self, prefix: str, count: int, acl: Sequence[AclEntry]) -> None:
        self._prefix = prefix
        self._count = count
        self._acl = _acl(acl)

    def serialize(self) -> bytes:
        create, delete = _HEADER.pack(_CREATE, False, -1), _HEADER.pack(_DELETE, False, -1)
        first = create + _buffer(self._prefix.encode()) + _buffer(b"") + self._acl + _INT.pack(_EPHEMERAL_SEQUENTIAL)
        skipped = _buffer(f"{self._prefix}block".encode())
        skip = create + skipped + _buffer(b"") + self._acl + _INT.pack(0) + delete + skipped + _INT.pack(_ANY_VERSION)
        return first + skip * (self._count - 1) + _END

    @staticmethod
    def deserialize(data: bytes, offset: int) -> list[str | Exception]:
        error = _failure(data, offset)
        if error is not None:
            return [error]
        path, _ = _read_buffer(data, offset + _HEADER.size)
        return [path.decode()]


NodeContent = tuple[bytes, ZnodeStat]


class ReadNodes:
    """Content and stat of many nodes in one response; for a node that can't be read, its error."""

    type: ClassVar[int] = 22

    def __init__(self, paths: Sequence[str]) -> None:
        self._paths = paths

    def serialize(self) -> bytes:
        read = _HEADER.pack(_GET_DATA, False, -1)
        return b"".join((*(read + _buffer(path.encode()) + b"\0" for path in self._paths), _END))

    @staticmethod
    def deserialize(data: bytes, offset: int) -> list[NodeContent | Exception]:
        results: list[NodeContent | Exception] = []
        while True:
            kind, done, _ = _HEADER.unpack_from(data, offset)
            offset += _HEADER.size
            if done:
                return results
            if kind == _FAILED:
                results.append(EXCEPTIONS[_INT.unpack_from(data, offset)[0]]())
                offset += _INT.size
                continue
            content, offset = _read_buffer(data, offset)
            results.append((content, ZnodeStat._make(_STAT.unpack_from(data, offset))))
            offset += _STAT.size


class ListNumbered:
    """The numbers of the children whose names are `mark` and exactly `width` digits, ascending; and the node's stat.

    For directories of thousands of children: if all names have that shape, as below a leaf node, there is no work per
    name; if every possible name exists, the result is a range.
    """

    type: ClassVar[int] = 12

    def __init__(self, path: str, mark: str, width: int) -> None:
        self._path = path
        self._mark = mark
        self._width = width

    def serialize(self) -> bytes:
        return _buffer(self._path.encode()) + b"\0"

    def deserialize(self, data: bytes, offset: int) -> tuple[Sequence[int], ZnodeStat]:
        end = len(data) - _STAT.size
        return self._numbers(data, offset, end), ZnodeStat._make(_STAT.unpack_from(data, end))

    def _numbers(self, data: bytes, offset: int, end: int) -> Sequence[int]:
        count = _INT.unpack_from(data, offset)[0]
        if count <= 0:
            return []
        body = bytes(data[offset + _INT.size : end])
        separator = _INT.pack(len(self._mark) + self._width) + self._mark.encode()
        digits = body.split(separator)
        joined = b"".join(digits)
        if len(digits) == count + 1 and len(joined) == count * self._width and joined.isdigit() and not digits[0]:
            del digits[0]
            if max(map(len, digits)) == self._width:
                # Names are unique, so if there are as many as numbers, all numbers are present.
                return range(count) if count == 10**self._width else sorted(map(int, digits))
        return sorted(self._one_by_one(body, count))

    def _one_by_one(self, body: bytes, count: int) -> list[int]:
        numbers, offset, mark = [], 0, self._mark.encode()
        for _ in range(count):
            name, offset = _read_buffer(body, offset)
            digits = name[len(mark) :]
            if name.startswith(mark) and len(digits) == self._width and digits.isdigit():
                numbers.append(int(digits))
        return numbers


def _buffer(content: bytes) -> bytes:
    return _INT.pack(len(content)) + content


def _read_buffer(data: bytes, offset: int) -> tuple[bytes, int]:
    """Returns the content and its end; an absent buffer (length -1) counts as empty."""
    length = max(0, _INT.unpack_from(data, offset)[0])
    start = offset + _INT.size
    return bytes(data[start : start + length]), start + length


def _acl(entries: Sequence[AclEntry]) -> bytes:
    parts = [
        _INT.pack(entry.permissions)
        + _buffer(entry.scheme.encode())
        + (_buffer(entry.identity.encode()) if entry.identity else _ABSENT)
        for entry in entries
    ]
    return _INT.pack(len(entries)) + b"".join(parts)


def _failure(data: bytes, offset: int) -> Exception | None:
    """The error that made a transaction fail, if it did."""
    failure: Exception | None = None
    while _HEADER.unpack_from(data, offset)[0] == _FAILED and not _HEADER.unpack_from(data, offset)[1]:
        error: Exception = EXCEPTIONS[_ERROR.unpack_from(data, offset)[3]]()
        offset += _ERROR.size
        if not isinstance(error, (RolledBackError, RuntimeInconsistency)):
            return error
        failure = failure or error
    return failure
