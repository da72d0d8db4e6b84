"""A disk in memory that knows what a loss of power would leave of it, and fails when it is told to.

A file has two contents (`disk_content`): what a reader sees, and what is durable. A change (write, truncation,
allocation) is seen at once and pending until the file is synced; so is a name (created, unlinked, renamed;
`disk_names`) until its directory is synced. A power loss keeps what is durable and, of what is pending, whatever a
`Survival` says: nothing, everything (a process that was killed), the oldest with the last one torn, or an arbitrary
part. Writes tear at blocks of 512 bytes.

A sync that fails forgets what was pending, as Linux does: readers still see it, no later sync makes it durable, and an
eviction from memory (`evict`, `forget_cached`) or a power loss brings back what was there before. A later write brings
to the disk the bytes that it writes and no more. Most file systems write the whole block that they lie in, but some
only what was changed (NFS), so nothing may rely on it.

A descriptor that is closed is given to the next file that is opened, as POSIX says: the lowest that is free.

Every call that changes something goes through `on_operation` first, which may raise: that is how an error or a power
loss comes at a chosen moment. `on_opening` does so before every call that needs a descriptor of its own. Nothing here
has a thread, a clock or randomness of its own; calls may come from several threads.

Not its job: which moments are tried and what must hold afterwards (the tests), time that operations take.
"""

from __future__ import annotations

import errno
import heapq
import os
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

from bookgate.bookie.system.files import FileSystem
from tests.faults.disk_content import (
    BLOCK,
    PAGE,
    Change,
    Content,
    Inode,
    Survival,
    everything_survives,
    nothing_survives,
    oldest_survive,
    some_survive,
)
from tests.faults.disk_names import DiskNames, NameChange

__all__ = [
    "MemoryDisk",
    "Operation",
    "PowerLossException",
    "Survival",
    "everything_survives",
    "nothing_survives",
    "oldest_survive",
    "some_survive",
]


_FIRST_DESCRIPTOR = 1000


class PowerLossException(OSError):
    """The machine has no power: nothing works until the disk is taken to another one."""


class Operation(NamedTuple):
    """A call that changes the disk or its durable part; numbered from 0 over the life of the disk."""

    number: int
    kind: str
    path: Path

    def __str__(self) -> str:
        return f"operation {self.number}: {self.kind} {self.path.name}"


class _Open(NamedTuple):
    inode: Inode
    path: Path
    writable: bool


