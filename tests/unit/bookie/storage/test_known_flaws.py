"""Flaws of the Java bookie's storage that this one must not have (F1 to F5, F19), in both kinds of index.

Each test fails with the flaw. Those that lose power do so as badly as a disk may: nothing that was not synced is left.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from bookgate.bookie.journal import format as journal_format
from bookgate.bookie.journal.format import LogMark
from bookgate.bookie.journal.last_mark import LAST_MARK_FILE
from bookgate.bookie.system.files import REAL_FILE_SYSTEM, FileSystem, read_whole, write_in_place
from bookgate.ledger.digest import Crc32cDigest, Crc32Digest, Digest, HmacDigest
from bookgate.ledger.entry import encode_entry
from bookgate.ledger.ledger_id import LedgerId
from bookgate.ledger.wire.messages import Status
from tests.faults.memory_disk import MemoryDisk, nothing_survives
from tests.faults.storage_run import StorageRun, key_of
from tests.unit.bookie.storage.storage_support import Token, lac_packet, packet


class Lives:
    """One bookie's storage over several starts."""

    def __init__(self, root: Path, storage: str) -> None:
        self._root = root / "0"
        self._storage = storage
        self._files: FileSystem = REAL_FILE_SYSTEM
        if storage == "sorted":
            self._files = MemoryDisk(self._root / "journal/current", self._root / "ledgers/current")
        self.run = self._start()

    def _start(self) -> StorageRun:
        run = StorageRun(self._root, self._files, storage=self._storage)
        run.open()
        return run

    def restart(self) -> None:
        self.run.storage.close()
        self.run = self._start()

    def crash(self, *, forget_before_mark: bool = False) -> None:
        """Loses power; with RocksDB, which has files of its own, is killed.

        With `forget_before_mark` the journal's content before the mark is gone as well: replay must never need it.
        """
        old = self.run
        if isinstance(self._files, MemoryDisk):
            disk = self._files
            self._files = disk.after_power_loss(nothing_survives)
            disk.lose_power()
        else:
            after = self._root.with_name(str(int(self._root.name) + 1))
            shutil.copytree(self._root, after)
            self._root = after
        old.abandon()
        if forget_before_mark:
            self._forget_before_mark()
        self.run = self._start()

    def _forget_before_mark(self) -> None:
        """The marked journal begins anew, and the mark at its begin."""
        mark_file = self._root / "ledgers/current" / LAST_MARK_FILE
        mark = LogMark.decode(read_whole(self._files, mark_file) or b"")
        journals = self._root / "journal/current"
        for name in self._files.list_directory(journals):
            if journal_format.journal_id_of(name) is not None:
                self._files.unlink(journals / name)
        path = journals / journal_format.file_name(mark.journal_id)
        fd = self._files.open(path, os.O_RDWR | os.O_CREAT)
        self._files.pwrite(fd, journal_format.encode_header(), 0)
        self._files.close(fd)
        write_in_place(self._files, mark_file, LogMark(mark.journal_id, 0).encode())

    def status_of_add(self, number: int, key: bytes | None = None, *, recovery: bool = False) -> Status:
        ledger = self.run.storage.ledgers.get(LedgerId.unscoped(number))
        assert ledger is not None
        return ledger.check_add(key_of(number) if key is None else key, recovery=recovery)


@pytest.fixture(params=["sorted", "db"])
def lives(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Lives]:
    lives = Lives(tmp_path, request.param)
    yield lives
    lives.run.abandon()


def test_f1_a_batch_over_a_roll_is_acknowledged_after_the_sync_of_both_files(tmp_path: Path) -> None:
    """Java syncs only the last file of a batch: what it wrote before the roll is acknowledged and may be lost."""
    disk = MemoryDisk(tmp_path / "journal/current", tmp_path / "ledgers/current")
    run = StorageRun(tmp_path, disk, journal_max_size_bytes=1500, journal_pre_alloc_bytes=1024)
    lost: list[object] = []

    def acknowledged(tokens: list[object]) -> None:
        left = disk.after_power_loss(nothing_survives)
        content = b"".join(left.content(path) for path in left.files(tmp_path / "journal"))
        asked = run.moment().asked
        lost.extend(token for token in tokens if isinstance(token, int) and asked[token].content not in content)
        run.acks.durable(tokens)

    run.acks.on_stored = acknowledged
    run.open()
    tokens: list[int] = []
    for entry_id in range(40):
        tokens.append(run.add(1, entry_id, 300))
        if entry_id % 5 == 4:
            run.wait(*tokens)
    assert len(disk.files(tmp_path / "journal")) > 5
    assert lost == []
    run.storage.close()


