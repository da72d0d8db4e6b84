"""The feed reads the file when something was committed, and not before."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import TypeVar

import pytest
import pytest_asyncio

from bookgate.gateway.stores.sqlite.change_feed import ChangeFeed, Changes
from bookgate.gateway.stores.sqlite.store import SqliteStore, Transaction
from bookgate.ledger.errors import MetaStoreException

T = TypeVar("T")


class CountingStore(SqliteStore):
    def __init__(self, path: str) -> None:
        super().__init__(path)
        self.reads = 0
        self.looks = asyncio.Queue[None]()
        self.fails = 0
        self.blind = False

    async def read(self, operation: Callable[[sqlite3.Connection], T]) -> T:
        self.reads += 1
        if self.fails:
            self.fails -= 1
            raise MetaStoreException("away")
        return await super().read(operation)

    def data_version(self) -> int | None:
        self.looks.put_nowait(None)
        return None if self.blind else super().data_version()

    async def looked(self, times: int) -> None:
        for _ in range(times):
            await asyncio.wait_for(self.looks.get(), 30)


@pytest_asyncio.fixture
async def store(tmp_path: Path) -> AsyncIterator[CountingStore]:
    path = tmp_path / "metadata.sqlite"
    path.touch()
    store = CountingStore(str(path))
    await store.create()
    yield store
    await store.close()


def _change(transaction: Transaction) -> None:
    transaction.bookies_changed()


@pytest.mark.asyncio
async def test_without_a_commit_nothing_is_read(store: CountingStore) -> None:
    feed = ChangeFeed(store, lambda changes: None, poll_seconds=0.001)
    await feed.begin()
    feed.want(True)
    await store.looked(5)
    before = store.reads
    await store.looked(50)
    assert store.reads == before
    await feed.close()


@pytest.mark.asyncio
async def test_a_commit_of_another_process_is_told(store: CountingStore) -> None:
    told = asyncio.Queue[Changes]()
    feed = ChangeFeed(store, told.put_nowait, poll_seconds=0.001)
    await feed.begin()
    feed.want(True)
    await store.looked(5)
    other = SqliteStore(store.path)
    await other.open()
    for _ in range(3):
        await other.change(_change)
        assert (await asyncio.wait_for(told.get(), 30)).bookies
    await other.close()
    await feed.close()


@pytest.mark.asyncio
async def test_what_was_committed_while_nobody_listened_is_told_to_the_next(store: CountingStore) -> None:
    told = asyncio.Queue[Changes]()
    feed = ChangeFeed(store, told.put_nowait, poll_seconds=0.001)
    await feed.begin()
    feed.want(True)
    await store.looked(5)
    feed.want(False)
    await store.change(_change)
    feed.want(True)
    assert (await asyncio.wait_for(told.get(), 30)).bookies
    await feed.close()


@pytest.mark.asyncio
async def test_who_missed_changes_that_were_pruned_is_told_that_anything_may_have_changed(
    store: CountingStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Once, and not where the oldest that is left is the next one."""
    monkeypatch.setattr("bookgate.gateway.stores.sqlite.store.CHANGES_KEPT", 3)
    told: list[Changes] = []
    feed = ChangeFeed(store, told.append)
    await feed.begin()
    for changes in (3, 4, 1):
        for _ in range(changes):
            await store.change(_change)
        await feed.catch_up()
    assert told == [Changes(bookies=True), Changes(anything=True), Changes(bookies=True)]
    await feed.close()


@pytest.mark.asyncio
@pytest.mark.parametrize("blind", [False, True])
async def test_a_read_that_fails_is_tried_again(store: CountingStore, *, blind: bool) -> None:
    """`blind`: whether something was committed can't be seen without waiting, so it is read each time."""
    told = asyncio.Queue[Changes]()
    feed = ChangeFeed(store, told.put_nowait, poll_seconds=0.001)
    await feed.begin()
    store.fails, store.blind = 3, blind
    feed.want(True)
    await store.change(_change)
    assert (await asyncio.wait_for(told.get(), 30)).bookies
    assert store.fails == 0
    await feed.close()


@pytest.mark.asyncio
async def test_a_closed_store_has_no_data_version(store: CountingStore) -> None:
    assert store.data_version() is not None
    await store.close()
    assert store.data_version() is None
