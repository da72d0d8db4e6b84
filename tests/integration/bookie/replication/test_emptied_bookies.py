"""The cookie of a bookie that is to be emptied goes when that is wanted, it is stopped, and no ledger names it."""

from __future__ import annotations

import contextlib
import json
from collections.abc import AsyncIterator

import pytest

from bookgate.bookie.replication.checks.emptied import EmptiedBookies
from bookgate.gateway.stores.drivers import create_factory
from bookgate.ledger import replication_control as control
from bookgate.ledger.errors import IllegalOpException
from bookgate.ledger.ledger_id import LedgerId
from bookgate.ledger.metadata import LedgerMetadata
from bookgate.ledger.metadata_store import LedgerManagerFactory
from bookgate.ledger.replication_store import RecordKind
from bookgate.thinclient.tools.draining import look, wait_until_empty
from tests.integration.bookie.replication.healing import Store, until
from tests.integration.bookie.replication.test_auditor_metrics import register

pytestmark = pytest.mark.asyncio


@contextlib.asynccontextmanager
async def removing(factory: LedgerManagerFactory) -> AsyncIterator[EmptiedBookies]:
    """The task alone, in office."""
    task = EmptiedBookies(factory, None, look_seconds=0.02)  # type: ignore[arg-type]  # it asks no bookie
    task.allow(True)
    try:
        yield task
    finally:
        await task.stop()


@pytest.fixture
def looks(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Grows with each look of the task."""
    done: list[int] = []
    turn = EmptiedBookies._turn

    async def counted(self: EmptiedBookies) -> float | None:
        seconds = await turn(self)
        done.append(1)
        return seconds

    monkeypatch.setattr(EmptiedBookies, "_turn", counted)
    return done


@pytest.mark.long
async def test_the_cookie_goes_last(store: Store, looks: list[int]) -> None:
    factory = create_factory(store.uri)
    await factory.initialize()
    manager, ledger_id = factory.ledger_manager, LedgerId(0, 5)
    scoped = LedgerId(9, 5)
    names = ("named", "scoped", "running", "not-wanted", "empty")
    try:
        await register(factory, *names)
        await manager.create(ledger_id, LedgerMetadata.new(["named", "other"], 2, 1))
        await manager.create(scoped, LedgerMetadata.new(["scoped"], 1, 1))
        for name in names:
            if name != "running":
                await factory.registration_manager.unregister_bookie(name)
            await control.begin_draining(factory, name, 5, delete_cookie=name != "not-wanted")
        async with removing(factory):
            await until(lambda: gone(factory, "empty"))
            seen = len(looks)
            await until(lambda: more_than(looks, seen + 2))
            for name in ("named", "scoped", "running", "not-wanted"):
                assert not await gone(factory, name), name
            for each, name in ((ledger_id, "named"), (scoped, "scoped")):
                await manager.remove(each, (await manager.read(each)).version)
                await until(lambda name=name: gone(factory, name))  # type: ignore[misc]
            await factory.registration_manager.unregister_bookie("running")
            await until(lambda: gone(factory, "running"))
            await until(lambda: only_not_wanted(factory))
        assert not await gone(factory, "not-wanted")
    finally:
        await factory.close()


async def test_with_force_the_cookie_goes_although_ledgers_without_their_entries_stay(
    store: Store, looks: list[int]
) -> None:
    factory = create_factory(store.uri)
    await factory.initialize()
    manager, kept = factory.ledger_manager, factory.replication_metadata
    try:
        await register(factory, "gone", "waiting")
        for number, names in ((5, ["gone", "waiting"]), (6, ["other", "waiting"])):
            await manager.create(LedgerId(0, number), LedgerMetadata.new(names, 2, 1))
        for name in ("gone", "waiting"):
            await factory.registration_manager.unregister_bookie(name)
        loss = {"entries": 3, "lost_bookies": ["gone", "waiting"], "time_ms": 1}
        await kept.write_record(RecordKind.UNRECOVERABLE_LEDGER, "5", json.dumps(loss).encode(), None)
        await control.begin_draining(factory, "gone", 5, delete_cookie=True)
        await control.begin_draining(factory, "waiting", 5, delete_cookie=True, force=True)
        async with removing(factory):
            await until(lambda: more_than(looks, 2))
            assert not await gone(factory, "gone")
            await control.begin_draining(factory, "gone", 5, delete_cookie=True, force=True)
            await until(lambda: gone(factory, "gone"))
            seen = len(looks)
            await until(lambda: more_than(looks, seen + 2))
            # Ledger 6 can be moved.
            assert not await gone(factory, "waiting")
        record = await kept.read_record(RecordKind.UNRECOVERABLE_LEDGER, "5")
        assert record is not None
        assert list(control.given_up_with(record.value)) == ["gone"]
        assert control.loss_of(record.value).entries == 3
    finally:
        await factory.close()


async def test_beside_an_auditor_of_another_kind_nobody_waits_in_vain(store: Store) -> None:
    """BookKeeper's hears of bookies that are lost, not of such as are to be emptied."""
    factory = create_factory(store.uri)
    await factory.initialize()
    try:
        await register(factory, "full", "other")
        await factory.ledger_manager.create(LedgerId(0, 5), LedgerMetadata.new(["full", "other"], 2, 1))
        vote = await factory.replication_metadata.stand_for_auditor("java", lambda _state: None)
        await control.begin_draining(factory, "full", 5)
        with pytest.raises(IllegalOpException, match=r"java, is none of Bookgate's.*bookie recover full"):
            await wait_until_empty(factory, "full", lambda _look, _estimate: None)
        await control.note_candidate(factory.replication_metadata, "java")
        assert (await look(factory, "full")).problem is None
        await factory.replication_metadata.remove_record(RecordKind.CANDIDATE, "java")
        assert (await look(factory, "full")).problem is not None
        await factory.registration_manager.unregister_bookie("full")
        assert (await look(factory, "full")).problem is None
        await vote.withdraw()
    finally:
        await factory.close()


async def only_not_wanted(factory: LedgerManagerFactory) -> bool:
    """The record goes after the cookie."""
    return list(await control.draining_bookies(factory.replication_metadata)) == ["not-wanted"]


async def gone(factory: LedgerManagerFactory, bookie_id: str) -> bool:
    return await factory.registration_manager.read_cookie(bookie_id) is None


async def more_than(looks: list[int], count: int) -> bool:
    return len(looks) > count
