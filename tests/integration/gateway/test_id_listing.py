"""Listing over the ids where layouts change: every manager of a real ZooKeeper, and the embedded store (M5)."""

from __future__ import annotations

import asyncio
import itertools
import tempfile
from collections.abc import Coroutine, Iterable
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from kazoo.client import KazooClient

from bookgate.bookie.standalone.local_zookeeper import LocalZooKeeper
from bookgate.gateway.stores.drivers import create_factory
from bookgate.gateway.stores.zookeeper.uri import parse_zookeeper
from bookgate.ledger.metadata_store import CreateRequest, LedgerManager, LedgerManagerFactory, LedgerRecord
from tests.integration.gateway.conftest import some_metadata, unscoped
from tests.stores import made

MANAGERS = ("flat", "legacyhierarchical", "hierarchical", "longhierarchical", "sqlite")
LARGEST = 2**63 - 1
EDGES = (0, 1, 9_999, 10_000, 99_999_999, 100_000_000, 2**31 - 2, 2**31 - 1, 2**31, 10**10 - 1, 10**10, LARGEST)

_ROOTS = itertools.count()
_FEW = settings(
    max_examples=12, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
)


def ids_of(manager: str) -> st.SearchStrategy[int]:
    """Ids near the borders, close together, and anywhere."""
    largest = 10**10 - 1 if manager == "legacyhierarchical" else LARGEST
    edges = [edge for edge in EDGES if edge <= largest]
    near = st.builds(lambda edge, off: min(max(edge + off, 0), largest), st.sampled_from(edges), st.integers(-2, 2))
    return near | st.sampled_from(edges) | st.integers(0, 30_000) | st.integers(0, largest)


def uri_of(manager: str, server: LocalZooKeeper) -> str:
    """A store that nobody has used yet."""
    if manager == "sqlite":
        return made(f"sqlite://{tempfile.mkdtemp()}/metadata.db")
    root = f"/listing/{next(_ROOTS)}/ledgers"
    if manager != "legacyhierarchical":
        return made(server.metadata_uri(root, manager))
    # No URI names it: it is what LAYOUT of an old cluster says.
    client: Any = KazooClient(server.address)
    client.start()
    factory_class = b"org.apache.bookkeeper.meta.LegacyHierarchicalLedgerManagerFactory"
    client.create(f"{root}/LAYOUT", b"2\n" + factory_class + b":1", makepath=True)
    client.stop()
    client.close()
    return f"zk://{server.address}{root}"


async def listed(manager: LedgerManager, after: int | None = None, before: int | None = None) -> list[int]:
    found: list[int] = []
    async for run in manager.ledger_ranges(0, after, before):
        assert len(run)
        found += run
    return found


async def create_all(manager: LedgerManager, ids: Iterable[int]) -> None:
    requests = [CreateRequest(unscoped(number), some_metadata()) for number in ids]
    assert all(isinstance(made, LedgerRecord) for made in await manager.create_many(requests))


async def on_store(uri: str, work: Any) -> None:
    factory: LedgerManagerFactory = create_factory(uri)
    await factory.initialize()
    try:
        await work(factory.ledger_manager)
    finally:
        await factory.close()


def run(work: Coroutine[Any, Any, None]) -> None:
    asyncio.run(work)


@pytest.mark.parametrize("manager", MANAGERS)
@_FEW
@given(data=st.data())
def test_listing_is_what_exists_between_the_cursors(
    manager: str, data: st.DataObject, zookeeper: LocalZooKeeper
) -> None:
    ids = data.draw(st.sets(ids_of(manager), max_size=25))
    cursors = data.draw(st.lists(st.tuples(st.none() | ids_of(manager), st.none() | ids_of(manager)), max_size=4))

    async def work(ledgers: LedgerManager) -> None:
        await create_all(ledgers, ids)
        for after, before in [(None, None), *cursors]:
            expected = [i for i in sorted(ids) if (after is None or i > after) and (before is None or i < before)]
            assert await listed(ledgers, after, before) == expected

    run(on_store(uri_of(manager, zookeeper), work))


