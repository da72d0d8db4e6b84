"""The replication worker on real bookie processes: what they held is copied again, and nothing is lost meanwhile."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import random
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from pyroaring import BitMap64

from bookgate import BookKeeper, ClientConfig, WriteHandle
from bookgate.bookie.replication.copies.bookies import Bookies
from bookgate.bookie.replication.copies.budget import CopyLimits
from bookgate.bookie.replication.copies.copying import Copied
from bookgate.bookie.replication.copies.verdicts import Holding
from bookgate.bookie.replication.repairs import repair_queue
from bookgate.bookie.replication.repairs import worker as worker_module
from bookgate.bookie.replication.repairs.marks import forget_unmarked, unmark
from bookgate.bookie.replication.repairs.repair import LedgerRepair
from bookgate.bookie.replication.repairs.tools import WorkerTools
from bookgate.bookie.replication.repairs.worker import ReplicationWorker, WorkerOptions
from bookgate.gateway.stores.drivers import create_factory
from bookgate.ledger.digest import digest_for
from bookgate.ledger.entry import HEADER_SIZE, Entry
from bookgate.ledger.errors import MetaStoreException
from bookgate.ledger.ledger_id import LedgerId
from bookgate.ledger.metadata import DigestType, LedgerMetadata, LedgerState
from bookgate.ledger.metadata_store import LedgerManagerFactory
from bookgate.ledger.replication_control import cluster_rate, loss_of, set_cluster_rate
from bookgate.ledger.replication_progress import Danger, Moving
from bookgate.ledger.replication_store import RecordKind
from bookgate.thinclient.handles.context import LedgerSecrets
from tests.integration.thinclient.forked_cluster import ForkedCluster, forked_cluster

pytestmark = pytest.mark.asyncio

PASSWORD = b"planted-secret"
_SEEDS = itertools.count(1)
"""No two workers of a test choose alike."""


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[ForkedCluster]:
    with forked_cluster(tmp_path, 5) as made:
        yield made


class Repairs:
    """A worker, and the metadata that it and the test look at."""

    def __init__(self, factory: LedgerManagerFactory, worker: ReplicationWorker, tools: WorkerTools) -> None:
        self.factory = factory
        self.budget, self.copied = tools.budget, tools.copied
        self.bookies = tools.repair.bookies
        self.metadata = factory.replication_metadata
        self.worker = worker

    async def mark(self, ledger_id: int, *bookies: str) -> None:
        await self.metadata.mark(ledger_id, bookies, 1)

    async def until(self, holds: Callable[[], Any]) -> None:
        """Asks the store again and again: what a worker does to it is told to nobody."""
        async with asyncio.timeout(60):
            while not await holds():  # noqa: ASYNC110 - a store has no event for it
                await asyncio.sleep(0.05)

    async def until_unmarked(self, *ledger_ids: int) -> None:
        async def none() -> bool:
            return not any([await self.metadata.read_mark(ledger_id) for ledger_id in ledger_ids])

        await self.until(none)

    def moving(self) -> Moving:
        """How far the one repair under way is, as the worker tells it."""
        assert self.worker.progress is not None
        told = self.worker.progress.told(0.0, 1)
        assert told is not None
        (moving,) = told.moving
        return moving

    async def read(self, ledger_id: int) -> LedgerMetadata:
        return (await self.factory.ledger_manager.read(LedgerId.of_number(ledger_id))).metadata


@contextlib.asynccontextmanager
async def repairing(cluster: ForkedCluster, limits: CopyLimits | None = None, **options: Any) -> AsyncIterator[Repairs]:
    factory = create_factory(cluster.metadata_uri)
    await factory.initialize()
    config = ClientConfig(add_timeout_seconds=1.5, read_timeout_seconds=1.5, connect_timeout_seconds=1.5)
    rng = random.Random(next(_SEEDS))
    tools = WorkerTools(factory, config, rng, limits or CopyLimits())
    worker = ReplicationWorker(factory, tools.repair, WorkerOptions(**options), rng)
    await worker.start()
    try:
        yield Repairs(factory, worker, tools)
    finally:
        await worker.stop()
        await tools.close()
        await factory.close()


async def written(
    client: BookKeeper,
    entries: int,
    ensemble: int,
    write_quorum: int,
    ack_quorum: int,
    *,
    close: bool = True,
    ledger_id: LedgerId | None = None,
) -> WriteHandle:
    ledger = await client.create_ledger(ensemble, write_quorum, ack_quorum, password=PASSWORD, ledger_id=ledger_id)
    for number in range(entries):
        await ledger.append(payload(number))
    if close:
        await ledger.close()
    return ledger


def payload(number: int) -> bytes:
    return b"entry %d " % number * (number % 7 + 1)


async def check(client: BookKeeper, ledger_id: LedgerId, entries: int) -> None:
    """All of it reads back."""
    async with await client.open_ledger(ledger_id, PASSWORD) as reader:
        assert reader.last_add_confirmed == entries - 1
        found = [entry.payload async for entry in reader.read(0, entries - 1)]
    assert found == [payload(number) for number in range(entries)]


@pytest.mark.parametrize(
    ("entries", "sizes", "losses"),
    [(200, (3, 3, 2), 2), (200, (4, 2, 2), 1), (1, (3, 2, 2), 2), (0, (3, 3, 2), 2)],
    ids=["every member", "striped", "one entry", "empty"],
)
async def test_lost_bookies_are_replaced(
    cluster: ForkedCluster, entries: int, sizes: tuple[int, int, int], losses: int
) -> None:
    async with repairing(cluster) as repairs, await cluster.client() as client:
        ledger = await written(client, entries, *sizes)
        number = ledger.ledger_id.low
        for lost in ledger.metadata.fragments[0].ensemble[:losses]:
            cluster.lose(lost)
            await repairs.mark(number, lost)
            await repairs.until_unmarked(number)
            (fragment,) = (await repairs.read(number)).fragments
            assert lost not in fragment.ensemble
        await check(client, ledger.ledger_id, entries)
        assert repairs.worker.statistics.ledgers_repaired == losses


async def test_as_many_ledgers_are_repaired_at_once_as_there_are_tasks(
    cluster: ForkedCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """AR19. None ends before three have begun, and a fourth begins when one of them has ended only."""
    tasks, run = 3, LedgerRepair.run
    under_way = most = 0
    all_begun = asyncio.Event()

    async def counted(self: LedgerRepair, *arguments: Any, **more: Any) -> Any:
        nonlocal under_way, most
        under_way += 1
        most = max(most, under_way)
        if under_way == tasks:
            all_begun.set()
        await all_begun.wait()
        try:
            return await run(self, *arguments, **more)
        finally:
            under_way -= 1

    monkeypatch.setattr(LedgerRepair, "run", counted)
    async with repairing(cluster, tasks=tasks) as repairs, await cluster.client() as client:
        made = [await written(client, 5, 4, 2, 2) for _ in range(6)]
        members = Counter(bookie for each in made for bookie in each.metadata.fragments[0].ensemble)
        lost = max(members, key=lambda bookie: members[bookie])
        ledgers = [each for each in made if lost in each.metadata.fragments[0].ensemble]
        assert len(ledgers) > tasks, "four of five bookies have each"
        cluster.lose(lost)
        for each in ledgers:
            await repairs.mark(each.ledger_id.low, lost)
        await repairs.until_unmarked(*(each.ledger_id.low for each in ledgers))
        assert most == tasks


async def test_a_bug_in_one_repair_keeps_no_other_ledger_from_its_own(
    cluster: ForkedCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """AR20. The ledger is tried again, as after any failure."""
    monkeypatch.setattr(repair_queue, "FIRST_PAUSE_SECONDS", 0.1)
    run = LedgerRepair.run
    async with repairing(cluster, tasks=1) as repairs, await cluster.client() as client:
        ledgers = [await written(client, 20, 4, 2, 2) for _ in range(3)]
        numbers = [each.ledger_id.low for each in ledgers]

        async def with_a_bug(self: LedgerRepair, *arguments: Any, **more: Any) -> Any:
            if not repairs.worker.statistics.ledgers_failed:
                raise ZeroDivisionError("planned")
            return await run(self, *arguments, **more)

        monkeypatch.setattr(LedgerRepair, "run", with_a_bug)
        lost = min(set.intersection(*({*each.metadata.fragments[0].ensemble} for each in ledgers)))
        cluster.lose(lost)
        for number in numbers:
            await repairs.mark(number, lost)
        await repairs.until_unmarked(*numbers)
        assert repairs.worker.statistics.ledgers_failed == 1
        assert repairs.worker.statistics.ledgers_repaired == 3
        for each in ledgers:
            await check(client, each.ledger_id, 20)


@pytest.mark.parametrize("close", [True, False], ids=["closed", "open"])
async def test_a_ledger_with_a_scope_is_repaired_and_its_namesake_is_left_alone(
    cluster: ForkedCluster, close: bool
) -> None:
    """(scope, id) is not (0, id): neither its mark and lock, nor its copies, nor its fence (D1)."""
    async with repairing(cluster, open_ledger_grace_seconds=0.5) as repairs, await cluster.client() as client:
        namesake = await written(client, 30, 5, 2, 2)
        ledger = await client.create_ledger(3, 3, 2, password=PASSWORD, ledger_id=namesake.ledger_id.low, scope_id=-9)
        for number in range(60):
            await ledger.append(payload(number))
        if close:
            await ledger.close()
        before, number = await repairs.read(namesake.ledger_id.number), ledger.ledger_id.number
        lost = ledger.metadata.last_fragment.ensemble[0]
        cluster.lose(lost)
        await repairs.mark(number, lost)
        await repairs.until_unmarked(number)
        assert lost not in (await repairs.read(number)).bookies
        await check(client, ledger.ledger_id, 60)
        assert await repairs.read(namesake.ledger_id.number) == before
        await check(client, namesake.ledger_id, 30)
        healed = await repairs.read(number)
        for bookie_id in healed.bookies:
            # The recovery puts another bookie in where the last entry is, and the repair maybe yet another before it.
            due = BitMap64(entry for entry in range(60) if bookie_id in healed.fragment_at(entry).ensemble)
            held = await repairs.bookies.copies(bookie_id, number, BitMap64(range(60)))
            assert isinstance(held, Holding)
            assert due
            assert held.entries >= due
            if bookie_id not in before.bookies:
                others = await repairs.bookies.copies(bookie_id, namesake.ledger_id.number, BitMap64())
                assert isinstance(others, Holding)
                assert not others.entries


async def test_what_was_copied_is_counted(cluster: ForkedCluster) -> None:
    """Many copies are under way at once; each counts, with all of its bytes."""
    async with repairing(cluster) as repairs, await cluster.client() as client:
        ledger = await written(client, 200, 3, 3, 2)
        lost = ledger.metadata.fragments[0].ensemble[0]
        cluster.lose(lost)
        await repairs.mark(ledger.ledger_id.low, lost)
        await repairs.until_unmarked(ledger.ledger_id.low)
        overhead = HEADER_SIZE + digest_for(DigestType.CRC32C, PASSWORD).length
        assert repairs.copied == Copied(200, sum(overhead + len(payload(number)) for number in range(200)))


async def test_the_limit_of_the_cluster_holds_back_a_worker_without_its_own(cluster: ForkedCluster) -> None:
    async with repairing(cluster) as repairs, await cluster.client() as client:
        await set_cluster_rate(repairs.metadata, 1 << 20)
        ledger = await client.create_ledger(3, 3, 2, password=PASSWORD)
        for _ in range(32):
            await ledger.append(b"x" * 65536)
        await ledger.close()
        lost = ledger.metadata.fragments[0].ensemble[0]
        cluster.lose(lost)
        began = time.monotonic()
        await repairs.mark(ledger.ledger_id.low, lost)
        await repairs.until_unmarked(ledger.ledger_id.low)
        assert time.monotonic() - began > 3.5  # two mebibytes are read, and stored
        await set_cluster_rate(repairs.metadata, 0)
        assert await cluster_rate(repairs.metadata) == 0


async def test_a_target_whose_journal_is_slow_lowers_the_rate(tmp_path: Path) -> None:
    """R15: a copy is answered when it is synced, so its answers tell how long adds of clients wait there."""
    full = float(1 << 30)
    with forked_cluster(tmp_path, 3) as cluster:
        async with await cluster.client() as client, repairing(cluster, CopyLimits(worker=full)) as repairs:
            ledgers = [await written(client, 20, 3, 3, 2) for _ in range(2)]
            slow = cluster.add(journal_max_group_wait_seconds=0.7)
            await asyncio.to_thread(cluster.start, slow)
            cluster.lose("bookie-0")
            assert repairs.budget.rate == full
            for each in ledgers:
                await repairs.mark(each.ledger_id.low, "bookie-0")
            await repairs.until_unmarked(*(each.ledger_id.low for each in ledgers))
            assert {slow} == (await repairs.read(ledgers[0].ledger_id.low)).bookies - {"bookie-1", "bookie-2"}
            assert repairs.budget.rate < full


async def test_a_ledger_with_one_copy_left_does_not_wait_for_a_budget_of_next_to_nothing(
    cluster: ForkedCluster,
) -> None:
    limits = CopyLimits(worker=1000, bookie=1000, last_copies=4 << 20)
    async with repairing(cluster, limits) as repairs, await cluster.client() as client:
        endangered, other = await written(client, 100, 3, 2, 2), await written(client, 100, 3, 3, 2)
        lost = (set(endangered.metadata.bookies) & set(other.metadata.bookies)).pop()
        cluster.lose(lost)
        for ledger in (endangered, other):
            await repairs.mark(ledger.ledger_id.low, lost)
        await repairs.until_unmarked(endangered.ledger_id.low)
        assert lost not in (await repairs.read(endangered.ledger_id.low)).bookies
        assert lost in (await repairs.read(other.ledger_id.low)).bookies


async def test_a_ledger_that_is_written_is_not_fenced(cluster: ForkedCluster) -> None:
    async with repairing(cluster, open_ledger_grace_seconds=3600) as repairs, await cluster.client() as client:
        ledger = await written(client, 20, 3, 3, 2, close=False)
        number = ledger.ledger_id.low
        lost = ledger.metadata.fragments[0].ensemble[0]
        cluster.lose(lost)
        await repairs.mark(number, lost)
        for entry in range(20, 40):
            await ledger.append(payload(entry))
        await repairs.until_unmarked(number)
        metadata = await repairs.read(number)
        assert metadata.state is LedgerState.OPEN
        assert lost not in [each for fragment in metadata.fragments for each in fragment.ensemble]
        assert len(metadata.fragments) == 2, "the writer has replaced it, and what it had written before is repaired"
        for entry in range(40, 50):
            await ledger.append(payload(entry))
        await ledger.close()
        await check(client, ledger.ledger_id, 50)


async def test_a_ledger_whose_writer_is_gone_is_recovered_after_the_grace(cluster: ForkedCluster) -> None:
    async with repairing(cluster, open_ledger_grace_seconds=0.5) as repairs, await cluster.client() as client:
        ledger = await written(client, 20, 3, 3, 2, close=False)
        number = ledger.ledger_id.low
        lost = ledger.metadata.fragments[0].ensemble[0]
        cluster.lose(lost)
        await repairs.mark(number, lost)
        await repairs.until_unmarked(number)
        metadata = await repairs.read(number)
        assert metadata.state is LedgerState.CLOSED
        assert lost not in [each for fragment in metadata.fragments for each in fragment.ensemble]
        await check(client, ledger.ledger_id, 20)


async def test_a_wiped_bookie_is_refilled_where_it_is(cluster: ForkedCluster) -> None:
    """As many bookies as the ensemble has: nobody else could take its place."""
    async with repairing(cluster) as repairs, await cluster.client() as client:
        ledger = await written(client, 50, 5, 3, 2)
        number = ledger.ledger_id.low
        before = await repairs.read(number)
        wiped, *others = before.fragments[0].ensemble
        cluster.lose(wiped)
        cluster.wipe(wiped)
        registrations = repairs.factory.registration_manager
        cookie = await registrations.read_cookie(wiped)
        assert cookie is not None
        await registrations.remove_cookie(wiped, cookie.version)
        cluster.start(wiped)
        await repairs.mark(number, wiped)
        await repairs.until_unmarked(number)
        assert await repairs.read(number) == before
        for other in others[-2:]:
            cluster.kill(other)
        await check(client, ledger.ledger_id, 50)


async def test_what_has_no_copy_left_is_listed(cluster: ForkedCluster) -> None:
    async with repairing(cluster) as repairs, await cluster.client() as client:
        ledger = await written(client, 10, 2, 1, 1)
        number = ledger.ledger_id.low
        lost = ledger.metadata.fragments[0].ensemble[0]
        cluster.lose(lost)
        await repairs.mark(number, lost)
        kind = RecordKind.UNRECOVERABLE_LEDGER

        async def is_listed() -> bool:
            return str(number) in await repairs.metadata.records(kind)

        await repairs.until(is_listed)
        told = loss_of((await repairs.metadata.records(kind))[str(number)].value)
        kept = ledger.metadata.fragments[0].ensemble[1]
        assert (told.entries, told.first_entries, told.end_is_lost) == (5, [0, 2, 4, 6, 8], False)
        assert (told.lost_bookies, told.answers) == ([lost], {lost: "lost", kept: "complete"})
        progress = repairs.worker.progress
        assert progress is not None
        assert progress.classes is not None
        assert progress.classes[Danger.UNRECOVERABLE].ledgers == 1
        assert await repairs.metadata.read_mark(number) is not None
        cluster.start(lost)
        await repairs.until_unmarked(number)
        assert not await repairs.metadata.records(kind), "the bookie is back, and nothing is lost"


async def test_what_is_unrecoverable_is_forgotten_once_it_is_deleted(cluster: ForkedCluster) -> None:
    async with repairing(cluster, given_up_seconds=0.0) as repairs, await cluster.client() as client:
        ledger = await written(client, 10, 2, 1, 1)
        number = ledger.ledger_id.low
        cluster.lose(lost := ledger.metadata.fragments[0].ensemble[0])
        await repairs.mark(number, lost)

        async def is_listed() -> bool:
            return bool(await repairs.metadata.records(RecordKind.UNRECOVERABLE_LEDGER))

        await repairs.until(is_listed)
        await client.delete_ledger(ledger.ledger_id)
        await repairs.mark(number + 1, lost)  # or the worker lists the marks half a minute later
        await repairs.until_unmarked(number)

        async def is_forgotten() -> bool:
            return not await is_listed()

        await repairs.until(is_forgotten)


async def test_an_open_ledger_given_up_is_looked_at_again_when_its_writer_has_closed_it(cluster: ForkedCluster) -> None:
    """Its end seems lost, since the lost bookie alone may have acknowledged entries; its writer lives, and knows it."""
    async with (
        repairing(cluster, given_up_seconds=0.0, open_ledger_grace_seconds=0.2) as repairs,
        await cluster.client() as client,
    ):
        ledger = await written(client, 10, 3, 2, 1, close=False)
        number = ledger.ledger_id.low
        cluster.lose(lost := ledger.metadata.last_fragment.ensemble[0])
        await repairs.mark(number, lost)

        async def is_listed() -> bool:
            return str(number) in await repairs.metadata.records(RecordKind.UNRECOVERABLE_LEDGER)

        await repairs.until(is_listed)
        for entry in range(10, 20):
            await ledger.append(payload(entry))
        await ledger.close()
        await repairs.mark(number + 1, lost)  # or the worker lists the marks half a minute later
        await repairs.until_unmarked(number)
        assert not await is_listed()
        assert lost not in (await repairs.read(number)).bookies
        await check(client, ledger.ledger_id, 20)


async def test_a_ledger_that_claims_too_many_entries_is_put_off(cluster: ForkedCluster) -> None:
    async with repairing(cluster) as repairs:
        claimed = LedgerMetadata.new(("bookie-0", "bookie-1"), 2, 1).close(1 << 33, 50)
        await repairs.factory.ledger_manager.create(LedgerId.unscoped(1000), claimed)
        await repairs.mark(1000, "bookie-0")

        async def is_put_off() -> bool:
            return bool(repairs.worker.statistics.ledgers_failed)

        await repairs.until(is_put_off)
        assert await repairs.metadata.read_mark(1000) is not None
        assert not await repairs.metadata.records(RecordKind.UNRECOVERABLE_LEDGER), "nothing is known of its copies"


async def test_what_is_given_up_for_a_bookie_that_serves_is_looked_at_again_when_that_was_restarted(
    cluster: ForkedCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its disk may have been repaired, or the right one mounted."""
    async with repairing(cluster) as repairs, await cluster.client() as client:
        ledger = await written(client, 10, 1, 1, 1)
        number, (keeper,) = ledger.ledger_id.low, ledger.metadata.bookies

        async def nothing(*_arguments: Any, **_more: Any) -> Holding:
            return Holding(BitMap64())

        async def is_listed() -> bool:
            return bool(await repairs.metadata.records(RecordKind.UNRECOVERABLE_LEDGER))

        with monkeypatch.context() as patched:
            patched.setattr(Bookies, "copies", nothing)
            await repairs.mark(number, keeper)
            await repairs.until(is_listed)

        async def is_away() -> bool:
            return keeper not in repairs.worker._attendance.present

        cluster.lose(keeper)
        await repairs.until(is_away)
        cluster.start(keeper)
        await repairs.until_unmarked(number)
        assert not await is_listed()


