"""Metadata and discovery through gateways that fail: balance, repetition, outcomes that were lost (M4, M5, M6)."""

from __future__ import annotations

import asyncio
import os
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path

import grpc
import pytest

from ledger.errors import (
    ClientClosedException,
    IllegalOpException,
    IncorrectParameterException,
    LedgerExistException,
    MetadataVersionException,
    MetaStoreException,
    NoSuchLedgerExistsOnMetadataServerException,
    TooManyRequestsException,
    UnauthorizedAccessException,
    UnknownOutcomeException,
)
from ledger.ledger_id import LedgerId
from ledger.manager import BookieSet, CreateRequest, LedgerRecord
from ledger.metadata import LedgerMetadata
from protos.bookkeeper.common.v1.status_pb2 import StatusCode
from protos.bookkeeper.gateway.v1 import ledger_metadata_service_pb2 as wire
from protos.bookkeeper.gateway.v1.service_discovery_pb2 import Endpoint
from tests.unit.thinclient.fake_gateway import FakeGateway, fake_gateways, response_of
from thinclient import grpc_channels
from thinclient.gateway_uri import GatewayUri, TlsFiles, parse_gateways
from thinclient.metadata import RpcLedgerManager, RpcLedgerManagerFactory

METADATA = LedgerMetadata.new(["a", "b", "c"], 3, 2, password=b"p", custom_metadata={"k": b"v"})
SEVEN = LedgerId.unscoped(7)


@asynccontextmanager
async def connected(count: int = 1, timeout: float = 10) -> AsyncIterator[tuple[RpcLedgerManager, list[FakeGateway]]]:
    async with fake_gateways(count) as (uri, gateways):
        factory = RpcLedgerManagerFactory(uri, timeout, random.Random(1))
        try:
            yield factory.ledger_manager, gateways
        finally:
            await factory.close()


@pytest.mark.asyncio
async def test_create_read_write_remove() -> None:
    async with connected() as (manager, _):
        created = await manager.create(None, METADATA)
        assert (created.version, created.metadata.custom_metadata) == (0, {"k": b"v"})
        assert await manager.read(created.ledger_id) == created
        closed = await manager.write(created.ledger_id, created.metadata.close(4, 40), 0)
        assert (closed.version, closed.metadata.last_entry_id) == (1, 4)
        with pytest.raises(MetadataVersionException):
            await manager.write(created.ledger_id, METADATA, 0)
        with pytest.raises(LedgerExistException):
            await manager.create(created.ledger_id, METADATA)
        await manager.remove(created.ledger_id)
        for call in (manager.read(created.ledger_id), manager.remove(created.ledger_id)):
            with pytest.raises(NoSuchLedgerExistsOnMetadataServerException):
                await call


@pytest.mark.asyncio
async def test_a_lost_answer_to_a_given_create_is_found_to_be_ours() -> None:
    async with connected() as (manager, (gateway,)):
        gateway.lose_answers, gateway.forget_tokens = 1, True
        assert (await manager.create(SEVEN, METADATA)).version == 0
        assert gateway.calls == ["Create", "Create", "Read"]
        with pytest.raises(LedgerExistException):
            await manager.create(SEVEN, METADATA)


@pytest.mark.asyncio
async def test_somebody_elses_ledger_is_not_taken_for_ours() -> None:
    async with connected() as (manager, (gateway,)):
        await gateway.store.create(SEVEN, replace(METADATA, creator_token=5))
        gateway.refuse = grpc.StatusCode.UNAVAILABLE

        async def come_back() -> None:
            await gateway.called.wait()
            gateway.refuse = None

        create, _ = await asyncio.gather(manager.create(SEVEN, METADATA), come_back(), return_exceptions=True)
        assert isinstance(create, LedgerExistException)


async def heard_of_all(manager: RpcLedgerManager, gateways: list[FakeGateway]) -> None:
    """The client has had an answer of each."""
    await gateways[0].store.create(SEVEN, METADATA)
    for _ in gateways:
        await manager.read(SEVEN)
    for gateway in gateways:
        gateway.calls.clear()


