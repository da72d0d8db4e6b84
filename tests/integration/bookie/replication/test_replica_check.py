"""The check of replicas on real bookie processes: it marks what living bookies lack, and nothing else."""

from __future__ import annotations

import asyncio
import contextlib
import random
import sqlite3
import time
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from bookgate import ClientConfig
from bookgate.bookie.replication.audits.auditor import Auditor, AuditorOptions
from bookgate.bookie.replication.auto_recovery import AutoRecovery, AutoRecoveryOptions
from bookgate.bookie.replication.checks.replica_check import ReplicaCheck, ReplicaCheckOptions
from bookgate.bookie.replication.checks.scrub import ScrubOptions
from bookgate.bookie.replication.copies.budget import CopyLimits
from bookgate.bookie.replication.copies.fragments import due_at
from bookgate.bookie.replication.repairs.tools import WorkerTools
from bookgate.ledger.ledger_id import LedgerId
from bookgate.ledger.metadata import LedgerMetadata
from bookgate.ledger.metadata_store import BookieSet, LedgerManagerFactory
from bookgate.ledger.replication import PeriodicCheck
from tests.integration.bookie.replication.test_auditor_metrics import register
from tests.integration.bookie.replication.test_auto_recovery import members, metadata_of
from tests.integration.bookie.replication.test_draining import until_unregistered
from tests.integration.bookie.replication.test_worker import check, written
from tests.integration.thinclient.forked_cluster import ForkedCluster, forked_cluster

pytestmark = pytest.mark.asyncio

CLIENT = ClientConfig(add_timeout_seconds=1.5, read_timeout_seconds=0.3, connect_timeout_seconds=0.3)


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[ForkedCluster]:
    with forked_cluster(tmp_path, 4) as running:
        yield running


@contextlib.asynccontextmanager
async def checking(
    factory: LedgerManagerFactory, interval_seconds: float = 3600.0, first_pause_seconds: float = 0.02
) -> AsyncIterator[ReplicaCheck]:
    """The check alone, which is not allowed to begin yet."""
    tools = WorkerTools(factory, CLIENT, random.Random(1), CopyLimits())
    options = ReplicaCheckOptions(interval_seconds, first_pause_seconds=first_pause_seconds)
    made_check = ReplicaCheck(factory, tools.repair.bookies, options)
    try:
        yield made_check
    finally:
        await made_check.stop()
        await tools.close()


async def until(holds: Callable[[], object]) -> None:
    async with asyncio.timeout(60):
        while not holds():  # noqa: ASYNC110 - counters are no events
            await asyncio.sleep(0.01)


async def marked(factory: LedgerManagerFactory) -> dict[int, tuple[str, ...]]:
    """By ledger the bookies that it is marked for."""
    pages = [page async for page in factory.replication_metadata.marks()]
    return {mark.value.ledger_id: mark.value.replicas for page in pages for mark in page}


async def last_check(factory: LedgerManagerFactory) -> int:
    """0 for never."""
    return await factory.replication_metadata.check_time(PeriodicCheck.ALL_LEDGERS) or 0


async def wiped(cluster: ForkedCluster, factory: LedgerManagerFactory, bookie_id: str) -> None:
    """It is back without its data and its cookie, as a new bookie of the same id."""
    await asyncio.to_thread(cluster.bookies[bookie_id].stop)
    await until_unregistered(factory, bookie_id)
    cluster.wipe(bookie_id)
    cookie = await factory.registration_manager.read_cookie(bookie_id)
    assert cookie is not None
    await factory.registration_manager.remove_cookie(bookie_id, cookie.version)
    await asyncio.to_thread(cluster.start, bookie_id)
    async with asyncio.timeout(60):
        while not any(  # noqa: ASYNC110 - polled, as elsewhere
            each.bookie_id == bookie_id for each in await factory.service_discovery.bookies(BookieSet.WRITABLE)
        ):
            await asyncio.sleep(0.05)


