"""ZooKeeper's data tree: what a transaction does to znodes, what it answers, which watches it fires. No I/O, no clock.

Every server of an ensemble applies the same transactions in the same order to a tree of its own, so the same input
gives the same tree everywhere; a transaction that fails changes nothing and gives the same error everywhere. A
transaction of several operations happens whole or not at all.

Counters, as ZooKeeper's `Stat` shows them: `version` counts changes of the content; the number in a sequential node's
name is how many children its parent was ever given; `cversion` is twice that less the children there are now.

Not its job: sessions, who may do what (everybody may everything), order of transactions.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from typing import NamedTuple


class Code(IntEnum):
    """ZooKeeper's error numbers, as far as an answer here may have them."""

    OK = 0
    RUNTIME_INCONSISTENCY = -2
    UNIMPLEMENTED = -6
    BAD_ARGUMENTS = -8
    NO_NODE = -101
    BAD_VERSION = -103
    NO_CHILDREN_FOR_EPHEMERALS = -108
    NODE_EXISTS = -110
    NOT_EMPTY = -111
    SESSION_EXPIRED = -112
    SESSION_MOVED = -118
    NO_WATCHER = -121


class Stat(NamedTuple):
    """What is known of a node, in the order of the wire; times in milliseconds."""

    czxid: int
    mzxid: int
    ctime: int
    mtime: int
    version: int
    cversion: int
    aversion: int
    owner: int
    length: int
    children: int
    pzxid: int


class Happened(IntEnum):
    """What a watch tells."""

    CREATED = 1
    DELETED = 2
    CHANGED = 3
    CHILDREN = 4


@dataclass(frozen=True, slots=True)
class Create:
    path: str
    data: bytes
    ephemeral: bool = False
    sequential: bool = False


@dataclass(frozen=True, slots=True)
class Delete:
    path: str
    version: int = -1


@dataclass(frozen=True, slots=True)
class SetData:
    path: str
    data: bytes
    version: int = -1


@dataclass(frozen=True, slots=True)
class Check:
    path: str
    version: int = -1


Operation = Create | Delete | SetData | Check


@dataclass(frozen=True, slots=True)
class Multi:
    """All or none."""

    operations: tuple[Operation, ...]


@dataclass(frozen=True, slots=True)
class CloseSession:
    """Takes a session's ephemeral nodes away."""


@dataclass(frozen=True, slots=True)
class Transaction:
    """One entry of the ensemble's log."""

    zxid: int
    time_ms: int
    session: int
    change: Operation | Multi | CloseSession


Result = str | Stat | None | Code
"""A created node's path, the stat of one that was set, nothing, or the error."""

Event = tuple[Happened, str]


class Failed(Exception):
    """An operation is refused."""

    def __init__(self, code: Code) -> None:
        super().__init__(code.name)
        self.code = code


@dataclass(slots=True)
class _Znode:
    data: bytes
    czxid: int
    mzxid: int
    pzxid: int
    ctime: int
    mtime: int
    owner: int = 0
    version: int = 0
    created: int = 0
    children: dict[str, None] = field(default_factory=dict)

    def stat(self) -> Stat:
        count = len(self.children)
        return Stat(
            self.czxid,
            self.mzxid,
            self.ctime,
            self.mtime,
            self.version,
            self.created * 2 - count,
            0,
            self.owner,
            len(self.data),
            count,
            self.pzxid,
        )


