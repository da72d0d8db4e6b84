"""Rules over disk usage, the monitor that measures, and the small files that tell of the mode."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bookgate.bookie.disks import directories
from bookgate.bookie.disks.directories import DirectoryException
from bookgate.bookie.disks.monitor import DiskMonitor, measure
from bookgate.bookie.disks.rules import DirectoryUsage, DiskEvent, DiskEventKind, DiskSpace, DiskThresholds
from bookgate.bookie.mode import status_files
from bookgate.bookie.mode.mode import BookieStatus
from bookgate.bookie.system.files import REAL_FILE_SYSTEM, FileSystem

A, B = Path("/a"), Path("/b")
TOTAL = 1000
FULL, WARN, LOW = 950, 900, 800
THRESHOLDS = DiskThresholds(
    full=FULL / TOTAL,
    warn=WARN / TOTAL,
    low_water=LOW / TOTAL,
    min_high_priority_bytes=20,
    min_entry_log_bytes=30,
    min_index_bytes=10,
)


def used(amount: int) -> DirectoryUsage:
    return DirectoryUsage(TOTAL, TOTAL - amount)


def kinds(events: Sequence[DiskEvent[Path]]) -> list[tuple[Path, DiskEventKind]]:
    return [(event.directory, event.kind) for event in events]


def one_disk() -> DiskSpace[Path]:
    return DiskSpace(THRESHOLDS, [A])


def levels(space: DiskSpace[Path], *amounts: int) -> list[DiskEventKind]:
    return [event.kind for amount in amounts for event in space.measured({A: used(amount)})]


def test_what_is_told_on_the_way_up_and_down() -> None:
    space = one_disk()
    assert levels(space, 100, WARN, WARN + 1, FULL, FULL + 1, 1000) == [
        DiskEventKind.DISK_ALMOST_FULL,
        DiskEventKind.DISK_FULL,
    ]
    assert levels(space, FULL, WARN, LOW + 1) == []
    assert space.demands_read_only
    assert levels(space, LOW) == [DiskEventKind.DISK_WRITABLE]
    assert not space.demands_read_only


def test_a_low_water_mark_above_the_warning_gives_a_disk_that_is_just_writable() -> None:
    space = DiskSpace(DiskThresholds(full=0.95, warn=0.90), [A])
    assert levels(space, 960, 940, 800) == [
        DiskEventKind.DISK_FULL,
        DiskEventKind.DISK_JUST_WRITABLE,
        DiskEventKind.DISK_WRITABLE,
    ]


def test_a_low_water_mark_above_the_threshold_counts_as_the_threshold() -> None:
    space = DiskSpace(DiskThresholds(full=0.90, warn=0.80, low_water=0.99), [A])
    levels(space, 950)
    assert levels(space, 950) == []
    assert space.demands_read_only


@pytest.mark.parametrize("any_full", [True, False])
def test_one_full_directory_of_two(any_full: bool) -> None:
    space = DiskSpace(DiskThresholds(any_full=any_full), [A, B])
    assert kinds(space.measured({A: used(990), B: used(10)})) == [(A, DiskEventKind.DISK_FULL)]
    assert space.demands_read_only == any_full
    assert space.writable() == space.for_new_entry_log() == space.for_new_index_file() == (B,)
    space.measured({A: used(990), B: used(990)})
    assert space.demands_read_only
    assert space.writable() == ()


def test_what_may_still_be_written_while_all_are_full() -> None:
    space = DiskSpace(THRESHOLDS, [A, B])
    space.measured({A: used(960), B: used(975)})
    assert space.for_new_entry_log() == (A,)
    assert space.for_new_index_file() == (A, B)
    assert space.room_for_high_priority
    space.measured({A: used(990), B: used(985)})
    assert space.for_new_entry_log() == ()
    assert space.for_new_index_file() == (B,)
    assert not space.room_for_high_priority


def test_a_disk_without_size_is_full() -> None:
    space = one_disk()
    space.measured({A: DirectoryUsage(0, 0)})
    assert space.demands_read_only


@given(st.lists(st.integers(0, TOTAL), max_size=30), st.lists(st.integers(LOW + 1, FULL), max_size=30))
def test_between_the_marks_nothing_ever_changes(history: list[int], around: list[int]) -> None:
    space = one_disk()
    levels(space, *history)
    before = space.demands_read_only
    for amount in around:
        space.measured({A: used(amount)})
        assert space.demands_read_only == before


@given(st.lists(st.tuples(st.integers(0, TOTAL), st.integers(0, TOTAL)), max_size=30))
def test_full_and_writable_follow_the_marks_and_are_told_once(history: list[tuple[int, int]]) -> None:
    space = DiskSpace(THRESHOLDS, [A, B])
    full = {A: False, B: False}
    for first, second in history:
        amounts = {A: first, B: second}
        events = kinds(space.measured({path: used(amount) for path, amount in amounts.items()}))
        for path, amount in amounts.items():
            before = full[path]
            full[path] = amount > (LOW if before else FULL)
            assert ((path, DiskEventKind.DISK_FULL) in events) == (full[path] and not before)
            back = {DiskEventKind.DISK_WRITABLE, DiskEventKind.DISK_JUST_WRITABLE} & {
                kind for each, kind in events if each == path
            }
            if before and not full[path]:
                assert back
        assert space.writable() == tuple(path for path in (A, B) if not full[path])
        assert space.demands_read_only == any(full.values())


# --- the monitor ---


def test_the_monitor_tells_of_each_directory_once_though_it_holds_ledgers_and_index() -> None:
    usages = {A: used(0), B: used(0)}
    monitor = DiskMonitor(THRESHOLDS, [A], [A, B], usages.__getitem__)
    told: list[DiskEvent[Path]] = []
    monitor.listeners.append(told.append)
    monitor.check_now()
    assert not told
    usages.update({A: used(960), B: used(960)})
    monitor.check_now()
    assert kinds(told) == [(A, DiskEventKind.DISK_FULL), (B, DiskEventKind.DISK_FULL)]
    assert monitor.demands_read_only
    assert monitor.writable_directories() == ()


def test_a_full_index_directory_alone_demands_read_only_mode() -> None:
    usages = {A: used(0), B: used(960)}
    monitor = DiskMonitor(THRESHOLDS, [A], [B], usages.__getitem__)
    monitor.check_now()
    assert monitor.demands_read_only
    assert monitor.writable_directories() == (A,)
    assert monitor.directories_for_index_files() == (B,)


def test_a_full_journal_directory_demands_read_only_mode_whatever_the_settings_say_of_ledgers() -> None:
    usages = {A: used(0), B: used(960)}
    thresholds = replace(THRESHOLDS, any_full=False, low_water=0.5, min_high_priority_bytes=100)
    other = Path("/c")
    monitor = DiskMonitor(thresholds, [A], [A], {**usages, other: used(0)}.__getitem__, [other, A])
    monitor.check_now()
    assert not monitor.demands_read_only
    monitor = DiskMonitor(thresholds, [A], [A], usages.__getitem__, [A, B])
    told: list[DiskEvent[Path]] = []
    monitor.listeners.append(told.append)
    monitor.check_now()
    assert monitor.demands_read_only
    assert not monitor.room_for_high_priority
    assert monitor.is_full_journal_directory(B)
    assert not monitor.is_full_journal_directory(A)
    assert monitor.writable_directories() == (A,)
    assert told == [], "collection frees nothing there"
    usages[B] = used(700)
    monitor.check_now()
    assert monitor.demands_read_only, "not below the low-water mark"
    assert monitor.room_for_high_priority
    usages[B] = used(400)
    monitor.check_now()
    assert not monitor.demands_read_only


def test_a_directory_that_is_gone_or_a_file_is_named(tmp_path: Path) -> None:
    assert measure(tmp_path).total_bytes > 0
    (tmp_path / "file").touch()
    for name in ("none", "file"):
        with pytest.raises(DirectoryException, match=str(tmp_path / name)):
            DiskMonitor(THRESHOLDS, [tmp_path / name], [tmp_path]).check_now()


def test_a_disk_counts_once_however_many_directories_it_holds(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    one = directories.total_usage([tmp_path / "a"])
    assert directories.total_usage([tmp_path / "a", tmp_path / "b"]).total_bytes == one.total_bytes


# --- BOOKIE_STATUS and DIRTY ---

STATUS = BookieStatus(read_only=True, manual=False, updated_ms=1_700_000_000_123)


def ledger_directories(root: Path) -> list[Path]:
    paths = [root / "a", root / "b"]
    for path in paths:
        directories.prepare(path)
    return paths


def test_the_status_file_is_java_bookkeepers(tmp_path: Path) -> None:
    paths = ledger_directories(tmp_path)
    status_files.write_status(REAL_FILE_SYSTEM, paths, STATUS)
    for path in paths:
        assert (path / "current" / "BOOKIE_STATUS").read_bytes() == b"1,READ_ONLY,1700000000123,false\n"
    assert status_files.read_status(REAL_FILE_SYSTEM, paths) == STATUS


def test_the_newest_status_counts_and_shorter_ones_leave_nothing_behind(tmp_path: Path) -> None:
    paths = ledger_directories(tmp_path)
    newer = BookieStatus(read_only=False, manual=True, updated_ms=STATUS.updated_ms + 1)
    status_files.write_status(REAL_FILE_SYSTEM, paths[1:], newer)
    status_files.write_status(REAL_FILE_SYSTEM, paths[:1], STATUS)
    assert status_files.read_status(REAL_FILE_SYSTEM, paths) == newer
    short = BookieStatus(read_only=True, manual=True, updated_ms=7)
    status_files.write_status(REAL_FILE_SYSTEM, paths, short)
    assert status_files.read_status(REAL_FILE_SYSTEM, paths) == short


@given(st.booleans(), st.booleans(), st.integers(0, 2**63))
def test_a_status_comes_back(read_only: bool, manual: bool, updated_ms: int) -> None:
    status = BookieStatus(read_only, manual, updated_ms)
    assert status_files.decode(status_files.encode(status)) == status


def test_the_old_form_counts_as_manual() -> None:
    assert status_files.decode(b"1,READ_ONLY,5") == BookieStatus(read_only=True, manual=True, updated_ms=5)


@given(st.binary(max_size=60))
def test_anything_else_is_no_status(content: bytes) -> None:
    status = status_files.decode(content)
    assert status is None or content.startswith(b"1,READ_")


@pytest.mark.parametrize("content", [b"", b"2,READ_ONLY,5,true", b"1,READ,5,true", b"1,READ_ONLY,x,true"])
def test_a_damaged_status_is_passed_over(tmp_path: Path, content: bytes) -> None:
    paths = ledger_directories(tmp_path)
    (paths[0] / "current" / "BOOKIE_STATUS").write_bytes(content)
    assert status_files.read_status(REAL_FILE_SYSTEM, paths) is None
    status_files.write_status(REAL_FILE_SYSTEM, paths[1:], STATUS)
    assert status_files.read_status(REAL_FILE_SYSTEM, paths) == STATUS


def test_dirty_is_there_until_a_clean_end(tmp_path: Path) -> None:
    paths = ledger_directories(tmp_path)
    assert not status_files.mark_dirty(REAL_FILE_SYSTEM, paths)
    assert all((path / "current" / "DIRTY").read_bytes() == b"" for path in paths)
    assert status_files.mark_dirty(REAL_FILE_SYSTEM, paths)
    status_files.mark_clean(REAL_FILE_SYSTEM, paths)
    assert not any((path / "current" / "DIRTY").exists() for path in paths)
    status_files.mark_clean(REAL_FILE_SYSTEM, paths)
    assert not status_files.mark_dirty(REAL_FILE_SYSTEM, paths)


class FullDisk(FileSystem):
    def open(self, path: Path, flags: int) -> int:
        raise OSError(28, "No space left on device", str(path))


def test_a_full_disk_does_not_keep_the_mode_from_changing(tmp_path: Path) -> None:
    paths = ledger_directories(tmp_path)
    status_files.write_status(FullDisk(), paths, STATUS)
    assert not status_files.mark_dirty(FullDisk(), paths)
    assert status_files.read_status(FullDisk(), paths) is None
