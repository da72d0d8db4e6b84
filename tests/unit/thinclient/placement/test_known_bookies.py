"""Ledgers are created from what the watch of bookies told: no call of service discovery each, and none that is lost."""

from __future__ import annotations

import asyncio

import pytest

from bookgate import BookKeeper
from bookgate.ledger.errors import BookieHandleNotAvailableException, ClientClosedException, NotEnoughBookiesException
from bookgate.ledger.metadata_store import BookieSet
from bookgate.thinclient.placement.known_bookies import KnownBookies
from tests.unit.thinclient.fakes import FakeCluster, FakeDiscovery, fake_cluster


async def create_many(client: BookKeeper, count: int) -> list[tuple[str, ...]]:
    """The ensembles of ledgers created at once."""
    handles = await asyncio.gather(*(client.create_ledger(2, 2, 2, password=b"planted-p") for _ in range(count)))
    return [handle.metadata.last_fragment.ensemble for handle in handles]


async def client_that_was_told(cluster: FakeCluster) -> BookKeeper:
    client = cluster.client()
    await create_many(client, 1)
    cluster.discovery.tell()
    cluster.discovery.asked = 0
    return client


@pytest.mark.asyncio
async def test_discovery_is_asked_once_before_the_watch_tells_and_then_no_more() -> None:
    async with fake_cluster(3) as cluster:
        client, discovery = cluster.client(), cluster.discovery
        await create_many(client, 300)
        assert (discovery.asked, len(discovery.listeners)) == (1, 1)
        discovery.tell()
        await create_many(client, 300)
        assert (discovery.asked, len(discovery.listeners)) == (1, 1)
        await client.close()
        assert not discovery.listeners


@pytest.mark.asyncio
async def test_what_the_watch_tells_counts_from_the_next_creation_on() -> None:
    async with fake_cluster(4) as cluster:
        client = await client_that_was_told(cluster)
        gone = cluster.discovery.registered.pop().bookie_id
        assert any(gone in ensemble for ensemble in await create_many(client, 50)), "not told yet"
        cluster.discovery.tell()
        assert not any(gone in ensemble for ensemble in await create_many(client, 50))
        assert cluster.discovery.asked == 0


@pytest.mark.asyncio
async def test_where_the_told_bookies_do_not_suffice_discovery_is_asked() -> None:
    async with fake_cluster(2) as cluster:
        (newcomer, _), cluster.discovery.registered = cluster.discovery.registered, cluster.discovery.registered[1:]
        client = cluster.client()
        with pytest.raises(NotEnoughBookiesException, match="there are 1"):
            await client.create_ledger(2, 2, 2)
        cluster.discovery.tell()
        cluster.discovery.registered.append(newcomer)
        assert newcomer.bookie_id in (await create_many(client, 1))[0]


class Held(FakeDiscovery):
    """Answers once it is let go."""

    def __init__(self) -> None:
        super().__init__([])
        self.begun, self.go = asyncio.Event(), asyncio.Event()
        self.fails = False

    async def bookies(self, bookie_set: BookieSet) -> list[object]:  # type: ignore[override]
        self.begun.set()
        await self.go.wait()
        if self.fails:
            raise BookieHandleNotAvailableException("not now")
        return []


@pytest.mark.asyncio
async def test_one_who_gives_up_takes_no_answer_from_the_others() -> None:
    discovery = Held()
    known = KnownBookies(discovery)
    first, second = (asyncio.create_task(known.ask()) for _ in range(2))
    await discovery.begun.wait()
    first.cancel()
    discovery.go.set()
    assert await second == []
    assert first.cancelled()


@pytest.mark.asyncio
async def test_a_call_that_failed_is_made_anew() -> None:
    discovery = Held()
    known = KnownBookies(discovery)
    discovery.fails = True
    discovery.go.set()
    with pytest.raises(BookieHandleNotAvailableException):
        await known.ask()
    discovery.fails = False
    assert await known.ask() == []
    assert len(discovery.listeners) == 1


@pytest.mark.asyncio
async def test_those_who_ask_when_the_client_is_closed_are_told() -> None:
    discovery = Held()
    known = KnownBookies(discovery)
    asking = asyncio.create_task(known.ask())
    await discovery.begun.wait()
    await known.close()
    with pytest.raises(ClientClosedException):
        await asking
    with pytest.raises(ClientClosedException):
        await known.ask()
    assert not discovery.listeners
