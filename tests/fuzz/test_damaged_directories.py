"""A bookie's whole directory with one file damaged or gone: it starts, or names the file at fault.

No read invents anything, and none denies what was acknowledged, where the files that are left show that it was: then it
is an error, or the ledger is in limbo, which says that this bookie does not know (S8). Some damage shows nowhere: the
journal's records and the index's slots have no checksum.
"""

from __future__ import annotations

import logging
import os
import random
from collections.abc import Iterator
from pathlib import Path

import pytest

from bookgate.bookie.index.file_format import HEADER_SIZE, SLOT_SIZE, slot_offset
from bookgate.ledger.errors import DataUnknownException, NoSuchEntryException
from bookgate.ledger.ledger_id import LedgerId
from tests.faults.memory_disk import MemoryDisk, everything_survives
from tests.faults.storage_run import StorageRun
from tests.fuzz.mutation import mutate

INPUTS = int(os.environ.get("BOOKGATE_FUZZ_INPUTS", "30000")) // 100
SEED = int(os.environ.get("BOOKGATE_FUZZ_SEED", "1"))
REMOVED = 0.1
"""Share of files that are gone rather than damaged."""
ACKNOWLEDGED = {1: range(25), 3: range(1)}


@pytest.fixture
def quiet() -> Iterator[None]:
    """Thousands of complaints about damaged files are expected."""
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)


def filled(root: Path) -> MemoryDisk:
    """Entries in two entry logs, in index files and, behind the mark, in the journal."""
    disk = MemoryDisk(root / "journal/current", root / "ledgers/current")
    run = StorageRun(root, disk, entry_log_max_bytes=1500)
    run.open()
    run.wait(*(run.add(1, entry_id) for entry_id in range(20)), run.fence(2), run.write_lac(2, 5))
    run.storage.checkpoint()
    run.wait(*(run.add(1, entry_id, 700) for entry_id in range(20, 25)), run.add(3, 0), run.fence(3))
    left = disk.after_power_loss(everything_survives)
    run.storage.close()
    return left


@pytest.mark.timeout(600 + INPUTS // 20)
@pytest.mark.usefixtures("quiet")
def test_a_damaged_file_is_named_or_read_around(tmp_path: Path) -> None:
    good = filled(tmp_path)
    files = [path for path in good.files(tmp_path) if path.name != "VERSION"]
    assert {path.suffix for path in files} >= {".txn", ".log", ".idx", ""}
    started = 0
    for number in range(INPUTS):
        choice = random.Random(SEED * 1_000_003 + number)
        disk = good.after_power_loss(everything_survives)
        damaged = choice.choice(files)
        left = damage(choice, disk, damaged)
        what = f"seed {SEED}, input {number}, {damaged.name}"
        run = StorageRun(tmp_path, disk)
        refusal = refused(run)
        if refusal is not None:
            # A mark that is wrong shows in the journal that it names.
            named = {"lastMark": ".txn", "1.idx": "index file of ledger 1"}
            assert damaged.name in refusal or named.get(damaged.name, "?") in refusal, what
            continue
        started += 1
        read_everything(run, damaged, left, what)
        try:
            run.storage.close()
        except OSError as error:
            pytest.fail(f"{what}: {error}")
        assert not disk.open_paths, what
    assert INPUTS // 10 < started < INPUTS


def refused(run: StorageRun) -> str | None:
    try:
        run.open()
    except OSError as error:
        return str(error)
    return None


def damage(choice: random.Random, disk: MemoryDisk, path: Path) -> bytes:
    """What is left of the file."""
    if choice.random() < REMOVED:
        disk.unlink(path)
        disk.sync_directory(path.parent)
        return b""
    left = mutate(choice, [disk.content(path)], 1 << 16)
    disk.put(path, left)
    return left


def read_everything(run: StorageRun, damaged: Path, left: bytes, what: str) -> None:
    for number in (1, 2, 3):
        for entry_id in (*range(26), 2000):
            try:
                ledger = run.storage.ledgers.get(LedgerId.unscoped(number))
                if ledger is None and run.storage.is_in_limbo(number):
                    continue
                found = run.storage.reader.read_entry(ledger, entry_id) if ledger is not None else None
            except (DataUnknownException, OSError):
                continue
            except NoSuchEntryException:
                found = None
            if found is None:
                may_be_denied = entry_id not in ACKNOWLEDGED.get(number, ()) or shows_nowhere(
                    run, damaged, left, number, entry_id
                )
                assert may_be_denied, f"{what}: entry {entry_id} of ledger {number} is denied"
                continue
            assert found[:8] == number.to_bytes(8, "big"), what
            assert found[8:16] == entry_id.to_bytes(8, "big"), what


def shows_nowhere(run: StorageRun, damaged: Path, left: bytes, number: int, entry_id: int) -> bool:
    """Whether what is left of a damaged file is what a file is that never had the entry."""
    if run.storage.is_in_limbo(number):
        return False
    if damaged.suffix == ".txn":
        return True
    slot = left[slot_offset(entry_id) :][:SLOT_SIZE]
    return damaged.name == f"{number:x}.idx" and len(left) >= HEADER_SIZE and not any(slot)
