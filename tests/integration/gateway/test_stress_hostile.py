"""Requests that no honest client sends: each is refused by its own rule, and the gateway serves everybody else on."""

from __future__ import annotations

import asyncio
import contextlib
import random
import socket
from collections.abc import AsyncIterator
from typing import Any

import grpc
import pytest
import pytest_asyncio

from bookgate.protos.bookkeeper.common.v1.status_pb2 import StatusCode
from bookgate.protos.bookkeeper.gateway.v1 import ledger_metadata_service_pb2 as pb
from bookgate.protos.bookkeeper.gateway.v1.ledger_metadata_service_pb2_grpc import LedgerMetadataServiceStub
from tests.integration.gateway.stress import GatewayProcess, gateway_processes, numbered, size, to_format, until

pytestmark = [pytest.mark.asyncio, pytest.mark.timeout(300)]

_SERVICE = "/bookkeeper.gateway.v1.LedgerMetadataService/"
_MIB = 1024 * 1024
_OWN_CONNECTION = [("grpc.use_local_subchannel_pool", 1)]


@pytest_asyncio.fixture
async def gateway(zookeeper_uri: str) -> AsyncIterator[GatewayProcess]:
    with gateway_processes(zookeeper_uri, 1) as (process,):
        yield process


async def assert_serves(gateway: GatewayProcess) -> None:
    """An honest client finds nothing unusual."""
    async with grpc.aio.insecure_channel(gateway.address, options=_OWN_CONNECTION) as channel:
        stub: Any = LedgerMetadataServiceStub(channel)
        created = await stub.Create(pb.LedgerMetadataRequest(metadata=to_format(numbered(1))), timeout=30)
        assert created.code == StatusCode.SUCCESS
        read = await stub.Read(pb.LedgerMetadataRequest(ledger_id=created.ledger_id), timeout=30)
        assert read.code == StatusCode.SUCCESS


@pytest.mark.long
async def test_requests_full_of_noise(gateway: GatewayProcess) -> None:
    """Random bytes, and messages of random fields, at every method."""
    rng = random.Random(5)
    async with grpc.aio.insecure_channel(gateway.address) as channel:
        for _ in range(size(200, 5_000)):
            method = rng.choice(["Create", "Read", "Write", "Remove", "BatchCreate"])
            call: Any = channel.unary_unary(_SERVICE + method)
            noise = rng.choice([rng.randbytes(rng.randrange(200)), _random_request(rng).SerializeToString()])
            with contextlib.suppress(grpc.aio.AioRpcError):
                await call(noise, timeout=30)
            stream: Any = channel.unary_stream(_SERVICE + rng.choice(["BatchRead", "Iterate"]))
            with contextlib.suppress(grpc.aio.AioRpcError):
                async for _ in stream(noise, timeout=30):
                    pass
    await assert_serves(gateway)


def _random_request(rng: random.Random) -> pb.LedgerMetadataRequest:
    edges = (-(2**63), -1, 0, 1, 2**31, 2**63 - 1)
    request = pb.LedgerMetadataRequest(
        ledger_id=rng.choice(edges),
        ledger_scope_id=rng.choice(edges),
        expected_version=rng.choice(edges),
        request_token=rng.randbytes(rng.choice([0, 16, 10_000])),
    )
    request.metadata.CopyFrom(to_format(numbered(rng.choice([0, 7]))))
    request.metadata.ensembleSize = rng.choice([-1, 0, 3, 2**31 - 1])
    request.metadata.length = rng.choice(edges)
    return request


async def test_limits_of_one_request(gateway: GatewayProcess) -> None:
    """Each limit of docs/gateway.md#limits, by its own answer."""
    async with grpc.aio.insecure_channel(gateway.address) as channel:
        stub: Any = LedgerMetadataServiceStub(channel)
        big = to_format(numbered(1))
        big.customMetadata.add(key="k", value=b"x" * _MIB)
        refused = await stub.Create(pb.LedgerMetadataRequest(metadata=big))
        assert refused.code == StatusCode.BAD_REQUEST
        assert str(big.ByteSize()) in refused.message
        for number in (-1, -(2**63)):
            assert (await stub.Read(pb.LedgerMetadataRequest(ledger_id=number))).code == StatusCode.BAD_REQUEST
        many = [response async for response in stub.BatchRead(pb.BatchReadRequest(ledger_ids=[1] * 10_001))]
        assert [response.code for response in many] == [StatusCode.BAD_REQUEST]
        creates = pb.BatchCreateRequest(requests=[pb.LedgerMetadataRequest()] * 10_001)
        assert (await stub.BatchCreate(creates)).code == StatusCode.BAD_REQUEST
        negative = [r async for r in stub.Iterate(pb.GetLedgerRangesRequest(limit_per_response=-1))]
        assert [(response.code, response.end) for response in negative] == [(StatusCode.BAD_REQUEST, False)]
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await stub.Read(pb.LedgerMetadataRequest(ledger_id=1, request_token=b"x" * 4 * _MIB))
        assert caught.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
    await assert_serves(gateway)


