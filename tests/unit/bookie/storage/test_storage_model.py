"""Random operations on storage against a model of what it must hold, over restarts, crashes, deletion and collection.

Three layouts: everything in one place, several journals and ledger directories, and the index in RocksDB. The first
two run on a disk in memory, whose crashes are kills and losses of power; RocksDB has files of its own, so there a crash
is a copy of the directories as a kill leaves them.
"""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from bookgate.bookie.system.files import REAL_FILE_SYSTEM, FileSystem
from tests.faults.memory_disk import MemoryDisk, everything_survives, nothing_survives, some_survive
from tests.faults.storage_run import StorageRun, check
from tests.unit.bookie.collection.collection_support import Collection

# Two in the same directories of every layout, and one whose index files lie apart.
LEDGERS = st.sampled_from((1, 2, 3, 700))
ENTRIES = st.one_of(st.integers(0, 12), st.sampled_from((1022, 1023, 1024, 5000)))
SIZES = st.sampled_from((0, 1, 40, 400, 1500))

SMALL: dict[str, Any] = {
    "journal_max_size_bytes": 5000,
    "journal_pre_alloc_bytes": 4096,
    "journal_max_backups": 1,
    "entry_log_max_bytes": 3000,
    "ledger_cache_bytes": 40_000,
    "ledger_state_limit": 2,
}


class StorageMachine(RuleBasedStateMachine):
    """One storage over all its lives. Subclasses say where its files are and what a crash leaves of them."""

    run: StorageRun

    def __init__(self) -> None:
        super().__init__()
        self.root = Path(tempfile.mkdtemp(prefix="bookgate-model-"))
        self.files: FileSystem = REAL_FILE_SYSTEM
        self.unwaited: list[object] = []

    def config(self) -> dict[str, Any]:
        raise NotImplementedError

    def crashed(self, seed: int) -> None:
        """Sets `files` and `root` to what a crash at this moment leaves."""
        raise NotImplementedError

    @initialize()
    def first_start(self) -> None:
        self.begin(None)

    def begin(self, history: Any) -> None:
        self.unwaited.clear()
        self.run = StorageRun(self.root, self.files, history, **SMALL, **self.config())
        self.run.open()

    def asked(self, token: object, wait: bool) -> None:
        if wait:
            self.run.wait(token)
        else:
            self.unwaited.append(token)

    @rule(number=LEDGERS, entry_id=ENTRIES, size=SIZES, fill=st.integers(0, 255), wait=st.booleans())
    def add(self, number: int, entry_id: int, size: int, fill: int, wait: bool) -> None:
        self.asked(self.run.add(number, entry_id, size, fill), wait)

    @rule(number=LEDGERS, first=st.integers(0, 20), count=st.integers(2, 8))
    def add_several(self, number: int, first: int, count: int) -> None:
        self.run.wait(*[self.run.add(number, entry_id) for entry_id in range(first, first + count)])

    @rule(number=LEDGERS, wait=st.booleans())
    def fence(self, number: int, wait: bool) -> None:
        self.asked(self.run.fence(number), wait)

    @rule(number=LEDGERS, lac=st.integers(-1, 20), wait=st.booleans())
    def write_lac(self, number: int, lac: int, wait: bool) -> None:
        self.asked(self.run.write_lac(number, lac), wait)

    @precondition(lambda self: self.unwaited)
    @rule()
    def wait_for_all(self) -> None:
        self.run.wait(*self.unwaited)
        self.unwaited.clear()

    @rule()
    def force(self) -> None:
        self.run.wait(self.run.force())

    @rule()
    def checkpoint(self) -> None:
        self.run.storage.checkpoint()

    @rule(number=LEDGERS)
    def delete(self, number: int) -> None:
        # What is still under way could come back after the deletion.
        self.wait_for_all()
        self.run.delete(number)

    @rule(threshold=st.sampled_from((0.3, 0.9)))
    def collect(self, threshold: float) -> None:
        self.run.storage.checkpoint()
        Collection(self.run.storage, self.files).run(threshold)

    @rule(checkpoint=st.booleans())
    def look(self, checkpoint: bool) -> None:
        self.wait_for_all()
        if checkpoint:
            self.run.storage.checkpoint()
        check(self.run.storage, self.run.moment(), "while it runs")
        held = list(self.run.storage.ledger_ids())
        assert held == sorted(set(held))

    @rule()
    def restart(self) -> None:
        self.run.storage.close()
        moment = self.run.moment()
        self.begin(moment)
        check(self.run.storage, moment, "after a restart")

    @rule(seed=st.integers(0, 1000))
    def crash(self, seed: int) -> None:
        moment = self.run.moment()
        old, root = self.run, self.root
        self.crashed(seed)
        old.abandon()
        if root != self.root:
            shutil.rmtree(root)
        self.begin(moment)
        check(self.run.storage, moment, f"after a crash, seed {seed}")

    @invariant()
    def is_well(self) -> None:
        if hasattr(self, "run"):
            assert not self.run.acks.failures

    def teardown(self) -> None:
        if hasattr(self, "run"):
            self.run.abandon()
        shutil.rmtree(self.root, ignore_errors=True)


class MemoryMachine(StorageMachine):
    """On a disk in memory."""

    def __init__(self) -> None:
        super().__init__()
        config = self.config()
        places = [path for paths in config.values() if isinstance(paths, tuple) for path in paths]
        self.files = MemoryDisk(*(path / "current" for path in places))

    def config(self) -> dict[str, Any]:
        return {"journal_directories": (self.root / "journal",), "ledger_directories": (self.root / "ledgers",)}

    def crashed(self, seed: int) -> None:
        assert isinstance(self.files, MemoryDisk)
        disk = self.files
        survival = {0: nothing_survives, 1: everything_survives}.get(seed % 4, some_survive(seed))
        self.files = disk.after_power_loss(survival)
        disk.lose_power()


class SeveralDirectoriesMachine(MemoryMachine):
    """Two journals, two ledger directories, the index elsewhere."""

    def config(self) -> dict[str, Any]:
        return {
            "journal_directories": (self.root / "journal-a", self.root / "journal-b"),
            "ledger_directories": (self.root / "ledgers-a", self.root / "ledgers-b"),
            "index_directories": (self.root / "index",),
        }


class RocksDbMachine(StorageMachine):
    """The index in RocksDB, a store for each of two ledger directories, on the real disk."""

    def config(self) -> dict[str, Any]:
        return {"ledger_directories": (self.root / "ledgers-a", self.root / "ledgers-b"), "storage": "db"}

    def crashed(self, seed: int) -> None:
        after = Path(tempfile.mkdtemp(prefix="bookgate-model-"))
        shutil.copytree(self.root, after, dirs_exist_ok=True)
        self.root = after


def cases(machine: type[StorageMachine], examples: int) -> Any:
    """The machine as a test case of its own."""
    case = machine.TestCase
    case.settings = settings(
        max_examples=examples, stateful_step_count=30, deadline=None, suppress_health_check=list(HealthCheck)
    )
    return pytest.mark.timeout(300)(case)


TestInOnePlace = cases(MemoryMachine, 30)
TestSeveralDirectories = cases(SeveralDirectoriesMachine, 20)
TestRocksDb = cases(RocksDbMachine, 5)