async def moved(factory: LedgerManagerFactory, ledger_id: LedgerId, index: int, bookie_id: str) -> None:
    """The metadata name another bookie in that place, which holds nothing of the ledger."""
    record = await factory.ledger_manager.read(ledger_id)
    (fragment,) = record.metadata.fragments
    ensemble = [*fragment.ensemble]
    ensemble[index] = bookie_id
    changed = replace(record.metadata, fragments=(replace(fragment, ensemble=tuple(ensemble)),))
    await factory.ledger_manager.write(ledger_id, changed, record.version)


@pytest.mark.parametrize("storage", ["sorted", "db"])
async def test_what_a_living_bookie_lacks_is_marked_and_refilled(tmp_path: Path, storage: str) -> None:
    with forked_cluster(tmp_path, 4, storage_type=storage) as cluster:
        await _lacks_and_is_refilled(cluster)


async def _lacks_and_is_refilled(cluster: ForkedCluster) -> None:
    async with metadata_of(cluster) as factory, await cluster.client() as client:
        ledgers = [(await written(client, 20, 3, 3, 2)).ledger_id for _ in range(4)]
        ledgers.append((await written(client, 20, 4, 2, 2)).ledger_id)
        lacking = "bookie-1"
        await wiped(cluster, factory, lacking)
        on_it = [each for each in ledgers if lacking in await members(factory, each)]
        before = [await factory.ledger_manager.read(each) for each in ledgers]
        running = AutoRecovery(
            factory, "here", AutoRecoveryOptions(AuditorOptions(lost_bookie_delay_seconds=3600)), CLIENT
        )
        began = int(time.time() * 1000)
        await running.start()
        try:
            done = running.check.statistics
            await until(lambda: done.checks)
            assert (done.ledgers_checked, done.ledgers_marked) == (len(ledgers), len(on_it))
            # Not by the ledgers: the bookie may have marked one, too, that it has in limbo.
            lacked = sum(due_at(each.metadata, (lacking,))[0] for each in before)
            await until(lambda: running.copied_entries >= lacked)
            assert await last_check(factory) >= began
            await until(lambda: done.ended_ms)
        finally:
            await running.stop()
        assert [await factory.ledger_manager.read(each) for each in ledgers] == before
        async with checking(factory, 0.01) as again:
            again.allow(True)
            await until(lambda: again.statistics.checks)
            assert again.statistics.ledgers_marked == 0, "it has its copies again"
        for ledger_id in ledgers:
            await check(client, ledger_id, 20)


async def test_nothing_is_marked_where_all_is_well(cluster: ForkedCluster) -> None:
    async with metadata_of(cluster) as factory, await cluster.client() as client:
        for entries, sizes in ((20, (3, 3, 2)), (20, (3, 2, 1)), (1, (3, 2, 2)), (0, (3, 3, 3))):
            await written(client, entries, *sizes)
        await written(client, 20, 3, 3, 2, close=False)
        async with checking(factory) as made_check:
            made_check.allow(True)
            await until(lambda: made_check.statistics.checks)
            assert made_check.statistics.ledgers_checked == 5
        assert await marked(factory) == {}


async def test_bookies_that_are_not_registered_are_left_to_the_audit(cluster: ForkedCluster) -> None:
    async with metadata_of(cluster) as factory, await cluster.client() as client:
        ledger_id = (await written(client, 5, 3, 3, 2)).ledger_id
        await moved(factory, ledger_id, 0, "nobody")
        async with checking(factory) as made_check:
            made_check.allow(True)
            await until(lambda: made_check.statistics.checks)
        assert await marked(factory) == {}


