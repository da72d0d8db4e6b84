"""A client's revision is caught up with, once for all who wait, and refused beyond the store's own."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from bookgate.gateway.services.freshness import RevisionBarrier
from bookgate.ledger.errors import MetaStoreException, WrongClusterException

pytestmark = pytest.mark.asyncio


class Store:
    def __init__(self) -> None:
        self.zxid = 100
        self.asked: list[int | None] = []
        self.begun = asyncio.Semaphore(0)
        self.open = asyncio.Event()
        self.open.set()
        self.error: Exception | None = None

    async def revision(self) -> int:
        return self.zxid

    async def catch_up(self, revision: int | None) -> None:
        self.asked.append(revision)
        self.begun.release()
        await self.open.wait()
        if self.error is not None:
            raise self.error


@pytest.fixture
def store() -> Store:
    return Store()


@pytest.fixture
def freshness(store: Any) -> RevisionBarrier:
    return RevisionBarrier(store)


async def test_revision_reached_before_costs_nothing(freshness: RevisionBarrier, store: Store) -> None:
    for revision in (0, 90, 80, 90):
        await freshness.wait_for(revision)
    # Everything, not only what this session has heard of: its listeners may lag behind its answers.
    assert store.asked == [None]


async def test_callers_share_a_catch_up_that_began_after_they_came(freshness: RevisionBarrier, store: Store) -> None:
    store.open.clear()
    first = asyncio.ensure_future(freshness.wait_for(90))
    await store.begun.acquire()
    others = [asyncio.ensure_future(freshness.wait_for(95)) for _ in range(20)]
    await asyncio.sleep(0)
    store.open.set()
    await asyncio.gather(first, *others)
    assert len(store.asked) == 2


async def test_revision_above_the_stores_is_refused_and_believed_no_further(
    freshness: RevisionBarrier, store: Store
) -> None:
    with pytest.raises(WrongClusterException, match="older state"):
        await freshness.wait_for(1 << 62)
    store.zxid = 200
    await freshness.wait_for(150)
    assert len(store.asked) == 2


async def test_failure_reaches_the_caller_and_the_next_one_tries_again(
    freshness: RevisionBarrier, store: Store
) -> None:
    store.error = MetaStoreException("away")
    with pytest.raises(MetaStoreException):
        await freshness.wait_for(90)
    store.error = None
    await freshness.wait_for(90)
    assert len(store.asked) == 2


async def test_caller_that_goes_away_does_not_disturb_the_others(freshness: RevisionBarrier, store: Store) -> None:
    store.open.clear()
    first, second = (asyncio.ensure_future(freshness.wait_for(90)) for _ in range(2))
    await store.begun.acquire()
    first.cancel()
    store.open.set()
    await second
