"""What workers keep of repairs under way: whoever goes on with one goes on where it was, and leaves no garbage."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from pyroaring import BitMap64

from bookgate.bookie.replication.copies.verdicts import Holding
from bookgate.bookie.replication.repairs.repair_queue import FIRST_PAUSE_SECONDS, RepairQueue
from bookgate.bookie.replication.repairs.tasks import Task, Tasks
from bookgate.gateway.stores.drivers import create_factory
from bookgate.ledger.replication_store import RecordKind
from tests.integration.bookie.replication.healing import Store, recoverers
from tests.integration.bookie.replication.test_worker import check, repairing, written
from tests.integration.thinclient.forked_cluster import ForkedCluster, forked_cluster

pytestmark = pytest.mark.asyncio

KIND = RecordKind.TASK
ENTRIES, LEDGERS = 60, 6
SLOW_MIB = ENTRIES * LEDGERS * 8192 / 8 / 2**20
"""All copies take some eight seconds."""
GROUP = 32
"""Entries that are sent at once: the least that shows."""


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[ForkedCluster]:
    with forked_cluster(tmp_path, 6) as made:
        yield made


async def test_a_successor_goes_on_at_the_bookies_that_have_copies_already(
    cluster: ForkedCluster, tmp_path: Path
) -> None:
    """The first worker is killed: it takes nothing back, and its locks end with its leases."""
    due = BitMap64(range(ENTRIES))
    async with await cluster.client() as client, repairing(cluster) as second:
        await second.worker.stop()
        ledgers = [(await written(client, ENTRIES, 3, 3, 2)).ledger_id for _ in range(LEDGERS)]
        before = {each.low: await second.read(each.low) for each in ledgers}
        lost = before[ledgers[0].low].fragments[0].ensemble[0]
        hit = [number for number, metadata in before.items() if lost in metadata.bookies]
        cluster.lose(lost)

        async def chosen() -> dict[int, str]:
            records = await second.metadata.records(KIND)
            tasks = {int(key): Task(second.metadata, int(key), stored) for key, stored in records.items()}
            return {number: target for number, task in tasks.items() for target in task.by_place.values()}

        async def some_are_copied() -> bool:
            for number, target in (await chosen()).items():
                held = await second.bookies.copies(target, number, due)
                if isinstance(held, Holding) and GROUP <= len(held.entries) < ENTRIES:
                    return True
            return False

        async def nothing_is_recorded() -> bool:
            # A worker removes its record behind the mark.
            return not await second.metadata.records(KIND)

        with recoverers(tmp_path, 1, cluster.metadata_uri, SLOW_MIB) as (first,):
            for number in hit:
                await second.mark(number, lost)
            await second.until(some_are_copied)
            first.kill()
        begun = await chosen()
        assert begun, "some were not done when the first worker was killed"
        async with repairing(cluster) as third:
            await third.until_unmarked(*hit)
            await third.until(nothing_is_recorded)
            for number, target in begun.items():
                now = await third.read(number)
                assert now.bookies == before[number].bookies - {lost} | {target}
                for other in cluster.bookies.keys() - now.bookies - {lost}:
                    assert await third.bookies.copies(other, number, due) == Holding(BitMap64()), f"garbage at {other}"
            assert third.copied.entries < ENTRIES * len(hit), "what was there is not copied again"
        for ledger_id in ledgers:
            await check(client, ledger_id, ENTRIES)


@pytest.mark.each_store
async def test_the_choices_and_failures_of_others_count(store: Store) -> None:
    factory = create_factory(store.uri)
    await factory.initialize()
    metadata = factory.replication_metadata
    try:
        dead, other = Tasks(metadata), Tasks(metadata)
        await dead.listed([7])
        await other.listed([7])
        assert not await metadata.records(KIND)
        assert await dead.of(7).keep((0, 1), "b1", 5, fresh=True)
        await dead.of(7).failed()
        await dead.of(7).failed()
        # It is told where it would choose otherwise, and keeps what nobody has chosen.
        assert not await other.of(7).keep((0, 1), "b2", 5, fresh=True)
        assert (other.of(7).by_place, other.of(7).failures) == ({(0, 1): "b1"}, 2)
        assert await other.of(7).keep((5, 0), "b3", 5, fresh=True)
        assert await other.of(7).keep((0, 1), "b2", 5, fresh=True)
        await other.of(7).failed()
        # So is one that comes later, at its start, and one that comes back.
        late = Tasks(metadata)
        await late.listed([7])
        assert (late.of(7).by_place, late.of(7).failures) == ({(0, 1): "b2", (5, 0): "b3"}, 3)
        # What it held before it was chosen, and what it held for another ledger with the id, does not count.
        assert late.of(7).was_fresh((0, 1), "b2", 5)
        assert not late.of(7).was_fresh((0, 1), "b2", 6)
        assert await late.of(7).keep((5, 0), "b4", 5, fresh=False)
        assert not late.of(7).was_fresh((5, 0), "b4", 5)
        assert await late.of(7).keep((5, 0), "b3", 5, fresh=False)
        await dead.of(7).failed()
        assert (dead.of(7).by_place, dead.of(7).failures) == (late.of(7).by_place, 4)
        await late.of(8).failed()
        await other.done(7)
        assert list(await metadata.records(KIND)) == ["8"]
        # What is gone is made anew; what has no mark goes with the next look.
        assert await dead.of(7).keep((0, 1), "b2", 5, fresh=True)
        assert list(await metadata.records(KIND)) == ["7", "8"]
        await Tasks(metadata).listed([8])
        assert list(await metadata.records(KIND)) == ["8"]
    finally:
        await factory.close()


async def test_a_record_that_can_t_be_read_or_written_stops_nobody(store: Store) -> None:
    factory = create_factory(store.uri)
    await factory.initialize()
    metadata = factory.replication_metadata
    for damaged in (b"", b"[]", b'{"targets": [[1]], "failures": 1}', b'{"targets": 5, "failures": 1}'):
        await metadata.write_record(KIND, "7", damaged, -1)
        task = Task(metadata, 7)
        assert await task.keep((0, 1), "b1", 5, fresh=True)
        assert task.by_place == {(0, 1): "b1"}
    await factory.close()
    assert await task.keep((0, 2), "b2", 5, fresh=True)
    await task.failed()
    assert task.by_place == {(0, 1): "b1", (0, 2): "b2"}


async def test_the_pause_goes_by_failures_elsewhere_too() -> None:
    queue = RepairQueue()
    assert queue.failed(7, 0, 0.0, elsewhere=2) == 4 * FIRST_PAUSE_SECONDS
    assert queue.failed(7, 0, 100.0, elsewhere=0) == 8 * FIRST_PAUSE_SECONDS
