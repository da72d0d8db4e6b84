"""Reading ahead, and batches of entries by few reads: what is served is always what the index points to."""

from __future__ import annotations

import functools
import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bookgate.bookie.entry_logs import format as fmt
from bookgate.bookie.entry_logs import read_ahead
from bookgate.bookie.entry_logs.entry_logs import EntryLogs
from bookgate.bookie.entry_logs.read_ahead import MAX_WINDOW, MIN_WINDOW, PACKET_OVERHEAD, ReadAhead
from bookgate.bookie.storage.batch_size import BatchSize
from bookgate.bookie.system.files import REAL_FILE_SYSTEM, FileSystem, StorageCorruptException
from bookgate.ledger.errors import NoSuchEntryException
from tests.unit.bookie.storage.storage_support import OpenStorage, opened, packet, read_entries


class CountingReads(FileSystem):
    """Counts reads of entry logs, and their bytes."""

    def __init__(self) -> None:
        self._logs: set[int] = set()
        self.reads = 0
        self.bytes = 0

    def open(self, path: Path, flags: int) -> int:
        fd = super().open(path, flags)
        if path.suffix == ".log" and not flags & os.O_CREAT:
            self._logs.add(fd)
        return fd

    def close(self, fd: int) -> None:
        self._logs.discard(fd)
        super().close(fd)

    def pread(self, fd: int, size: int, offset: int) -> bytes:
        data = super().pread(fd, size, offset)
        if fd in self._logs:
            self.reads += 1
            self.bytes += len(data)
        return data


@pytest.fixture
def files() -> CountingReads:
    return CountingReads()


def filled(root: Path, files: FileSystem, count: int, size: int = 100, **changes: object) -> OpenStorage:
    bookie = OpenStorage(root, files, **changes)
    for entry_id in range(count):
        bookie.writer.add_entry(bookie.ledger(1), entry_id, packet(1, entry_id, size), None)
        bookie.writer.add_entry(bookie.ledger(2), entry_id, packet(2, entry_id, size), None)
    bookie.storage.checkpoint()
    return bookie


def test_a_sequential_reader_needs_few_reads(tmp_path: Path, files: CountingReads) -> None:
    bookie = filled(tmp_path, files, 3000)
    ledger = bookie.ledger(1)
    found = [bookie.storage.reader.read_entry(ledger, index) for index in range(3000)]
    assert found == [packet(1, i, 100) for i in range(3000)]
    assert files.reads < 20
    assert files.bytes < 4 * 3000 * 136
    bookie.storage.close()


def test_readers_at_random_read_nothing_ahead(tmp_path: Path, files: CountingReads) -> None:
    bookie = filled(tmp_path, files, 500)
    for index in range(498, 0, -2):
        assert bookie.storage.reader.read_entry(bookie.ledger(1), index) == packet(1, index, 100)
    assert files.reads == 249
    assert files.bytes <= 249 * MIN_WINDOW
    bookie.storage.close()


def test_an_entry_that_was_read_ahead_and_then_replaced_is_served_anew(tmp_path: Path, files: CountingReads) -> None:
    bookie = filled(tmp_path, files, 10)
    ledger = bookie.ledger(1)
    for index in range(3):
        bookie.storage.reader.read_entry(ledger, index)
    bookie.writer.add_entry(ledger, 5, packet(1, 5, fill=99), "again")
    bookie.storage.checkpoint()
    assert bookie.storage.reader.read_entry(ledger, 5) == packet(1, 5, fill=99)
    assert read_entries(bookie, ledger, 4, 3, 10_000) == [
        packet(1, 4, 100),
        packet(1, 5, fill=99),
        packet(1, 6, 100),
    ]
    bookie.storage.close()


def test_what_is_not_flushed_yet_is_not_read_ahead(tmp_path: Path) -> None:
    """A flush may be writing there: what would be kept may be half of a record."""
    logs = EntryLogs(REAL_FILE_SYSTEM, [tmp_path], max_bytes=1 << 30, open_files=10, read_ahead_bytes=1 << 20)
    locations = logs.append(1, [packet(1, index) for index in range(3)])
    logs.flushed()
    later = logs.append(1, [packet(1, index) for index in range(3, 6)])
    for index in range(2):
        logs.read(locations[index], 1, index)
    with (tmp_path / "0.log").open("r+b") as file:
        for location, entry_id in ((locations[2], 2), (later[0], 3)):
            file.seek(fmt.split_location(location)[1])
            file.write(packet(1, entry_id, fill=77))
    assert logs.read(locations[2], 1, 2) == packet(1, 2), "kept"
    assert logs.read(later[0], 1, 3) == packet(1, 3, fill=77)
    logs.close()


