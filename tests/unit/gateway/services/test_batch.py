"""A BatchRead keeps little of what its client does not take."""

from __future__ import annotations

import asyncio
import gc
from typing import Any

import pytest

from bookgate.gateway.services.batch import BatchReader
from bookgate.gateway.services.metadata_cache import CachedAnswer, MetadataCache
from bookgate.gateway.services.store_budget import StoreBudget
from bookgate.gateway.stores.ledger_listeners import IncarnatedRecord, LedgerListeners
from bookgate.ledger.ledger_id import LedgerId
from bookgate.ledger.metadata import LedgerMetadata
from bookgate.ledger.metadata_store import LedgerRecord
from bookgate.protos.bookkeeper.gateway.v1.ledger_metadata_service_pb2 import BatchReadRequest, LedgerMetadataResponse

pytestmark = pytest.mark.asyncio

KIB = 1024
SMALL = 200
"""Ledgers below this id are small, the others have 300 KiB."""


class Store:
    """Manager and factory in one."""

    connected, connection_epoch = True, 0

    def __init__(self) -> None:
        self.listeners = LedgerListeners(self._read, lambda _: None)

    @property
    def ledger_manager(self) -> Store:
        return self

    async def revision(self) -> int:
        return 7

    async def _read(self, ledger_id: LedgerId) -> IncarnatedRecord:
        await asyncio.sleep(0)
        return IncarnatedRecord(await self.read(ledger_id), 1)

    async def read(self, ledger_id: LedgerId) -> LedgerRecord:
        custom = {"x": bytes(100 if ledger_id.low < SMALL else 300 * KIB)}
        return LedgerRecord(ledger_id, LedgerMetadata.new(["b1"], 1, 1, custom_metadata=custom), 0)

    async def register_listener(self, ledger_id: LedgerId, listener: Any) -> None:
        self.listeners.add(ledger_id, listener)

    async def unregister_listener(self, ledger_id: LedgerId, listener: Any) -> None:
        self.listeners.remove(ledger_id, listener)


def held() -> int:
    return sum(len(each.ledger.data) for each in gc.get_objects() if isinstance(each, CachedAnswer))


@pytest.mark.parametrize("batched", [True, False])
async def test_a_client_that_does_not_read_holds_up_the_store_by_the_size_of_ledgers(batched: bool) -> None:
    store: Any = Store()
    cache = MetadataCache(store, 0, 100)
    releasing = asyncio.ensure_future(cache.run())
    reader = BatchReader(store, cache, StoreBudget(1000))
    numbers = range(130, 220)
    found: list[int] = []
    responses: Any = reader.read(BatchReadRequest(ledger_ids=numbers, batched_answers=batched))
    async for encoded in responses:
        if not found or found[-1] >= SMALL:
            for _ in range(300):
                await asyncio.sleep(0)
            assert held() <= 1536 * KIB
        response = LedgerMetadataResponse.FromString(encoded)
        found += [each.ledger_id for each in response.batch] if batched else [response.ledger_id]
    assert sorted(found) == list(numbers)
    releasing.cancel()
    await cache.close()
    await store.listeners.close()
