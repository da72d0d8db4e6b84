"""Gateways that fail, keep silent or stand still: balance, failover, typed errors, what ends with the client."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import grpc
import pytest

from bookgate import BookKeeper
from bookgate.ledger.errors import (
    ClientClosedException,
    IllegalOpException,
    IncorrectParameterException,
    MetaStoreException,
    TooManyRequestsException,
    UnauthorizedAccessException,
    UnknownOutcomeException,
)
from bookgate.ledger.ledger_id import LedgerId
from bookgate.ledger.metadata_store import BookieSet, LedgerRecord
from bookgate.protos.bookkeeper.gateway.v1 import ledger_metadata_service_pb2 as wire
from bookgate.protos.bookkeeper.gateway.v1.service_discovery_pb2 import Endpoint
from bookgate.thinclient.gateways import grpc_channels
from bookgate.thinclient.gateways.factory import RpcLedgerManagerFactory
from bookgate.thinclient.gateways.gateway import Gateway
from bookgate.thinclient.gateways.replication_claims import RpcReplicationClaims
from bookgate.thinclient.gateways.replication_session import RpcReplicationSession
from bookgate.thinclient.gateways.retry_policy import RetryPolicy
from bookgate.thinclient.gateways.uri import ClientTlsFiles, GatewayUri, parse_gateways
from tests.unit.thinclient.bookies.test_secure_connections import new_certificates
from tests.unit.thinclient.fake_gateway import METADATA, SEVEN, FakeGateway, connected, fake_gateways, response_of


@pytest.mark.asyncio
async def test_a_client_that_knew_one_gateway_survives_its_loss() -> None:
    async with fake_gateways(3) as (_, gateways):
        for gateway in gateways:
            for other in gateways:
                host, port = other.address.split(":")
                endpoint = Endpoint(id="gateway", host=host, port=int(port), protocol="bookgate-grpc")
                gateway.endpoints.append(endpoint)
        factory = RpcLedgerManagerFactory(f"grpc://{gateways[0].address}")
        await factory.initialize()
        assert sorted(factory.gateways.addresses) == sorted(gateway.address for gateway in gateways)
        await factory.ledger_manager.create(SEVEN, METADATA)
        await gateways[0].stop()
        assert (await factory.ledger_manager.read(SEVEN)).version == 0
        # One that discovery no longer names is left, a configured one stays.
        await factory.gateways.learn([gateways[1].address])
        assert factory.gateways.addresses == [gateways[0].address, gateways[1].address]
        await factory.close()


@pytest.mark.asyncio
async def test_a_gateway_without_its_store_is_asked_last() -> None:
    async with connected(2) as (manager, gateways):
        await gateways[0].store.create(SEVEN, METADATA)
        heard: asyncio.Queue[int] = asyncio.Queue()

        def listener(ledger_id: LedgerId, record: LedgerRecord | None) -> None:
            heard.put_nowait(-1 if record is None else record.version)

        await manager.register_listener(SEVEN, listener)
        assert await heard.get() == 0
        watched, other = sorted(gateways, key=lambda gateway: not gateway.watches)
        for _ in range(4):
            await manager.read(SEVEN)
        watched.watches[0].put_nowait(wire.LedgerMetadataResponse(event=wire.WatchEvent.SUSPENDED))
        # Told in order: what follows has come, so that has.
        watched.store.change(SEVEN, custom_metadata={})
        watched.watches[0].put_nowait(response_of(watched.store.records[SEVEN]))
        assert await heard.get() == 1
        watched.calls.clear()
        for _ in range(4):
            await manager.read(SEVEN)
        assert watched.calls == []
        watched.watches[0].put_nowait(wire.LedgerMetadataResponse(event=wire.WatchEvent.RESUMED))
        watched.store.change(SEVEN, custom_metadata={"k": b"v"})
        watched.watches[0].put_nowait(response_of(watched.store.records[SEVEN]))
        assert await heard.get() == 2
        for _ in range(4):
            await manager.read(SEVEN)
        assert watched.calls == ["Read", "Read"]
        assert other.calls.count("Read") == 8


@pytest.mark.asyncio
async def test_calls_go_round_and_leave_a_gateway_that_is_gone() -> None:
    # A busy machine is not to make a gateway pass for slow.
    patient = RetryPolicy(metadata_hedge_seconds=60.0, metadata_connect_patience_seconds=60.0)
    async with connected(3, retries=patient) as (manager, gateways):
        await manager.create(SEVEN, METADATA)
        for _ in range(9):
            await manager.read(SEVEN)
        assert [gateway.calls.count("Read") for gateway in gateways] == [3, 3, 3]
        await gateways[0].stop()
        gateways[1].refuse = grpc.StatusCode.UNAVAILABLE
        for _ in range(5):
            assert (await manager.read(SEVEN)).version == 0
        # A change goes through as well: where there was no connection nothing was sent.
        gateways[1].refuse = None
        assert (await manager.write(SEVEN, METADATA.begin_recovery(), 0)).version == 1


@pytest.mark.asyncio
@pytest.mark.parametrize("batch", [False, True])
async def test_a_gateway_that_keeps_silent_does_not_use_up_the_others_time(batch: bool) -> None:
    async with connected(3, timeout=3) as (manager, gateways):
        await manager.create(SEVEN, METADATA)
        silent, *_ = gateways
        silent.silent = True
        # Of as many calls as there are gateways each gets one first.
        if batch:
            results = await asyncio.gather(*(manager.read_many([SEVEN]) for _ in gateways))
            assert [[r.version for r in result if isinstance(r, LedgerRecord)] for result in results] == [[0]] * 3
        else:
            records = await asyncio.gather(*(manager.read(SEVEN) for _ in gateways))
            assert [record.version for record in records] == [0, 0, 0]
        assert ("BatchRead" if batch else "Read") in silent.calls


@pytest.mark.asyncio
async def test_calls_under_way_end_with_the_client_and_are_not_taken_for_cancelled() -> None:
    async with fake_gateways() as (uri, (gateway,)):
        factory = RpcLedgerManagerFactory(uri)
        manager = factory.ledger_manager
        gateway.silent = True

        async def listing() -> list[LedgerRecord]:
            return [record async for page in manager.ledger_records() for record in page]

        calls = [manager.read(SEVEN), manager.remove(SEVEN), manager.read_many([SEVEN]), listing()]
        under_way = [asyncio.ensure_future(call) for call in calls]
        while len(gateway.calls) < len(calls):
            gateway.called.clear()
            await gateway.called.wait()
        await factory.close()
        results = await asyncio.gather(*under_way, return_exceptions=True)
        assert [type(result) for result in results] == [ClientClosedException] * 4
        with pytest.raises(ClientClosedException):
            await manager.read(SEVEN)


@asynccontextmanager
async def with_one_learnt() -> AsyncIterator[tuple[RpcLedgerManagerFactory, Gateway, FakeGateway, FakeGateway]]:
    """A client, the gateway that it has learnt from discovery, that one's server, and the server of the other."""
    async with fake_gateways(2) as (_, (configured, learnt)):
        patient = RetryPolicy(metadata_hedge_seconds=60.0)
        factory = RpcLedgerManagerFactory(f"grpc://{configured.address}", retries=patient)
        await factory.gateways.learn([learnt.address])
        one = next(gateway for gateway in factory.gateways.in_order() if gateway.learnt)
        assert await one.connect(60)
        try:
            yield factory, one, learnt, configured
        finally:
            await factory.close()