def created_since(gateway: FakeGateway) -> list[LedgerId]:
    return [ledger_id for ledger_id in gateway.store.records if ledger_id != SEVEN]


@pytest.mark.asyncio
@pytest.mark.parametrize("instance", ["one", None], ids=["tells", "old"])
async def test_a_generated_create_is_asked_again_of_the_gateway_that_knows_its_token(instance: str | None) -> None:
    async with connected(3) as (manager, gateways):
        for gateway in gateways:
            gateway.lose_answers, gateway.instance = 1, instance
        await heard_of_all(manager, gateways)
        created = await manager.create(None, METADATA)
        assert created_since(gateways[0]) == [created.ledger_id]
        assert sorted(gateway.calls for gateway in gateways) == [[], [], ["Create", "Create"]]
        assert [gateway.named for gateway in gateways if gateway.calls] == [[instance or "none"] * 2]


@pytest.mark.asyncio
@pytest.mark.parametrize("before", ["one", None], ids=["tells", "old"])
@pytest.mark.parametrize("many", [False, True])
async def test_a_generated_create_is_not_repeated_at_a_gateway_that_was_started_anew(
    before: str | None, many: bool
) -> None:
    async with connected() as (manager, (gateway,)):
        gateway.lose_answers, gateway.instance = 1, before
        await heard_of_all(manager, [gateway])
        gateway.on_lost = lambda: gateway.start_anew("two")
        create = manager.create_many([CreateRequest(None, METADATA)]) if many else manager.create(None, METADATA)
        (outcome,) = await asyncio.gather(create, return_exceptions=True)
        unknown = outcome[0] if isinstance(outcome, list) else outcome
        assert isinstance(unknown, UnknownOutcomeException)
        assert "may or may not have happened" in str(unknown)
        assert len(created_since(gateway)) == 1
        assert gateway.named == [before or "none"] * 2


@pytest.mark.asyncio
async def test_a_process_that_tells_itself_in_the_error_is_asked_again() -> None:
    async with connected() as (manager, (gateway,)):
        gateway.lose_answers, gateway.instance = 1, "one"
        created = await manager.create(None, METADATA)
        assert list(gateway.store.records) == [created.ledger_id]
        assert gateway.named == [None, "one"]


@pytest.mark.asyncio
async def test_a_generated_create_is_not_repeated_where_nothing_was_heard_yet() -> None:
    async with connected() as (manager, (gateway,)):
        gateway.lose_answers = 1
        with pytest.raises(UnknownOutcomeException, match="may or may not have happened"):
            await manager.create(None, METADATA)
        assert gateway.calls == ["Create"]


@pytest.mark.asyncio
async def test_a_generated_create_that_meets_another_process_at_first_goes_on_there() -> None:
    async with connected() as (manager, (gateway,)):
        gateway.instance = "one"
        await heard_of_all(manager, [gateway])
        gateway.start_anew("two")
        await manager.create(None, METADATA)
        await manager.create(None, METADATA)
        assert gateway.named == ["one", None, "two"]
        assert len(created_since(gateway)) == 2


@pytest.mark.asyncio
@pytest.mark.parametrize("refusal", [grpc.StatusCode.RESOURCE_EXHAUSTED, grpc.StatusCode.UNAVAILABLE])
async def test_a_repeated_generated_create_that_is_refused_does_not_go_elsewhere(refusal: grpc.StatusCode) -> None:
    async with connected(2) as (manager, gateways):
        await heard_of_all(manager, gateways)

        def refuse_from_now_on(gateway: FakeGateway) -> None:
            gateway.refuse, gateway.not_done = refusal, True

        for gateway in gateways:
            gateway.lose_answers = 1
            gateway.on_lost = partial(refuse_from_now_on, gateway)
        with pytest.raises(UnknownOutcomeException, match="may or may not have happened"):
            await manager.create(None, METADATA)
        assert len(created_since(gateways[0])) == 1


