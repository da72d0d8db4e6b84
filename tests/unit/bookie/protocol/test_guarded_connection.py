"""A connection under a policy, over real frames: which requests reach the processor, whatever comes in one piece."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any, cast

import pytest

from bookgate.bookie.protocol import ledger_owners
from bookgate.bookie.protocol.authentication import TOKEN
from bookgate.bookie.protocol.guarded_connection import GuardedConnection
from bookgate.bookie.protocol.ledger_owners import LedgerOwners
from bookgate.bookie.protocol.security import Security
from bookgate.bookie.statistics import BookieStatistics
from bookgate.ledger.errors import MetaStoreException
from bookgate.ledger.wire import messages, v2
from bookgate.ledger.wire.fast_add import FastAdd
from bookgate.ledger.wire.frames import LENGTH_SIZE
from bookgate.ledger.wire.messages import OPERATIONS, AuthRequest, Request, Response, Status, StatusResponse
from bookgate.ledger.wire.v3 import decode_response, encode_request
from bookgate.runtime.security.access_control import AccessControl
from bookgate.runtime.security.authenticators import Authenticators
from bookgate.runtime.security.policy import parse_policy
from bookgate.runtime.security.principal import Kind, Principal
from tests.integration.bookie.entry_client import KEY, add, fence, lac_packet, read
from tests.unit.bookie.protocol.test_entry_access import Ledgers, entry_access

pytestmark = pytest.mark.asyncio

POLICY = """
[[bindings]]
principals = ["token:a"]
role = "reader"
[[bindings]]
principals = ["token:a", "token:slow"]
role = "writer"
owned = true
[[limits]]
principals = ["token:slow"]
adds_per_second = 1
"""
LEDGER = 7
"""Owned by `a`."""


class _Session:
    """Everybody is who they say."""

    authenticated = False
    principal: Principal | None = None

    def process(self, payload: bytes) -> bytes:
        self.principal = Principal(Kind.TOKEN, payload.decode())
        self.authenticated = True
        return b""

    def secured(self, certificate: Mapping[str, Any] | None) -> None:
        pass


class _Provider:
    name = TOKEN

    def new_session(self, peer: str) -> _Session:
        return _Session()


class _Nothing:
    """Takes every call."""

    def __getattr__(self, name: str) -> Any:
        return lambda *args, **settings: None


class _Processor:
    """Answers EOK to whatever reaches it."""

    long_polls = reads = _Nothing()

    def __init__(self) -> None:
        self.reached: list[Request] = []

    def process(self, client: Any, request: Request) -> None:
        self.reached.append(request)
        client.answer(StatusResponse(request.txn_id, OPERATIONS[type(request)], Status.EOK))

    def add(self, client: Any, fast: FastAdd) -> int:
        request = messages.AddRequest(0, fast.ledger_id, fast.entry_id, b"", b"", recovery=False)
        self.process(client, request)
        return 1

    def add_run(self, client: Any, run: Any) -> bool:
        return False


class _Transport(_Nothing):
    def __init__(self) -> None:
        self.written = b""

    def get_extra_info(self, name: str) -> tuple[str, int]:
        return "127.0.0.1", 1234

    def get_write_buffer_size(self) -> int:
        return 0

    def write(self, data: bytes) -> None:
        self.written += data


class Bench:
    def __init__(self) -> None:
        self.processor, self.transport, self.ledgers = _Processor(), _Transport(), Ledgers()
        self.ledgers.owners[LEDGER] = "token:a"
        self.access = entry_access(self.ledgers, AccessControl(Authenticators(), parse_policy(POLICY)))
        security = Security(provider=cast(Any, _Provider()))
        parts = cast(Any, self.processor), cast(Any, _Nothing()), BookieStatistics(), 1 << 20, security, self.access
        self.connection = GuardedConnection(*parts)
        self.connection.connection_made(cast(Any, self.transport))

    def receive(self, *frames: bytes) -> None:
        """In one piece."""
        data = b"".join(frames)
        self.connection.get_buffer(len(data))[: len(data)] = data
        self.connection.buffer_updated(len(data))

    def answers(self) -> list[Response]:
        """Those since the last call."""
        data, packets = self.transport.written, []
        self.transport.written = b""
        while data:
            end = LENGTH_SIZE + int.from_bytes(data[:LENGTH_SIZE], "big")
            packets.append(memoryview(data)[LENGTH_SIZE:end])
            data = data[end:]
        return [decode_response(packet) if packet[0] == 0x0A else v2.decode_response(packet) for packet in packets]

    def statuses(self) -> list[Status]:
        return [Status(answer.status) for answer in self.answers()]


def auth(who: str) -> AuthRequest:
    return AuthRequest(1, TOKEN, who.encode())


def frames(requests: Sequence[Request]) -> list[bytes]:
    return [encode_request(request) for request in requests]


ATTACKS: list[Request] = [
    add(LEDGER, 1),
    add(LEDGER, 1, recovery=True),
    read(LEDGER, 0),
    fence(LEDGER),
    messages.WriteLacRequest(101, LEDGER, 0, KEY, lac_packet(LEDGER, 0)),
    messages.ForceLedgerRequest(102, LEDGER),
    messages.ReadLacRequest(103, LEDGER),
    messages.ListEntriesRequest(104, LEDGER),
]


async def test_requests_that_come_together_with_the_token_are_under_the_policy() -> None:
    bench = Bench()
    bench.receive(*frames([auth("stranger"), *ATTACKS]))
    assert bench.statuses() == [Status.EOK, *[Status.EUA] * len(ATTACKS)]
    assert not bench.processor.reached


@pytest.mark.parametrize("token_in", ["v2", "v3"])
async def test_so_are_those_of_the_binary_protocol(token_in: str) -> None:
    bench = Bench()
    token = encode_request(auth("stranger")) if token_in == "v3" else v2.encode_request(auth("stranger"))
    bench.receive(token, *(v2.encode_request(request) for request in ATTACKS[:4]))
    assert bench.statuses()[1:] == [Status.EUA] * 4
    assert not bench.processor.reached


async def test_who_may_is_served_together_with_the_token_and_counts_as_served_in_clear() -> None:
    bench = Bench()
    await bench.access.owners.learn(LEDGER)
    wanted: list[Request] = [add(LEDGER, 1), read(LEDGER, 0), add(LEDGER, 2)]
    bench.receive(*frames([auth("a"), *wanted]))
    assert bench.statuses() == [Status.EOK] * 4
    assert [request.txn_id for request in bench.processor.reached] == [request.txn_id for request in wanted]
    assert bench.connection._served_in_clear


async def test_adds_behind_the_token_of_somebody_with_a_rate_are_charged_to_that_one() -> None:
    """Also those of the short way, in the piece with the token."""
    bench = Bench()
    bench.ledgers.owners[LEDGER + 1] = "token:slow"
    for ledger in (LEDGER, LEDGER + 1):
        await bench.access.owners.learn(ledger)
    bench.receive(*frames([auth("a")]))
    bench.receive(*frames([add(LEDGER, 0)]))
    bench.receive(*frames([add(LEDGER, 1), auth("slow"), *(add(LEDGER + 1, number) for number in range(6))]))
    assert bench.statuses() == [Status.EOK] * 10
    control = bench.access.control
    assert control.counts["entry", "token", "limited"] == 1
    assert control.rates.charge(control.policy, Principal(Kind.TOKEN, "slow"), "adds_per_second", 0.0, 0) == 5.0


async def learnt(bench: Bench) -> None:
    """Until no look-up of an owner is under way."""
    await asyncio.gather(*bench.connection._lookups)


@pytest.mark.parametrize(
    ("error", "told"),
    [(None, Status.EUA), (MetaStoreException("away"), Status.EIO), (ZeroDivisionError("a bug"), Status.EIO)],
    ids=["no such ledger", "store away", "a bug"],
)
async def test_what_waits_behind_a_request_for_its_owner_is_told_what_it_would_be_told_alone(
    error: Exception | None, told: Status, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`a` may read all ledgers, add to its own, and fence none of others."""

    async def learn(_owners: LedgerOwners, _number: int) -> bool:
        if error is not None:
            raise error
        return False

    monkeypatch.setattr(LedgerOwners, "learn", learn)
    bench = Bench()
    may = read(LEDGER, 0)
    bench.receive(*frames([auth("a"), add(LEDGER, 1), may, add(LEDGER, 2)]))
    await learnt(bench)
    assert bench.statuses() == [Status.EOK, told, Status.EOK, told]
    assert bench.processor.reached == [may]


async def test_what_was_decided_before_a_wait_for_the_owner_does_not_outlive_the_ledger(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """`slow` reads its own ledgers only: one was deleted, and made by `a`, while an add to it waited."""
    monkeypatch.setattr(ledger_owners, "_MOST", 1)
    bench = Bench()
    bench.ledgers.owners[LEDGER] = "token:slow"
    await bench.access.owners.learn(LEDGER)
    bench.receive(*frames([auth("slow"), read(LEDGER, 0)]))
    assert bench.statuses() == [Status.EOK, Status.EOK]
    bench.ledgers.owners[LEDGER + 1] = "token:a"
    await bench.access.owners.learn(LEDGER + 1)
    bench.ledgers.go_on.clear()
    bench.receive(*frames([add(LEDGER, 1), read(LEDGER, 0)]))
    await asyncio.sleep(0)
    bench.ledgers.owners[LEDGER] = "token:a"
    bench.access.owners.forget([LEDGER])
    bench.ledgers.go_on.set()
    await learnt(bench)
    assert bench.statuses() == [Status.EUA, Status.EUA]
