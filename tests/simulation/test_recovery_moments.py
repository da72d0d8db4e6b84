"""Cases of auto-recovery in which something else happens in the middle: deletion, collection, another client, a return.

Whole worlds without other faults, as in `test_recovery_cases`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from typing import Any

import pytest

from bookgate.bookie.replication.audits.audit import Audits
from bookgate.bookie.replication.audits.index_keeper import IndexKeeper, Named
from bookgate.bookie.replication.repairs.repair import LedgerRepair, Outcome
from bookgate.ledger.errors import NoSuchLedgerExistsOnMetadataServerException
from bookgate.ledger.ledger_id import LedgerId
from bookgate.ledger.metadata import LedgerMetadata, LedgerState
from bookgate.ledger.metadata_store import LedgerRecord
from bookgate.ledger.replication_store import LedgerLock, RecordKind
from tests.faults.memory_disk import nothing_survives
from tests.simulation.loop import CURRENT
from tests.simulation.memory_replication import MemoryReplication
from tests.simulation.metadata import MemoryLedgers
from tests.simulation.repair_bounds import copies_told
from tests.simulation.test_recovery_cases import (
    AT_LENGTH,
    SETTINGS,
    UNDER_WAY_SECONDS,
    Cluster,
    cluster_of,
    is_healed,
    mark_all,
)
from tests.simulation.world import World

ENTRIES = 6
LONGER_THAN_A_CALL = 12.0
"""Seconds: whoever was asked has not answered in time."""


async def everything_is_read(cluster: Cluster, ledger_id: LedgerId, entries: int) -> None:
    async def read() -> list[bytes]:
        async with await cluster.client.bookkeeper.open_ledger(ledger_id) as handle:
            return [entry.payload async for entry in handle.read(0, handle.last_add_confirmed)]

    assert await cluster.client.run(read()) == [b"entry %d" % number for number in range(entries)]


def one_to_lose(cluster: Cluster, *ledgers: LedgerId) -> str:
    """A member of all of them that is not the auditor."""
    members = set.intersection(*(cluster.members(each) for each in ledgers))
    return next(each for each in sorted(members) if each != cluster.auditor)


async def one_repairs(world: World) -> Cluster:
    """Of four bookies the first one is auditor and worker."""
    bookies = [world.bookie(f"bookie-{number}", **SETTINGS | {"auto_recovery": number == 1}) for number in range(1, 5)]
    for bookie in bookies:
        assert await bookie.start()
    return Cluster(world, bookies)


# --- a ledger that is deleted ------------------------------------------------------------------------------------


def deleted_at(step: int) -> int:
    """A marked ledger is deleted when the store is asked for its so-manieth change after a loss.

    Returns how many changes there were in all.
    """
    world = World(f"deleted at {step}")
    seen = 0

    async def main() -> None:
        cluster = await cluster_of(world, 4)
        deleted, left_open = await cluster.write(ENTRIES), await cluster.write(3, close=False)
        state = cluster.store.replication
        await cluster.until(lambda: state.votes)
        lost = one_to_lose(cluster, deleted, left_open)

        def took_a_step() -> None:
            nonlocal seen
            seen += 1
            if seen == step:
                cluster.store.changed(deleted, cluster.store.ledgers.pop(deleted), None)

        cluster.named(lost).kill()
        state.on_step.append(took_a_step)
        await cluster.until(lambda: is_healed(cluster, lost, left_open) and not state.locks)
        assert (deleted in cluster.store.ledgers) is (seen < step or not step)
        assert (RecordKind.UNRECOVERABLE_LEDGER, str(deleted.low)) not in state.records
        await everything_is_read(cluster, left_open, 3)

    world.run(main())
    return seen


def test_a_ledger_is_deleted_at_each_step() -> None:
    steps = deleted_at(0)
    assert steps > 10
    for step in range(1, steps + 1, 1 if AT_LENGTH else 3):
        deleted_at(step)


# --- the lock is lost, and somebody collects ---------------------------------------------------------------------


def test_what_a_collector_takes_between_the_last_copy_and_the_metadata_is_copied_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The worker's session ends there: the target's collector gets the lock, and finds copies that nobody names."""
    world = World("collected in between")
    asked, may_write = asyncio.Event(), asyncio.Event()
    wanted: list[LedgerMetadata] = []
    write = MemoryReplication.write_ledger

    async def write_late(
        self: MemoryReplication, lock: LedgerLock, metadata: LedgerMetadata, expected_version: int
    ) -> LedgerRecord:
        if not asked.is_set():
            wanted.append(metadata)
            self._state.end_sessions_of(CURRENT.get())
            self._state.switch(False)  # no other worker comes before the collector
            asked.set()
            await may_write.wait()
        return await write(self, lock, metadata, expected_version)

    monkeypatch.setattr(MemoryReplication, "write_ledger", write_late)

    async def main() -> None:
        cluster = await cluster_of(
            world, 4, gc_over_replicated_wait_seconds=2.0, gc_wait_seconds=1.0, gc_mass_deletion_ledgers=100
        )
        ledger_id = await cluster.write(ENTRIES)
        await cluster.until(lambda: cluster.store.replication.votes)
        before, lost = cluster.members(ledger_id), one_to_lose(cluster, ledger_id)
        cluster.named(lost).kill()
        await cluster.until(asked.is_set)
        (target,) = wanted[0].bookies - before
        number = ledger_id.low
        assert len(cluster.named(target).stored(nothing_survives)[number].entries) == ENTRIES
        await cluster.until(lambda: number not in cluster.named(target).stored())
        may_write.set()
        await asyncio.sleep(1.0)
        assert cluster.members(ledger_id) == before
        cluster.store.replication.switch(True)
        await cluster.until(lambda: lost not in cluster.members(ledger_id) and not cluster.store.replication.marks)
        for bookie_id in cluster.members(ledger_id):
            assert len(cluster.named(bookie_id).stored(nothing_survives)[number].entries) == ENTRIES, bookie_id

    world.run(main())


