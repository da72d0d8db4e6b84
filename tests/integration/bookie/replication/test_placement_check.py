"""The check of placement on real bookie processes: what lies in one rack is moved, whole, where there is another."""

from __future__ import annotations

import contextlib
import random
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest

from bookgate import ClientConfig
from bookgate.bookie.replication.audits.auditor import AuditorOptions
from bookgate.bookie.replication.auto_recovery import AutoRecovery, AutoRecoveryOptions
from bookgate.bookie.replication.checks.placement_check import PlacementCheck, PlacementCheckOptions
from bookgate.bookie.replication.checks.replica_check import ReplicaCheckOptions
from bookgate.bookie.replication.checks.scrub import ScrubOptions
from bookgate.bookie.replication.copies.bookies import Bookies
from bookgate.bookie.replication.copies.budget import CopyLimits
from bookgate.bookie.replication.repairs.tools import WorkerTools
from bookgate.ledger.errors import MetaStoreException
from bookgate.ledger.ledger_id import LedgerId
from bookgate.ledger.metadata import Fragment, LedgerMetadata
from bookgate.ledger.metadata_store import LedgerManagerFactory
from bookgate.ledger.replication import PeriodicCheck
from bookgate.ledger.replication_control import begin_draining
from tests.integration.bookie.replication.test_auto_recovery import metadata_of
from tests.integration.bookie.replication.test_replica_check import marked, until
from tests.integration.bookie.replication.test_worker import check, written
from tests.integration.thinclient.forked_cluster import ForkedCluster, forked_cluster

pytestmark = pytest.mark.asyncio


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[ForkedCluster]:
    with forked_cluster(tmp_path, 5) as running:
        yield running


def racks(tmp_path: Path, members: tuple[str, ...], others: tuple[str, ...] = ("/b", "/b")) -> ClientConfig:
    """The bookies of a ledger are in one rack, the two others in these."""
    outside = sorted({f"bookie-{index}" for index in range(5)} - {*members})
    lines = [f'"{name}" = "/a"' for name in members]
    lines += [f'"{name}" = "{rack}"' for name, rack in zip(outside, others, strict=False)]
    mapping = tmp_path / "racks.toml"
    mapping.write_text("[racks]\n" + "\n".join(lines) + "\n")
    return ClientConfig(
        add_timeout_seconds=1.5,
        read_timeout_seconds=1.5,
        connect_timeout_seconds=1.5,
        placement_policy="rackaware",
        rack_mapping=mapping,
    )


def auto_recovery(factory: LedgerManagerFactory, config: ClientConfig) -> AutoRecovery:
    options = AutoRecoveryOptions(
        AuditorOptions(lost_bookie_delay_seconds=3600),
        check=ReplicaCheckOptions(0),
        scrub=ScrubOptions(0),
        placement=PlacementCheckOptions(3600.0, first_pause_seconds=0.05),
    )
    return AutoRecovery(factory, "here", options, config)


@contextlib.asynccontextmanager
async def checking(factory: LedgerManagerFactory, config: ClientConfig) -> AsyncIterator[PlacementCheck]:
    tools = WorkerTools(factory, config, random.Random(1), CopyLimits())
    options = PlacementCheckOptions(3600.0, first_pause_seconds=0.05)
    made = PlacementCheck(factory, tools.repair.bookies, tools.repair.placement, options)
    made.allow(True)
    try:
        yield made
    finally:
        await made.stop()
        await tools.close()


async def metadata(factory: LedgerManagerFactory, ledger_id: LedgerId) -> LedgerMetadata:
    return (await factory.ledger_manager.read(ledger_id)).metadata


