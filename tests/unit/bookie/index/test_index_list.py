"""S8: an index file that is gone, or an older copy of itself, is never taken for "there is no such ledger or entry"."""

from __future__ import annotations

import errno
import os
import random
import shutil
from array import array
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest

from bookgate.bookie.index import file_format, index_list
from bookgate.bookie.index.file_index import MOST_LOST, LedgerCache
from bookgate.bookie.index.index_list import LIST_FILE, SCOPED_LIST_FILE, IndexList, IndexLists
from bookgate.bookie.storage.storage import LedgerStorage
from bookgate.bookie.storage_events import Retry
from bookgate.bookie.system.data_loss import LostDataException
from bookgate.bookie.system.files import REAL_FILE_SYSTEM, FileSystem, StorageCorruptException
from bookgate.ledger.errors import DataUnknownException
from bookgate.ledger.ledger_id import LedgerId
from bookgate.ledger.wire.messages import Status
from tests.faults.memory_disk import MemoryDisk, Operation, everything_survives, nothing_survives
from tests.unit.bookie.storage.storage_support import (
    KEY,
    Acknowledgements,
    FullFor,
    OpenStorage,
    opened,
    packet,
    refuse_room,
    small_config,
)


def index_path(root: Path, number: int) -> Path:
    return root / "ledgers/current" / file_format.relative_path(LedgerId.unscoped(number))


def listed(root: Path) -> IndexList:
    found = IndexList(REAL_FILE_SYSTEM, root / "ledgers" / LIST_FILE)
    assert found.load()
    return found


# The list itself


def test_a_list_read_again_is_what_was_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Additions, removals and removals taken back in any order, over many processes and rewritings."""
    monkeypatch.setattr(index_list, "_MANY_CHANGES", 20)
    rng = random.Random(4)
    path = tmp_path / LIST_FILE
    ours = IndexList(REAL_FILE_SYSTEM, path)
    assert not ours.load()
    ours.begin_anew(array("q", [2, 5]))
    expected = {2: 0, 5: 0}
    for _ in range(300):
        for number in rng.sample(range(40), 5):
            ours.updated(number, ours.generation)
            expected[number] = ours.generation
        before = ours.generation
        ours.sync()
        assert ours.generation > before
        gone = rng.sample(range(40), 4)
        removed = ours.remove(gone)
        assert removed == {number: expected.pop(number) for number in gone if number in expected}
        kept = {number: removed[number] for number in list(removed)[:1]}
        ours.put_back(kept)
        ours.sync()
        expected |= kept
        if rng.random() < 0.3:
            ours = IndexList(REAL_FILE_SYSTEM, path)
            assert ours.load()
            assert ours.generation > max(expected.values())
        assert list(ours.numbers()) == sorted(expected)
        assert {number: ours.generation_of(number) for number in range(40)} == {
            number: expected.get(number) for number in range(40)
        }
    assert len(path.read_bytes().rstrip(b"\0")) < 16 * 200


@pytest.mark.parametrize("size", range(60, 144, 7))
def test_what_follows_a_frame_that_is_not_whole_does_not_count(tmp_path: Path, size: int) -> None:
    """Nor when what is written there later ends where an old frame begins."""
    path = tmp_path / LIST_FILE
    ours = IndexList(REAL_FILE_SYSTEM, path)
    ours.begin_anew(array("q", [1, 2]))
    for number in (3, 4, 5):
        ours.updated(number, ours.generation)
        ours.sync()
    whole = path.read_bytes()
    damaged = bytearray(whole)
    damaged[size] ^= 1
    path.write_bytes(damaged)
    kept = [number for number, end in ((3, 80), (4, 112), (5, 144)) if size >= end]
    again = IndexList(REAL_FILE_SYSTEM, path)
    assert again.load()
    assert list(again.numbers()) == [1, 2, *kept]
    again.updated(9, again.generation)
    again.sync()
    last = IndexList(REAL_FILE_SYSTEM, path)
    assert last.load()
    assert list(last.numbers()) == [1, 2, *kept, 9]


def test_a_list_whose_new_name_may_not_be_durable_is_written_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is added to it must not stand where the old, longer file ended."""
    monkeypatch.setattr(index_list, "_MANY_CHANGES", 3)
    disk = MemoryDisk(tmp_path)
    ours = IndexList(disk, tmp_path / LIST_FILE)
    ours.begin_anew(array("q", [1, 2]))
    refused: list[Path] = []

    def refuse(path: Path) -> None:
        if path == tmp_path or (refused and path.name.endswith(".new")):
            refused.append(path)
            raise OSError(errno.EMFILE, "Too many open files", str(path))

    disk.on_opening = refuse
    while not refused:
        ours.updated(3, ours.generation)
        ours.sync()
    with pytest.raises(OSError, match="Too many open files"):
        ours.remove([1])
    disk.on_opening = lambda path: None
    left = IndexList(disk.after_power_loss(everything_survives), ours.path)
    assert left.load()
    assert list(left.numbers()) == list(ours.numbers()) == [1, 2, 3]
    ours.remove([2])
    for survival in (everything_survives, nothing_survives):
        left = IndexList(disk.after_power_loss(survival), ours.path)
        assert left.load()
        assert list(left.numbers()) == [1, 3]


