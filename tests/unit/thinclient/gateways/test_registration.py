"""Keeping a bookie registered: when a gateway is left, and what the next one is told."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import grpc
import pytest

from bookgate.ledger.bookie_info import BOOKIE_RPC, LEASE_PROPERTY, BookieServiceInfo, Endpoint, Lease
from bookgate.ledger.errors import IncorrectParameterException, LedgerExistException, MetadataFormatException
from bookgate.protos.bookkeeper.common.v1.status_pb2 import StatusCode
from bookgate.protos.bookkeeper.gateway.v1 import registration_service_pb2 as wire
from bookgate.protos.bookkeeper.gateway.v1.registration_service_pb2_grpc import (
    RegistrationServiceServicer,
    add_RegistrationServiceServicer_to_server,
)
from bookgate.thinclient.gateways.factory import RpcLedgerManagerFactory

INFO = BookieServiceInfo("b-1")
State = wire.RegistrationState
LEASE_MS = 800


class Gateway(RegistrationServiceServicer):
    """Answers every request with `state`, and notes what it was asked."""

    def __init__(self) -> None:
        self.state: int = State.REGISTRATION_STATE_REGISTERED
        self.code: int = StatusCode.SUCCESS
        self.silent = False
        self.answering = asyncio.Event()
        """Answers wait for it."""
        self.answering.set()
        self.streams: list[list[wire.RegisterRequest]] = []
        self.cut = asyncio.Event()
        self.ended = asyncio.Event()
        self.asked = asyncio.Event()
        self.cookies: dict[str, wire.ReadCookieResponse] = {}
        self.lose_answers = 0
        self.address = ""

    async def Register(
        self, request_iterator: AsyncIterator[wire.RegisterRequest], context: grpc.aio.ServicerContext[Any, Any]
    ) -> AsyncIterator[wire.RegisterResponse]:
        requests: list[wire.RegisterRequest] = []
        self.streams.append(requests)
        try:
            async for request in request_iterator:
                requests.append(request)
                self.asked.set()
                if self.cut.is_set():
                    await context.abort(grpc.StatusCode.UNAVAILABLE, "cut by the test")
                if self.silent:
                    continue
                await self.answering.wait()
                state = State.REGISTRATION_STATE_UNREGISTERED if request.unregister else self.state
                yield wire.RegisterResponse(
                    code=self.code,  # type: ignore[arg-type]
                    sequence=request.sequence,
                    state=state,  # type: ignore[arg-type]
                    lease_ms=LEASE_MS,
                    message="as the test says",
                )
        finally:
            self.ended.set()

    async def WriteCookie(
        self, request: wire.WriteCookieRequest, context: grpc.aio.ServicerContext[Any, Any]
    ) -> wire.WriteCookieResponse:
        if request.bookie_id in self.cookies:
            return wire.WriteCookieResponse(code=StatusCode.BAD_VERSION)
        self.cookies[request.bookie_id] = wire.ReadCookieResponse(cookie=request.cookie, version=0)
        if self.lose_answers:
            self.lose_answers -= 1
            await context.abort(grpc.StatusCode.UNAVAILABLE, "answer lost")
        return wire.WriteCookieResponse()

    async def RemoveCookie(
        self, request: wire.RemoveCookieRequest, context: grpc.aio.ServicerContext[Any, Any]
    ) -> wire.RemoveCookieResponse:
        found = self.cookies.pop(request.bookie_id, None)
        if self.lose_answers:
            self.lose_answers -= 1
            await context.abort(grpc.StatusCode.UNAVAILABLE, "answer lost")
        return wire.RemoveCookieResponse(code=StatusCode.SUCCESS if found else StatusCode.BAD_VERSION)

    async def ReadCookie(
        self, request: wire.ReadCookieRequest, context: grpc.aio.ServicerContext[Any, Any]
    ) -> wire.ReadCookieResponse:
        return self.cookies.get(request.bookie_id, wire.ReadCookieResponse())


@asynccontextmanager
async def setting() -> AsyncIterator[tuple[RpcLedgerManagerFactory, list[Gateway]]]:
    gateways, servers = [Gateway(), Gateway()], []
    for gateway in gateways:
        server = grpc.aio.server()
        add_RegistrationServiceServicer_to_server(gateway, server)
        gateway.address = f"127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}"
        await server.start()
        servers.append(server)
    factory = RpcLedgerManagerFactory("grpc://" + ",".join(gateway.address for gateway in gateways), timeout=5)
    try:
        yield factory, gateways
    finally:
        await factory.close()
        for server in servers:
            await server.stop(None)


def holder_and_other(gateways: list[Gateway]) -> tuple[Gateway, Gateway]:
    first, second = sorted(gateways, key=lambda gateway: not gateway.streams)
    return first, second


def lease_of(stream: list[wire.RegisterRequest]) -> Lease:
    return Lease.of(stream[0].lease.lease_id, stream[0].lease.epoch)


@pytest.mark.asyncio
@pytest.mark.parametrize("how", ["cut", "silent", "suspended", "draining", "refused"])
async def test_a_gateway_is_left_for_another_with_a_higher_epoch(how: str) -> None:
    async with setting() as (factory, gateways):
        await factory.registration_manager.register_bookie(INFO, read_only=False)
        first, second = holder_and_other(gateways)
        match how:
            case "cut":
                first.cut.set()
            case "silent":
                first.silent = True
            case "suspended":
                first.state = State.REGISTRATION_STATE_SUSPENDED
            case "draining":
                first.state = State.REGISTRATION_STATE_DRAINING
            case "refused":
                first.state = State.REGISTRATION_STATE_HELD_BY_ANOTHER
        await second.asked.wait()
        await first.ended.wait()
        before, after = lease_of(first.streams[0]), lease_of(second.streams[0])
        assert after.digest == before.digest
        assert after.epoch > before.epoch
        # Its mode is now changed where it is.
        await factory.registration_manager.register_bookie(INFO, read_only=True)
        assert any(request.read_only for request in second.streams[-1])


@pytest.mark.asyncio
async def test_a_stream_that_still_stands_is_kept_until_the_next_gateway_has_the_bookie() -> None:
    async with setting() as (factory, gateways):
        await factory.registration_manager.register_bookie(INFO, read_only=False)
        first, second = holder_and_other(gateways)
        second.state = State.REGISTRATION_STATE_PENDING
        first.state = State.REGISTRATION_STATE_SUSPENDED
        await second.asked.wait()
        first.asked.clear()
        await first.asked.wait()
        assert not first.ended.is_set()
        second.state = State.REGISTRATION_STATE_REGISTERED
        # What was asked while pending is answered when it is asked anew.
        second.cut.set()
        await second.ended.wait()
        second.cut.clear()
        await first.ended.wait()


@pytest.mark.asyncio
async def test_a_mode_that_changes_during_a_move_is_told_to_the_next_gateway_too() -> None:
    """It was told to the former gateway only, which still had the bookie; the next one kept the mode from before."""
    async with setting() as (factory, gateways):
        await factory.registration_manager.register_bookie(INFO, read_only=False)
        first, second = holder_and_other(gateways)
        second.answering.clear()
        first.state = State.REGISTRATION_STATE_DRAINING
        await second.asked.wait()
        first.state = State.REGISTRATION_STATE_REGISTERED
        await factory.registration_manager.register_bookie(INFO, read_only=True)
        assert any(request.read_only for request in first.streams[0])
        assert not second.streams[0][0].read_only
        second.answering.set()
        await first.ended.wait()
        described = [request for request in second.streams[0] if request.HasField("bookie")]
        assert [request.read_only for request in described] == [False, True]


@pytest.mark.asyncio
async def test_a_gateway_that_answers_and_never_registers_is_left() -> None:
    """Its store has a connection and refuses everything: heartbeats were answered, and it was kept for ever."""
    async with setting() as (factory, gateways):
        sick, well = gateways
        sick.state = State.REGISTRATION_STATE_PENDING
        manager = factory.registration_manager
        for _ in gateways:
            await manager.register_bookie(INFO, read_only=False)
            await manager.unregister_bookie("b-1")
        assert sick.streams
        await manager.register_bookie(INFO, read_only=False)
        # One that gets so later is left with the next change.
        sick.state, well.state = well.state, sick.state
        await manager.register_bookie(INFO, read_only=True)
        assert sick.streams[-1][0].read_only


@pytest.mark.asyncio
async def test_the_first_registration_may_be_refused() -> None:
    async with setting() as (factory, gateways):
        for gateway in gateways:
            gateway.state, gateway.code = State.REGISTRATION_STATE_HELD_BY_ANOTHER, StatusCode.UNEXPECTED
        with pytest.raises(LedgerExistException, match="as the test says"):
            await factory.registration_manager.register_bookie(INFO, read_only=False)
        for gateway in gateways:
            gateway.code = StatusCode.BAD_REQUEST
        with pytest.raises(IncorrectParameterException, match="as the test says"):
            await factory.registration_manager.register_bookie(INFO, read_only=False)


@pytest.mark.asyncio
async def test_heartbeats_come_and_the_end_is_said() -> None:
    async with setting() as (factory, gateways):
        await factory.registration_manager.register_bookie(INFO, read_only=False)
        first, _ = holder_and_other(gateways)
        while len(first.streams[0]) < 4:
            first.asked.clear()
            await first.asked.wait()
        assert [request.HasField("bookie") for request in first.streams[0]][:4] == [True, False, False, False]
        await factory.registration_manager.unregister_bookie("b-1")
        assert first.streams[0][-1].unregister
        await factory.registration_manager.unregister_bookie("b-1")


@pytest.mark.asyncio
async def test_a_lost_answer_to_a_cookie_is_found_to_be_ours() -> None:
    async with setting() as (factory, gateways):
        shared = gateways[0].cookies
        for gateway in gateways:
            gateway.cookies, gateway.lose_answers = shared, 1
        await factory.registration_manager.write_cookie("b-1", b"cookie", None)
        assert shared["b-1"].cookie == b"cookie"
        for gateway in gateways:
            gateway.lose_answers = 1
        await factory.registration_manager.remove_cookie("b-1", 0)
        assert not shared


def test_a_lease_replaces_its_earlier_epochs_only() -> None:
    def stored(lease_id: str, epoch: int) -> bytes:
        return INFO.with_lease(Lease.of(lease_id, epoch)).encode()

    mine = INFO.with_lease(Lease.of("x", 5))
    assert [mine.may_replace(stored("x", epoch)) for epoch in (4, 5, 6)] == [True, True, False]
    assert [mine.superseded_by(stored("x", epoch)) for epoch in (4, 5, 6)] == [False, False, True]
    for other in (stored("y", 1), INFO.encode(), b"", b"\xff"):
        assert not mine.may_replace(other)
        assert not mine.superseded_by(other)
    assert not INFO.may_replace(stored("x", 1))


def test_a_stored_lease_does_not_give_its_id_away_and_is_known_again() -> None:
    mine = INFO.with_lease(Lease.of("secret", 5))
    assert b"secret" not in mine.encode()
    assert BookieServiceInfo.decode("b-1", mine.encode()).lease == Lease.of("secret", 5)
    # As gateways before stored it: one that is upgraded takes the bookie over from one that is not.
    earlier = replace(INFO, properties={LEASE_PROPERTY: "secret/5"})
    assert mine.may_replace(earlier.encode())
    assert BookieServiceInfo.announced("b-1", mine.encode()) == INFO
    # What is stored is no lease id.
    digest = mine.properties[LEASE_PROPERTY].partition("/")[0]
    for guess in (digest, digest.removeprefix("sha256:")):
        assert not INFO.with_lease(Lease.of(guess, 9)).may_replace(mine.encode())


@pytest.mark.parametrize("text", [b"aaaa", b"kkkk", b"vvvv", b"hhhh"])
def test_a_registration_with_text_that_is_not_utf_8_counts_as_one_without_content(text: bytes) -> None:
    info = BookieServiceInfo("host:3181", (Endpoint("aaaa", "hhhh", 1, BOOKIE_RPC),), {"kkkk": "vvvv"})
    content = info.encode().replace(text, b"\xff\xfe\xfd\xfc")
    with pytest.raises(MetadataFormatException, match="host:3181"):
        BookieServiceInfo.decode("host:3181", content)
    assert BookieServiceInfo.announced("host:3181", content) == BookieServiceInfo.legacy("host:3181")
