"""Which changes of the mode a registration manager hears, when it fails at some of them."""

from __future__ import annotations

import asyncio
import errno
import os
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from bookgate.bookie.mode import state_manager
from bookgate.bookie.mode.mode import BookieMode
from bookgate.bookie.mode.state_manager import StateManager
from bookgate.bookie.mode.status_files import STATUS_FILE
from bookgate.bookie.system.files import REAL_FILE_SYSTEM, FileSystem
from bookgate.ledger.bookie_info import BookieServiceInfo, Lease
from bookgate.ledger.errors import LedgerExistException, MetaStoreException
from bookgate.ledger.metadata_store import RegistrationManager, Versioned


class Registrations(RegistrationManager):
    """Keeps the list that the bookie was last asked to be in, also when the answer is that nobody knows."""

    def __init__(self) -> None:
        self.read_only: bool | None = None
        self.fails = False
        self.refuses = False
        self.store_fails = False
        self.asked = asyncio.Event()
        self.looks = asyncio.Event()

    async def register_bookie(self, info: BookieServiceInfo, *, read_only: bool) -> None:
        if self.refuses:
            self.asked.set()
            raise LedgerExistException("another live process holds the bookie id")
        self.read_only = read_only
        self.asked.set()
        if self.fails:
            raise MetaStoreException("no answer; it will be tried on")

    async def unregister_bookie(self, bookie_id: str, lease: Lease | None = None) -> None:
        self.read_only = None

    async def is_registered(self, info: BookieServiceInfo, *, read_only: bool) -> bool:
        self.looks.set()
        if self.store_fails:
            raise MetaStoreException("no answer")
        return self.read_only is read_only

    async def cluster_instance_id(self) -> str:
        raise NotImplementedError

    async def read_cookie(self, bookie_id: str) -> Versioned[bytes] | None:
        raise NotImplementedError

    async def write_cookie(self, bookie_id: str, cookie: bytes, expected_version: int | None) -> None:
        raise NotImplementedError

    async def remove_cookie(self, bookie_id: str, expected_version: int) -> None:
        raise NotImplementedError


def manager_of(
    registrations: Registrations, directories: Sequence[Path] = (), files: FileSystem = REAL_FILE_SYSTEM
) -> StateManager:
    mode = BookieMode()
    manager = StateManager(
        mode,
        registrations,
        directories,
        persist=bool(directories),
        now_ms=lambda: 0,
        on_fatal=lambda error: pytest.fail(str(error)),
        files=files,
    )
    manager.restore()
    mode.start()
    mode.disks_writable()
    return manager


@pytest.mark.asyncio
async def test_a_change_that_failed_is_taken_back_when_the_mode_is_as_before() -> None:
    """The bookie was writable again before the failed change could be repeated, and stayed registered as read-only."""
    registrations = Registrations()
    manager = manager_of(registrations)
    await manager.register(BookieServiceInfo("bookie:3181", (), {}))
    assert registrations.read_only is False
    registrations.asked.clear()
    registrations.fails = True
    to_read_only = asyncio.create_task(manager.set_by_operator(True))
    await registrations.asked.wait()
    registrations.fails = False
    assert await manager.set_by_operator(False) is False
    assert registrations.read_only is False
    await to_read_only
    await manager.close()


@pytest.fixture
def looks_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("_LOOK_SECONDS", "_LOOK_AGAIN_SECONDS", "_RETRY_SECONDS"):
        monkeypatch.setattr(state_manager, name, 0)


async def turns_until(condition: Callable[[], bool]) -> None:
    for _ in range(1000):
        if condition():
            return
        await asyncio.sleep(0)
    pytest.fail("not within 1,000 turns of the loop")


@pytest.mark.asyncio
@pytest.mark.usefixtures("looks_at_once")
async def test_a_registration_that_somebody_else_holds_by_now_is_claimed_until_he_lets_it_go() -> None:
    """The bookie goes on serving: a process that stood still for long is not to end because others used the time."""
    registrations = Registrations()
    manager = manager_of(registrations)
    await manager.register(BookieServiceInfo("bookie:3181", (), {}))
    assert manager.registered is True
    registrations.refuses, registrations.read_only = True, None
    registrations.asked.clear()
    for _ in range(3):
        await registrations.asked.wait()
        registrations.asked.clear()
    assert manager.registered is False
    registrations.refuses = False
    await turns_until(lambda: manager.registered is True)
    assert registrations.read_only is False
    await manager.close()


@pytest.mark.asyncio
@pytest.mark.usefixtures("looks_at_once")
async def test_a_store_that_does_not_answer_leaves_it_open_whether_the_bookie_is_registered() -> None:
    registrations = Registrations()
    manager = manager_of(registrations)
    await manager.register(BookieServiceInfo("bookie:3181", (), {}))
    registrations.store_fails = True
    await turns_until(lambda: manager.registered is None)
    registrations.store_fails = False
    await turns_until(lambda: manager.registered is True)
    await manager.close()


class NoDescriptors(FileSystem):
    """While `refuses`, BOOKIE_STATUS can't be opened; `twice` is set once that was tried again."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.refuses = False
        self.attempts = 0
        self.twice = asyncio.Event()
        self.written = asyncio.Event()
        self._loop = loop

    def open(self, path: Path, flags: int) -> int:
        if self.refuses and path.name == STATUS_FILE:
            self.attempts += 1
            if self.attempts > 1:
                self._loop.call_soon_threadsafe(self.twice.set)
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE), str(path))
        return super().open(path, flags)

    def sync_directory(self, path: Path) -> None:
        super().sync_directory(path)
        self._loop.call_soon_threadsafe(self.written.set)


@pytest.mark.asyncio
@pytest.mark.parametrize("hold", [True, False])
async def test_an_operators_word_that_could_not_be_written_is_written_later(
    tmp_path: Path, hold: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A hold was gone after the next start, and one that was released was back."""
    monkeypatch.setattr(state_manager, "_RETRY_SECONDS", 0.01)
    (tmp_path / "current").mkdir()
    files = NoDescriptors(asyncio.get_running_loop())
    registrations = Registrations()
    manager = manager_of(registrations, [tmp_path], files)
    await manager.register(BookieServiceInfo("bookie:3181", (), {}))
    if not hold:
        assert await manager.set_by_operator(True)
    files.refuses = True
    assert await manager.set_by_operator(hold) is hold
    # The registration, and the operator, did not wait for it.
    assert registrations.read_only is hold
    async with asyncio.timeout(10):
        await files.twice.wait()
        files.written.clear()
        files.refuses = False
        await files.written.wait()
    await manager.close()
    again = manager_of(registrations, [tmp_path], files)
    assert (again._mode.manual, again._mode.read_only) == (hold, hold)
