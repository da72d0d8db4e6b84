"""Index files as a process writes them: what it remembers of a file must be what the file has."""

from __future__ import annotations

import errno
import os
import random
from pathlib import Path

import pytest

from bookgate.bookie.index import file_format, seals
from bookgate.bookie.index.file_format import IndexHeader, slot_runs
from bookgate.bookie.index.file_index import LedgerCache
from bookgate.bookie.index.index_list import IndexLists
from bookgate.bookie.system.data_loss import refuse_loss
from bookgate.bookie.system.files import FileSystem
from bookgate.ledger.ledger_id import LedgerId
from tests.faults.memory_disk import MemoryDisk, Operation, nothing_survives


class FullNowAndThen(MemoryDisk):
    """Some writes and syncs find no space, the same ones for the same seed."""

    def __init__(self, *roots: Path, seed: int) -> None:
        super().__init__(*roots)
        self._choice = random.Random(seed)

    def _may_fail(self) -> None:
        if self._choice.random() < 0.03:
            raise OSError(errno.ENOSPC, "no space")

    def pwrite(self, fd: int, data: bytes, offset: int) -> None:
        self._may_fail()
        super().pwrite(fd, data, offset)

    def fdatasync(self, fd: int) -> None:
        self._may_fail()
        super().fdatasync(fd)


@pytest.mark.parametrize("seed", range(12))
def test_what_is_remembered_of_files_is_what_they_have(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    """Whether all is remembered, little or nothing: the same is written, also when space runs out in between."""
    written = []
    for most in (16_384, 2, 0):
        monkeypatch.setattr(seals, "_MOST_REMEMBERED", most)
        written.append(files_after(tmp_path, seed))
    assert written[0] == written[1] == written[2]


def files_after(root: Path, seed: int) -> dict[Path, bytes]:
    """What many updates, deletions and syncs leave."""
    choice = random.Random(seed)
    disk = FullNowAndThen(root, root / "current", seed=seed)
    cache = LedgerCache(disk, [root / "current"], 1 << 20, listed=IndexLists(disk, root))
    cache.find_lost(False, refuse_loss)
    for step in range(150):
        number = choice.randrange(6)
        header, first, count = choice.random() < 0.5, choice.randrange(50), choice.randrange(4)
        runs = slot_runs(range(first, first + count), [7 << 32 | step] * count)
        what = choice.random()
        new = IndexHeader(b"key", choice.random() < 0.5, bytes(400) if choice.random() < 0.1 else None)
        try:
            if what < 0.7:
                has_file = disk.exists(root / "current" / file_format.relative_path(LedgerId.unscoped(number)))
                cache.update(LedgerId.unscoped(number), new if header or not has_file else None, runs)
            elif what < 0.95:
                cache.sync()
            else:
                cache.delete(LedgerId.unscoped(number))
        except OSError as error:
            if error.errno != errno.ENOSPC:
                raise
    cache.close()
    return {path: disk.content(path) for path in disk.files(root)}


@pytest.mark.parametrize("listed", [True, False], ids=["with a list", "without"])
@pytest.mark.parametrize("key", [b"k" * 20, b"k" * 900], ids=["sealed", "no room for a seal"])
def test_moved_slots_bring_header_and_name_to_the_disk_that_only_memory_showed(
    tmp_path: Path, key: bytes, listed: bool
) -> None:
    """A sync fails, and its process ends; the next one finds the file in memory, and moves its entry."""
    disk = MemoryDisk(tmp_path / "current")
    ledger_id, header = LedgerId.unscoped(1), IndexHeader(key, True, None)

    def cache_of(files: MemoryDisk) -> LedgerCache:
        index_list = IndexLists(files, tmp_path) if listed else None
        cache = LedgerCache(files, [tmp_path / "current"], 1 << 20, listed=index_list)
        assert cache.find_lost(True, refuse_loss) == []
        return cache

    def fail(operation: Operation) -> None:
        if operation.kind.startswith("sync"):
            raise OSError(errno.EIO, "told to fail", str(operation.path))

    first = cache_of(disk)
    first.update(ledger_id, header, slot_runs([1], [4]))
    disk.on_operation = fail
    with pytest.raises(OSError, match="told to fail"):
        first.sync()
    first.close()
    disk.on_operation = lambda operation: None
    disk.start_again()
    second = cache_of(disk)
    second.update(ledger_id, None, slot_runs([1], [5]))
    second.sync()
    third = cache_of(disk.after_power_loss(nothing_survives))
    assert third.read_header(ledger_id) == (header, 1)
    assert third.location(ledger_id, 1) == 5


class CountingReads(FileSystem):
    def __init__(self) -> None:
        self.reads = 0

    def pread(self, fd: int, size: int, offset: int) -> bytes:
        self.reads += 1
        return super().pread(fd, size, offset)


def test_the_last_entry_in_front_of_a_huge_hole_is_found_by_a_few_reads(tmp_path: Path) -> None:
    """As a loss of power leaves a file whose last page never came to the disk, though its size did."""
    (tmp_path / "current").mkdir()
    files, ledger_id = CountingReads(), LedgerId.unscoped(1)

    def cache() -> LedgerCache:
        return LedgerCache(files, [tmp_path / "current"], 1 << 20)

    writing = cache()
    writing.update(ledger_id, IndexHeader(b"k" * 20, False, None), slot_runs([0, 1, 2], [7, 8, 9]))
    writing.sync()
    writing.close()
    os.truncate(tmp_path / "current" / file_format.relative_path(ledger_id), 1 << 40)
    files.reads = 0
    found = cache().read_header(ledger_id)
    assert found is not None
    assert found[1] == 2
    assert files.reads < 10


def test_updates_that_fail_leave_no_file_open_and_are_synced_with_the_rest(tmp_path: Path) -> None:
    """On a full disk a checkpoint is repeated for as long as that lasts."""
    disk = MemoryDisk(tmp_path, tmp_path / "current")
    ledger, path = LedgerId.unscoped(1), tmp_path / "current" / file_format.relative_path(LedgerId.unscoped(1))

    def full(operation: Operation) -> None:
        if operation.kind == "write" and operation.path == path:
            raise OSError(errno.ENOSPC, "no space")

    cache = LedgerCache(disk, [tmp_path / "current"], 1 << 20, listed=IndexLists(disk, tmp_path))
    cache.update(ledger, IndexHeader(b"key", False, None), slot_runs([0], [7 << 32 | 10]))
    cache.sync()
    cache.update(ledger, None, slot_runs([1], [7 << 32 | 20]))
    disk.on_operation = full
    for _ in range(300):
        with pytest.raises(OSError, match="no space"):
            cache.update(ledger, None, slot_runs([2], [7 << 32 | 30]))
        assert path not in disk.open_paths
    disk.on_operation = lambda operation: None
    cache.sync()
    left = disk.after_power_loss(nothing_survives)
    assert list(LedgerCache(left, [tmp_path / "current"], 1 << 20).entry_ids(ledger)) == [0, 1]
    cache.close()
