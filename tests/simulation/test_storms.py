"""Bookies that are missed all at once: what may have its last copy is repaired, the rest when somebody orders it."""

from __future__ import annotations

import asyncio

from bookgate.bookie.replication.audits.audit_rules import HELD_BACK
from bookgate.ledger.replication_store import RecordKind
from tests.simulation.test_recovery_cases import cluster_of
from tests.simulation.world import World

SHARE = 0.3
"""Two of six bookies are a storm."""
DELAY_SECONDS = 30
"""Two sessions that end one after the other are both over before it is."""


def test_in_a_storm_only_what_has_one_copy_left_is_repaired() -> None:
    world = World("a storm")

    async def main() -> None:
        cluster = await cluster_of(world, 6, mass_loss_share=SHARE, lost_bookie_recovery_delay_seconds=DELAY_SECONDS)
        for _ in range(30):
            await cluster.write(2)
        state = cluster.store.replication
        await cluster.until(lambda: state.votes)
        one, other = [each.bookie_id for each in cluster.bookies if each.bookie_id != cluster.auditor][:2]
        endangered, held = cluster.naming(one, other), {*cluster.naming(one), *cluster.naming(other)}
        held -= {*endangered}
        assert endangered
        assert held
        marked: set[int] = set()
        state.on_mark.append(lambda number, _replicas: marked.add(number))
        for name in (one, other):
            cluster.named(name).kill()
        await cluster.until(lambda: marked and not state.marks)
        assert marked == {each.low for each in endangered}
        # They have all their copies again.
        assert not {*cluster.naming(one), *cluster.naming(other)} & {*endangered}
        assert (RecordKind.PROGRESS, HELD_BACK) in state.records
        await asyncio.sleep(300)
        assert {*cluster.naming(one), *cluster.naming(other)} == held
        state.set_delay(DELAY_SECONDS)
        await cluster.until(lambda: not cluster.naming(one) and not cluster.naming(other) and not state.marks)

    world.run(main())


def test_with_too_few_bookies_an_entry_gets_what_copies_it_can_get() -> None:
    world = World("too few bookies")

    async def main() -> None:
        cluster = await cluster_of(world, 4, mass_loss_share=1.0)
        for _ in range(12):
            await cluster.write(2)
        await cluster.until(lambda: cluster.store.replication.votes)
        one, other = [each.bookie_id for each in cluster.bookies if each.bookie_id != cluster.auditor][:2]
        (spare,) = {each.bookie_id for each in cluster.bookies} - {one, other, cluster.auditor}
        both = cluster.naming(one, other)
        assert any(spare not in cluster.members(each) for each in both)
        for name in (one, other):
            cluster.named(name).kill()
        # Each has two copies, on all that there are, and waits for a third bookie.
        await cluster.until(lambda: all({spare, cluster.auditor} <= cluster.members(each) for each in both))
        assert {each.low for each in both} <= cluster.store.replication.marks.keys()

    world.run(main())