def test_a_log_of_a_compaction_is_read_ahead_once_it_is_finished(tmp_path: Path, files: CountingReads) -> None:
    logs = EntryLogs(files, [tmp_path], max_bytes=1 << 30, open_files=10, read_ahead_bytes=1 << 20)
    log = logs.new_log()
    locations = log.append(1, [packet(1, index) for index in range(20)])
    assert [logs.read(location, 1, index) for index, location in enumerate(locations)][19] == packet(1, 19)
    assert files.reads == 20
    log.finish()
    assert [logs.read(location, 1, index) for index, location in enumerate(locations)][19] == packet(1, 19)
    assert files.reads < 20 + 5
    logs.close()


def records(runs: list[tuple[int, int]]) -> Iterator[bytes]:
    for ledger_id, entry_id in runs:
        yield packet(ledger_id, entry_id)


def test_only_consecutive_entries_of_the_ledger_are_kept_and_the_window_follows_use() -> None:
    data = fmt.encode_records(list(records([(1, 4), (1, 5), (1, 6), (1, 8), (2, 9)])))
    step = len(packet(1, 4)) + 4
    ahead = ReadAhead(1 << 20)
    assert ahead.window(1, 4) == 0
    ahead.keep(5000, 1, 4, data, MAX_WINDOW)
    assert [ahead.get(5000 + index * step) for index in range(5)] == [None, packet(1, 5), packet(1, 6), None, None]
    assert ahead.window(1, 7) == MIN_WINDOW
    ahead.keep(9000, 1, 7, fmt.encode_records([packet(1, 7), packet(1, 8)])[:-5], MIN_WINDOW)
    assert ahead.window(1, 8) == 2 * MIN_WINDOW
    assert ahead.window(3, 8) == 0


