"""Metadata and discovery that come in streams: listings, many records, watches; broken off, late, ended (M5)."""

from __future__ import annotations

import asyncio
from typing import Any

import grpc
import pytest

from bookgate.ledger.errors import BKException, MetaStoreException, NoSuchLedgerExistsOnMetadataServerException
from bookgate.ledger.ledger_id import LedgerId
from bookgate.ledger.metadata_store import BookieSet, LedgerMetadataListener, LedgerRecord
from bookgate.protos.bookkeeper.common.v1.status_pb2 import StatusCode
from bookgate.protos.bookkeeper.gateway.v1 import ledger_metadata_service_pb2 as wire
from bookgate.thinclient.gateways import watch
from bookgate.thinclient.gateways.factory import RpcLedgerManagerFactory
from tests.unit.thinclient.fake_gateway import METADATA, SEVEN, FakeGateway, connected, fake_gateways, response_of


async def fill(gateway: FakeGateway, count: int) -> None:
    for _ in range(count):
        await gateway.store.create(None, METADATA)


@pytest.mark.asyncio
async def test_a_listing_that_breaks_off_goes_on_where_it_stopped() -> None:
    async with connected(2) as (manager, gateways):
        await fill(gateways[0], 9)
        for gateway in gateways:
            gateway.break_after_pages = 1
        runs = [list(run) async for run in manager.ledger_ranges()]
        assert [i for run in runs for i in run] == list(range(9))
        pages = [page async for page in manager.ledger_records(start_after=3, page_size=3)]
        assert [[r.ledger_id.low for r in page] for page in pages] == [[4, 5, 6], [7, 8]]
        assert pages[0][0].metadata.custom_metadata == {"k": b"v"}


@pytest.mark.asyncio
async def test_a_slow_consumer_of_a_listing_does_not_use_up_the_gateways_time(monkeypatch: pytest.MonkeyPatch) -> None:
    loop = asyncio.get_running_loop()
    real, ahead = loop.time, 0.0
    monkeypatch.setattr(loop, "time", lambda: real() + ahead)
    async with connected(timeout=10) as (manager, (gateway,)):
        for number in range(5):
            await gateway.store.create(LedgerId.unscoped(number), METADATA)
        gateway.break_after_pages = 1
        listed: list[int] = []
        async for ids in manager.ledger_ranges():
            listed += ids
            ahead += 24  # twice the timeout is what all attempts together may take
        assert listed == list(range(5))


@pytest.mark.asyncio
async def test_a_listing_without_its_end_mark_is_an_error_and_never_the_end() -> None:
    async with connected(timeout=0.3) as (manager, (gateway,)):
        await fill(gateway, 3)
        gateway.forget_end = True
        runs = manager.ledger_ranges()
        assert [list(await anext(runs)) for _ in range(2)] == [[0, 1], [2]]
        with pytest.raises(MetaStoreException, match="broke off before its end"):
            await anext(runs)


@pytest.mark.asyncio
async def test_a_listing_that_stands_still_is_taken_up_elsewhere() -> None:
    async with connected(2, timeout=0.3) as (manager, gateways):
        await fill(gateways[0], 5)
        gateways[0].break_after_pages, gateways[0].stand_still = 1, True
        for _ in gateways:
            assert [i async for run in manager.ledger_ranges() for i in run] == [0, 1, 2, 3, 4]


@pytest.mark.asyncio
async def test_an_empty_listing_ends() -> None:
    async with connected() as (manager, _):
        assert [run async for run in manager.ledger_ranges()] == []


@pytest.mark.asyncio
async def test_many_ledgers_are_read_in_one_call_that_is_taken_up_again() -> None:
    async with connected() as (manager, (gateway,)):
        await fill(gateway, 5)
        gateway.break_after_pages = 2
        found = await manager.read_many([LedgerId.unscoped(i) for i in (4, 99, 0, 1, 2, 3)])
        assert [r.ledger_id.low for r in found if isinstance(r, LedgerRecord)] == [4, 0, 1, 2, 3]
        assert isinstance(found[1], NoSuchLedgerExistsOnMetadataServerException)


