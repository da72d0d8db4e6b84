"""ZooKeeper servers that have no watches of whole trees: they are not asked again and again."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from bookgate.gateway.stores.zookeeper.kazoo_thread import TreeListener
from bookgate.gateway.stores.zookeeper.ledger_feed import ZooKeeperLedgerFeed
from bookgate.gateway.stores.zookeeper.ledger_paths import paths_of
from bookgate.gateway.stores.zookeeper.session import ZooKeeperSession
from tests.simulation.kazoo_handler import SimulatedKazooHandler
from tests.simulation.simulated_store import ZOOKEEPER_PORT, SimulatedStore
from tests.simulation.threads import SimulatedThreads
from tests.simulation.world import World


async def _asked_of(world: World, *, watches_trees: bool) -> tuple[int, list[Any]]:
    """Requests for a feed that a simulated server has had after ten lost connections, and what was told."""
    told: list[Any] = []
    asked = []
    store = SimulatedStore(world, gateways=0, servers=1)
    store.ensemble.watches_trees = watches_trees
    await store.start()
    process = world.new_process("here", "here")
    threads = SimulatedThreads(world.loop, process)
    session = ZooKeeperSession(
        [f"zk1:{ZOOKEEPER_PORT}"], make_handler=lambda: SimulatedKazooHandler(threads, pytest.fail)
    )
    await world.on(process, session.start())
    watch = session.watch_tree

    async def counted(path: str, listener: TreeListener) -> None:
        asked.append(path)
        if watches_trees:
            # Cut before it answers.
            store.ensemble.servers[0].send_away()
        await watch(path, listener)

    session.watch_tree = counted  # type: ignore[method-assign]
    feed = ZooKeeperLedgerFeed(session, paths_of("hierarchical", "/ledgers"))
    session.on_reconnected = lambda _new: feed.reconnected()
    feed.feeds.add(told.append)
    for _ in range(10):
        await asyncio.sleep(2)
        if not watches_trees:
            store.ensemble.servers[0].send_away()
    await feed.close()
    return len(asked), told


def test_a_server_without_such_watches_is_asked_once() -> None:
    world = World("old server")
    asked, events = world.run(_asked_of(world, watches_trees=False))
    assert (asked, events) == (1, [])


def test_a_server_that_cuts_the_connection_is_asked_more_and_more_seldom() -> None:
    world = World("cutting server")
    asked, events = world.run(_asked_of(world, watches_trees=True))
    assert 3 <= asked <= 5
    assert events == []
