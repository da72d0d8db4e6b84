"""A disk in memory that knows what a loss of power would leave of it, and fails when it is told to.

A file has two contents: what a reader sees, and what is durable. A change (write, truncation, allocation) is seen at
once and pending until the file is synced; so is a name (created, unlinked, renamed) until its directory is synced. A
power loss keeps what is durable and, of what is pending, whatever a `Survival` says: nothing, everything (a process
that was killed), the oldest with the last one torn, or an arbitrary part. Writes tear at blocks of 512 bytes.

A sync that fails forgets what was pending, as Linux does: readers still see it, no later sync makes it durable.

Every call goes through `on_operation` first, which may raise: that is how an error or a power loss comes at a chosen
moment. Nothing here has a thread, a clock or randomness of its own; calls may come from several threads.

Not its job: which moments are tried and what must hold afterwards (the tests), time that operations take.
"""

from __future__ import annotations

import errno
import os
import random
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from bookie.files import FileSystem

BLOCK = 512
"""What a disk writes as a whole."""
_PAGE = 4096


class PowerLossException(OSError):
    """The machine has no power: nothing works until the disk is taken to another one."""


class Operation(NamedTuple):
    """A call that changes the disk or its durable part; numbered from 0 over the life of the disk."""

    number: int
    kind: str
    path: Path

    def __str__(self) -> str:
        return f"operation {self.number}: {self.kind} {self.path.name}"


Survival = Callable[[int, int], bool]
"""(number of the pending operation, block within it) → whether it reached the disk."""


def nothing_survives(operation: int, block: int) -> bool:
    return False


def everything_survives(operation: int, block: int) -> bool:
    """The process was killed, the machine goes on."""
    return True


def oldest_survive(last: int, blocks: int) -> Survival:
    """Operations before `last`, and of that one the first `blocks` blocks: in order, the last write torn."""
    return lambda operation, block: operation < last or (operation == last and block < blocks)


def some_survive(seed: int) -> Survival:
    """Each pending block and name by itself, few, half or most of them."""
    choice = random.Random(seed)
    share = choice.choice((0.15, 0.5, 0.85))
    return lambda operation, block: choice.random() < share


class _Content:
    """A sparse sequence of bytes."""

    __slots__ = ("pages", "size")

    def __init__(self) -> None:
        self.pages: dict[int, bytearray] = {}
        self.size = 0

    def copy(self) -> _Content:
        copy = _Content()
        copy.pages = {number: bytearray(page) for number, page in self.pages.items()}
        copy.size = self.size
        return copy

    def read(self, size: int, offset: int) -> bytes:
        end = min(self.size, offset + size)
        parts = []
        while offset < end:
            number, start = divmod(offset, _PAGE)
            stop = min(_PAGE, start + end - offset)
            page = self.pages.get(number)
            parts.append(bytes(stop - start) if page is None else bytes(page[start:stop]))
            offset += stop - start
        return b"".join(parts)

    def write(self, data: bytes, offset: int) -> None:
        position = 0
        while position < len(data):
            number, start = divmod(offset + position, _PAGE)
            part = data[position : position + _PAGE - start]
            page = self.pages.get(number)
            if page is None:
                page = self.pages[number] = bytearray(_PAGE)
            page[start : start + len(part)] = part
            position += len(part)
        self.size = max(self.size, offset + len(data))

    def truncate(self, size: int) -> None:
        if size < self.size:
            last, start = divmod(size, _PAGE)
            self.pages = {number: page for number, page in self.pages.items() if number <= last}
            if last in self.pages:
                self.pages[last][start:] = bytes(_PAGE - start)
        self.size = size

    def extents(self, start: int) -> Iterator[tuple[int, int]]:
        for number in sorted(self.pages):
            first, end = number * _PAGE, min(self.size, (number + 1) * _PAGE)
            if end > start and first < self.size:
                yield max(first, start), end


class _Change(NamedTuple):
    """A pending change of a file: a write at `offset`, or with `data` None a new size (`grow_only`: at least that)."""

    operation: int
    offset: int
    data: bytes | None
    grow_only: bool = False

    def apply(self, content: _Content) -> None:
        if self.data is not None:
            content.write(self.data, self.offset)
        elif not self.grow_only or self.offset > content.size:
            content.truncate(self.offset)

    def apply_surviving(self, content: _Content, survival: Survival) -> None:
        if self.data is None:
            if survival(self.operation, 0):
                self.apply(content)
            return
        position = 0
        block = 0
        while position < len(self.data):
            stop = position + BLOCK - (self.offset + position) % BLOCK
            if survival(self.operation, block):
                content.write(self.data[position:stop], self.offset + position)
            position = stop
            block += 1