class TakingWhatIsAllocated(MemoryDisk):
    """Counts allocated space as used."""

    def allocate(self, fd: int, size: int) -> None:
        end = self.size(fd)
        self.pwrite(fd, bytes(size - end), end)


@pytest.mark.parametrize("changed", [0, 2500])
def test_removals_need_no_room_on_a_full_disk(tmp_path: Path, changed: int) -> None:
    """Neither after the list was written anew, nor after changes that took what was allocated then."""
    disk = TakingWhatIsAllocated(tmp_path, capacity=1 << 20)
    ours = IndexList(disk, tmp_path / LIST_FILE)
    ours.begin_anew(array("q", range(1500)))
    for number in range(5000, 5000 + changed):
        ours.updated(number, ours.generation)
    ours.sync()
    fill(disk, tmp_path / "filler")
    for first in range(0, 1000, 100):
        ours.remove(range(first, first + 100))
    left = IndexList(disk, ours.path)
    assert left.load()
    assert list(left.numbers()) == [*range(1000, 1500), *range(5000, 5000 + changed)]


def fill(disk: MemoryDisk, path: Path) -> None:
    filler = disk.open(path, os.O_RDWR | os.O_CREAT)
    with suppress(OSError):
        while True:
            disk.pwrite(filler, bytes(4096), disk.size(filler))
    disk.close(filler)


def test_a_removal_that_fails_for_ledgers_with_a_scope_removes_no_others(tmp_path: Path) -> None:
    disk = MemoryDisk(tmp_path)
    ours = IndexLists(disk, tmp_path)
    scoped = 5 << 64 | 7
    for each in ours.parts:
        each.begin_anew(array("q"))
    for number in (1, 2, scoped):
        ours.updated(number, 1)
    ours.sync()

    def is_full(operation: Operation) -> None:
        if operation.path.name == SCOPED_LIST_FILE:
            refuse_room()

    disk.on_operation = is_full
    with pytest.raises(OSError, match="no room left"):
        ours.remove([1, scoped])
    disk.on_operation = lambda operation: None
    ours.sync()
    left = IndexList(disk, tmp_path / LIST_FILE)
    assert left.load()
    assert list(left.numbers()) == [1, 2]


# A bookie with a damaged index


def two_ledgers(root: Path) -> None:
    with opened(root) as bookie:
        bookie.add(1, 0, 1)
        bookie.add(2, 0)


def assert_unknown(root: Path, number: int) -> None:
    """Through two starts, and also once something new has come."""
    for again in range(2):
        with opened(root) as bookie:
            ledger = bookie.ledger(number)
            assert bookie.storage.limbo() == [number]
            with pytest.raises(DataUnknownException):
                bookie.storage.reader.read_entry(ledger, 1)
            assert ledger.check_add(KEY, recovery=False) is not Status.EOK
            if not again:
                bookie.add(number, 7)
                bookie.storage.checkpoint()


def test_a_ledger_whose_index_file_is_gone_is_in_limbo_until_verified(tmp_path: Path) -> None:
    two_ledgers(tmp_path)
    index_path(tmp_path, 1).unlink()
    assert_unknown(tmp_path, 1)
    with opened(tmp_path) as bookie:
        assert bookie.storage.reader.read_entry(bookie.ledger(2), 0) == packet(2, 0)
        bookie.storage.leave_limbo([1])
    with opened(tmp_path) as bookie:
        assert bookie.storage.limbo() == []


def older_by_an_entry(bookie: OpenStorage) -> None:
    bookie.add(1, 1)


def older_by_a_hole_that_was_filled(bookie: OpenStorage) -> None:
    bookie.add(1, 3)


def older_by_a_fence(bookie: OpenStorage) -> None:
    bookie.fence(1)


@pytest.mark.parametrize("change", [older_by_an_entry, older_by_a_hole_that_was_filled, older_by_a_fence])
def test_a_ledger_whose_index_file_is_an_older_copy_is_in_limbo(
    tmp_path: Path, change: Callable[[OpenStorage], None]
) -> None:
    with opened(tmp_path) as bookie:
        bookie.add(1, 0, 5)
    old = index_path(tmp_path, 1).read_bytes()
    with opened(tmp_path) as bookie:
        change(bookie)
    index_path(tmp_path, 1).write_bytes(old)
    if change is older_by_an_entry:
        assert_unknown(tmp_path, 1)
    with opened(tmp_path) as bookie:
        assert bookie.ledger(1).fenced
        assert bookie.storage.limbo() == [1]


