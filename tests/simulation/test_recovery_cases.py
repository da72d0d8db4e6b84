"""Cases of auto-recovery that need their moment: the switch at each step, fail-over in the delay, thousands of marks.

Whole worlds without other faults, in which one thing is made to happen exactly then.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Iterable, Sequence

import pytest

from bookgate.ledger.errors import BKException
from bookgate.ledger.ledger_id import LedgerId
from bookgate.ledger.metadata import LedgerState
from bookgate.ledger.metadata_store import Versioned
from bookgate.ledger.replication import UnderreplicatedLedger
from bookgate.ledger.replication_store import RecordKind
from bookgate.thinclient.client import BookKeeper
from tests.simulation.memory_replication import ReplicationState
from tests.simulation.metadata import MemoryMetadata
from tests.simulation.repair_bounds import copies_told
from tests.simulation.simulated_bookie import SimulatedBookie
from tests.simulation.world import World

GRACE_SECONDS = 2.0
SETTINGS: dict[str, object] = {
    "auto_recovery": True,
    "lost_bookie_recovery_delay_seconds": 1,
    "open_ledger_recovery_grace_seconds": GRACE_SECONDS,
    "replica_check_interval_seconds": 0,
    "scrub_rate_mb_per_second": 0,
}
HEALED_SECONDS = 200.0
AT_LENGTH = bool(os.environ.get("BOOKGATE_RECOVERY"))
"""`make test-recovery` tries every step, `make test` every other one."""
UNDER_WAY_SECONDS = 1.0
"""What was under way when auto-recovery was disabled has ended."""
DISABLED_SECONDS = 40.0


async def written(client: BookKeeper, entries: int, *, close: bool = True) -> LedgerId:
    handle = await client.create_ledger(3, 3, 2)
    for number in range(entries):
        await handle.append(b"entry %d" % number)
    if close:
        await handle.close()
    return handle.ledger_id


class Cluster:
    """Bookies that repair, and the store that all of them use."""

    def __init__(self, world: World, bookies: Sequence[SimulatedBookie]) -> None:
        assert isinstance(world.metadata, MemoryMetadata)
        self.world = world
        self.store = world.metadata
        self.bookies = bookies
        self.client = world.client("client")

    async def write(self, entries: int, *, close: bool = True) -> LedgerId:
        return await self.client.run(written(self.client.bookkeeper, entries, close=close))

    def members(self, ledger_id: LedgerId) -> set[str]:
        return set(self.store.ledgers[ledger_id].metadata.bookies)

    def naming(self, *bookie_ids: str) -> list[LedgerId]:
        """Ledgers that name all of them."""
        return [ledger_id for ledger_id in self.store.ledgers if self.members(ledger_id) >= {*bookie_ids}]

    @property
    def auditor(self) -> str:
        return next(iter(self.store.replication.votes.values()))

    def named(self, bookie_id: str) -> SimulatedBookie:
        return next(each for each in self.bookies if each.bookie_id == bookie_id)

    async def until(self, holds: Callable[[], object], seconds: float = HEALED_SECONDS) -> None:
        async with asyncio.timeout(seconds):
            while not holds():  # noqa: ASYNC110 - state that tells nobody
                await asyncio.sleep(0.1)


async def cluster_of(world: World, bookies: int, **settings: object) -> Cluster:
    return Cluster(world, await world.start_bookies(bookies, **{**SETTINGS, **settings}))


def mark_all(state: ReplicationState, numbers: Iterable[int]) -> None:
    """As if they had been marked without a bookie's name."""
    for number in numbers:
        state.marks[number] = Versioned(UnderreplicatedLedger(number), 0)


def disabled_at(step: int) -> int:
    """Auto-recovery is disabled when the store is asked for its so-manieth change after a loss, for a while.

    Returns how many changes there were in all.
    """
    world = World(f"disabled at {step}")
    seen = 0
    done: list[tuple[float, str]] = []

    async def main() -> None:
        cluster = await cluster_of(world, 4)
        closed, left_open = await cluster.write(6), await cluster.write(3, close=False)
        state = cluster.store.replication
        await cluster.until(lambda: state.votes)
        lost = next(
            each for each in sorted(cluster.members(closed) & cluster.members(left_open)) if each != cluster.auditor
        )

        def took_a_step() -> None:
            nonlocal seen
            seen += 1
            if seen == step:
                state.switch(False)

        state.on_mark.append(lambda number, _replicas: done.append((world.now, f"ledger {number} is marked")))
        state.on_repair.append(lambda before, _after: done.append((world.now, f"ledger {before.ledger_id} is written")))
        cluster.named(lost).kill()
        state.on_step.append(took_a_step)
        await cluster.until(lambda: not state.enabled or is_healed(cluster, lost, left_open))
        if not state.enabled:
            disabled = world.now
            await asyncio.sleep(DISABLED_SECONDS)
            late = [each for each in done if each[0] > disabled + UNDER_WAY_SECONDS]
            assert not late, f"disabled at {disabled:.2f} s, before change {step}: {late}"
            state.switch(True)
        await cluster.until(lambda: is_healed(cluster, lost, left_open))
        for ledger_id, entries in ((closed, 6), (left_open, 3)):
            reader = await cluster.client.run(cluster.client.bookkeeper.open_ledger(ledger_id))
            assert reader.last_add_confirmed == entries - 1

    with copies_told(lambda _process, entries: done.append((world.now, f"{len(entries)} copies are sent"))):
        world.run(main())
    return seen


