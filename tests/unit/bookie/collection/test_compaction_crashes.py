"""Crashes and disk errors at every operation of a compaction: no entry of a ledger that exists is ever lost (S2).

Everything was checkpointed before, so the journal has nothing of it: what is lost from the entry logs is lost.
"""

from __future__ import annotations

import contextlib
import errno
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from bookgate.ledger.ledger_id import LedgerId
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
from tests.faults.storage_run import Moment, StorageRun, check
from tests.unit.bookie.collection.collection_support import Collection
from tests.unit.bookie.storage.test_storage_crashes import SEEDS, new_disk

SMALL = {
    "journal_max_size_bytes": 6000,
    "journal_pre_alloc_bytes": 4096,
    "journal_max_backups": 0,
    "entry_log_max_bytes": 1500,
    "ledger_cache_bytes": 8192,
}


def filled_disk(root: Path) -> tuple[MemoryDisk, Moment]:
    """Three ledgers in several logs, one of them without a map, some entries in two copies."""
    disk = new_disk(root)
    run = StorageRun(root, disk, **SMALL)
    for fill in (1, 2):
        run = StorageRun(root, disk, run.moment(), **SMALL)
        run.open()
        for first in range(0, 12, 4):
            tokens = [run.add(number, entry, fill=fill) for number in (1, 2, 3) for entry in range(first, first + 4)]
            run.wait(*tokens)
            run.storage.checkpoint()
        run.wait(run.fence(1))
        run.storage.close()
    return disk, run.moment()


def compact(run: StorageRun, disk: MemoryDisk) -> None:
    """Deletes one ledger of three, and compacts everything."""
    run.open()
    run.delete(2)
    collection = Collection(run.storage, disk)
    collection.run(threshold=1.0)
    run.wait(run.add(3, 12))
    run.storage.checkpoint()
    run.delete(1)
    collection.run(threshold=1.0)
    assert collection.statistics.failed_deletions == 0
    run.storage.close()


def check_and_compact_again(disk: MemoryDisk, root: Path, moment: Moment, what: str) -> None:
    """What a crash left holds everything, before and after the compaction that begins anew."""
    run = StorageRun(root, disk, moment, **SMALL)
    run.open()
    try:
        check(run.storage, moment, what)
        collection = Collection(run.storage, disk)
        collection.run(threshold=1.0)
        assert collection.statistics.failed_deletions == 0, what
        check(run.storage, moment, f"{what}, compacted again")
    finally:
        run.storage.close()
    assert not disk.open_paths, what
    assert not run.acks.failures, what


def survivals(operation: Operation) -> Iterator[tuple[str, Survival]]:
    yield "only what was synced", nothing_survives
    yield "killed", everything_survives
    yield "in order, the last torn", oldest_survive(operation.number, 1)
    for index in range(SEEDS):
        yield f"seed {index}", some_survive(operation.number * 1000 + index)


def test_a_crash_at_any_operation_of_a_compaction_loses_nothing(tmp_path: Path) -> None:
    disk, history = filled_disk(tmp_path)
    run = StorageRun(tmp_path, disk, history, **SMALL)
    found: dict[tuple[int, Moment], tuple[str, MemoryDisk, Moment]] = {}
    operations: list[Operation] = []

    def crash(operation: Operation) -> None:
        operations.append(operation)
        moment = run.moment()
        for name, survival in survivals(operation):
            left = disk.after_power_loss(survival)
            found.setdefault((left.digest(), moment), (f"{operation}, {name}", left, moment))

    disk.on_operation = crash
    compact(run, disk)
    assert {"create", "write", "sync", "sync directory", "unlink"} <= {operation.kind for operation in operations}
    assert sum(operation.kind == "unlink" and operation.path.suffix == ".log" for operation in operations) >= 4
    assert len(found) > 100
    for what, left, moment in found.values():
        check_and_compact_again(left, tmp_path, moment, what)


@pytest.mark.parametrize(
    ("start", "step", "code", "lasting"),
    [
        (0, 2, errno.EIO, False),
        pytest.param(1, 2, errno.EIO, False, marks=pytest.mark.long),
        (0, 3, errno.ENOSPC, False),
        pytest.param(2, 4, errno.ENOSPC, True, marks=pytest.mark.long),
    ],
)
def test_a_disk_error_at_any_operation_of_a_compaction_loses_nothing(
    tmp_path: Path, start: int, step: int, code: int, lasting: bool
) -> None:
    """Once, or from then on. A sync that failed has forgotten what it was to write, so the disk loses power then."""
    operations = len(record(tmp_path))
    for number in range(start, operations, step):
        disk, history = filled_disk(tmp_path)
        run = StorageRun(tmp_path, disk, history, **SMALL)
        first = disk.operations + number
        disk.on_operation = failing(first, lasting, code)
        with contextlib.suppress(OSError, AssertionError):
            compact(run, disk)
        disk.on_operation = lambda operation: None
        # The next run must not build on what the failed one could not make durable.
        with contextlib.suppress(OSError):
            Collection(run.storage, disk).run(threshold=1.0)
        left = disk.after_power_loss(nothing_survives)
        moment = run.moment()
        run.abandon()
        check_and_compact_again(left, tmp_path, moment, f"error at {first}, power lost")
        killed = disk.after_power_loss(everything_survives)
        check_and_compact_again(killed, tmp_path, moment, f"error at {first}, killed")


