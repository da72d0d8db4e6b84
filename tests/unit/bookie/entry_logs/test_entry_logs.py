"""All entry logs of a store: which are complete, their maps, scans of whole and of damaged logs, removal."""

from __future__ import annotations

import errno
import os
import struct
from contextlib import nullcontext
from pathlib import Path

import pytest

from bookgate.bookie.entry_logs import format as fmt
from bookgate.bookie.entry_logs.entry_logs import EntryLogs
from bookgate.bookie.entry_logs.log_file import LogRecord
from bookgate.bookie.system.files import REAL_FILE_SYSTEM, StorageCorruptException
from tests.faults.memory_disk import MemoryDisk, Operation, nothing_survives
from tests.unit.bookie.storage.storage_support import packet


def opened(*directories: Path, max_bytes: int = 1 << 30) -> EntryLogs:
    for directory in directories:
        directory.mkdir(exist_ok=True)
    return EntryLogs(REAL_FILE_SYSTEM, directories, max_bytes=max_bytes, open_files=3)


def test_a_log_rotated_in_a_flush_is_complete_once_the_flush_has_ended(tmp_path: Path) -> None:
    """S2: before, its entries look dead, for the index does not point to them yet."""
    logs = opened(tmp_path, max_bytes=1500)
    logs.append(1, [packet(1, index, 300) for index in range(12)])
    assert logs.complete_logs() == []
    logs.sync()
    logs.flushed()
    assert logs.complete_logs() == list(range(11))
    logs.close()
    assert opened(tmp_path).complete_logs() == list(range(12))


def test_logs_of_earlier_processes_are_complete_and_leftovers_of_a_compaction_are_none(tmp_path: Path) -> None:
    first = opened(tmp_path)
    first.append(1, [packet(1, 0)])
    first.close()
    (tmp_path / "7.log.compacting").touch()
    (tmp_path / "8.log.3.compacted").touch()
    second = opened(tmp_path)
    assert second.complete_logs() == [0]
    second.append(1, [packet(1, 1)])
    assert second.complete_logs() == [0]
    second.close()


def test_maps_and_scans_agree_over_directories(tmp_path: Path) -> None:
    logs = opened(tmp_path / "a", tmp_path / "b", max_bytes=2000)
    expected: list[LogRecord] = []
    for entry_id in range(20):
        for ledger_id in (1, 2, 300):
            data = packet(ledger_id, entry_id, 50 + 10 * (entry_id % 5))
            expected.append(LogRecord(ledger_id, entry_id, logs.append(ledger_id, [data])[0], data))
    logs.flushed()
    found = [record for log_id in logs.complete_logs() for record in logs.scan(log_id)]
    assert found == expected[: len(found)]
    assert len(logs.complete_logs()) > 3
    for log_id in logs.complete_logs():
        sums: dict[int, int] = {}
        for record in logs.scan(log_id):
            sums[record.ledger_id] = sums.get(record.ledger_id, 0) + len(record.packet) + 4
        assert logs.ledgers_map(log_id) == sums
        assert logs.size(log_id) > fmt.HEADER_SIZE + sum(sums.values())
    logs.close()


def finished(directory: Path, count: int = 10) -> tuple[EntryLogs, Path, list[int]]:
    logs = opened(directory)
    log = logs.new_log()
    locations = log.append(1, [packet(1, index) for index in range(count)])
    log.finish()
    return logs, directory / fmt.file_name(log.log_id), locations


def test_a_log_without_map_is_scanned_up_to_where_it_was_torn(tmp_path: Path) -> None:
    logs = opened(tmp_path)
    locations = logs.append(1, [packet(1, index) for index in range(10)])
    logs.close()
    os.truncate(tmp_path / "0.log", (locations[9] & 0xFFFFFFFF) + 20)
    again = opened(tmp_path)
    assert again.ledgers_map(0) is None
    assert [record.entry_id for record in again.scan(0)] == list(range(9))


@pytest.mark.parametrize("length", [1, 15, 100_000])
def test_a_damaged_record_in_a_log_with_a_map_is_not_passed_over(tmp_path: Path, length: int) -> None:
    """Whoever collects would take what was not seen for dead (S2, S3)."""
    logs, path, locations = finished(tmp_path)
    with path.open("r+b") as file:
        file.seek((locations[4] & 0xFFFFFFFF) - 4)
        file.write(struct.pack(">i", length))
    seen: list[int] = []
    with pytest.raises(StorageCorruptException, match=r"0\.log.*offset"):
        seen.extend(record.entry_id for record in logs.scan(0))
    assert seen == [0, 1, 2, 3]


