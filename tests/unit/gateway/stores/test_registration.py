"""A bookie's registration when ZooKeeper sessions end at awkward moments, which no real server can be made to do."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
from kazoo.exceptions import NodeExistsError, NoNodeError

from bookgate.gateway.stores.zookeeper import registration
from bookgate.gateway.stores.zookeeper.layout import ClusterPaths
from bookgate.gateway.stores.zookeeper.registration import ZooKeeperRegistrationManager
from bookgate.ledger.bookie_info import BookieServiceInfo
from bookgate.ledger.errors import ZKException

pytestmark = pytest.mark.asyncio

BOOKIE = BookieServiceInfo.legacy("h:1")
NODE = "/l/available/h:1"


class Session:
    """The calls that registration makes, on ephemeral nodes that end with their session."""

    def __init__(self) -> None:
        self.session_id = 1
        self.owners: dict[str, int] = {}
        self.before_exists: Callable[[], None] = lambda: None
        self.fail_creates = 0
        self.creates = asyncio.Event()
        self.creates.set()

    async def create(self, path: str, data: bytes = b"", *, ephemeral: bool = False, sequence: bool = False) -> str:
        await self.creates.wait()
        if self.fail_creates:
            self.fail_creates -= 1
            raise ZKException("throttled")
        if path in self.owners:
            raise NodeExistsError
        self.owners[path] = self.session_id
        return path

    async def exists(self, path: str, watch: Any = None) -> Any:
        await asyncio.sleep(0)
        self.before_exists()
        owner = self.owners.get(path)
        return None if owner is None else SimpleNamespace(ephemeralOwner=owner, version=0)

    async def get(self, path: str, watch: Any = None) -> Any:
        if path not in self.owners:
            raise NoNodeError
        return BOOKIE.encode(), SimpleNamespace(ephemeralOwner=self.owners[path], version=0)

    async def delete(self, path: str, version: int = -1) -> None:
        del self.owners[path]


class Registered:
    """A registration manager whose sessions a test ends."""

    def __init__(self) -> None:
        self.session = Session()
        self.manager = ZooKeeperRegistrationManager(self.session, ClusterPaths("/l"))  # type: ignore[arg-type]

    def end_session(self) -> None:
        self.session.owners = {
            path: owner for path, owner in self.session.owners.items() if owner != self.session.session_id
        }
        self.session.session_id += 1
        self.manager.session_renewed()

    def end_session_once_at_exists(self) -> None:
        def end() -> None:
            self.session.before_exists = lambda: None
            self.end_session()

        self.session.before_exists = end

    async def settled(self) -> None:
        """Returns once nothing more is done in the background."""
        while others := asyncio.all_tasks() - {asyncio.current_task()}:
            await asyncio.wait(others)


@pytest.fixture
def bookie(monkeypatch: pytest.MonkeyPatch) -> Registered:
    monkeypatch.setattr(registration, "_RETRY_SECONDS", 0)
    return Registered()


async def test_session_that_ends_during_the_first_registration(bookie: Registered) -> None:
    bookie.end_session_once_at_exists()
    await bookie.manager.register_bookie(BOOKIE, read_only=False)
    assert bookie.session.owners == {NODE: 2}


async def test_session_that_ends_while_the_bookie_is_registered_again(bookie: Registered) -> None:
    await bookie.manager.register_bookie(BOOKIE, read_only=False)
    bookie.end_session_once_at_exists()
    bookie.end_session()
    await bookie.settled()
    assert bookie.session.owners == {NODE: 3}


async def test_refusal_of_the_store_is_not_the_end_of_registering_again(bookie: Registered) -> None:
    await bookie.manager.register_bookie(BOOKIE, read_only=False)
    bookie.session.fail_creates = 2
    bookie.end_session()
    await bookie.settled()
    assert bookie.session.owners == {NODE: 2}


async def test_bookie_taken_out_while_it_is_registered_again_stays_out(bookie: Registered) -> None:
    await bookie.manager.register_bookie(BOOKIE, read_only=False)
    bookie.session.creates.clear()
    bookie.end_session()
    await asyncio.sleep(0)
    await bookie.manager.unregister_bookie("h:1")
    bookie.session.creates.set()
    await bookie.settled()
    assert bookie.session.owners == {}
