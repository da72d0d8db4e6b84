"""Connections whose client has vanished, and clients that do nothing but ping."""

from __future__ import annotations

import asyncio
import contextlib
import struct
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import grpc
import pytest
import pytest_asyncio

from bookgate.gateway import server as gateway_server
from bookgate.gateway.server import GatewayServer
from bookgate.gateway.stores.drivers import create_factory
from bookgate.protos.bookkeeper.gateway.v1.service_discovery_pb2 import ListBookiesRequest, WatchBookiesRequest
from bookgate.protos.bookkeeper.gateway.v1.service_discovery_pb2_grpc import ServiceDiscoveryStub
from bookgate.thinclient.gateways.grpc_channels import open_channel
from tests.integration.gateway.readings import shown
from tests.stores import made

pytestmark = pytest.mark.asyncio

_PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
_SETTINGS, _PING, _GOAWAY = 4, 6, 7
_ENHANCE_YOUR_CALM = 11


@contextlib.asynccontextmanager
async def serving(tmp_path: Path) -> AsyncIterator[GatewayServer]:
    factory = create_factory(made(f"sqlite://{tmp_path}/metadata.db"))
    await factory.initialize()
    server = GatewayServer(factory)
    await server.start()
    try:
        yield server
    finally:
        await server.stop(0)
        await factory.close()


@pytest_asyncio.fixture
async def server(tmp_path: Path) -> AsyncIterator[GatewayServer]:
    async with serving(tmp_path) as running:
        yield running


def frame(kind: int, payload: bytes = b"") -> bytes:
    return struct.pack(">I", len(payload))[1:] + bytes((kind, 0)) + bytes(4) + payload


async def test_a_client_that_floods_with_pings_is_cut_off(server: GatewayServer) -> None:
    host, _, port = server.address.rpartition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    writer.write(_PREFACE + frame(_SETTINGS) + 1000 * frame(_PING, bytes(8)))
    reason = None
    async with asyncio.timeout(30):
        while reason is None:
            head = await reader.readexactly(9)
            payload = await reader.readexactly(int.from_bytes(head[:3]))
            if head[3] == _GOAWAY:
                reason = int.from_bytes(payload[4:8])
        await reader.read()
    assert reason == _ENHANCE_YOUR_CALM
    writer.close()


async def test_a_thin_client_may_ping_as_it_does(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a stream on which nothing comes: its pings count as no strikes, of which two are allowed here.

    gRPC ignores an option whose name it does not know, and sends a ping a second at most.
    """
    options = {**dict(gateway_server.OPTIONS), "grpc.http2.max_ping_strikes": 2}
    monkeypatch.setattr(gateway_server, "OPTIONS", tuple(options.items()))
    async with serving(tmp_path) as server, open_channel(server.address, None) as channel:
        stub: Any = ServiceDiscoveryStub(channel)
        watch = stub.WatchBookies(WatchBookiesRequest())
        await watch.read()
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(8):
                await asyncio.shield(watch.read())
        await stub.ListBookies(ListBookiesRequest())
        assert not watch.done()
        watch.cancel()


async def test_the_streams_of_a_client_that_vanished_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its host is gone without a word: what is sent to it is lost, and nothing comes back."""
    quickly = dict.fromkeys(("grpc.keepalive_time_ms", "grpc.keepalive_timeout_ms", "grpc.http2.ping_timeout_ms"), 200)
    options = tuple((name, quickly.get(name, value)) for name, value in gateway_server.OPTIONS)
    assert quickly.keys() <= dict(options).keys()
    monkeypatch.setattr(gateway_server, "OPTIONS", options)
    factory = create_factory(made(f"sqlite://{tmp_path}/metadata.db"))
    await factory.initialize()
    server = GatewayServer(factory)
    await server.start()
    gone = asyncio.Event()
    pipes: list[asyncio.Task[None]] = []

    async def pipe(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(65536):
            if not gone.is_set():
                writer.write(data)

    async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        host, _, port = server.address.rpartition(":")
        to_server = await asyncio.open_connection(host, int(port))
        pipes.extend((asyncio.create_task(pipe(reader, to_server[1])), asyncio.create_task(pipe(to_server[0], writer))))

    proxy = await asyncio.start_server(connected, "127.0.0.1", 0)
    async with grpc.aio.insecure_channel(f"127.0.0.1:{proxy.sockets[0].getsockname()[1]}") as channel:
        stub: Any = ServiceDiscoveryStub(channel)
        watch = stub.WatchBookies(WatchBookiesRequest())
        await watch.read()
        assert shown(server, "bookie_watch_streams") == 1
        gone.set()
        for _ in range(3000):
            if not shown(server, "bookie_watch_streams"):
                break
            await asyncio.sleep(0.01)
        assert shown(server, "bookie_watch_streams") == 0
        watch.cancel()
    for task in pipes:
        task.cancel()
    proxy.close()
    await server.stop(0)
    await factory.close()