async def has_been_called(gateway: FakeGateway, name: str) -> None:
    while name not in gateway.calls:
        gateway.called.clear()
        await gateway.called.wait()


@pytest.mark.asyncio
async def test_a_gateway_that_has_left_discovery_and_drains_finishes_the_calls_under_way() -> None:
    async with with_one_learnt() as (factory, one, learnt, configured):
        await learnt.store.create(SEVEN, METADATA)
        learnt.silent = True
        reads = [asyncio.ensure_future(factory.ledger_manager.read(SEVEN)) for _ in range(2)]
        await has_been_called(learnt, "Read")
        drains = asyncio.ensure_future(learnt.stop(60))
        await one.channel.wait_for_state_change(grpc.ChannelConnectivity.READY)
        await factory.gateways.learn([])
        await factory.gateways.learn([])
        learnt.released.set()
        assert [record.version for record in await asyncio.gather(*reads)] == [0, 0]
        await drains
        assert learnt.calls + configured.calls == ["Read", "Read"]
        assert factory.gateways.addresses == [configured.address]


@pytest.mark.asyncio
async def test_calls_of_a_channel_that_is_closed_are_not_cancelled_but_go_on_elsewhere() -> None:
    async with with_one_learnt() as (factory, one, learnt, _):
        manager, ledgers = factory.ledger_manager, [SEVEN, LedgerId.unscoped(8)]
        for each in ledgers:
            await learnt.store.create(each, METADATA)
        learnt.silent = True

        async def listing() -> list[LedgerRecord]:
            return [record async for page in manager.ledger_records() for record in page]

        # Of two calls each gateway gets one.
        reads = [asyncio.ensure_future(manager.read(each)) for each in ledgers]
        batches = [asyncio.ensure_future(manager.read_many(ledgers)) for _ in range(2)]
        listings = [asyncio.ensure_future(listing()) for _ in range(2)]
        writes = [asyncio.ensure_future(manager.write(each, METADATA, 0)) for each in ledgers]
        for name in ("Read", "BatchRead", "Iterate", "Write"):
            await has_been_called(learnt, name)
        await one.close()
        assert [record.ledger_id for record in await asyncio.gather(*reads)] == ledgers
        assert [len(found) for found in await asyncio.gather(*batches)] == [2, 2]
        assert [len(found) for found in await asyncio.gather(*listings)] == [2, 2]
        assert [record.version for record in await asyncio.gather(*writes)] == [1, 1]


