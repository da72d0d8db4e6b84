"""The journal behind storage: queues that fill up, group waits, files and rolls, syncs, errors."""

from __future__ import annotations

import errno
import itertools
import threading
import time
from pathlib import Path

import pytest

from bookgate.bookie.journal import format as journal_format
from bookgate.bookie.system.files import StorageStoppedException
from bookgate.ledger.ledger_id import LedgerId
from tests.unit.bookie.storage.storage_support import (
    FailingFileSystem,
    OpenStorage,
    RecordingFileSystem,
    Token,
    opened,
    packet,
)


def test_tokens_come_back_in_order_and_only_those_wanted(tmp_path: Path) -> None:
    with opened(tmp_path) as bookie:
        ledger = bookie.ledger(1)
        for entry_id in range(500):
            bookie.writer.add_entry(ledger, entry_id, packet(1, entry_id), entry_id if entry_id % 2 else None)
        bookie.writer.force(LedgerId.unscoped(99), "forced")
        bookie.acks.wait_for("forced")
        assert bookie.acks.tokens == [*range(1, 500, 2), "forced"]


def test_a_run_is_acknowledged_once_behind_what_was_queued_before(tmp_path: Path) -> None:
    with opened(tmp_path) as bookie:
        ledger = bookie.ledger(1)
        packets = [packet(1, entry_id) for entry_id in range(10)]
        bookie.writer.add_entry(ledger, 0, packets[0], "first")
        bookie.storage.writer.add_checked_run(ledger, range(1, 9), packets[1:9], Token("run"))
        bookie.writer.add_entry(ledger, 9, packets[9], "last")
        bookie.acks.wait_for("last")
        assert bookie.acks.tokens == ["first", "run", "last"]
    with opened(tmp_path) as bookie:
        ledger = bookie.ledger(1)
        assert [bookie.storage.reader.read_entry(ledger, each) for each in range(10)] == packets
        assert ledger.last_entry_id == 9


def test_a_run_is_queued_whole_or_not_at_all(tmp_path: Path) -> None:
    with opened(tmp_path) as bookie:
        ledger = bookie.ledger(1)
        bookie.writer.add_entry(ledger, 0, packet(1, 0), "first")
        bookie.acks.wait_for("first")
    with pytest.raises(StorageStoppedException):
        bookie.storage.writer.add_checked_run(ledger, [1, 2], [packet(1, 1), packet(1, 2)], Token("run"))
    assert bookie.acks.tokens == ["first"]


def test_a_run_of_a_ledger_that_was_deleted_after_its_look_up_makes_it_anew(tmp_path: Path) -> None:
    with opened(tmp_path) as bookie:
        gone = bookie.ledger(1)
        bookie.writer.add_entry(gone, 0, packet(1, 0), "first")
        bookie.acks.wait_for("first")
        bookie.storage.checkpoint()
        assert bookie.storage.delete_ledgers([1]) == [1]
        bookie.storage.writer.add_checked_run(gone, [1, 2], [packet(1, 1), packet(1, 2)], Token("run"))
        bookie.acks.wait_for("run")
        ledger = bookie.ledger(1)
        assert ledger is not gone
        assert [bookie.storage.reader.held_entry(ledger, each) for each in range(3)] == [
            None,
            packet(1, 1),
            packet(1, 2),
        ]


def test_force_with_nothing_queued_comes_back(tmp_path: Path) -> None:
    with opened(tmp_path) as bookie:
        bookie.writer.force(LedgerId.unscoped(1), "forced")
        bookie.acks.wait_for("forced")


class GatedJournal(FailingFileSystem):
    """Syncs of the journal wait for the gate."""

    def __init__(self) -> None:
        super().__init__(".txn")
        self.gate, self.entered = threading.Event(), threading.Event()

    def fdatasync(self, fd: int) -> None:
        if self._paths[fd].suffix == ".txn":
            self.entered.set()
            assert self.gate.wait(30)
        super().fdatasync(fd)


def test_a_journal_that_falls_behind_asks_callers_to_wait(tmp_path: Path) -> None:
    """Entries that a checkpoint took out of the write cache may still wait for the journal."""
    journal, room = GatedJournal(), threading.Event()
    with opened(tmp_path, journal, write_cache_bytes=100_000) as bookie:
        bookie.acks.on_capacity = room.set
        ledger = bookie.ledger(1)
        bookie.writer.add_entry(ledger, 0, packet(1, 0), 0)
        assert journal.entered.wait(30)
        for entry_id in range(1, 60):
            bookie.writer.add_entry(ledger, entry_id, packet(1, entry_id, 1000), entry_id)
        bookie.storage.checkpoint()
        assert not bookie.storage.writer.accepts_adds
        room.clear()
        journal.gate.set()
        assert room.wait(30)
        bookie.acks.wait_for(59)
        assert bookie.storage.writer.accepts_adds


def test_requests_without_a_record_fill_the_journals_queue_too(tmp_path: Path) -> None:
    journal = GatedJournal()
    with opened(tmp_path, journal, write_cache_bytes=100_000) as bookie:
        bookie.writer.add_entry(bookie.ledger(1), 0, packet(1, 0), 0)
        assert journal.entered.wait(30)
        count = 0
        while bookie.storage.writer.accepts_adds and count < 10_000:
            count += 1
            bookie.writer.force(LedgerId(0, 1), count)
        assert count < 1000
        journal.gate.set()
        bookie.acks.wait_for(count)
        assert bookie.storage.writer.accepts_adds


