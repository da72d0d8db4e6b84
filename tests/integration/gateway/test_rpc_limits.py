"""What a gateway refuses, and what it keeps to, over a real channel."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import grpc
import pytest
from prometheus_client import CollectorRegistry

from bookgate.gateway.limits import GatewayLimits
from bookgate.gateway.server import GatewayServer
from bookgate.gateway.stores.drivers import create_factory
from bookgate.ledger.ledger_id import LedgerId
from bookgate.ledger.metadata_codec import to_format
from bookgate.ledger.metadata_store import LedgerManagerFactory, LedgerRecord
from bookgate.protos.bookkeeper.common.v1.status_pb2 import StatusCode
from bookgate.protos.bookkeeper.gateway.v1 import ledger_metadata_service_pb2 as pb
from bookgate.protos.bookkeeper.gateway.v1.ledger_metadata_service_pb2_grpc import LedgerMetadataServiceStub
from tests.integration.gateway.conftest import some_metadata
from tests.stores import made

pytestmark = pytest.mark.asyncio

METADATA = to_format(some_metadata())


class Gateway:
    """A gateway, its store, and stubs on connections of their own."""

    def __init__(self, factory: LedgerManagerFactory, server: GatewayServer, port: int) -> None:
        self.factory = factory
        self.server = server
        self.port = port
        self._registry = CollectorRegistry()
        self._registry.register(server.metrics)

    @asynccontextmanager
    async def client(self) -> AsyncIterator[Any]:
        options = [("grpc.use_local_subchannel_pool", 1)]
        async with grpc.aio.insecure_channel(f"127.0.0.1:{self.port}", options=options) as channel:
            yield LedgerMetadataServiceStub(channel)

    def metric(self, name: str, **labels: str) -> float:
        return self._registry.get_sample_value(f"bookgate_gateway_{name}", labels) or 0


@asynccontextmanager
async def gateway(tmp_path: Path, **limits: Any) -> AsyncIterator[Gateway]:
    factory = create_factory(made(f"sqlite://{tmp_path}/metadata.db"))
    await factory.initialize()
    server = GatewayServer(factory, limits=GatewayLimits(**limits))
    yield Gateway(factory, server, await server.start())
    await server.stop(0)
    await factory.close()


def create(**fields: Any) -> pb.LedgerMetadataRequest:
    return pb.LedgerMetadataRequest(metadata=METADATA, **fields)


async def status_of(call: Any) -> grpc.StatusCode:
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await call
    return caught.value.code()


async def test_streams_of_one_client_are_bounded_and_others_are_not_disturbed(tmp_path: Path) -> None:
    async with gateway(tmp_path, streams_a_client=2) as served, served.client() as one, served.client() as other:
        ledger_id = (await one.Create(create())).ledger_id
        watches = [one.Watch() for _ in range(2)]
        for watch in watches:
            await watch.write(pb.LedgerMetadataRequest(ledger_id=ledger_id))
            assert (await watch.read()).code == StatusCode.SUCCESS
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await one.Watch().read()
        assert refused.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert dict(refused.value.trailing_metadata() or ()) == {"retry-after-ms": "1000", "bookgate-not-done": "1"}
        assert await status_of(one.BatchRead(pb.BatchReadRequest()).read()) is grpc.StatusCode.RESOURCE_EXHAUSTED
        # Calls without a stream go on, and so do the streams of others.
        assert (await one.Read(pb.LedgerMetadataRequest(ledger_id=ledger_id))).code == StatusCode.SUCCESS
        assert [page.end async for page in other.Iterate(pb.GetLedgerRangesRequest())] == [True]
        assert served.metric("requests_total", method="Watch", code="RESOURCE_EXHAUSTED") == 1
        assert served.metric("watch_streams") == served.metric("streams") == 2
        for watch in watches:
            watch.cancel()


async def test_streams_of_all_clients_are_bounded(tmp_path: Path) -> None:
    async with gateway(tmp_path, streams=1) as served, served.client() as one, served.client() as other:
        ledger_id = (await one.Create(create())).ledger_id
        watch = one.Watch()
        await watch.write(pb.LedgerMetadataRequest(ledger_id=ledger_id))
        await watch.read()
        assert await status_of(other.Iterate(pb.GetLedgerRangesRequest()).read()) is grpc.StatusCode.RESOURCE_EXHAUSTED
        watch.cancel()


async def test_calls_to_the_store_are_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with gateway(tmp_path, store_calls=2, cache_bytes=0) as served, served.client() as client:
        go_on = asyncio.Event()
        begun = asyncio.Semaphore(0)
        remove = served.factory.ledger_manager.remove

        async def slow(ledger_id: LedgerId, version: int | None = None) -> None:
            begun.release()
            await go_on.wait()
            await remove(ledger_id, version)

        monkeypatch.setattr(served.factory.ledger_manager, "remove", slow)
        for number in range(3):
            await client.Create(create(ledger_id=number))
        calls = [client.Remove(pb.LedgerMetadataRequest(ledger_id=number)) for number in range(2)]
        for _ in calls:
            await begun.acquire()
        third = client.Remove(pb.LedgerMetadataRequest(ledger_id=2))
        assert await status_of(third) is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert served.metric("store_calls") == 2
        go_on.set()
        assert [(await call).code for call in calls] == [StatusCode.SUCCESS] * 2


async def test_limits_of_sizes_are_settings(tmp_path: Path) -> None:
    limits = {"request_bytes": 2000, "batch": 2, "metadata_bytes": 300}
    async with gateway(tmp_path, **limits) as served, served.client() as client:
        assert await status_of(client.Create(create(request_token=b"x" * 3000))) is grpc.StatusCode.RESOURCE_EXHAUSTED
        large = to_format(some_metadata(key=b"x" * 300))
        refused = await client.Create(pb.LedgerMetadataRequest(metadata=large))
        assert refused.code == StatusCode.BAD_REQUEST
        assert str(large.ByteSize()) in refused.message
        assert "300" in refused.message
        (answer,) = [a async for a in client.BatchRead(pb.BatchReadRequest(ledger_ids=[1, 2, 3]))]
        assert answer.code == StatusCode.BAD_REQUEST
        batch = await client.BatchCreate(pb.BatchCreateRequest(requests=[create()] * 3))
        assert batch.code == StatusCode.BAD_REQUEST


async def test_generated_id_is_the_same_for_a_repeated_create(tmp_path: Path) -> None:
    async with gateway(tmp_path) as served, served.client() as client:
        first = await client.Create(create(request_token=b"t"))
        assert await client.Create(create(request_token=b"t")) == first
        assert (await client.Create(create(request_token=b"u"))).ledger_id != first.ledger_id
        requests = [create(request_token=token) for token in (b"v", b"t", b"v")]
        batch = await client.BatchCreate(pb.BatchCreateRequest(requests=requests))
        ids = [response.ledger_id for response in batch.responses]
        assert ids[0] == ids[2] != ids[1] == first.ledger_id


async def test_an_id_is_not_generated_by_another_process_than_the_one_named(tmp_path: Path) -> None:
    another, refused = (("bookgate-instance", "another"),), grpc.StatusCode.FAILED_PRECONDITION
    async with gateway(tmp_path) as served, served.client() as client:
        call = client.Create(create(request_token=b"t"))
        first = await call
        told = dict(await call.trailing_metadata())["bookgate-instance"]
        for batch in ([create()], [create(request_token=b"u"), create(ledger_id=7)]):
            with pytest.raises(grpc.aio.AioRpcError, match="another instance") as caught:
                await client.BatchCreate(pb.BatchCreateRequest(requests=batch), metadata=another)
            trailing = dict(caught.value.trailing_metadata() or ())
            assert trailing == {"bookgate-instance": told, "bookgate-not-done": "1"}
        assert await status_of(client.Create(create(request_token=b"u"), metadata=another)) is refused
        assert (await client.Read(create(ledger_id=7))).code == StatusCode.LEDGER_NOT_FOUND
        # What it knows by its token, or what names its id, is the same wherever it was sent first.
        assert await client.Create(create(request_token=b"t"), metadata=another) == first
        assert (await client.Create(create(ledger_id=7), metadata=another)).code == StatusCode.SUCCESS
        named = (("bookgate-instance", told),)
        assert (await client.Create(create(request_token=b"u"), metadata=named)).code == StatusCode.SUCCESS
    async with gateway(tmp_path) as served, served.client() as client:
        assert await status_of(client.Create(create(request_token=b"t"), metadata=named)) is refused


async def test_repeated_write_is_no_conflict_with_itself(tmp_path: Path) -> None:
    async with gateway(tmp_path) as served, served.client() as client:
        ledger_id = (await client.Create(create())).ledger_id
        write = create(ledger_id=ledger_id, expected_version=0, request_token=b"t")
        first = await client.Write(write)
        assert (first.code, first.version) == (StatusCode.SUCCESS, 1)
        assert await client.Write(write) == first
        write.request_token = b"another"
        conflict = await client.Write(write)
        assert (conflict.code, conflict.version) == (StatusCode.BAD_VERSION, 1)


async def _until_all_are_kept(served: Gateway, client: Any, count: int) -> None:
    """Reads until a pass is answered from the cache: an entry that is slow to come is read past it."""
    async with asyncio.timeout(60):
        hits = -1.0
        while served.metric("cache_hits_total") != hits + count:
            hits = served.metric("cache_hits_total")
            assert len([a async for a in client.BatchRead(pb.BatchReadRequest(ledger_ids=range(count)))]) == count


async def test_batched_answers_say_the_same_as_single_ones(tmp_path: Path) -> None:
    async with gateway(tmp_path) as served, served.client() as client:
        for number in range(1200):
            await served.factory.ledger_manager.create(LedgerId.unscoped(number), some_metadata())
        ids = [*range(1200), 5_000, -1]
        await _until_all_are_kept(served, client, 1200)
        hits = served.metric("cache_hits_total")
        for _ in range(2):
            single = [a async for a in client.BatchRead(pb.BatchReadRequest(ledger_ids=ids))]
            messages = [a async for a in client.BatchRead(pb.BatchReadRequest(ledger_ids=ids, batched_answers=True))]
            batched = [answer for message in messages for answer in message.batch]
            assert len(messages) < 10
            assert len(single) == len(batched) == len(ids)
            assert max(message.revision for message in messages) >= max(answer.revision for answer in batched)
            by_id = {answer.ledger_id: answer for answer in batched}
            for answer in single:
                assert (answer.code, answer.version, answer.metadata) == (
                    by_id[answer.ledger_id].code,
                    by_id[answer.ledger_id].version,
                    by_id[answer.ledger_id].metadata,
                )
            assert by_id[5_000].code == StatusCode.LEDGER_NOT_FOUND
            assert by_id[-1].code == StatusCode.BAD_REQUEST
        assert served.metric("cache_ledgers") == 1200
        assert served.metric("cache_hits_total") == hits + 4 * 1200


async def test_call_under_way_ends_well_in_a_drain(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with gateway(tmp_path) as served, served.client() as client:
        go_on, begun = asyncio.Event(), asyncio.Event()
        inner = served.factory.ledger_manager.create

        async def slow(*arguments: Any) -> LedgerRecord:
            begun.set()
            await go_on.wait()
            return await inner(*arguments)

        monkeypatch.setattr(served.factory.ledger_manager, "create", slow)
        call = client.Create(create())
        watch = client.Watch()
        await watch.write(pb.LedgerMetadataRequest(ledger_id=1))
        await begun.wait()
        stopping = asyncio.ensure_future(served.server.stop(30))
        # Its end shows that the drain has begun.
        while (await watch.read()).event != pb.WatchEvent.DRAINING:
            pass
        go_on.set()
        assert (await call).code == StatusCode.SUCCESS
        await stopping
        assert await status_of(client.Read(pb.LedgerMetadataRequest(ledger_id=1))) is grpc.StatusCode.UNAVAILABLE
