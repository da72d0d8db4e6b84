"""The disk of a simulated host: a `MemoryDisk` whose operations take virtual time, and fail as the world says.

Syncs take time always; other operations now and then, which is where another thread gets its turn and a crash may come.
A sync takes its effect at a moment within the time that it takes. What a process has open is its own: the files of one
that is gone do nothing any more.

Not its job: what survives (`MemoryDisk`), when faults come (`World` and its plans).
"""

from __future__ import annotations

import errno
import math
import os
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TypeVar

from bookgate.bookie.system.files import FileSystem
from tests.faults.memory_disk import MemoryDisk, Operation, Survival
from tests.simulation.loop import Process, WorldLoop
from tests.simulation.threads import thread_name
from tests.simulation.transcript import Transcript

T = TypeVar("T")

_NOT_IN_MEMORY = 0.5
"""The share of reads that would have to wait for the disk."""
_EVICTED = 0.3
"""How often what a process leaves in memory is gone before the next one looks."""
_COLLECTING = "gc"
"""The name of a bookie's thread that compacts."""


@dataclass(slots=True)
class DiskFaults:
    """What is wrong with a disk at the moment. Rates are probabilities an operation."""

    slowness: float = 1.0
    """Every operation takes so many times as long."""
    failing_syncs: float = 0.0
    failing_index_syncs: float = 0.0
    """The same for index files only: they are synced far more rarely than journals, and nobody writes moves again."""
    failing_writes: float = 0.0
    failing_reads: float = 0.0
    failing_opens: float = 0.0
    """For want of descriptors, also of directories that are listed or synced."""
    flipped_reads: float = 0.0
    """Reads of entry logs that come back with a bit turned over: nothing else has checksums."""


@dataclass(frozen=True, slots=True)
class DiskTimes:
    """Seconds. A sync takes between the two; of other operations a share takes up to `other`."""

    sync: tuple[float, float] = (0.0002, 0.002)
    other: float = 0.0005
    share: float = 0.02

    @staticmethod
    def drawn(rng: random.Random) -> DiskTimes:
        """Most disks are quick; with some a crash, or another thread, may come between any two operations."""
        return DiskTimes(share=rng.choice((0.0, 0.02, 0.02, 0.3)))


class Disk:
    """What outlives processes and power losses."""

    def __init__(
        self, loop: WorldLoop, rng: random.Random, times: DiskTimes, transcript: Transcript, *roots: Path
    ) -> None:
        self.transcript = transcript
        self.loop = loop
        self.rng = rng
        self.times = times
        self.roots = roots
        self.media = MemoryDisk(*roots)
        self.faults = DiskFaults()
        self.counts: dict[str, int] = {}
        """Faults that took effect, by kind."""
        self.read_failed_at = -math.inf
        """When a read failed, the last time."""
        self.on_moves: Callable[[], None] = lambda: None
        """Called when a collection has written into an index file, which is about to be synced."""

    def process_gone(self) -> None:
        """What was written stays, synced or not; nobody has a file open. The host may want its memory otherwise."""
        self.media.start_again()
        if self.rng.random() < _EVICTED:
            self.media.evict()

    def lose_power(self, survival: Survival) -> None:
        """Of what was not synced only what `survival` says is there afterwards."""
        self.media = self.media.after_power_loss(survival)

    def wipe(self) -> None:
        """An empty disk takes its place."""
        self.media = MemoryDisk(*self.roots)

    def corrupt(self, path: Path, offset: int, bit: int = 0) -> None:
        """Turns over a bit of what is at rest."""
        self.media.flip(path, offset, bit)

    def count(self, kind: str) -> None:
        self.counts[kind] = self.counts.get(kind, 0) + 1