def test_an_older_copy_is_known_also_after_a_compaction_has_written_to_it(tmp_path: Path) -> None:
    with opened(tmp_path) as bookie:
        bookie.add(1, 0)
    old = index_path(tmp_path, 1).read_bytes()
    with opened(tmp_path) as bookie:
        bookie.add(1, 1)
    index_path(tmp_path, 1).write_bytes(old)
    with opened(tmp_path) as bookie, bookie.storage.exclusive():
        index = bookie.storage.stores[0].index
        ledger_id = LedgerId.unscoped(1)
        index.update(ledger_id, None, file_format.slot_runs([0], [index.location(ledger_id, 0)]))
        index.sync()
    assert_unknown(tmp_path, 1)


def test_an_index_file_that_lost_its_header_is_an_error(tmp_path: Path) -> None:
    two_ledgers(tmp_path)
    index_path(tmp_path, 1).write_bytes(b"")
    with opened(tmp_path) as bookie, pytest.raises(OSError, match="has lost its header"):
        bookie.storage.ledgers.get(LedgerId.unscoped(1))


def test_an_index_that_is_gone_as_a_whole_refuses_the_start_and_changes_nothing(tmp_path: Path) -> None:
    count = MOST_LOST + 1
    with opened(tmp_path) as bookie:
        for number in range(count):
            bookie.add(number, 0)
    for number in range(count):
        index_path(tmp_path, number).unlink()
    for _ in range(2):
        with pytest.raises(LostDataException, match=f"of {count} index files .* {count} are missing .*--accept-loss"):
            OpenStorage(tmp_path)
    storage = LedgerStorage(small_config(tmp_path), Acknowledgements())
    storage.open(accept_loss=[500])
    assert storage.limbo() == [*range(count), 500]
    storage.close()


# What is no loss


def test_deleted_ledgers_are_not_missed(tmp_path: Path) -> None:
    two_ledgers(tmp_path)
    with opened(tmp_path) as bookie:
        assert bookie.storage.delete_ledgers([1, 99]) == [1, 99]
        bookie.add(3, 0)
    assert list(listed(tmp_path).numbers()) == [2, 3]
    with opened(tmp_path) as bookie:
        assert bookie.storage.limbo() == []


def test_a_ledger_that_was_not_deleted_after_all_is_missed_as_before(tmp_path: Path) -> None:
    two_ledgers(tmp_path)
    before = listed(tmp_path).generation_of(1)
    with opened(tmp_path) as bookie:
        with bookie.storage.watch_writes([1, 2]):
            bookie.add(1, 2)
            assert bookie.storage.delete_ledgers([1, 2], unwritten=True) == [2]
        again = listed(tmp_path)
        assert list(again.numbers()) == [1]
        assert (again.generation_of(1) or 0) >= (before or 0)
    index_path(tmp_path, 1).unlink()
    assert_unknown(tmp_path, 1)


def test_a_ledger_that_was_kept_is_missed_as_before_also_where_another_deletion_failed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    two_ledgers(tmp_path)
    with opened(tmp_path) as bookie:
        with bookie.storage.watch_writes([1, 2]), monkeypatch.context() as patch:
            bookie.add(2, 2)
            refuse_unlinks(patch, index_path(tmp_path, 1))
            with pytest.raises(OSError, match="Too many open files"):
                bookie.storage.delete_ledgers([1, 2], unwritten=True)
        bookie.storage.checkpoint()
        assert list(listed(tmp_path).numbers()) == [1, 2]
    index_path(tmp_path, 2).unlink()
    assert_unknown(tmp_path, 2)


def refuse_unlinks(patch: pytest.MonkeyPatch, refused: Path) -> None:
    """As where there is no descriptor left for the deletion of this file."""
    unlink = FileSystem.unlink

    def refuse(files: FileSystem, path: Path) -> None:
        if path == refused:
            raise OSError(errno.EMFILE, "Too many open files", str(path))
        unlink(files, path)

    patch.setattr(FileSystem, "unlink", refuse)


