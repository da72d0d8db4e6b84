"""S8: a start that finds proof of a loss is refused; one that accepts it answers "unknown", never "no such entry"."""

from __future__ import annotations

import errno
import os
import struct
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from bookgate.bookie.index import file_format
from bookgate.bookie.index.rocksdb_database import Database
from bookgate.bookie.journal import format as fmt
from bookgate.bookie.journal.format import LogMark
from bookgate.bookie.journal.journal import Journal
from bookgate.bookie.journal.last_mark import read_mark, write_mark
from bookgate.bookie.storage.checkpoint import Checkpointer
from bookgate.bookie.storage.limbo import LIMBO_FILE
from bookgate.bookie.storage.storage import LedgerStorage
from bookgate.bookie.storage_events import Retry
from bookgate.bookie.system.data_loss import LostDataException
from bookgate.bookie.system.files import REAL_FILE_SYSTEM, StorageCorruptException, StorageStoppedException
from bookgate.ledger.errors import DataUnknownException, NoSuchEntryException
from bookgate.ledger.ledger_id import LedgerId
from bookgate.ledger.wire.messages import Status
from tests.faults.memory_disk import MemoryDisk, everything_survives, nothing_survives
from tests.faults.storage_run import StorageRun
from tests.unit.bookie.storage.storage_support import (
    KEY,
    Acknowledgements,
    FailingFileSystem,
    OpenStorage,
    changed,
    opened,
    packet,
    refuse_syncs,
    small_config,
)

LATE = 2
"""The ledger whose entries came after the last mark."""


@pytest.fixture
def killed(tmp_path: Path) -> Path:
    """What a bookie leaves that is killed: ledger 1 before the mark, ledger 2 behind it."""
    root = tmp_path / "root"
    bookie = OpenStorage(root)
    bookie.add(1, 0)
    bookie.add(1, 1)
    bookie.storage.checkpoint()
    bookie.add(LATE, 0, 1)
    left = tmp_path / "left"
    _copy(root, left)
    bookie.storage.close()
    (left / "ledgers/current/DIRTY").touch()
    return left


def _copy(source: Path, target: Path) -> None:
    for path in source.rglob("*"):
        if path.is_file() and path.name != "bookie.lock":
            copy = target / path.relative_to(source)
            copy.parent.mkdir(parents=True, exist_ok=True)
            copy.write_bytes(path.read_bytes())


def journal(root: Path) -> Path:
    return sorted((root / "journal/current").iterdir())[-1]


def mark_file(root: Path) -> Path:
    return root / "ledgers/current/lastMark"


def flip(path: Path, offset: int, bit: int) -> None:
    data = bytearray(path.read_bytes())
    data[offset] ^= 1 << bit
    path.write_bytes(data)


def cut_before_the_mark(root: Path) -> None:
    mark = read_mark(REAL_FILE_SYSTEM, [root / "ledgers"])
    data = journal(root).read_bytes()
    journal(root).write_bytes(data[: mark.offset - 1])


def zeros_from_before_the_mark(root: Path) -> None:
    mark = read_mark(REAL_FILE_SYSTEM, [root / "ledgers"])
    data = journal(root).read_bytes()
    journal(root).write_bytes(data[: mark.offset - 512].ljust(len(data), b"\0"))


def zeros_from_within_a_length(root: Path) -> None:
    """Of a padding: to a scan this is damage in front of the mark, where nothing is needed."""
    data = journal(root).read_bytes()
    cut = data[: fmt.HEADER_SIZE] + struct.pack(">i", -0x100)[:2]
    journal(root).write_bytes(cut.ljust(len(data), b"\0"))


def damage_in_front_of_the_mark(root: Path) -> None:
    """Records follow the mark."""
    path = journal(root)
    path.write_bytes(path.read_bytes()[: fmt.HEADER_SIZE] + b"\xff\xff" + path.read_bytes()[fmt.HEADER_SIZE + 2 :])


