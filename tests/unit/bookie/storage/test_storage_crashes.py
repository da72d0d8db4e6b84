"""Crashes and disk errors at every operation of a run that does everything storage does.

The run goes over a disk in memory. At each of its operations the disk is looked at as a power loss or a kill at that
moment would leave it, in several ways; a storage is opened on each, and must hold whatever had been acknowledged.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from bookgate.bookie.disks.directories import DirectoryException
from bookgate.bookie.index import file_index, index_list
from bookgate.bookie.index.index_list import LIST_FILE
from bookgate.bookie.system.files import FileSystem, StorageStoppedException
from tests.faults.memory_disk import (
    MemoryDisk,
    Operation,
    PowerLossException,
    Survival,
    everything_survives,
    nothing_survives,
    oldest_survive,
    some_survive,
)
from tests.faults.storage_run import Moment, StorageRun, check_disk
from tests.unit.bookie.collection.collection_support import Collection

SEEDS = int(os.environ.get("BOOKGATE_CRASH_SEEDS", "3"))
"""Arbitrary ways of losing unsynced data that are tried at each operation, besides the three worst."""

FEW_SEEDS = max(1, SEEDS // 3)

SMALL: dict[str, Any] = {
    "journal_max_size_bytes": 6000,
    "journal_pre_alloc_bytes": 4096,
    "journal_max_backups": 1,
    "entry_log_max_bytes": 4000,
    "ledger_cache_bytes": 8192,
}


@pytest.fixture(autouse=True)
def _a_list_of_index_files_that_is_soon_written_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(index_list, "_MANY_CHANGES", 6)


def script(run: StorageRun) -> None:
    """Adds to new and old ledgers, re-adds, fences, explicit LACs, journal rolls, checkpoints, rotated entry logs."""
    run.open()
    run.wait(run.add(1, 0), run.add(1, 1, 700))
    run.wait(run.add(300, 0), run.add(300, 5), run.add(300, 1030))
    run.wait(run.fence(2))
    run.wait(run.write_lac(3, 4))
    run.storage.checkpoint()
    run.wait(run.fence(4))
    run.wait(run.add(4, 0))
    run.storage.checkpoint()
    run.wait(run.fence(1))
    run.wait(run.write_lac(1, 1))
    run.wait(run.write_lac(1, 2))
    run.storage.checkpoint()
    run.wait(run.add(1, 2, 1500), run.add(1, 1, 700, fill=99), run.force())
    for entry_id in range(5):
        run.wait(run.add(5, entry_id, 900), run.add(6, 4 - entry_id, 20))
    run.storage.checkpoint()
    run.wait(run.add(5, 2, 900, fill=77))
    run.storage.checkpoint()
    run.wait(run.add(5, 5), run.write_lac(5, 3), run.fence(6))
    run.storage.close()


def collecting_script(run: StorageRun, disk: MemoryDisk) -> None:
    """Deletes ledgers, collects and compacts entry logs, and writes on."""
    run.open()
    collection = Collection(run.storage, disk)
    for entry_id in range(8):
        run.wait(*(run.add(number, entry_id, 200) for number in range(1, 6)))
        if entry_id % 3 == 2:
            run.storage.checkpoint()
    run.wait(run.fence(2), run.write_lac(3, 5), run.fence(4))
    run.delete(4, 5)
    collection.run()
    run.wait(run.add(1, 3, 200, fill=99), run.add(5, 0, 30), run.add(4, 1, 30))
    run.storage.checkpoint()
    run.delete(3)
    collection.run()
    run.wait(run.add(1, 8, 200), run.write_lac(1, 2))
    run.storage.close()


def new_disk(root: Path, config: dict[str, Any] | None = None) -> MemoryDisk:
    """With the directories of the configuration."""
    config = config or {}
    journals = config.get("journal_directories", (root / "journal",))
    ledgers = config.get("ledger_directories", (root / "ledgers",))
    return MemoryDisk(*(path / "current" for path in (*journals, *ledgers, *config.get("index_directories", ()))))


def several_directories(root: Path) -> dict[str, Any]:
    """Two journals, two ledger directories, the index in a third."""
    return {
        "journal_directories": (root / "journal-a", root / "journal-b"),
        "ledger_directories": (root / "ledgers-a", root / "ledgers-b"),
        "index_directories": (root / "index",),
    }


class Crashes:
    """Collects what a crash at each operation would leave, and what had been acknowledged then."""

    def __init__(self, run: StorageRun, disk: MemoryDisk, seeds: int) -> None:
        self._run = run
        self._disk = disk
        self._seeds = seeds
        self._seen: set[tuple[int, Moment]] = set()
        self.operations: list[Operation] = []
        self.found: list[tuple[str, MemoryDisk, Moment]] = []

    def __call__(self, operation: Operation) -> None:
        self.operations.append(operation)
        # First what was acknowledged, then the disk: it may be ahead, never behind.
        moment = self._run.moment()
        for name, survival in self._survivals(operation):
            left = self._disk.after_power_loss(survival)
            state = (left.digest(), moment)
            if state not in self._seen:
                self._seen.add(state)
                self.found.append((f"{operation}, {name}", left, moment))

    def _survivals(self, operation: Operation) -> Iterator[tuple[str, Survival]]:
        yield "only what was synced", nothing_survives
        yield "killed", everything_survives
        yield "in order, the last torn", oldest_survive(operation.number, 1)
        for index in range(self._seeds):
            seed = operation.number * 1000 + index
            yield f"seed {seed}", some_survive(seed)


def crash_everywhere(
    root: Path,
    disk: MemoryDisk,
    run: StorageRun,
    steps: Callable[[StorageRun], None],
    seeds: int = SEEDS,
    **config: Any,
) -> Crashes:
    """Runs the steps to their end and checks every crash on the way. Returns what was seen."""
    crashes = Crashes(run, disk, seeds)
    disk.on_operation = crashes
    steps(run)
    assert not run.acks.failures
    for index, (what, left, moment) in enumerate(crashes.found):
        check_disk(left, root, moment, what, opens=1 + (index % 4 == 0), **SMALL, **config)
    return crashes


def test_every_method_of_the_file_system_is_that_of_the_memory_disk() -> None:
    """A call that fell through to the real one would escape every test here."""
    own = {name for name in vars(FileSystem) if not name.startswith("_")}
    assert own <= set(vars(MemoryDisk))


def test_a_crash_at_any_operation_loses_nothing_acknowledged(tmp_path: Path) -> None:
    """S1–S7, P7; flaws F1, F2, F3, F5."""
    disk = new_disk(tmp_path)
    crashes = crash_everywhere(tmp_path, disk, StorageRun(tmp_path, disk, **SMALL), script)
    kinds = {operation.kind for operation in crashes.operations}
    assert kinds == {
        "create",
        "write",
        "allocate",
        "truncate",
        "sync",
        "sync directory",
        "unlink",
        "make directory",
        "rename",
    }
    names = {operation.path.name for operation in crashes.operations}
    assert {"lastMark", "lastId", "0.log", "2.log", "12c.idx"} <= names
    assert sum(name.endswith(".txn") for name in names) >= 3
    assert len(crashes.operations) > 170
    assert len(crashes.found) > 300


@pytest.mark.long
def test_a_crash_with_several_directories_loses_nothing_acknowledged(tmp_path: Path) -> None:
    """A mark for each journal: none is ahead of what the stores hold (S1)."""
    config = several_directories(tmp_path)
    disk = new_disk(tmp_path, config)
    run = StorageRun(tmp_path, disk, **SMALL, **config)
    crashes = crash_everywhere(tmp_path, disk, run, script, FEW_SEEDS, **config)
    assert {"lastMark.0", "lastMark.1"} <= {operation.path.name for operation in crashes.operations}
    for directory in ("journal-a", "journal-b", "ledgers-a", "ledgers-b", "index"):
        assert any(operation.path.is_relative_to(tmp_path / directory) for operation in crashes.operations), directory


def test_a_crash_while_ledgers_and_logs_go_loses_nothing_acknowledged(tmp_path: Path) -> None:
    """S2: deletion, collection and compaction take only what nothing points into."""
    disk = new_disk(tmp_path)
    run = StorageRun(tmp_path, disk, **SMALL)
    crashes = crash_everywhere(tmp_path, disk, run, lambda run: collecting_script(run, disk), FEW_SEEDS)
    removed = {operation.path.suffix for operation in crashes.operations if operation.kind == "unlink"}
    assert removed >= {".log", ".idx"}


def test_a_crash_loses_nothing_where_the_index_is_synced_with_its_whole_file_system(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As it is for many ledgers: the files are closed long before they are synced."""
    monkeypatch.setattr(file_index, "_MANY", 1)
    monkeypatch.setattr(file_index, "_SYNC_BATCH", 2)
    disk = new_disk(tmp_path)
    crashes = crash_everywhere(tmp_path, disk, StorageRun(tmp_path, disk, **SMALL), script, seeds=1)
    assert sum(operation.kind == "sync everything" for operation in crashes.operations) >= 5
    assert not any(operation.kind == "sync" and operation.path.suffix == ".idx" for operation in crashes.operations)