def is_healed(cluster: Cluster, lost: str, left_open: LedgerId) -> bool:
    ledgers = cluster.store.ledgers
    return (
        not any(lost in record.metadata.bookies for record in ledgers.values())
        and ledgers[left_open].metadata.state is LedgerState.CLOSED
        and not cluster.store.replication.marks
    )


def test_auto_recovery_is_disabled_at_each_step() -> None:
    steps = disabled_at(0)
    assert steps > 10
    for step in range(1, steps + 1, 1 if AT_LENGTH else 2):
        disabled_at(step)


@pytest.mark.parametrize("back", [True, False], ids=["it comes back", "it stays away"])
def test_an_auditor_that_takes_over_in_the_delay_goes_on_with_it(back: bool) -> None:
    """R13: not earlier, since a bookie may be back in time; nor later, as if the loss had only just come."""
    world = World(f"fail-over, {back}")
    delay = 60

    async def main() -> None:
        cluster = await cluster_of(world, 5, lost_bookie_recovery_delay_seconds=delay)
        ledger_id, state = await cluster.write(3), cluster.store.replication
        marked: list[tuple[float, tuple[str, ...]]] = []
        state.on_mark.append(lambda _number, replicas: marked.append((world.now, tuple(replicas))))
        await cluster.until(lambda: state.votes)
        lost = next(each for each in sorted(cluster.members(ledger_id)) if each != cluster.auditor)
        cluster.named(lost).kill()
        await cluster.until(lambda: (RecordKind.MISSED_BOOKIE, lost) in state.records)
        missed_at, terms = world.now, [cluster.auditor]
        for _ in range(3):
            await asyncio.sleep(delay / 4)
            # Its session ends; it runs on, and is a candidate again.
            state.end_sessions_of(cluster.named(terms[-1]).process)  # type: ignore[arg-type]
            await cluster.until(lambda: state.votes and cluster.auditor != terms[-1])
            terms.append(cluster.auditor)
        assert len(set(terms)) > 1
        assert not marked
        if back:
            await cluster.named(lost).start()
            await asyncio.sleep(2 * delay)
            assert not marked
            assert lost in cluster.members(ledger_id)
            return
        await cluster.until(lambda: lost not in cluster.members(ledger_id))
        assert {replicas for _, replicas in marked} == {(lost,)}
        assert delay - 1 < marked[0][0] - missed_at < delay + 5

    world.run(main())


def test_what_is_endangered_does_not_wait_for_all_that_was_marked_before() -> None:
    """A bookie is lost, and while its ledgers get their copies one after the other a second one is."""
    world = World("two losses")
    ledgers, deleted = 150, range(2_000_000, 2_000_050)

    async def main() -> None:
        cluster = await cluster_of(world, 6, replication_tasks=1, replication_rate_mb_per_second=0.02)
        for _ in range(ledgers):
            await cluster.write(2)
        state = cluster.store.replication
        first = cluster.bookies[0].bookie_id
        before = cluster.naming(first)
        cluster.named(first).kill()
        await cluster.until(lambda: len(cluster.naming(first)) < len(before) - 5)
        mark_all(state, deleted)
        second = next(each.bookie_id for each in cluster.bookies[1:] if each.bookie_id != cluster.auditor)
        cluster.named(second).kill()
        await cluster.until(lambda: (RecordKind.MISSED_BOOKIE, second) in state.records)
        assert len(cluster.naming(first, second)) > 5
        await cluster.until(lambda: not cluster.naming(first, second))
        assert len(cluster.naming(first)) > 5
        assert state.marks.keys() >= {*deleted}
        await cluster.until(lambda: not cluster.naming(first) and not cluster.naming(second) and not state.marks)

    world.run(main())


def test_a_writer_that_slept_finds_nobody_under_a_reused_id() -> None:
    """R9: most of its ensemble was given up, one bookie after the other, and new ones have got their ids."""
    world = World("reused ids")

    async def main() -> None:
        cluster = await cluster_of(world, 7)
        store, sleeper = cluster.store, world.client("sleeper")
        handle = await sleeper.run(sleeper.bookkeeper.create_ledger(3, 3, 2))
        await sleeper.run(handle.append(b"before"))
        ledger_id = handle.ledger_id
        *given_up, fenced = sorted(cluster.members(ledger_id))
        for bookie_id in given_up:
            cluster.named(bookie_id).kill()
            await cluster.until(lambda: not cluster.naming(bookie_id) and not store.replication.marks)  # noqa: B023
            store.cookies.pop(bookie_id)
        assert store.ledgers[ledger_id].metadata.state is LedgerState.CLOSED
        for bookie_id in given_up:
            bookie = cluster.named(bookie_id)
            store.lead(bookie.name, None)
            bookie.wipe()
            assert await bookie.start()
        # The only one that knows of the fence can't tell.
        cluster.named(fenced).pause()
        with pytest.raises(BKException):
            await sleeper.run(handle.append(b"after"))
        reader = await cluster.client.run(cluster.client.bookkeeper.open_ledger(ledger_id))
        assert reader.last_add_confirmed == 0
        # They are as good as any for what is written now.
        while not all(any(each in cluster.members(ledger) for ledger in store.ledgers) for each in given_up):
            await cluster.write(2)

    world.run(main())
