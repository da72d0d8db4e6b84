"""A disk that gets full at any operation that grows a file, and has room again later: storage goes on where it was.

What finds no space is refused, not lost track of: asked again once there is room, it is acknowledged, and what was
acknowledged before and after is on the disk, also if the power goes next.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from bookie.files import is_no_space
from tests.faults.memory_disk import MemoryDisk, Operation, everything_survives, nothing_survives
from tests.faults.storage_run import StorageRun, check_disk
from tests.unit.bookie.storage_support import Acknowledgements
from tests.unit.bookie.test_storage_crashes import SMALL, new_disk

GROWS = {"create", "write", "allocate", "make directory"}


class PatientRun(StorageRun):
    """Asks again what was refused, once there is room. The disk is full from the operation `full_at` on."""

    def __init__(self, root: Path, disk: MemoryDisk, full_at: int) -> None:
        super().__init__(root, disk, **SMALL)
        self.refused: list[object] = []
        self.grown: list[Operation] = []
        self._is_full = False
        self._full_at = full_at
        self._spaces = Acknowledgements()
        disk.on_operation = self._on_operation

    def _on_operation(self, operation: Operation) -> None:
        if operation.kind not in GROWS:
            return
        self.grown.append(operation)
        self._is_full = self._is_full or operation.number == self._full_at
        if self._is_full:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(operation.path))

    def listen(self) -> None:
        self.storage.on_no_space = self._no_space
        self.storage.on_space = lambda: self._spaces.durable(["space"])

    def _no_space(self, _error: OSError, tokens: list[object]) -> bool:
        self.refused.extend(tokens)
        self.acks.durable([("refused", token) for token in tokens])
        return True

    def make_room(self) -> None:
        self._is_full, self._full_at = False, -1
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


def test_a_fence_that_was_refused_does_not_count_as_durable(tmp_path: Path) -> None:
    """Asked again on a disk that is still full, it is refused again."""
    disk = new_disk(tmp_path)
    run = PatientRun(tmp_path, disk, -1)
    run.open()
    run.listen()
    run._is_full = True
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
    run._is_full = True
    token = run.add(1, 1)
    run.acks.wait_for(("refused", token))
    moment = run.moment()
    run.storage.close()
    assert not run.acks.failures
    assert not disk.open_paths
    disk.on_operation = lambda operation: None
    check_disk(disk, tmp_path, moment, "closed while full", **SMALL)
