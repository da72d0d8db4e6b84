"""Listings of ledgers with much metadata: what they hold in memory, and how long others on the loop wait for them."""

from __future__ import annotations

import asyncio
import json
import time
import tracemalloc
from collections.abc import AsyncIterator, Awaitable
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import grpc
import httpx
import pytest
from prometheus_client import CollectorRegistry

from bookgate.gateway.config import GatewayConfig
from bookgate.gateway.limits import GatewayLimits
from bookgate.gateway.process.http import HttpServer
from bookgate.gateway.server import GatewayServer
from bookgate.gateway.stores.drivers import create_factory, ensure_cluster
from bookgate.ledger.ledger_id import LedgerId
from bookgate.ledger.metadata_store import CreateRequest
from bookgate.protos.bookkeeper.gateway.v1 import ledger_metadata_service_pb2 as pb
from bookgate.protos.bookkeeper.gateway.v1.ledger_metadata_service_pb2_grpc import LedgerMetadataServiceStub
from tests.integration.gateway.conftest import some_metadata

pytestmark = pytest.mark.asyncio

LEDGERS, EACH = 200, 300_000
"""60 MB of metadata in all."""

HELD_BYTES = 16_000_000
LONGEST_SLICE_SECONDS = 0.1
"""Of this thread's own CPU time, so that a busy machine is no matter; all at once would take several times as long."""


class Served:
    def __init__(self, client: Any, http: httpx.AsyncClient) -> None:
        self.client = client
        self.http = http


@asynccontextmanager
async def gateway(tmp_path: Path, **limits: Any) -> AsyncIterator[Served]:
    uri = f"sqlite://{tmp_path}/metadata.db"
    await ensure_cluster(uri)
    factory = create_factory(uri)
    await factory.initialize()
    large = replace(some_metadata(), custom_metadata={"k": b"v" * EACH})
    await factory.ledger_manager.create_many([CreateRequest(LedgerId.unscoped(n), large) for n in range(LEDGERS)])
    server = GatewayServer(factory, limits=GatewayLimits(**limits))
    port = await server.start()
    http = HttpServer(
        GatewayConfig(metadata_uri="sqlite:///x", http_tls=False), factory, CollectorRegistry(), asyncio.Event()
    )
    address = f"http://127.0.0.1:{await http.start('127.0.0.1', 0)}"
    async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel, httpx.AsyncClient(base_url=address) as web:
        yield Served(LedgerMetadataServiceStub(channel), web)
    await http.stop()
    await server.stop(0)
    await factory.close()


async def longest_wait(work: Awaitable[object]) -> float:
    """The most CPU time that passed between two turns of this loop while that work was done."""
    longest, last = 0.0, time.thread_time()
    task = asyncio.ensure_future(work)
    while not task.done():
        await asyncio.sleep(0)
        now = time.thread_time()
        longest, last = max(longest, now - last), now
    await task
    return longest


async def iterate(served: Served) -> None:
    ids: list[int] = []
    async for response in served.client.Iterate(pb.GetLedgerRangesRequest(include_metadata=True)):
        assert response.ByteSize() < 2 * EACH + 10_000
        ids += [ledger.ledger_id for ledger in response.ledgers]
    assert ids == list(range(LEDGERS))


async def list_over_http(served: Served) -> None:
    size, end = 0, b""
    async with served.http.stream("GET", "/api/v1/ledger/list?print_metadata=true&limit=1000", timeout=120) as answer:
        assert answer.status_code == 200
        async for part in answer.aiter_bytes():
            size, end = size + len(part), part[-1:]
    assert size > LEDGERS * EACH
    assert end == b"}"


async def search_the_console(served: Served) -> None:
    answer = await served.http.get("/api/v1/console/ledgers?limit=500&state=OPEN", timeout=120)
    assert len(answer.json()["ledgers"]) == LEDGERS


@pytest.mark.parametrize("listing", [iterate, list_over_http, search_the_console])
async def test_a_listing_holds_little_and_lets_others_have_their_turns(tmp_path: Path, listing: Any) -> None:
    async with gateway(tmp_path) as served:
        assert await longest_wait(listing(served)) < LONGEST_SLICE_SECONDS
        tracemalloc.start()
        try:
            await listing(served)
            assert tracemalloc.get_traced_memory()[1] < HELD_BYTES
        finally:
            tracemalloc.stop()


async def test_what_comes_in_parts_is_one_document(tmp_path: Path) -> None:
    async with gateway(tmp_path) as served:
        first = await served.http.get("/api/v1/ledger/list?print_metadata=true&limit=3")
        assert list(json.loads(first.content)) == ["0", "1", "2"]
        assert first.json()["2"]["ensembleSize"] == some_metadata().ensemble_size
        rest = await served.http.get(first.links["next"]["url"])
        assert next(iter(rest.json())) == "3"


async def test_listings_that_are_not_read_are_counted_and_more_refused(tmp_path: Path) -> None:
    async with gateway(tmp_path, listings=3) as served:
        request = pb.GetLedgerRangesRequest(include_metadata=True)
        unread = [served.client.Iterate(request) for _ in range(3)]
        for call in unread:
            assert (await call.read()).code == 0
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await served.client.Iterate(request).read()
        assert refused.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert (await served.client.Iterate(pb.GetLedgerRangesRequest()).read()).count == LEDGERS
        for call in unread:
            call.cancel()
