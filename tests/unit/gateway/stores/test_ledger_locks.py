"""Locks whose creation was not answered, at a server that has not seen it yet."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from kazoo.protocol.states import ZnodeStat

from bookgate.gateway.stores.zookeeper.ledger_locks import LedgerLocks
from bookgate.gateway.stores.zookeeper.replication_paths import ReplicationPaths
from bookgate.ledger.errors import UnknownOutcomeException

SESSION_ID = 7


class Session:
    """The first creation is not answered; reads see its node once `sync` was called."""

    session_id = SESSION_ID

    def __init__(self) -> None:
        self.node: ZnodeStat | None = None
        self._synced = False
        self.deleted = asyncio.Event()

    async def create_ephemeral_at(self, _path: str, data: bytes, version: int) -> None:
        self.node = ZnodeStat(1, 1, 0, 0, version, 0, 0, SESSION_ID, len(data), 0, 1)
        raise UnknownOutcomeException("its answer was lost")

    async def exists(self, _path: str, _watch: Any = None) -> ZnodeStat | None:
        return self.node if self._synced else None

    async def sync(self, _path: str) -> None:
        self._synced = True

    async def delete(self, _path: str, version: int) -> None:
        assert self.node is not None
        assert self.node.version == version
        self.node = None
        self.deleted.set()


@pytest.mark.asyncio
async def test_a_lock_whose_creation_was_not_answered_does_not_stay() -> None:
    session: Any = Session()
    locks = LedgerLocks(session, ReplicationPaths("/ledgers"), lambda lock: None)
    with pytest.raises(UnknownOutcomeException):
        await locks.try_lock(5, "h:1")
    async with asyncio.timeout(5):
        await session.deleted.wait()
    await locks.close()
    assert session.node is None
