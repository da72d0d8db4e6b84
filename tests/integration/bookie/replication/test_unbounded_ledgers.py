"""Auto-recovery of unbounded ledgers on real bookies: complete fragments get their copies back, nothing else moves."""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import AsyncIterator, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from bookgate import ClientConfig
from bookgate.bookie.replication.audits.auditor import AuditorOptions
from bookgate.bookie.replication.auto_recovery import AutoRecovery, AutoRecoveryOptions
from bookgate.bookie.replication.checks.replica_check import ReplicaCheckOptions
from bookgate.bookie.replication.checks.scrub import ScrubOptions
from bookgate.bookie.replication.copies.budget import CopyLimits
from bookgate.bookie.replication.repairs import worker as worker_module
from bookgate.bookie.replication.repairs.worker import WorkerOptions
from bookgate.ledger.metadata import LedgerMetadata, LedgerState
from bookgate.ledger.metadata_store import LedgerManagerFactory
from bookgate.ledger.replication_checks import Check, order_check
from bookgate.ledger.replication_control import loss_of
from bookgate.ledger.replication_store import LedgerLock, RecordKind
from bookgate.ledger.wire.messages import Status
from bookgate.thinclient.bookies.connection import tcp_connector
from bookgate.thinclient.bookies.pool import BookiePool
from tests.integration.bookie.replication.healing import until
from tests.integration.bookie.replication.test_auto_recovery import metadata_of
from tests.integration.bookie.replication.test_recover_by_hand import incomplete
from tests.integration.bookie.replication.test_worker import repairing
from tests.integration.thinclient.forked_cluster import ForkedCluster, forked_cluster
from tests.streams import Stream

pytestmark = pytest.mark.asyncio

B0, B1, B2, B3, B4 = (f"bookie-{number}" for number in range(5))
CONFIG = ClientConfig(add_timeout_seconds=1.5, read_timeout_seconds=1.5, connect_timeout_seconds=1.5)


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[ForkedCluster]:
    with forked_cluster(tmp_path, 5) as made:
        yield made


@contextlib.asynccontextmanager
async def pool_of(factory: LedgerManagerFactory) -> AsyncIterator[BookiePool]:
    pool = BookiePool.of(CONFIG, factory.service_discovery, tcp_connector, random.Random(1))
    try:
        yield pool
    finally:
        await pool.close_and_wait()


def without_fragments(metadata: LedgerMetadata) -> LedgerMetadata:
    return replace(metadata, fragments=metadata.fragments[-1:])


async def two_fragments(pool: BookiePool, factory: LedgerManagerFactory) -> Stream:
    """Ten entries on three bookies, with a truncate entry among them, and three that are written elsewhere."""
    stream = await Stream.create(pool, factory.ledger_manager, (B0, B1, B2))
    await stream.append(*(b"a%d" % number for number in range(6)))
    await stream.take_over(7)
    await stream.append(b"", *(b"b%d" % number for number in range(3)))
    await stream.begin_fragment(B3, B1, B0)
    await stream.append(b"c0", b"c1", b"c2")
    return stream


