"""The checks of auto-recovery on real bookies, of two ledgers whose ids differ in the scope alone.

The one that something is wrong with is marked and repaired, and the other one is left alone.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from bookgate import BookKeeper, WriteHandle
from bookgate.bookie.replication.audits.auditor import AuditorOptions
from bookgate.bookie.replication.auto_recovery import AutoRecovery, AutoRecoveryOptions
from bookgate.bookie.replication.checks.placement_check import PlacementCheckOptions
from bookgate.bookie.replication.checks.replica_check import ReplicaCheckOptions
from bookgate.bookie.replication.checks.scrub import ScrubOptions
from bookgate.ledger.entry import SCOPED_HEADER_SIZE
from bookgate.ledger.errors import DigestMatchException
from bookgate.ledger.ledger_id import LedgerId
from bookgate.ledger.metadata_store import LedgerManagerFactory, LedgerRecord
from tests.integration.bookie.replication.test_auto_recovery import metadata_of
from tests.integration.bookie.replication.test_placement_check import racks
from tests.integration.bookie.replication.test_replica_check import CLIENT, checking, marked, moved, until
from tests.integration.bookie.replication.test_scrub import read_from, started, stopped
from tests.integration.bookie.replication.test_worker import check, payload, written
from tests.integration.thinclient.forked_cluster import ForkedCluster, forked_cluster

pytestmark = pytest.mark.asyncio

SCOPED, UNSCOPED = LedgerId(7, 900), LedgerId.unscoped(900)
ENTRIES = 20
_AUDITOR = AuditorOptions(lost_bookie_delay_seconds=3600)


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[ForkedCluster]:
    with forked_cluster(tmp_path, 4) as running:
        yield running


async def twins(client: BookKeeper) -> WriteHandle:
    """Writes both, with the same entries; returns the one with the scope."""
    await written(client, ENTRIES, 3, 3, 2, ledger_id=UNSCOPED)
    return await written(client, ENTRIES, 3, 3, 2, ledger_id=SCOPED)


async def both(factory: LedgerManagerFactory) -> list[LedgerRecord]:
    return [await factory.ledger_manager.read(each) for each in (SCOPED, UNSCOPED)]


def rot(home: Path, number: int) -> None:
    """Turns over a bit of that entry of the ledger with the scope."""
    content = payload(number)
    ids = SCOPED.scope_id.to_bytes(8) + SCOPED.low.to_bytes(8) + number.to_bytes(8)
    for log in home.rglob("*.log"):
        data = bytearray(log.read_bytes())
        at = data.find(ids)
        if at > 0 and data[at - 1] & 0x80:
            at += SCOPED_HEADER_SIZE - 1 + 4
            assert data[at : at + len(content)] == content
            data[at] ^= 4
            log.write_bytes(data)
            return
    raise AssertionError(f"no entry {number} below {home}")


async def test_the_scrub_heals_the_copy_that_rotted(cluster: ForkedCluster, tmp_path: Path) -> None:
    async with metadata_of(cluster) as factory, await cluster.client() as client:
        ledger = await twins(client)
        before = await both(factory)
        bookie_id = ledger.metadata.fragments[0].ensemble[1]
        await stopped(cluster, factory, bookie_id)
        rot(tmp_path / bookie_id, 11)
        await started(cluster, factory, bookie_id)
        with pytest.raises(DigestMatchException):
            await read_from(client, factory, ledger, bookie_id)
        options = AutoRecoveryOptions(_AUDITOR, check=ReplicaCheckOptions(0), scrub=ScrubOptions(1e9))
        running = AutoRecovery(factory, "here", options, CLIENT)
        await running.start()
        try:
            await until(lambda: running.worker.statistics.ledgers_repaired and running.scrub.statistics.passes)
        finally:
            await running.stop()
        assert (running.scrub.statistics.corrupt, running.copied_entries) == (1, 1)
        await read_from(client, factory, ledger, bookie_id)
        assert await both(factory) == before
        assert await marked(factory) == {}


async def test_the_check_of_replicas_marks_the_one_that_lacks_copies(cluster: ForkedCluster) -> None:
    async with metadata_of(cluster) as factory, await cluster.client() as client:
        ledger = await twins(client)
        (outside,) = {*cluster.bookies} - {*ledger.metadata.fragments[0].ensemble}
        await moved(factory, SCOPED, 0, outside)
        async with checking(factory) as made_check:
            made_check.allow(True)
            await until(lambda: made_check.statistics.checks)
        assert await marked(factory) == {SCOPED.number: (outside,)}


async def test_the_check_of_placement_moves_it_whole(cluster: ForkedCluster, tmp_path: Path) -> None:
    async with metadata_of(cluster) as factory, await cluster.client() as client:
        ledger = await twins(client)
        before = ledger.metadata.fragments[0].ensemble
        (outside,) = {*cluster.bookies} - {*before}
        # The other one is where it pleases already.
        if outside not in (await factory.ledger_manager.read(UNSCOPED)).metadata.fragments[0].ensemble:
            await client.delete_ledger(UNSCOPED)
        options = AutoRecoveryOptions(
            _AUDITOR,
            check=ReplicaCheckOptions(0),
            scrub=ScrubOptions(0),
            placement=PlacementCheckOptions(3600.0, first_pause_seconds=0.05),
        )
        running = AutoRecovery(factory, "here", options, racks(tmp_path, before, ("/b",)))
        await running.start()
        try:
            await until(lambda: running.worker.statistics.ledgers_repaired)
        finally:
            await running.stop()
        (fragment,) = (await factory.ledger_manager.read(SCOPED)).metadata.fragments
        assert outside in fragment.ensemble
        assert running.copied_entries == ENTRIES
        assert await marked(factory) == {}
        await check(client, SCOPED, ENTRIES)
