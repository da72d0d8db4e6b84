"""Ids of deleted ledgers: what is remembered of them for the record "made anew", and until when."""

from __future__ import annotations

import errno
import shutil
from pathlib import Path
from typing import Any

import pytest

from bookgate.bookie.journal.file import list_journals
from bookgate.bookie.storage.deleted_ids import DeletedIds
from bookgate.bookie.storage_events import Retry
from bookgate.bookie.system.files import REAL_FILE_SYSTEM, FileSystem
from bookgate.ledger.ledger_id import LedgerId
from tests.unit.bookie.storage.storage_support import (
    Acknowledgements,
    OpenStorage,
    opened,
    packet,
    refuse_room,
    refuse_syncs,
)

SCOPED = LedgerId(5, 7)
_SMALL_FILES: dict[str, Any] = {"journal_max_size_bytes": 1000, "journal_pre_alloc_bytes": 1024}


OTHER_KEY = b"other" * 4


def _files(bookie: OpenStorage) -> list[int]:
    return list_journals(REAL_FILE_SYSTEM, bookie.storage.config.journal_directories[0] / "current")


def _roll(bookie: OpenStorage, number: int) -> None:
    """Fills a journal file with a ledger, and makes a checkpoint."""
    file = bookie.storage.synced_marks[0].journal_id
    entry_id = bookie.ledger(number).last_entry_id + 1
    while bookie.storage.synced_marks[0].journal_id == file:
        bookie.add(number, entry_id, size=600)
        entry_id += 1
    bookie.storage.checkpoint()


def test_an_id_is_forgotten_with_the_last_file_that_may_have_records() -> None:
    deleted = DeletedIds()
    for number in (3, 1 << 70):
        deleted.add(number)
    deleted.durable()
    deleted.add(4)
    deleted.forget(0, 1, 9)
    deleted.add(5)
    deleted.forget(0, 9, 9)
    assert [number in deleted for number in (3, 4, 5, 1 << 70)] == [True] * 4
    deleted.forget(0, 10, 12)
    assert [number in deleted for number in (3, 4, 5, 1 << 70)] == [False, True, True, False]
    deleted.durable()
    deleted.forget(0, 12, 12)
    deleted.forget(0, 13, 15)
    assert len(deleted) == 0


def test_an_id_is_discarded_wherever_it_is() -> None:
    deleted = DeletedIds()
    for last_file in (1, 2, 3):
        deleted.add(7)
        deleted.durable()
        deleted.forget(0, 0, last_file)
    deleted.add(7)
    deleted.discard(7)
    assert 7 not in deleted
    deleted.durable()
    assert 7 not in deleted


def test_each_journal_forgets_its_own() -> None:
    deleted = DeletedIds(2)
    for number in (2, 3):
        deleted.add(number)
    deleted.durable()
    deleted.forget(0, 1, 5)
    deleted.forget(1, 1, 5)
    deleted.forget(1, 6, 8)
    assert (2 in deleted, 3 in deleted) == (True, False)


@pytest.mark.parametrize("backups", [0, 5])
@pytest.mark.parametrize("rolls", range(10))
def test_a_ledger_made_anew_has_nothing_of_the_former_one_whatever_journal_files_are_left(
    tmp_path: Path, rolls: int, backups: int
) -> None:
    """Killed, and without its mark, the bookie replays all of them."""
    alive, killed = tmp_path / "alive", tmp_path / "killed"
    with opened(alive, journal_max_backups=backups, **_SMALL_FILES) as bookie:
        bookie.add(SCOPED.number, 0, 1, 2, 3)
        held_by = bookie.storage.synced_marks[0].journal_id
        bookie.storage.delete_ledgers([SCOPED.number])
        for _ in range(rolls):
            _roll(bookie, 1)
        assert bookie.storage.ledgers.is_made_anew(SCOPED) or _files(bookie)[0] > held_by
        bookie.writer.add_entry(bookie.ledger(SCOPED.number), 0, packet(SCOPED.number, 0), "new")
        bookie.acks.wait_for("new")
        shutil.copytree(alive, killed)
    (killed / "ledgers/current/lastMark").write_bytes(b"damaged")
    with opened(killed, **_SMALL_FILES) as bookie:
        assert list(bookie.storage.reader.entry_ids(bookie.ledger(SCOPED.number))) == [(0, 1)]


