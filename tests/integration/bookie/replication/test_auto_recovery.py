"""Auto-recovery inside bookies: one is lost for good under write load, nobody does anything, and nothing is lost."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from bookgate import BookKeeper
from bookgate.bookie.standalone.local_zookeeper import LocalZooKeeper
from bookgate.gateway.stores.drivers import create_factory
from bookgate.ledger import replication_control as control
from bookgate.ledger.ledger_id import LedgerId
from bookgate.ledger.metadata_store import LedgerManagerFactory
from bookgate.ledger.replication_progress import KEY_PREFIX, Amount, ClusterProgress, Danger, cluster_progress
from bookgate.ledger.replication_store import RecordKind
from bookgate.runtime.clock import now_ms
from tests.integration.bookie.replication.test_worker import check, payload, written
from tests.integration.thinclient.forked_cluster import ForkedCluster, forked_cluster
from tests.stores import made

pytestmark = pytest.mark.asyncio

SETTINGS = {
    "auto_recovery": True,
    "lost_bookie_recovery_delay_seconds": 1,
    "open_ledger_recovery_grace_seconds": 1.0,
}


@pytest.fixture(params=[pytest.param("sqlite", marks=pytest.mark.long), "zookeeper"])
def cluster(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[ForkedCluster]:
    uri = None
    if request.param == "zookeeper":
        server: LocalZooKeeper = request.getfixturevalue("zookeeper")
        uri = made(server.metadata_uri(f"/{tmp_path.name}/ledgers"))
    with forked_cluster(tmp_path, 5, uri, **SETTINGS) as running:
        yield running


@contextlib.asynccontextmanager
async def metadata_of(cluster: ForkedCluster) -> AsyncIterator[LedgerManagerFactory]:
    factory = create_factory(cluster.metadata_uri)
    await factory.initialize()
    try:
        yield factory
    finally:
        await factory.close()


async def members(factory: LedgerManagerFactory, ledger_id: LedgerId) -> set[str]:
    record = await factory.ledger_manager.read(ledger_id)
    return {bookie_id for fragment in record.metadata.fragments for bookie_id in fragment.ensemble}


async def until_nobody_needs(factory: LedgerManagerFactory, lost: str, ledgers: list[LedgerId]) -> None:
    async with asyncio.timeout(120):
        for ledger_id in ledgers:
            while lost in await members(factory, ledger_id):  # noqa: ASYNC110 - a store has no event for it
                await asyncio.sleep(0.1)


async def until_auditor(factory: LedgerManagerFactory, unlike: str | None = None) -> str:
    async with asyncio.timeout(60):
        while True:
            auditor = await factory.replication_metadata.auditor()
            if auditor not in (None, unlike):
                return str(auditor)
            await asyncio.sleep(0.1)


async def test_two_bookies_are_lost_one_after_the_other_and_the_auditor_first(cluster: ForkedCluster) -> None:
    async with metadata_of(cluster) as factory, await cluster.client() as client:
        closed = [(await written(client, 30, 3, 3, 2)).ledger_id for _ in range(8)]
        open_ledger = await written(client, 10, 3, 2, 2, close=False)
        writing = asyncio.create_task(_write(client, until := asyncio.Event()))
        auditor = await until_auditor(factory)
        await asyncio.to_thread(cluster.kill, auditor)
        await until_nobody_needs(factory, auditor, [*closed, open_ledger.ledger_id])
        second = await until_auditor(factory, auditor)
        await asyncio.to_thread(cluster.kill, second)
        await until_nobody_needs(factory, second, [*closed, open_ledger.ledger_id])
        until.set()
        ledger_id, entries = await writing
        for each in closed:
            await check(client, each, 30)
        await check(client, ledger_id, entries)
        missed = await factory.replication_metadata.records(RecordKind.MISSED_BOOKIE)
        assert set(missed) >= {auditor}


async def until_it_is_told(factory: LedgerManagerFactory) -> ClusterProgress:
    """How far repairs are, once something was copied."""
    async with asyncio.timeout(60):
        while True:
            progress = await cluster_progress(factory.replication_metadata, now_ms())
            if progress.bytes_a_second and progress.moving:
                return progress
            await asyncio.sleep(0.1)


def _started(command: list[str], environment: dict[str, str]) -> subprocess.Popen[str]:
    return subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True)


@pytest.mark.long
async def test_a_process_of_its_own_repairs_too(tmp_path: Path) -> None:
    """Beside bookies that run no auto-recovery."""
    with forked_cluster(tmp_path, 4) as cluster:
        command = [sys.executable, "-m", "bookgate", "autorecovery", "start", "--name", "alone", "--json"]
        environment = {
            **os.environ,
            "BOOKGATE_AUTORECOVERY_METADATA_URI": cluster.metadata_uri,
            "BOOKGATE_AUTORECOVERY_LOST_BOOKIE_RECOVERY_DELAY_SECONDS": "1",
        }
        process = _started(command, environment)
        assert process.stdout is not None
        try:
            started = json.loads(await asyncio.to_thread(process.stdout.readline))
            assert started == {"name": "alone", "metadata_uri": cluster.metadata_uri}
            async with metadata_of(cluster) as factory, await cluster.client() as client:
                assert await until_auditor(factory) == "alone"
                ledger = await written(client, 300, 3, 3, 2)
                lost = ledger.metadata.fragments[0].ensemble[0]
                # Slow enough that somebody who looks sees it.
                await control.set_cluster_rate(factory.replication_metadata, 128 << 10)
                await asyncio.to_thread(cluster.kill, lost)
                progress = await until_it_is_told(factory)
                await control.set_cluster_rate(factory.replication_metadata, 0)
                assert progress.endangered is not None
                size = sum(len(payload(number)) for number in range(300))
                assert progress.endangered.classes == {Danger.BELOW_WRITE_QUORUM: Amount(1, 300, size)}
                assert [(each.bookie_id, each.ledgers_left) for each in progress.endangered.bookies] == [(lost, 1)]
                assert progress.endangered.oldest is not None
                (moving,) = progress.moving
                assert moving.ledger_id == progress.endangered.oldest[0] == ledger.ledger_id.low
                assert (0 < moving.entries < 300, moving.due_entries, moving.due_bytes) == (True, 300, size)
                assert progress.bytes_a_second > 0
                assert progress.seconds_left is not None
                await until_nobody_needs(factory, lost, [ledger.ledger_id])
                await check(client, ledger.ledger_id, 300)
                process.terminate()
                assert await asyncio.to_thread(process.wait, 30) == 0
                assert await factory.replication_metadata.auditor() is None
                left = await factory.replication_metadata.records(RecordKind.PROGRESS)
                assert not [key for key in left if key.startswith(KEY_PREFIX)]
        finally:
            process.kill()
            process.stdout.close()


async def _write(client: BookKeeper, enough: asyncio.Event) -> tuple[LedgerId, int]:
    """A writer that goes on over both losses: no repair may take its ledger away."""
    ledger = await client.create_ledger(3, 3, 2, password=b"planted-secret")
    entries = 0
    while not enough.is_set():
        await ledger.append(payload(entries))
        entries += 1
        await asyncio.sleep(0.02)
    await ledger.close()
    return ledger.ledger_id, entries


async def test_a_bookie_that_is_back_in_time_causes_nothing(cluster: ForkedCluster) -> None:
    async with metadata_of(cluster) as factory, await cluster.client() as client:
        store = factory.replication_metadata
        await until_auditor(factory)
        await store.set_lost_bookie_delay(3600)
        ledger = await written(client, 5, 5, 3, 2)
        auditor = await until_auditor(factory)
        other = next(each for each in cluster.bookies if each != auditor)
        await asyncio.to_thread(cluster.kill, other)
        async with asyncio.timeout(60):
            while other not in await store.records(RecordKind.MISSED_BOOKIE):  # noqa: ASYNC110 - no event for it
                await asyncio.sleep(0.1)
        assert await store.read_mark(ledger.ledger_id.low) is None
        await asyncio.to_thread(cluster.start, other)
        async with asyncio.timeout(60):
            while await store.records(RecordKind.MISSED_BOOKIE):  # noqa: ASYNC110 - no event for it
                await asyncio.sleep(0.1)
        assert await store.read_mark(ledger.ledger_id.low) is None
        assert other in await members(factory, ledger.ledger_id)
