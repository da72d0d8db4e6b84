"""Entries that a trim has deleted leave index and entry logs; nothing at or above a watermark ever does (U7)."""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import pytest_asyncio

from bookgate.bookie.collection.garbage_collector import GarbageCollector
from bookgate.bookie.collection.rules import Trigger
from bookgate.bookie.collection.trimmed_ledgers import Watermarks
from bookgate.gateway.stores.drivers import create_factory
from bookgate.ledger.errors import MetaStoreException
from bookgate.ledger.ledger_id import LedgerId
from bookgate.ledger.metadata import Fragment, LedgerMetadata
from bookgate.ledger.metadata_store import LedgerManagerFactory, Membership
from bookgate.ledger.unbounded import begin_fragment, create_unbounded, trim
from bookgate.ledger.wire.messages import AddRequest
from tests.faults.memory_disk import MemoryDisk, everything_survives, nothing_survives, some_survive
from tests.stores import made
from tests.unit.bookie.collection.collection_support import Collection
from tests.unit.bookie.collection.test_garbage_collector import FAST, HERE
from tests.unit.bookie.storage.storage_support import KEY, OpenStorage, Token, opened, packet

LEDGER, ORDINARY = 5, 6
ID = LedgerId.unscoped(LEDGER)
PERIOD = FAST.wait_seconds
SMALL_LOGS = 4096


def add(bookie: OpenStorage, *entry_ids: int, size: int = 200) -> None:
    """Adds at term 1, each entry with a LAC that covers those before it."""
    for entry_id in entry_ids:
        token = object()
        content = packet(LEDGER, entry_id, size, lac=entry_id - 1)
        request = AddRequest(1, LEDGER, entry_id, KEY, content, term=1)
        bookie.storage.writer.add_at_term(bookie.ledger(LEDGER), request, Token(token))
        bookie.acks.wait_for(token)


def held(bookie: OpenStorage, number: int = LEDGER) -> list[int]:
    reader = bookie.storage.reader
    listed = [first + index for first, count in reader.entry_ids(bookie.ledger(number)) for index in range(count)]
    for entry_id in listed:
        reader.read_entry(bookie.ledger(number), entry_id)
    return listed