class ProcessFiles(FileSystem):
    """A disk as one process sees it."""

    def __init__(self, disk: Disk, process: Process) -> None:
        self._disk = disk
        self._media = disk.media
        self._process = process
        self._entry_logs: set[int] = set()
        """What is open of them."""
        self._indexes: set[int] = set()
        """What is open of index files."""

    # Time and faults

    def _wait(self, seconds: float) -> None:
        self._disk.loop.suspend(seconds * self._disk.faults.slowness)
        self._check_alive()

    def _check_alive(self) -> None:
        if not self._process.alive:
            self._disk.loop.die_here()

    def _pass(self) -> None:
        disk = self._disk
        if disk.rng.random() < disk.times.share or disk.faults.slowness > 1:
            self._wait(disk.rng.random() * disk.times.other)

    def _sync(self, kind: str, sync: Callable[[], None], failing: float = 0.0) -> None:
        disk = self._disk
        low, high = disk.times.sync
        seconds = low + (high - low) * disk.rng.random()
        before = disk.rng.random()
        self._wait(seconds * before)
        failing = max(failing, disk.faults.failing_syncs)
        if failing and disk.rng.random() < failing:
            disk.count("failed syncs")
            sync = partial(self._failing, sync)
        sync()
        disk.transcript.note(self._process.host, kind)
        self._wait(seconds * (1 - before))

    def _failing(self, change: Callable[[], None]) -> None:
        before, self._media.on_operation = self._media.on_operation, _fail
        try:
            change()
        finally:
            self._media.on_operation = before

    # FileSystem

    def _need_descriptor(self, path: Path) -> None:
        disk = self._disk
        if disk.faults.failing_opens and disk.rng.random() < disk.faults.failing_opens:
            disk.count("failed opens")
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE), str(path))

    def open(self, path: Path, flags: int) -> int:
        self._pass()
        self._need_descriptor(path)
        fd = self._media.open(path, flags)
        if path.suffix == ".log":
            self._entry_logs.add(fd)
        elif path.suffix == ".idx":
            self._indexes.add(fd)
        return fd

    def close(self, fd: int) -> None:
        if self._process.alive and not self._disk.loop.over:
            self._entry_logs.discard(fd)
            self._indexes.discard(fd)
            self._media.close(fd)

    def pread(self, fd: int, size: int, offset: int) -> bytes:
        self._pass()
        faults = self._disk.faults
        if faults.failing_reads and self._disk.rng.random() < faults.failing_reads:
            self._disk.count("failed reads")
            self._disk.read_failed_at = self._disk.loop.time()
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        data = self._media.pread(fd, size, offset)
        flips = faults.flipped_reads and fd in self._entry_logs
        if data and flips and self._disk.rng.random() < faults.flipped_reads:
            self._disk.count("flipped reads")
            return _flipped(data, self._disk.rng)
        return data

    def pread_in_memory(self, fd: int, buffer: memoryview, offset: int) -> int:
        if self._disk.rng.random() < _NOT_IN_MEMORY:
            return 0
        try:
            data = self.pread(fd, len(buffer), offset)
        except OSError:
            return 0
        buffer[: len(data)] = data
        return len(data)

    def pwrite(self, fd: int, data: bytes, offset: int) -> None:
        self._pass()
        disk = self._disk
        if disk.faults.failing_writes and disk.rng.random() < disk.faults.failing_writes:
            disk.count("failed writes")
            self._media.partial_writes = disk.rng.random() < 0.5
            self._failing(lambda: self._media.pwrite(fd, data, offset))
        self._media.pwrite(fd, data, offset)

    def allocate(self, fd: int, size: int) -> None:
        self._pass()
        self._media.allocate(fd, size)

    def free_bytes(self, fd: int) -> int:
        return self._media.free_bytes(fd)

    def truncate(self, fd: int, size: int) -> None:
        self._pass()
        self._media.truncate(fd, size)

    def clear(self, fd: int, start: int, end: int) -> None:
        self._pass()
        self._media.clear(fd, start, end)

    def size(self, fd: int) -> int:
        return self._media.size(fd)

    def data_extents(self, fd: int, start: int) -> Iterator[tuple[int, int]]:
        return self._media.data_extents(fd, start)

    def fdatasync(self, fd: int) -> None:
        rate = self._disk.faults.failing_index_syncs if fd in self._indexes else 0.0
        if fd in self._indexes and thread_name() == _COLLECTING:
            self._disk.on_moves()
        self._sync("fdatasync", lambda: self._media.fdatasync(fd), rate)

    def fsync(self, fd: int) -> None:
        self._sync("fsync", lambda: self._media.fsync(fd))

    def forget_cached(self, fd: int) -> None:
        self._media.forget_cached(fd)

    def sync_directory(self, path: Path) -> None:
        self._need_descriptor(path)
        self._sync("sync directory", lambda: self._media.sync_directory(path))

    @property
    def syncs_file_systems(self) -> bool:
        return True

    def open_file_system(self, path: Path) -> int:
        self._need_descriptor(path)
        return self._media.open_file_system(path)

    def sync_file_system(self, fd: int) -> None:
        self._sync("syncfs", lambda: self._media.sync_file_system(fd))

    def make_directory(self, path: Path) -> bool:
        self._pass()
        return self._media.make_directory(path)

    def exists(self, path: Path) -> bool:
        return self._media.exists(path)

    def resolve(self, path: Path) -> Path:
        return path

    def is_directory(self, path: Path) -> bool:
        return self._media.is_directory(path)

    def may_change(self, path: Path) -> bool:
        return self._media.may_change(path)

    def space(self, path: Path) -> tuple[int, int]:
        return self._media.space(path)

    def device(self, path: Path) -> int:
        return self._media.device(path)

    def lock(self, fd: int) -> bool:
        return self._media.lock(fd)

    def list_directory(self, path: Path) -> list[str]:
        self._pass()
        self._need_descriptor(path)
        return self._media.list_directory(path)

    def unlink(self, path: Path) -> None:
        self._pass()
        self._media.unlink(path)

    def link(self, path: Path, name: Path) -> None:
        self._pass()
        self._media.link(path, name)

    def same_file(self, path: Path, other: Path) -> bool:
        return self._media.same_file(path, other)

    def rename(self, path: Path, target: Path) -> None:
        self._pass()
        self._media.rename(path, target)


def _fail(operation: Operation) -> None:
    raise OSError(errno.EIO, os.strerror(errno.EIO), str(operation.path))


def _flipped(data: bytes, rng: random.Random) -> bytes:
    changed = bytearray(data)
    changed[int(rng.random() * len(changed))] ^= 1 << int(rng.random() * 8)
    return bytes(changed)
