"""Several journal, ledger and index directories, and deleting ledgers: over crashes, with index files and RocksDB."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

from bookgate.bookie.index.rocksdb_index import RocksDbIndex
from bookgate.bookie.journal.format import NO_MARK, LogMark
from bookgate.bookie.journal.last_mark import read_mark
from bookgate.bookie.storage.ledger_state import BookieLedgerState
from bookgate.bookie.storage_events import Retry
from bookgate.bookie.system.files import REAL_FILE_SYSTEM
from bookgate.ledger.errors import NoSuchEntryException
from bookgate.ledger.ledger_id import LedgerId
from tests.unit.bookie.storage.storage_support import (
    KEY,
    Acknowledgements,
    FullFor,
    OpenStorage,
    lac_packet,
    opened,
    packet,
)

LEDGERS = range(12)


def several(root: Path, storage: str = "sorted") -> dict[str, Any]:
    """Two journals, two ledger directories; with index files the index in a third, with RocksDB one beside each."""
    return {
        "journal_directories": (root / "j0", root / "j1"),
        "ledger_directories": (root / "l0", root / "l1"),
        "index_directories": (root / "i0",) if storage == "sorted" else (root / "i0", root / "i1"),
        "storage": storage,
    }


def marks(root: Path) -> list[LogMark]:
    ledgers = (root / "l0", root / "l1")
    return [read_mark(REAL_FILE_SYSTEM, ledgers, f"lastMark.{journal}") for journal in range(2)]


def fill(bookie: OpenStorage, first: int, count: int) -> None:
    for number in LEDGERS:
        bookie.add(number, *range(first, first + count))


def check(bookie: OpenStorage, entries: int) -> None:
    assert list(bookie.storage.ledger_ids()) == list(LEDGERS)
    for number in LEDGERS:
        ledger = bookie.storage.ledgers.get(LedgerId.unscoped(number))
        assert ledger is not None
        assert ledger.fenced == (number % 3 == 0)
        assert ledger.explicit_lac == (lac_packet(number, 1) if number % 4 == 0 else None)
        assert list(bookie.storage.reader.entry_ids(ledger)) == [(0, entries)]
        found = [bookie.storage.reader.read_entry(ledger, entry_id) for entry_id in range(entries)]
        assert found == [packet(number, entry_id) for entry_id in range(entries)]


def run(root: Path, storage: str) -> OpenStorage:
    """Entries, fences and LACs, half of them behind the last checkpoint."""
    bookie = OpenStorage(root, entry_log_max_bytes=2000, **several(root, storage))
    fill(bookie, 0, 3)
    for number in LEDGERS:
        if number % 3 == 0:
            bookie.fence(number)
    bookie.storage.checkpoint()
    fill(bookie, 3, 3)
    for number in LEDGERS:
        if number % 4 == 0:
            bookie.write_lac(number, 1)
    return bookie


@pytest.mark.parametrize("storage", ["sorted", "db"])
def test_everything_is_there_after_a_clean_stop_and_after_a_crash(tmp_path: Path, storage: str) -> None:
    root, crashed = tmp_path / "root", tmp_path / "crashed"
    bookie = run(root, storage)
    check(bookie, 6)
    assert all(mark > NO_MARK for mark in marks(root))
    shutil.copytree(root, crashed)
    bookie.storage.close()
    for place in (root, crashed):
        for _ in range(2):
            with opened(place, **several(place, storage)) as again:
                check(again, 6)


def test_each_journal_holds_its_ledgers(tmp_path: Path) -> None:
    bookie = run(tmp_path, "sorted")
    contents = [
        b"".join(path.read_bytes() for path in (tmp_path / name / "current").glob("*.txn")) for name in ("j0", "j1")
    ]
    for number in LEDGERS:
        assert [packet(number, 0) in content for content in contents] == [number % 2 == 0, number % 2 == 1]
    bookie.storage.close()
    assert not (tmp_path / "l0/current/lastMark").exists()


def test_logs_and_index_files_spread_and_ids_are_unique(tmp_path: Path) -> None:
    bookie = run(tmp_path, "sorted")
    logs = [{path.name for path in (tmp_path / name / "current").glob("*.log")} for name in ("l0", "l1")]
    assert all(logs)
    assert not logs[0] & logs[1]
    assert len(list((tmp_path / "i0/current").rglob("*.idx"))) == len(LEDGERS)
    ids = [(tmp_path / name / "current/lastId").read_bytes() for name in ("l0", "l1")]
    assert ids[0] == ids[1]
    bookie.storage.close()


def test_with_rocksdb_each_ledger_lies_in_its_directory(tmp_path: Path) -> None:
    bookie = run(tmp_path, "db")
    stores = bookie.storage.stores
    assert [list(store.ledger_ids()) for store in stores] == [list(LEDGERS[0::2]), list(LEDGERS[1::2])]
    bookie.storage.close()


def test_with_rocksdb_a_full_directory_does_not_fill_the_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Acknowledgements, "not_stored", lambda *arguments: Retry.WITH_SPACE)
    full = tmp_path / "l1"
    files = FullFor(lambda path: path.suffix == ".log" and full in path.parents)
    bookie = OpenStorage(tmp_path, files, **several(tmp_path, "db"))
    fill(bookie, 0, 3)
    files.full = True
    sizes = set()
    for _ in range(3):
        with pytest.raises(OSError, match="no room left"):
            bookie.storage.checkpoint()
        sizes.add(sum(path.stat().st_size for path in (tmp_path / "l0").rglob("*.log")))
    assert len(sizes) == 1
    # What changes in the store that has its part, before the other one has room.
    bookie.fence(0)
    bookie.add(2, 3)
    bookie.storage.delete_ledgers([4, 5])
    with pytest.raises(OSError, match="no room left"):
        bookie.storage.checkpoint()
    files.full = False
    bookie.storage.checkpoint()
    shutil.copytree(tmp_path, tmp_path / "killed")
    bookie.storage.close()
    index = RocksDbIndex(REAL_FILE_SYSTEM, tmp_path / "killed/i0/current", 1 << 20)
    header, last_entry_id = index.read_header(LedgerId.unscoped(0)) or (None, None)
    assert (header is not None and header.fenced, last_entry_id) == (True, 2)
    assert list(index.entry_ids(LedgerId.unscoped(2))) == [0, 1, 2, 3]
    index.close()
    with opened(tmp_path, **several(tmp_path, "db")) as bookie:
        assert list(bookie.storage.ledger_ids()) == [number for number in LEDGERS if number not in (4, 5)]
        for number in bookie.storage.ledger_ids():
            ledger = bookie.ledger(number)
            assert ledger.fenced == (number == 0)
            assert list(bookie.storage.reader.entry_ids(ledger)) == [(0, 4 if number == 2 else 3)]
            for entry_id in range(3):
                assert bookie.storage.reader.read_entry(ledger, entry_id) == packet(number, entry_id)


def test_index_files_in_several_directories_are_found_wherever_they_lie(tmp_path: Path) -> None:
    places: dict[str, Any] = {"index_directories": (tmp_path / "i0", tmp_path / "i1")}
    with opened(tmp_path, **places) as bookie:
        fill(bookie, 0, 2)
        bookie.storage.checkpoint()
        found = [list((tmp_path / name / "current").rglob("*.idx")) for name in ("i0", "i1")]
        assert all(found)
        for path in found[0]:  # moved by an operator
            target = tmp_path / "i1/current" / path.relative_to(tmp_path / "i0/current")
            target.parent.mkdir(parents=True, exist_ok=True)
            path.rename(target)
        fill(bookie, 2, 2)
        bookie.storage.checkpoint()
        assert not list((tmp_path / "i0/current").rglob("*.idx"))
    with opened(tmp_path, **places) as bookie:
        for number in LEDGERS:
            assert list(bookie.storage.reader.entry_ids(bookie.ledger(number))) == [(0, 4)]
        assert list(bookie.storage.ledger_ids()) == list(LEDGERS)


def test_a_directory_that_is_not_writable_gets_no_new_log_and_no_new_index_file(tmp_path: Path) -> None:
    bookie = OpenStorage(tmp_path, ledger_directories=(tmp_path / "l0", tmp_path / "l1"))
    bookie.disks.for_entry_logs = [tmp_path / "l1"]
    bookie.disks.for_index_files = [tmp_path / "l1"]
    fill(bookie, 0, 1)
    bookie.storage.checkpoint()
    assert [path.name for path in (tmp_path / "l0/current").iterdir() if path.suffix == ".log"] == []
    assert list((tmp_path / "l0/current").rglob("*.idx")) == []
    bookie.disks.for_entry_logs = [tmp_path / "l0"]
    fill(bookie, 1, 1)
    bookie.storage.checkpoint()
    assert len(list((tmp_path / "l0/current").glob("*.log"))) == 1
    assert bookie.storage.stores[0].logs.complete_logs() == [0]
    bookie.storage.close()


def test_what_a_relocation_left_is_brought_to_an_end(tmp_path: Path) -> None:
    with opened(tmp_path) as bookie:
        bookie.add(1, 0)
        bookie.add(2, 0)
    leaves = tmp_path / "ledgers/current/0"
    (leaves / "1/1.idx").rename(leaves / "1/1.idx.rloc")
    shutil.copy(leaves / "2/2.idx", leaves / "2/2.idx.rloc")
    with opened(tmp_path) as bookie:
        assert list(bookie.storage.ledger_ids()) == [1, 2]
        assert bookie.storage.reader.read_entry(bookie.ledger(1), 0) == packet(1, 0)
    assert not list(leaves.rglob("*.rloc"))


# Deleting


@pytest.mark.parametrize("storage", ["sorted", "db"])
@pytest.mark.parametrize("flushed", [False, True])
def test_a_deleted_ledger_is_gone_and_stays_gone(tmp_path: Path, storage: str, flushed: bool) -> None:
    with opened(tmp_path, storage=storage) as bookie:
        for number in (1, 2, 3):
            bookie.add(number, 0, 1)
        bookie.fence(2)
        bookie.storage.checkpoint()
        if not flushed:
            bookie.add(1, 2)
            bookie.add(2, 2)
        held = bookie.ledger(1)
        bookie.storage.delete_ledgers([1, 2, 77])
        assert list(bookie.storage.ledger_ids()) == [3]
        assert bookie.storage.ledgers.get(LedgerId.unscoped(1)) is None
        with pytest.raises(NoSuchEntryException):
            bookie.storage.reader.read_entry(held, 0)
        assert [bookie.storage.was_fenced_and_deleted(LedgerId.unscoped(n)) for n in (1, 2, 3)] == [False, True, False]
        assert not bookie.storage.was_fenced_and_deleted(LedgerId(1, 2))
        bookie.storage.checkpoint()
    with opened(tmp_path, storage=storage) as bookie:
        assert list(bookie.storage.ledger_ids()) == [3]
        assert bookie.storage.reader.read_entry(bookie.ledger(3), 1) == packet(3, 1)


def test_a_ledger_in_memory_alone_can_be_deleted(tmp_path: Path) -> None:
    with opened(tmp_path) as bookie:
        bookie.add(1, 0)
        bookie.fence(2)
        assert list(bookie.storage.ledger_ids()) == [1, 2]
        bookie.storage.delete_ledgers([1, 2])
        assert list(bookie.storage.ledger_ids()) == []
        bookie.storage.checkpoint()
        assert list(bookie.storage.ledger_ids()) == []


@pytest.mark.parametrize("storage", ["sorted", "db"])
def test_what_comes_for_a_ledger_that_was_just_deleted_makes_it_anew(tmp_path: Path, storage: str) -> None:
    """A request holds the ledger while it is deleted: nothing of it may end in a header without its ledger."""
    with opened(tmp_path, storage=storage) as bookie:
        held: list[BookieLedgerState] = []
        for number in (1, 2, 3):
            bookie.add(number, 0)
            held.append(bookie.ledger(number))
        bookie.storage.checkpoint()
        bookie.storage.delete_ledgers([1, 2, 3])
        bookie.writer.add_entry(held[0], 5, packet(1, 5), "add")
        bookie.writer.fence(held[1], "fence")
        bookie.writer.write_explicit_lac(held[2], lac_packet(3, 4), "lac")
        bookie.acks.wait_for("add", "fence", "lac")
        bookie.storage.checkpoint()
        assert bookie.ledger(2).fenced
    with opened(tmp_path, storage=storage) as bookie:
        assert list(bookie.storage.reader.entry_ids(bookie.ledger(1))) == [(5, 1)]
        assert bookie.ledger(1).master_key == KEY
        assert (bookie.ledger(1).fenced, bookie.ledger(2).fenced) == (False, True)
        assert bookie.ledger(3).explicit_lac == lac_packet(3, 4)


def test_a_replay_may_bring_a_deleted_ledger_back_whole(tmp_path: Path) -> None:
    """Its key record stands behind the mark; garbage collection removes it again."""
    bookie = OpenStorage(tmp_path / "root")
    bookie.add(1, 0, 1)
    bookie.storage.delete_ledgers([1])
    shutil.copytree(tmp_path / "root", tmp_path / "crashed")
    bookie.storage.close()
    with opened(tmp_path / "crashed") as again:
        assert list(again.storage.reader.entry_ids(again.ledger(1))) == [(0, 2)]
        again.storage.delete_ledgers([1])
    with opened(tmp_path / "crashed") as again:
        assert list(again.storage.ledger_ids()) == []
