"""Ledgers in limbo, as an Apache BookKeeper bookie marks them in RocksDB: what is not held is unknown, not absent."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path

import pytest
from rocksdict import AccessType, Options, Rdict

from bookgate.bookie.storage.ledger_descriptor import LedgerDescriptor
from bookgate.bookie.storage.limbo import Limbo
from bookgate.bookie.storage.storage import LedgerStorage
from bookgate.bookie.system.files import FileSystem
from bookgate.bookie.system.threads import Lock, Threads
from bookgate.ledger.errors import DataUnknownException
from bookgate.ledger.wire.messages import Status
from bookgate.protos.bookkeeper.proto.db_ledger_storage_pb2 import LedgerData
from tests.unit.bookie.storage.storage_support import KEY, opened, packet, read_entries

LEDGER = 5


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    """One entry, and a mark in its ledger's row that others are lost."""
    with opened(tmp_path, storage="db") as bookie:
        bookie.add(LEDGER, 3)
    path = tmp_path / "ledgers" / "current" / "ledgers"
    rows = Rdict(str(path), Options(raw_mode=True), access_type=AccessType.read_write())
    key = LEDGER.to_bytes(8, "big")
    row = LedgerData.FromString(bytes(rows[key] or b""))
    row.limbo = True
    rows[key] = row.SerializeToString()
    rows.close()
    return tmp_path


def stored(storage: LedgerStorage) -> LedgerDescriptor:
    ledger = storage.ledgers.recent(LEDGER)
    assert ledger is not None
    return ledger


def test_what_is_held_is_served_and_the_rest_is_unknown(directory: Path) -> None:
    with opened(directory, storage="db") as bookie:
        ledger = bookie.ledger(LEDGER)
        assert bookie.storage.reader.read_entry(ledger, 3) == packet(LEDGER, 3)
        assert read_entries(bookie, ledger, 3, 10, 1 << 20) == [packet(LEDGER, 3)]
        for question in (
            lambda: bookie.storage.reader.read_entry(ledger, 4),
            lambda: read_entries(bookie, ledger, 4, 10, 1 << 20),
            lambda: bookie.storage.reader.last_entry_id(ledger),
            lambda: bookie.storage.reader.known_lac(ledger),
        ):
            with pytest.raises(DataUnknownException, match="ledger 5 is in limbo"):
                question()
        assert bookie.storage.reader.loaded_lac(ledger) is None


def test_recovery_writes_what_is_missing_and_nobody_else(directory: Path) -> None:
    with opened(directory, storage="db") as bookie:
        ledger = bookie.ledger(LEDGER)
        # Not "fenced": a writer that lives may go on with another bookie.
        assert ledger.check_add(KEY, recovery=False) is Status.EUNKNOWNLEDGERSTATE
        assert ledger.check_add(KEY, recovery=True) is Status.EOK
        bookie.add(LEDGER, 4)


def test_the_mark_stays(directory: Path) -> None:
    with opened(directory, storage="db") as bookie:
        bookie.fence(LEDGER)
        bookie.add(LEDGER, 4)
    with opened(directory, storage="db") as bookie:
        assert bookie.ledger(LEDGER).limbo
        assert stored(bookie.storage).fenced


class _TellingLock:
    """A lock that tells when somebody has to wait for it."""

    def __init__(self, somebody_waits: threading.Event) -> None:
        self._lock = threading.Lock()
        self._somebody_waits = somebody_waits

    def __enter__(self) -> bool:
        if not self._lock.acquire(blocking=False):
            self._somebody_waits.set()
            self._lock.acquire()
        return True

    def __exit__(self, *_error: object) -> None:
        self._lock.release()


class _TellingThreads(Threads):
    def __init__(self, somebody_waits: threading.Event) -> None:
        self._somebody_waits = somebody_waits

    def lock(self) -> Lock:
        return _TellingLock(self._somebody_waits)


class _Hooked(FileSystem):
    """Runs a hook once, after the first open of a file."""

    hook: Callable[[], None] | None = None

    def open(self, path: Path, flags: int) -> int:
        fd = super().open(path, flags)
        hook, self.hook = self.hook, None
        if hook is not None:
            hook()
        return fd


def test_a_ledger_that_enters_limbo_while_another_leaves_is_in_the_list(tmp_path: Path) -> None:
    files, waits_or_is_done = _Hooked(), threading.Event()
    limbo = Limbo(files, [tmp_path], _TellingThreads(waits_or_is_done))
    limbo.add([1, 2])

    def enter() -> None:
        limbo.add_lost([3])
        waits_or_is_done.set()

    entering = threading.Thread(target=enter)

    def let_another_enter() -> None:
        entering.start()
        assert waits_or_is_done.wait(30)

    files.hook = let_another_enter
    limbo.remove([1])
    entering.join()
    again = Limbo(files, [tmp_path])
    again.load(lambda loss: pytest.fail(str(loss)))
    assert again.numbers() == limbo.numbers() == [2, 3]
