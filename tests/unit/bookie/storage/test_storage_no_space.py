"""A disk that gets full at any operation that grows a file, and has room again later: storage goes on where it was.

What finds no space is refused, not lost track of: asked again once there is room, it is acknowledged, and what was
acknowledged before and after is on the disk, also if the power goes next.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from itertools import product
from pathlib import Path

import pytest

from bookgate.bookie.journal.last_mark import read_mark
from bookgate.bookie.storage_events import Retry
from bookgate.bookie.system.files import is_no_space
from tests.faults.memory_disk import MemoryDisk, Operation, everything_survives, nothing_survives
from tests.faults.storage_run import Moment, StorageRun, check, check_disk
from tests.unit.bookie.storage.storage_support import Acknowledgements
from tests.unit.bookie.storage.test_storage_crashes import SMALL, new_disk

GROWS = {"create", "write", "allocate", "make directory"}


class PatientRun(StorageRun):
    """Asks again what was refused, once there is room. The disk is full from the operation `full_at` on."""

    def __init__(
        self, root: Path, disk: MemoryDisk, full_at: int, history: Moment | None = None, /, **changes: object
    ) -> None:
        super().__init__(root, disk, history, **{**SMALL, **changes})
        self.refused: list[object] = []
        self.grown: list[Operation] = []
        self.once = False
        """Only that operation finds no space: another disk, or another file, has some."""
        self.is_full = False
        self._full_at = full_at
        self._spaces = Acknowledgements()
        disk.on_operation = self._on_operation

    def _on_operation(self, operation: Operation) -> None:
        if operation.kind not in GROWS:
            return
        self.grown.append(operation)
        self.is_full = self.is_full or (operation.number == self._full_at and not self.once)
        if self.is_full or operation.number == self._full_at:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(operation.path))

    def listen(self) -> None:
        self.acks.on_no_space = self._no_space
        self.acks.on_space = lambda: self._spaces.durable(["space"])

    def _no_space(self, tokens: list[object]) -> Retry:
        self.refused.extend(tokens)
        self.acks.durable([("refused", token) for token in tokens])
        return Retry.WITH_SPACE

    def make_room(self) -> None:
        self.is_full, self._full_at = False, -1
        while self.storage.out_of_space:
            seen = len(self._spaces.tokens)
            self.storage.retry()
            if self.storage.out_of_space:
                self._spaces.wait_for_count(seen + 1)

    def insist(self, ask: Callable[[], object]) -> None:
        """Asks until it is acknowledged."""
        for _ in range(3):
            try:
                token = ask()
            except OSError as error:
                self._expect_no_space(error)
                self.make_room()
                continue
            self.acks.wait_until(lambda asked=token: self._is_settled(asked), f"an answer to {token}")  # type: ignore[misc]
            if token in self.acks.tokens:
                return
            self.make_room()
        raise AssertionError("refused although there is room")

    def _expect_no_space(self, error: OSError) -> None:
        assert is_no_space(error), error

    def _is_settled(self, token: object) -> bool:
        return token in self.acks.tokens or ("refused", token) in self.acks.tokens

    def checkpoint_or_no_space(self) -> None:
        try:
            self.storage.checkpoint()
        except OSError as error:
            self._expect_no_space(error)

    def checkpoint(self) -> None:
        try:
            self.storage.checkpoint()
        except OSError as error:
            self._expect_no_space(error)
            self.make_room()


def script(run: PatientRun) -> None:
    """Key, entries, fences and explicit LACs of several ledgers, journal rolls, checkpoints, rotated entry logs."""
    run.open()
    run.listen()
    run.insist(lambda: run.add(1, 0))
    run.insist(lambda: run.fence(2))
    run.insist(lambda: run.write_lac(3, 4))
    run.insist(lambda: run.add(300, 1030))
    run.checkpoint()
    for entry_id in range(6):
        run.insist(lambda entry_id=entry_id: run.add(5, entry_id, 1500))  # type: ignore[misc]
    run.insist(lambda: run.fence(1))
    run.checkpoint()
    run.insist(lambda: run.add(5, 2, 1500, fill=77))
    run.insist(lambda: run.write_lac(5, 3))
    run.checkpoint()
    run.insist(lambda: run.fence(5))


def growing_operations(root: Path) -> list[Operation]:
    """Those of the script, without those of the start, which needs its space."""
    run = PatientRun(root, new_disk(root), -1)
    run.open()
    start = len(run.grown)
    run.storage.close()
    run = PatientRun(root, new_disk(root), -1)
    script(run)
    run.storage.close()
    return run.grown[start:]


def test_storage_goes_on_after_a_full_disk_at_any_operation(tmp_path: Path) -> None:
    operations = growing_operations(tmp_path)
    assert len(operations) > 40
    refused = 0
    for operation in operations:
        what = f"full at {operation}"
        disk = new_disk(tmp_path)
        run = PatientRun(tmp_path, disk, operation.number)
        script(run)
        assert not run.acks.failures, what
        refused += len(run.refused)
        moment = run.moment()
        killed = disk.after_power_loss(nothing_survives)
        run.storage.close()
        assert not disk.open_paths, what
        check_disk(killed, tmp_path, moment, what, opens=1, **SMALL)
        check_disk(disk.after_power_loss(everything_survives), tmp_path, moment, what, opens=1, **SMALL)
    assert refused > 5


START = {"write_cache_bytes": 12_000}
"""Small, so that a replay flushes in its middle as well."""


def left_to_replay(root: Path) -> tuple[MemoryDisk, StorageRun]:
    """A disk after a kill, with entries, fences and explicit LACs that only the journal has; and what was asked."""
    disk = new_disk(root)
    run = StorageRun(root, disk, **SMALL)
    run.open()
    run.wait(run.add(1, 0), run.fence(2))
    run.storage.checkpoint()
    for entry_id in range(1, 8):
        run.wait(run.add(1, entry_id, 1500), run.add(9, entry_id, 100))
    run.wait(run.add(1, 3, 1500, fill=77), run.fence(4), run.write_lac(9, 6), run.fence(1))
    found = disk.after_power_loss(everything_survives)
    moment = run.moment()
    run.abandon()
    return found, StorageRun(root, found, moment, **SMALL, **START)


class FullStart(PatientRun):
    """A start, and what a life after it asks, on what `left_to_replay` leaves; the disk is full from `full_at` on."""

    def __init__(self, root: Path, full_at: int) -> None:
        disk, left = left_to_replay(root)
        super().__init__(root, disk, full_at, left.moment(), **START)
        self.disk = disk
        self.listen()


def journals(disk: MemoryDisk, root: Path) -> list[Path]:
    return disk.files(root / "journal" / "current")


@pytest.mark.long
def test_a_start_on_a_full_disk_serves_everything_and_goes_on_when_there_is_room(tmp_path: Path) -> None:
    """Full from every operation of the start that grows a file: nothing is lost, at a kill neither."""
    run = FullStart(tmp_path, -1)
    run.open()
    operations = list(run.grown)
    run.storage.close()
    assert {"create", "write", "allocate"} <= {operation.kind for operation in operations}
    assert len(operations) > 12
    for operation, once in product(operations, (False, True)):
        what = f"full {'at' if once else 'from'} {operation}"
        run = FullStart(tmp_path, operation.number)
        run.once = once
        mark = read_mark(run.disk, run.config.ledger_directories)
        before = journals(run.disk, tmp_path)
        run.open()
        assert not run.acks.failures, what
        # The journal does without what it would allocate ahead.
        assert run.storage.out_of_space or (once and operation.kind == "allocate"), what
        check(run.storage, run.moment(), what)
        assert read_mark(run.disk, run.config.ledger_directories) >= mark, what
        assert set(before) <= set(journals(run.disk, tmp_path)), what
        crashes = [(run.disk.after_power_loss(nothing_survives), run.moment())]

        run.checkpoint_or_no_space()
        run.make_room()
        assert not run.storage.out_of_space, what
        run.insist(lambda run=run: run.add(9, 8))  # type: ignore[misc]
        run.insist(lambda run=run: run.fence(9))  # type: ignore[misc]
        run.checkpoint()
        assert read_mark(run.disk, run.config.ledger_directories) > mark, what
        crashes.append((run.disk.after_power_loss(nothing_survives), run.moment()))
        run.storage.close()
        assert not run.disk.open_paths, what
        for killed, moment in crashes:
            check_disk(killed, tmp_path, moment, f"{what}, killed", opens=1, **SMALL)


def test_a_bookie_that_is_stopped_after_a_start_without_space_keeps_everything(tmp_path: Path) -> None:
    run = FullStart(tmp_path, 0)
    run.is_full = True
    run.open()
    with pytest.raises(OSError, match="no space"):
        run.fence(3)
    run.storage.close()
    assert not run.acks.failures
    assert not run.disk.open_paths
    run.disk.on_operation = lambda operation: None
    moment = run.moment()
    check_disk(run.disk, tmp_path, Moment(moment.asked, moment.acknowledged), "stopped", **SMALL)


def test_a_start_without_space_fails_where_nobody_agrees_to_wait(tmp_path: Path) -> None:
    run = FullStart(tmp_path, 0)
    run.is_full = True
    run.acks.on_no_space = lambda tokens: Retry.NEVER
    with pytest.raises(OSError, match="No space") as caught:
        run.open()
    assert is_no_space(caught.value)
    assert not run.disk.open_paths


def test_directories_that_no_bookie_has_run_on_need_room_for_the_first_journal_file(tmp_path: Path) -> None:
    """Else the bookie would be marked as one that has run, and its next start miss the journal."""
    disk = new_disk(tmp_path)
    run = PatientRun(tmp_path, disk, -1)
    run.acks.on_no_space = lambda tokens: Retry.WITH_SPACE

    def without_room_for_journals(operation: Operation) -> None:
        if operation.kind in GROWS and operation.path.suffix == ".txn":
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(operation.path))

    disk.on_operation = without_room_for_journals
    with pytest.raises(OSError, match="without its first journal file; make room for it") as caught:
        run.open()
    assert is_no_space(caught.value)
    assert not disk.open_paths
    run = PatientRun(tmp_path, disk, -1)
    run.open()
    run.listen()
    run.insist(lambda: run.add(1, 0))
    run.storage.close()


def test_a_fence_that_was_refused_does_not_count_as_durable(tmp_path: Path) -> None:
    """Asked again on a disk that is still full, it is refused again."""
    disk = new_disk(tmp_path)
    run = PatientRun(tmp_path, disk, -1)
    run.open()
    run.listen()
    run.is_full = True
    token = run.fence(2)
    run.acks.wait_for(("refused", token))
    for _ in range(2):
        with pytest.raises(OSError, match="no space"):
            run.fence(2)
        with pytest.raises(OSError, match="no space"):
            run.force()
        with pytest.raises(OSError, match="no space"):
            run.fence(7)
    assert not run.ledger(7).fenced
    run.make_room()
    run.insist(lambda: run.fence(2))
    run.insist(lambda: run.fence(7))
    killed = disk.after_power_loss(nothing_survives)
    moment = run.moment()
    run.storage.close()
    check_disk(killed, tmp_path, moment, "fences after a full disk", opens=1, **SMALL)


def test_a_storage_that_is_closed_while_it_is_full_keeps_what_was_acknowledged(tmp_path: Path) -> None:
    disk = new_disk(tmp_path)
    run = PatientRun(tmp_path, disk, -1)
    run.open()
    run.listen()
    run.insist(lambda: run.add(1, 0))
    run.is_full = True
    token = run.add(1, 1)
    run.acks.wait_for(("refused", token))
    moment = run.moment()
    run.storage.close()
    assert not run.acks.failures
    assert not disk.open_paths
    disk.on_operation = lambda operation: None
    check_disk(disk, tmp_path, moment, "closed while full", **SMALL)


ALLOCATED = {"journal_pre_alloc_bytes": 64 * 1024, "write_cache_bytes": 256 * 1024}


def test_a_journal_allocates_nothing_ahead_where_a_flush_may_need_the_space(tmp_path: Path) -> None:
    scarce, ample = new_disk(tmp_path), new_disk(tmp_path)
    scarce.capacity, ample.capacity = 500 * 1024, 1024 * 1024
    for disk, allocated in ((scarce, 1024), (ample, 64 * 1024)):
        run = PatientRun(tmp_path, disk, -1, None, **ALLOCATED)
        run.open()
        run.insist(lambda run=run: run.add(1, 0))  # type: ignore[misc]
        assert [len(disk.content(path)) for path in journals(disk, tmp_path)] == [allocated]
        run.storage.close()


def test_a_checkpoint_without_space_gets_what_the_journal_allocated_ahead(tmp_path: Path) -> None:
    disk = new_disk(tmp_path)
    run = PatientRun(tmp_path, disk, -1, None, **ALLOCATED)
    run.open()
    run.listen()
    run.insist(lambda: run.add(1, 0))
    cut = Acknowledgements()
    fail = disk.on_operation

    def on_operation(operation: Operation) -> None:
        if operation.kind == "truncate" and operation.path.suffix == ".txn":
            cut.durable(["cut"])
        fail(operation)

    disk.on_operation = on_operation
    run.is_full = True
    with pytest.raises(OSError, match="No space"):
        run.storage.checkpoint()
    cut.wait_for("cut")
    run.make_room()
    run.insist(lambda: run.add(1, 1))
    run.checkpoint()
    moment = run.moment()
    killed = disk.after_power_loss(nothing_survives)
    run.storage.close()
    assert not run.acks.failures
    check_disk(killed, tmp_path, moment, "after the journal gave back", opens=1, **SMALL)


def test_backups_of_the_journal_go_where_its_disk_is_full(tmp_path: Path) -> None:
    disk = new_disk(tmp_path)
    run = PatientRun(tmp_path, disk, -1, None, journal_max_backups=9)
    run.open()
    for entry_id in range(12):
        run.insist(lambda entry_id=entry_id: run.add(1, entry_id, 1500))  # type: ignore[misc]
        run.checkpoint()
    kept = journals(disk, tmp_path)
    assert len(kept) > 2
    run.disks.full_journals = run.config.journal_directories[:1]
    run.checkpoint()
    assert journals(disk, tmp_path) == kept[-1:]
    moment = run.moment()
    run.storage.close()
    check_disk(disk, tmp_path, moment, "without backups", opens=1, **SMALL)


def test_an_index_without_space_does_not_fill_the_entry_logs(tmp_path: Path) -> None:
    disk = new_disk(tmp_path)
    run = PatientRun(tmp_path, disk, -1, None, write_cache_bytes=1 << 20)
    run.open()
    run.listen()
    for entry_id in range(6):
        run.insist(lambda entry_id=entry_id: run.add(5, entry_id, 1500))  # type: ignore[misc]

    def no_index(operation: Operation) -> None:
        if operation.kind in GROWS and operation.path.suffix == ".idx":
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(operation.path))

    def log_bytes() -> int:
        return sum(len(disk.content(path)) for path in disk.files(tmp_path / "ledgers") if path.suffix == ".log")

    disk.on_operation = no_index
    sizes = set()
    for _ in range(3):
        with pytest.raises(OSError, match="No space"):
            run.storage.checkpoint()
        sizes.add(log_bytes())
    assert len(sizes) == 1
    disk.on_operation = lambda operation: None
    run.make_room()
    run.checkpoint()
    assert log_bytes() == sizes.pop()
    moment = run.moment()
    run.storage.close()
    check_disk(disk.after_power_loss(nothing_survives), tmp_path, moment, "index without space", opens=1, **SMALL)


class WithoutDescriptors(PatientRun):
    """Every opening fails from the chosen one on, or that one alone, until there is room."""

    def __init__(self, root: Path, disk: MemoryDisk, fails_at: int, *, once: bool) -> None:
        super().__init__(root, disk, -1)
        self.openings: list[Path] = []
        self.once = once
        self._fails_at = fails_at
        disk.on_opening = self._on_opening

    def _on_opening(self, path: Path) -> None:
        number = len(self.openings)
        self.openings.append(path)
        if self._fails_at >= 0 and (number == self._fails_at if self.once else number >= self._fails_at):
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE), str(path))

    def make_room(self) -> None:
        self._fails_at = -1
        super().make_room()


@pytest.mark.parametrize("once", [False, True])
def test_storage_goes_on_after_a_file_that_it_had_no_descriptor_for(tmp_path: Path, once: bool) -> None:
    """Any file, whatever it is opened for: nothing was written, so nothing is lost by trying again."""
    run = WithoutDescriptors(tmp_path, new_disk(tmp_path), -1, once=once)
    run.open()
    start = len(run.openings)
    run.storage.close()
    run = WithoutDescriptors(tmp_path, new_disk(tmp_path), -1, once=once)
    script(run)
    names = list(run.openings)
    run.storage.close()
    assert len(names) - start > 40
    for number in range(start, len(names)):
        what = f"no descriptor {'at' if once else 'from'} opening {number}: {names[number].name}"
        disk = new_disk(tmp_path)
        run = WithoutDescriptors(tmp_path, disk, number, once=once)
        script(run)
        assert not run.acks.failures, what
        moment = run.moment()
        killed = disk.after_power_loss(nothing_survives)
        run.make_room()
        run.storage.close()
        assert not disk.open_paths, what
        check_disk(killed, tmp_path, moment, what, opens=1, **SMALL)
        disk.on_opening = lambda path: None
        check_disk(disk.after_power_loss(everything_survives), tmp_path, moment, what, opens=1, **SMALL)
