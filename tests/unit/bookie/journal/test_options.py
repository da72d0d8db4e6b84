"""The journal's settings: group commit, deferred syncs, entries kept out of the journal, damaged files at a start."""

from __future__ import annotations

import shutil
import struct
import threading
from pathlib import Path

import pytest

from bookgate.bookie.journal import format as fmt
from bookgate.bookie.system.files import StorageCorruptException
from bookgate.ledger.ledger_id import LedgerId
from tests.unit.bookie.storage.storage_support import KEY, FailingFileSystem, OpenStorage, opened, packet

AN_HOUR = 3_600


class GatedJournal(FailingFileSystem):
    """Journals can't be synced before the gate opens, once it was closed."""

    def __init__(self) -> None:
        super().__init__(".txn")
        self.gate = threading.Event()
        self.gate.set()

    def fdatasync(self, fd: int) -> None:
        if self._paths[fd].suffix == ".txn":
            assert self.gate.wait(30)
        super().fdatasync(fd)


def journal_bytes(root: Path) -> bytes:
    return b"".join(path.read_bytes() for path in sorted((root / "journal/current").glob("*.txn")))


def test_a_group_waits_for_enough_bytes_and_is_synced_once(tmp_path: Path) -> None:
    files = FailingFileSystem(".txn")
    changes = {"journal_max_group_wait_seconds": AN_HOUR, "journal_buffered_writes_bytes": 2500}
    with opened(tmp_path, files, **changes) as bookie:
        bookie.add(1, 0, 1, 2, size=1000)
        assert files.syncs == 1
        bookie.add(1, 3, 4, 5, size=1000)
        assert files.syncs == 2


def test_a_group_waits_for_enough_records(tmp_path: Path) -> None:
    files = FailingFileSystem(".txn")
    changes = {"journal_max_group_wait_seconds": AN_HOUR, "journal_buffered_entries": 4}
    with opened(tmp_path, files, **changes) as bookie:
        bookie.add(1, 0, 1, 2)  # with the key's record
        assert files.syncs == 1
        bookie.add(1, 3, 4, 5, 6)
        assert files.syncs == 2


def test_closing_ends_a_group_wait(tmp_path: Path) -> None:
    with opened(tmp_path, journal_max_group_wait_seconds=AN_HOUR) as bookie:
        bookie.writer.add_entry(bookie.ledger(1), 0, packet(1, 0), "last")
    assert bookie.acks.tokens == ["last"]


def test_what_queued_up_during_a_sync_does_not_wait_again(tmp_path: Path) -> None:
    """Its oldest request has waited since the sync began; here that is longer than the group wait."""
    files = GatedJournal()
    with opened(tmp_path, files, journal_max_group_wait_seconds=0.001) as bookie:
        files.gate.clear()
        for entry_id in range(20):
            bookie.writer.add_entry(bookie.ledger(1), entry_id, packet(1, entry_id), entry_id)
        files.gate.set()
        bookie.acks.wait_for(*range(20))


def test_a_deferred_entry_is_answered_before_its_sync_and_force_after_it(tmp_path: Path) -> None:
    files = GatedJournal()
    with opened(tmp_path, files) as bookie:
        bookie.add(1, 0)
        files.gate.clear()
        ledger = bookie.ledger(1)
        for entry_id in (1, 2, 3):
            bookie.writer.add_entry(ledger, entry_id, packet(1, entry_id), entry_id, sync=False)
            if entry_id == 1:
                bookie.acks.wait_for(1)
        bookie.writer.force(ledger.ledger_id, "forced")
        assert "forced" not in bookie.acks.tokens
        assert packet(1, 1) in journal_bytes(tmp_path)
        files.gate.set()
        bookie.acks.wait_for("forced")
        assert bookie.acks.tokens == [(1, 0), 1, 2, 3, "forced"]


def test_a_force_alone_is_behind_the_sync_of_deferred_entries(tmp_path: Path) -> None:
    files = GatedJournal()
    with opened(tmp_path, files) as bookie:
        files.gate.clear()
        bookie.writer.add_entry(bookie.ledger(1), 0, packet(1, 0), "added", sync=False)
        bookie.acks.wait_for("added")
        bookie.writer.force(LedgerId.unscoped(1), "forced")
        synced = files.syncs
        assert "forced" not in bookie.acks.tokens
        files.gate.set()
        bookie.acks.wait_for("forced")
        assert files.syncs > synced


def test_a_deferred_entry_survives_a_kill(tmp_path: Path) -> None:
    bookie = OpenStorage(tmp_path / "root")
    bookie.writer.add_entry(bookie.ledger(1), 0, packet(1, 0), "added", sync=False)
    bookie.acks.wait_for("added")
    shutil.copytree(tmp_path / "root", tmp_path / "killed")
    bookie.storage.close()
    with opened(tmp_path / "killed") as again:
        assert again.storage.reader.read_entry(again.ledger(1), 0) == packet(1, 0)


def test_without_journal_data_entries_stay_out_of_it_and_states_go_in(tmp_path: Path) -> None:
    files = GatedJournal()
    with opened(tmp_path / "root", files, journal_entries=False) as bookie:
        files.gate.clear()
        for sync in (True, False):
            bookie.writer.add_entry(bookie.ledger(1), int(sync), packet(1, int(sync)), ("added", sync), sync=sync)
        assert bookie.acks.tokens == [("added", True), ("added", False)]
        files.gate.set()
        bookie.fence(1)
        content = journal_bytes(tmp_path / "root")
        assert packet(1, 0) not in content
        assert fmt.encode_key(1, KEY) in content
        shutil.copytree(tmp_path / "root", tmp_path / "killed")
    with opened(tmp_path / "root") as again:
        assert list(again.storage.reader.entry_ids(again.ledger(1))) == [(0, 2)]
    with opened(tmp_path / "killed") as again:
        assert again.ledger(1).fenced


def test_a_damaged_journal_is_read_up_to_the_damage_where_configured(tmp_path: Path) -> None:
    directory = tmp_path / "journal/current"
    directory.mkdir(parents=True)
    head = fmt.encode_header()
    damage = struct.pack(">i", -7) + bytes(20)
    first = fmt.encode_records([fmt.encode_key(1, KEY), packet(1, 0)]) + damage + fmt.encode_records([packet(1, 1)])
    (directory / "5.txn").write_bytes(head + first)
    (directory / "6.txn").write_bytes(head + fmt.encode_records([packet(1, 2)]))
    with pytest.raises(StorageCorruptException):
        OpenStorage(tmp_path)
    with opened(tmp_path, skip_invalid_records=True) as bookie:
        assert list(bookie.storage.reader.entry_ids(bookie.ledger(1))) == [(0, 1), (2, 1)]


def test_alignment_and_allocation(tmp_path: Path) -> None:
    changes = {"journal_alignment_bytes": 4096, "journal_pre_alloc_bytes": 3 * 4096}
    with opened(tmp_path, **changes) as bookie:  # type: ignore[arg-type]
        bookie.add(1, 0)
        bookie.add(1, 1, size=3 * 4096)  # more than one allocation at once
        assert bookie.storage.synced_marks[0].offset % 4096 == 0
    sizes = {path.stat().st_size for path in (tmp_path / "journal/current").iterdir()}
    assert sizes == {6 * 4096}
    with opened(tmp_path) as bookie:
        assert list(bookie.storage.reader.entry_ids(bookie.ledger(1))) == [(0, 2)]
