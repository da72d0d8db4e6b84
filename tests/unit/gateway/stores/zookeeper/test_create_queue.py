"""Nodes that share transactions: how many, and what each is told."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest
from kazoo.exceptions import NodeExistsError

from bookgate.gateway.stores.zookeeper import create_queue
from bookgate.gateway.stores.zookeeper.create_queue import CreateQueue
from bookgate.ledger.errors import MetaStoreException, UnknownOutcomeException

pytestmark = pytest.mark.asyncio


class Session:
    """Takes transactions; a test holds them up or makes them fail."""

    def __init__(self) -> None:
        self.transactions: list[list[str]] = []
        self.open = asyncio.Event()
        self.open.set()
        self.error: Exception | None = None

    async def create_together(self, nodes: Sequence[tuple[str, bytes]]) -> int:
        """The czxid is the number of transactions so far."""
        self.transactions.append([path for path, _ in nodes])
        number = len(self.transactions)
        await self.open.wait()
        if self.error is not None:
            raise self.error
        return number


@pytest.fixture
def session() -> Any:
    return Session()


async def test_node_alone_goes_at_once(session: Any) -> None:
    queue = CreateQueue(session)
    assert await queue.create("/a", b"") == 1
    assert session.transactions == [["/a"]]


async def test_what_comes_while_transactions_are_under_way_shares_the_next(
    session: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(create_queue, "_MAX_TRANSACTIONS", 1)
    queue = CreateQueue(session)
    session.open.clear()
    first = queue.create("/first", b"")
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    rest = [queue.create(f"/{n}", b"") for n in range(200)]
    session.open.set()
    assert await asyncio.gather(first, *rest) == [1] + [2] * 128 + [3] * 72
    assert [len(nodes) for nodes in session.transactions] == [1, 128, 72]


async def test_transactions_are_bounded_in_bytes_but_a_large_node_goes(session: Any) -> None:
    queue = CreateQueue(session)
    await asyncio.gather(
        queue.create("/large", b"x" * 900_000), *(queue.create("/n", b"x" * 100_000) for _ in range(5))
    )
    assert [len(nodes) for nodes in session.transactions] == [1, 2, 2, 1]


async def test_of_a_failed_transaction_all_are_told_that_they_were_not_created(session: Any) -> None:
    session.error = NodeExistsError()
    queue = CreateQueue(session)
    assert await asyncio.gather(*(queue.create(f"/{n}", b"") for n in range(3))) == [None] * 3


async def test_lost_answer_is_told_to_all(session: Any) -> None:
    session.error = UnknownOutcomeException("lost")
    queue = CreateQueue(session)
    results = await asyncio.gather(*(queue.create(f"/{n}", b"") for n in range(3)), return_exceptions=True)
    assert [type(result) for result in results] == [UnknownOutcomeException] * 3


async def test_who_gave_up_before_it_was_sent_leaves_no_node(session: Any) -> None:
    queue = CreateQueue(session)
    given_up, kept = queue.create("/gone", b""), queue.create("/kept", b"")
    given_up.cancel()
    assert await kept == 1
    assert session.transactions == [["/kept"]]


async def test_closing_tells_who_waits(session: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(create_queue, "_MAX_TRANSACTIONS", 1)
    session.open.clear()
    queue = CreateQueue(session)
    sent = queue.create("/sent", b"")
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    queued = queue.create("/queued", b"")
    await queue.close()
    with pytest.raises(UnknownOutcomeException, match="closed"):
        await sent
    with pytest.raises(MetaStoreException, match="closed"):
        await queued
    assert session.transactions == [["/sent"]]
