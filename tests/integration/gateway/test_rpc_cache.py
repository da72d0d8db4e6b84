"""The cache over real stores: two gateways, one store, and nothing older than what was seen (M4)."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any

import grpc
import pytest
import pytest_asyncio

from bookgate.bookie.standalone.local_zookeeper import LocalZooKeeper
from bookgate.gateway.server import GatewayServer
from bookgate.gateway.stores.drivers import create_factory
from bookgate.ledger.errors import NoSuchLedgerExistsOnMetadataServerException
from bookgate.ledger.metadata import LedgerMetadata, LedgerState
from bookgate.ledger.metadata_codec import from_format, to_format
from bookgate.ledger.metadata_store import LedgerManagerFactory
from bookgate.protos.bookkeeper.common.v1.status_pb2 import StatusCode
from bookgate.protos.bookkeeper.gateway.v1 import ledger_metadata_service_pb2 as pb
from bookgate.protos.bookkeeper.gateway.v1.ledger_metadata_service_pb2_grpc import LedgerMetadataServiceStub
from tests.integration.gateway.conftest import some_metadata, unscoped
from tests.integration.gateway.readings import shown
from tests.stores import made

pytestmark = pytest.mark.asyncio

METADATA = to_format(some_metadata())


class Gateway:
    def __init__(self, factory: LedgerManagerFactory) -> None:
        self.factory = factory
        self.server = GatewayServer(factory, bookmark_seconds=0.2)
        self.channel: Any = None
        self.stub: Any = None

    async def start(self) -> Gateway:
        await self.factory.initialize()
        self.channel = grpc.aio.insecure_channel(f"127.0.0.1:{await self.server.start()}")
        self.stub = LedgerMetadataServiceStub(self.channel)
        return self

    async def stop(self) -> None:
        await self.channel.close()
        await self.server.stop(0)
        await self.factory.close()

    async def read(self, ledger_id: int, min_revision: int = 0) -> Any:
        return await self.stub.Read(pb.LedgerMetadataRequest(ledger_id=ledger_id, min_revision=min_revision))

    async def write(self, ledger_id: int, version: int) -> Any:
        request = pb.LedgerMetadataRequest(ledger_id=ledger_id, expected_version=version, metadata=METADATA)
        return await self.stub.Write(request)


@pytest_asyncio.fixture
async def gateways(metadata_uri: str) -> AsyncIterator[list[Gateway]]:
    both = [await Gateway(create_factory(metadata_uri)).start() for _ in range(2)]
    yield both
    for gateway in both:
        await gateway.stop()


async def test_own_write_is_read_at_once_on_either_gateway(gateways: list[Gateway]) -> None:
    first = gateways[0]
    created = await first.stub.Create(pb.LedgerMetadataRequest(metadata=METADATA))
    ledger_id, revision = created.ledger_id, created.revision
    for version in range(30):
        for gateway in gateways:
            assert (await gateway.read(ledger_id, revision)).version == version
        writer = gateways[version % 2]
        written = await writer.write(ledger_id, version)
        revision = written.revision
        assert (await writer.read(ledger_id)).version == version + 1
        assert (await gateways[1 - version % 2].read(ledger_id, revision)).version == version + 1


async def test_read_elsewhere_is_never_older_than_what_a_watch_has_told(gateways: list[Gateway]) -> None:
    first, second = gateways
    ledger_id = (await first.stub.Create(pb.LedgerMetadataRequest(metadata=METADATA))).ledger_id
    for gateway in gateways:
        await gateway.read(ledger_id)
    watch = first.stub.Watch()
    await watch.write(pb.LedgerMetadataRequest(ledger_id=ledger_id))
    for version in range(20):
        while (told := await watch.read()).event != pb.WatchEvent.STATE:
            pass
        assert (await second.read(ledger_id, told.revision)).version >= told.version
        await second.write(ledger_id, version)
    watch.cancel()


async def test_removed_ledger_is_not_served(gateways: list[Gateway]) -> None:
    first = gateways[0]
    ledger_id = (await first.stub.Create(pb.LedgerMetadataRequest(metadata=METADATA))).ledger_id
    for gateway in gateways:
        assert (await gateway.read(ledger_id)).code == StatusCode.SUCCESS
    removed = await first.stub.Remove(pb.LedgerMetadataRequest(ledger_id=ledger_id))
    for gateway in gateways:
        assert (await gateway.read(ledger_id, removed.revision)).code == StatusCode.LEDGER_NOT_FOUND


def _store_watches(server: LocalZooKeeper) -> int:
    """ZooKeeper's own count, by its four-letter word."""
    host, _, port = server.address.rpartition(":")
    with socket.create_connection((host, int(port))) as connection:
        connection.sendall(b"wchs")
        answer = b"".join(iter(lambda: connection.recv(4096), b"")).decode()
    return int(answer.rpartition("Total watches:")[2])


