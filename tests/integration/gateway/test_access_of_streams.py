"""Streams of a gateway with security: their principal stays, and what it may do follows the policy."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from pathlib import Path
from typing import Any

import grpc
import pytest
from google.protobuf.message_factory import GetMessageClass

from bookgate.ledger.bookie_info import BOOKIE_RPC, BookieServiceInfo, Endpoint
from bookgate.ledger.ledger_id import LedgerId
from bookgate.ledger.metadata_store import CreateRequest
from bookgate.protos.bookkeeper.common.v1.status_pb2 import StatusCode
from bookgate.protos.bookkeeper.gateway.v1 import ledger_metadata_service_pb2 as lm
from bookgate.protos.bookkeeper.gateway.v1 import replication_service_pb2 as rp
from tests.access_policy import look_at_files
from tests.integration.gateway.conftest import some_metadata
from tests.integration.gateway.guarded import POLICY, Guarded, guarded_gateway, outcome, path_of
from tests.integration.gateway.test_access import METHODS, created, on, request_of

pytestmark = pytest.mark.asyncio


class Watching:
    """A Watch stream of one caller."""

    def __init__(self, channel: grpc.aio.Channel, bearer: tuple[tuple[str, str], ...]) -> None:
        watch = channel.stream_stream(
            path_of(METHODS["Watch"]),
            lm.LedgerMetadataRequest.SerializeToString,
            lm.LedgerMetadataResponse.FromString,
        )
        self.rpc: Any = watch(metadata=bearer)

    async def subscribe(self, ledger: int) -> lm.LedgerMetadataResponse:
        """The first answer."""
        await self.rpc.write(on(ledger))
        return await self.told()

    async def told(self) -> lm.LedgerMetadataResponse:
        """The next answer about a ledger."""
        async with asyncio.timeout(30):
            while (answer := await self.rpc.read()).event == lm.WatchEvent.BOOKMARK:
                pass
        assert isinstance(answer, lm.LedgerMetadataResponse)
        return answer


async def touch(gateway: Guarded, ledger: int) -> None:
    """A next version with the same content."""
    manager, ledger_id = gateway.factory.ledger_manager, LedgerId.unscoped(ledger)
    record = await manager.read(ledger_id)
    await manager.write(ledger_id, record.metadata, record.version)


async def test_a_principal_has_so_many_streams_whatever_others_have(tmp_path: Path) -> None:
    few = '[[limits]]\nprincipals = ["token:reader"]\nstreams = 1\n'
    async with guarded_gateway(tmp_path, POLICY + few) as gateway, gateway.channel() as channel:
        ledger = (await created(gateway, channel, "team-a")).ledger_id
        first, other = (Watching(channel, gateway.bearer(name)) for name in ("reader", "admin"))
        for stream in (first, other):
            assert (await stream.subscribe(ledger)).version == 0
        with pytest.raises(grpc.aio.AioRpcError, match="token:reader has 1 streams here, its limit") as refused:
            await Watching(channel, gateway.bearer("reader")).rpc.read()
        assert refused.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert int(dict(refused.value.trailing_metadata() or ())["retry-after-ms"]) > 0
        assert (await Watching(channel, gateway.bearer("admin")).subscribe(ledger)).version == 0
        # What it has goes on.
        await touch(gateway, ledger)
        assert (await first.told()).version == 1


READS_ALL = '[[bindings]]\nprincipals = ["token:team-a"]\nrole = "reader"\n'


async def test_a_policy_that_changes_ends_watches_that_it_denies(tmp_path: Path) -> None:
    async with guarded_gateway(tmp_path, POLICY + READS_ALL) as gateway, gateway.channel() as channel:
        owners = ("team-a", "team-b", "team-b", "team-b")
        mine, *others = [(await created(gateway, channel, each)).ledger_id for each in owners]
        stream = Watching(channel, gateway.bearer("team-a"))
        for ledger in (mine, *others):
            assert (await stream.subscribe(ledger)).version == 0
        gateway.policy_file.write_text(POLICY)
        # Nothing happens to the ledgers.
        ended = [await stream.told() for _ in others]
        assert {(each.ledger_id, each.code) for each in ended} == {
            (each, StatusCode.PERMISSION_DENIED) for each in others
        }
        denied = [row for row in gateway.audit() if row["outcome"] == "denied"]
        assert [row["principal"] for row in denied] == ["token:team-a"], "a line a stream"
        assert denied[0]["resource"] in {f"ledger:{each}" for each in others}
        for ledger in (*others, mine):
            await touch(gateway, ledger)
        assert (await stream.told()).ledger_id == mine, "and nothing more of the other"
        assert gateway.server.watches.hub.ledger_count == 1
        stream.rpc.cancel()


def opened(channel: grpc.aio.Channel, name: str, bearer: tuple[tuple[str, str], ...]) -> Any:
    """A stream, with its one request where it takes no more."""
    method = METHODS[name]
    answers = GetMessageClass(method.output_type).FromString
    form: Any = channel.stream_stream if method.client_streaming else channel.unary_stream
    rpc = form(path_of(method), lambda message: message.SerializeToString(), answers)
    return rpc(*([] if method.client_streaming else [request_of(name)]), metadata=bearer)


async def code_of(stream: Any) -> grpc.StatusCode:
    """With which a stream ends."""
    with suppress(grpc.aio.AioRpcError):
        async with asyncio.timeout(30):
            while await stream.read() is not grpc.aio.EOF:
                pass
    code: grpc.StatusCode = await stream.code()
    return code


async def test_other_streams_end_once_their_callers_are_denied(tmp_path: Path) -> None:
    async with guarded_gateway(tmp_path) as gateway, gateway.channel() as channel:
        ledger = (await created(gateway, channel, "admin")).ledger_id
        bookie = BookieServiceInfo("bookie-1", (Endpoint("bookie", "b", 3181, BOOKIE_RPC),))
        attend = [rp.AttendRequest(sequence=number, session_id="s" * 16) for number in (1, 2)]

        discovery, feed, session = [
            opened(channel, name, gateway.bearer("bookie-1")) for name in ("WatchBookies", "WatchLedgers", "Attend")
        ]
        await session.write(attend[0])
        for stream in (discovery, feed, session):
            await stream.read()
        gateway.policy_file.write_text('[[bindings]]\nprincipals = ["token:admin"]\nrole = "admin"\n')
        look_at_files(gateway.access)
        await gateway.factory.registration_manager.register_bookie(bookie, read_only=False)
        await touch(gateway, ledger)
        await session.write(attend[1])
        for stream in (discovery, feed, session):
            assert await code_of(stream) is grpc.StatusCode.PERMISSION_DENIED


async def test_who_may_watch_and_not_read_sees_nothing(tmp_path: Path) -> None:
    watcher = (
        '[roles.watcher]\nactions = ["ledger.watch"]\n[[bindings]]\nprincipals = ["token:team-a"]\nrole = "watcher"\n'
    )
    async with guarded_gateway(tmp_path, POLICY + watcher) as gateway, gateway.channel() as channel:
        mine, others = [(await created(gateway, channel, each)).ledger_id for each in ("team-a", "team-b")]
        stream = Watching(channel, gateway.bearer("team-a"))
        assert (await stream.subscribe(others)).code == StatusCode.PERMISSION_DENIED
        assert (await stream.subscribe(mine)).code == StatusCode.SUCCESS
        stream.rpc.cancel()


async def test_a_stream_keeps_its_principal_and_the_next_call_does_not(tmp_path: Path) -> None:
    async with guarded_gateway(tmp_path) as gateway, gateway.channel() as channel:
        ledger = (await created(gateway, channel, "team-b")).ledger_id
        bearer = gateway.bearer("reader")
        stream = Watching(channel, bearer)
        assert (await stream.subscribe(ledger)).version == 0
        gateway.token_file.write_text(gateway.tokens["admin"][1])
        async with asyncio.timeout(30):
            while await outcome(channel, METHODS["Read"], on(ledger), bearer) != "UNAUTHENTICATED":
                pass
        await touch(gateway, ledger)
        assert (await stream.told()).version == 1
        # What it may see is the policy's to say.
        gateway.policy_file.write_text('[[bindings]]\nprincipals = ["token:admin"]\nrole = "admin"\n')
        assert (await stream.told()).code == StatusCode.PERMISSION_DENIED
        stream.rpc.cancel()


SLOW = '[[limits]]\nprincipals = ["token:team-a"]\nlisted_ids_per_second = 1000\n'


@pytest.mark.parametrize("later", ["", READS_ALL], ids=["nothing", "no passwords"])
@pytest.mark.parametrize("name", ["Iterate", "BatchRead"])
async def test_a_listing_tells_no_more_than_the_policy_allows_now(tmp_path: Path, name: str, later: str) -> None:
    """A caller that pays by the second is asked again before each message."""
    admin = '[[bindings]]\nprincipals = ["token:admin", "token:team-a"]\nrole = "admin"\n'
    async with guarded_gateway(tmp_path, admin + SLOW) as gateway, gateway.channel() as channel:
        await gateway.factory.ledger_manager.create_many(
            [CreateRequest(LedgerId.unscoped(number), some_metadata()) for number in range(1500)]
        )
        request: Any = lm.GetLedgerRangesRequest(include_metadata=True, limit_per_response=200)
        if name == "BatchRead":
            request = lm.BatchReadRequest(ledger_ids=range(1500))
        rpc: Any = channel.unary_stream(
            path_of(METHODS[name]),
            type(request).SerializeToString,
            GetMessageClass(METHODS[name].output_type).FromString,
        )
        stream = rpc(request, metadata=gateway.bearer("team-a"))
        await stream.read()
        gateway.policy_file.write_text(later + SLOW)
        look_at_files(gateway.access)
        told = 0
        with suppress(grpc.aio.AioRpcError):
            while (answer := await stream.read()) is not grpc.aio.EOF:
                ledgers = answer.ledgers if name == "Iterate" else [answer]
                told += sum(each.metadata.password != b"" for each in ledgers)
        # Flow control: what the gateway sent before.
        assert told <= 1000
        ends = grpc.StatusCode.PERMISSION_DENIED
        if later:
            ends = grpc.StatusCode.UNAVAILABLE if name == "Iterate" else grpc.StatusCode.OK
        assert await stream.code() is ends