# --- who comes back, who is slow ---------------------------------------------------------------------------------


def test_a_bookie_that_is_back_while_its_ledgers_are_audited_keeps_them(monkeypatch: pytest.MonkeyPatch) -> None:
    """It was lost when the audit began; all is there, so nothing is marked, nor copied."""
    world = World("back during the scan")
    began, back, ended = asyncio.Event(), asyncio.Event(), asyncio.Event()
    copied: list[str] = []
    naming, of = IndexKeeper.naming, Audits.of

    async def naming_late(self: IndexKeeper, bookie_ids: Iterable[str]) -> Named | None:
        began.set()
        await back.wait()
        return await naming(self, bookie_ids)

    async def told(self: Audits, *which: Any, **options: Any) -> None:
        await of(self, *which, **options)
        ended.set()

    monkeypatch.setattr(IndexKeeper, "naming", naming_late)
    monkeypatch.setattr(Audits, "of", told)

    async def main() -> None:
        cluster = await cluster_of(world, 4)
        ledgers, state = [await cluster.write(1) for _ in range(5)], cluster.store.replication
        await cluster.until(lambda: state.votes)
        before = {ledger_id: cluster.members(ledger_id) for ledger_id in ledgers}
        lost = one_to_lose(cluster, ledgers[0])
        marked: list[int] = []
        state.on_mark.append(lambda number, _replicas: marked.append(number))
        cluster.named(lost).kill()
        await cluster.until(began.is_set)
        assert await cluster.named(lost).start()
        back.set()
        await cluster.until(ended.is_set)
        await asyncio.sleep(UNDER_WAY_SECONDS)
        assert not marked
        assert {ledger_id: cluster.members(ledger_id) for ledger_id in ledgers} == before
        assert not copied

    with copies_told(lambda _process, entries: copied.extend(map(str, entries))):
        world.run(main())