def test_an_id_whose_deletion_found_no_space_is_not_forgotten_until_it_is_durable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with opened(tmp_path, journal_max_backups=0, **_SMALL_FILES) as bookie:
        bookie.add(SCOPED.number, 0)
        bookie.storage.checkpoint()
        with monkeypatch.context() as patch:
            refuse_syncs(patch, bookie.storage.stores[0].index)
            with pytest.raises(OSError, match="no room left"):
                bookie.storage.delete_ledgers([SCOPED.number])
        for _ in range(10):
            _roll(bookie, 1)
        assert bookie.storage.ledgers.is_made_anew(SCOPED)
        bookie.storage.delete_ledgers([99])
        for _ in range(10):
            _roll(bookie, 1)
        assert not bookie.storage.ledgers.is_made_anew(SCOPED)


class WithoutDescriptors(FileSystem):
    """Opens no directory's file system, or syncs no directory of the journal, while `refuses`."""

    def __init__(self) -> None:
        self.refuses = False
        self.removed: dict[Path, bytes] = {}
        """Journal files whose removal a loss of power may undo."""

    def _need_one(self, path: Path) -> None:
        if self.refuses:
            raise OSError(errno.EMFILE, "Too many open files", str(path))

    def open_file_system(self, path: Path) -> int:
        self._need_one(path)
        return super().open_file_system(path)

    def unlink(self, path: Path) -> None:
        if path.suffix == ".txn":
            self.removed[path] = path.read_bytes()
        super().unlink(path)

    def sync_directory(self, path: Path) -> None:
        self._need_one(path)
        super().sync_directory(path)
        self.removed = {name: content for name, content in self.removed.items() if name.parent != path}


def test_a_ledger_whose_deletion_failed_keeps_what_is_not_flushed(tmp_path: Path) -> None:
    files = WithoutDescriptors()
    with opened(tmp_path, files) as bookie:
        bookie.add(7, *range(10))
        bookie.storage.checkpoint()
        bookie.add(7, 10)
        bookie.fence(7)
        files.refuses = True
        with pytest.raises(OSError, match="Too many open files"):
            bookie.storage.delete_ledgers([7])
        files.refuses = False
        assert not bookie.storage.was_fenced_and_deleted(LedgerId.unscoped(7))
        bookie.add(8, 0)
        bookie.storage.checkpoint()
    with opened(tmp_path) as bookie:
        ledger = bookie.ledger(7)
        assert ledger.fenced
        assert list(bookie.storage.reader.entry_ids(ledger)) == [(0, 11)]


@pytest.mark.parametrize("fences", [False, True])
def test_a_ledger_whose_deletion_failed_keeps_what_it_has(tmp_path: Path, fences: bool) -> None:
    """It is not made anew by what it gets later: a replay would drop what it had before."""
    alive, killed = tmp_path / "alive", tmp_path / "killed"
    files = WithoutDescriptors()
    with opened(alive, files) as bookie:
        bookie.add(7, *range(10))
        bookie.storage.checkpoint()
        files.refuses = True
        with pytest.raises(OSError, match="Too many open files"):
            bookie.storage.delete_ledgers([7])
        files.refuses = False
        assert list(bookie.storage.reader.entry_ids(bookie.ledger(7))) == [(0, 10)]
        if fences:
            bookie.fence(7)
        else:
            bookie.add(7, 10)
        shutil.copytree(alive, killed)
    with opened(killed) as bookie:
        assert list(bookie.storage.reader.entry_ids(bookie.ledger(7))) == [(0, 10 if fences else 11)]


