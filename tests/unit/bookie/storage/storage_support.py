"""What the storage tests share: packets, a collector of acknowledgements, and file systems that record or fail."""

from __future__ import annotations

import errno
import os
import struct
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import pytest

from bookgate.bookie.index.ledger_index import LedgerIndex
from bookgate.bookie.journal.options import JournalOptions
from bookgate.bookie.storage.batch_size import BatchSize
from bookgate.bookie.storage.ledger_descriptor import LedgerDescriptor
from bookgate.bookie.storage.ledger_state import BookieLedgerState
from bookgate.bookie.storage.storage import LedgerStorage, StorageConfig
from bookgate.bookie.storage.writer import EntryWriter
from bookgate.bookie.storage_events import Completion, Retry
from bookgate.bookie.system.files import REAL_FILE_SYSTEM, FileSystem
from bookgate.ledger.digest import DummyDigest
from bookgate.ledger.entry import encode_header, encode_lac
from bookgate.ledger.ledger_id import LedgerId

KEY = b"k" * 20
_WAIT_SECONDS = 30


def packet(ledger_id: int, entry_id: int, size: int = 50, lac: int | None = None, fill: int | None = None) -> bytes:
    """An entry packet with a payload of `size` bytes, of the ledger with this number."""
    header = encode_header(4, ledger_id, entry_id, entry_id - 1 if lac is None else lac, (entry_id + 1) * size)
    return header + bytes([(entry_id if fill is None else fill) & 0xFF]) * size


def lac_packet(ledger_id: int, lac: int) -> bytes:
    return encode_lac(DummyDigest(), ledger_id, lac) + struct.pack(">i", 0x1234)


def read_entries(
    bookie: OpenStorage, ledger: BookieLedgerState, first_entry_id: int, count: int, size: int
) -> list[bytes]:
    """The packets of a batch read whose answer has so many entries and bytes at most."""
    runs = bookie.storage.reader.read_batch(ledger, first_entry_id, BatchSize(count, size, size))
    return [packet for run in runs for packet in run.packets()]


class Token(Completion):
    """A request that a test knows by a value of its own."""

    __slots__ = ("value",)

    def __init__(self, value: object) -> None:
        self.value = value


class TokenWriter:
    """A writer that takes any value for a completion."""

    def __init__(self, writer: EntryWriter) -> None:
        self._writer = writer

    def add_entry(
        self, ledger: BookieLedgerState, entry_id: int, packet: bytes, token: object, *, sync: bool = True
    ) -> None:
        self._writer.add_entry(ledger, entry_id, packet, None if token is None else Token(token), sync=sync)

    def fence(self, ledger: BookieLedgerState, token: object) -> None:
        self._writer.fence(ledger, Token(token))

    def write_explicit_lac(self, ledger: BookieLedgerState, packet: bytes, token: object) -> None:
        self._writer.write_explicit_lac(ledger, packet, Token(token))

    def force(self, ledger_id: LedgerId, token: object) -> None:
        self._writer.force(ledger_id, Token(token))


class Disks:
    """Which directories may be written, as a test wants it."""

    def __init__(self, config: StorageConfig) -> None:
        self.for_entry_logs: Sequence[Path] = config.ledger_directories
        self.for_index_files: Sequence[Path] = config.index_directories or config.ledger_directories
        self.full_journals: Sequence[Path] = ()

    def directories_for_entry_logs(self) -> Sequence[Path]:
        return self.for_entry_logs

    def directories_for_index_files(self) -> Sequence[Path]:
        return self.for_index_files

    def is_full_journal_directory(self, directory: Path) -> bool:
        return directory in self.full_journals


