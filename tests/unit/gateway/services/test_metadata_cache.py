"""The cache on the listeners of a store whose every answer the test decides."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio

from bookgate.gateway.services.encoded_responses import batched_answer
from bookgate.gateway.services.metadata_cache import BYTES_BESIDES, MetadataCache
from bookgate.gateway.stores.ledger_listeners import IncarnatedRecord, LedgerListeners
from bookgate.ledger.errors import (
    MetadataFormatException,
    MetaStoreException,
    NoSuchLedgerExistsOnMetadataServerException,
)
from bookgate.ledger.ledger_id import LedgerId
from bookgate.ledger.metadata import LedgerMetadata
from bookgate.ledger.metadata_store import LedgerRecord
from bookgate.protos.bookkeeper.gateway.v1.ledger_metadata_service_pb2 import LedgerMetadataResponse

pytestmark = pytest.mark.asyncio

METADATA = LedgerMetadata.new(["b1"], 1, 1)
LEDGER = LedgerId.unscoped(1)


class Store:
    """Manager and factory in one: versions by ledger, reads that wait until they are let to go on."""

    def __init__(self) -> None:
        self.versions: dict[LedgerId, tuple[int, int]] = {LEDGER: (0, 1)}
        self.error: Exception | None = None
        self.reads = 0
        self.direct_reads = 0
        self.started = asyncio.Semaphore(0)
        self.open = asyncio.Event()
        self.open.set()
        self.connected = True
        self.connection_epoch = 0
        self.zxid = 10
        self.released = asyncio.Event()
        self.listeners = LedgerListeners(self._read, lambda _: self.released.set(), retry_delay_seconds=0.001)

    @property
    def ledger_manager(self) -> Store:
        return self

    async def revision(self) -> int:
        return self.zxid

    def change(self, ledger_id: LedgerId = LEDGER) -> None:
        version, incarnation = self.versions[ledger_id]
        self.versions[ledger_id] = (version + 1, incarnation)
        self.zxid += 1
        self.listeners.changed(ledger_id)

    def remove(self, ledger_id: LedgerId = LEDGER) -> None:
        del self.versions[ledger_id]
        self.listeners.changed(ledger_id)

    async def _read(self, ledger_id: LedgerId) -> IncarnatedRecord | None:
        self.reads += 1
        found = self.versions.get(ledger_id)
        self.started.release()
        await self.open.wait()
        if self.error is not None:
            raise self.error
        return IncarnatedRecord(LedgerRecord(ledger_id, METADATA, found[0]), found[1]) if found else None

    async def read(self, ledger_id: LedgerId) -> LedgerRecord:
        self.direct_reads += 1
        if ledger_id not in self.versions:
            raise NoSuchLedgerExistsOnMetadataServerException(f"there is no ledger {ledger_id}")
        return LedgerRecord(ledger_id, METADATA, self.versions[ledger_id][0])

    async def register_listener(self, ledger_id: LedgerId, listener: Any) -> None:
        self.listeners.add(ledger_id, listener)

    async def unregister_listener(self, ledger_id: LedgerId, listener: Any) -> None:
        self.listeners.remove(ledger_id, listener)


@pytest.fixture
def store() -> Store:
    return Store()


def make(store: Any, max_bytes: int = 1 << 20, idle_seconds: float = 100.0) -> MetadataCache:
    return MetadataCache(store, max_bytes, idle_seconds)


@pytest_asyncio.fixture
async def cache(store: Store) -> AsyncIterator[MetadataCache]:
    cache = make(store)
    yield cache
    await cache.close()
    assert len(store.listeners) == 0, "M7"
    assert cache.bytes == 0


async def version(cache: MetadataCache, ledger_id: LedgerId = LEDGER) -> int:
    return (cache.get(ledger_id) or await cache.fetch(ledger_id)).ledger.version


async def test_second_read_needs_no_store(cache: MetadataCache, store: Store) -> None:
    assert [await version(cache) for _ in range(3)] == [0, 0, 0]
    assert (store.reads, store.direct_reads) == (1, 0)
    assert (cache.counts.hits, cache.counts.misses) == (2, 1)


async def test_answer_is_the_whole_response(cache: MetadataCache, store: Store) -> None:
    found = await cache.fetch(LedgerId(0, 1))
    alone = LedgerMetadataResponse.FromString(found.ledger.answer(found.revision))
    assert (alone.ledger_id, alone.version, alone.revision) == (1, 0, 10)
    (item,) = LedgerMetadataResponse.FromString(batched_answer([found.batch_item], found.revision)).batch
    assert item == alone
    assert any(part is found.ledger.data for part in found.batch_item), "no second copy is kept"


async def test_equal_reads_at_the_same_time_are_one(cache: MetadataCache, store: Store) -> None:
    store.open.clear()
    reads = [asyncio.ensure_future(version(cache)) for _ in range(50)]
    await store.started.acquire()
    store.open.set()
    assert await asyncio.gather(*reads) == [0] * 50
    assert (store.reads, store.direct_reads) == (1, 0)


async def test_change_is_not_hidden(cache: MetadataCache, store: Store) -> None:
    await version(cache)
    store.change()
    assert cache.get(LEDGER) is None
    assert await version(cache) == 1
    assert cache.get(LEDGER) is not None


async def test_read_that_comes_after_a_change_does_not_take_the_older_read_under_way(
    cache: MetadataCache, store: Store
) -> None:
    store.open.clear()
    before = asyncio.ensure_future(version(cache))
    await store.started.acquire()
    store.change()
    after = asyncio.ensure_future(version(cache))
    await asyncio.sleep(0)
    store.open.set()
    assert (await before, await after) == (0, 1)


async def test_lost_connection_ends_what_it_guarded(cache: MetadataCache, store: Store) -> None:
    await version(cache)
    store.connected = False
    assert cache.get(LEDGER) is None
    store.connected = True
    # Back within one look of whoever watches the connection.
    store.connection_epoch += 1
    store.versions[LEDGER] = (7, 1)
    assert await version(cache) == 7


async def test_read_begun_before_the_connection_was_lost_is_answered_but_not_kept(
    cache: MetadataCache, store: Store
) -> None:
    store.open.clear()
    read = asyncio.ensure_future(version(cache))
    await store.started.acquire()
    store.connection_epoch += 1
    store.open.set()
    assert await read == 0
    assert cache.get(LEDGER) is None


async def test_without_connection_the_store_is_asked(cache: MetadataCache, store: Store) -> None:
    store.connected = False
    assert await version(cache) == 0
    assert (store.reads, store.direct_reads) == (0, 1)


async def test_missing_ledger_is_not_kept(cache: MetadataCache, store: Store) -> None:
    store.remove()
    with pytest.raises(NoSuchLedgerExistsOnMetadataServerException):
        await version(cache)
    assert len(cache) == 0


async def test_ledger_made_anew_under_its_id_is_found(cache: MetadataCache, store: Store) -> None:
    await version(cache)
    store.versions[LEDGER] = (0, 2)
    store.zxid = 99
    store.listeners.changed(LEDGER)
    found = await cache.fetch(LEDGER)
    assert (found.ledger.version, found.revision) == (0, 99)


@pytest.mark.parametrize("error", [MetadataFormatException("damaged"), MetaStoreException("away")])
async def test_failure_reaches_everyone_who_waits_and_is_not_kept(
    cache: MetadataCache, store: Store, error: Exception
) -> None:
    store.error = error
    results = await asyncio.gather(*(version(cache) for _ in range(3)), return_exceptions=True)
    assert results == [error] * 3
    store.error = None
    assert await version(cache) == 0


async def test_change_made_here_is_seen_at_once(cache: MetadataCache, store: Store) -> None:
    await version(cache)
    store.versions[LEDGER] = (1, 1)
    cache.changed_here(LEDGER)
    assert await version(cache) == 1


async def test_caller_that_goes_away_does_not_disturb_the_others(cache: MetadataCache, store: Store) -> None:
    store.open.clear()
    first, second = (asyncio.ensure_future(version(cache)) for _ in range(2))
    await store.started.acquire()
    first.cancel()
    store.open.set()
    assert await second == 0


async def test_least_recently_used_goes_first(store: Store) -> None:
    ledgers = [LedgerId.unscoped(number) for number in range(5)]
    for ledger_id in ledgers:
        store.versions[ledger_id] = (0, 1)
    one = await make(store).fetch(ledgers[0])
    cache = make(store, max_bytes=4 * (BYTES_BESIDES + 2 * len(one.ledger.data)) + 100)
    for ledger_id in ledgers[:4]:
        await version(cache, ledger_id)
    assert cache.get(ledgers[0]) is not None
    await version(cache, ledgers[4])
    assert [cache.get(ledger_id) is not None for ledger_id in ledgers] == [True, False, True, True, True]
    assert cache.counts.evictions == 1
    await cache.close()


async def test_cache_of_no_bytes_keeps_nothing_but_merges_reads(store: Store) -> None:
    cache = make(store, max_bytes=0)
    store.open.clear()
    reads = [asyncio.ensure_future(version(cache)) for _ in range(10)]
    await store.started.acquire()
    store.open.set()
    assert await asyncio.gather(*reads) == [0] * 10
    assert store.reads == 1
    assert len(cache) == 0
    await cache.close()
    assert len(store.listeners) == 0


async def test_idle_entries_go_and_their_listeners_too(store: Store) -> None:
    cache = make(store, idle_seconds=0.01)
    await version(cache)
    running = asyncio.ensure_future(cache.run())
    await asyncio.wait_for(store.released.wait(), 30)
    assert (len(cache), len(store.listeners), cache.bytes) == (0, 0, 0)
    running.cancel()


async def test_scopes_do_not_meet(cache: MetadataCache, store: Store) -> None:
    scoped = LedgerId(1, 1)
    store.versions[scoped] = (5, 1)
    assert (await version(cache, scoped), await version(cache)) == (5, 0)
    assert (await version(cache, scoped), await version(cache)) == (5, 0)