def test_a_ledger_that_is_deleted_after_a_flush_that_found_no_space_is_not_missed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The flush had written the beginning of its file, which was not in the list yet."""
    monkeypatch.setattr(Acknowledgements, "not_stored", lambda *arguments: Retry.WITH_SPACE)
    with opened(tmp_path) as bookie:
        bookie.add(1, 0)
        with monkeypatch.context() as patch:
            patch.setattr(LedgerCache, "sync", refuse_room)
            with pytest.raises(OSError, match="no room left"):
                bookie.storage.checkpoint()
        bookie.storage.delete_ledgers([1])
        bookie.add(2, 0)
    assert list(listed(tmp_path).numbers()) == [2]
    with opened(tmp_path) as bookie:
        assert bookie.storage.limbo() == []


@pytest.mark.parametrize("number", [7, 5 << 64 | 7])
def test_a_file_that_a_flush_has_made_without_room_for_its_header_does_not_stay(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    """The journal has refused all of its ledger, so that no replay writes the header."""
    monkeypatch.setattr(Acknowledgements, "not_stored", lambda *arguments: Retry.WITH_SPACE)
    alive, killed = tmp_path / "alive", tmp_path / "killed"
    files = FullFor(lambda path: path.suffix in (".txn", ".idx"))
    with opened(alive, files) as bookie:
        bookie.add(1, 0)
        bookie.storage.checkpoint()
        files.full = True
        bookie.writer.add_entry(bookie.ledger(number), 0, packet(number, 0), "refused")
        with pytest.raises(OSError, match="no room left"):
            bookie.storage.checkpoint()
        shutil.copytree(alive, killed)
        files.full = False
    name = file_format.relative_path(LedgerId.of_number(number))
    assert (killed / "ledgers/current" / name).read_bytes() == b""
    with opened(killed) as bookie:
        assert bookie.storage.ledgers.get(LedgerId.of_number(number)) is None
        bookie.add(number, 1)
    with opened(killed) as bookie:
        assert list(bookie.storage.reader.entry_ids(bookie.ledger(number))) == [(1, 1)]
        assert bookie.storage.limbo() == []


def test_files_without_header_stay_where_no_list_proves_that_they_were_never_synced(tmp_path: Path) -> None:
    two_ledgers(tmp_path)
    index_path(tmp_path, 1).write_bytes(bytes(2048))
    index_path(tmp_path, 7).parent.mkdir(parents=True, exist_ok=True)
    index_path(tmp_path, 7).write_bytes(bytes(2048))
    (tmp_path / "ledgers" / LIST_FILE).unlink()
    with opened(tmp_path) as bookie:
        for number in (1, 7):
            with pytest.raises(StorageCorruptException, match="has no header"):
                bookie.storage.ledgers.get(LedgerId.unscoped(number))


def test_after_another_bookie_was_on_the_directories_the_list_is_begun_anew(tmp_path: Path) -> None:
    """Apache BookKeeper's bookie collects, makes and changes index files, and writes marks without seal."""
    two_ledgers(tmp_path)
    old = index_path(tmp_path, 2).read_bytes()
    with opened(tmp_path) as bookie:
        bookie.add(2, 1)
    mark = tmp_path / "ledgers/current/lastMark"
    mark.write_bytes(mark.read_bytes()[:16])
    index_path(tmp_path, 1).unlink()
    index_path(tmp_path, 2).write_bytes(old)
    with opened(tmp_path) as bookie:
        assert not bookie.ledger(2).limbo
        assert bookie.storage.limbo() == []
        assert list(listed(tmp_path).numbers()) == [2]
    index_path(tmp_path, 2).unlink()
    assert_unknown(tmp_path, 2)


@pytest.mark.parametrize("damage", [b"", b"BGLS", None])
def test_a_list_that_is_gone_or_damaged_is_made_anew(tmp_path: Path, damage: bytes | None) -> None:
    two_ledgers(tmp_path)
    path = tmp_path / "ledgers" / LIST_FILE
    path.unlink() if damage is None else path.write_bytes(damage)
    with opened(tmp_path) as bookie:
        assert bookie.storage.limbo() == []
    assert list(listed(tmp_path).numbers()) == [1, 2]


def test_without_room_for_it_the_old_list_stays_or_a_checkpoint_makes_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An old list that does not count any more is gone all the same: the marks would vouch for it soon."""
    monkeypatch.setattr(index_list, "_MANY_CHANGES", 1)
    disk = MemoryDisk(tmp_path)
    path = tmp_path / LIST_FILE
    ours = IndexList(disk, path)
    ours.begin_anew(array("q", [1]))

    def is_full(operation: Operation) -> None:
        if operation.path.suffix == ".new" and operation.kind in ("create", "write"):
            raise OSError(errno.ENOSPC, "full", str(operation.path))

    disk.on_operation = is_full
    ours.updated(2, ours.generation)
    ours.updated(3, ours.generation)
    ours.sync()
    again = IndexList(disk, path)
    assert again.load()
    assert list(again.numbers()) == [1, 2, 3]
    again.begin_anew(array("q", [7]))
    assert not disk.exists(path)
    again.updated(8, again.generation)
    with pytest.raises(OSError, match="full"):
        again.sync()
    disk.on_operation = lambda operation: None
    again.sync()
    last = IndexList(disk, path)
    assert last.load()
    assert list(last.numbers()) == [7, 8]