@pytest.mark.long
async def test_half_open_streams(gateway: GatewayProcess) -> None:
    """Watch streams that say nothing, from many connections: bounded in memory while there, gone when they go."""
    connections, each = size(20, 100), 100
    idle = gateway.rss_bytes
    with_streams = await _open_and_leave(gateway, connections, each)
    assert with_streams - idle < connections * each * 64 * 1024
    # The same again must find room in what the first left: nothing is kept for streams that have gone.
    assert await _open_and_leave(gateway, connections, each) - with_streams < 32 * _MIB


async def _open_and_leave(gateway: GatewayProcess, connections: int, each: int) -> int:
    """The gateway's memory in bytes while the streams were open."""
    streams = [await _open_streams(gateway, each) for _ in range(connections)]
    await assert_serves(gateway)
    memory = gateway.rss_bytes
    while streams:
        await _leave(*streams.pop())
    await until(lambda: not _established(gateway.address), lambda: _established(gateway.address))
    await assert_serves(gateway)
    return memory


async def _open_streams(gateway: GatewayProcess, count: int) -> tuple[grpc.aio.Channel, list[Any]]:
    """A connection and its Watch streams, which say nothing."""
    channel = grpc.aio.insecure_channel(gateway.address, options=_OWN_CONNECTION)
    await channel.channel_ready()
    stub: Any = LedgerMetadataServiceStub(channel)
    return channel, [stub.Watch() for _ in range(count)]


async def _leave(channel: grpc.aio.Channel, calls: list[Any]) -> None:
    for call in calls:
        call.cancel()
    await channel.close()


async def test_connections_that_never_speak_http(gateway: GatewayProcess) -> None:
    host, _, port = gateway.address.rpartition(":")
    sockets = [socket.create_connection((host, int(port))) for _ in range(size(100, 800))]
    for index, connection in enumerate(sockets):
        if index % 2:
            connection.sendall(b"PRI * HTTP/2.0\r\n" if index % 4 == 1 else b"\0" * 100)
    await assert_serves(gateway)
    for connection in sockets:
        connection.close()
    await assert_serves(gateway)


@pytest.mark.long
async def test_clients_that_never_read(gateway: GatewayProcess) -> None:
    """Listings asked for and not taken cost the gateway no more than a response each."""
    async with grpc.aio.insecure_channel(gateway.address) as channel:
        stub: Any = LedgerMetadataServiceStub(channel)
        requests = [
            pb.LedgerMetadataRequest(ledger_id=number, metadata=to_format(numbered(1))) for number in range(500)
        ]
        assert (await stub.BatchCreate(pb.BatchCreateRequest(requests=requests))).code == StatusCode.SUCCESS
        before = gateway.rss_bytes
        listings = [stub.Iterate(pb.GetLedgerRangesRequest(include_metadata=True)) for _ in range(20)]
        batches = [stub.BatchRead(pb.BatchReadRequest(ledger_ids=list(range(500)))) for _ in range(20)]
        await asyncio.gather(*(anext(aiter(call)) for call in (*listings, *batches)))
        await assert_serves(gateway)
        assert gateway.rss_bytes - before < 64 * _MIB
        for call in (*listings, *batches):
            call.cancel()
    await assert_serves(gateway)


def _established(address: str) -> int:
    """How many connections to a local address there are."""
    host, _, port = address.rpartition(":")
    wanted = f"{socket.inet_aton(host)[::-1].hex().upper()}:{int(port):04X}"
    lines = []
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        with contextlib.suppress(OSError), open(table) as file:
            lines += file.readlines()[1:]
    return sum(line.split()[1].endswith(wanted) and line.split()[3] == "01" for line in lines)