def test_a_crash_at_any_operation_of_a_replay_loses_nothing_acknowledged(tmp_path: Path) -> None:
    disk = new_disk(tmp_path)
    first = StorageRun(tmp_path, disk, **SMALL)
    lives: list[tuple[MemoryDisk, Moment]] = []

    def remember(operation: Operation) -> None:
        if operation.kind == "sync" and operation.path.suffix == ".txn":
            lives.append((disk.after_power_loss(everything_survives), first.moment()))

    disk.on_operation = remember
    script(first)
    for left, moment in lives[3::12]:
        run = StorageRun(tmp_path, left, moment, **SMALL)
        crashes = crash_everywhere(tmp_path, left, run, open_and_close, seeds=1)
        assert len(crashes.operations) > 5


def open_and_close(run: StorageRun) -> None:
    run.open()
    run.storage.close()


def operations_of_script(root: Path) -> list[Operation]:
    disk = new_disk(root)
    seen: list[Operation] = []
    disk.on_operation = seen.append
    script(StorageRun(root, disk, **SMALL))
    return seen


def run_with_error_at(root: Path, number: int, error: int, *, partial: bool = False) -> tuple[MemoryDisk, Moment]:
    """The script with one failing operation; returns the disk afterwards and what had been acknowledged."""
    disk = new_disk(root)
    disk.partial_writes = partial
    run = StorageRun(root, disk, **SMALL)
    acknowledged_at_error: list[Moment] = []
    failed: list[str] = []

    def fail(operation: Operation) -> None:
        # The journal asks for less when a reservation fails.
        asked_again = operation.number == number + 1 and failed == [operation.kind] == ["allocate"]
        if operation.number == number or asked_again:
            failed.append(operation.kind)
            acknowledged_at_error.append(run.moment())
            raise OSError(error, os.strerror(error), str(operation.path))

    disk.on_operation = fail
    with pytest.raises(OSError) as caught:  # noqa: PT011  # checked below
        script(run)
    if not isinstance(caught.value, StorageStoppedException):
        assert _origin(caught.value).errno == error
    assert all(isinstance(failure, OSError) and failure.errno == error for failure in run.acks.failures)
    assert len(run.acks.failures) <= 1
    if run.acks.failures:
        with pytest.raises(StorageStoppedException):
            run.storage.checkpoint()
    run.abandon()
    assert not disk.open_paths
    assert run.moment().acknowledged == acknowledged_at_error[0].acknowledged
    return disk, run.moment()