@pytest.mark.asyncio
async def test_ledgers_of_many_scopes_are_read_side_by_side_each_scope_once(monkeypatch: pytest.MonkeyPatch) -> None:
    async with connected() as (manager, (gateway,)):
        ids = [LedgerId(scope, number) for number in (7, -7) for scope in range(-20, 20) if scope or number > 0]
        for each in ids:
            await gateway.store.create(each, METADATA)
        gone = LedgerId(99, 7)
        together = asyncio.Barrier(8)
        note = gateway.note

        async def all_wait_for_others(name: str, request: Any, context: Any) -> None:
            await note(name, request, context)
            if len(gateway.calls) <= together.parties:
                await together.wait()

        monkeypatch.setattr(gateway, "note", all_wait_for_others)
        found = await manager.read_many([*ids, gone])
        assert [each.ledger_id for each in found if isinstance(each, LedgerRecord)] == ids
        assert isinstance(found[-1], NoSuchLedgerExistsOnMetadataServerException)
        assert len(gateway.calls) == 41
        gateway.refuse = grpc.StatusCode.PERMISSION_DENIED
        with pytest.raises(BKException, match="refused by the test"):
            await manager.read_many(ids)


@pytest.mark.asyncio
async def test_gateways_that_know_no_scopes_are_passed_over_and_never_taken_for_none() -> None:
    async with connected(2, timeout=0.5) as (manager, gateways):
        await gateways[0].store.create(LedgerId(5, 7), METADATA)
        gateways[0].refuse = grpc.StatusCode.UNIMPLEMENTED
        for _ in gateways:
            assert [scope async for run in manager.scopes() for scope in run] == [5]
        gateways[1].refuse = grpc.StatusCode.UNIMPLEMENTED
        with pytest.raises(MetaStoreException, match=r"can't tell which scopes there are.*: upgrade them"):
            _ = [run async for run in manager.scopes()]


@pytest.mark.asyncio
async def test_listeners_hear_the_present_state_and_changes_over_a_broken_stream() -> None:
    async with connected() as (manager, (gateway,)):
        await gateway.store.create(SEVEN, METADATA)
        heard: asyncio.Queue[int | None] = asyncio.Queue()

        def listener(ledger_id: LedgerId, record: LedgerRecord | None) -> None:
            heard.put_nowait(None if record is None else record.version)

        await manager.register_listener(SEVEN, listener)
        assert await heard.get() == 0
        # A bookmark and an older state tell nothing new.
        gateway.watches[0].put_nowait(wire.LedgerMetadataResponse(event=wire.WatchEvent.BOOKMARK))
        gateway.watches[0].put_nowait(response_of(gateway.store.records[SEVEN]))
        gateway.store.change(SEVEN, custom_metadata={})
        gateway.watch_started.clear()
        gateway.watches[0].put_nowait(wire.LedgerMetadataResponse(event=wire.WatchEvent.DRAINING))
        assert await heard.get() == 1
        assert gateway.watch_requests[-1].expected_version == 0
        code = StatusCode.LEDGER_NOT_FOUND
        gone = wire.LedgerMetadataResponse(code=code, ledger_id=7, event=wire.WatchEvent.REMOVED)
        gateway.watches[-1].put_nowait(gone)
        assert await heard.get() is None
        assert heard.empty()