def test_of_two_lost_bookies_the_one_that_is_back_in_time_keeps_its_ledgers() -> None:
    """R13, whatever becomes of the other one."""
    world = World("two lost, one back")
    delay = 20

    async def main() -> None:
        cluster = await cluster_of(world, 5, lost_bookie_recovery_delay_seconds=delay)
        ledgers, state = [await cluster.write(2) for _ in range(12)], cluster.store.replication
        await cluster.until(lambda: state.votes)
        marked = set[str]()
        state.on_mark.append(lambda _number, replicas: marked.update(replicas))
        back, gone = [each.bookie_id for each in cluster.bookies if each.bookie_id != cluster.auditor][:2]
        kept = cluster.naming(back)
        assert cluster.naming(back, gone)
        for bookie_id in (back, gone):
            cluster.named(bookie_id).kill()
        await cluster.until(lambda: (RecordKind.MISSED_BOOKIE, back) in state.records)
        await asyncio.sleep(delay / 2)
        assert await cluster.named(back).start()
        await cluster.until(lambda: not cluster.naming(gone) and not state.marks)
        assert marked == {gone}
        assert {*kept} <= {*cluster.naming(back)}
        for ledger_id in ledgers:
            await everything_is_read(cluster, ledger_id, 2)

    world.run(main())


def test_the_last_copy_is_waited_for_where_it_is_slow() -> None:
    """R10: no answer in time is no lack, with two of three gone as ever."""
    world = World("one slow last copy")

    async def main() -> None:
        cluster = await cluster_of(world, 6)
        ledger_id, state = await cluster.write(ENTRIES), cluster.store.replication
        await cluster.until(lambda: state.votes)
        given_up: list[str] = []
        state.on_record.append(
            lambda kind, key, _: given_up.append(key) if kind is RecordKind.UNRECOVERABLE_LEDGER else None
        )
        *lost, slow = sorted(cluster.members(ledger_id))
        others = [each.name for each in cluster.bookies if each.bookie_id != slow]
        for round_ in range(3):
            for other in others:
                world.network.stall(cluster.named(slow).name, other, LONGER_THAN_A_CALL)
            for bookie_id in lost if round_ == 0 else ():
                cluster.named(bookie_id).kill()
            await asyncio.sleep(LONGER_THAN_A_CALL)
        assert cluster.members(ledger_id) >= {*lost}
        await cluster.until(lambda: not cluster.members(ledger_id) & {*lost} and not state.marks)
        assert slow in cluster.members(ledger_id)
        assert not given_up
        await everything_is_read(cluster, ledger_id, ENTRIES)

    world.run(main())


@pytest.mark.parametrize("moment", ["examined", "listed"])
def test_a_ledger_is_not_given_up_for_a_bookie_that_returns_during_its_repair(
    monkeypatch: pytest.MonkeyPatch, moment: str
) -> None:
    """R10: it has the only copies. It is back when the worker has looked, or while the worker lists the ledger."""
    world = World(f"back when {moment}")
    reached, back = asyncio.Event(), asyncio.Event()
    run, write_record = LedgerRepair.run, MemoryReplication.write_record

    async def come_back() -> None:
        reached.set()
        await back.wait()

    async def run_late(self: LedgerRepair, *circumstances: Any, **options: Any) -> Outcome:
        outcome = await run(self, *circumstances, **options)
        if outcome.findings.unrecoverable:
            await come_back()
        return outcome

    async def write_late(self: MemoryReplication, kind: RecordKind, *content: Any) -> int:
        if kind is RecordKind.UNRECOVERABLE_LEDGER:
            await come_back()
        return await write_record(self, kind, *content)

    if moment == "examined":
        monkeypatch.setattr(LedgerRepair, "run", run_late)
    else:
        monkeypatch.setattr(MemoryReplication, "write_record", write_late)

    async def main() -> None:
        cluster = await one_repairs(world)
        client, state = cluster.client, cluster.store.replication
        await cluster.until(lambda: state.votes)
        handle = await client.run(client.bookkeeper.create_ledger(2, 1, 1))
        for number in range(ENTRIES):
            await client.run(handle.append(b"entry %d" % number))
        await client.run(handle.close())
        lost = one_to_lose(cluster, handle.ledger_id)
        cluster.named(lost).kill()
        await cluster.until(reached.is_set)
        assert await cluster.named(lost).start()
        await asyncio.sleep(UNDER_WAY_SECONDS)
        back.set()
        await cluster.until(lambda: not state.marks)
        assert (RecordKind.UNRECOVERABLE_LEDGER, str(handle.ledger_id.low)) not in state.records
        await everything_is_read(cluster, handle.ledger_id, ENTRIES)

    world.run(main())