def without_journal(root: Path) -> None:
    journal(root).unlink()


def without_journal_and_mark(root: Path) -> None:
    journal(root).unlink()
    mark_file(root).unlink()


def mark_of_others_behind_the_data(root: Path) -> None:
    """By one bit, in a mark without seal: what Apache BookKeeper's bookie writes."""
    mark = read_mark(REAL_FILE_SYSTEM, [root / "ledgers"])
    mark_file(root).write_bytes(LogMark(mark.journal_id, mark.offset ^ 1 << 13).encode())


def mark_of_others_within_a_record(root: Path) -> None:
    mark = read_mark(REAL_FILE_SYSTEM, [root / "ledgers"])
    mark_file(root).write_bytes(LogMark(mark.journal_id, mark.offset + 64).encode())


def missing_in_the_middle(root: Path) -> None:
    journal(root).with_name(fmt.file_name(int(journal(root).stem, 16) + 2)).write_bytes(fmt.encode_header())


def header_of_the_next_file(root: Path) -> None:
    path = journal(root).with_name(fmt.file_name(int(journal(root).stem, 16) + 1))
    path.write_bytes(fmt.encode_header() + fmt.encode_records([fmt.encode_key(7, KEY), packet(7, 0)]))
    flip(path, 2, 3)


def version_of_the_next_file(root: Path) -> None:
    path = journal(root).with_name(fmt.file_name(int(journal(root).stem, 16) + 1))
    path.write_bytes(fmt.encode_header() + fmt.encode_records([fmt.encode_key(7, KEY), packet(7, 0)]))
    flip(path, 7, 1)


DAMAGES: list[tuple[Callable[[Path], None], str]] = [
    (cut_before_the_mark, r"journal .* has \d+ bytes, and the last mark .* says \d+"),
    (zeros_from_before_the_mark, r"journal .* has no record that ends at \d+"),
    (zeros_from_within_a_length, r"journal .* has no record that ends at \d+"),
    (without_journal, "journal .* is missing, but the last mark"),
    (without_journal_and_mark, "journal directory .* is empty though the bookie has run"),
    (mark_of_others_behind_the_data, "journal .* has no record that ends at"),
    (mark_of_others_within_a_record, "journal .* has no record that ends at"),
    (missing_in_the_middle, "journal .* is missing between"),
    (header_of_the_next_file, "has records and no header"),
    (version_of_the_next_file, "has records and no header"),
]


def content(root: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in root.rglob("*") if path.is_file() and path.name != "bookie.lock"}


@pytest.mark.parametrize(("damage", "message"), DAMAGES, ids=lambda value: getattr(value, "__name__", ""))
def test_proof_of_a_loss_refuses_the_start_and_changes_nothing(
    killed: Path, damage: Callable[[Path], None], message: str
) -> None:
    damage(killed)
    before = content(killed)
    for _ in range(2):
        with pytest.raises(OSError, match=f"(?s){message}.*--accept-loss"):
            OpenStorage(killed)
    assert content(killed) == before


def test_without_damage_everything_is_there(killed: Path) -> None:
    with opened(killed) as bookie:
        for number in (1, LATE):
            assert list(bookie.storage.reader.entry_ids(bookie.ledger(number))) == [(0, 2)]


def test_damage_in_front_of_the_mark_costs_nothing(killed: Path) -> None:
    damage_in_front_of_the_mark(killed)
    with opened(killed) as bookie:
        for number in (1, LATE):
            assert list(bookie.storage.reader.entry_ids(bookie.ledger(number))) == [(0, 2)]


@pytest.mark.parametrize("offset", range(24))
def test_any_bit_of_a_sealed_mark(killed: Path, offset: int) -> None:
    """It counts as none: everything is replayed, and nothing lost."""
    for bit in (0, 5):
        left = killed.with_name(f"bit-{bit}")
        _copy(killed, left)
        flip(left / "ledgers/current/lastMark", offset, bit)
        with opened(left) as bookie:
            for number in (1, LATE):
                assert list(bookie.storage.reader.entry_ids(bookie.ledger(number))) == [(0, 2)]