def _origin(error: OSError) -> OSError:
    """The disk's own error where it came while the directories were made or locked."""
    cause = error.__cause__
    return cause if isinstance(error, DirectoryException) and isinstance(cause, OSError) else error


def test_after_a_sync_that_failed_nothing_is_acknowledged(tmp_path: Path) -> None:
    """And whatever was acknowledged before is there, also if the power goes next."""
    syncs = [operation for operation in operations_of_script(tmp_path) if operation.kind.startswith("sync")]
    assert len(syncs) > 80
    for operation in syncs:
        disk, moment = run_with_error_at(tmp_path, operation.number, errno.EIO)
        for name, survival in (("power loss", nothing_survives), ("stopped", everything_survives)):
            what = f"EIO at {operation}, then {name}"
            check_disk(disk.after_power_loss(survival), tmp_path, moment, what, opens=1, **SMALL)


def test_what_a_start_saw_in_memory_only_refuses_no_later_one(tmp_path: Path) -> None:
    """A sync fails, the next process reads what no disk holds, moves the mark and is killed; then memory is lost."""
    syncs = [operation for operation in operations_of_script(tmp_path) if operation.kind == "sync"]
    for operation in syncs:
        disk, moment = run_with_error_at(tmp_path, operation.number, errno.EIO)
        disk.on_operation = lambda _: None
        run = StorageRun(tmp_path, disk, moment, **SMALL)
        run.open()
        disk.lose_power()
        run.abandon()
        disk.start_again()
        found = disk.after_power_loss(nothing_survives)
        check_disk(found, tmp_path, moment, f"EIO at {operation}, then power loss", opens=1, **SMALL)
        disk.evict()
        check_disk(disk, tmp_path, moment, f"EIO at {operation}, then eviction", opens=1, **SMALL)