def test_nothing_is_acknowledged_before_its_group_wait_and_everything_after_it(tmp_path: Path) -> None:
    wait_seconds = 0.05
    with opened(tmp_path, journal_max_group_wait_seconds=wait_seconds) as bookie:
        for entry_id in range(3):
            started = time.monotonic()
            bookie.add(1, entry_id)
            assert time.monotonic() - started >= wait_seconds
        bookie.fence(1)


# Journal files


def journal_ids(root: Path) -> list[int]:
    names = [path.name for path in (root / "journal/current").iterdir()]
    return sorted(found for name in names if (found := journal_format.journal_id_of(name)) is not None)


def test_every_start_begins_a_new_journal_and_files_are_whole_allocations(tmp_path: Path) -> None:
    for _ in range(3):
        with opened(tmp_path) as bookie:
            bookie.add(1, 0)
    ids = journal_ids(tmp_path)
    assert ids == list(range(ids[0], ids[0] + 3))
    assert {path.stat().st_size for path in (tmp_path / "journal/current").iterdir()} == {16 * 1024}


def test_old_journals_go_once_a_checkpoint_has_passed_them(tmp_path: Path) -> None:
    with opened(tmp_path, journal_max_size_bytes=2000, journal_max_backups=2) as bookie:
        for entry_id in range(20):
            bookie.add(1, entry_id, size=1000)
        before = journal_ids(tmp_path)
        assert len(before) > 6
        bookie.storage.checkpoint()
        assert journal_ids(tmp_path) == before[-3:]
        bookie.add(1, 20)
    with opened(tmp_path) as bookie:
        assert list(bookie.storage.reader.entry_ids(bookie.ledger(1))) == [(0, 21)]


def test_acknowledgements_follow_the_sync_of_their_file_also_across_rolls(tmp_path: Path) -> None:
    """S5, F1: whatever was acknowledged is in the journal as of the last sync of each file."""
    files = RecordingFileSystem(tmp_path)
    with opened(tmp_path, files, journal_max_size_bytes=1500) as bookie:
        lost: list[object] = []
        numbers = itertools.count()

        def survivors_hold_everything(tokens: list[object]) -> None:
            target = tmp_path / "survivors" / str(next(numbers))
            files.write_survivors(target)
            content = b"".join(path.read_bytes() for path in (target / "journal/current").glob("*.txn"))
            lost.extend(token for token in tokens if packet(1, int(str(token)), 300) not in content)
            bookie.acks.durable(tokens)

        bookie.acks.on_stored = survivors_hold_everything
        for entry_id in range(30):
            bookie.writer.add_entry(bookie.ledger(1), entry_id, packet(1, entry_id, 300), entry_id)
            if entry_id % 3 == 0:
                bookie.acks.wait_for(entry_id)
        bookie.acks.wait_for(29)
        assert lost == []
        assert len(journal_ids(tmp_path)) > 2


def test_what_is_queued_gets_into_no_file_beyond_the_one_that_is_told(tmp_path: Path) -> None:
    files = GatedJournal()
    with opened(tmp_path, files, journal_max_size_bytes=1) as bookie:
        (journal,) = bookie.storage._journals
        ledger = bookie.ledger(1)
        bookie.writer.add_entry(ledger, 0, packet(1, 0), 0)
        assert files.entered.wait(30)
        bookie.writer.add_entry(ledger, 1, packet(1, 1), 1)
        synced, told = journal.synced_mark.journal_id, journal.last_file_of_queued
        files.gate.set()
        bookie.acks.wait_for(1)
        assert synced < journal.synced_mark.journal_id <= told


def test_without_sync_nothing_is_synced(tmp_path: Path) -> None:
    files = FailingFileSystem(".txn")
    with opened(tmp_path, files, journal_sync_data=False) as bookie:
        bookie.add(1, 0)
        assert files.syncs == 0


# Disk errors


@pytest.mark.parametrize("kind", ["write", "sync"])
def test_a_journal_error_acknowledges_nothing_more(tmp_path: Path, kind: str) -> None:
    files = FailingFileSystem(".txn")
    bookie = OpenStorage(tmp_path, files)
    bookie.add(1, 0)
    error = OSError(errno.ENOSPC, "No space left on device")
    setattr(files, f"fail_{kind}", error)
    bookie.writer.add_entry(bookie.ledger(1), 1, packet(1, 1), "lost")
    assert bookie.acks.wait_for_failure() is error
    syncs = files.syncs
    with pytest.raises(StorageStoppedException):
        bookie.writer.add_entry(bookie.ledger(1), 2, packet(1, 2), "refused")
    with pytest.raises(StorageStoppedException):
        bookie.writer.force(LedgerId.unscoped(1), "refused")
    with pytest.raises(StorageStoppedException):
        bookie.storage.checkpoint()
    bookie.storage.close()
    assert files.syncs == syncs
    assert bookie.acks.tokens == [(1, 0)]
    assert len(bookie.acks.failures) == 1
    with opened(tmp_path) as again:
        assert again.storage.reader.read_entry(again.ledger(1), 0) == packet(1, 0)


def test_close_acknowledges_what_is_queued(tmp_path: Path) -> None:
    with opened(tmp_path) as bookie:
        for entry_id in range(100):
            bookie.writer.add_entry(bookie.ledger(1), entry_id, packet(1, entry_id), entry_id)
    assert bookie.acks.tokens == list(range(100))
    with pytest.raises(StorageStoppedException):
        bookie.writer.force(LedgerId.unscoped(1), "late")