async def test_a_complete_fragment_is_copied_and_the_last_one_is_its_writers(
    cluster: ForkedCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(worker_module, "_WRITER_SECONDS", 0.5)
    async with (
        metadata_of(cluster) as factory,
        pool_of(factory) as pool,
        repairing(cluster, open_ledger_grace_seconds=0.2) as repairs,
    ):
        stream = await two_fragments(pool, factory)
        before = await stream.metadata()
        cluster.lose(B0)
        number = stream.ledger_id.number
        await repairs.mark(number, B0)

        async def moved() -> bool:
            return B0 not in (await stream.metadata()).fragments[0].ensemble

        await repairs.until(moved)
        after = await stream.metadata()
        assert without_fragments(after) == without_fragments(before), "term, holder, state, the last fragment"
        assert after.fragments[0].first_entry_id == 0
        (target,) = {*after.fragments[0].ensemble} - {B1, B2}
        await stream.check()
        assert await stream.copy_at(target, 10) == (stream.entries[10] if target == B3 else None), "nothing above it"
        # Whoever wrote at an older term is shut out there, whatever it sends.
        assert await stream.add(target, 3, b"late", term=0) == Status.EINVALIDTERM
        assert await stream.copy_at(target, 3) == b"a3"
        # The last fragment stays as it is, and the mark with it, until its writer goes on elsewhere.
        looks, look = 0, repairs.metadata.try_lock

        async def counted(ledger_id: int, holder: str) -> LedgerLock | None:
            nonlocal looks
            looks += 1
            return await look(ledger_id, holder)

        async def three_more() -> bool:
            return looks >= 3

        monkeypatch.setattr(repairs.metadata, "try_lock", counted)
        await repairs.until(three_more)
        assert await stream.metadata() == after
        assert await repairs.metadata.read_mark(number) is not None
        assert repairs.worker.statistics.ledgers_failed == 0
        await stream.begin_fragment(B3, B1, B4)
        await stream.append(b"d0")
        await repairs.until_unmarked(number)
        assert B0 not in (await stream.metadata()).bookies
        await stream.check()
        assert repairs.worker.statistics.ledgers_recovered == 0


async def test_what_an_older_term_has_left_at_the_target_is_no_copy(cluster: ForkedCluster) -> None:
    """The only bookie that can take the place holds another value of an entry, which was never confirmed."""
    async with metadata_of(cluster) as factory, pool_of(factory) as pool, repairing(cluster) as repairs:
        stream = await Stream.create(pool, factory.ledger_manager, (B0, B1, B2))
        await stream.append(b"a0", b"a1", b"a2")
        assert await stream.add(B3, 3, b"dirty") == Status.EOK
        await stream.take_over(7)
        await stream.append(b"b3", b"b4")
        await stream.begin_fragment(B1, B2, B4)
        await stream.append(b"c5")
        cluster.lose(B4)
        cluster.lose(B0)
        assert await stream.copy_at(B3, 3) == b"dirty"
        await repairs.mark(stream.ledger_id.number, B0)

        async def moved() -> bool:
            return B0 not in (await stream.metadata()).fragments[0].ensemble

        await repairs.until(moved)
        assert set((await stream.metadata()).fragments[0].ensemble) == {B1, B2, B3}
        await stream.check()


async def test_a_closed_one_is_repaired_to_its_end(cluster: ForkedCluster) -> None:
    async with metadata_of(cluster) as factory, pool_of(factory) as pool, repairing(cluster) as repairs:
        stream = await two_fragments(pool, factory)
        await stream.close()
        before = await stream.metadata()
        cluster.lose(B0)
        await repairs.mark(stream.ledger_id.number, B0)
        await repairs.until_unmarked(stream.ledger_id.number)
        after = await stream.metadata()
        assert B0 not in after.bookies
        assert replace(after, fragments=before.fragments) == before
        await stream.check()
        (target,) = {*after.fragments[0].ensemble} - {B1, B2}
        assert await stream.add(target, 13, b"late") == Status.EFENCED


async def test_fragments_that_were_merged_while_one_was_copied_are_looked_at_again(
    cluster: ForkedCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with metadata_of(cluster) as factory, pool_of(factory) as pool, repairing(cluster) as repairs:
        stream = await Stream.create(pool, factory.ledger_manager, (B0, B1, B2))
        await stream.append(b"a0", b"a1")
        await stream.begin_fragment(B0, B1, B2)
        await stream.append(b"b2", b"b3")
        write, merged = repairs.metadata.write_ledger, False
        lacking: list[str] = []

        async def after_a_merge(*arguments: object) -> object:
            nonlocal merged
            if not merged:
                merged = True
                await stream.begin_fragment(B1, B2, B3)
                await stream.append(b"c4")
            written = await write(*arguments)  # type: ignore[arg-type]
            try:
                await stream.check()
            except AssertionError as error:
                lacking.append(str(error))
            return written

        monkeypatch.setattr(repairs.metadata, "write_ledger", after_a_merge)
        cluster.lose(B0)
        await repairs.mark(stream.ledger_id.number, B0)
        await repairs.until_unmarked(stream.ledger_id.number)
        metadata = await stream.metadata()
        assert merged
        assert not lacking, "who is named has all that is due (R3)"
        assert [each.first_entry_id for each in metadata.fragments] == [0, 4]
        await stream.check()


@contextlib.asynccontextmanager
async def recovering(factory: LedgerManagerFactory) -> AsyncIterator[AutoRecovery]:
    auditor = AuditorOptions(lost_bookie_delay_seconds=0, roll_call_seconds=0.2)
    options = AutoRecoveryOptions(
        auditor,
        WorkerOptions(open_ledger_grace_seconds=0.2),
        CopyLimits(),
        check=ReplicaCheckOptions(0),
        scrub=ScrubOptions(bytes_a_second=float(1 << 30)),
    )
    running = AutoRecovery(factory, "here", options, CONFIG)
    await running.start()
    try:
        yield running
    finally:
        await running.stop()


async def test_audits_and_checks_see_unbounded_ledgers(cluster: ForkedCluster) -> None:
    async with metadata_of(cluster) as factory, pool_of(factory) as pool:
        stream, lacking = await two_fragments(pool, factory), await two_fragments(pool, factory)
        # A bookie that has nothing stands where another one is due to hold all.
        record = await factory.ledger_manager.read(lacking.ledger_id)
        first = replace(record.metadata.fragments[0], ensemble=(B0, B1, B4))
        changed = replace(record.metadata, fragments=(first, *record.metadata.fragments[1:]))
        await factory.ledger_manager.write(lacking.ledger_id, changed, record.version)
        async with recovering(factory) as running:
            await until(lambda: has_auditor(factory))
            await order_check(factory.replication_metadata, Check.REPLICAS)

            async def refilled() -> bool:
                return await lacking.copy_at(B4, 9) is not None

            await until(refilled)
            await until(lambda: none_marked(factory))
            assert await lacking.metadata() == changed
            await lacking.check()
            await stream.spoil(B1, 3)
            ended, before = running.scrub.statistics.passes, running.scrub.statistics.bytes
            await order_check(factory.replication_metadata, Check.SCRUB)
            await until(lambda: scrubbed(running, ended))
            assert running.scrub.statistics.entries >= 2 * 10 * 3
            good = 2 * 3 * sum(map(len, stream.entries[:10])) - len(stream.entries[3])
            assert running.scrub.statistics.bytes - before >= good, "it costs the bytes that are read"
            assert running.scrub.statistics.corrupt == 1
            await until(lambda: none_marked(factory))
            await stream.check()
            await asyncio.to_thread(cluster.lose, B2)

            async def repaired() -> bool:
                return B2 not in (await stream.metadata()).bookies

            await until(repaired)
            await until(lambda: none_marked(factory))
            await stream.check()
            assert (await stream.metadata()).state is LedgerState.OPEN


async def has_auditor(factory: LedgerManagerFactory) -> bool:
    return await factory.replication_metadata.auditor() is not None


async def none_marked(factory: LedgerManagerFactory) -> bool:
    return not [page async for page in factory.replication_metadata.marks() if page]


async def scrubbed(running: AutoRecovery, passes: int) -> bool:
    return running.scrub.statistics.passes > passes


async def test_one_whose_end_is_lost_is_told_and_stays_as_it_is(cluster: ForkedCluster) -> None:
    async with (
        metadata_of(cluster) as factory,
        pool_of(factory) as pool,
        repairing(cluster, open_ledger_grace_seconds=0.2) as repairs,
    ):
        stream = await two_fragments(pool, factory)
        for gone in (B0, B3):
            cluster.lose(gone)
        number = stream.ledger_id.number
        await repairs.mark(number, B0, B3)

        async def told() -> bool:
            return bool(await repairs.metadata.records(RecordKind.UNRECOVERABLE_LEDGER))

        await repairs.until(told)
        record = await repairs.metadata.read_record(RecordKind.UNRECOVERABLE_LEDGER, str(number))
        assert record is not None
        assert loss_of(record.value).end_is_lost
        metadata = await stream.metadata()
        assert (metadata.state, metadata.last_fragment.ensemble) == (LedgerState.OPEN, (B3, B1, B0))
        assert B0 not in metadata.fragments[0].ensemble, "what is complete was repaired"
        await stream.check()


async def test_recovery_by_hand_leaves_its_writer_alone(cluster: ForkedCluster) -> None:
    async with metadata_of(cluster) as factory, pool_of(factory) as pool:
        stream = await two_fragments(pool, factory)
        before = await stream.metadata()
        cluster.lose(B0)
        left = (await incomplete(cluster, "recover", B0, "--grace", "0.2"))["left"]
        assert [(each["ledger_id"], each["state"]) for each in left] == [(stream.ledger_id.number, "still written")]
        after = await stream.metadata()
        assert without_fragments(after) == without_fragments(before)
        assert B0 not in after.fragments[0].ensemble
        await stream.check()