@pytest.mark.asyncio
async def test_a_generated_create_whose_gateway_is_gone_is_an_unknown_outcome() -> None:
    async with connected(2) as (manager, gateways):

        def serve_no_more() -> None:
            for gateway in gateways:
                if gateway.calls:
                    gateway.refuse = grpc.StatusCode.UNAVAILABLE

        for gateway in gateways:
            gateway.lose_answers = 1
            gateway.on_create = serve_no_more
        await heard_of_all(manager, gateways)
        with pytest.raises(UnknownOutcomeException, match="may or may not have happened"):
            await manager.create(None, METADATA)
        assert sorted(gateway.calls for gateway in gateways) == [[], ["Create"] * 4]


@pytest.mark.asyncio
@pytest.mark.parametrize("given", [None, SEVEN])
async def test_a_change_that_the_gateway_says_it_did_not_do_goes_elsewhere(given: LedgerId | None) -> None:
    async with connected(2) as (manager, gateways):
        for gateway in gateways:
            gateway.refuse, gateway.not_done = grpc.StatusCode.UNAVAILABLE, True

        async def one_recovers() -> None:
            await asyncio.gather(*(gateway.called.wait() for gateway in gateways))
            gateways[1].refuse = None

        record, _ = await asyncio.gather(manager.create(given, METADATA), one_recovers())
        assert list(gateways[0].store.records) == [record.ledger_id]


@pytest.mark.asyncio
async def test_many_ledgers_are_created_in_one_call() -> None:
    async with connected() as (manager, (gateway,)):
        await gateway.store.create(SEVEN, METADATA)
        wanted = [CreateRequest(ledger_id, METADATA) for ledger_id in (None, SEVEN, LedgerId.unscoped(8), None)]
        first, taken, eighth, second = await manager.create_many(wanted)
        assert isinstance(taken, LedgerExistException)
        assert all(isinstance(each, LedgerRecord) for each in (first, eighth, second))
        assert gateway.calls == ["BatchCreate"]
        assert len(gateway.store.records) == 4


@pytest.mark.asyncio
@pytest.mark.parametrize("forgotten", [False, True])
async def test_a_lost_answer_to_a_batch_is_resolved_a_ledger_at_a_time(forgotten: bool) -> None:
    async with connected() as (manager, (gateway,)):
        gateway.lose_answers, gateway.forget_tokens = 1, forgotten
        given = [LedgerId.unscoped(number) for number in (1, 2, 3)]
        created = await manager.create_many([CreateRequest(ledger_id, METADATA) for ledger_id in given])
        assert [each.ledger_id for each in created if isinstance(each, LedgerRecord)] == given
        assert sorted(gateway.store.records, key=lambda each: each.ledger_id) == given


@pytest.mark.asyncio
async def test_batches_are_as_large_as_a_gateway_takes() -> None:
    large = replace(METADATA, custom_metadata={"k": bytes(900_000)})
    async with connected() as (manager, (gateway,)):
        created = await manager.create_many([CreateRequest(None, large)] * 7)
        assert all(isinstance(each, LedgerRecord) for each in created)
        assert gateway.calls == ["BatchCreate"] * 3


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
async def test_a_lost_answer_to_a_write_is_resolved() -> None:
    async with connected() as (manager, (gateway,)):
        record = await manager.create(SEVEN, METADATA)
        gateway.lose_answers = 1
        written = await manager.write(SEVEN, record.metadata.begin_recovery(), 0)
        assert written.version == 1
        assert gateway.store.records[SEVEN].version == 1


@pytest.mark.asyncio
async def test_a_lost_answer_to_a_write_that_others_overwrote_is_an_unknown_outcome() -> None:
    async with connected() as (manager, (gateway,)):
        await manager.create(SEVEN, METADATA)
        gateway.lose_answers = 1

        def others(ledger_id: LedgerId, metadata: LedgerMetadata) -> None:
            if gateway.calls.count("Write") == 2:
                gateway.store.change(SEVEN, custom_metadata={})

        gateway.store.before_write = others
        with pytest.raises(UnknownOutcomeException):
            await manager.write(SEVEN, METADATA.begin_recovery(), 0)