@pytest.mark.parametrize("size", [0, 7, 15, 16, 17, 23])
def test_a_mark_that_was_cut(killed: Path, size: int) -> None:
    mark_file(killed).write_bytes(mark_file(killed).read_bytes()[:size])
    with opened(killed) as bookie:
        assert list(bookie.storage.reader.entry_ids(bookie.ledger(LATE))) == [(0, 2)]


def test_the_furthest_mark_that_its_journal_bears_out_counts(killed: Path) -> None:
    """One damaged copy, be it without seal, does not win."""
    other = killed / "more"
    (other / "current").mkdir(parents=True)
    mark = read_mark(REAL_FILE_SYSTEM, [killed / "ledgers"])
    (other / "current/lastMark").write_bytes(LogMark(mark.journal_id, mark.offset + (1 << 23)).encode())
    with opened(killed, ledger_directories=(killed / "ledgers", other)) as bookie:
        assert list(bookie.storage.reader.entry_ids(bookie.ledger(LATE))) == [(0, 2)]


def test_a_sealed_mark_proves_the_loss_though_another_is_borne_out(killed: Path) -> None:
    """The other directory did not take the last marks; the journal has lost its end."""
    other = killed / "more"
    (other / "current").mkdir(parents=True)
    mark = read_mark(REAL_FILE_SYSTEM, [killed / "ledgers"])
    write_mark(REAL_FILE_SYSTEM, [other], LogMark(mark.journal_id, mark.offset + (1 << 23)))
    with pytest.raises(LostDataException):
        OpenStorage(killed, ledger_directories=(killed / "ledgers", other))


class Accepted(OpenStorage):
    """Started with the loss accepted, of these ledgers."""

    def __init__(self, root: Path, *ledgers: int) -> None:
        self.acks = Acknowledgements()
        self.storage = LedgerStorage(small_config(root), self.acks)
        self.storage.open(accept_loss=ledgers)


@pytest.mark.parametrize("damage", [damage for damage, _ in DAMAGES], ids=lambda damage: damage.__name__)
def test_a_loss_that_is_accepted_leaves_what_is_held_and_makes_the_rest_unknown(
    killed: Path, damage: Callable[[Path], None]
) -> None:
    damage(killed)
    bookie = Accepted(killed, 1, LATE)
    bookie.storage.close()
    # It stays so: the next start is an ordinary one.
    with opened(killed) as again:
        ledger = again.ledger(1)
        assert again.storage.reader.read_entry(ledger, 1) == packet(1, 1)
        with pytest.raises(DataUnknownException):
            again.storage.reader.read_entry(ledger, 2)
        assert again.storage.is_in_limbo(LATE)
        late = again.ledger(LATE)
        assert late.limbo
        assert late.check_add(KEY, recovery=False) is Status.EUNKNOWNLEDGERSTATE
        assert late.check_add(KEY, recovery=True) is Status.EOK
        for question in (
            lambda: again.storage.reader.read_entry(late, 7),
            lambda: again.storage.reader.last_entry_id(late),
        ):
            with pytest.raises(DataUnknownException):
                question()


def test_what_is_here_is_doubted_too_though_older_metadata_do_not_list_it(killed: Path) -> None:
    """One ledger that the index has, and one that the journal alone has."""
    bookie = Accepted(killed)
    for number in (1, LATE):
        ledger = bookie.ledger(number)
        assert ledger.check_add(KEY, recovery=False) is Status.EUNKNOWNLEDGERSTATE
        with pytest.raises(DataUnknownException):
            bookie.storage.reader.read_entry(ledger, 7)
    bookie.storage.close()
    with opened(killed) as again:
        assert again.storage.limbo() == [1, LATE]