@pytest.mark.parametrize("partial", [False, True], ids=["nothing written", "half written"])
def test_a_full_disk_at_any_operation_loses_nothing_acknowledged(tmp_path: Path, partial: bool) -> None:
    grows = ("create", "write", "allocate", "truncate", "make directory")
    wanted = [operation for operation in operations_of_script(tmp_path) if operation.kind in grows]
    # Without room for it the list of index files stays as it is.
    wanted = [operation for operation in wanted if not operation.path.name.startswith(LIST_FILE + ".")]
    if partial:
        wanted = [operation for operation in wanted if operation.kind == "write"]
    for operation in wanted:
        disk, moment = run_with_error_at(tmp_path, operation.number, errno.ENOSPC, partial=partial)
        what = f"ENOSPC at {operation}"
        check_disk(disk.after_power_loss(everything_survives), tmp_path, moment, what, opens=1, **SMALL)
        check_disk(disk.after_power_loss(nothing_survives), tmp_path, moment, what, opens=1, **SMALL)


def cut_power_at(root: Path, number: int) -> tuple[MemoryDisk, Moment]:
    """The script up to an operation at which the disk stops working; returns what had been acknowledged by then."""
    disk = new_disk(root)
    run = StorageRun(root, disk, **SMALL)

    reached, told = False, None

    def cut(operation: Operation) -> None:
        nonlocal reached
        if operation.number == number:
            reached = True
            disk.lose_power()
            raise PowerLossException(errno.EIO, "the power is off")

    disk.on_operation = cut
    try:
        script(run)
    except OSError as error:
        told = _origin(error)
    if reached:
        assert isinstance(told, PowerLossException | StorageStoppedException)
    else:
        # Threads of storage share syncs in one run and not in another, so a run may have fewer operations.
        assert told is None
        disk.lose_power()
    moment = run.moment()
    run.abandon()
    assert not disk.open_paths
    return disk, moment


def test_a_storage_without_power_stops_and_lets_go_of_everything(tmp_path: Path) -> None:
    for number in range(0, len(operations_of_script(tmp_path)), 9):
        disk, moment = cut_power_at(tmp_path, number)
        check_disk(disk.after_power_loss(some_survive(number)), tmp_path, moment, f"power cut at {number}", **SMALL)


def test_a_power_loss_after_a_kill_loses_nothing_that_either_life_acknowledged(tmp_path: Path) -> None:
    """What the killed process left unsynced is read by the next one, and may be lost all the same (S1, S6)."""
    for number in range(3, len(operations_of_script(tmp_path)), 80):
        disk, moment = cut_power_at(tmp_path, number)
        disk.start_again()
        crash_everywhere(tmp_path, disk, StorageRun(tmp_path, disk, moment, **SMALL), second_life, seeds=1)


def second_life(run: StorageRun) -> None:
    run.open()
    for number in (1, 2, 3, 4):
        run.wait(run.add(number, 50), run.force())
    run.storage.checkpoint()
    run.wait(run.write_lac(2, 7))
    run.storage.close()