@pytest.mark.asyncio
async def test_a_lost_answer_stays_an_unknown_outcome_when_the_repetition_is_refused() -> None:
    async with connected(timeout=1) as (manager, (gateway,)):
        await manager.create(SEVEN, METADATA)
        gateway.lose_answers = 1

        def refuse_from_now_on(ledger_id: LedgerId, metadata: LedgerMetadata) -> None:
            gateway.refuse = grpc.StatusCode.RESOURCE_EXHAUSTED

        gateway.store.before_write = refuse_from_now_on
        with pytest.raises(UnknownOutcomeException, match="may or may not"):
            await manager.write(SEVEN, METADATA.begin_recovery(), 0)
        assert gateway.store.records[SEVEN].version == 1


@pytest.mark.asyncio
async def test_whose_write_it_was_is_not_asked_of_a_gateway_that_lags_behind_the_answer() -> None:
    async with connected() as (manager, (gateway,)):
        await manager.create(SEVEN, METADATA)
        gateway.lose_answers = 1
        gateway.revision = 41
        await manager.write(SEVEN, METADATA.begin_recovery(), 0)
        assert gateway.calls[-1] == "Read"
        assert getattr(gateway.requests[-1], "min_revision", 0) == 41


@pytest.mark.asyncio
async def test_a_lost_answer_to_a_remove_counts_as_done() -> None:
    async with connected() as (manager, (gateway,)):
        await manager.create(SEVEN, METADATA)
        gateway.lose_answers = 1
        await manager.remove(SEVEN)
        assert not gateway.store.records


@pytest.mark.asyncio
async def test_calls_go_round_and_leave_a_gateway_that_is_gone() -> None:
    async with connected(3) as (manager, gateways):
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
    async with connected(2, timeout=0.3) as (manager, gateways):
        await gateways[0].stop()
        gateways[1].refuse = grpc.StatusCode.UNAVAILABLE
        with pytest.raises(MetaStoreException) as caught:
            await manager.read(SEVEN)
        for part in (
            gateways[0].address + ": no connection",
            gateways[1].address + ": UNAVAILABLE: refused by the test",
            "within 0.3 s",
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
        assert [[r.ledger_id.ledger_id for r in page] for page in pages] == [[4, 5, 6], [7, 8]]
        assert pages[0][0].metadata.custom_metadata == {"k": b"v"}


@pytest.mark.asyncio
async def test_a_slow_consumer_of_a_listing_does_not_use_up_the_gateways_time() -> None:
    async with connected(timeout=0.5) as (manager, (gateway,)):
        for number in range(5):
            await gateway.store.create(LedgerId.unscoped(number), METADATA)
        gateway.break_after_pages = 1
        listed: list[int] = []
        async for ids in manager.ledger_ranges():
            listed += ids
            await asyncio.sleep(1.2)
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
        assert [r.ledger_id.ledger_id for r in found if isinstance(r, LedgerRecord)] == [4, 0, 1, 2, 3]
        assert isinstance(found[1], NoSuchLedgerExistsOnMetadataServerException)


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


@pytest.mark.parametrize(
    ("uri", "parsed"),
    [
        ("grpc://a:1,b:2", GatewayUri(("a:1", "b:2"), None)),
        ("grpcs://a:1/", GatewayUri(("a:1",), TlsFiles())),
        ("a:1, a:1", GatewayUri(("a:1",), None)),
        ("grpc://[::1]:4181", GatewayUri(("[::1]:4181",), None)),
        ("grpcs://a:1,b:2?ca=/x/ca&key=k", GatewayUri(("a:1", "b:2"), TlsFiles(Path("/x/ca"), None, Path("k")))),
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