def test_ledgers_made_afterwards_are_as_any_other(killed: Path) -> None:
    without_journal(killed)
    bookie = Accepted(killed, 1, LATE)
    bookie.add(3, 0)
    ledger = bookie.ledger(3)
    assert ledger.check_add(KEY, recovery=False) is Status.EOK
    with pytest.raises(NoSuchEntryException):
        bookie.storage.reader.read_entry(ledger, 1)
    bookie.storage.close()


def test_a_verified_ledger_leaves_limbo_for_good(killed: Path) -> None:
    bookie = Accepted(killed, 1, LATE)
    ledger = bookie.ledger(1)
    bookie.storage.leave_limbo([1])
    with pytest.raises(NoSuchEntryException):
        bookie.storage.reader.read_entry(ledger, 7)
    bookie.storage.close()
    with opened(killed) as again:
        assert again.storage.limbo() == [LATE]
        again.storage.leave_limbo([LATE])
    assert not list(killed.rglob(LIMBO_FILE))


def test_a_damaged_list_of_ledgers_in_limbo_refuses_the_start_unless_there_is_a_sound_one(killed: Path) -> None:
    Accepted(killed, 1, LATE).storage.close()
    path = killed / "ledgers" / LIMBO_FILE
    sound = path.read_bytes()
    flip(path, len(sound) - 1, 0)
    with pytest.raises(LostDataException, match="the list of ledgers in limbo, is damaged"):
        OpenStorage(killed)
    other = killed / "more"
    (other / "current").mkdir(parents=True)
    (other / LIMBO_FILE).write_bytes(sound)
    with opened(killed, ledger_directories=(killed / "ledgers", other)) as bookie:
        assert bookie.storage.limbo() == [1, LATE]


def test_a_fence_acknowledged_in_limbo_outlives_limbo_and_a_restart(tmp_path: Path) -> None:
    """Also where the replay has written the header, without a fence, before the ledger entered limbo."""
    killed = tmp_path / "killed"
    with opened(tmp_path / "alive") as bookie:
        bookie.add(7, 0, 1, 2, 3)
        _copy(tmp_path / "alive", killed)
    accepted = Accepted(killed)
    ledger = accepted.ledger(7)
    assert ledger.limbo
    accepted.fence(7)
    accepted.storage.leave_limbo([7])
    accepted.storage.close()
    with opened(killed) as bookie:
        ledger = bookie.ledger(7)
        assert (ledger.limbo, ledger.fenced) == (False, True)


def test_a_ledger_made_anew_since_the_last_mark(tmp_path: Path) -> None:
    """What the journal has of the one that was deleted is not taken for the new one's, nor for damage."""
    for number, key in enumerate((KEY, b"other" * 4)):
        root = tmp_path / f"root-{number}"
        bookie = OpenStorage(root)
        bookie.add(7, 0, 1, 2, 3, 4)
        bookie.fence(7)
        bookie.storage.delete_ledgers([7])
        ledger = bookie.storage.writer.create_ledger(LedgerId.unscoped(7), key)
        bookie.writer.add_entry(ledger, 0, packet(7, 0, fill=9), "new")
        bookie.acks.wait_for("new")
        left = tmp_path / f"left-{number}"
        _copy(root, left)
        bookie.storage.close()
        for _ in range(2):
            with opened(left) as again:
                found = again.storage.ledgers.get(LedgerId.unscoped(7))
                assert found is not None
                assert (found.master_key, found.fenced, found.last_entry_id) == (key, False, 0)
                assert list(again.storage.reader.entry_ids(found)) == [(0, 1)]
                assert again.storage.reader.read_entry(found, 0) == packet(7, 0, fill=9)
                assert not again.storage.ledgers.is_made_anew(found.ledger_id), "the journal says it once"


