"""Who waits for whom in the embedded store: renewals for one change, reads for none, and processes for each other."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, TypeVar

import pytest

from bookgate.gateway.stores.sqlite import store as store_module
from bookgate.gateway.stores.sqlite.factory import SqliteLedgerManagerFactory
from bookgate.gateway.stores.sqlite.store import SqliteStore, Transaction, revision_of
from bookgate.ledger.bookie_info import BookieServiceInfo
from bookgate.ledger.errors import MetaStoreException
from tests.integration.gateway.conftest import some_metadata, unscoped
from tests.stores import made

pytestmark = pytest.mark.asyncio

T = TypeVar("T")

_KEEP_LEASES = ("RegistrationManager._renew_all", "Claims._renew_all", "register_bookie")


@pytest.fixture
def path(tmp_path: Path) -> str:
    path = f"{tmp_path}/metadata.db"
    made(f"sqlite://{path}")
    return path


class OtherProcess:
    """Another user of the file, who may stop in the middle of a transaction."""

    def __init__(self, path: str) -> None:
        self._connection = sqlite3.connect(path, isolation_level=None, check_same_thread=False)

    def begin(self) -> None:
        self._connection.execute("BEGIN IMMEDIATE")

    def end(self) -> None:
        if self._connection.in_transaction:
            self._connection.execute("ROLLBACK")

    def close(self) -> None:
        self._connection.close()


@pytest.fixture
def other(path: str) -> Iterator[OtherProcess]:
    other = OtherProcess(path)
    yield other
    other.end()
    other.close()


class WatchedStore:
    """Which operations the store was asked for, and which it ran."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.asked = asyncio.Queue[str]()
        self.ran: list[str] = []
        change, transact = SqliteStore.change, SqliteStore._transact

        async def watched_change(store: SqliteStore, operation: Callable[[Transaction], T], **options: Any) -> T:
            self.asked.put_nowait(operation.__qualname__)
            return await change(store, operation, **options)

        def watched_transact(store: SqliteStore, operation: Callable[[Transaction], T]) -> T:
            self.ran.append(operation.__qualname__)
            return transact(store, operation)

        monkeypatch.setattr(SqliteStore, "change", watched_change)
        monkeypatch.setattr(SqliteStore, "_transact", watched_transact)

    async def asked_for(self, *names: str) -> None:
        """Returns once something of each of these names was asked for."""
        missing = set(names)
        async with asyncio.timeout(30):
            while missing:
                asked = await self.asked.get()
                missing -= {name for name in missing if name in asked}


async def opened(path: str, lease_seconds: float = 3600) -> SqliteLedgerManagerFactory:
    factory = SqliteLedgerManagerFactory(path, lease_seconds)
    await factory.initialize()
    return factory


def renewals_when_told(monkeypatch: pytest.MonkeyPatch, lease_seconds: float) -> asyncio.Event:
    """Renewals of such leases come when the event is set, not by time."""
    due, sleep = asyncio.Event(), asyncio.sleep

    async def told(seconds: float) -> None:
        if seconds == lease_seconds / 3:
            await due.wait()
            due.clear()
        else:
            await sleep(seconds)

    monkeypatch.setattr(asyncio, "sleep", told)
    return due


async def test_what_keeps_leases_goes_before_the_changes_that_wait(
    path: str, other: OtherProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    renewals = renewals_when_told(monkeypatch, lease_seconds=3600)
    factory = await opened(path, lease_seconds=3600)
    await factory.registration_manager.register_bookie(BookieServiceInfo.legacy("h:1"), read_only=False)
    assert await factory.replication_metadata.try_lock(7, "h") is not None
    watched = WatchedStore(monkeypatch)
    other.begin()
    creations = [asyncio.create_task(factory.ledger_manager.create(None, some_metadata())) for _ in range(20)]
    await watched.asked_for("create")
    second = BookieServiceInfo.legacy("h:2")
    moving = asyncio.create_task(factory.registration_manager.register_bookie(second, read_only=False))
    renewals.set()
    await watched.asked_for(*_KEEP_LEASES)
    other.end()
    await asyncio.gather(*creations, moving)
    # One creation may have been under way.
    following = watched.ran[1:] if "create" in watched.ran[0] else watched.ran
    for name in _KEEP_LEASES:
        assert any(name in each for each in following[: len(_KEEP_LEASES)]), watched.ran
    await factory.close()


@pytest.mark.parametrize("free_after", [9.9, None])
async def test_a_change_looks_for_the_write_lock_all_the_time(
    path: str, other: OtherProcess, monkeypatch: pytest.MonkeyPatch, free_after: float | None
) -> None:
    """Else it would miss the moments in which other processes leave it free."""
    factory = await opened(path)
    now, looks = 0.0, 0

    def sleep(seconds: float) -> None:
        nonlocal now, looks
        now, looks = now + seconds, looks + 1
        if free_after is not None and now >= free_after:
            other.end()

    monkeypatch.setattr(store_module, "time", SimpleNamespace(sleep=sleep, monotonic=lambda: now), raising=False)
    other.begin()
    if free_after is None:
        with pytest.raises(MetaStoreException, match="locked"):
            await factory.ledger_manager.create(unscoped(1), some_metadata())
    else:
        await factory.ledger_manager.create(unscoped(1), some_metadata())
    assert looks >= 4_000
    other.end()
    await factory.close()


async def test_reads_wait_for_no_change(path: str, other: OtherProcess) -> None:
    """Also where another process was stopped inside a transaction."""
    factory = await opened(path)
    await factory.ledger_manager.create(unscoped(1), some_metadata())
    other.begin()
    waiting = asyncio.create_task(factory.ledger_manager.create(unscoped(2), some_metadata()))
    assert (await factory.ledger_manager.read(unscoped(1))).version == 0
    await factory.catch_up(None)
    assert not waiting.done()
    other.end()
    await waiting
    assert (await factory.ledger_manager.read(unscoped(2))).version == 0
    await factory.close()


async def test_a_read_sees_one_state_and_the_next_one_what_was_changed_meanwhile(path: str) -> None:
    factory = await opened(path)
    loop = asyncio.get_running_loop()

    def look_twice(connection: sqlite3.Connection) -> tuple[int, int]:
        before = revision_of(connection)
        change = factory.store.change(Transaction.bookies_changed)
        asyncio.run_coroutine_threadsafe(change, loop).result(10)
        return before, revision_of(connection)

    for revision in range(20):
        assert await factory.store.read(look_twice) == (revision, revision)
        assert await factory.store.read(revision_of) == revision + 1
    await factory.close()


async def test_closing_waits_for_the_reads(path: str) -> None:
    factory = await opened(path)
    reads = [asyncio.create_task(factory.store.read(revision_of)) for _ in range(200)]
    await asyncio.sleep(0)
    await factory.close()
    assert await asyncio.gather(*reads) == [0] * 200