class Acknowledgements:
    """The events of a storage: collects tokens and failures; waits for them without a clock in the test's logic."""

    def __init__(self) -> None:
        self.tokens: list[object] = []
        self.completions: list[Completion] = []
        """Of requests that were not made with a token."""
        self.failures: list[BaseException] = []
        self.on_stored: Callable[[list[object]], None] = self.durable
        """Takes the tokens that are acknowledged."""
        self.on_capacity: Callable[[], None] = lambda: None
        self.on_space: Callable[[], None] = lambda: None
        self.on_no_space: Callable[[list[object]], Retry] = lambda tokens: Retry.NEVER
        """Takes the tokens that are refused."""
        self._changed = threading.Condition()

    def stored(self, completions: Sequence[Completion]) -> None:
        with self._changed:
            self.completions.extend(one for one in completions if not isinstance(one, Token))
            self._changed.notify_all()
        self.on_stored(_tokens(completions))

    def not_stored(self, completions: Sequence[Completion], error: OSError) -> Retry:
        return self.on_no_space(_tokens(completions))

    def capacity_available(self) -> None:
        self.on_capacity()

    def space_restored(self) -> None:
        self.on_space()

    def ledgers_deleted(self, ids: Sequence[int]) -> None:
        return

    def durable(self, tokens: list[object]) -> None:
        with self._changed:
            self.tokens.extend(tokens)
            self._changed.notify_all()

    def failed(self, error: BaseException) -> None:
        with self._changed:
            self.failures.append(error)
            self._changed.notify_all()

    def wait_for(self, *tokens: object) -> None:
        self.wait_until(lambda: all(token in self.tokens for token in tokens), f"tokens {tokens}")

    def wait_for_count(self, count: int) -> None:
        self.wait_until(lambda: len(self.tokens) >= count, f"{count} tokens")

    def wait_for_failure(self) -> BaseException:
        self.wait_until(lambda: bool(self.failures), "a failure")
        return self.failures[0]

    def wait_until(self, condition: Callable[[], bool], what: str) -> None:
        with self._changed:
            assert self._changed.wait_for(condition, _WAIT_SECONDS), f"{what} did not come; failures {self.failures}"


def _tokens(completions: Sequence[Completion]) -> list[object]:
    return [one.value for one in completions if isinstance(one, Token)]


def small_config(root: Path) -> StorageConfig:
    """Small files, no checkpoint but those asked for."""
    return StorageConfig(
        journal_directories=(root / "journal",),
        ledger_directories=(root / "ledgers",),
        journal=JournalOptions(pre_alloc_bytes=16 * 1024),
        flush_interval_seconds=3600,
    )


_OF_JOURNALS = {f"journal_{field.name}" for field in fields(JournalOptions)}


def changed(config: StorageConfig, changes: Mapping[str, Any]) -> StorageConfig:
    """The configuration with changes; `journal_…` are those of its journals that have the rest of the name."""
    journal = {name.removeprefix("journal_"): changes[name] for name in changes if name in _OF_JOURNALS}
    others = {name: changes[name] for name in changes if name not in _OF_JOURNALS}
    return replace(config, journal=replace(config.journal, **journal), **others)


class OpenStorage:
    """A storage with its collector."""

    def __init__(self, root: Path, files: FileSystem = REAL_FILE_SYSTEM, **changes: object) -> None:
        self.acks = Acknowledgements()
        config = changed(small_config(root), changes)
        self.disks = Disks(config)
        self.storage = LedgerStorage(config, self.acks, files, disks=self.disks)
        self.storage.open()

    @property
    def writer(self) -> TokenWriter:
        return TokenWriter(self.storage.writer)

    def ledger(self, number: int, key: bytes = KEY) -> LedgerDescriptor:
        ledger_id = LedgerId.of_number(number)
        return self.storage.ledgers.get(ledger_id) or self.storage.writer.create_ledger(ledger_id, key)

    def add(self, number: int, *entry_ids: int, size: int = 50) -> None:
        """Adds entries and waits until they are durable."""
        for entry_id in entry_ids:
            self.writer.add_entry(self.ledger(number), entry_id, packet(number, entry_id, size), (number, entry_id))
        self.acks.wait_for(*((number, entry_id) for entry_id in entry_ids))

    def fence(self, number: int) -> None:
        self.writer.fence(self.ledger(number), ("fence", number))
        self.acks.wait_for(("fence", number))

    def write_lac(self, number: int, lac: int) -> None:
        self.writer.write_explicit_lac(self.ledger(number), lac_packet(number, lac), ("lac", number, lac))
        self.acks.wait_for(("lac", number, lac))


@contextmanager
def opened(root: Path, files: FileSystem = REAL_FILE_SYSTEM, **changes: object) -> Iterator[OpenStorage]:
    """A storage that is closed (with its last checkpoint) at the end."""
    storage = OpenStorage(root, files, **changes)
    try:
        yield storage
    finally:
        storage.storage.close()


def refuse_syncs(patch: pytest.MonkeyPatch, index: LedgerIndex) -> None:
    """The index can't make anything durable from now on, for lack of space."""
    patch.setattr(index, "sync", refuse_room)


def refuse_room(*arguments: object) -> None:
    raise OSError(errno.ENOSPC, "no room left")