async def test_records_of_unrecoverable_ledgers_go_with_their_marks(
    cluster: ForkedCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever removed the mark: a worker that died then, or BookKeeper's. A decommission would believe them."""
    kind = RecordKind.UNRECOVERABLE_LEDGER
    async with repairing(cluster) as repairs:
        await repairs.worker.stop()
        await repairs.metadata.write_record(kind, "7", b"{}", None)
        await repairs.metadata.write_record(kind, "8", b"{}", None)
        await repairs.mark(8, "bookie-0")
        (mark,) = [each async for page in repairs.metadata.marks() for each in page]
        await forget_unmarked(repairs.metadata, [])
        assert list(await repairs.metadata.records(kind)) == ["8"], "it was marked since the listing"

        async def dies(*_arguments: object) -> bool:
            raise asyncio.CancelledError

        monkeypatch.setattr(repairs.metadata, "delete_mark", dies)
        with pytest.raises(asyncio.CancelledError):
            await unmark(repairs.metadata, mark, None)
        assert not await repairs.metadata.records(kind)
        await repairs.metadata.write_record(kind, "7", b"{}", None)
        async with repairing(cluster) as another:

            async def is_swept() -> bool:
                return not await another.metadata.records(kind)

            await another.until(is_swept)


async def test_the_mark_of_a_deleted_ledger_goes(cluster: ForkedCluster) -> None:
    async with repairing(cluster) as repairs, await cluster.client() as client:
        ledger = await written(client, 1, 3, 3, 2)
        await client.delete_ledger(ledger.ledger_id)
        await repairs.mark(ledger.ledger_id.low, "bookie-0")
        await repairs.until_unmarked(ledger.ledger_id.low)


async def test_nothing_is_repaired_while_disabled(cluster: ForkedCluster) -> None:
    async with repairing(cluster) as repairs, await cluster.client() as client:
        first, second = await written(client, 5, 3, 3, 2), await written(client, 5, 3, 3, 2)
        await repairs.metadata.set_enabled(False)
        await repairs.mark(first.ledger_id.low, "bookie-0")
        await repairs.metadata.set_enabled(True)
        await repairs.until_unmarked(first.ledger_id.low)
        await repairs.metadata.set_enabled(False)
        await repairs.mark(second.ledger_id.low, "bookie-0")
        # What disabled workers leave alone shows in nothing; a worker that looks says how many marks there are.
        assert await repairs.metadata.read_mark(second.ledger_id.low) is not None
        await repairs.metadata.set_enabled(True)
        await repairs.until_unmarked(second.ledger_id.low)


async def test_a_worker_that_stops_ends_what_is_under_way(
    cluster: ForkedCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Copies that were sent are waited for, if they end soon; the lock is free then, and another worker goes on."""
    sent, add_copies, hangs = asyncio.Event(), Bookies.add_copies, True

    async def spied(
        bookies: Bookies, bookie_id: str, ledger_id: int, entries: Sequence[Entry], secrets: LedgerSecrets
    ) -> int:
        sent.set()
        if hangs:
            await asyncio.Event().wait()
        return await add_copies(bookies, bookie_id, ledger_id, entries, secrets)

    monkeypatch.setattr(Bookies, "add_copies", spied)
    async with await cluster.client() as client:
        ledger = await written(client, 300, 4, 4, 2)
        number = ledger.ledger_id.low
        lost = ledger.metadata.fragments[0].ensemble[0]
        (target,) = {*cluster.bookies} - ledger.metadata.bookies
        async with repairing(cluster) as repairs:
            cluster.lose(lost)
            await repairs.mark(number, lost)
            await sent.wait()
            with monkeypatch.context() as impatient:
                impatient.setattr(worker_module, "_STOP_SECONDS", 0.1)
                await repairs.worker.stop()
            assert not await repairs.metadata.lock_holders()
            assert not repairs.copied.entries
        hangs = False
        sent.clear()
        async with repairing(cluster, CopyLimits(worker=1 << 19)) as repairs:
            await sent.wait()
            assert await repairs.metadata.lock_holders()
            await repairs.worker.stop()
            copied = repairs.copied.entries
            held = await repairs.bookies.copies(target, number, BitMap64(range(300)))
            assert isinstance(held, Holding)
            assert 0 < copied == len(held.entries) < 300
            assert not await repairs.metadata.lock_holders()
        sent.clear()
        async with repairing(cluster) as repairs:
            await sent.wait()
            moving = repairs.moving()
            assert (moving.due_entries, moving.entries - repairs.copied.entries) == (300, copied), "it is resumed"
            assert moving.bytes > repairs.copied.bytes
            await repairs.until_unmarked(number)
            assert repairs.copied.entries == 300 - copied
            await check(client, ledger.ledger_id, 300)


async def test_bookies_are_watched_once_however_often_a_start_fails(
    cluster: ForkedCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(worker_module, "_STORE_PAUSE_SECONDS", 0.01)
    watches, failures = list[object](), itertools.count()
    factory = create_factory(cluster.metadata_uri)
    await factory.initialize()
    discovery = factory.service_discovery

    async def watch_bookies(*_arguments: object) -> Callable[[], None]:
        watches.append(object())
        return watches.clear

    async def bookies(_kind: object) -> list[object]:
        if next(failures) < 5:
            raise MetaStoreException("the gateway is away")
        return []

    monkeypatch.setattr(discovery, "watch_bookies", watch_bookies)
    monkeypatch.setattr(discovery, "bookies", bookies)
    tools = WorkerTools(factory, ClientConfig(), random.Random(1), CopyLimits())
    worker = ReplicationWorker(factory, tools.repair, WorkerOptions(), random.Random(1))
    await worker.start()
    async with asyncio.timeout(30):
        while not worker._attendance.told:  # noqa: ASYNC110 - nobody is told
            await asyncio.sleep(0.01)
    assert len(watches) == 1
    await worker.stop()
    assert not watches
    await tools.close()
    await factory.close()


async def test_another_worker_goes_on_where_one_was_killed(cluster: ForkedCluster) -> None:
    async with await cluster.client() as client:
        ledgers = [await written(client, 30, 3, 3, 2) for _ in range(6)]
        numbers = [ledger.ledger_id.low for ledger in ledgers]
        async with repairing(cluster, tasks=1) as repairs:
            cluster.lose("bookie-0")
            for number in numbers:
                await repairs.mark(number, "bookie-0")
            await repairs.until_unmarked(numbers[-1])
        async with repairing(cluster) as repairs:
            await repairs.until_unmarked(*numbers)
            for ledger in ledgers:
                assert "bookie-0" not in (await repairs.read(ledger.ledger_id.low)).fragments[0].ensemble
                await check(client, ledger.ledger_id, 30)