@pytest.mark.asyncio
async def test_watches_of_a_channel_that_is_closed_go_on_elsewhere() -> None:
    async with with_one_learnt() as (factory, one, learnt, configured):
        await learnt.store.create(SEVEN, METADATA)
        await configured.stop()
        learnt.watches_stay = configured.watches_stay = True
        heard: asyncio.Queue[int] = asyncio.Queue()
        sets: asyncio.Queue[int] = asyncio.Queue()

        def listener(_: LedgerId, record: LedgerRecord | None) -> None:
            heard.put_nowait(-1 if record is None else record.version)

        await factory.ledger_manager.register_listener(SEVEN, listener)
        await factory.service_discovery.watch_bookies(BookieSet.ALL, lambda bookies: sets.put_nowait(len(bookies)))
        assert (await heard.get(), await sets.get()) == (0, 1)
        await configured.start()
        await one.close()
        learnt.store.change(SEVEN, custom_metadata={})
        assert (await heard.get(), await sets.get()) == (1, 1)
        assert "WatchBookies" in configured.calls


@pytest.mark.asyncio
async def test_a_cancelled_call_is_cancelled() -> None:
    async with connected() as (manager, (gateway,)):
        gateway.silent = True
        call = asyncio.ensure_future(manager.read(SEVEN))
        await gateway.called.wait()
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call


@pytest.mark.asyncio
async def test_a_child_of_a_process_that_used_grpc_is_told_so(monkeypatch: pytest.MonkeyPatch) -> None:
    async with connected() as (manager, _):
        monkeypatch.setattr(grpc_channels, "_grpc_process", os.getpid() + 1)
        with pytest.raises(IllegalOpException, match="before it forked"):
            await manager.read(SEVEN)


@pytest.mark.asyncio
async def test_when_nobody_answers_every_address_and_its_error_is_named() -> None:
    # Long enough for a busy machine to hear both.
    async with connected(2, timeout=6.0) as (manager, gateways):
        await gateways[0].stop()
        gateways[1].refuse = grpc.StatusCode.UNAVAILABLE
        with pytest.raises(MetaStoreException) as caught:
            await manager.read(SEVEN)
        for part in (
            gateways[0].address + ": connection refused",
            gateways[1].address + ": UNAVAILABLE: refused by the test",
            "within 6 s",
        ):
            assert part in str(caught.value)


@pytest.mark.asyncio
@pytest.mark.parametrize(
    ("status", "error"),
    [
        (grpc.StatusCode.PERMISSION_DENIED, UnauthorizedAccessException),
        (grpc.StatusCode.UNAUTHENTICATED, UnauthorizedAccessException),
        (grpc.StatusCode.RESOURCE_EXHAUSTED, TooManyRequestsException),
        (grpc.StatusCode.UNIMPLEMENTED, MetaStoreException),
    ],
)
async def test_other_refusals_are_typed(status: grpc.StatusCode, error: type[Exception]) -> None:
    async with connected(timeout=0.2) as (manager, (gateway,)):
        gateway.refuse = status
        with pytest.raises(error, match=gateway.address):
            await manager.read(SEVEN)
        with pytest.raises(error):
            await manager.create(None, METADATA)