@pytest.mark.parametrize("padding", [bytes(5000), b"\xf0" * 4097, b"\xf0" * 7 + bytes(3_000_000)])
def test_padding_of_the_direct_writer_is_skipped(tmp_path: Path, padding: bytes) -> None:
    records = [fmt.encode_records([packet(1, index)]) for index in range(2)]
    dummy = struct.pack(">iq", 3068, -1).ljust(3072, b"\0")
    (tmp_path / "0.log").write_bytes(fmt.encode_header() + dummy + records[0] + padding + records[1] + bytes(9))
    assert [record.entry_id for record in opened(tmp_path).scan(0)] == [0, 1]


@pytest.mark.parametrize("size", [0, 1000, 1024])
def test_a_log_without_records(tmp_path: Path, size: int) -> None:
    (tmp_path / "0.log").write_bytes(fmt.encode_header()[:size])
    logs = opened(tmp_path)
    assert list(logs.scan(0)) == []
    assert logs.ledgers_map(0) is None
    assert logs.complete_logs() == [0]


def test_a_map_that_lies_is_rejected(tmp_path: Path) -> None:
    logs, path, _ = finished(tmp_path)
    assert logs.ledgers_map(0) is not None
    for offset, ledgers in ((1 << 40, 1), (1024, 1), (path.stat().st_size, 1), (-5, 1), (2000, 0x7FFFFFFF)):
        with path.open("r+b") as file:
            file.seek(fmt.MAP_FIELDS_OFFSET)
            file.write(fmt.encode_map_fields(offset, ledgers))
        assert logs.ledgers_map(0) is None


def test_a_removed_log_is_gone_for_good_and_its_readers_end_well(tmp_path: Path) -> None:
    logs, path, locations = finished(tmp_path)
    scan = iter(logs.scan(0))
    assert next(scan).entry_id == 0
    logs.remove(0)
    assert not path.exists()
    assert [record.entry_id for record in scan] == list(range(1, 10))
    with pytest.raises(StorageCorruptException, match="does not exist"):
        logs.read(locations[0], 1, 0)
    logs.remove(0)
    assert logs.complete_logs() == []


def test_an_abandoned_log_is_gone_and_its_id_is_not_complete(tmp_path: Path) -> None:
    logs = opened(tmp_path)
    log = logs.new_log()
    log.append(1, [packet(1, 0)])
    assert logs.complete_logs() == []
    log.abandon()
    assert list(tmp_path.glob("*.log")) == []
    logs.append(1, [packet(1, 0)])
    assert [path.name for path in tmp_path.glob("*.log")] == ["1.log"]
    logs.close()


def test_a_compaction_and_a_flush_never_share_a_log(tmp_path: Path) -> None:
    logs = opened(tmp_path)
    first = logs.append(1, [packet(1, 0)])
    log = logs.new_log()
    moved = log.append(1, [packet(1, 0)])
    second = logs.append(1, [packet(1, 1)])
    log.finish()
    assert [location >> 32 for location in (first[0], moved[0], second[0])] == [0, 1, 0]
    assert logs.complete_logs() == [1]
    logs.close()


@pytest.mark.parametrize(("error", "raises"), [(errno.ENOSPC, False), (errno.EIO, True)])
def test_a_log_of_a_compaction_whose_map_fails_is_complete_and_closed(tmp_path: Path, error: int, raises: bool) -> None:
    """Otherwise garbage collection would never look at it, just when the disk is full."""
    disk = MemoryDisk(tmp_path)

    def fail(operation: Operation) -> None:
        if operation.kind == "write":
            raise OSError(error, os.strerror(error))

    logs = EntryLogs(disk, [tmp_path], max_bytes=1 << 30, open_files=10)
    log = logs.new_log()
    (location,) = log.append(1, [packet(1, 0)])
    disk.on_operation = fail
    with pytest.raises(OSError, match=os.strerror(error)) if raises else nullcontext():
        log.finish()
    disk.on_operation = lambda operation: None
    assert not disk.open_paths
    assert logs.complete_logs() == [log.log_id]
    assert [record.packet for record in logs.scan(log.log_id)] == [packet(1, 0)]
    logs.close()
    left = disk.after_power_loss(nothing_survives)
    again = EntryLogs(left, [tmp_path], max_bytes=1 << 30, open_files=10)
    assert again.read(location, 1, 0) == packet(1, 0)
    again.close()


def test_many_ledgers_in_one_map(tmp_path: Path) -> None:
    logs = opened(tmp_path)
    log = logs.new_log()
    for ledger_id in range(10_500):
        log.append(ledger_id, [packet(ledger_id, 0, 1)])
    log.finish()
    found = logs.ledgers_map(0)
    assert found is not None
    assert len(found) == 10_500
    assert set(found.values()) == {len(packet(0, 0, 1)) + 4}
