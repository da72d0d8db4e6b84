"""Auto-recovery where no setting asks for it: in clusters that Bookgate has made, and not beside another auditor."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from pathlib import Path

import pytest

from bookgate import ClientConfig
from bookgate.bookie.replication import giving_way
from bookgate.bookie.replication.audits.auditor import AuditorOptions
from bookgate.bookie.replication.auto_recovery import AutoRecovery, AutoRecoveryOptions
from bookgate.ledger.metadata_store import LedgerManagerFactory
from bookgate.ledger.replication_control import SETTINGS_OF_NEW_CLUSTERS, is_default
from bookgate.ledger.replication_store import RecordKind, VoteState
from tests.integration.bookie.replication.test_auto_recovery import metadata_of
from tests.integration.bookie.replication.test_draining import until_unregistered
from tests.integration.bookie.replication.test_replica_check import marked
from tests.integration.bookie.replication.test_worker import written
from tests.integration.thinclient.forked_cluster import ForkedCluster, forked_cluster

pytestmark = pytest.mark.asyncio


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[ForkedCluster]:
    with forked_cluster(tmp_path, 3) as running:
        yield running


@contextlib.asynccontextmanager
async def running(factory: LedgerManagerFactory, name: str, *, gives_way: bool) -> AsyncIterator[AutoRecovery]:
    options = AutoRecoveryOptions(AuditorOptions(lost_bookie_delay_seconds=3600))
    made = AutoRecovery(factory, name, options, ClientConfig(), gives_way=gives_way)
    await made.start()
    try:
        yield made
    finally:
        await made.stop()


async def until(holds: Callable[[], Awaitable[object]]) -> None:
    async with asyncio.timeout(60):
        while not await holds():  # noqa: ASYNC110 - a store has no event for it
            await asyncio.sleep(0.02)


async def test_it_does_nothing_while_another_is_the_auditor(
    cluster: ForkedCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(giving_way, "_LOOK_EVERY_SECONDS", 0.02)
    async with metadata_of(cluster) as factory, metadata_of(cluster) as elsewhere, await cluster.client() as client:
        ledger = await written(client, 3, 3, 3, 2)
        number = ledger.ledger_id.low
        states: list[VoteState] = []
        vote = await elsewhere.replication_metadata.stand_for_auditor("java", states.append)
        await elsewhere.replication_metadata.mark(number, ("bookie-0",), 1)
        async with running(factory, "ours", gives_way=True) as made:

            async def gives_way() -> bool:
                return made.gives_way_to == "java"

            await until(gives_way)
            # One that was asked for is a candidate all the same, and works.
            async with running(factory, "asked", gives_way=False) as asked:

                async def repaired() -> bool:
                    return not await marked(factory)

                await until(repaired)
                assert asked.worker.statistics.ledgers_repaired == 1
            assert (made.worker.statistics.marks_seen, made.worker.statistics.ledgers_repaired) == (0, 0)
            await vote.withdraw()

            async def elected() -> bool:
                return made.auditor.statistics.is_auditor

            await until(elected)
            assert made.gives_way_to is None
            await elsewhere.replication_metadata.mark(number, ("bookie-0",), 1)
            await until(repaired)
            assert made.worker.statistics.ledgers_repaired == 1
        assert await factory.replication_metadata.auditor() is None


async def test_it_takes_part_beside_an_auditor_of_bookgate(
    cluster: ForkedCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(giving_way, "_LOOK_EVERY_SECONDS", 0.02)
    async with (
        metadata_of(cluster) as factory,
        metadata_of(cluster) as elsewhere,
        running(factory, "ours", gives_way=True) as made,
    ):
        async with running(elsewhere, "first", gives_way=False) as first:

            async def one_in_office() -> bool:
                return first.auditor.statistics.is_auditor or made.auditor.statistics.is_auditor

            await until(one_in_office)
            foreign = await elsewhere.replication_metadata.stand_for_auditor("java", lambda _state: None)
            assert made.gives_way_to is None

        async def decided() -> bool:
            return made.auditor.statistics.is_auditor or made.gives_way_to is not None

        await until(decided)
        # Its vote is older than that of the other one, or it is no candidate any more.
        assert made.auditor.statistics.is_auditor is (await factory.replication_metadata.auditor() == "ours")
        await foreign.withdraw()


async def test_bookies_run_it_in_a_cluster_that_was_made_with_it_alone(cluster: ForkedCluster) -> None:
    async with metadata_of(cluster) as factory:
        store = factory.replication_metadata
        assert not await is_default(store)
        assert await store.auditor() is None
        for key, value in SETTINGS_OF_NEW_CLUSTERS.items():
            await store.write_record(RecordKind.SETTING, key, value, None)
        await asyncio.to_thread(cluster.bookies["bookie-0"].stop)
        await until_unregistered(factory, "bookie-0")
        await asyncio.to_thread(cluster.start, "bookie-0")

        async def auditor() -> bool:
            return await store.auditor() == "bookie-0"

        await until(auditor)