class FullFor(FileSystem):
    """While `full`, no file that `chosen` picks grows."""

    def __init__(self, chosen: Callable[[Path], bool]) -> None:
        self._chosen = chosen
        self.full = False
        self._paths: dict[int, Path] = {}

    def open(self, path: Path, flags: int) -> int:
        fd = super().open(path, flags)
        self._paths[fd] = path
        return fd

    def pwrite(self, fd: int, data: bytes, offset: int) -> None:
        self._need_room(fd)
        super().pwrite(fd, data, offset)

    def allocate(self, fd: int, size: int) -> None:
        self._need_room(fd)
        super().allocate(fd, size)

    def _need_room(self, fd: int) -> None:
        if self.full and self._chosen(self._paths[fd]):
            refuse_room()


class RecordingFileSystem(FileSystem):
    """Tells `on_step` after every change of the disk, and knows what would be left if the power went now.

    A file's content survives as of its last sync, a name once its directory was synced; what was unlinked is gone at
    once. Real disks keep more; this is the worst they may do.
    """

    def __init__(self, root: Path) -> None:
        self._root = root
        self._lock = threading.RLock()
        self._paths: dict[int, Path] = {}
        self._content: dict[Path, bytes] = {}
        self._names: set[Path] = set()
        self.on_step: Callable[[str], None] = lambda step: None

    def write_survivors(self, target: Path) -> None:
        """Makes `target` what `root` would be after a loss of power."""
        with self._lock:
            target.mkdir(parents=True)
            for top in ("journal", "ledgers"):
                (target / top / "current").mkdir(parents=True, exist_ok=True)
            for path in sorted(self._names, key=lambda name: len(name.parts)):
                copy = target / path.relative_to(self._root)
                if not copy.parent.is_dir():
                    continue
                if path in self._content:
                    copy.write_bytes(self._content[path])
                elif path.is_dir():
                    copy.mkdir(exist_ok=True)
                else:
                    copy.touch()

    def _step(self, what: str) -> None:
        self.on_step(what)

    def open(self, path: Path, flags: int) -> int:
        fd = super().open(path, flags)
        with self._lock:
            self._paths[fd] = path
        if flags & os.O_CREAT:
            self._step(f"open {path.name}")
        return fd

    def pwrite(self, fd: int, data: bytes, offset: int) -> None:
        super().pwrite(fd, data, offset)
        self._step(f"write {self._paths[fd].name}")

    def allocate(self, fd: int, size: int) -> None:
        super().allocate(fd, size)
        self._step(f"allocate {self._paths[fd].name}")

    def truncate(self, fd: int, size: int) -> None:
        super().truncate(fd, size)
        self._step(f"truncate {self._paths[fd].name}")

    def fdatasync(self, fd: int) -> None:
        super().fdatasync(fd)
        self._synced(fd)

    def fsync(self, fd: int) -> None:
        super().fsync(fd)
        self._synced(fd)

    def _synced(self, fd: int) -> None:
        path = self._paths[fd]
        with self._lock:
            self._content[path] = path.read_bytes()
        self._step(f"sync {path.name}")

    def sync_directory(self, path: Path) -> None:
        super().sync_directory(path)
        with self._lock:
            self._names = {name for name in self._names if name.parent != path}
            self._names.update(path.iterdir())
        self._step(f"sync directory {path.name}")

    def sync_file_system(self, fd: int) -> None:
        super().sync_file_system(fd)
        with self._lock:
            self._names = set(self._root.rglob("*"))
            self._content.update((path, path.read_bytes()) for path in self._names if path.is_file())
        self._step("sync file system")

    def make_directory(self, path: Path) -> bool:
        made = super().make_directory(path)
        self._step(f"make {path.name}")
        return made

    def unlink(self, path: Path) -> None:
        super().unlink(path)
        with self._lock:
            self._names.discard(path)
        self._step(f"unlink {path.name}")


class FailingFileSystem(FileSystem):
    """Fails writes or syncs of files with a suffix, once told to."""

    def __init__(self, suffix: str) -> None:
        self._suffix = suffix
        self._paths: dict[int, Path] = {}
        self.fail_write: OSError | None = None
        self.fail_sync: OSError | None = None
        self.syncs = 0

    def open(self, path: Path, flags: int) -> int:
        fd = super().open(path, flags)
        self._paths[fd] = path
        return fd

    def pwrite(self, fd: int, data: bytes, offset: int) -> None:
        if self.fail_write and self._paths[fd].name.endswith(self._suffix):
            raise self.fail_write
        super().pwrite(fd, data, offset)

    def fdatasync(self, fd: int) -> None:
        if self._paths[fd].name.endswith(self._suffix):
            self.syncs += 1
            if self.fail_sync:
                raise self.fail_sync
        super().fdatasync(fd)
