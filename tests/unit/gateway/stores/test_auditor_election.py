"""Votes that are withdrawn, or whose creation is not answered, at awkward moments, which no real server can be made to
do."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest
from kazoo.exceptions import NoNodeError

from bookgate.gateway.stores.zookeeper.auditor_election import AuditorElection
from bookgate.gateway.stores.zookeeper.replication_paths import ReplicationPaths
from bookgate.ledger.errors import UnknownOutcomeException

pytestmark = pytest.mark.asyncio

PATHS = ReplicationPaths("/l")


class Session:
    """The calls that an election makes; each waits for the connection."""

    session_id, connection_epoch = 1, 0

    def __init__(self) -> None:
        self.nodes: list[str] = []
        self.number = 0
        self.connected = asyncio.Event()
        self.connected.set()
        self.away_at = ""
        """The connection is lost when this vote is looked at."""
        self.losing = False
        """The next creation is not answered, and the server of the next connection does not show it yet."""
        self.unseen: list[str] = []

    async def create_sequential(self, prefix: str, data: bytes) -> str:
        await self.connected.wait()
        self.number += 1
        path = f"{prefix}{self.number:010d}"
        self.nodes.append(path)
        if self.losing:
            self.losing = False
            self.unseen.append(path)
            raise UnknownOutcomeException("the connection was lost")
        return path

    async def sync(self, path: str) -> None:
        await self.connected.wait()
        self.unseen.clear()

    async def children(self, path: str) -> list[str]:
        await self.connected.wait()
        return [node.rpartition("/")[2] for node in self.nodes if node not in self.unseen]

    async def exists(self, path: str, watch: Any = None) -> Any:
        if watch is None and self.away_at and path.endswith(self.away_at):
            self.away_at = ""
            self.connected.clear()
        await self.connected.wait()
        return SimpleNamespace(ephemeralOwner=self.session_id) if path in self.nodes else None

    async def set(self, path: str, data: bytes, version: int) -> None:
        await self.connected.wait()

    async def delete(self, path: str, version: int = -1) -> None:
        await self.connected.wait()
        if path not in self.nodes:
            raise NoNodeError
        self.nodes.remove(path)


@pytest.fixture
def session() -> Any:
    return Session()


async def passing() -> None:
    for _ in range(20):
        await asyncio.sleep(0)


async def test_a_withdrawal_that_is_cancelled_while_strays_are_removed_leaves_no_vote(session: Any) -> None:
    election = AuditorElection(session, PATHS)
    vote = await election.stand("b1", lambda state: None)
    session.losing = True
    session.away_at = "2"
    with pytest.raises(UnknownOutcomeException):
        await election.stand("b1", lambda state: None)
    await passing()
    assert not session.connected.is_set(), "the removal of the second vote is beyond the first one"
    withdrawal = asyncio.create_task(vote.withdraw())
    await passing()
    withdrawal.cancel()
    await asyncio.gather(withdrawal, return_exceptions=True)
    session.connected.set()
    await passing()
    assert not session.nodes
    await election.close()


async def test_a_vote_is_removed_that_the_next_server_does_not_show_yet(session: Any) -> None:
    election = AuditorElection(session, PATHS)
    session.losing = True
    with pytest.raises(UnknownOutcomeException):
        await election.stand("b1", lambda state: None)
    await passing()
    assert not session.nodes
    await election.close()