async def test_one_store_watch_a_ledger_for_cache_and_watchers_together(own_zookeeper: LocalZooKeeper) -> None:
    gateway = await Gateway(create_factory(made(own_zookeeper.metadata_uri()))).start()
    ids = [(await gateway.stub.Create(pb.LedgerMetadataRequest(metadata=METADATA))).ledger_id for _ in range(10)]
    before = await asyncio.to_thread(_store_watches, own_zookeeper)
    watches = [gateway.stub.Watch() for _ in range(5)]
    for watch in watches:
        for number in ids:
            await watch.write(pb.LedgerMetadataRequest(ledger_id=number))
            while (await watch.read()).ledger_id != number:
                pass  # where the session was suspended for a moment, what is watched is told again
    for number in ids:
        await gateway.read(number)
    assert await asyncio.to_thread(_store_watches, own_zookeeper) == before + len(ids)
    await gateway.stop()


async def test_cache_is_empty_after_a_lost_connection(own_zookeeper: LocalZooKeeper) -> None:
    gateway = await Gateway(create_factory(made(own_zookeeper.metadata_uri()))).start()
    ledger_id = (await gateway.stub.Create(pb.LedgerMetadataRequest(metadata=METADATA))).ledger_id
    watch = gateway.stub.Watch()
    await watch.write(pb.LedgerMetadataRequest(ledger_id=ledger_id))
    await watch.read()
    await gateway.read(ledger_id)
    assert shown(gateway.server, "cache_ledgers") == 1
    await asyncio.to_thread(own_zookeeper.kill)
    while (await watch.read()).event != pb.WatchEvent.SUSPENDED:
        pass
    assert shown(gateway.server, "cache_ledgers") == 0
    await asyncio.to_thread(own_zookeeper.start)
    while (await watch.read()).event != pb.WatchEvent.RESUMED:
        pass
    assert (await gateway.read(ledger_id)).version == 0
    assert shown(gateway.server, "cache_ledgers") == 1
    watch.cancel()
    await gateway.stop()


async def test_a_ledger_made_anew_elsewhere_is_not_changed_by_who_knows_the_former_one(gateways: list[Gateway]) -> None:
    """Whatever the gateway still has in its cache: it has not heard of that yet."""
    here, elsewhere = gateways[1], gateways[0]
    client = create_factory(f"grpc://{here.server.address}")
    await client.initialize()
    manager = client.ledger_manager
    for number in range(5, 15):
        former = await manager.create(unscoped(number), some_metadata(mine=b"old"))
        await manager.read(unscoped(number))
        await elsewhere.stub.Remove(pb.LedgerMetadataRequest(ledger_id=number))
        await elsewhere.stub.Create(pb.LedgerMetadataRequest(ledger_id=number, metadata=METADATA))
        calls = [manager.write_to(former, former.metadata.close(9, 900)), manager.remove_record(former)]
        for call in calls if number % 2 else reversed(calls):
            with pytest.raises(NoSuchLedgerExistsOnMetadataServerException, match="another one was created"):
                await call
        found = await elsewhere.factory.ledger_manager.read(unscoped(number))
        assert (found.version, found.metadata.state, found.metadata.custom_metadata) == (0, LedgerState.OPEN, {})
    await client.close()


@pytest.mark.parametrize("text_first", [False, True])
async def test_a_ledger_is_written_in_its_own_format(gateways: list[Gateway], text_first: bool) -> None:
    """The former one of its id had another: as text, a ledger has neither password nor custom metadata."""
    here, elsewhere = (gateway.stub for gateway in gateways)
    as_text = replace(LedgerMetadata.new(["b-1"], 1, 1), password=None, digest_type=None, format_version=2)
    whole = LedgerMetadata.new(["b-1"], 1, 1, password=b"p", custom_metadata={"k": b"v"})
    former, later = (as_text, whole) if text_first else (whole, as_text)
    await elsewhere.Create(pb.LedgerMetadataRequest(ledger_id=7, metadata=to_format(former)))
    await here.Read(pb.LedgerMetadataRequest(ledger_id=7))
    await elsewhere.Remove(pb.LedgerMetadataRequest(ledger_id=7))
    created = await elsewhere.Create(pb.LedgerMetadataRequest(ledger_id=7, metadata=to_format(later)))
    closed = to_format(from_format(created.metadata).close(-1, 0))
    write = pb.LedgerMetadataRequest(ledger_id=7, expected_version=0, incarnation=created.incarnation, metadata=closed)
    assert (await here.Write(write)).code == StatusCode.SUCCESS
    found = from_format((await elsewhere.Read(pb.LedgerMetadataRequest(ledger_id=7))).metadata)
    assert (found.state, found.password) == (LedgerState.CLOSED, later.password)
    assert found.custom_metadata == later.custom_metadata
