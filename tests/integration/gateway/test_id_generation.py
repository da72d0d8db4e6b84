"""Ids of several clients at once in a real ZooKeeper: gateways that reserve blocks, and a client that does as Java."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
from kazoo.client import KazooClient

from bookgate.bookie.standalone.local_zookeeper import LocalZooKeeper
from bookgate.gateway.stores.zookeeper.factory import ZooKeeperLedgerManagerFactory
from bookgate.gateway.stores.zookeeper.kazoo_thread import Call, KazooThread
from bookgate.gateway.stores.zookeeper.session import ZooKeeperSession
from bookgate.gateway.stores.zookeeper.uri import parse_zookeeper
from bookgate.ledger.errors import UnknownOutcomeException
from bookgate.ledger.metadata_store import CreateRequest, LedgerRecord
from tests.integration.gateway.conftest import all_ids, some_metadata, unscoped
from tests.stores import made as made_in

pytestmark = pytest.mark.asyncio


@pytest.fixture
def kazoo(zookeeper: LocalZooKeeper) -> Iterator[Any]:
    client = KazooClient(zookeeper.address)
    client.start()
    yield client
    client.stop()
    client.close()


async def opened(uri: str) -> ZooKeeperLedgerManagerFactory:
    factory = ZooKeeperLedgerManagerFactory(parse_zookeeper(uri))
    await factory.initialize()
    return factory


def java_like_ids(client: Any, prefix: str, stop: threading.Event) -> list[int]:
    """One sequential node after the other, each deleted again: what BookKeeper's own client does."""
    ids = []
    while not stop.is_set():
        path = client.create(prefix, b"", ephemeral=True, sequence=True, makepath=True)
        ids.append(int(path.removeprefix(prefix)))
        client.delete(path)
    return ids


@pytest.mark.parametrize(
    ("manager", "below"),
    [
        ("flat", "ID-"),
        ("hierarchical", "idgen/ID-"),
        ("longhierarchical", "idgen-long/HOB-0000000001/ID-"),
    ],
)
async def test_two_gateways_and_java_never_share_an_id(
    empty_zookeeper_uri: str, kazoo: Any, manager: str, below: str
) -> None:
    uri = made_in(empty_zookeeper_uri.replace("hierarchical", manager))
    root = parse_zookeeper(uri).ledgers_root
    factories = [await opened(uri), await opened(uri)]
    if "long" in below:
        kazoo.create(f"{root}/idgen-long/HOB-0000000001", b"", makepath=True)
    stop = threading.Event()
    other = asyncio.create_task(asyncio.to_thread(java_like_ids, kazoo, f"{root}/{below}", stop))
    singles = [factories[n % 2].ledger_manager.create(None, some_metadata()) for n in range(300)]
    batches = [
        factories[n % 2].ledger_manager.create_many([CreateRequest(None, some_metadata())] * 200) for n in range(6)
    ]
    made, many = await asyncio.gather(asyncio.gather(*singles), asyncio.gather(*batches))
    stop.set()
    theirs = await other
    high = 1 << 32 if "long" in below else 0
    ours = [record.ledger_id.low for record in made]
    ours += [record.ledger_id.low for batch in many for record in batch if isinstance(record, LedgerRecord)]
    assert len(ours) == len(set(ours)) == 1500
    assert theirs
    assert not set(ours) & {high + number for number in theirs}
    assert min(ours) >= high
    assert await all_ids(factories[0]) == sorted(ours)
    for factory in factories:
        await factory.close()
    parent = f"{root}/{below}".rpartition("/")[0]
    assert [name for name in kazoo.get_children(parent) if name.startswith("ID-")] == []


async def test_sequential_creations_cost_one_round_trip_each(
    zookeeper_uri: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    factory = await opened(zookeeper_uri)
    calls = 0
    call = KazooThread.call

    def counted(self: KazooThread, request: Any, generation: int) -> Call:
        nonlocal calls
        calls += 1
        return call(self, request, generation)

    monkeypatch.setattr(KazooThread, "call", counted)
    for _ in range(200):
        await factory.ledger_manager.create(None, some_metadata())
    # One for the ledger; blocks of ids and the nodes above the first ledgers come on top.
    assert 200 <= calls < 230
    calls = 0
    await factory.ledger_manager.create_many([CreateRequest(None, some_metadata())] * 1000)
    assert 0 < calls < 20
    monkeypatch.undo()
    await factory.close()


async def test_many_creations_go_on_behind_a_leaf_nodes_end(zookeeper_uri: str) -> None:
    """Where the parents of some of a transaction's nodes are missing, they are made and nothing is lost."""
    factory = await opened(zookeeper_uri)
    session = factory.session
    for _ in range(10):
        session.delete_soon(await session.reserve_numbers(f"{parse_zookeeper(zookeeper_uri).ledgers_root}/ID-x", 2))
    await factory.ledger_manager.create(None, some_metadata())
    for _ in range(9):
        path = await session.reserve_numbers(f"{parse_zookeeper(zookeeper_uri).ledgers_root}/idgen/ID-", 1100)
        session.delete_soon(path)
    results = await factory.ledger_manager.create_many([CreateRequest(None, some_metadata())] * 400)
    ids = [record.ledger_id.low for record in results if isinstance(record, LedgerRecord)]
    assert len(ids) == 400
    assert min(ids) < 10_000 < max(ids)
    assert (await all_ids(factory))[1:] == sorted(ids)
    await factory.close()


async def test_lost_answer_of_a_shared_transaction_makes_no_second_ledger(
    zookeeper_uri: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    factory = await opened(zookeeper_uri)
    create_together = ZooKeeperSession.create_together

    async def lossy(self: ZooKeeperSession, nodes: Any) -> int:
        await create_together(self, nodes)
        raise UnknownOutcomeException("lost")

    await factory.ledger_manager.create(unscoped(9_999), some_metadata())
    monkeypatch.setattr(ZooKeeperSession, "create_together", lossy)
    results = await factory.ledger_manager.create_many([CreateRequest(None, some_metadata())] * 30)
    ids = [record.ledger_id.low for record in results if isinstance(record, LedgerRecord)]
    assert len(ids) == 30
    assert await all_ids(factory) == sorted([*ids, 9_999])
    # Format 2 keeps no token to recognise the ledger by: there it stays unknown.
    with pytest.raises(UnknownOutcomeException):
        await factory.ledger_manager.create(None, replace(some_metadata(), format_version=2))
    await factory.close()
