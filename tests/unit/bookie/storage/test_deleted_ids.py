"""Ids of deleted ledgers: what is remembered of them for the record "made anew", and until when."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

from bookgate.bookie.journal.file import list_journals
from bookgate.bookie.storage.deleted_ids import DeletedIds
from bookgate.bookie.system.files import REAL_FILE_SYSTEM
from bookgate.ledger.ledger_id import LedgerId
from tests.unit.bookie.storage.storage_support import OpenStorage, opened, packet, refuse_syncs

SCOPED = LedgerId(5, 7)
_SMALL_FILES: dict[str, Any] = {"journal_max_size_bytes": 1000, "journal_pre_alloc_bytes": 1024}


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
    for number in (3, 4, 1 << 70):
        deleted.add(number)
    deleted.durable([3, 1 << 70])
    deleted.forget(0, 1, 9)
    deleted.add(5)
    deleted.durable([5])
    deleted.forget(0, 9, 9)
    assert [number in deleted for number in (3, 4, 5, 1 << 70)] == [True] * 4
    deleted.forget(0, 10, 12)
    assert [number in deleted for number in (3, 4, 5, 1 << 70)] == [False, True, False, False]


def test_an_id_is_discarded_wherever_it_is() -> None:
    deleted = DeletedIds()
    for last_file in (1, 2, 3):
        deleted.add(7)
        deleted.durable([7])
        deleted.forget(0, 0, last_file)
    deleted.add(7)
    deleted.discard(7)
    assert 7 not in deleted
    deleted.durable([7])
    assert 7 not in deleted


def test_each_journal_forgets_its_own() -> None:
    deleted = DeletedIds(2)
    for number in (2, 3):
        deleted.add(number)
    deleted.durable([2, 3])
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


def test_an_id_whose_deletion_found_no_space_is_not_forgotten(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
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
