"""Copies that no metadata names go under the ledger's lock, and only when nothing speaks against it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import pytest_asyncio

from bookgate.bookie.collection.garbage_collector import GarbageCollector
from bookgate.bookie.collection.over_replicated import is_over_replicated
from bookgate.bookie.collection.rules import Trigger
from bookgate.gateway.stores.drivers import create_factory
from bookgate.ledger.ledger_id import LedgerId
from bookgate.ledger.metadata_store import LedgerManagerFactory, Membership
from tests.stores import made
from tests.unit.bookie.collection.test_garbage_collector import ELSEWHERE, FAST, HERE, metadata
from tests.unit.bookie.storage.storage_support import OpenStorage, opened

pytestmark = pytest.mark.asyncio

EVERY = 86_400.0


@pytest.fixture
def bookie(tmp_path: Path) -> Iterator[OpenStorage]:
    with opened(tmp_path / "bookie") as bookie:
        for number in range(10):
            bookie.add(number, *range(3))
        bookie.storage.checkpoint()
        yield bookie


class World(NamedTuple):
    """A bookie with ledgers 0 to 9, of which 0 was moved elsewhere, in a real store that another process uses too."""

    bookie: OpenStorage
    store: LedgerManagerFactory
    other: LedgerManagerFactory
    collector: GarbageCollector
    clock: list[float]

    async def passes(self, count: int = 2) -> list[int]:
        """So many passes, a period apart; what is held then."""
        for _ in range(count):
            self.clock[0] += EVERY
            await self.collector.collect(Trigger())
        return list(self.bookie.storage.ledger_ids())


MakeWorld = Callable[..., Awaitable[World]]


@pytest_asyncio.fixture
async def make_world(bookie: OpenStorage, tmp_path: Path) -> AsyncIterator[MakeWorld]:
    factories: list[LedgerManagerFactory] = []

    async def make(**changes: Any) -> World:
        uri = made(f"sqlite://{tmp_path}/metadata.db")
        for _ in range(2):
            factory = create_factory(uri)
            await factory.initialize()
            factories.append(factory)
        store, other = factories
        for number in range(10):
            ledger = metadata(HERE if number else ELSEWHERE, closed=True)
            await store.ledger_manager.create(LedgerId.unscoped(number), ledger)
        instance = await store.registration_manager.cluster_instance_id()
        await store.registration_manager.write_cookie(HERE, b"cookie", None)
        clock = [0.0]
        config = replace(FAST, **{"over_replicated_wait_seconds": EVERY, **changes})
        collector = GarbageCollector(config, bookie.storage, store, Membership(HERE, instance), clock=lambda: clock[0])
        return World(bookie, store, other, collector, clock)

    yield make
    for factory in factories:
        await factory.close()


ALL = list(range(10))
BUT_THE_FIRST = list(range(1, 10))


async def test_what_was_moved_elsewhere_goes_at_the_second_pass(make_world: MakeWorld) -> None:
    world = await make_world()
    assert await world.passes(1) == ALL
    assert await world.passes(1) == BUT_THE_FIRST
    assert world.collector.statistics.over_replicated_ledgers == 1
    assert await world.other.replication_metadata.lock_holders() == {}


async def test_nothing_goes_unless_it_is_wanted(make_world: MakeWorld) -> None:
    world = await make_world(over_replicated_wait_seconds=0.0)
    assert await world.passes(4) == ALL


async def test_runs_within_a_period_are_no_passes(make_world: MakeWorld) -> None:
    world = await make_world()
    assert await world.passes(1) == ALL
    for _ in range(5):
        world.clock[0] += EVERY / 6
        await world.collector.collect(Trigger())
    assert list(world.bookie.storage.ledger_ids()) == ALL


async def test_locked_ledger_stays(make_world: MakeWorld) -> None:
    """Somebody may be copying it to this very bookie."""
    world = await make_world()
    await world.passes(1)
    lock = await world.other.replication_metadata.try_lock(0, "worker")
    assert lock is not None
    assert await world.passes(1) == ALL
    assert await world.other.replication_metadata.is_held(lock)
    await world.other.replication_metadata.release(lock)
    assert await world.passes(1) == BUT_THE_FIRST


async def test_ledger_that_names_the_bookie_again_stays(make_world: MakeWorld) -> None:
    world = await make_world()
    await world.passes(1)
    await world.other.ledger_manager.write(LedgerId.unscoped(0), metadata(HERE, closed=True), 0)
    assert await world.passes(1) == ALL


async def test_metadata_is_asked_again_under_the_lock(make_world: MakeWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    """A mover has named this bookie just before it gave the lock back."""
    world = await make_world()
    await world.passes(1)
    replication = world.store.replication_metadata
    try_lock = replication.try_lock

    async def after_a_move(ledger_id: int, holder: str) -> Any:
        await world.other.ledger_manager.write(LedgerId.unscoped(0), metadata(HERE, closed=True), 0)
        return await try_lock(ledger_id, holder)

    monkeypatch.setattr(replication, "try_lock", after_a_move)
    assert await world.passes(1) == ALL
    assert await world.other.replication_metadata.lock_holders() == {}


async def test_a_suspension_during_the_pass_keeps_the_ledger(
    make_world: MakeWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = await make_world()
    await world.passes(1)
    replication = world.store.replication_metadata
    try_lock = replication.try_lock

    async def after_a_suspension(ledger_id: int, holder: str) -> Any:
        world.collector.suspend_ledgers()
        return await try_lock(ledger_id, holder)

    monkeypatch.setattr(replication, "try_lock", after_a_suspension)
    assert await world.passes(1) == ALL
    assert await world.other.replication_metadata.lock_holders() == {}


async def test_lost_lock_keeps_the_ledger(make_world: MakeWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    world = await make_world()
    await world.passes(1)
    replication = world.store.replication_metadata
    monkeypatch.setattr(replication, "is_held", lambda lock: _no())
    assert await world.passes(1) == ALL


async def _no() -> bool:
    return False


async def test_ledger_that_is_written_to_meanwhile_stays(
    make_world: MakeWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = await make_world()
    await world.passes(1)
    replication = world.store.replication_metadata
    is_held = replication.is_held

    async def after_a_write(lock: Any) -> bool:
        world.bookie.add(0, 99)
        return await is_held(lock)

    monkeypatch.setattr(replication, "is_held", after_a_write)
    assert await world.passes(1) == ALL


async def test_open_ledger_stays(make_world: MakeWorld) -> None:
    world = await make_world()
    await world.other.ledger_manager.write(LedgerId.unscoped(0), metadata(ELSEWHERE), 0)
    assert await world.passes(3) == ALL


async def test_another_clusters_metadata_take_nothing(make_world: MakeWorld) -> None:
    world = await make_world()
    await world.passes(1)
    await world.store.registration_manager.remove_cookie(HERE, 0)
    assert await world.passes(2) == ALL


async def test_most_of_what_is_held_is_not_believed(make_world: MakeWorld) -> None:
    world = await make_world(mass_deletion_ledgers=6)
    for number in range(1, 7):
        await world.other.ledger_manager.write(LedgerId.unscoped(number), metadata(ELSEWHERE, closed=True), 0)
    assert await world.passes(3) == ALL


async def test_any_fragment_that_names_the_bookie_keeps_the_ledger() -> None:
    both = replace(
        metadata(HERE, closed=True),
        fragments=(*metadata(HERE).fragments, replace(metadata(ELSEWHERE).fragments[0], first_entry_id=5)),
    )
    assert not is_over_replicated(both, HERE)
    assert is_over_replicated(both, "third:3181")


async def test_a_surplus_copy_of_a_scoped_ledger_goes_and_that_of_its_lower_half_stays(make_world: MakeWorld) -> None:
    """And the other way round: whichever of two ledgers of one lower half was moved, that one goes."""
    world = await make_world()
    moved, kept = LedgerId(7, 1), LedgerId(7, 0)
    for ledger_id, ensemble in ((moved, ELSEWHERE), (kept, HERE)):
        world.bookie.add(ledger_id.number, *range(3))
        await world.store.ledger_manager.create(ledger_id, metadata(ensemble, closed=True))
    world.bookie.storage.checkpoint()
    assert await world.passes() == BUT_THE_FIRST
    assert list(world.bookie.storage.scoped_ledgers()) == [kept.number]
    assert world.collector.statistics.over_replicated_ledgers == 2
    assert await world.other.replication_metadata.lock_holders() == {}


async def test_a_locked_scoped_ledger_stays(make_world: MakeWorld) -> None:
    """A lock on the ledger of its lower half is another one's."""
    world = await make_world()
    locked, free = LedgerId(7, 1), LedgerId(8, 1)
    for ledger_id in (locked, free):
        world.bookie.add(ledger_id.number, 0)
        await world.store.ledger_manager.create(ledger_id, metadata(ELSEWHERE, closed=True))
    world.bookie.storage.checkpoint()
    lock = await world.other.replication_metadata.try_lock(locked.number, "another")
    assert lock is not None
    assert await world.passes() == BUT_THE_FIRST
    assert list(world.bookie.storage.scoped_ledgers()) == [locked.number]