# --- another client ----------------------------------------------------------------------------------------------


def test_another_client_recovers_the_ledger_while_an_older_fragment_is_repaired() -> None:
    """Both go by the same record: neither undoes what the other has done."""
    world = World("recovered meanwhile")
    copying = asyncio.Event()

    async def main() -> None:
        cluster = await cluster_of(world, 5, lost_bookie_recovery_delay_seconds=5)
        client, state = cluster.client, cluster.store.replication
        await cluster.until(lambda: state.votes)
        handle = await client.run(client.bookkeeper.create_ledger(3, 3, 2))
        ledger_id = handle.ledger_id
        for number in range(3):
            await client.run(handle.append(b"entry %d" % number))
        lost = one_to_lose(cluster, ledger_id)
        cluster.named(lost).kill()
        for number in range(3, ENTRIES):
            await client.run(handle.append(b"entry %d" % number))
        assert len(cluster.store.ledgers[ledger_id].metadata.fragments) == 2
        await cluster.until(copying.is_set)
        assert cluster.store.ledgers[ledger_id].metadata.state is LedgerState.OPEN
        other = world.client("another")
        await other.run(other.bookkeeper.open_ledger(ledger_id, recovery=True))
        await cluster.until(lambda: lost not in cluster.members(ledger_id) and not state.marks)
        metadata = cluster.store.ledgers[ledger_id].metadata
        assert (metadata.state, metadata.last_entry_id) == (LedgerState.CLOSED, ENTRIES - 1)
        await everything_is_read(cluster, ledger_id, ENTRIES)

    with copies_told(lambda _process, _entries: copying.set()):
        world.run(main())


# --- very many marks ---------------------------------------------------------------------------------------------


@pytest.mark.long
def test_one_endangered_ledger_among_a_hundred_thousand_marks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each is read once, many together, and the one is next."""
    world = World("very many marks")
    count, first = 100_000, 1 << 31
    rounds = reads = 0

    async def read_together(self: MemoryLedgers, ledger_ids: Sequence[LedgerId]) -> list[object]:
        nonlocal rounds, reads
        rounds, reads = rounds + 1, reads + len(ledger_ids)
        await self._store.request()
        await self._store.answer()
        return [
            self._store.ledgers.get(each) or NoSuchLedgerExistsOnMetadataServerException(str(each))
            for each in ledger_ids
        ]

    monkeypatch.setattr(MemoryLedgers, "read_many", read_together)

    async def main() -> None:
        cluster = await one_repairs(world)
        ledger_id, state = await cluster.write(2), cluster.store.replication
        await cluster.until(lambda: state.votes)
        mark_all(state, range(first, first + count))
        lost = one_to_lose(cluster, ledger_id)
        cluster.named(lost).kill()
        await cluster.until(lambda: ledger_id.low in state.marks)
        marked_at = world.now
        await cluster.until(lambda: lost not in cluster.members(ledger_id))
        assert world.now - marked_at < 60
        assert reads < 2 * count
        assert rounds < count / 100

    world.run(main())
