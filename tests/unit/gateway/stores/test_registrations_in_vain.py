"""What stays in a process of registrations that led to nothing."""

from __future__ import annotations

from typing import Any

import pytest
from kazoo.exceptions import NodeExistsError, NoNodeError
from kazoo.protocol.states import ZnodeStat

from bookgate.gateway.stores.zookeeper.layout import ClusterPaths
from bookgate.gateway.stores.zookeeper.registration import ZooKeeperRegistrationManager
from bookgate.ledger.bookie_info import BookieServiceInfo
from bookgate.ledger.errors import LedgerExistException

pytestmark = pytest.mark.asyncio

ANOTHERS = ZnodeStat(1, 1, 0, 0, 0, 0, 0, 99, 0, 0, 1)
"""The node of another session."""


class Session:
    session_id = 7
    session_timeout_seconds = 0.01
    connected = True
    connection_epoch = 0

    def __init__(self, *, taken: bool) -> None:
        self._taken = taken
        self.watchers: set[Any] = set()
        """As kazoo keeps them: equal ones count once, until the node changes."""

    async def sync(self, _path: str) -> None:
        return

    async def exists(self, _path: str, watch: Any = None) -> ZnodeStat | None:
        if watch is not None:
            self.watchers.add(watch)
        return ANOTHERS if self._taken else None

    async def get(self, _path: str, _watch: Any = None) -> tuple[bytes, ZnodeStat]:
        if self._taken:
            return BookieServiceInfo.legacy("b:1").encode(), ANOTHERS
        raise NoNodeError

    async def create(self, _path: str, _data: bytes = b"", **_options: Any) -> int:
        if self._taken:
            raise NodeExistsError
        return 1

    async def delete(self, _path: str, _version: int = -1) -> None:
        raise NoNodeError


async def test_refused_registrations_leave_one_watcher() -> None:
    session: Any = Session(taken=True)
    manager = ZooKeeperRegistrationManager(session, ClusterPaths("/ledgers"))
    for _ in range(10):
        with pytest.raises(LedgerExistException, match="b:1"):
            await manager.register_bookie(BookieServiceInfo.legacy("b:1"), read_only=False)
    assert len(session.watchers) == 1


async def test_nothing_is_kept_of_bookies_that_have_left() -> None:
    session: Any = Session(taken=False)
    manager = ZooKeeperRegistrationManager(session, ClusterPaths("/ledgers"))
    for number in range(100):
        await manager.register_bookie(BookieServiceInfo.legacy(f"b-{number}:1"), read_only=False)
        await manager.unregister_bookie(f"b-{number}:1")
    assert not manager._held
    assert not manager._moving