@pytest.mark.parametrize("manager", MANAGERS)
@_FEW
@given(data=st.data())
def test_pages_by_cursor_are_the_whole(manager: str, data: st.DataObject, zookeeper: LocalZooKeeper) -> None:
    """As a broken iteration goes on elsewhere: from the last id received, wherever it broke."""
    ids = data.draw(st.sets(ids_of(manager), min_size=1, max_size=25))

    async def work(ledgers: LedgerManager) -> None:
        await create_all(ledgers, ids)
        found: list[int] = []
        while True:
            rest = await listed(ledgers, found[-1] if found else None)
            if not rest:
                break
            found += rest[: data.draw(st.integers(1, len(rest)))]
        assert found == sorted(ids)

    run(on_store(uri_of(manager, zookeeper), work))


@pytest.mark.parametrize("manager", MANAGERS)
@_FEW
@given(data=st.data())
def test_what_stays_is_listed_once_whatever_comes_and_goes(
    manager: str, data: st.DataObject, zookeeper: LocalZooKeeper
) -> None:
    stay = data.draw(st.sets(ids_of(manager), max_size=15))
    go = data.draw(st.sets(ids_of(manager), max_size=10)) - stay
    come = data.draw(st.sets(ids_of(manager), max_size=10)) - stay - go

    async def work(ledgers: LedgerManager) -> None:
        await create_all(ledgers, stay | go)
        changes = [*(("remove", number) for number in go), *(("create", number) for number in come)]
        seen: list[int] = []
        async for run in ledgers.ledger_ranges():
            seen += run
            for what, number in (changes.pop() for _ in range(min(3, len(changes)))):
                if what == "remove":
                    await ledgers.remove(unscoped(number))
                else:
                    await ledgers.create(unscoped(number), some_metadata())
        assert seen == sorted(set(seen))
        assert stay <= set(seen) <= stay | go | come

    run(on_store(uri_of(manager, zookeeper), work))


def nodes_below(client: Any, path: str) -> set[str]:
    """All paths below a node."""
    children = [f"{path}/{name}" for name in client.get_children(path)]
    return set(children).union(*(nodes_below(client, child) for child in children))


@pytest.mark.parametrize("manager", ["hierarchical", "longhierarchical"])
@_FEW
@given(data=st.data())
def test_parents_go_with_their_last_ledger_and_not_before(
    manager: str, data: st.DataObject, zookeeper: LocalZooKeeper
) -> None:
    ids = data.draw(st.lists(ids_of(manager), min_size=1, max_size=12, unique=True))
    uri = uri_of(manager, zookeeper)
    client: Any = KazooClient(zookeeper.address)
    client.start()
    root = parse_zookeeper(uri).ledgers_root

    async def work(ledgers: LedgerManager) -> None:
        bare = await asyncio.to_thread(nodes_below, client, root)
        await create_all(ledgers, ids)
        left = set(ids)
        for number in ids:
            await ledgers.remove(unscoped(number))
            left.discard(number)
            assert await listed(ledgers) == sorted(left)
        assert await asyncio.to_thread(nodes_below, client, root) == bare

    run(on_store(uri, work))
    client.stop()
    client.close()


@pytest.mark.parametrize("manager", MANAGERS)
def test_full_leaf_and_its_neighbours(manager: str, zookeeper: LocalZooKeeper) -> None:
    """A leaf node with all of its 10,000 ids is read another way than one with gaps."""

    async def work(ledgers: LedgerManager) -> None:
        whole = range(10_000, 20_000)
        await create_all(ledgers, [5, 9_999, *whole, 20_000, 20_002])
        assert await listed(ledgers) == [5, 9_999, *whole, 20_000, 20_002]
        assert await listed(ledgers, 10_010, 19_990) == list(range(10_011, 19_990))
        await ledgers.remove(unscoped(15_000))
        assert await listed(ledgers, 14_998, 15_002) == [14_999, 15_001]

    run(on_store(uri_of(manager, zookeeper), work))