@pytest.mark.parametrize("sizes", [(3, 2, 2), (3, 3, 2)], ids=["striped", "every member"])
async def test_what_lies_in_one_rack_is_moved_whole(
    cluster: ForkedCluster, tmp_path: Path, sizes: tuple[int, int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    async with metadata_of(cluster) as factory, await cluster.client() as client:
        ledger = await written(client, 50, *sizes)
        before = ledger.metadata.fragments[0].ensemble
        config = racks(tmp_path, before)
        copied = Bookies.add_copies

        async def slow(self: Bookies, bookie_id: str, *arguments: Any) -> int:
            """The metadata name the old bookies until the last copy is stored (R3)."""
            assert (await metadata(factory, ledger.ledger_id)).fragments[0].ensemble == before
            return await copied(self, bookie_id, *arguments)

        monkeypatch.setattr(Bookies, "add_copies", slow)
        running = auto_recovery(factory, config)
        await running.start()
        try:
            await until(lambda: running.placement_check.statistics.checks)
            assert running.placement_check.statistics.ledgers_marked == 1
            await until(lambda: running.worker.statistics.ledgers_repaired)
        finally:
            await running.stop()
        (fragment,) = (await metadata(factory, ledger.ledger_id)).fragments
        assert sum(name not in before for name in fragment.ensemble) == 1, "no more is moved than has to be"
        assert running.copied_entries == (50 if sizes[1] == 3 else pytest.approx(33, abs=1))
        assert await marked(factory) == {}
        assert await factory.replication_metadata.check_time(PeriodicCheck.PLACEMENT_POLICY)
        await factory.replication_metadata.set_check_time(PeriodicCheck.PLACEMENT_POLICY, 1)
        async with checking(factory, config) as again:
            again.statistics.ledgers_marked = 0
            await until(lambda: again.statistics.checks)
            assert again.statistics.ledgers_marked == 0
        await check(client, ledger.ledger_id, 50)


async def test_what_can_not_be_better_stays(cluster: ForkedCluster, tmp_path: Path) -> None:
    async with metadata_of(cluster) as factory, await cluster.client() as client:
        ledger = await written(client, 5, 3, 3, 2)
        before = ledger.metadata.fragments[0].ensemble
        async with checking(factory, racks(tmp_path, before, ("/a", "/a"))) as made:
            await until(lambda: made.statistics.checks)
        assert await marked(factory) == {}


async def test_nothing_moves_while_a_bookie_is_missed_or_to_be_emptied(cluster: ForkedCluster, tmp_path: Path) -> None:
    async with metadata_of(cluster) as factory, await cluster.client() as client:
        ledger = await written(client, 5, 3, 3, 2)
        before = ledger.metadata.fragments[0].ensemble
        await begin_draining(factory, before[0], 1)
        async with checking(factory, racks(tmp_path, before)) as made:
            await until(lambda: made.statistics.checks)
        assert await marked(factory) == {}


async def test_a_ledger_that_is_open_is_moved_as_far_as_it_is_complete(cluster: ForkedCluster, tmp_path: Path) -> None:
    """AR26. Its last fragment belongs to its writer, who goes on undisturbed."""
    async with metadata_of(cluster) as factory, await cluster.client() as client:
        ledger = await written(client, 5, 3, 3, 2, close=False)
        ensemble = ledger.metadata.fragments[0].ensemble
        config = racks(tmp_path, ensemble)
        async with checking(factory, config) as made:
            await until(lambda: made.statistics.checks)
        assert await marked(factory) == {}, "nothing of it is complete"
        record = await factory.ledger_manager.read(ledger.ledger_id)
        await factory.ledger_manager.write(ledger.ledger_id, record.metadata.with_ensemble(5, ensemble), record.version)
        await ledger.append(b"entry")
        await factory.replication_metadata.set_check_time(PeriodicCheck.PLACEMENT_POLICY, 1)
        running = auto_recovery(factory, config)
        await running.start()
        try:
            await until(lambda: running.worker.statistics.ledgers_repaired)
        finally:
            await running.stop()
        complete, last = (await metadata(factory, ledger.ledger_id)).fragments
        assert sum(name not in ensemble for name in complete.ensemble) == 1
        assert last == Fragment(5, ensemble)
        assert running.copied_entries == 5
        await ledger.append(b"entry")


async def test_a_listing_that_fails_ends_one_check_and_not_the_checks(
    cluster: ForkedCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """AR28."""
    async with metadata_of(cluster) as factory, await cluster.client() as client:
        ledger = await written(client, 5, 3, 3, 2)
        listed, failures = factory.ledger_manager.ledger_ranges, 0

        def failing(*arguments: Any, **named: Any) -> Any:
            nonlocal failures
            failures += 1
            if failures <= 2:
                raise MetaStoreException("out of reach")
            return listed(*arguments, **named)

        monkeypatch.setattr(factory.ledger_manager, "ledger_ranges", failing)
        async with checking(factory, racks(tmp_path, ledger.metadata.fragments[0].ensemble)) as made:
            await until(lambda: made.statistics.checks)
            assert made.statistics.checks_failed == 2
        assert await marked(factory) == {ledger.ledger_id.low: ()}