@pytest.mark.asyncio
async def test_a_response_sent_before_a_listener_was_asked_for_is_not_told_to_it() -> None:
    """The first was told that there is no such ledger; meanwhile the client made it, and listens once more."""
    async with connected() as (manager, (gateway,)):
        heard: list[asyncio.Queue[int | None]] = [asyncio.Queue(), asyncio.Queue()]

        def listener(number: int) -> LedgerMetadataListener:
            return lambda _ledger_id, record: heard[number].put_nowait(None if record is None else record.version)

        def send(response: wire.LedgerMetadataResponse, requests_handled: int) -> None:
            response.requests_handled = requests_handled
            response.revision = 1 << 40  # the gateway has come further since it read the state
            gateway.watches[-1].put_nowait(response)

        gone = wire.LedgerMetadataResponse(code=StatusCode.LEDGER_NOT_FOUND, ledger_id=7, event=wire.WatchEvent.REMOVED)
        await manager.register_listener(SEVEN, listener(0))
        await gateway.watch_started.wait()
        await gateway.store.create(SEVEN, METADATA)
        older = response_of(gateway.store.records[SEVEN])
        gateway.store.change(SEVEN, custom_metadata={})
        await manager.register_listener(SEVEN, listener(1))
        send(older, 1)
        send(gone, 1)
        send(response_of(gateway.store.records[SEVEN]), 2)
        async with asyncio.timeout(10):
            assert await heard[1].get() == 1
        assert [heard[0].get_nowait(), heard[0].get_nowait()] == [0, None]
        send(gone, 2)
        async with asyncio.timeout(10):
            assert await heard[1].get() is None
        assert heard[0].empty()