async def test_without_an_answer_of_a_registered_bookie_the_check_is_not_complete(cluster: ForkedCluster) -> None:
    async with metadata_of(cluster) as factory, await cluster.client() as client:
        ledger, another = [await written(client, 5, 3, 3, 2) for _ in range(2)]
        number = ledger.ledger_id.low
        await register(factory, "silent")  # not before, or ledgers may be put there
        await moved(factory, ledger.ledger_id, 0, "silent")
        (lacking,) = cluster.bookies.keys() - another.metadata.bookies
        await moved(factory, another.ledger_id, 0, lacking)
        async with checking(factory) as made_check:
            made_check.allow(True)
            await until(lambda: made_check.statistics.checks_failed)
            done = made_check.statistics
            assert (done.checks, await last_check(factory)) == (0, 0)
            # An error is no word of a bookie; the others were looked at nevertheless, once.
            assert number not in await marked(factory)
            assert await marked(factory) == {another.ledger_id.low: (lacking,)}
            assert (done.ledgers_checked, done.ledgers_marked) == (1, 1)
            await factory.registration_manager.unregister_bookie("silent")
            await until(lambda: made_check.statistics.checks)
        assert await last_check(factory) > 0


@pytest.mark.long
async def test_a_check_that_takes_long_keeps_no_audit_waiting(cluster: ForkedCluster) -> None:
    """AR5: it waits for a bookie that gives no answer, pass after pass, when another bookie is lost."""
    async with metadata_of(cluster) as factory, await cluster.client() as client:
        ledger, another = [await written(client, 5, 3, 3, 2) for _ in range(2)]
        await register(factory, "silent")
        await moved(factory, another.ledger_id, 0, "silent")
        lost = ledger.metadata.fragments[0].ensemble[0]
        options = AutoRecoveryOptions(
            AuditorOptions(lost_bookie_delay_seconds=0, roll_call_seconds=0.2),
            check=ReplicaCheckOptions(3600.0, first_pause_seconds=3600.0),
            scrub=ScrubOptions(0),
        )
        running = AutoRecovery(factory, "here", options, CLIENT)
        await running.start()
        try:
            await until(lambda: running.check.statistics.in_progress)
            cluster.lose(lost)
            while lost in await members(factory, ledger.ledger_id):  # noqa: ASYNC110 - polled, as elsewhere
                await asyncio.sleep(0.05)
            assert running.check.statistics.in_progress
            assert (running.check.statistics.checks, running.auditor.statistics.audits) == (0, 1)
        finally:
            await running.stop()
        await check(client, ledger.ledger_id, 5)


async def test_what_lacks_is_marked_once_although_another_bookie_does_not_answer(cluster: ForkedCluster) -> None:
    async with metadata_of(cluster) as factory, await cluster.client() as client:
        ledger = await written(client, 5, 3, 3, 2)
        await register(factory, "silent")
        (lacking,) = cluster.bookies.keys() - ledger.metadata.bookies
        await moved(factory, ledger.ledger_id, 0, "silent")
        await moved(factory, ledger.ledger_id, 1, lacking)
        async with checking(factory) as made_check:
            made_check.allow(True)
            await until(lambda: made_check.statistics.ledgers_marked)
            assert await marked(factory) == {ledger.ledger_id.low: (lacking,)}
            await factory.registration_manager.unregister_bookie("silent")
            await until(lambda: made_check.statistics.checks)
            assert made_check.statistics.ledgers_marked == 1


async def test_an_interrupted_check_leaves_the_time_alone_and_is_begun_again(cluster: ForkedCluster) -> None:
    async with metadata_of(cluster) as factory, await cluster.client() as client:
        ledger = await written(client, 5, 3, 3, 2)
        await written(client, 5, 3, 3, 2)
        await register(factory, "silent")
        await moved(factory, ledger.ledger_id, 0, "silent")
        async with checking(factory, first_pause_seconds=3600) as made_check:
            done = made_check.statistics
            made_check.allow(True)
            await until(lambda: done.ledgers_checked)
            assert done.in_progress
            assert (done.ended_ms, (done.since_ms or 0) > 0) == (None, True)
            made_check.allow(False)
            await until(lambda: not done.in_progress)
            assert (done.checks, done.checks_failed, await last_check(factory)) == (0, 0, 0)
            await factory.registration_manager.unregister_bookie("silent")
            made_check.allow(True)
            await until(lambda: done.checks)
        assert await last_check(factory) > 0


