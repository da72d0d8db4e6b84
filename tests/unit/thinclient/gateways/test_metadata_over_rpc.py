"""Metadata through gateways that fail: repetition, outcomes that were lost (M4, M6)."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from dataclasses import replace
from functools import partial

import grpc
import pytest

from bookgate.ledger.errors import (
    BKException,
    LedgerExistException,
    MetadataVersionException,
    NoSuchLedgerExistsOnMetadataServerException,
    UnknownOutcomeException,
)
from bookgate.ledger.ledger_id import LedgerId
from bookgate.ledger.metadata import LedgerMetadata
from bookgate.ledger.metadata_store import CreateRequest, LedgerRecord
from bookgate.protos.bookkeeper.gateway.v1 import ledger_metadata_service_pb2 as wire
from bookgate.thinclient.client import BookKeeper
from bookgate.thinclient.gateways.discovery import NoRevisionException
from bookgate.thinclient.gateways.factory import RpcLedgerManagerFactory
from bookgate.thinclient.gateways.ledger_manager import RpcLedgerManager
from tests.unit.thinclient.fake_gateway import METADATA, SEVEN, FakeGateway, connected, fake_gateways


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
async def test_a_write_that_is_made_once_is_not_repeated_where_its_answer_was_lost() -> None:
    async with connected() as (manager, (gateway,)):
        created = await manager.create(SEVEN, METADATA)
        assert (await manager.write_once(SEVEN, created.metadata, 0)).version == 1
        gateway.calls.clear()
        gateway.lose_answers = 1
        with pytest.raises(UnknownOutcomeException):
            await manager.write_once(SEVEN, created.metadata, 1)
        assert gateway.calls == ["Write"]
        with pytest.raises(MetadataVersionException):
            await manager.write_once(SEVEN, created.metadata, 1)
        assert (await manager.read(SEVEN)).version == 2


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


@pytest.mark.asyncio
@pytest.mark.parametrize(
    ("password", "told"),
    [(b"planted-p", UnknownOutcomeException), (b"other", LedgerExistException)],
    ids=["alike", "another's"],
)
async def test_a_given_create_whose_answer_was_lost_can_not_be_told_once_the_ledger_was_changed(
    password: bytes, told: type[BKException]
) -> None:
    """The first change drops the creator's token, and the creator was told that it had not created the ledger."""
    async with connected() as (manager, (gateway,)):
        gateway.lose_answers, gateway.forget_tokens = 1, True

        def others_change_it() -> None:
            changed = replace(METADATA, password=password).begin_recovery()
            gateway.store.records[SEVEN] = LedgerRecord(SEVEN, changed, 1)

        gateway.on_lost = others_change_it
        with pytest.raises(told):
            await manager.create(SEVEN, METADATA)


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
        assert sorted(gateway.store.records, key=lambda each: each.low) == given


@pytest.mark.asyncio
async def test_batches_are_as_large_as_a_gateway_takes() -> None:
    large = replace(METADATA, custom_metadata={"k": bytes(900_000)})
    async with connected() as (manager, (gateway,)):
        created = await manager.create_many([CreateRequest(None, large)] * 7)
        assert all(isinstance(each, LedgerRecord) for each in created)
        assert gateway.calls == ["BatchCreate"] * 3


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
async def test_after_a_catch_up_no_request_takes_an_older_answer() -> None:
    async with fake_gateways() as (uri, (gateway,)):
        factory = RpcLedgerManagerFactory(uri)
        gateway.revision = 41
        await gateway.store.create(SEVEN, METADATA)
        await factory.catch_up(40)
        assert gateway.calls == []
        await factory.catch_up(None)
        await factory.ledger_manager.read(SEVEN)
        request = gateway.requests[-1]
        assert isinstance(request, wire.LedgerMetadataRequest)
        assert request.min_revision == 41
        await factory.close()


@pytest.mark.asyncio
async def test_a_client_catches_up() -> None:
    async with fake_gateways() as (uri, (gateway,)):
        gateway.revision = 41
        async with await BookKeeper.connect(uri) as client:
            await client.catch_up()
            with suppress(NoSuchLedgerExistsOnMetadataServerException):
                await client.read_record(7)
        assert getattr(gateway.requests[-1], "min_revision", 0) == 41


@pytest.mark.asyncio
async def test_a_gateway_that_does_not_catch_up_is_no_reason_to_go_on() -> None:
    async with fake_gateways() as (uri, _gateways):
        factory = RpcLedgerManagerFactory(uri)
        with pytest.raises(NoRevisionException, match="tells no revision; it is older than this client"):
            await factory.catch_up(None)
        await factory.close()
