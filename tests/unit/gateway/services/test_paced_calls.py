"""Calls over their rate: a few are refused at once, the others answered at the rate, one after the other."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Any, cast

import grpc

from bookgate.gateway.services.access import Guard, MethodGate
from bookgate.gateway.services.turns import Turns
from bookgate.protos.bookkeeper.gateway.v1.ledger_metadata_service_pb2 import LedgerMetadataRequest
from bookgate.runtime.security.access_control import AccessControl
from bookgate.runtime.security.actions import Action
from bookgate.runtime.security.authenticators import Authenticators
from bookgate.runtime.security.policy import parse_policy
from tests.unit.virtual_time import VirtualTime

RATE = 400
POLICY = f"""
[[bindings]]
principals = ["tls:*"]
role = "reader"
[[limits]]
principals = ["tls:CN=flood"]
calls_per_second = {RATE}
"""


class Context:
    """Of a call with a client's certificate."""

    def peer(self) -> str:
        return "ipv4:127.0.0.1:5"

    def auth_context(self) -> dict[str, tuple[bytes, ...]]:
        return {"x509_subject": (b"CN=flood",)}

    def trailing_metadata(self) -> tuple[()]:
        return ()

    async def abort(self, code: grpc.StatusCode, details: str, trailing: Any) -> None:
        raise grpc.aio.AbortError(code.name)


class Flood:
    """Callers that call again at once, whatever they are told. When each call ended, by outcome."""

    def __init__(self, callers: int) -> None:
        guard = Guard(AccessControl(Authenticators(certificates=True), parse_policy(POLICY)), Turns())
        guard.saw(())
        self._gate = MethodGate(guard, "/service/Read", Action.LEDGER_READ)
        self._callers = callers
        self.ended: dict[str, list[float]] = {"OK": [], "RESOURCE_EXHAUSTED": []}

    async def run(self, seconds: float) -> None:
        calls = [asyncio.ensure_future(self._call_for_ever()) for _ in range(self._callers)]
        await asyncio.sleep(seconds)
        for each in calls:
            each.cancel()
        await asyncio.gather(*calls, return_exceptions=True)

    async def _call_for_ever(self) -> None:
        while True:
            outcome = await self.call()
            self.ended[outcome].append(asyncio.get_running_loop().time())

    async def call(self) -> str:
        request = LedgerMetadataRequest()
        try:
            if (waiting := self._gate.enter(request, cast(Any, Context()))) is not None:
                await waiting
        except grpc.aio.AbortError as error:
            return str(error)
        self._gate.leave(request, "SUCCESS", 0.0)
        return "OK"


async def test_a_flood_is_answered_at_its_rate_in_no_bursts(virtual_time: VirtualTime) -> None:
    flood = Flood(RATE // 2)
    began = asyncio.get_running_loop().time()
    await flood.run(11)
    answered, refused = ([at - began for at in flood.ended[outcome]] for outcome in ("OK", "RESOURCE_EXHAUSTED"))
    assert RATE * 11 <= len(answered) <= RATE * 12 + 1
    slices = Counter(int(at * 10) for at in answered if 1 <= at < 11)
    assert max(slices.values()) <= 1.5 * RATE / 10, "what its rate left over came all at once"
    assert len([at for at in refused if at >= 1]) <= RATE / 10, "refused though its turn came soon"


async def test_who_would_wait_too_long_is_refused_when_it_has_waited(virtual_time: VirtualTime) -> None:
    flood = Flood(RATE * 10)
    await flood.run(4)
    answered, refused = flood.ended["OK"], flood.ended["RESOURCE_EXHAUSTED"]
    assert len(answered) <= RATE * 5 + 1
    assert len(refused) <= 4 * 2 * RATE * 10 + 200, "each is held for half a second at least"


async def test_who_goes_away_gives_its_place_back(virtual_time: VirtualTime) -> None:
    flood = Flood(RATE)
    await flood.run(3)
    gone = asyncio.get_running_loop().time()
    assert await flood.call() == "OK"
    assert asyncio.get_running_loop().time() - gone < 0.1, "it waited for calls that are there no more"