@pytest.mark.asyncio
async def test_a_refused_watch_is_logged_once_and_asked_for_until_it_is_served(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(watch, "_FIRST_PAUSE", 0.01)
    async with connected() as (manager, (gateway,)):
        await gateway.store.create(SEVEN, METADATA)
        gateway.refused_watches = [StatusCode.PERMISSION_DENIED, StatusCode.UNEXPECTED, StatusCode.BAD_REQUEST]
        heard: asyncio.Queue[int | None] = asyncio.Queue()

        def listener(_: LedgerId, record: LedgerRecord | None) -> None:
            heard.put_nowait(None if record is None else record.version)

        await manager.register_listener(SEVEN, listener)
        async with asyncio.timeout(10):
            assert await heard.get() == 0
        (told,) = [each.getMessage() for each in caplog.records if "watch_refused" in each.getMessage()]
        assert "ledger=7" in told
        assert "refused by the test" in told
        assert len(gateway.watch_requests) == 4


@pytest.mark.asyncio
async def test_nobody_asks_for_a_refused_watch_that_nobody_listens_to(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watch, "_FIRST_PAUSE", 0.01)
    async with connected() as (manager, (gateway,)):
        eight = LedgerId.unscoped(8)
        await gateway.store.create(eight, METADATA)
        gateway.refused_watches = [StatusCode.PERMISSION_DENIED, StatusCode.PERMISSION_DENIED]
        heard = asyncio.Event()

        def listener(_ledger_id: LedgerId, _record: LedgerRecord | None) -> None:
            heard.set()

        await manager.register_listener(SEVEN, listener)
        await manager.register_listener(eight, listener)
        await gateway.watch_started.wait()
        await manager.unregister_listener(SEVEN, listener)
        async with asyncio.timeout(10):
            await heard.wait()
        subscribed = [each for each in gateway.watch_requests if each.watch_action == wire.WatchAction.SUBSCRIBE]
        assert [each.ledger_id for each in subscribed] == [7, 8, 8]


@pytest.mark.asyncio
async def test_who_listens_to_a_ledger_hears_of_its_removal_though_another_listens_to_its_successor() -> None:
    async with connected() as (manager, (gateway,)):
        heard: list[asyncio.Queue[int | None]] = [asyncio.Queue(), asyncio.Queue()]

        def listener(number: int) -> LedgerMetadataListener:
            return lambda _ledger_id, record: heard[number].put_nowait(None if record is None else record.version)

        def send(version: int, incarnation: int, requests_handled: int) -> None:
            response = response_of(LedgerRecord(SEVEN, METADATA, version))
            response.incarnation, response.requests_handled = incarnation, requests_handled
            gateway.watches[-1].put_nowait(response)

        await manager.register_listener(SEVEN, listener(0))
        await gateway.watch_started.wait()
        send(3, 1, 1)
        async with asyncio.timeout(10):
            assert await heard[0].get() == 3
            # The ledger is removed and made anew.
            await manager.register_listener(SEVEN, listener(1))
            send(0, 6, 2)
            assert [await heard[0].get(), await heard[1].get()] == [None, 0]
            gateway.watch_started.clear()
            gateway.watches[-1].put_nowait(wire.LedgerMetadataResponse(event=wire.WatchEvent.DRAINING))
            await gateway.watch_started.wait()
            send(1, 6, 1)
            assert await heard[1].get() == 1
        resumed = gateway.watch_requests[-1]
        assert (resumed.expected_version, resumed.incarnation) == (0, 6)
        assert heard[0].empty()


@pytest.mark.asyncio
async def test_one_damaged_ledger_or_listener_does_not_keep_others_from_hearing() -> None:
    async with connected() as (manager, (gateway,)):
        failures: list[dict[str, object]] = []
        asyncio.get_running_loop().set_exception_handler(lambda _loop, context: failures.append(context))
        eight = LedgerId.unscoped(8)
        heard: asyncio.Queue[tuple[LedgerId, int]] = asyncio.Queue()

        def listener(ledger_id: LedgerId, record: LedgerRecord | None) -> None:
            assert record is not None
            heard.put_nowait((ledger_id, record.version))
            if ledger_id == eight:
                raise ValueError("the application's own")

        for ledger_id in (SEVEN, eight):
            await gateway.store.create(ledger_id, METADATA)
            await manager.register_listener(ledger_id, listener)
        assert {await heard.get(), await heard.get()} == {(SEVEN, 0), (eight, 0)}
        gateway.watches[-1].put_nowait(wire.LedgerMetadataResponse(ledger_id=7, version=5))
        gateway.store.change(SEVEN, custom_metadata={})
        gateway.watches[-1].put_nowait(response_of(gateway.store.records[SEVEN]))
        async with asyncio.timeout(10):
            assert await heard.get() == (SEVEN, 1)
        assert "ledger 8" in str(failures[0]["message"])


@pytest.mark.asyncio
async def test_streams_that_the_gateway_ends_leave_no_task_behind() -> None:
    async with connected() as (manager, (gateway,)):
        await manager.register_listener(SEVEN, lambda _ledger_id, _record: None)
        most = 0
        for _ in range(4):
            await gateway.watch_started.wait()
            gateway.watch_started.clear()
            gateway.watches[-1].put_nowait(None)
            most = max(most, sum("_consume_request_iterator" in repr(task) for task in asyncio.all_tasks()))
        assert most <= 1


@pytest.mark.asyncio
async def test_the_bookies_are_watched_on_whatever_a_stream_ended_with() -> None:
    async with fake_gateways() as (uri, (gateway,)):
        factory = RpcLedgerManagerFactory(uri)
        heard: asyncio.Queue[int] = asyncio.Queue()
        gateway.refuse = grpc.StatusCode.INTERNAL
        await factory.service_discovery.watch_bookies(BookieSet.ALL, lambda bookies: heard.put_nowait(len(bookies)))
        await gateway.called.wait()
        gateway.refuse = None
        async with asyncio.timeout(10):
            assert await heard.get() == 1
        await factory.close()


@pytest.mark.asyncio
async def test_discovery() -> None:
    async with fake_gateways() as (uri, (gateway,)):
        factory = RpcLedgerManagerFactory(uri)
        await factory.initialize()
        discovery = factory.service_discovery
        (bookie,) = await discovery.bookies(BookieSet.WRITABLE)
        assert (bookie.bookie_id, bookie.writable, bookie.info.properties) == ("alpha", True, {"rack": "r1"})
        endpoint = (await discovery.bookie_service_info("alpha")).info.endpoint("bookie-rpc")
        assert endpoint is not None
        assert endpoint.address == "127.0.0.1:3181"
        with pytest.raises(Exception, match="not registered"):
            await discovery.bookie_service_info("beta")
        assert (await discovery.cluster_info()).ledger_manager == "hierarchical"
        heard: asyncio.Queue[list[str]] = asyncio.Queue()
        stop = await discovery.watch_bookies(BookieSet.ALL, lambda b: heard.put_nowait([x.bookie_id for x in b]))
        assert await heard.get() == ["alpha"]
        stop()
        assert factory.connected
        await factory.close()
        assert "ListBookies" in gateway.calls