class MemoryDisk(FileSystem):
    """A file system in memory. Directories in `roots` exist, durably, with all that is above them."""

    def __init__(self, *roots: Path, capacity: int | None = None) -> None:
        """`capacity` is in bytes of file content, by pages of 4 KiB; None for no limit."""
        self._lock = threading.RLock()
        self._roots = roots
        self._names = DiskNames()
        self._open: dict[int, _Open] = {}
        self._first_fd = _FIRST_DESCRIPTOR
        self._free: list[int] = []
        """Descriptors that were closed, a heap."""
        self._locked: list[int] = []
        self._powered = True
        self.capacity = capacity
        self.partial_writes = False
        """Whether a write that fails leaves the whole blocks of its first half."""
        self.operations = 0
        self.on_operation: Callable[[Operation], None] = lambda operation: None
        """Called before every operation. Raises to make it fail; its content is then as if it was under way."""
        self.on_opening: Callable[[Path], None] = lambda path: None
        """Called before a file or directory is opened, a directory also to be listed or synced. May raise."""
        for root in roots:
            for path in (root, *root.parents):
                self._names.put(str(path), Inode(None))

    # Looking at it

    @property
    def open_paths(self) -> list[Path]:
        """Files that somebody has open, one a descriptor."""
        with self._lock:
            return sorted(opened.path for opened in self._open.values())

    def files(self, below: Path) -> list[Path]:
        """Paths of all files below a directory."""
        with self._lock:
            found = [Path(name) for name, inode in self._names.seen.items() if inode.content is not None]
            return sorted(path for path in found if below in path.parents)

    def content(self, path: Path) -> bytes:
        with self._lock:
            return self._content(self._find(path), path).read(1 << 62, 0)

    def put(self, path: Path, data: bytes) -> None:
        """Makes a durable file with that content, and its directories."""
        with self._lock:
            for parent in path.parents:
                if str(parent) not in self._names.seen:
                    self._names.put(str(parent), Inode(None))
            inode = Inode()
            inode.change(Change(0, 0, data))
            inode.sync()
            self._names.put(str(path), inode)

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
        # What the process that is gone still closes must not be another's.
        self._first_fd += len(self._open) + len(self._free)
        self._open.clear()
        self._free.clear()
        self._locked.clear()
        self._powered = True

    def evict(self) -> None:
        """Memory is wanted for something else: what is not pending is read from the disk again."""
        with self._lock:
            for inode in self._names.seen.values():
                inode.evict()

    def after_power_loss(self, survival: Survival) -> MemoryDisk:
        """The disk as it is found after a power loss at this moment; this one is not touched."""
        with self._lock:
            found = MemoryDisk(capacity=self.capacity)
            found._names = self._names.after_power_loss(survival)
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
                    for path, inode in self._names.seen.items()
                )
            )

    # FileSystem

    def open(self, path: Path, flags: int) -> int:
        with self._lock:
            self._need_power()
            self.on_opening(path)
            inode = self._names.seen.get(str(path))
            if inode is None and not flags & os.O_CREAT:
                raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(path))
            if inode is not None and flags & os.O_CREAT and flags & os.O_EXCL:
                raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), str(path))
            if inode is not None and inode.content is None:
                raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
            if inode is None:
                self._find(path.parent)
                inode = Inode()
                self._rename("create", path, inode)
            elif flags & os.O_TRUNC:
                self._change("truncate", inode, path, 0, None)
            return self._take_descriptor(_Open(inode, path, bool(flags & (os.O_RDWR | os.O_WRONLY))))

    def _take_descriptor(self, opened: _Open) -> int:
        fd = heapq.heappop(self._free) if self._free else self._first_fd + len(self._open)
        self._open[fd] = opened
        return fd

    def close(self, fd: int) -> None:
        with self._lock:
            self._opened(fd)
            del self._open[fd]
            heapq.heappush(self._free, fd)
            if fd in self._locked:
                self._locked.remove(fd)

    def pread(self, fd: int, size: int, offset: int) -> bytes:
        with self._lock:
            self._need_power()
            opened = self._opened(fd)
            return self._content(opened.inode, opened.path).read(size, offset)

    def pread_in_memory(self, fd: int, buffer: memoryview, offset: int) -> int:
        try:
            data = self.pread(fd, len(buffer), offset)
        except OSError:
            return 0
        buffer[: len(data)] = data
        return len(data)

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
            return 1 << 62 if self.capacity is None else self.capacity - self._used_pages() * PAGE

    def truncate(self, fd: int, size: int) -> None:
        with self._lock:
            opened = self._writable(fd)
            self._change("truncate", opened.inode, opened.path, size, None)

    def clear(self, fd: int, start: int, end: int) -> None:
        for first, last in list(self.data_extents(fd, start)):
            if first < end:
                self.pwrite(fd, bytes(min(last, end) - first), first)

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

    def forget_cached(self, fd: int) -> None:
        with self._lock:
            self._need_power()
            self._opened(fd).inode.evict()

    def sync_directory(self, path: Path) -> None:
        with self._lock:
            self.on_opening(path)
            self._operation("sync directory", path)
            self._names.sync(str(path))

    @property
    def syncs_file_systems(self) -> bool:
        return True

    def open_file_system(self, path: Path) -> int:
        with self._lock:
            self._need_power()
            self.on_opening(path)
            return self._take_descriptor(_Open(self._find(path), path, False))

    def sync_file_system(self, fd: int) -> None:
        with self._lock:
            self._operation("sync everything", self._opened(fd).path)
            self._names.sync_all()

    def make_directory(self, path: Path) -> bool:
        with self._lock:
            self._need_power()
            if str(path) in self._names.seen:
                return False
            self._find(path.parent)
            self._rename("make directory", path, Inode(None))
            return True

    def list_directory(self, path: Path) -> list[str]:
        with self._lock:
            self._need_power()
            self.on_opening(path)
            self._find(path)
            return list(self._names.in_directory(str(path)))

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
            if str(name) in self._names.seen:
                raise FileExistsError(errno.EEXIST, "File exists", str(name))
            self._rename("link", name, self._find(path))

    def same_file(self, path: Path, other: Path) -> bool:
        with self._lock:
            self._need_power()
            return self._find(path) is self._find(other)

    def exists(self, path: Path) -> bool:
        with self._lock:
            self._need_power()
            return str(path) in self._names.seen

    def resolve(self, path: Path) -> Path:
        return path

    def is_directory(self, path: Path) -> bool:
        with self._lock:
            self._need_power()
            inode = self._names.seen.get(str(path))
            return inode is not None and inode.content is None

    def may_change(self, path: Path) -> bool:
        return self.is_directory(path)

    def space(self, path: Path) -> tuple[int, int]:
        with self._lock:
            self._need_power()
            self._find(path)
            total = 1 << 62 if self.capacity is None else self.capacity
            return total, max(0, total - self._used_pages() * PAGE)

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

    def _operation(self, kind: str, path: Path) -> int:
        """Takes a number for a change, and lets the hook make it fail."""
        self._need_power()
        number = self.operations
        self.operations += 1
        self.on_operation(Operation(number, kind, path))
        return number

    def _change(
        self, kind: str, inode: Inode, path: Path, offset: int, data: bytes | None, *, grow_only: bool = False
    ) -> None:
        change = Change(self.operations, offset, data, grow_only)
        # Under way while the hook looks: a power loss now may keep any part of it.
        inode.pending.append(change)
        assert inode.content is not None
        try:
            self._operation(kind, path)
        except BaseException as error:
            inode.pending = [other for other in inode.pending if other is not change]
            if data and self.partial_writes and not isinstance(error, PowerLossException):
                half = (offset + len(data) // 2) // BLOCK * BLOCK - offset
                inode.change(change._replace(data=data[: max(0, half)]))
            raise
        change.apply(inode.content)

    def _rename(self, kind: str, path: Path, inode: Inode | None, old: Path | None = None) -> None:
        change = NameChange(self.operations, str(path), inode, None if old is None else str(old))
        # Under way while the hook looks: a power loss now may keep it.
        self._names.begin(change)
        try:
            self._operation(kind, path)
        except BaseException:
            self._names.withdraw(change)
            raise
        self._names.complete(change)

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

    def _need_room(self, inode: Inode, start: int, end: int, path: Path) -> None:
        if self.capacity is None or inode.content is None:
            return
        wanted = range(start // PAGE, -(-end // PAGE))
        new = sum(1 for number in wanted if number not in inode.content.pages)
        if new and (self._used_pages() + new) * PAGE > self.capacity:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))

    def _used_pages(self) -> int:
        return sum(len(inode.content.pages) for inode in self._names.seen.values() if inode.content is not None)

    def _find(self, path: Path) -> Inode:
        inode = self._names.seen.get(str(path))
        if inode is None:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(path))
        return inode

    @staticmethod
    def _content(inode: Inode, path: Path) -> Content:
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


def _pages_of(content: Content) -> frozenset[tuple[int, bytes]]:
    return frozenset((number, bytes(page)) for number, page in content.pages.items() if any(page))