@pytest.mark.asyncio
async def test_an_address_that_serves_something_else_is_passed_over() -> None:
    async with connected(2) as (manager, gateways):
        gateways[0].refuse = grpc.StatusCode.UNIMPLEMENTED
        for _ in range(6):
            created = await manager.create(None, METADATA)
            assert (await manager.read(created.ledger_id)).metadata == created.metadata


@pytest.mark.asyncio
async def test_an_address_whose_tls_differs_is_passed_over_and_counted(tmp_path: Path) -> None:
    context = new_certificates(tmp_path).server()
    other = await asyncio.start_server(lambda _reader, _writer: None, "127.0.0.1", 0, ssl=context)
    port = other.sockets[0].getsockname()[1]
    async with (
        fake_gateways() as (uri, _),
        await BookKeeper.connect(f"grpc://127.0.0.1:{port},{uri.removeprefix('grpc://')}") as client,
    ):
        for _ in range(4):
            await client.ledger_manager.create(None, METADATA)
        counted = {metric.name: metric for metric in client.metrics.snapshot()}[
            "bookkeeper_client_GATEWAYS_PASSED_OVER"
        ]
        assert counted.kind == "counter"
        assert counted.samples[0].value >= 1
    other.close()


@pytest.mark.parametrize(
    ("uri", "parsed"),
    [
        ("grpc://a:1,b:2", GatewayUri(("a:1", "b:2"), None)),
        ("grpcs://a:1/", GatewayUri(("a:1",), ClientTlsFiles())),
        ("a:1, a:1", GatewayUri(("a:1",), None)),
        ("grpc://[::1]:4181", GatewayUri(("[::1]:4181",), None)),
        ("grpcs://a:1,b:2?ca=/x/ca&key=k", GatewayUri(("a:1", "b:2"), ClientTlsFiles(Path("/x/ca"), None, Path("k")))),
    ],
)
def test_addresses(uri: str, parsed: GatewayUri) -> None:
    assert parse_gateways(uri) == parsed


@pytest.mark.parametrize(
    "uri",
    [
        *("", "grpc://", "zk://a:1", "grpc://a", "grpc://a:x", "grpc://:1", "a:0", "a:70000"),
        *("grpc://a:1?ca=/x", "grpcs://a:1?x=y", "grpcs://a:1?ca="),
    ],
)
def test_what_is_no_address(uri: str) -> None:
    with pytest.raises(IncorrectParameterException, match="gateway address"):
        parse_gateways(uri)


@pytest.mark.asyncio
async def test_a_gateway_that_was_retired_and_closed_fails_those_who_still_use_it_as_one_that_is_gone(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """A session holds its gateway longer than discovery lists it."""
    async with connected() as (manager, _):
        channel = manager._gateways
        gateway = channel._gateway("127.0.0.1:1", learnt=True)
        _ = gateway.channel
        await gateway.close()
        assert not await gateway.connect(5)
        request = wire.LedgerMetadataRequest()
        with pytest.raises(UnknownOutcomeException):
            await channel.call("write", lambda it, _: it.metadata.Write(request), changes=True, only_at=gateway)
        session = RpcReplicationSession(gateway, "session", lambda _: None, lambda: None)
        async with asyncio.timeout(30):
            assert "closed" in await session.over
        assert "replication_session_failed" not in caplog.text
        await session.close()


@pytest.mark.asyncio
async def test_claims_are_closed_though_their_gateway_was_retired_and_closed() -> None:
    async with connected() as (manager, _):
        channel = manager._gateways
        gateway = channel._gateway("127.0.0.1:1", learnt=True)
        _ = gateway.channel
        claims = RpcReplicationClaims(channel, manager)
        session = claims._session = RpcReplicationSession(gateway, "session", lambda _: None, lambda: None)
        session.ready.set_result(None)  # its lease has not ended yet
        await gateway.close()
        await claims.close()
        assert session.over.done()
        assert all(task.done() for task in session._tasks)