@pytest.mark.parametrize("key", [KEY, b"other" * 4])
@pytest.mark.parametrize("storage", ["sorted", "db"])
def test_a_ledger_made_anew_has_nothing_of_one_whose_deletion_was_not_durable_as_the_process_ended(
    tmp_path: Path, storage: str, key: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Acknowledgements, "not_stored", lambda *arguments: Retry.WITH_SPACE)
    alive, killed = tmp_path / "alive", tmp_path / "killed"
    with opened(alive, storage=storage) as bookie:
        bookie.add(7, 0, 1, 2, 3)
        bookie.storage.checkpoint()
        index_files = {path: path.read_bytes() for path in alive.rglob("*.idx")}
        with monkeypatch.context() as patch:
            refuse_syncs(patch, bookie.storage.stores[0].index)
            with pytest.raises(OSError, match="no room left"):
                bookie.storage.delete_ledgers([7])
            bookie.writer.add_entry(bookie.ledger(7, key), 0, packet(7, 0, fill=9), "new")
            bookie.acks.wait_for("new")
            _copy(alive, killed)
    for path, content in index_files.items():
        restored = killed / path.relative_to(alive)
        restored.parent.mkdir(parents=True, exist_ok=True)
        restored.write_bytes(content)
    for _ in range(2):
        with opened(killed, storage=storage) as bookie:
            ledger = bookie.ledger(7, key)
            assert (ledger.master_key, ledger.last_entry_id) == (key, 0)
            assert list(bookie.storage.reader.entry_ids(ledger)) == [(0, 1)]
            assert bookie.storage.reader.read_entry(ledger, 0) == packet(7, 0, fill=9)


def flips_behind_an_older_mark(root: Path, early: bytes, offset: int) -> None:
    """As after a kill between the sync of the index and the write of the mark."""
    mark_file(root).write_bytes(early)
    flip(journal(root), offset, 7)


def loses_the_end_of_the_journal(root: Path, early: bytes, offset: int) -> None:
    journal(root).write_bytes(journal(root).read_bytes()[:offset])


@pytest.mark.parametrize("kind", ["sorted", "db"])
@pytest.mark.parametrize(
    ("damage", "skips", "accepted"),
    [(flips_behind_an_older_mark, True, None), (loses_the_end_of_the_journal, False, [7, 8])],
)
def test_a_ledger_made_anew_keeps_what_the_index_has_of_it_where_the_journal_is_damaged(
    tmp_path: Path,
    kind: str,
    damage: Callable[[Path, bytes, int], None],
    skips: bool,
    accepted: list[int] | None,
) -> None:
    settings: dict[str, Any] = {"storage": kind, "journal_max_backups": 0, "skip_invalid_records": skips}
    with opened(tmp_path, **settings) as bookie:
        bookie.add(7, 0)
    with opened(tmp_path, **settings) as bookie:
        bookie.add(8, 0)
        bookie.storage.checkpoint()
        early = mark_file(tmp_path).read_bytes()
        bookie.storage.delete_ledgers([7])
        bookie.add(7, 0, 1)
        damaged = bookie.storage.synced_marks[0].offset
        bookie.add(7, *range(2, 10))
    damage(tmp_path, early, damaged)
    storage = LedgerStorage(changed(small_config(tmp_path), settings), Acknowledgements())
    storage.open(accepted)
    try:
        ledger = storage.ledgers.get(LedgerId.unscoped(7))
        assert ledger is not None
        assert list(storage.reader.entry_ids(ledger)) == [(0, 10)]
    finally:
        storage.close()


@pytest.mark.parametrize("storage", ["sorted", "db"])
def test_a_ledger_made_anew_keeps_entries_that_were_not_journaled_where_the_mark_is_damaged(
    tmp_path: Path, storage: str
) -> None:
    with opened(tmp_path, storage=storage, journal_max_backups=0) as bookie:
        bookie.add(7, 0)
    with opened(tmp_path, storage=storage, journal_entries=False) as bookie:
        bookie.storage.checkpoint()
        for path in sorted((tmp_path / "journal/current").iterdir())[:-1]:
            path.unlink()  # as in the course of time
        bookie.storage.delete_ledgers([7])
        bookie.add(7, *range(10))
    with opened(tmp_path, storage=storage) as bookie:
        bookie.add(7, 10)
    flip(mark_file(tmp_path), 10, 3)
    with opened(tmp_path, storage=storage) as bookie:
        assert list(bookie.storage.reader.entry_ids(bookie.ledger(7))) == [(0, 11)]


