"""Repairs beside writers that live, and of many ledgers at once."""

from __future__ import annotations

import asyncio
import random
from pathlib import Path

import pytest

from bookgate.ledger.metadata_store import LedgerManagerFactory
from bookgate.ledger.replication_control import find_bookie
from tests.integration.bookie.replication import healing
from tests.integration.bookie.replication.healing import (
    AT_LENGTH,
    SETTINGS,
    STORES,
    Load,
    Store,
    ZooKeeperStore,
    audit,
    until,
    until_healed,
)
from tests.integration.bookie.replication.test_draining import recovering
from tests.integration.gateway.stress import server_figure
from tests.integration.thinclient.forked_cluster import forked_cluster

pytestmark = [pytest.mark.asyncio, pytest.mark.timeout(3600 if AT_LENGTH else 900)]

SECONDS, LEDGERS = (600.0, 10_000) if AT_LENGTH else (15.0, 300)
EACH_STORE = pytest.mark.parametrize("store", STORES if AT_LENGTH else ["zookeeper"], indirect=True)


@EACH_STORE
async def test_a_writer_that_lives_is_never_fenced(store: Store, tmp_path: Path) -> None:
    """Bookies die, or stand still until they count as lost, and come back when their ledgers have gone elsewhere."""
    rng, loop = random.Random(3), asyncio.get_running_loop()
    with forked_cluster(tmp_path, 5, store.uri, **SETTINGS) as cluster:
        async with healing.healing(cluster) as (factory, client), Load(client, slow=4) as load:
            ends, losses = loop.time() + SECONDS, 0
            while loop.time() < ends:
                away, killed = rng.choice(cluster.running), rng.random() < 0.5
                await asyncio.to_thread(cluster.kill if killed else cluster.pause, away)
                await until_gone(factory, away)
                await until_healed(factory, {away})
                await asyncio.to_thread(cluster.start if killed else cluster.resume, away)
                await until_there(factory, away)
                losses += 1
                load.check()
            await load.stop()
            records = [await factory.ledger_manager.read(ledger_id) for ledger_id in load.acknowledged]
            assert any(len(each.metadata.fragments) > 1 for each in records), "writers have replaced bookies"
            assert await audit(factory, client, load.acknowledged) > 100 * losses


async def until_gone(factory: LedgerManagerFactory, bookie_id: str) -> None:
    async def is_gone() -> bool:
        found = await find_bookie(factory, bookie_id)
        return found is None or not found.registered

    await until(is_gone, lambda: f"{bookie_id} is registered")


async def until_there(factory: LedgerManagerFactory, bookie_id: str) -> None:
    async def is_there() -> bool:
        found = await find_bookie(factory, bookie_id)
        return found is not None and found.writable

    await until(is_there, lambda: f"{bookie_id} is not registered")


@pytest.mark.long
@EACH_STORE
async def test_many_ledgers(store: Store, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Auto-recovery is in this process, so that nobody has to ask the store how far it is."""
    with forked_cluster(tmp_path, 4, store.uri) as cluster:
        async with healing.healing(cluster) as (factory, client):
            acknowledged = await healing.filled(client, LEDGERS, 3, 100)
            lost = "bookie-0"
            named = len(await healing.naming(factory, {lost}))
            await asyncio.to_thread(cluster.kill, lost)
            await until_gone(factory, lost)
            asked, began = requests(store), asyncio.get_running_loop().time()
            async with recovering(factory) as running:

                async def all_repaired() -> bool:
                    done = running.worker.statistics.ledgers_repaired
                    # More where an audit was begun anew, and marked what had been repaired meanwhile.
                    return done >= named and not await healing.marked(factory)

                await until(all_repaired, lambda: (named, running.worker.statistics))
                seconds = asyncio.get_running_loop().time() - began
                asked = requests(store) - asked
            with capsys.disabled():
                print(
                    f"\n{named} ledgers had their copies after {seconds:.1f} s, {asked / named:.1f} requests a ledger"
                )
            assert asked < 40 * named
            assert await healing.naming(factory, {lost}) == set()
            assert await audit(factory, client, acknowledged) == LEDGERS * 3 * 3


def requests(store: Store) -> int:
    """What the store was asked so far, where it tells."""
    return server_figure(store.server, "zk_packets_received") if isinstance(store, ZooKeeperStore) else 0