def test_an_id_is_not_forgotten_while_removed_files_may_come_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Acknowledgements, "not_stored", lambda *arguments: Retry.WITH_SPACE)
    alive, dead = tmp_path / "alive", tmp_path / "dead"
    files = WithoutDescriptors()
    # The last file has room for what comes after the removal: a new one would make it durable.
    settings = {**_SMALL_FILES, "journal_max_size_bytes": 4000}
    with opened(alive, files, journal_max_backups=20, **settings) as bookie:
        bookie.add(SCOPED.number, 0, 1, 2, 3)
        bookie.storage.delete_ledgers([SCOPED.number])
        while len(_files(bookie)) < 8:
            _roll(bookie, 1)
        bookie.disks.full_journals = bookie.storage.config.journal_directories
        files.refuses = True
        with pytest.raises(OSError, match="Too many open files"):
            bookie.storage.checkpoint()
        files.refuses = False
        bookie.storage.checkpoint()
        bookie.writer.add_entry(bookie.ledger(SCOPED.number), 0, packet(SCOPED.number, 0), "new")
        bookie.acks.wait_for("new")
        shutil.copytree(alive, dead)
        assert not bookie.storage.ledgers.is_made_anew(SCOPED)
        for path, content in files.removed.items():
            (dead / path.relative_to(alive)).write_bytes(content)
    (dead / "ledgers/current/lastMark").write_bytes(b"damaged")
    with opened(dead, **_SMALL_FILES) as bookie:
        assert list(bookie.storage.reader.entry_ids(bookie.ledger(SCOPED.number))) == [(0, 1)]


def test_a_ledger_has_nothing_of_one_that_an_earlier_process_deleted_where_the_mark_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The start finds no room, so records of the deleted ledger, whose key is gone, are replayed once more."""
    monkeypatch.setattr(Acknowledgements, "not_stored", lambda *arguments: Retry.WITH_SPACE)
    one, two, three = (tmp_path / name for name in ("one", "two", "three"))
    with opened(one) as bookie:
        bookie.add(7, 0)
        bookie.storage.checkpoint()
        bookie.add(7, 1)
        bookie.add(8, 0)
        bookie.storage.delete_ledgers([7])
        shutil.copytree(one, two)
    with monkeypatch.context() as patch:
        patch.setattr("bookgate.bookie.storage.storage.write_mark", refuse_room)
        bookie = OpenStorage(two)
    assert bookie.storage.out_of_space
    bookie.ledger(7, OTHER_KEY)
    bookie.fence(7)
    with monkeypatch.context() as patch:
        patch.setattr("bookgate.bookie.storage.checkpoint.write_mark", refuse_room)
        with pytest.raises(OSError, match="no room left"):
            bookie.storage.checkpoint()
    shutil.copytree(two, three)
    bookie.storage.close()
    for _ in range(2):
        with opened(three) as bookie:
            ledger = bookie.ledger(7, OTHER_KEY)
            assert (ledger.master_key, ledger.fenced, ledger.last_entry_id) == (OTHER_KEY, True, -1)
            assert list(bookie.storage.reader.entry_ids(ledger)) == []


def test_ids_do_not_gather_however_many_ledgers_come_and_go(tmp_path: Path) -> None:
    count = 50
    with opened(tmp_path, journal_max_backups=1, **_SMALL_FILES) as bookie:
        numbers = [LedgerId(5, low).number for low in range(count)]
        remembered = []
        for number in numbers:
            _roll(bookie, number)
            bookie.storage.delete_ledgers([number])
            remembered.append(sum(bookie.storage.ledgers.is_made_anew(LedgerId.of_number(each)) for each in numbers))
        assert max(remembered[count // 2 :]) == max(remembered[: count // 2]) < 10