@pytest.mark.parametrize("ending", ["a sync fails", "killed"])
@pytest.mark.parametrize(
    ("between", "syncfs"),
    [
        ("nothing", True),
        pytest.param("a clean stop", True, marks=pytest.mark.long),
        pytest.param("nothing", False, marks=pytest.mark.long),
    ],
)
def test_memory_that_shows_moves_no_disk_holds_loses_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ending: str, between: str, syncfs: bool
) -> None:
    """A process ends in a compaction; the next ones see what it wrote, and collect; then the power goes.

    A process that is killed leaves what it had not synced to the kernel, which has not written it yet. One whose sync
    failed leaves what readers see and no disk ever gets.
    """
    monkeypatch.setattr(MemoryDisk, "syncs_file_systems", syncfs)
    operations = record(tmp_path)
    filled, history = filled_disk(tmp_path)
    first = filled.operations
    kinds = ("sync", "sync everything") if ending == "a sync fails" else ()
    lost = []
    for number in (operation.number for operation in operations if not kinds or operation.kind in kinds):
        disk = filled.after_power_loss(everything_survives)
        disk.operations = first
        run = StorageRun(tmp_path, disk, history, **SMALL)
        disk.on_operation = failing(number, False, errno.EIO) if kinds else dying(number, disk)
        with contextlib.suppress(OSError, AssertionError):
            compact(run, disk)
        disk.on_operation = lambda operation: None
        disk.lose_power()
        run.abandon()
        disk.start_again()
        moment = run.moment()
        what = f"{ending} at {number}, {between}"
        try:
            look_and_lose_power(disk, tmp_path, moment, what, stops=between == "a clean stop")
        except (AssertionError, OSError) as error:
            lost.append(f"{what}: {error}")
    assert not lost


def look_and_lose_power(disk: MemoryDisk, root: Path, moment: Moment, what: str, *, stops: bool) -> None:
    """The next process collects, or if the next one `stops` at once, the one after it; then memory is lost."""
    if stops:
        run = StorageRun(root, disk, moment, **SMALL)
        run.open()
        run.storage.close()
    run = StorageRun(root, disk, moment, **SMALL)
    run.open()
    try:
        Collection(run.storage, disk).run(threshold=1.0)
        check(run.storage, moment, what)
        check_and_compact_again(disk.after_power_loss(nothing_survives), root, moment, f"{what}, power lost")
        disk.evict()
        check(run.storage, moment, f"{what}, evicted")
    finally:
        run.storage.close()


def dying(number: int, disk: MemoryDisk) -> Callable[[Operation], None]:
    """The process is killed at that operation."""

    def die(operation: Operation) -> None:
        if operation.number == number:
            disk.lose_power()
            raise PowerLossException(errno.EIO, "killed", str(operation.path))

    return die


def record(root: Path) -> list[Operation]:
    disk, history = filled_disk(root)
    operations: list[Operation] = []
    disk.on_operation = operations.append
    compact(StorageRun(root, disk, history, **SMALL), disk)
    return operations


def failing(first: int, lasting: bool, code: int) -> Callable[[Operation], None]:
    def fail(operation: Operation) -> None:
        if operation.number == first or (lasting and operation.number > first):
            raise OSError(code, "told to fail", str(operation.path))

    return fail


@pytest.mark.parametrize("syncfs", [True, False])
@pytest.mark.parametrize("number", [1, LedgerId(5, 1).number])
def test_a_deletion_that_never_reached_the_disk_keeps_the_entry_logs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int, syncfs: bool
) -> None:
    """The next process sees no ledger, and would remove the log that the file on disk refers to."""
    monkeypatch.setattr(MemoryDisk, "syncs_file_systems", syncfs)
    disk = new_disk(tmp_path)
    run = StorageRun(tmp_path, disk, **SMALL)
    run.open()
    run.wait(*(run.add(number, entry) for entry in range(4)))
    run.storage.checkpoint()
    run.storage.close()

    def fail(operation: Operation) -> None:
        if operation.kind == "sync directory" and operation.path.parent.name != tmp_path.name:
            raise OSError(errno.EIO, "told to fail", str(operation.path))

    run = StorageRun(tmp_path, disk, run.moment(), **SMALL)
    run.open()
    disk.on_operation = fail
    with pytest.raises(OSError, match="told to fail"):
        run.delete(number)
    disk.on_operation = lambda operation: None
    disk.lose_power()
    run.abandon()
    disk.start_again()
    run = StorageRun(tmp_path, disk, run.moment(), **SMALL)
    run.open()
    assert run.storage.ledgers.get(LedgerId.of_number(number)) is None
    collection = Collection(run.storage, disk)
    collection.run(threshold=1.0)
    assert collection.statistics.failed_deletions == 0
    run = StorageRun(tmp_path, disk.after_power_loss(nothing_survives), run.moment(), **SMALL)
    run.open()
    try:
        kept = run.storage.ledgers.get(LedgerId.of_number(number))
        if kept is not None:
            assert all(run.storage.reader.read_entry(kept, entry) for entry in range(4))
    finally:
        run.storage.close()
