"""Which changes of the mode a registration manager hears, when it fails at some of them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from bookgate.bookie.mode import state_manager
from bookgate.bookie.mode.mode import BookieMode
from bookgate.bookie.mode.state_manager import StateManager
from bookgate.bookie.system.files import REAL_FILE_SYSTEM
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


def manager_of(registrations: Registrations) -> StateManager:
    mode = BookieMode()
    mode.start()
    return StateManager(
        mode,
        registrations,
        [],
        persist=False,
        now_ms=lambda: 0,
        on_fatal=lambda error: pytest.fail(str(error)),
        files=REAL_FILE_SYSTEM,
    )


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