async def test_the_time_in_the_store_says_when_the_next_check_is_due(cluster: ForkedCluster) -> None:
    async with metadata_of(cluster) as factory:
        now_ms = int(time.time() * 1000)
        store = factory.replication_metadata
        await store.set_check_time(PeriodicCheck.ALL_LEDGERS, now_ms - 1_800_000)
        async with checking(factory) as made_check:
            made_check.allow(True)
            await until(lambda: made_check.statistics.ended_ms)
            assert made_check.statistics.ended_ms == now_ms - 1_800_000
            assert not made_check.statistics.in_progress
        await store.set_check_time(PeriodicCheck.ALL_LEDGERS, now_ms - 3_600_001)
        async with checking(factory, 0.0) as never:
            never.allow(True)
            async with checking(factory) as made_check:
                made_check.allow(True)
                await until(lambda: made_check.statistics.checks)
            assert never.statistics.ended_ms is None
        assert await last_check(factory) >= now_ms


async def test_a_time_to_come_in_the_store_puts_a_check_off_for_one_interval(cluster: ForkedCluster) -> None:
    async with metadata_of(cluster) as factory:
        await factory.replication_metadata.set_check_time(PeriodicCheck.ALL_LEDGERS, 2 * int(time.time() * 1000))
        async with checking(factory, 1.0) as made_check:
            made_check.allow(True)
            await until(lambda: made_check.statistics.checks)
        assert await last_check(factory) <= int(time.time() * 1000)


async def test_ledgers_with_damaged_metadata_are_left_out_and_said(cluster: ForkedCluster) -> None:
    async with metadata_of(cluster) as factory, await cluster.client() as client:
        await written(client, 5, 3, 3, 2)
        await written(client, 5, 3, 3, 2)
        with contextlib.closing(sqlite3.connect(cluster.metadata_uri.removeprefix("sqlite://"))) as store, store:
            store.execute("UPDATE ledgers SET metadata = x'00' WHERE key = (SELECT min(key) FROM ledgers)")
        async with checking(factory) as made_check:
            made_check.allow(True)
            await until(lambda: made_check.statistics.checks)
            done = made_check.statistics
            assert (done.ledgers_checked, done.ledgers_unreadable) == (1, 1)


async def claims_too_much(factory: LedgerManagerFactory, *bookies: str) -> int:
    """A ledger whose metadata say that it has many more entries than its bookies could hold; its id."""
    claimed = LedgerMetadata.new(bookies, len(bookies), 1).close(1 << 33, 50)
    record = await factory.ledger_manager.create(LedgerId.unscoped(1000), claimed)
    return record.ledger_id.number


async def test_ledgers_that_claim_too_many_entries_are_left_out_and_said(cluster: ForkedCluster) -> None:
    async with metadata_of(cluster) as factory, await cluster.client() as client:
        await written(client, 5, 3, 3, 2)
        await claims_too_much(factory, "bookie-0", "bookie-1")
        async with checking(factory) as made_check:
            made_check.allow(True)
            await until(lambda: made_check.statistics.checks)
            done = made_check.statistics
            assert (done.ledgers_unreadable, done.ledgers_marked) == (1, 0)


async def test_who_is_in_office_is_told_while_auto_recovery_is_enabled(cluster: ForkedCluster) -> None:
    async with metadata_of(cluster) as factory:
        told: list[bool] = []
        await factory.replication_metadata.set_enabled(False)
        auditor = Auditor(factory, "here", AuditorOptions(), on_office=told.append)
        await auditor.start()
        await until(lambda: auditor.statistics.is_auditor)
        assert True not in told
        await factory.replication_metadata.set_enabled(True)
        await until(lambda: told[-1])
        await factory.replication_metadata.set_enabled(False)
        await until(lambda: not told[-1])
        await factory.replication_metadata.set_enabled(True)
        await until(lambda: told[-1])
        await auditor.stop()
        assert told[-1] is False