def test_on_a_disk_that_is_still_full_a_ledger_made_anew_has_nothing_of_the_former_one_either(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its records say once that it was made anew: what it has got since is not dropped by the next replay."""
    monkeypatch.setattr(Acknowledgements, "not_stored", lambda *arguments: Retry.WITH_SPACE)
    alive, killed, again = (tmp_path / name for name in ("alive", "killed", "again"))
    with opened(alive, storage="db") as bookie:
        bookie.add(7, 0, 1, 2, 3)
        bookie.storage.checkpoint()
        with monkeypatch.context() as patch:
            refuse_writes(patch)
            with pytest.raises(OSError, match="no room left"):
                bookie.storage.delete_ledgers([7])
            bookie.writer.add_entry(bookie.ledger(7), 0, packet(7, 0, fill=9), "new")
            bookie.acks.wait_for("new")
            _copy(alive, killed)
    with monkeypatch.context() as patch:
        refuse_writes(patch)
        bookie = OpenStorage(killed, storage="db")
        assert bookie.storage.out_of_space
        assert list(bookie.storage.reader.entry_ids(bookie.ledger(7))) == [(0, 1)]
        bookie.add(7, 1)
        _copy(killed, again)
    bookie.storage.close()
    for directory in (killed, again):
        with opened(directory, storage="db") as bookie:
            assert list(bookie.storage.reader.entry_ids(bookie.ledger(7))) == [(0, 2)]


def refuse_writes(patch: pytest.MonkeyPatch) -> None:
    """RocksDB finds no space from now on."""

    def refuse(database: Database, batch: object) -> None:
        raise OSError(errno.ENOSPC, "no room left")

    patch.setattr(Database, "write", refuse)


@pytest.mark.parametrize("refused", ["made anew", "master key"])
def test_a_ledger_made_anew_that_the_journal_refused_at_first(
    tmp_path: Path, refused: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    root, left = tmp_path / "root", tmp_path / "left"
    bookie = OpenStorage(root)
    bookie.add(7, 0, 1, 2)
    bookie.fence(7)
    bookie.storage.delete_ledgers([7])
    ledger = bookie.storage.writer.create_ledger(LedgerId.unscoped(7), b"other" * 4)
    until = {"made anew": 0, "master key": 1}[refused]
    append, appended = Journal.append, list[bytes]()

    def without_space(journal: Journal, record: bytes, *more: Any) -> None:
        if len(appended) == until:
            raise OSError(errno.ENOSPC, "full")
        appended.append(record)
        append(journal, record, *more)

    monkeypatch.setattr(Journal, "append", without_space)
    with pytest.raises(OSError, match="full"):
        bookie.writer.add_entry(ledger, 0, packet(7, 0, fill=9), "refused")
    monkeypatch.undo()
    bookie.writer.add_entry(ledger, 0, packet(7, 0, fill=9), "new")
    bookie.acks.wait_for("new")
    _copy(root, left)
    bookie.storage.close()
    with opened(left) as again:
        found = again.ledger(7)
        assert (found.master_key, found.fenced, found.last_entry_id) == (b"other" * 4, False, 0)


def test_a_ledger_deleted_again_while_its_key_is_journaled_is_made_anew_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with opened(tmp_path) as bookie:
        bookie.add(7, 0)
        bookie.storage.delete_ledgers([7])
        ledger, append = bookie.ledger(7), Journal.append

        def delete_first(journal: Journal, record: bytes, *more: Any) -> None:
            monkeypatch.undo()
            bookie.storage.delete_ledgers([7])
            append(journal, record, *more)

        monkeypatch.setattr(Journal, "append", delete_first)
        bookie.writer.add_entry(ledger, 0, packet(7, 0), "deleted")
        assert bookie.storage.ledgers.is_made_anew(ledger.ledger_id)


def test_a_mark_never_passes_what_a_killed_process_had_not_synced(tmp_path: Path) -> None:
    """What a replay brings to the logs is durable in the journal too, or a loss of power looks like one of data."""
    disk = MemoryDisk(tmp_path / "journal/current", tmp_path / "ledgers/current")
    run = StorageRun(tmp_path, disk)
    run.open()
    run.wait(run.add(1, 0))
    left = disk.after_power_loss(everything_survives)
    run.storage.close()
    path = next(path for path in left.files(tmp_path) if path.suffix == ".txn")
    fd = left.open(path, os.O_RDWR)
    end = len(left.content(path).rstrip(b"\0")) + 512 & -512
    left.pwrite(fd, fmt.encode_records([packet(1, 1, 2000)]).ljust(3072, b"\0"), end)
    left.close(fd)
    again = StorageRun(tmp_path, left)
    again.open()
    after = left.after_power_loss(nothing_survives)
    again.storage.close()
    last = StorageRun(tmp_path, after)
    last.open()
    assert last.ledger(1).last_entry_id == 1
    last.storage.close()


def test_who_waited_for_a_checkpoint_that_failed_changes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first look at whether storage has failed comes before the wait, so there has to be a second."""
    files = FailingFileSystem(".txn")
    bookie = OpenStorage(tmp_path, files)
    bookie.add(1, 0)
    waits, outcomes = threading.Event(), []
    real = Checkpointer.exclusive

    @contextmanager
    def told(self: Checkpointer) -> Iterator[None]:
        waits.set()
        with real(self):
            yield

    def collect() -> None:
        try:
            with bookie.storage.exclusive():
                outcomes.append("went on")
        except StorageStoppedException:
            outcomes.append("refused")

    thread = threading.Thread(target=collect)
    with bookie.storage.exclusive():
        monkeypatch.setattr(Checkpointer, "exclusive", told)
        thread.start()
        assert waits.wait(30)
        files.fail_write = OSError(errno.EIO, "the journal failed meanwhile")
        bookie.writer.add_entry(bookie.ledger(1), 1, packet(1, 1), "never stored")
        bookie.acks.wait_for_failure()
    thread.join()
    assert outcomes == ["refused"]
    bookie.storage.close()


def cut_index(root: Path, number: int, entries: int) -> Path:
    path = root / "ledgers/current" / file_format.relative_path(LedgerId.unscoped(number))
    path.write_bytes(path.read_bytes()[: file_format.slot_offset(entries)])
    return path


def test_entries_missing_from_an_index_file_are_unknown_also_once_others_came(tmp_path: Path) -> None:
    with opened(tmp_path) as bookie:
        bookie.add(1, *range(5))
        bookie.storage.checkpoint()
        bookie.add(1, 5)
    cut_index(tmp_path, 1, 2)
    for _ in range(2):
        with opened(tmp_path) as again:
            ledger = again.ledger(1)
            assert again.storage.limbo() == [1]
            assert again.storage.reader.read_entry(ledger, 1) == packet(1, 1)
            with pytest.raises(DataUnknownException):
                again.storage.reader.read_entry(ledger, 2)
            assert ledger.check_add(b"other" * 4, recovery=True) is Status.EUNKNOWNLEDGERSTATE
            again.add(1, 7)


def test_a_changed_header_of_an_index_file_is_an_error_and_never_another_key(tmp_path: Path) -> None:
    with opened(tmp_path) as bookie:
        bookie.add(1, 0)
    path = cut_index(tmp_path, 1, 1024)
    flip(path, 15, 2)
    with opened(tmp_path) as again, pytest.raises(StorageCorruptException, match="does not match its checksum"):
        again.ledger(1)