@pytest.fixture(params=["interleaved", "db"])
def storage(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def test_entries_below_go_and_the_last_one_stays(tmp_path: Path, storage: str) -> None:
    with opened(tmp_path, storage=storage) as bookie:
        add(bookie, *range(8))
        bookie.add(ORDINARY, *range(8))
        assert not bookie.storage.delete_below(LEDGER, 3), "nothing of it is in the index yet"
        bookie.storage.checkpoint()
        assert bookie.storage.delete_below(LEDGER, 3)
        assert not bookie.storage.delete_below(LEDGER, 3)
        assert held(bookie) == [3, 4, 5, 6, 7]
        assert bookie.storage.delete_below(LEDGER, 100)
        assert held(bookie) == [7]
        add(bookie, 8, 9)
    for _ in range(2):
        with opened(tmp_path, storage=storage) as bookie:
            assert held(bookie) == [7, 8, 9]
            assert held(bookie, ORDINARY) == list(range(8))
            assert bookie.ledger(LEDGER).term == 1
            assert bookie.storage.limbo() == []


def test_an_index_file_gives_its_space_back(tmp_path: Path) -> None:
    """An endless ledger's file must not grow for ever."""
    with opened(tmp_path) as bookie:
        add(bookie, 0, 50_000, 100_000, 200_000, 200_001)
        bookie.storage.checkpoint()
        (file,) = (tmp_path / "ledgers").rglob("5.idx")
        before = file.stat().st_blocks
        bookie.storage.delete_below(LEDGER, 200_000)
        assert held(bookie) == [200_000, 200_001]
        assert file.stat().st_blocks < before


def test_a_crash_at_any_operation_takes_nothing_above_the_watermark(tmp_path: Path) -> None:
    """Whatever of a trim reaches the disk, the entries that stay are there, in two lives after it."""
    disk = MemoryDisk(tmp_path / "journal" / "current", tmp_path / "ledgers" / "current")
    found: dict[int, tuple[str, MemoryDisk]] = {}

    def look(operation: Any) -> None:
        for survival in (nothing_survives, everything_survives, some_survive(operation.number)):
            left = disk.after_power_loss(survival)
            found.setdefault(left.digest(), (str(operation), left))

    bookie = OpenStorage(tmp_path, disk, entry_log_max_bytes=SMALL_LOGS, journal_pre_alloc_bytes=4096)
    add(bookie, *range(30))
    bookie.storage.checkpoint()
    collection = Collection(bookie.storage, disk)
    disk.on_operation = look
    bookie.storage.delete_below(LEDGER, 20)
    collection.logs.trimmed = frozenset({LEDGER})
    collection.run()
    disk.on_operation = lambda operation: None
    assert held(bookie) == list(range(20, 30))
    bookie.storage.close()
    assert len(found) > 5
    for what, left in found.values():
        for _ in range(2):
            again = OpenStorage(tmp_path, left, journal_pre_alloc_bytes=4096)
            try:
                assert set(range(20, 30)) <= set(held(again)), what
                assert again.storage.limbo() == [], what
            finally:
                again.storage.close()


# Runs


class World(NamedTuple):
    bookie: OpenStorage
    store: LedgerManagerFactory
    collector: GarbageCollector
    clock: list[float]

    async def passes(self, count: int, trigger: Trigger | None = None) -> list[int]:
        for _ in range(count):
            self.clock[0] += PERIOD
            await self.collector.collect(trigger or Trigger())
        return held(self.bookie)

    async def trim(self, before: int) -> None:
        record = await self.store.ledger_manager.read(ID)
        await self.store.ledger_manager.write(ID, trim(record.metadata, before), record.version)


MakeWorld = Callable[..., Awaitable[World]]


def unbounded(*firsts: int) -> LedgerMetadata:
    """One fragment after the other, each on this bookie."""
    found = create_unbounded(LedgerMetadata(1, 1, 1, (Fragment(0, (HERE,)),)))
    for first in firsts:
        found = begin_fragment(found, Fragment(first, (HERE if first % 2 == 0 else "other:1",)), first)
    return found


@pytest_asyncio.fixture
async def make_world(tmp_path: Path, storage: str) -> AsyncIterator[MakeWorld]:
    factories: list[LedgerManagerFactory] = []
    with opened(tmp_path / "bookie", storage=storage, entry_log_max_bytes=SMALL_LOGS) as bookie:

        async def make(**changes: Any) -> World:
            add(bookie, *range(100))
            bookie.add(ORDINARY, *range(10))
            bookie.storage.checkpoint()
            factory = create_factory(made(f"sqlite://{tmp_path}/metadata.db"))
            await factory.initialize()
            factories.append(factory)
            manager, registration = factory.ledger_manager, factory.registration_manager
            await manager.create(ID, unbounded(51, 90))
            await manager.create(LedgerId.unscoped(ORDINARY), LedgerMetadata(1, 1, 1, (Fragment(0, (HERE,)),)))
            instance = await registration.cluster_instance_id()
            await registration.write_cookie(HERE, b"cookie", None)
            clock = [0.0]
            config = replace(FAST, **changes)
            membership = Membership(HERE, instance)
            collector = GarbageCollector(config, bookie.storage, factory, membership, clock=lambda: clock[0])
            return World(bookie, factory, collector, clock)

        yield make
    for factory in factories:
        await factory.close()


EVERYTHING = list(range(100))


@pytest.mark.asyncio
async def test_what_is_trimmed_goes_at_the_second_pass_with_its_logs(make_world: MakeWorld) -> None:
    world = await make_world()
    assert await world.passes(2) == EVERYTHING
    logs = world.bookie.storage.stores[0].logs.complete_logs()
    await world.trim(80)
    assert await world.passes(1) == EVERYTHING
    assert await world.passes(1) == EVERYTHING[80:]
    assert world.collector.statistics.trimmed_ledgers == 1
    left = world.bookie.storage.stores[0].logs.complete_logs()
    assert len(left) < len(logs) / 2, (logs, left)
    assert held(world.bookie, ORDINARY) == list(range(10))
    assert await world.passes(3) == EVERYTHING[80:]
    assert world.collector.statistics.failed_deletions == 0


@pytest.mark.asyncio
async def test_a_forced_run_does_not_wait(make_world: MakeWorld) -> None:
    world = await make_world()
    await world.trim(80)
    assert await world.passes(1, Trigger(ledgers=True)) == EVERYTHING[80:]


@pytest.mark.asyncio
async def test_a_watermark_that_rises_is_followed_and_one_that_falls_costs_nothing(make_world: MakeWorld) -> None:
    world = await make_world()
    before = await world.store.ledger_manager.read(ID)
    for watermark in (10, 20, 30, 40):
        await world.trim(watermark)
        await world.passes(1)
    assert held(world.bookie)[0] == 30
    current = await world.store.ledger_manager.read(ID)
    await world.store.ledger_manager.write(ID, before.metadata, current.version)
    assert (await world.passes(3))[0] == 30


@pytest.mark.asyncio
async def test_nothing_goes_where_the_metadata_are_not_certain(make_world: MakeWorld) -> None:
    """Another cluster's store, ledgers suspended, a ledger that can't be read, one that is ordinary there."""
    world = await make_world()
    await world.trim(80)
    record = await world.store.ledger_manager.read(ID)
    world.collector.suspend_ledgers()
    assert await world.passes(3) == EVERYTHING
    world.collector.resume_ledgers()
    await world.store.ledger_manager.remove(ID)
    ordinary = LedgerMetadata(1, 1, 1, (Fragment(50, (HERE,)),))
    await world.store.ledger_manager.create(ID, ordinary)
    assert await world.passes(3) == EVERYTHING
    await world.store.ledger_manager.remove(ID)
    await world.store.ledger_manager.create(ID, record.metadata)
    elsewhere = Membership(HERE, "another cluster")
    stranger = GarbageCollector(FAST, world.bookie.storage, world.store, elsewhere, clock=lambda: world.clock[0])
    assert await world._replace(collector=stranger).passes(3) == EVERYTHING
    assert await world.passes(3) == EVERYTHING[80:], "its own may still"


@pytest.mark.asyncio
async def test_a_suspension_during_the_pass_keeps_the_entries(
    make_world: MakeWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = await make_world()
    await world.trim(80)
    await world.passes(1)
    read_many = world.store.ledger_manager.read_many

    async def before_a_suspension(ids: Sequence[LedgerId]) -> Any:
        world.collector.suspend_ledgers()
        return await read_many(ids)

    monkeypatch.setattr(world.store.ledger_manager, "read_many", before_a_suspension)
    assert await world.passes(1) == EVERYTHING


@pytest.mark.asyncio
async def test_nothing_goes_by_a_store_that_does_not_catch_up(
    make_world: MakeWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A follower's store may be that of a ledger that was deleted and made again since."""
    world = await make_world()
    await world.trim(80)

    async def lags(_position: object) -> None:
        raise MetaStoreException("it is behind")

    monkeypatch.setattr(world.store, "catch_up", lags)
    assert await world.passes(3) == EVERYTHING
    monkeypatch.undo()
    assert await world.passes(2) == EVERYTHING[80:]


@pytest.mark.asyncio
async def test_what_is_left_of_a_ledger_that_moved_on_pins_no_log(make_world: MakeWorld) -> None:
    """This bookie is in none of the later fragments: it keeps the last entry, and compaction frees the log."""
    world = await make_world()
    await world.trim(90)
    assert await world.passes(2) == EVERYTHING[90:]
    usages = {usage.log_id: usage.bytes_by_ledger.get(LEDGER, 0) for usage in world.collector.logs.usages()}
    entry = len(packet(LEDGER, 0, 200, lac=0)) + 4
    assert sum(usages.values()) <= 10 * entry
    await world.collector.collect(Trigger(force=True, major=True))
    assert held(world.bookie) == EVERYTHING[90:]


@pytest.mark.asyncio
async def test_a_ledger_that_had_only_a_lac_at_a_pass_is_trimmed_once_it_has_a_term(
    make_world: MakeWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A writer tells its LAC to a new member of its ensemble before the first entry of the fragment."""
    monkeypatch.setattr(sys.modules[__name__], "add", lambda bookie, *ids: bookie.write_lac(LEDGER, 49))
    world = await make_world()
    await world.passes(2)
    monkeypatch.undo()
    add(world.bookie, *EVERYTHING[50:])
    world.bookie.storage.checkpoint()
    await world.trim(80)
    assert await world.passes(2) == EVERYTHING[80:]


@pytest.mark.asyncio
async def test_metadata_are_read_of_unbounded_ledgers_that_are_still_held(
    make_world: MakeWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = await make_world()
    asked: list[LedgerId] = []
    read_many = world.store.ledger_manager.read_many

    async def counted(ids: Sequence[LedgerId]) -> Any:
        asked.extend(ids)
        return await read_many(ids)

    monkeypatch.setattr(world.store.ledger_manager, "read_many", counted)
    await world.trim(80)
    await world.passes(1)
    assert asked == [ID]
    assert world.collector.logs.trimmed == {LEDGER}
    world.bookie.storage.delete_ledgers([LEDGER])
    await world.passes(1)
    assert asked == [ID]
    assert world.collector.logs.trimmed == frozenset()


def test_a_watermark_counts_after_a_period() -> None:
    watermarks = Watermarks(10.0)
    assert watermarks.due({1: 5}, 0.0) == {}
    assert watermarks.due({1: 7, 2: 3}, 9.0) == {}
    assert watermarks.due({1: 8, 2: 3}, 10.0) == {1: 5}
    assert watermarks.due({1: 9, 2: 2}, 20.0) == {1: 8}
    assert watermarks.due({1: 9, 2: 2}, 30.0) == {1: 9, 2: 2}
    assert watermarks.due({}, 40.0) == {}
    assert watermarks.due({1: 9}, 50.0) == {}
