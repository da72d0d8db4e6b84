"""Compaction and the removal of entry logs, on real storages: what is alive stays readable, what is dead goes."""

from __future__ import annotations

import errno
import os
import threading
from collections.abc import Iterable
from pathlib import Path

import pytest
from rocksdict import Rdict, WriteBatch

from bookgate.bookie.collection.log_removal import LogRemoval
from bookgate.bookie.collection.rules import CompactionRule
from bookgate.bookie.collection.statistics import GcStatistics
from bookgate.bookie.collection.throttle import StoppedException, Throttle
from bookgate.bookie.entry_logs import format as fmt
from bookgate.bookie.index.index_list import LIST_FILE
from bookgate.bookie.index.rocksdb_database import Database
from bookgate.bookie.system.files import FileSystem, StorageCorruptException
from bookgate.ledger.ledger_id import LedgerId
from tests.unit.bookie.collection.collection_support import Collection
from tests.unit.bookie.storage.storage_support import OpenStorage, opened, packet
from tests.unit.bookie.storage.test_storage import refuse_writes

SMALL_LOGS = 3000
BOTH = pytest.mark.parametrize("kind", ["sorted", "db"])


def fill(bookie: OpenStorage, ledgers: Iterable[int], rounds: int = 4, each: int = 10) -> None:
    """Entries of all ledgers in every log: a checkpoint after each round."""
    numbers = list(ledgers)
    for start in range(0, rounds * each, each):
        for number in numbers:
            bookie.add(number, *range(start, start + each))
        bookie.storage.checkpoint()


def serves(bookie: OpenStorage, number: int, count: int) -> None:
    ledger = bookie.storage.ledgers.get(LedgerId.unscoped(number))
    assert ledger is not None
    assert list(bookie.storage.reader.entry_ids(ledger)) == [(0, count)]
    for entry_id in range(count):
        assert bookie.storage.reader.read_entry(ledger, entry_id) == packet(number, entry_id)


def bytes_of_logs(root: Path) -> int:
    return sum(path.stat().st_size for path in (root / "ledgers/current").glob("*.log"))


@BOTH
def test_logs_of_deleted_ledgers_go_and_the_others_stay(tmp_path: Path, kind: str) -> None:
    with opened(tmp_path, storage=kind, entry_log_max_bytes=SMALL_LOGS) as bookie:
        fill(bookie, [1], rounds=8)
        fill(bookie, [2], rounds=8)
        collection = Collection(bookie.storage)
        before = collection.complete_logs()
        bookie.storage.delete_ledgers([1])
        collection.logs.collect()
        assert 0 < len(collection.complete_logs()) < len(before)
        assert collection.statistics.reclaimed_by_deletion > 0
        serves(bookie, 2, 80)
    with opened(tmp_path, storage=kind, entry_log_max_bytes=SMALL_LOGS) as bookie:
        serves(bookie, 2, 80)
        assert bookie.storage.ledgers.get(LedgerId.unscoped(1)) is None


@BOTH
def test_compaction_gives_the_space_of_deleted_ledgers_back(tmp_path: Path, kind: str) -> None:
    with opened(tmp_path, storage=kind, entry_log_max_bytes=SMALL_LOGS) as bookie:
        fill(bookie, [1, 2, 3, 4])
        collection = Collection(bookie.storage)
        collection.run()
        full = bytes_of_logs(tmp_path)
        assert len(collection.complete_logs()) > 3
        bookie.storage.delete_ledgers([1, 2, 4])
        collection.run()
        assert bytes_of_logs(tmp_path) < full / 2
        assert collection.statistics.reclaimed_by_compaction > 0
        serves(bookie, 3, 40)
        fill(bookie, [5])
        serves(bookie, 3, 40)
    with opened(tmp_path, storage=kind, entry_log_max_bytes=SMALL_LOGS) as bookie:
        serves(bookie, 3, 40)
        serves(bookie, 5, 40)
        Collection(bookie.storage).run()
        serves(bookie, 3, 40)
        bookie.storage.delete_ledgers([3, 5])
        collection = Collection(bookie.storage)
        collection.run()
        assert collection.complete_logs() == []


