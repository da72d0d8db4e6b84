"""The services over a real channel, on both stores."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import aclosing
from dataclasses import dataclass, replace
from typing import Any

import grpc
import pytest
import pytest_asyncio
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc

from bookgate.gateway.limits import GatewayLimits
from bookgate.gateway.server import SERVICES, GatewayServer
from bookgate.gateway.stores.drivers import create_factory
from bookgate.ledger.bookie_info import BookieServiceInfo
from bookgate.ledger.errors import MetaStoreException, ZKException
from bookgate.ledger.id_set import decode_ids
from bookgate.ledger.metadata_codec import from_format, to_format
from bookgate.ledger.metadata_store import LedgerManagerFactory
from bookgate.ledger.metadata_templates import MetadataTemplates
from bookgate.protos.bookkeeper.common.v1.status_pb2 import StatusCode
from bookgate.protos.bookkeeper.gateway.v1 import ledger_metadata_service_pb2 as pb
from bookgate.protos.bookkeeper.gateway.v1 import service_discovery_pb2 as sd
from bookgate.protos.bookkeeper.gateway.v1.ledger_metadata_service_pb2_grpc import LedgerMetadataServiceStub
from bookgate.protos.bookkeeper.gateway.v1.service_discovery_pb2_grpc import ServiceDiscoveryStub
from bookgate.thinclient.gateways.messages import columns_of, record_of
from tests.integration.gateway.conftest import some_metadata, unscoped

pytestmark = pytest.mark.asyncio

METADATA = to_format(some_metadata())


@dataclass
class Gateway:
    factory: LedgerManagerFactory
    server: GatewayServer
    channel: grpc.aio.Channel

    @property
    def ledgers(self) -> Any:
        return LedgerMetadataServiceStub(self.channel)

    @property
    def discovery(self) -> Any:
        return ServiceDiscoveryStub(self.channel)

    async def create(self, **fields: Any) -> Any:
        return await self.ledgers.Create(pb.LedgerMetadataRequest(metadata=METADATA, **fields))

    async def write(self, ledger_id: int, version: int) -> Any:
        request = pb.LedgerMetadataRequest(ledger_id=ledger_id, expected_version=version, metadata=METADATA)
        return await self.ledgers.Write(request)

    async def iterate(self, **fields: Any) -> list[Any]:
        return [response async for response in self.ledgers.Iterate(pb.GetLedgerRangesRequest(**fields))]


@pytest_asyncio.fixture
async def gateway(metadata_uri: str) -> AsyncIterator[Gateway]:
    factory = create_factory(metadata_uri)
    await factory.initialize()
    server = GatewayServer(factory, bookmark_seconds=0.2, limits=GatewayLimits(subscriptions_a_stream=3))
    port = await server.start()
    async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
        yield Gateway(factory, server, channel)
    await server.stop(0)
    await factory.close()


async def next_answer(watch: Any) -> Any:
    """The next response that is no bookmark."""
    while True:
        response = await watch.read()
        if response is grpc.aio.EOF or response.event != pb.WatchEvent.BOOKMARK:
            return response


class TestOneLedger:
    async def test_create_read_write_remove(self, gateway: Gateway) -> None:
        created = await gateway.create()
        assert (created.code, created.version) == (StatusCode.SUCCESS, 0)
        read = await gateway.ledgers.Read(pb.LedgerMetadataRequest(ledger_id=created.ledger_id))
        assert from_format(read.metadata) == from_format(created.metadata)
        written = await gateway.write(created.ledger_id, 0)
        assert (written.code, written.version) == (StatusCode.SUCCESS, 1)
        assert written.revision > created.revision
        removed = await gateway.ledgers.Remove(pb.LedgerMetadataRequest(ledger_id=created.ledger_id))
        assert removed.code == StatusCode.SUCCESS
        gone = await gateway.ledgers.Read(pb.LedgerMetadataRequest(ledger_id=created.ledger_id))
        assert (gone.code, gone.ledger_id) == (StatusCode.LEDGER_NOT_FOUND, created.ledger_id)
        assert str(created.ledger_id) in gone.message

    async def test_domain_outcomes_travel_in_the_code(self, gateway: Gateway) -> None:
        assert (await gateway.create(ledger_id=4)).code == StatusCode.SUCCESS
        assert (await gateway.create(ledger_id=4)).code == StatusCode.LEDGER_EXISTS
        assert (await gateway.write(99, 0)).code == StatusCode.LEDGER_NOT_FOUND
        remove = pb.LedgerMetadataRequest(ledger_id=4, expected_version=3)
        assert (await gateway.ledgers.Remove(remove)).code == StatusCode.BAD_VERSION

    async def test_bad_version_carries_the_current_state(self, gateway: Gateway) -> None:
        created = await gateway.create()
        await gateway.write(created.ledger_id, 0)
        conflict = await gateway.write(created.ledger_id, 0)
        assert (conflict.code, conflict.version) == (StatusCode.BAD_VERSION, 1)
        assert from_format(conflict.metadata).ensemble_size == 3

    async def test_bad_requests_are_told_apart(self, gateway: Gateway) -> None:
        ledgers = gateway.ledgers
        huge = to_format(replace(some_metadata(), custom_metadata={"k": b"x" * (1024 * 1024)}))
        bad = [
            (ledgers.Create, pb.LedgerMetadataRequest(), "metadata is missing"),
            (ledgers.Create, pb.LedgerMetadataRequest(ledger_id=-1, metadata=METADATA), "negative"),
            (ledgers.Create, pb.LedgerMetadataRequest(ledger_scope_id=5, metadata=METADATA), "ledger_id"),
            (ledgers.Create, pb.LedgerMetadataRequest(metadata=huge), str(huge.ByteSize())),
            (ledgers.Write, pb.LedgerMetadataRequest(ledger_id=1, metadata=METADATA), "expected_version"),
            (ledgers.Read, pb.LedgerMetadataRequest(), "ledger_id is missing"),
        ]
        for method, request, hint in bad:
            answer = await method(request)
            assert answer.code == StatusCode.BAD_REQUEST
            assert hint in answer.message

    async def test_request_over_4_mib_is_resource_exhausted(self, gateway: Gateway) -> None:
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await gateway.create(request_token=b"x" * (4 * 1024 * 1024))
        assert caught.value.code() == grpc.StatusCode.RESOURCE_EXHAUSTED
        assert (await gateway.create()).code == StatusCode.SUCCESS

    async def test_same_token_again_is_the_same_create_of_a_given_id(self, gateway: Gateway) -> None:
        for _ in range(2):
            assert (await gateway.create(ledger_id=8, request_token=b"t")).code == StatusCode.SUCCESS
        assert (await gateway.create(ledger_id=8, request_token=b"u")).code == StatusCode.LEDGER_EXISTS

    async def test_write_keeps_the_stored_format(self, gateway: Gateway) -> None:
        metadata = replace(some_metadata(), format_version=2)
        await gateway.factory.ledger_manager.create(unscoped(3), metadata)
        assert (await gateway.write(3, 0)).code == StatusCode.SUCCESS
        assert (await gateway.factory.ledger_manager.read(unscoped(3))).metadata.format_version == 2

    async def test_failure_nobody_foresaw_shows_no_traceback(
        self, gateway: Gateway, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        async def broken(ledger_id: object) -> None:
            raise ZeroDivisionError("secret detail")

        monkeypatch.setattr(gateway.factory.ledger_manager, "read", broken)
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await gateway.ledgers.Read(pb.LedgerMetadataRequest(ledger_id=1))
        assert caught.value.code() == grpc.StatusCode.INTERNAL
        assert "secret" not in (caught.value.details() or "")
        assert (await gateway.create()).code == StatusCode.SUCCESS


class TestManyLedgers:
    async def test_iterate_pages_end_once(self, gateway: Gateway) -> None:
        ids = [0, 1, 9_999, 10_000, 2**31 - 1, 2**40, 2**63 - 1]
        for number in ids:
            await gateway.create(ledger_id=number)
        for limit in (0, 1, 3, 7, 100):
            pages = await gateway.iterate(limit_per_response=limit)
            assert [i for page in pages for i in decode_ids(page.serialized_ranges)] == ids
            assert [page.end for page in pages] == [False] * (len(pages) - 1) + [True]
            assert all(page.count == len(decode_ids(page.serialized_ranges)) for page in pages)
            assert pages[-1].last_ledger_id == ids[-1]

    async def test_iterate_resumes_after_the_last_id(self, gateway: Gateway) -> None:
        for number in (3, 5, 8):
            await gateway.create(ledger_id=number)
        first = (await gateway.iterate(limit_per_response=2))[0]
        rest = await gateway.iterate(start_after=first.last_ledger_id)
        assert [i for page in rest for i in decode_ids(page.serialized_ranges)] == [8]
        (before,) = await gateway.iterate(end_before=5)
        assert decode_ids(before.serialized_ranges) == [3]

    async def test_iterate_of_nothing_is_one_end(self, gateway: Gateway) -> None:
        (page,) = await gateway.iterate(include_metadata=True)
        assert (page.end, page.count, decode_ids(page.serialized_ranges)) == (True, 0, [])

    async def test_iterate_with_metadata(self, gateway: Gateway) -> None:
        for number in (3, 5, 8):
            await gateway.create(ledger_id=number)
        await gateway.write(5, 0)
        pages = await gateway.iterate(include_metadata=True, limit_per_response=2)
        found = [(ledger.ledger_id, ledger.version) for page in pages for ledger in page.ledgers]
        assert found == [(3, 0), (5, 1), (8, 0)]
        listed = [ledger for page in pages for ledger in page.ledgers]
        for number, ledger in zip((3, 5, 8), listed, strict=True):
            read = await gateway.ledgers.Read(pb.LedgerMetadataRequest(ledger_id=number))
            assert (ledger.metadata, ledger.created_ms) == (read.metadata, read.created_ms)
            assert read.created_ms > 0

    async def test_iterate_in_columns_says_the_same(self, gateway: Gateway) -> None:
        for number in (3, 5, 8):
            await gateway.create(ledger_id=number)
        await gateway.write(5, 0)
        singly = await gateway.iterate(include_metadata=True, limit_per_response=2)
        columns = await gateway.iterate(include_metadata=True, limit_per_response=2, columns=True)
        assert all(page.HasField("columns") and not page.ledgers for page in columns)
        templates = MetadataTemplates()
        found = [record for page in columns for record in columns_of(page, templates)]
        assert found == [record_of(ledger) for page in singly for ledger in page.ledgers]
        assert [page.serialized_ranges for page in columns] == [page.serialized_ranges for page in singly]

    async def test_negative_limit_is_a_bad_request(self, gateway: Gateway) -> None:
        (page,) = await gateway.iterate(limit_per_response=-1)
        assert (page.code, page.end) == (StatusCode.BAD_REQUEST, False)

    async def test_listing_that_fails_ends_with_an_error_not_with_end(
        self, gateway: Gateway, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        async def breaks_off(*_: object) -> AsyncIterator[list[int]]:
            yield [1, 2]
            raise ZKException("the store broke off")

        monkeypatch.setattr(gateway.factory.ledger_manager, "ledger_ranges", breaks_off)
        call = gateway.ledgers.Iterate(pb.GetLedgerRangesRequest(limit_per_response=1))
        first = await call.read()
        assert (first.last_ledger_id, first.end) == (1, False)
        with pytest.raises(grpc.aio.AioRpcError, match="broke off"):
            await call.read()

    async def test_batch_create_answers_in_order(self, gateway: Gateway) -> None:
        requests = [pb.LedgerMetadataRequest(ledger_id=number, metadata=METADATA) for number in (7, 3, 7)]
        requests.append(pb.LedgerMetadataRequest())
        answer = await gateway.ledgers.BatchCreate(pb.BatchCreateRequest(requests=requests))
        codes = [response.code for response in answer.responses]
        assert sorted([codes[0], codes[2]]) == [StatusCode.SUCCESS, StatusCode.LEDGER_EXISTS]
        assert (codes[1], codes[3]) == (StatusCode.SUCCESS, StatusCode.BAD_REQUEST)
        assert answer.responses[1].ledger_id == 3

    async def test_batch_read_answers_every_id(self, gateway: Gateway) -> None:
        created = {(await gateway.create()).ledger_id for _ in range(100)}
        asked = pb.BatchReadRequest(ledger_ids=[*created, 2**50])
        answers = {answer.ledger_id: answer.code async for answer in gateway.ledgers.BatchRead(asked)}
        assert answers == {**dict.fromkeys(created, StatusCode.SUCCESS), 2**50: StatusCode.LEDGER_NOT_FOUND}

    async def test_batches_over_the_limit_are_bad_requests(self, gateway: Gateway) -> None:
        read = pb.BatchReadRequest(ledger_ids=range(10_001))
        assert [answer.code async for answer in gateway.ledgers.BatchRead(read)] == [StatusCode.BAD_REQUEST]
        create = pb.BatchCreateRequest(requests=[pb.LedgerMetadataRequest()] * 10_001)
        assert (await gateway.ledgers.BatchCreate(create)).code == StatusCode.BAD_REQUEST


class TestWatch:
    async def test_states_then_removal_then_the_stream_goes_on(self, gateway: Gateway) -> None:
        ledger_id = (await gateway.create()).ledger_id
        watch = gateway.ledgers.Watch()
        await watch.write(pb.LedgerMetadataRequest(ledger_id=ledger_id))
        first = await next_answer(watch)
        assert (first.code, first.event, first.version) == (StatusCode.SUCCESS, pb.WatchEvent.STATE, 0)
        await gateway.write(ledger_id, 0)
        assert (await next_answer(watch)).version == 1
        await gateway.ledgers.Remove(pb.LedgerMetadataRequest(ledger_id=ledger_id))
        removed = await next_answer(watch)
        assert (removed.code, removed.event) == (StatusCode.LEDGER_NOT_FOUND, pb.WatchEvent.REMOVED)
        other = (await gateway.create()).ledger_id
        await watch.write(pb.LedgerMetadataRequest(ledger_id=other))
        assert (await next_answer(watch)).ledger_id == other
        watch.cancel()

    async def test_resumed_watch_is_silent_until_something_is_newer(self, gateway: Gateway) -> None:
        created = await gateway.create()
        watch = gateway.ledgers.Watch()
        await watch.write(
            pb.LedgerMetadataRequest(ledger_id=created.ledger_id, expected_version=0, min_revision=created.revision)
        )
        bookmark = await watch.read()
        assert bookmark.event == pb.WatchEvent.BOOKMARK
        assert bookmark.revision >= created.revision
        await gateway.write(created.ledger_id, 0)
        assert (await next_answer(watch)).version == 1
        watch.cancel()

    async def test_resumed_watch_answers_at_once_what_it_missed(self, gateway: Gateway) -> None:
        ledger_id = (await gateway.create()).ledger_id
        written = await gateway.write(ledger_id, 0)
        for _ in range(2):
            watch = gateway.ledgers.Watch()
            await watch.write(
                pb.LedgerMetadataRequest(ledger_id=ledger_id, expected_version=0, min_revision=written.revision)
            )
            assert (await next_answer(watch)).version == 1
        watch.cancel()

    async def test_unsubscribed_ledger_is_silent(self, gateway: Gateway) -> None:
        ids = [(await gateway.create()).ledger_id for _ in range(2)]
        watch = gateway.ledgers.Watch()
        for number in ids:
            await watch.write(pb.LedgerMetadataRequest(ledger_id=number))
            await next_answer(watch)
        await watch.write(pb.LedgerMetadataRequest(ledger_id=ids[0], watch_action=pb.WatchAction.UNSUBSCRIBE))
        # A request that is answered shows that the one before it was handled.
        await watch.write(pb.LedgerMetadataRequest())
        assert (await next_answer(watch)).code == StatusCode.BAD_REQUEST
        for number in ids:
            await gateway.write(number, 0)
        assert (await next_answer(watch)).ledger_id == ids[1]
        watch.cancel()

    async def test_subscription_over_the_limit_is_refused_as_a_response(self, gateway: Gateway) -> None:
        ids = [(await gateway.create()).ledger_id for _ in range(4)]
        watch = gateway.ledgers.Watch()
        answers = []
        for number in ids:
            await watch.write(pb.LedgerMetadataRequest(ledger_id=number))
            answers.append(await next_answer(watch))
        assert [answer.code == StatusCode.SUCCESS for answer in answers] == [True, True, True, False]
        assert "RESOURCE_EXHAUSTED" in answers[3].message
        watch.cancel()

    async def test_many_streams_share_one_listener_and_leave_none_behind(self, gateway: Gateway) -> None:
        ledger_id = (await gateway.create()).ledger_id
        service = gateway.server.watches
        hub, serve, ended = service.hub, service.serve, asyncio.Semaphore(0)

        async def serve_and_tell(requests: Any, context: Any) -> AsyncIterator[Any]:
            try:
                async with aclosing(serve(requests, context)) as answers:  # type: ignore[type-var]
                    async for answer in answers:
                        yield answer
            finally:
                ended.release()

        service.serve = serve_and_tell  # type: ignore[method-assign]
        watches = [gateway.ledgers.Watch() for _ in range(10)]
        for watch in watches:
            await watch.write(pb.LedgerMetadataRequest(ledger_id=ledger_id))
            await next_answer(watch)
        assert (hub.ledger_count, hub.subscription_count) == (1, 10)
        await gateway.write(ledger_id, 0)
        assert [(await next_answer(watch)).version for watch in watches] == [1] * 10
        for watch in watches:
            watch.cancel()
        async with asyncio.timeout(30):
            for _ in watches:
                await ended.acquire()
        assert service.stream_count == 0
        assert (hub.ledger_count, hub.subscription_count) == (0, 0)

    async def test_ledger_wanted_again_tells_its_state_again(self, gateway: Gateway) -> None:
        ledger_id = (await gateway.create()).ledger_id
        watch = gateway.ledgers.Watch()
        for _ in range(5):
            await watch.write(pb.LedgerMetadataRequest(ledger_id=ledger_id))
            assert (await next_answer(watch)).version == 0
            await watch.write(pb.LedgerMetadataRequest(ledger_id=ledger_id, watch_action=pb.WatchAction.UNSUBSCRIBE))
        watch.cancel()

    async def test_store_that_fails_ends_the_stream_as_unavailable(
        self, gateway: Gateway, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        async def away() -> int:
            raise MetaStoreException("the store is away")

        monkeypatch.setattr(gateway.factory, "revision", away)
        ledger_id = (await gateway.factory.ledger_manager.create(None, some_metadata())).ledger_id.low
        watch = gateway.ledgers.Watch()
        await watch.write(pb.LedgerMetadataRequest(ledger_id=ledger_id))
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await next_answer(watch)
        assert caught.value.code() == grpc.StatusCode.UNAVAILABLE
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await gateway.ledgers.Read(pb.LedgerMetadataRequest(ledger_id=ledger_id))
        assert caught.value.code() == grpc.StatusCode.UNAVAILABLE


class TestDiscovery:
    async def test_bookies_and_cluster(self, gateway: Gateway) -> None:
        await gateway.factory.registration_manager.register_bookie(BookieServiceInfo.legacy("h:1"), read_only=False)
        listed = await gateway.discovery.ListBookies(sd.ListBookiesRequest(bookie_set=sd.BookieSet.WRITABLE))
        (bookie,) = listed.bookies
        assert (bookie.bookie_id, bookie.writable, bookie.endpoints[0].port) == ("h:1", True, 1)
        info = await gateway.discovery.GetBookieServiceInfo(sd.GetBookieServiceInfoRequest(bookie_id="h:1"))
        assert info.bookie == bookie
        missing = await gateway.discovery.GetBookieServiceInfo(sd.GetBookieServiceInfoRequest(bookie_id="h:2"))
        assert missing.code != StatusCode.SUCCESS
        assert "h:2" in missing.message
        cluster = await gateway.discovery.GetClusterInfo(sd.GetClusterInfoRequest())
        assert len(cluster.instance_id) == 36

    async def test_watch_sends_whole_sets_with_growing_revisions(self, gateway: Gateway) -> None:
        watch = gateway.discovery.WatchBookies(sd.WatchBookiesRequest(bookie_set=sd.BookieSet.WRITABLE))
        first = await watch.read()
        manager = gateway.factory.registration_manager
        await manager.register_bookie(BookieServiceInfo.legacy("h:1"), read_only=False)
        second = await watch.read()
        await manager.register_bookie(BookieServiceInfo.legacy("h:2"), read_only=False)
        third = await watch.read()
        assert [len(answer.bookies) for answer in (first, second, third)] == [0, 1, 2]
        assert first.revision < second.revision < third.revision
        watch.cancel()


class TestServer:
    async def test_port_in_use_is_named(self, gateway: Gateway) -> None:
        port = int(gateway.server.address.rpartition(":")[2])
        with pytest.raises(OSError, match=f"port {port} .* in use"):
            await GatewayServer(gateway.factory, port=port).start()

    async def test_health_and_reflection(self, gateway: Gateway) -> None:
        health: Any = health_pb2_grpc.HealthStub(gateway.channel)
        for name in ("", *SERVICES):
            answer = await health.Check(health_pb2.HealthCheckRequest(service=name))
            assert answer.status == health_pb2.HealthCheckResponse.SERVING
        reflected: Any = reflection_pb2_grpc.ServerReflectionStub(gateway.channel)
        call = reflected.ServerReflectionInfo()
        await call.write(reflection_pb2.ServerReflectionRequest(list_services=""))
        listed = {service.name for service in (await call.read()).list_services_response.service}
        assert {*SERVICES, "grpc.health.v1.Health"} <= listed
        call.cancel()

    async def test_drain_tells_watchers_first(self, gateway: Gateway) -> None:
        ledger_id = (await gateway.create()).ledger_id
        watch = gateway.ledgers.Watch()
        await watch.write(pb.LedgerMetadataRequest(ledger_id=ledger_id))
        await next_answer(watch)
        bookies = gateway.discovery.WatchBookies(sd.WatchBookiesRequest())
        await bookies.read()
        stopping = asyncio.ensure_future(gateway.server.stop(10))
        assert (await next_answer(watch)).event == pb.WatchEvent.DRAINING
        for stream in (watch, bookies):
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await stream.read()
            assert caught.value.code() == grpc.StatusCode.UNAVAILABLE
        await stopping