def test_memory_is_bounded_and_the_oldest_goes_first() -> None:
    ahead, locations = ReadAhead(100_000), []
    for start in range(0, 2000, 10):
        data = fmt.encode_records([packet(1, start + index, 200) for index in range(10)])
        ahead.keep(10_000 * start + 4, 1, start, data, MIN_WINDOW)
        locations += [10_000 * start + 4 + index * (len(data) // 10) for index in range(10)]
    kept = [location for location in locations if ahead.get(location)]
    assert 200 < len(kept) <= 100_000 // 350
    assert min(kept) > 10_000 * 1000
    assert ahead.usage == (len(kept), len(kept) * (len(packet(1, 0, 200)) + PACKET_OVERHEAD))


def test_nothing_is_served_for_long_and_what_is_read_again_takes_its_place(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is on the disk may have been damaged since."""
    data = fmt.encode_records([packet(1, 0), packet(1, 1)])
    second = 5000 + len(packet(1, 0)) + 4
    ahead = ReadAhead(1 << 20)
    monkeypatch.setattr(read_ahead, "_LONGEST_SECONDS", 0.0)
    ahead.keep(5000, 1, 0, data, MIN_WINDOW)
    assert ahead.get(second) is None
    usage = ahead.usage
    monkeypatch.setattr(read_ahead, "_LONGEST_SECONDS", 60.0)
    ahead.keep(5000, 1, 0, data, MIN_WINDOW)
    assert ahead.get(second) == packet(1, 1)
    assert ahead.usage == usage


def test_reading_ahead_can_be_turned_off(tmp_path: Path, files: CountingReads) -> None:
    bookie = filled(tmp_path, files, 50, read_ahead_bytes=0)
    for index in range(50):
        assert bookie.storage.reader.read_entry(bookie.ledger(1), index) == packet(1, index, 100)
    assert files.reads == 50
    bookie.storage.close()


# Batches


def test_a_batch_of_entries_in_a_row_is_one_read(tmp_path: Path, files: CountingReads) -> None:
    bookie = filled(tmp_path, files, 1000)
    found = read_entries(bookie, bookie.ledger(1), 100, 800, 1 << 20)
    assert found == [packet(1, i, 100) for i in range(100, 900)]
    assert files.reads == 1
    bookie.storage.close()


@pytest.mark.parametrize("storage", ["sorted", "db"])
def test_a_batch_over_cache_index_and_holes(tmp_path: Path, storage: str) -> None:
    with opened(tmp_path, storage=storage) as bookie:
        bookie.add(1, *range(10), 11)
        bookie.storage.checkpoint()
        bookie.writer.add_entry(bookie.ledger(1), 4, packet(1, 4, fill=44), "again")
        bookie.add(1, 12, 13)
        bookie.acks.wait_for("again")
        ledger = bookie.ledger(1)
        read = functools.partial(read_entries, bookie)
        expected = [packet(1, i, fill=44 if i == 4 else None) for i in range(10)]
        assert read(ledger, 0, 100, 1 << 20) == expected
        assert read(ledger, 3, 2, 1 << 20) == expected[3:5]
        assert read(ledger, 11, 100, 1 << 20) == [packet(1, i) for i in (11, 12, 13)]
        size = len(packet(1, 0)) + 4
        assert read(ledger, 0, 100, 36 + 3 * size) == expected[:3]
        assert read(ledger, 0, 100, 36 + 3 * size - 1) == expected[:2]
        assert read(ledger, 0, 100, 1) == expected[:1]
        for missing in (10, 14, -1, 1 << 50):
            with pytest.raises(NoSuchEntryException):
                read(ledger, missing, 5, 1 << 20)


@settings(deadline=None, max_examples=30)
@given(
    st.lists(st.lists(st.integers(0, 30), min_size=1, max_size=20, unique=True), min_size=1, max_size=4),
    st.integers(0, 30),
    st.integers(1, 40),
    st.integers(1, 3000),
)
def test_a_batch_is_what_single_reads_give(
    tmp_path_factory: pytest.TempPathFactory, flushes: list[list[int]], first: int, count: int, max_bytes: int
) -> None:
    with opened(tmp_path_factory.mktemp("batch"), entry_log_max_bytes=1500) as bookie:
        held: dict[int, bytes] = {}
        for fill, ids in enumerate(flushes):
            for entry_id in ids:
                held[entry_id] = packet(1, entry_id, 10 * (entry_id % 7), fill=fill)
                bookie.writer.add_entry(bookie.ledger(1), entry_id, held[entry_id], None)
            if fill % 3 != 2:
                bookie.storage.checkpoint()
        if first not in held:
            return
        expected: list[bytes] = []
        batch = BatchSize(count, max_bytes, max_bytes)
        for entry_id in range(first, first + count):
            if entry_id not in held or not batch.take([len(held[entry_id]) + 4]):
                break
            expected.append(held[entry_id])
        assert read_entries(bookie, bookie.ledger(1), first, count, max_bytes) == expected


def test_entries_among_others_are_runs_of_one_read(tmp_path: Path, files: CountingReads) -> None:
    """Other ledgers' records stand between them, as a bookie with interleaved storage leaves its logs."""
    logs = EntryLogs(files, [tmp_path], max_bytes=1 << 30, open_files=10, read_ahead_bytes=0)
    locations = []
    for index in range(12):
        locations += logs.append(1, [packet(1, index, 200 - 10 * index)])
        if index % 3 == 2:
            logs.append(2, [packet(2, index)])
    logs.flushed()
    runs = logs.read_runs(locations, 1, 0, 1 << 20)
    assert [len(run.ends) for run in runs] == [3, 3, 3, 3]
    assert [each for run in runs for each in run.packets()] == [
        packet(1, index, 200 - 10 * index) for index in range(12)
    ]
    assert files.reads == 1
    logs.close()


def test_a_damaged_entry_ends_a_batch_and_is_an_error_when_it_is_the_first(tmp_path: Path) -> None:
    bookie = filled(tmp_path, REAL_FILE_SYSTEM, 20)
    ledger = bookie.ledger(1)
    location = bookie.storage.stores[0].index.location(ledger.ledger_id, 7)
    with (tmp_path / "ledgers/current/0.log").open("r+b") as file:
        file.seek(fmt.split_location(location)[1])
        file.write(bytes(16))
    assert read_entries(bookie, ledger, 0, 100, 1 << 20) == [packet(1, i, 100) for i in range(7)]
    with pytest.raises(StorageCorruptException):
        read_entries(bookie, ledger, 7, 100, 1 << 20)
    bookie.storage.close()


def test_an_entry_that_a_compaction_moved_while_it_was_looked_up_is_found(tmp_path: Path) -> None:
    """The location leads to a log that is gone by the time it is read."""
    bookie = filled(tmp_path, REAL_FILE_SYSTEM, 3)
    ledger = bookie.ledger(1)
    store = bookie.storage.stores[0]
    old = store.index.locations(ledger.ledger_id, 0, 3)
    log = store.logs.new_log()
    new = log.append(1, [packet(1, index, 100) for index in range(3)])
    log.finish()
    answers = [old[0], new[0], new[0]]
    store.index.location = lambda ledger_id, entry_id: answers.pop(0)  # type: ignore[method-assign]
    store.logs.remove(fmt.split_location(old[0])[0])
    assert bookie.storage.reader.read_entry(ledger, 0) == packet(1, 0, 100)
    bookie.storage.close()


def test_an_index_that_fails_ends_a_batch_and_is_an_error_for_the_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with opened(tmp_path) as bookie:
        bookie.add(1, *range(5, 10))
        bookie.storage.checkpoint()
        bookie.add(1, *range(5))

        def failing(*arguments: object) -> None:
            raise OSError("the disk is on fire")

        with monkeypatch.context() as patched:
            patched.setattr(bookie.storage.stores[0].index, "locations", failing)
            found = read_entries(bookie, bookie.ledger(1), 0, 10, 1 << 20)
            assert found == [packet(1, index) for index in range(5)]
            with pytest.raises(OSError, match="on fire"):
                read_entries(bookie, bookie.ledger(1), 5, 10, 1 << 20)
