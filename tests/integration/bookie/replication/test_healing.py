"""Clusters that lose bookies for good, again and again, under write load: they heal by themselves, and nothing is lost.

Real processes on each kind of metadata store. `make test-recovery` runs all at full length.
"""

from __future__ import annotations

import asyncio
import random
from pathlib import Path

import pytest

from tests.integration.bookie.replication import healing
from tests.integration.bookie.replication.healing import AT_LENGTH, SETTINGS, Load, Store, audit, until_healed
from tests.integration.thinclient.forked_cluster import forked_cluster

pytestmark = [pytest.mark.asyncio, pytest.mark.timeout(3600 if AT_LENGTH else 900)]

BOOKIES = 4
LOSSES = 3 * BOOKIES if AT_LENGTH else 3
"""At length more cookies are left over in the end than bookies live."""
KILLS, MARKED = (20, 600) if AT_LENGTH else (4, 60)


@pytest.mark.long
@pytest.mark.each_store
async def test_bookies_are_lost_one_after_the_other_under_load(store: Store, tmp_path: Path) -> None:
    """Each that is lost is replaced by a new one, until none of the first is left."""
    rng, lost = random.Random(1), set[str]()
    with forked_cluster(tmp_path, BOOKIES, store.uri, **SETTINGS) as cluster:
        async with healing.healing(cluster) as (factory, client), Load(client) as load:
            for _ in range(LOSSES):
                leaving = rng.choice(cluster.running)
                await asyncio.to_thread(cluster.kill, leaving)
                lost.add(leaving)
                await asyncio.to_thread(cluster.start, cluster.add())
                await until_healed(factory, lost)
                load.check()
            await load.stop()
            await until_healed(factory, lost)
            assert await audit(factory, client, load.acknowledged) > 100 * LOSSES


@pytest.mark.long
async def test_auditors_and_workers_are_killed_while_they_repair(store: Store, tmp_path: Path) -> None:
    """Whoever is killed has a lock or a vote, which goes with its session only."""
    with (
        forked_cluster(tmp_path, 5, store.uri) as cluster,
        healing.recoverers(tmp_path, 2, store.uri, 0.5) as processes,
    ):
        async with healing.healing(cluster) as (factory, client):
            acknowledged = await healing.filled(client, MARKED)
            for lost in ("bookie-0", "bookie-1"):
                left = await healing.naming(factory, {lost})
                await asyncio.to_thread(cluster.kill, lost)
                for number in range(KILLS):
                    # Something was done since the last kill, and something is left.
                    left = await healing.until_fewer(factory, lost, left)
                    await asyncio.to_thread(processes[number % 2].kill)
                    await asyncio.to_thread(healing.start, processes[number % 2])
                assert left, "the last kill came too late"
                await until_healed(factory, {lost})
            assert await audit(factory, client, acknowledged) == MARKED * 20 * 3
