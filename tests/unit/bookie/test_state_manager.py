"""Which changes of the mode a registration manager hears, when it fails at some of them."""

from __future__ import annotations

import asyncio

import pytest

from bookie.core.bookie_mode import BookieMode
from bookie.files import REAL_FILE_SYSTEM
from bookie.state_manager import StateManager
from ledger.bookie_info import BookieServiceInfo
from ledger.errors import MetaStoreException
from ledger.manager import RegistrationManager, Versioned


class Registrations(RegistrationManager):
    """Keeps the list that the bookie was last asked to be in, also when the answer is that nobody knows."""

    def __init__(self) -> None:
        self.read_only: bool | None = None
        self.fails = False
        self.asked = asyncio.Event()

    async def register_bookie(self, info: BookieServiceInfo, *, read_only: bool) -> None:
        self.read_only = read_only
        self.asked.set()
        if self.fails:
            raise MetaStoreException("no answer; it will be tried on")

    async def unregister_bookie(self, bookie_id: str) -> None:
        self.read_only = None

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