@dataclass(eq=False)
class _Inode:
    """A file, or with `content` None a directory."""

    content: _Content | None = field(default_factory=_Content)
    durable: _Content = field(default_factory=_Content)
    pending: list[_Change] = field(default_factory=list)

    def change(self, change: _Change) -> None:
        assert self.content is not None
        change.apply(self.content)
        self.pending.append(change)

    def sync(self) -> None:
        for change in self.pending:
            change.apply(self.durable)
        self.pending.clear()

    def after_power_loss(self, survival: Survival) -> _Inode:
        if self.content is None:
            return self
        durable = self.durable.copy()
        for change in self.pending:
            change.apply_surviving(durable, survival)
        return _Inode(durable.copy(), durable)


class _NameChange(NamedTuple):
    """A pending change of a directory: the name now stands for `inode`, or for nothing. It happens whole or not."""

    operation: int
    path: Path
    inode: _Inode | None
    old: Path | None = None
    """For a rename: the name that is gone with the same change."""

    def apply(self, names: dict[Path, _Inode]) -> None:
        if self.old is not None:
            names.pop(self.old, None)
        if self.inode is None:
            names.pop(self.path, None)
        else:
            names[self.path] = self.inode


class _Open(NamedTuple):
    inode: _Inode
    path: Path
    writable: bool


