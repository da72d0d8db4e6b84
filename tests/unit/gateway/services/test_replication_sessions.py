"""Votes in a session at a gateway: what a repeated request to cast one does."""

from __future__ import annotations

import asyncio
from typing import cast

import pytest

from bookgate.gateway.services.replication_sessions import LateRequestException, ReplicationSession, VoteEvent
from bookgate.ledger.errors import MetaStoreException
from bookgate.ledger.replication_store import ReplicationEvent, ReplicationMetadata, VoteListener, VoteState
from bookgate.runtime.auditor_votes import Vote

pytestmark = pytest.mark.asyncio


class Store:
    """The votes in a metadata store, and how many were ever cast."""

    def __init__(self) -> None:
        self.votes: list[Vote] = []
        self.cast = 0

    def watch(self, _listener: object) -> object:
        return lambda: None

    async def stand_for_auditor(self, voter: str, listener: VoteListener) -> Vote:
        await asyncio.sleep(0)
        self.cast += 1
        vote = Vote(voter, f"V_{self.cast}", listener, self._take_back)
        self.votes.append(vote)
        return vote

    async def _take_back(self, vote: Vote) -> None:
        self.votes.remove(vote)

    def expire(self) -> None:
        """The store has ended the gateway's session, and the votes in it."""
        while self.votes:
            self.votes.pop().become(VoteState.LOST)


def session_in(store: Store) -> tuple[ReplicationSession, list[ReplicationEvent | VoteEvent]]:
    """A session, and what its owner is told."""
    session = ReplicationSession(cast(ReplicationMetadata, store), "digest", 0.0)
    told: list[ReplicationEvent | VoteEvent] = []
    session.attend(told.append)
    return session, told


async def test_a_vote_that_is_cast_again_while_it_stands_is_the_same_vote() -> None:
    session, _ = session_in(store := Store())
    await asyncio.gather(*(session.stand(1, "us") for _ in range(2)))
    assert store.cast == 1


async def test_a_vote_that_the_store_has_ended_is_not_cast_again() -> None:
    """The answer to the first request was lost; the owner was told of the loss, and follows the vote no more."""
    session, told = session_in(store := Store())
    await session.stand(1, "us")
    store.expire()
    assert told == [(1, VoteState.LOST)]
    with pytest.raises(LateRequestException):
        await session.stand(1, "us")
    assert store.votes == []
    # The next vote of the owner is another one, and the oldest.
    await session.stand(2, "us")
    assert [vote.name for vote in store.votes] == ["V_2"]


async def test_a_vote_that_was_withdrawn_is_not_cast_again() -> None:
    session, _ = session_in(store := Store())
    await session.stand(1, "us")
    await session.withdraw(1)
    await session.withdraw(3)  # whose request to cast it comes later
    for number in (1, 3):
        with pytest.raises(LateRequestException):
            await session.stand(number, "us")
    assert (store.cast, store.votes) == (1, [])


async def test_a_vote_that_the_store_could_not_cast_is_cast_when_it_is_asked_for_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    session, _ = session_in(store := Store())

    async def out_of_reach(*_: object) -> Vote:
        raise MetaStoreException("no answer")

    with monkeypatch.context() as patched:
        patched.setattr(store, "stand_for_auditor", out_of_reach)
        with pytest.raises(MetaStoreException):
            await session.stand(1, "us")
    await session.stand(1, "us")
    assert [vote.name for vote in store.votes] == ["V_1"]
