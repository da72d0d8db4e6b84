"""Entries of entry logs that are served without waiting for the disk: what the index points to, or nothing."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from bookgate.bookie.index.file_format import MAX_ENTRY_ID, SLOTS_PER_PAGE
from bookgate.bookie.system.files import REAL_FILE_SYSTEM, FileSystem, StorageCorruptException
from tests.unit.bookie.entry_logs.test_read_ahead import filled
from tests.unit.bookie.storage.storage_support import OpenStorage, packet

COUNT = 200


class Disk(FileSystem):
    """Counts what needs the disk; `absent` is what it does not have in memory."""

    def __init__(self) -> None:
        self.reads = 0
        self.in_memory = 0
        self.absent = False
        self.most = 1 << 30

    def pread(self, fd: int, size: int, offset: int) -> bytes:
        self.reads += 1
        return super().pread(fd, size, offset)

    def pread_in_memory(self, fd: int, buffer: memoryview, offset: int) -> int:
        self.in_memory += 1
        data = b"" if self.absent else super().pread(fd, min(len(buffer), self.most), offset)
        buffer[: len(data)] = data
        return len(data)


def touched(root: Path, disk: Disk, **changes: int) -> OpenStorage:
    """A bookie that has the index page and the log open, since it was asked before."""
    bookie = filled(root, disk, COUNT, **changes)
    bookie.storage.reader.read_entry(bookie.ledger(1), 0)
    bookie.storage.reader.read_entry(bookie.ledger(2), 0)
    disk.reads = 0
    return bookie


def in_memory(bookie: OpenStorage, ledger: int, entry_id: int) -> bytes | None:
    packets = bookie.storage.reader.read_in_memory(bookie.ledger(ledger), entry_id, 1)
    return packets[0] if packets else None


@pytest.mark.parametrize("read_ahead_bytes", [0, 1 << 20])
def test_every_entry_is_found_without_the_disk(tmp_path: Path, read_ahead_bytes: int) -> None:
    disk = Disk()
    bookie = touched(tmp_path, disk, read_ahead_bytes=read_ahead_bytes)
    for ledger in (1, 2):
        for entry_id in (*range(COUNT), *range(COUNT - 1, 0, -7)):
            assert in_memory(bookie, ledger, entry_id) == packet(ledger, entry_id, 100)
    assert disk.reads == 0
    assert disk.in_memory < (2 * COUNT if read_ahead_bytes else 1 << 30), "what stands behind an entry is read with it"
    bookie.storage.close()


def test_what_is_not_in_memory_is_nothing(tmp_path: Path) -> None:
    disk = Disk()
    bookie = touched(tmp_path, disk, read_ahead_bytes=0)
    disk.absent = True
    assert in_memory(bookie, 1, 3) is None
    assert bookie.storage.reader.read_entry(bookie.ledger(1), 3) == packet(1, 3, 100)
    bookie.storage.close()


def test_a_part_of_an_entry_is_nothing(tmp_path: Path) -> None:
    disk = Disk()
    bookie = touched(tmp_path, disk, read_ahead_bytes=0)
    disk.most = 100
    assert in_memory(bookie, 1, 3) is None
    disk.most = 3
    assert in_memory(bookie, 1, 3) is None
    bookie.storage.close()


def test_an_index_page_that_nobody_read_is_left_to_the_disk(tmp_path: Path) -> None:
    disk = Disk()
    bookie = filled(tmp_path, disk, COUNT)
    assert in_memory(bookie, 1, 3) is None
    bookie.storage.reader.read_entry(bookie.ledger(1), 0)
    assert in_memory(bookie, 1, 3) == packet(1, 3, 100)
    bookie.storage.close()


@pytest.mark.parametrize("entry_id", [COUNT, SLOTS_PER_PAGE, MAX_ENTRY_ID, MAX_ENTRY_ID + 1, 2**63 - 1])
def test_an_entry_that_is_not_held_is_nothing(tmp_path: Path, entry_id: int) -> None:
    bookie = touched(tmp_path, Disk())
    assert in_memory(bookie, 1, entry_id) is None
    bookie.storage.close()


def test_a_damaged_record_is_left_to_who_can_say_so(tmp_path: Path) -> None:
    bookie = touched(tmp_path, Disk(), read_ahead_bytes=0)
    [log] = tmp_path.rglob("*.log")
    data = log.read_bytes()
    place = data.index(packet(1, 3, 100))
    with log.open("r+b") as file:
        file.seek(place + 8)
        file.write(b"\x7f")
    assert in_memory(bookie, 1, 3) is None
    with pytest.raises(StorageCorruptException):
        bookie.storage.reader.read_entry(bookie.ledger(1), 3)
    assert in_memory(bookie, 1, 4) == packet(1, 4, 100)
    bookie.storage.close()


def run_in_memory(bookie: OpenStorage, first_entry_id: int, count: int) -> list[bytes]:
    return bookie.storage.reader.read_in_memory(bookie.ledger(1), first_entry_id, count)


def test_a_run_is_read_at_once(tmp_path: Path) -> None:
    disk = Disk()
    bookie = touched(tmp_path, disk, read_ahead_bytes=0)
    for first in (0, 7, COUNT - 30):
        disk.in_memory = 0
        assert run_in_memory(bookie, first, 30) == [packet(1, each, 100) for each in range(first, first + 30)]
        assert disk.in_memory == 1
    assert run_in_memory(bookie, COUNT - 3, 30) == [packet(1, each, 100) for each in range(COUNT - 3, COUNT)]
    assert disk.reads == 0
    bookie.storage.close()


@pytest.mark.parametrize("most", [3, 100, 1500])
def test_of_a_run_what_is_in_memory_is_read(tmp_path: Path, most: int) -> None:
    disk = Disk()
    bookie = touched(tmp_path, disk, read_ahead_bytes=0)
    disk.most = most
    found = run_in_memory(bookie, 5, 30)
    assert found == [packet(1, each, 100) for each in range(5, 5 + len(found))]
    assert len(found) < 30
    assert (len(found) > 0) == (most == 1500)
    bookie.storage.close()


def test_a_run_ends_before_a_damaged_record_and_before_what_the_write_cache_has(tmp_path: Path) -> None:
    bookie = touched(tmp_path, Disk(), read_ahead_bytes=0)
    [log] = tmp_path.rglob("*.log")
    place = log.read_bytes().index(packet(1, 9, 100))
    with log.open("r+b") as file:
        file.seek(place + 8)
        file.write(b"\x7f")
    assert run_in_memory(bookie, 4, 30) == [packet(1, each, 100) for each in range(4, 9)]
    bookie.add(1, 6, size=50)
    assert run_in_memory(bookie, 4, 30) == [packet(1, 4, 100), packet(1, 5, 100)]
    assert run_in_memory(bookie, 6, 30) == []
    assert bookie.storage.reader.read_cached_run(bookie.ledger(1), 6, 30) == [packet(1, 6, 50)]
    assert bookie.storage.reader.read_cached_run(bookie.ledger(1), 5, 30) == []
    bookie.storage.close()


def scattered(bookie: OpenStorage, *entry_ids: int) -> tuple[list[bytes], int]:
    return bookie.storage.reader.read_scattered_in_memory(bookie.ledger(1), entry_ids)


def test_scattered_entries_are_found_without_the_disk(tmp_path: Path) -> None:
    disk = Disk()
    bookie = touched(tmp_path, disk)
    asked = (7, 3, COUNT - 1, 3, 0, 50, 48)
    disk.in_memory = 0
    assert scattered(bookie, *asked) == ([packet(1, each, 100) for each in asked], 0)
    assert (disk.reads, disk.in_memory) == (0, len(asked))
    bookie.storage.close()


def test_scattered_entries_of_any_size(tmp_path: Path) -> None:
    """Those too large for one small read end it, and are left to others."""
    disk = Disk()
    bookie = touched(tmp_path, disk)
    sizes = [100, 20, 3000, 5, 7000, 7000, 8100, 40, 9000, 100]
    for index, size in enumerate(sizes):
        bookie.add(1, COUNT + index, size=size)
    bookie.storage.checkpoint()
    bookie.storage.reader.read_entry(bookie.ledger(1), COUNT)
    packets = [packet(1, COUNT + index, size) for index, size in enumerate(sizes)]
    order = [1, 0, 3, 2, 5, 4, 7, 6, 9, 8, 0]
    found, _ = scattered(bookie, *(COUNT + index for index in order))
    assert found == [packets[index] for index in order[:9]]
    assert scattered(bookie, COUNT + 8, COUNT) == ([], 0)
    bookie.storage.close()


def test_scattered_entries_end_before_what_is_not_held_damaged_or_not_in_memory(tmp_path: Path) -> None:
    disk = Disk()
    bookie = touched(tmp_path, disk, read_ahead_bytes=0)
    assert scattered(bookie, 5, 3, COUNT, 4) == ([packet(1, 5, 100), packet(1, 3, 100)], 0)
    assert scattered(bookie, 5, MAX_ENTRY_ID, 4) == ([packet(1, 5, 100)], 0)
    [log] = tmp_path.rglob("*.log")
    place = log.read_bytes().index(packet(1, 9, 100))
    with log.open("r+b") as file:
        file.seek(place + 8)
        file.write(b"\x7f")
    assert scattered(bookie, 12, 8, 9, 10) == ([packet(1, 12, 100), packet(1, 8, 100)], 0)
    for disk.most in (100, 3):
        assert scattered(bookie, 5, 3) == ([], 0)
    disk.absent = True
    assert scattered(bookie, 5, 3) == ([], 0)
    bookie.storage.close()


def test_scattered_entries_are_the_newest_that_the_write_cache_has(tmp_path: Path) -> None:
    bookie = touched(tmp_path, Disk())
    bookie.add(1, 6, 9, size=50)
    new = {6: packet(1, 6, 50), 9: packet(1, 9, 50)}
    asked = (12, 9, 3, 6, 30)
    assert scattered(bookie, *asked) == ([new.get(each, packet(1, each, 100)) for each in asked], 2)
    assert scattered(bookie, 9, COUNT, 6) == ([new[9]], 1)
    bookie.storage.close()


def test_the_file_system_says_what_it_has_in_memory(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"0123456789")
    fd = os.open(path, os.O_RDONLY)
    buffer = bytearray(4)
    assert REAL_FILE_SYSTEM.pread_in_memory(fd, memoryview(buffer), 2) in (0, 4)
    assert buffer in (b"2345", bytes(4))
    assert REAL_FILE_SYSTEM.pread_in_memory(fd, memoryview(buffer), 8) in (0, 2)
    assert buffer[:2] in (b"89", b"23", bytes(2))
    os.close(fd)
    assert REAL_FILE_SYSTEM.pread_in_memory(fd, memoryview(buffer), 2) == 0, "what is wrong `pread` says"
    with pytest.raises(OSError, match=os.strerror(errno.EBADF)):
        REAL_FILE_SYSTEM.pread(fd, 4, 2)