class MemoryDisk(FileSystem):
    """A file system in memory. Directories in `roots` exist, durably, with all that is above them."""

    def __init__(self, *roots: Path, capacity: int | None = None) -> None:
        """`capacity` is in bytes of file content, by pages of 4 KiB; None for no limit."""
        self._lock = threading.RLock()
        self._roots = roots
        self._names: dict[Path, _Inode] = {}
        self._durable_names: dict[Path, _Inode] = {}
        self._pending_names: dict[Path, list[_NameChange]] = {}
        self._open: dict[int, _Open] = {}
        self._next_fd = 1000
        self._locked: list[int] = []
        self._listings: dict[str, list[str]] | None = None
        """Names by directory, made when somebody lists one, as long as no name changes."""
        self._powered = True
        self.capacity = capacity
        self.partial_writes = False
        """Whether a write that fails leaves its first half."""
        self.operations = 0
        self.on_operation: Callable[[Operation], None] = lambda operation: None
        """Called before every operation. Raises to make it fail; its content is then as if it was under way."""
        for root in roots:
            for path in (root, *root.parents):
                self._names[path] = self._durable_names[path] = _Inode(None)

    # Looking at it

    @property
    def open_paths(self) -> list[Path]:
        """Files that somebody has open, one a descriptor."""
        with self._lock:
            return sorted(opened.path for opened in self._open.values())

    def files(self, below: Path) -> list[Path]:
        """Paths of all files below a directory."""
        with self._lock:
            return sorted(p for p, inode in self._names.items() if inode.content is not None and below in p.parents)

    def content(self, path: Path) -> bytes:
        with self._lock:
            return self._content(self._find(path), path).read(1 << 62, 0)

    def put(self, path: Path, data: bytes) -> None:
        """Makes a durable file with that content, and its directories."""
        with self._lock:
            for parent in path.parents:
                if parent not in self._names:
                    self._names[parent] = self._durable_names[parent] = _Inode(None)
            inode = _Inode()
            inode.change(_Change(0, 0, data))
            inode.sync()
            self._names[path] = self._durable_names[path] = inode
            self._listings = None

    def flip(self, path: Path, offset: int, bit: int) -> None:
        """Turns over a bit of what is at rest, unnoticed."""
        with self._lock:
            inode = self._find(path)
            for content in (self._content(inode, path), inode.durable):
                byte = content.read(1, offset)
                if byte:
                    content.write(bytes([byte[0] ^ 1 << bit]), offset)

    # Power

    def lose_power(self) -> None:
        """From now on every call raises PowerLossException."""
        self._powered = False

    def start_again(self) -> None:
        """After lose_power: as if only the process had been killed. What was pending is seen, and still pending."""
        self._open.clear()
        self._locked.clear()
        self._powered = True

    def after_power_loss(self, survival: Survival) -> MemoryDisk:
        """The disk as it is found after a power loss at this moment; this one is not touched."""
        with self._lock:
            found = MemoryDisk(capacity=self.capacity)
            names = dict(self._durable_names)
            changes = (change for pending in self._pending_names.values() for change in pending)
            for change in sorted(changes, key=lambda change: change.operation):
                if survival(change.operation, 0):
                    change.apply(names)
            inodes: dict[int, _Inode] = {}
            # A name counts only where all directories above it survived.
            for path in sorted(names, key=lambda name: len(name.parts)):
                parent = path.parent
                if parent != path and parent not in found._names:
                    continue
                inode = names[path]
                if id(inode) not in inodes:
                    inodes[id(inode)] = inode.after_power_loss(survival)
                found._names[path] = inodes[id(inode)]
            found._durable_names = dict(found._names)
            return found

    @property
    def last_operation(self) -> int:
        return self.operations - 1

    def digest(self) -> int:
        """Equal for disks that hold the same names and contents."""
        with self._lock:
            return hash(
                frozenset(
                    (path, None if inode.content is None else (inode.content.size, _pages_of(inode.content)))
                    for path, inode in self._names.items()
                )
            )

    # FileSystem

    def open(self, path: Path, flags: int) -> int:
        with self._lock:
            self._need_power()
            inode = self._names.get(path)
            if inode is None and not flags & os.O_CREAT:
                raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(path))
            if inode is not None and flags & os.O_CREAT and flags & os.O_EXCL:
                raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), str(path))
            if inode is not None and inode.content is None:
                raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
            if inode is None:
                self._find(path.parent)
                inode = _Inode()
                self._rename("create", path, inode)
            elif flags & os.O_TRUNC:
                self._change("truncate", inode, path, 0, None)
            fd = self._next_fd
            self._next_fd += 1
            self._open[fd] = _Open(inode, path, bool(flags & (os.O_RDWR | os.O_WRONLY)))
            return fd

    def close(self, fd: int) -> None:
        with self._lock:
            self._opened(fd)
            del self._open[fd]
            if fd in self._locked:
                self._locked.remove(fd)

    def pread(self, fd: int, size: int, offset: int) -> bytes:
        with self._lock:
            self._need_power()
            opened = self._opened(fd)
            return self._content(opened.inode, opened.path).read(size, offset)

    def pwrite(self, fd: int, data: bytes, offset: int) -> None:
        with self._lock:
            opened = self._writable(fd)
            self._need_room(opened.inode, offset, offset + len(data), opened.path)
            self._change("write", opened.inode, opened.path, offset, bytes(data))

    def allocate(self, fd: int, size: int) -> None:
        with self._lock:
            opened = self._writable(fd)
            self._change("allocate", opened.inode, opened.path, size, None, grow_only=True)

    def free_bytes(self, fd: int) -> int:
        with self._lock:
            return 1 << 62 if self.capacity is None else self.capacity - self._used_pages() * _PAGE

    def truncate(self, fd: int, size: int) -> None:
        with self._lock:
            opened = self._writable(fd)
            self._change("truncate", opened.inode, opened.path, size, None)

    def size(self, fd: int) -> int:
        with self._lock:
            self._need_power()
            opened = self._opened(fd)
            return self._content(opened.inode, opened.path).size

    def data_extents(self, fd: int, start: int) -> Iterator[tuple[int, int]]:
        with self._lock:
            self._need_power()
            opened = self._opened(fd)
            extents = list(self._content(opened.inode, opened.path).extents(start))
        yield from extents

    def fdatasync(self, fd: int) -> None:
        self._sync(fd)

    def fsync(self, fd: int) -> None:
        self._sync(fd)

    def sync_directory(self, path: Path) -> None:
        with self._lock:
            self._operation("sync directory", path)
            for change in self._pending_names.pop(path, ()):
                change.apply(self._durable_names)
                if change.old is not None:
                    self._settled(change)

    @property
    def syncs_file_systems(self) -> bool:
        return True

    def open_file_system(self, path: Path) -> int:
        with self._lock:
            self._need_power()
            fd = self._next_fd
            self._next_fd += 1
            self._open[fd] = _Open(self._find(path), path, False)
            return fd

    def sync_file_system(self, fd: int) -> None:
        with self._lock:
            self._operation("sync everything", self._opened(fd).path)
            for inode in self._names.values():
                inode.sync()
            for pending in self._pending_names.values():
                for change in pending:
                    change.apply(self._durable_names)
            self._pending_names.clear()

    def make_directory(self, path: Path) -> bool:
        with self._lock:
            self._need_power()
            if path in self._names:
                return False
            self._find(path.parent)
            self._rename("make directory", path, _Inode(None))
            return True

    def list_directory(self, path: Path) -> list[str]:
        with self._lock:
            self._need_power()
            self._find(path)
            return list(self._names_in(path))

    def unlink(self, path: Path) -> None:
        with self._lock:
            self._need_power()
            self._find(path)
            self._rename("unlink", path, None)

    def rename(self, path: Path, target: Path) -> None:
        with self._lock:
            self._need_power()
            self._rename("rename", target, self._find(path), path)

    def link(self, path: Path, name: Path) -> None:
        with self._lock:
            self._need_power()
            if name in self._names:
                raise FileExistsError(errno.EEXIST, "File exists", str(name))
            self._rename("link", name, self._find(path))

    def same_file(self, path: Path, other: Path) -> bool:
        with self._lock:
            self._need_power()
            return self._find(path) is self._find(other)

    def exists(self, path: Path) -> bool:
        with self._lock:
            self._need_power()
            return path in self._names

    def resolve(self, path: Path) -> Path:
        return path

    def is_directory(self, path: Path) -> bool:
        with self._lock:
            self._need_power()
            inode = self._names.get(path)
            return inode is not None and inode.content is None

    def may_change(self, path: Path) -> bool:
        return self.is_directory(path)

    def space(self, path: Path) -> tuple[int, int]:
        with self._lock:
            self._need_power()
            self._find(path)
            total = 1 << 62 if self.capacity is None else self.capacity
            return total, max(0, total - self._used_pages() * _PAGE)

    def device(self, path: Path) -> int:
        with self._lock:
            self._need_power()
            self._find(path)
            return 1

    def lock(self, fd: int) -> bool:
        with self._lock:
            self._need_power()
            inode = self._opened(fd).inode
            if any(self._open[holder].inode is inode for holder in self._locked if holder in self._open):
                return False
            self._locked.append(fd)
            return True

    # Behind it

    def _names_in(self, directory: Path) -> list[str]:
        if self._listings is None:
            self._listings = {}
            for name in map(str, self._names):
                parent, _, last = name.rpartition("/")
                if last:
                    self._listings.setdefault(parent or "/", []).append(last)
        return self._listings.get(str(directory), [])

    def _settled(self, change: _NameChange) -> None:
        """A rename between two directories is durable as soon as one of them is."""
        for parent, pending in self._pending_names.items():
            self._pending_names[parent] = [other for other in pending if other is not change]

    def _operation(self, kind: str, path: Path) -> int:
        """Takes a number for a change, and lets the hook make it fail."""
        self._need_power()
        number = self.operations
        self.operations += 1
        self.on_operation(Operation(number, kind, path))
        return number

    def _change(
        self, kind: str, inode: _Inode, path: Path, offset: int, data: bytes | None, *, grow_only: bool = False
    ) -> None:
        change = _Change(self.operations, offset, data, grow_only)
        # Under way while the hook looks: a power loss now may keep any part of it.
        inode.pending.append(change)
        assert inode.content is not None
        try:
            self._operation(kind, path)
        except BaseException as error:
            inode.pending = [other for other in inode.pending if other is not change]
            if data and self.partial_writes and not isinstance(error, PowerLossException):
                inode.change(change._replace(data=data[: len(data) // 2]))
            raise
        change.apply(inode.content)

    def _rename(self, kind: str, path: Path, inode: _Inode | None, old: Path | None = None) -> None:
        change = _NameChange(self.operations, path, inode, old)
        parents = {path.parent: None} if old is None else {path.parent: None, old.parent: None}
        for parent in parents:
            self._pending_names.setdefault(parent, []).append(change)
        try:
            self._operation(kind, path)
        except BaseException:
            for parent in parents:
                self._pending_names[parent].remove(change)
            raise
        change.apply(self._names)
        self._listings = None

    def _sync(self, fd: int) -> None:
        with self._lock:
            self._need_power()
            opened = self._opened(fd)
            try:
                self._operation("sync", opened.path)
            except PowerLossException:
                raise
            except OSError:
                opened.inode.pending.clear()
                raise
            opened.inode.sync()

    def _need_power(self) -> None:
        if not self._powered:
            raise PowerLossException(errno.EIO, "the power is off")

    def _need_room(self, inode: _Inode, start: int, end: int, path: Path) -> None:
        if self.capacity is None or inode.content is None:
            return
        wanted = range(start // _PAGE, -(-end // _PAGE))
        new = sum(1 for number in wanted if number not in inode.content.pages)
        if new and (self._used_pages() + new) * _PAGE > self.capacity:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))

    def _used_pages(self) -> int:
        return sum(len(inode.content.pages) for inode in self._names.values() if inode.content is not None)

    def _find(self, path: Path) -> _Inode:
        inode = self._names.get(path)
        if inode is None:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(path))
        return inode

    @staticmethod
    def _content(inode: _Inode, path: Path) -> _Content:
        if inode.content is None:
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
        return inode.content

    def _opened(self, fd: int) -> _Open:
        opened = self._open.get(fd)
        if opened is None:
            raise OSError(errno.EBADF, os.strerror(errno.EBADF), str(fd))
        return opened

    def _writable(self, fd: int) -> _Open:
        self._need_power()
        opened = self._opened(fd)
        if not opened.writable:
            raise OSError(errno.EBADF, "opened for reading only", str(opened.path))
        return opened


def _pages_of(content: _Content) -> frozenset[tuple[int, bytes]]:
    return frozenset((number, bytes(page)) for number, page in content.pages.items() if any(page))