class FullIndex(FileSystem):
    """Index files, or others with this suffix, find no space, when it is told so."""

    full = False

    def __init__(self, suffix: str = ".idx") -> None:
        self._suffix = suffix
        self._of_index = set[int]()

    def open(self, path: Path, flags: int) -> int:
        fd = super().open(path, flags)
        (self._of_index.add if path.suffix == self._suffix else self._of_index.discard)(fd)
        return fd

    def pwrite(self, fd: int, data: bytes, offset: int) -> None:
        if self.full and fd in self._of_index:
            raise OSError(errno.ENOSPC, "no room left")
        super().pwrite(fd, data, offset)


LIST_SUFFIX = Path(LIST_FILE).suffix


@pytest.mark.parametrize(("kind", "suffix"), [("sorted", ".idx"), ("sorted", LIST_SUFFIX), ("db", ".idx")])
def test_a_compaction_that_finds_no_space_for_the_index_keeps_the_logs_and_the_bookie_goes_on(
    tmp_path: Path, kind: str, suffix: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = FullIndex(suffix)
    with opened(tmp_path, files, storage=kind, entry_log_max_bytes=SMALL_LOGS) as bookie:
        fill(bookie, [1, 2, 3, 4])
        bookie.storage.delete_ledgers([1, 2, 4])
        collection = Collection(bookie.storage, files)
        collection.logs.collect()
        before = collection.complete_logs()
        with monkeypatch.context() as patch:
            refuse_writes(patch, "locations")
            files.full = True
            with pytest.raises(OSError, match="no room left") as caught:
                collection.run()
            files.full = False
        assert caught.value.errno == errno.ENOSPC
        assert bookie.storage.is_sound
        assert set(before) <= set(collection.complete_logs())
        serves(bookie, 3, 40)
        collection.run()
        assert not set(before) & set(collection.complete_logs())
        serves(bookie, 3, 40)
    with opened(tmp_path, storage=kind, entry_log_max_bytes=SMALL_LOGS) as bookie:
        serves(bookie, 3, 40)


def test_no_log_is_removed_while_a_database_that_found_no_space_shows_what_may_not_be_on_the_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """RocksDB may have written a batch whose sync found no space; a read-only database shows it."""
    with opened(tmp_path, storage="db", entry_log_max_bytes=SMALL_LOGS) as bookie:
        fill(bookie, [1, 2])
        collection = Collection(bookie.storage)
        collection.logs.collect()
        before = collection.complete_logs()
        write = Database.write

        def written_and_not_synced(database: Database, batch: WriteBatch) -> None:
            write(database, batch)
            database._writable = False
            raise OSError(errno.ENOSPC, "no room left")

        with monkeypatch.context() as patch:
            patch.setattr(Database, "write", written_and_not_synced)
            patch.setattr(Database, "_open", without_space)
            for _ in range(2):
                with pytest.raises(OSError, match="no room left"):
                    collection.logs.compact(CompactionRule(1.1, 1))
            assert set(before) <= set(collection.complete_logs())
        collection.logs.compact(CompactionRule(1.1, 1))
        assert not set(before) & set(collection.complete_logs())
        serves(bookie, 1, 40)
        serves(bookie, 2, 40)


def without_space(database: Database, read_only: bool) -> Rdict:
    raise OSError(errno.ENOSPC, "no room left")


def test_nothing_is_compacted_above_the_threshold(tmp_path: Path) -> None:
    with opened(tmp_path, entry_log_max_bytes=SMALL_LOGS) as bookie:
        fill(bookie, [1, 2])
        bookie.storage.delete_ledgers([1])
        collection = Collection(bookie.storage)
        before = collection.complete_logs()
        collection.run(threshold=0.2)
        assert collection.complete_logs() == before
        assert collection.statistics.active_entry_logs == len(before)
        assert 0.3 < collection.statistics.compaction_ratio() < 0.7


def test_an_older_copy_of_an_entry_is_dead(tmp_path: Path) -> None:
    """An entry that was written again, as recovery does: only the copy that the index points at moves."""
    with opened(tmp_path, entry_log_max_bytes=SMALL_LOGS) as bookie:
        for _ in range(3):
            fill(bookie, [1, 2], rounds=2)
        newest = [bookie.storage.stores[0].index.location(LedgerId.unscoped(1), entry) for entry in range(20)]
        bookie.storage.delete_ledgers([2])
        collection = Collection(bookie.storage)
        collection.run()
        serves(bookie, 1, 20)
        moved = [bookie.storage.stores[0].index.location(LedgerId.unscoped(1), entry) for entry in range(20)]
        assert any(new != old for new, old in zip(moved, newest, strict=True))
        assert bytes_of_logs(tmp_path) < 6000


def test_an_entry_written_again_during_the_compaction_keeps_its_new_place(tmp_path: Path) -> None:
    with opened(tmp_path, entry_log_max_bytes=SMALL_LOGS) as bookie:
        fill(bookie, [1, 2])
        bookie.storage.delete_ledgers([2])
        collection = Collection(bookie.storage)
        collection.logs.collect()
        again = packet(1, 0, fill=0x77)
        store = bookie.storage.stores[0]
        scan = store.logs.scan
        holder = store.index.location(LedgerId.unscoped(1), 0) >> 32

        def scan_while_writing(log_id: int) -> Iterable[object]:
            yield from scan(log_id)
            if log_id != holder:
                return
            bookie.writer.add_entry(bookie.ledger(1), 0, again, ("again", log_id))
            bookie.acks.wait_for(("again", log_id))
            bookie.storage.checkpoint()

        store.logs.scan = scan_while_writing  # type: ignore[method-assign,assignment]
        collection.logs.compact(CompactionRule(0.9, 1))
        assert bookie.storage.reader.read_entry(bookie.ledger(1), 0) == again
        assert bookie.storage.reader.read_entry(bookie.ledger(1), 39) == packet(1, 39)
    with opened(tmp_path, entry_log_max_bytes=SMALL_LOGS) as bookie:
        assert bookie.storage.reader.read_entry(bookie.ledger(1), 0) == again


def test_the_log_that_a_stop_left_is_compacted_as_well(tmp_path: Path) -> None:
    """It has no map; with the tail of a record, as a kill leaves it."""
    with opened(tmp_path) as bookie:
        fill(bookie, [1, 2])
    log = tmp_path / "ledgers/current/0.log"
    with log.open("ab") as file:
        file.write(fmt.encode_records([packet(1, 40)])[:30])
    with opened(tmp_path) as bookie:
        bookie.storage.delete_ledgers([2])
        collection = Collection(bookie.storage)
        collection.run()
        assert not log.exists()
        serves(bookie, 1, 40)
        assert collection.statistics.failed_deletions == 0


def test_a_compaction_whose_time_is_over_leaves_the_rest_to_the_next(tmp_path: Path) -> None:
    with opened(tmp_path) as bookie:
        fill(bookie, [1])
        fill(bookie, [1])
    with opened(tmp_path) as bookie:
        collection = Collection(bookie.storage)
        collection.logs.collect()
        collection.logs.compact(CompactionRule(0.8, 1, max_seconds=1e-9))
        assert collection.complete_logs() == [0]
        collection.logs.compact(CompactionRule(0.8, 1, max_seconds=3600))
        assert collection.complete_logs() != [0]
        serves(bookie, 1, 40)


def test_of_a_log_without_map_only_what_the_index_points_at_is_in_use(tmp_path: Path) -> None:
    with opened(tmp_path) as bookie:
        fill(bookie, [1])
        fill(bookie, [1])
    with opened(tmp_path) as bookie:
        collection = Collection(bookie.storage)
        collection.logs.collect()
        assert collection.statistics.compaction_ratio() == pytest.approx(0.5, abs=0.01)
        collection.logs.compact(CompactionRule(0.2, 1))
        assert collection.complete_logs() == [0]
        collection.logs.compact(CompactionRule(0.8, 1))
        serves(bookie, 1, 40)
        assert bytes_of_logs(tmp_path) < 5500


def damage(path: Path, needle: bytes, length: int) -> None:
    """Gives the record that holds the packet an impossible or misleading length."""
    content = path.read_bytes()
    place = content.index(needle) - 4
    path.write_bytes(content[:place] + length.to_bytes(4, "big", signed=True) + content[place + 4 :])


@BOTH
@pytest.mark.parametrize("length", [5, 1 << 30, 0, -1, 168])
def test_a_damaged_log_is_kept_and_the_others_go_on(tmp_path: Path, kind: str, length: int) -> None:
    with opened(tmp_path, storage=kind, entry_log_max_bytes=SMALL_LOGS) as bookie:
        fill(bookie, [1, 2])
        path = tmp_path / "ledgers/current/1.log"
        damage(path, next(p for p in (packet(1, e) for e in range(40)) if p in path.read_bytes()), length)
        bookie.storage.delete_ledgers([2])
        collection = Collection(bookie.storage)
        before = collection.complete_logs()
        collection.run()
        assert path.exists()
        assert collection.statistics.failed_deletions == 1
        assert set(collection.complete_logs()) & set(before) == {1}


@pytest.mark.parametrize("length", [1 << 30, 5000, 168])
def test_entries_hidden_in_a_log_without_map_keep_it(tmp_path: Path, length: int) -> None:
    """What the scan can't see the index still points at."""
    with opened(tmp_path) as bookie:
        fill(bookie, [1, 2])
    path = tmp_path / "ledgers/current/0.log"
    damage(path, packet(1, 1), length)
    with opened(tmp_path) as bookie:
        bookie.storage.delete_ledgers([2])
        collection = Collection(bookie.storage)
        collection.run()
        assert path.exists()
        assert collection.statistics.failed_deletions == 1


def test_a_stop_ends_it_at_the_next_record_and_nothing_is_lost(tmp_path: Path) -> None:
    with opened(tmp_path, entry_log_max_bytes=SMALL_LOGS) as bookie:
        fill(bookie, [1, 2], rounds=8)
        bookie.storage.delete_ledgers([2])
        collection = Collection(bookie.storage)
        collection.logs.collect()
        before = collection.complete_logs()
        store = bookie.storage.stores[0]
        scan = store.logs.scan
        seen = 0

        def scan_and_stop(log_id: int) -> Iterable[object]:
            nonlocal seen
            for record in scan(log_id):
                seen += 1
                if seen == 40:
                    collection.stopping.set()
                yield record

        store.logs.scan = scan_and_stop  # type: ignore[method-assign,assignment]
        with pytest.raises(StoppedException):
            collection.logs.compact(CompactionRule(0.9, 1))
        assert seen == 40
        assert 0 < len(set(collection.complete_logs()) & set(before)) < len(before)
        serves(bookie, 1, 80)
    with opened(tmp_path, entry_log_max_bytes=SMALL_LOGS) as bookie:
        serves(bookie, 1, 80)
        Collection(bookie.storage).run()
        serves(bookie, 1, 80)


def test_the_throttle_holds_back_and_a_stop_ends_the_wait() -> None:
    now = [0.0]
    waits: list[float] = []

    class Stopping(threading.Event):
        def wait(self, timeout: float | None = None) -> bool:
            assert timeout is not None
            waits.append(timeout)
            now[0] += timeout
            return self.is_set()

    stopping = Stopping()
    throttle = Throttle(100, by_bytes=False, stopping=stopping, clock=lambda: now[0])
    for _ in range(1000):
        throttle.copied(5000)
    assert 9.9 < sum(waits) <= 10.01
    waits.clear()
    for _ in range(1000):
        throttle.read(5000)
    assert 0.9 < sum(waits) <= 1.1
    by_bytes = Throttle(1000, by_bytes=True, stopping=stopping, clock=lambda: now[0])
    waits.clear()
    by_bytes.copied(2000)
    assert waits == [pytest.approx(2.0)]
    stopping.set()
    with pytest.raises(StoppedException):
        throttle.copied(1)


def stage(root: Path, old: int, new: int) -> Path:
    """Makes of log `old` what the Java bookie's compaction leaves before it updates the index."""
    current = root / "ledgers/current"
    compacted = current / f"{new:x}.log.{old:x}.compacted"
    compacted.write_bytes((current / f"{old:x}.log").read_bytes())
    (current / f"{new + 1:x}.log.compacting").write_bytes(b"half a log")
    return compacted


@pytest.mark.parametrize("linked", [False, True])
@pytest.mark.parametrize("decimal_name", [False, True])
def test_what_a_java_compaction_left_is_completed_with_hexadecimal_names(
    tmp_path: Path, linked: bool, decimal_name: bool
) -> None:
    with opened(tmp_path) as bookie:
        fill(bookie, [1, 2])
    compacted = stage(tmp_path, 0, 0x1F)
    current = compacted.parent
    if linked:
        os.link(compacted, current / "1f.log")
    if decimal_name:
        os.link(compacted, current / "31.log")
    with opened(tmp_path) as bookie:
        collection = Collection(bookie.storage)
        collection.run(threshold=0.0)
        serves(bookie, 1, 40)
        serves(bookie, 2, 40)
        index = bookie.storage.stores[0].index
        assert index.log_ids(LedgerId.unscoped(1)) == index.log_ids(LedgerId.unscoped(2)) == {0x1F}
        assert sorted(path.name for path in current.glob("*.log*")) == ["1f.log"]
    with opened(tmp_path) as bookie:
        serves(bookie, 1, 40)
        bookie.add(1, 40)


def test_a_log_that_only_looks_like_the_decimal_name_stays(tmp_path: Path) -> None:
    with opened(tmp_path) as bookie:
        fill(bookie, [1])
    compacted = stage(tmp_path, 0, 0x1F)
    other = compacted.parent / "31.log"
    other.write_bytes(fmt.encode_header() + fmt.encode_records([packet(7, 0)]))
    with opened(tmp_path) as bookie:
        Collection(bookie.storage).logs.settle_leftovers()
        assert other.exists()
        serves(bookie, 1, 40)


def test_a_leftover_that_is_damaged_stays_with_the_log_it_came_from(tmp_path: Path) -> None:
    with opened(tmp_path, entry_log_max_bytes=SMALL_LOGS) as bookie:
        fill(bookie, [1])
    compacted = stage(tmp_path, 0, 0x1F)
    damage(compacted, packet(1, 3), 1 << 29)
    with opened(tmp_path, entry_log_max_bytes=SMALL_LOGS) as bookie:
        collection = Collection(bookie.storage)
        collection.logs.settle_leftovers()
        collection.logs.collect()
        assert compacted.exists()
        assert (compacted.parent / "0.log").exists()
        serves(bookie, 1, 40)


def test_a_search_of_the_index_that_was_broken_off_goes_on_and_is_held_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before the first log of an earlier process goes; a damaged index file must not cost a whole search each time."""
    with opened(tmp_path) as bookie:
        fill(bookie, range(1, 201), rounds=1, each=1)
    waited: list[float] = []

    class NeverStopping(threading.Event):
        def wait(self, timeout: float | None = None) -> bool:
            waited.append(timeout or 0.0)
            return False

    with opened(tmp_path) as bookie:
        (store,) = bookie.storage.stores
        removal = LogRemoval(store, bookie.storage.exclusive, GcStatistics())
        throttle = Throttle(100, by_bytes=False, stopping=NeverStopping(), clock=lambda: 0.0)
        log_ids, searched, damaged = store.index.log_ids, list[int](), {150}

        def fails_once(ledger_id: LedgerId) -> set[int]:
            if ledger_id.low in damaged:
                raise StorageCorruptException("damaged")
            searched.append(ledger_id.low)
            return log_ids(ledger_id)

        monkeypatch.setattr(store.index, "log_ids", fails_once)
        assert removal.remove([0], range(1, 201), throttle) == []
        assert searched == list(range(1, 150))
        # In full, of which the last one is what they come to: this clock stands still.
        assert waited[-1] == pytest.approx(1.5, abs=0.1)
        damaged.clear()
        searched.clear()
        assert removal.remove([0], range(1, 201), throttle) == []
        assert min(searched[:72]) == 129
        assert sorted(searched[72:]) == list(range(1, 201))