class ZnodeTree:
    """See the module."""

    def __init__(self) -> None:
        self._nodes = {"/": _Znode(b"", 0, 0, 0, 0, 0)}
        self._ephemerals: dict[int, dict[str, None]] = {}
        self.zxid = 0
        """Of the newest transaction in it."""

    def apply(self, transaction: Transaction) -> tuple[list[Result], list[Event]]:
        """A result an operation, and what watches are told."""
        self.zxid = transaction.zxid
        change = transaction.change
        if isinstance(change, CloseSession):
            return [None], self._close(transaction)
        operations = change.operations if isinstance(change, Multi) else (change,)
        return self._together(operations, transaction)

    def content(self, path: str) -> tuple[bytes, Stat]:
        """Raises Failed."""
        node = self._node(path)
        return node.data, node.stat()

    def has(self, path: str) -> bool:
        """Whether there is such a node."""
        return path in self._nodes

    def children(self, path: str) -> list[str]:
        """Raises Failed."""
        return list(self._node(path).children)

    def paths(self) -> Sequence[str]:
        """Every node, in no order."""
        return list(self._nodes)

    def _together(self, operations: Sequence[Operation], transaction: Transaction) -> tuple[list[Result], list[Event]]:
        results: list[Result] = []
        events: list[Event] = []
        undo: list[Callable[[], None]] = []
        for number, operation in enumerate(operations):
            try:
                results.append(self._one(operation, transaction, events, undo))
            except Failed as failed:
                for step in reversed(undo):
                    step()
                rest = len(operations) - number - 1
                return [*[Code.OK] * number, failed.code, *[Code.RUNTIME_INCONSISTENCY] * rest], []
        return results, events

    def _one(
        self, operation: Operation, transaction: Transaction, events: list[Event], undo: list[Callable[[], None]]
    ) -> Result:
        if isinstance(operation, Create):
            return self._create(operation, transaction, events, undo)
        if isinstance(operation, Delete):
            self._delete(operation, transaction, events, undo)
            return None
        node = self._node(operation.path)
        _check_version(node, operation.version)
        if isinstance(operation, Check):
            return None
        before = node.data, node.version, node.mzxid, node.mtime
        undo.append(lambda: _restore(node, before))
        node.data, node.version = operation.data, node.version + 1
        node.mzxid, node.mtime = transaction.zxid, transaction.time_ms
        events.append((Happened.CHANGED, operation.path))
        return node.stat()

    def _create(
        self, operation: Create, transaction: Transaction, events: list[Event], undo: list[Callable[[], None]]
    ) -> str:
        above = parent_of(operation.path)
        parent = self._node(above)
        path = operation.path + (f"{parent.created:010d}" if operation.sequential else "")
        if path in self._nodes:
            raise Failed(Code.NODE_EXISTS)
        if parent.owner:
            raise Failed(Code.NO_CHILDREN_FOR_EPHEMERALS)
        owner = transaction.session if operation.ephemeral else 0
        zxid, now = transaction.zxid, transaction.time_ms
        name, before = path.rpartition("/")[2], (parent.created, parent.pzxid)
        self._nodes[path] = _Znode(operation.data, zxid, zxid, zxid, now, now, owner)
        parent.children[name] = None
        parent.created, parent.pzxid = parent.created + 1, zxid
        if owner:
            self._ephemerals.setdefault(owner, {})[path] = None

        def take_back() -> None:
            del self._nodes[path], parent.children[name]
            parent.created, parent.pzxid = before
            self._ephemerals.get(owner, {}).pop(path, None)

        undo.append(take_back)
        events += [(Happened.CREATED, path), (Happened.CHILDREN, above)]
        return path

    def _delete(
        self, operation: Delete, transaction: Transaction, events: list[Event], undo: list[Callable[[], None]]
    ) -> None:
        path, above = operation.path, parent_of(operation.path)
        if path == "/":
            raise Failed(Code.BAD_ARGUMENTS)
        node = self._node(path)
        _check_version(node, operation.version)
        if node.children:
            raise Failed(Code.NOT_EMPTY)
        parent, name = self._node(above), path.rpartition("/")[2]
        before = parent.pzxid
        del self._nodes[path], parent.children[name]
        parent.pzxid = transaction.zxid
        self._ephemerals.get(node.owner, {}).pop(path, None)

        def put_back() -> None:
            self._nodes[path] = node
            parent.children[name] = None
            parent.pzxid = before
            if node.owner:
                self._ephemerals.setdefault(node.owner, {})[path] = None

        undo.append(put_back)
        events += [(Happened.DELETED, path), (Happened.CHILDREN, above)]

    def _close(self, transaction: Transaction) -> list[Event]:
        paths = self._ephemerals.pop(transaction.session, {})
        events: list[Event] = []
        for path in paths:
            self._delete(Delete(path), transaction, events, [])
        return events

    def _node(self, path: str) -> _Znode:
        node = self._nodes.get(path)
        if node is None:
            raise Failed(Code.NO_NODE)
        return node


def _check_version(node: _Znode, version: int) -> None:
    if version not in (-1, node.version):
        raise Failed(Code.BAD_VERSION)


def _restore(node: _Znode, before: tuple[bytes, int, int, int]) -> None:
    node.data, node.version, node.mzxid, node.mtime = before


def parent_of(path: str) -> str:
    return path.rpartition("/")[0] or "/"
