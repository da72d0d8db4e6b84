"""What a gateway's ports take: so many connections, and so long a time for what they want."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import grpc
import pytest
import pytest_asyncio
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse
from starlette.routing import Route

from bookgate.gateway import server as gateway_server
from bookgate.gateway.http import connections
from bookgate.gateway.http.server import AdminServer
from bookgate.gateway.limits import GatewayLimits
from bookgate.gateway.server import GatewayServer
from bookgate.gateway.stores.drivers import create_factory, ensure_cluster
from bookgate.ledger.metadata_store import LedgerManagerFactory
from bookgate.protos.bookkeeper.gateway.v1 import service_discovery_pb2 as sd
from bookgate.protos.bookkeeper.gateway.v1.service_discovery_pb2_grpc import ServiceDiscoveryStub
from bookgate.runtime.listening import listen

pytestmark = pytest.mark.asyncio

Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]


@contextlib.asynccontextmanager
async def http_server(max_connections: int = 16) -> AsyncIterator[tuple[int, asyncio.Event]]:
    """Its port, and what lets the path /slow answer."""
    answers = asyncio.Event()

    async def fast(_request: Request) -> PlainTextResponse:
        return PlainTextResponse("fast")

    async def slow(request: Request) -> PlainTextResponse:
        await request.body()
        await answers.wait()
        return PlainTextResponse("slow")

    app = Starlette(routes=[Route("/fast", fast), Route("/slow", slow, methods=["GET", "PUT"])])
    listener = listen("127.0.0.1", 0)
    admin = AdminServer(app, listener, max_connections=max_connections)
    task = asyncio.create_task(admin.run_until_stopped())
    try:
        yield listener.getsockname()[1], answers
    finally:
        admin.should_exit = True
        await task
        listener.close()


async def ask(streams: Streams, text: str) -> None:
    streams[1].write(text.encode())
    await streams[1].drain()


async def ends(streams: Streams) -> bool:
    """Reads to the end, which a test's time-out waits for."""
    with contextlib.suppress(ConnectionError):
        while await streams[0].read(65536):
            pass
    return True


@pytest.mark.parametrize(
    "sent", ["", "GET /fast HTTP/1.1\r\nHos", "PUT /slow HTTP/1.1\r\nHost: x\r\nContent-Length: 10\r\n\r\nhalf"]
)
async def test_a_request_has_its_time(monkeypatch: pytest.MonkeyPatch, sent: str) -> None:
    monkeypatch.setattr(connections, "REQUEST_SECONDS", 0.2)
    async with http_server() as (port, _), asyncio.timeout(20):
        streams = await asyncio.open_connection("127.0.0.1", port)
        await ask(streams, sent)
        assert await ends(streams)


async def test_so_has_the_next_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "REQUEST_SECONDS", 0.2)
    async with http_server() as (port, _), asyncio.timeout(20):
        streams = await asyncio.open_connection("127.0.0.1", port)
        await ask(streams, "GET /fast HTTP/1.1\r\nHost: x\r\n\r\n")
        await streams[0].readuntil(b"fast")
        await ask(streams, "GET /fast HTT")
        assert await ends(streams)


async def test_an_answer_may_take_longer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "REQUEST_SECONDS", 0.2)
    async with http_server() as (port, answers), asyncio.timeout(20):
        patient = await asyncio.open_connection("127.0.0.1", port)
        await ask(patient, "GET /slow HTTP/1.1\r\nHost: x\r\n\r\n")
        late = await asyncio.open_connection("127.0.0.1", port)
        assert await ends(late), "its time began later and is over"
        answers.set()
        await patient[0].readuntil(b"slow")
        patient[1].close()


async def test_the_oldest_goes_that_waits_for_nothing() -> None:
    async with http_server(max_connections=2) as (port, answers), asyncio.timeout(20):
        busy = await asyncio.open_connection("127.0.0.1", port)
        await ask(busy, "GET /slow HTTP/1.1\r\nHost: x\r\n\r\n")
        idle = await asyncio.open_connection("127.0.0.1", port)
        newest = await asyncio.open_connection("127.0.0.1", port)
        assert await ends(idle)
        await ask(newest, "GET /fast HTTP/1.1\r\nHost: x\r\n\r\n")
        await newest[0].readuntil(b"fast")
        answers.set()
        await busy[0].readuntil(b"slow")
        for _, writer in (busy, newest):
            writer.close()


@pytest_asyncio.fixture
async def factory(tmp_path: Path) -> AsyncIterator[LedgerManagerFactory]:
    uri = f"sqlite://{tmp_path}/metadata.db"
    await ensure_cluster(uri)
    factory = create_factory(uri)
    await factory.initialize()
    yield factory
    await factory.close()


async def test_grpc_takes_so_many_and_gives_them_so_long(
    factory: LedgerManagerFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = [(name, 500 if "handshake" in name else value) for name, value in gateway_server.OPTIONS]
    monkeypatch.setattr(gateway_server, "OPTIONS", tuple(options))
    server = GatewayServer(factory, limits=GatewayLimits(connections=2))
    port = await server.start()
    try:
        async with asyncio.timeout(30):
            crowd = [await asyncio.open_connection("127.0.0.1", port) for _ in range(6)]
            for silent in crowd:
                assert await ends(silent)
            async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
                stub: Any = ServiceDiscoveryStub(channel)
                assert (await stub.GetClusterInfo(sd.GetClusterInfoRequest(), wait_for_ready=True)).instance_id
                others = [await asyncio.open_connection("127.0.0.1", port) for _ in range(2)]
                closed = [asyncio.create_task(ends(other)) for other in others]
                await asyncio.wait(closed, return_when=asyncio.FIRST_COMPLETED)
                await asyncio.gather(*closed)
    finally:
        await server.stop(0)