def test_f2_a_fence_is_kept_by_a_checkpoint_without_entries(lives: Lives) -> None:
    """Java's checkpoint passes over pending ledger rows when the write cache is empty, and moves the mark past them."""
    lives.run.wait(lives.run.add(1, 0))
    lives.run.storage.checkpoint()
    lives.run.wait(lives.run.fence(1), lives.run.write_lac(1, 0))
    lives.run.storage.checkpoint()
    lives.crash(forget_before_mark=True)
    assert lives.status_of_add(1) is Status.EFENCED
    ledger = lives.run.ledger(1)
    assert ledger.explicit_lac == lac_packet(1, 0)
    assert lives.run.storage.reader.read_entry(ledger, 0) == packet(1, 0)


@pytest.mark.parametrize("checkpoint", [False, True])
@pytest.mark.parametrize("recovery_add", [False, True])
def test_f3_a_fence_of_a_ledger_without_entries_survives_a_crash(
    lives: Lives, checkpoint: bool, recovery_add: bool
) -> None:
    """Java journals the fence without a key before it: replay does not know the ledger, and drops it."""
    lives.run.wait(lives.run.fence(1))
    if recovery_add:
        lives.run.wait(lives.run.add(1, 0))
    if checkpoint:
        lives.run.storage.checkpoint()
    for _ in range(2):
        lives.crash()
        assert lives.status_of_add(1) is Status.EFENCED
        assert lives.status_of_add(1, recovery=True) is Status.EOK


def test_f4_a_wrong_key_is_refused_after_a_restart_and_after_a_crash(lives: Lives) -> None:
    """Java's index-file storages compare with the key that came first in the process: any, after a restart."""
    lives.run.wait(lives.run.add(1, 0), lives.run.fence(2))
    for again in (lives.restart, lives.crash, lives.restart):
        again()
        for number in (1, 2):
            assert lives.status_of_add(number, b"w" * 20, recovery=True) is Status.EUA
            created = lives.run.storage.writer.create_ledger(LedgerId.unscoped(number), b"w" * 20)
            assert created.master_key == key_of(number)
            assert lives.status_of_add(number, recovery=True) is Status.EOK


def test_f5_an_explicit_lac_survives_a_clean_restart(lives: Lives) -> None:
    """Java writes index headers only of ledgers that have cached pages: the LAC of an idle one is gone."""
    lives.run.wait(lives.run.add(1, 0))
    lives.restart()
    lives.run.wait(lives.run.write_lac(1, 0), lives.run.write_lac(2, 7))
    for again in (lives.restart, lives.crash, lives.restart):
        again()
        assert lives.run.ledger(1).explicit_lac == lac_packet(1, 0)
        assert lives.run.ledger(2).explicit_lac == lac_packet(2, 7)
        assert lives.run.storage.reader.known_lac(lives.run.ledger(2)) == 7


@pytest.mark.parametrize("digest", [Crc32cDigest(), Crc32Digest(), HmacDigest(b"pw")], ids=["crc32c", "crc32", "mac"])
@pytest.mark.parametrize("flipped", [0x200, 0x4])
def test_f19_a_lac_that_no_crc_proves_is_not_told(lives: Lives, digest: Digest, flipped: int) -> None:
    """Java tells readers what stands in the last entry. A MAC can't be checked: any LAC below the id goes."""
    packets = [encode_entry(digest, 1, entry_id, min(entry_id - 1, 3), 10, b"x" * 10) for entry_id in range(10)]
    packets[9] = packets[9][:16] + (3 ^ flipped).to_bytes(8) + packets[9][24:]
    ledger = lives.run.ledger(1)
    for entry_id, content in enumerate(packets):
        lives.run.storage.writer.add_entry(ledger, entry_id, content, Token(entry_id))
    lives.restart()
    told = lives.run.storage.reader.known_lac(lives.run.ledger(1))
    assert told == (7 if flipped == 0x4 and isinstance(digest, HmacDigest) else 3)
