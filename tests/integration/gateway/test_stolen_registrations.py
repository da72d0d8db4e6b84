"""Two gateways with security on one store: leases and sessions that are replayed, overheard or replaced.

A lease is `(id, epoch)`; whoever has overheard it, or kept it, sends it to any gateway. `admin` may register any bookie
id, so that only the principal of the lease stands between him and the registration.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable
from contextlib import AsyncExitStack
from typing import Any

import grpc
import pytest
import pytest_asyncio
from google.protobuf.message import Message

from bookgate.gateway.stores.sqlite.factory import SqliteLedgerManagerFactory
from bookgate.ledger.bookie_info import BookieServiceInfo
from bookgate.ledger.ledger_id import LedgerId
from bookgate.ledger.metadata_codec import to_format
from bookgate.protos.bookkeeper.common.v1.status_pb2 import StatusCode
from bookgate.protos.bookkeeper.gateway.v1 import registration_service_pb2 as rs
from bookgate.protos.bookkeeper.gateway.v1 import replication_service_pb2 as rp
from bookgate.protos.bookkeeper.gateway.v1 import service_discovery_pb2 as sd
from tests.integration.gateway.conftest import some_metadata
from tests.integration.gateway.guarded import Guarded, call, guarded_gateways, methods, outcome, path_of

pytestmark = pytest.mark.asyncio(loop_scope="module")

METHODS = {method.name: method for method in methods()}
LEASE_SECONDS = 2.0
"""At gateways and in the store: whoever waits for an id waits for the end of a lease."""

REGISTERED, HELD = "REGISTERED", "HELD_BY_ANOTHER"


class Side:
    """One of the gateways, and a connection to it."""

    def __init__(self, gateway: Guarded, channel: grpc.aio.Channel) -> None:
        self.gateway = gateway
        self._channel = channel

    async def answer(self, name: str, request: Message, who: str) -> Any:
        return await call(self._channel, METHODS[name], request, self.gateway.bearer(who))

    async def code(self, name: str, request: Message, who: str) -> str:
        return await outcome(self._channel, METHODS[name], request, self.gateway.bearer(who))

    async def stored_principal(self, bookie_id: str) -> str | None:
        """Whose registration the store has, as gateways see it and nobody else."""
        store = self.gateway.factory
        assert isinstance(store, SqliteLedgerManagerFactory)
        query = "SELECT content, read_only FROM registrations WHERE bookie_id = ?"
        row = await store.store.read(lambda connection: connection.execute(query, (bookie_id,)).fetchone())
        if row is None:
            return None
        info = BookieServiceInfo.decode(bookie_id, row[0])
        stands = await store.registration_manager.is_registered(info, read_only=bool(row[1]))
        return info.principal if stands else None

    def register(self, who: str) -> Stream:
        rpc: Any = self._channel.stream_stream(
            path_of(METHODS["Register"]), rs.RegisterRequest.SerializeToString, rs.RegisterResponse.FromString
        )
        return Stream(rpc(metadata=self.gateway.bearer(who)))


class Stream:
    """A stream of one registration."""

    def __init__(self, call: Any) -> None:
        self._call = call
        self._sequence = 0

    async def send(self, request: rs.RegisterRequest) -> str:
        """The state that answers the request."""
        self._sequence += 1
        request.sequence = self._sequence
        await self._call.write(request)
        while (answer := await self._call.read()) is not grpc.aio.EOF:
            if answer.sequence == self._sequence:
                name: str = rs.RegistrationState.Name(answer.state).removeprefix("REGISTRATION_STATE_")
                return name if answer.state else StatusCode.Name(answer.code)
        return "ended"

    def cancel(self) -> None:
        self._call.cancel()


async def refused(attempt: Awaitable[str], holder: Stream) -> bool:
    """Whether the attempt is refused while the holder's heartbeats go on."""
    trying = asyncio.ensure_future(attempt)
    while not trying.done():
        assert await holder.send(rs.RegisterRequest()) == REGISTERED
        await asyncio.wait([trying], timeout=LEASE_SECONDS / 4)
    return trying.result() == HELD


def lease(name: str, epoch: int, bookie: str = "bookie-1", *, read_only: bool = False) -> rs.RegisterRequest:
    return rs.RegisterRequest(
        bookie=sd.Bookie(bookie_id=bookie), lease=rs.Lease(lease_id=name, epoch=epoch), read_only=read_only
    )


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def sides(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[list[Side]]:
    async with AsyncExitStack() as stack:
        opened = guarded_gateways(tmp_path_factory.mktemp("two"), lease_seconds=LEASE_SECONDS)
        gateways = await stack.enter_async_context(opened)
        yield [Side(gateway, await stack.enter_async_context(gateway.channel())) for gateway in gateways]


async def test_a_replayed_registration_changes_nothing(sides: list[Side]) -> None:
    here, there = sides
    old, new = here.register("bookie-1"), here.register("bookie-1")
    assert await old.send(lease("replayed", 1)) == REGISTERED
    assert await new.send(lease("replayed", 2)) == REGISTERED
    for side in sides:
        for who in ("bookie-1", "admin"):
            for epoch in (1, 2) if who == "admin" or side is here else (1,):
                assert await refused(side.register(who).send(lease("replayed", epoch)), new), (who, epoch)
    assert await new.send(rs.RegisterRequest()) == REGISTERED
    assert await here.stored_principal("bookie-1") == "token:bookie-1"
    assert await there.stored_principal("bookie-1") is None
    assert await new.send(rs.RegisterRequest(unregister=True)) == "UNREGISTERED"


async def test_a_lease_moves_to_another_gateway_with_its_principal_only(sides: list[Side]) -> None:
    here, there = sides
    first = here.register("bookie-1")
    assert await first.send(lease("moved", 1)) == REGISTERED
    assert await refused(there.register("admin").send(lease("moved", 2)), first)
    assert await here.stored_principal("bookie-1") == "token:bookie-1"
    second = there.register("bookie-1")
    assert await second.send(lease("moved", 2)) == REGISTERED
    assert await there.stored_principal("bookie-1") == "token:bookie-1"
    assert await refused(here.register("admin").send(lease("moved", 3)), second)
    assert await there.stored_principal("bookie-1") == "token:bookie-1"
    assert await second.send(rs.RegisterRequest(unregister=True)) == "UNREGISTERED"
    first.cancel()


async def test_a_bookie_that_was_replaced_does_not_come_back(sides: list[Side]) -> None:
    here, there = sides
    replaced = here.register("bookie-1")
    assert await replaced.send(lease("of-the-old", 1)) == REGISTERED
    await here.answer("WriteCookie", rs.WriteCookieRequest(bookie_id="bookie-1", cookie=b"old"), "bookie-1")
    assert await replaced.send(rs.RegisterRequest(unregister=True)) == "UNREGISTERED"
    successor = there.register("bookie-1")
    assert await successor.send(lease("of-the-new", 1)) == REGISTERED
    written = rs.WriteCookieRequest(bookie_id="bookie-1", cookie=b"new", expected_version=0)
    assert await there.code("WriteCookie", written, "bookie-1") == "SUCCESS"

    for side in sides:
        assert await refused(side.register("bookie-1").send(lease("of-the-old", 2)), successor)
        late = rs.WriteCookieRequest(bookie_id="bookie-1", cookie=b"old again", expected_version=0)
        assert await side.code("WriteCookie", late, "bookie-1") == "BAD_VERSION"
        gone = rs.RemoveCookieRequest(bookie_id="bookie-1", expected_version=0)
        assert await side.code("RemoveCookie", gone, "bookie-1") == "BAD_VERSION"
        assert (
            await side.answer("ReadCookie", rs.ReadCookieRequest(bookie_id="bookie-1"), "bookie-1")
        ).cookie == b"new"
    assert await successor.send(rs.RegisterRequest()) == REGISTERED
    assert await there.stored_principal("bookie-1") == "token:bookie-1"
    assert await successor.send(rs.RegisterRequest(unregister=True)) == "UNREGISTERED"


async def test_a_worker_whose_lock_another_has_writes_nothing(sides: list[Side]) -> None:
    here, there = sides
    manager = here.gateway.factory.ledger_manager
    await manager.create(LedgerId.unscoped(7), some_metadata())
    ids = {"bookie-1": "session-of-the-old-one", "bookie-2": "session-of-the-new-one"}

    async def lock(side: Side, who: str, number: int = 1) -> str:
        attend = rp.AttendRequest(sequence=1, session_id=ids[who])
        assert await side.code("Attend", attend, who) == "SUCCESS"
        claim = rp.ClaimRequest(session_id=ids[who], number=number, try_lock=rp.TryLock(ledger_id=7))
        token: str = (await side.answer("Claim", claim, who)).token
        return token

    async def write(side: Side, who: str, session_of: str, token: str) -> str:
        request = rp.WriteLedgerRequest(
            session_id=ids[session_of], token=token, metadata=to_format(some_metadata()), expected_version=0
        )
        return await side.code("WriteLedger", request, who)

    old = await lock(here, "bookie-1")
    assert old
    assert await lock(there, "bookie-2") == "", "somebody holds it"
    # Whoever knows session and token of another is not its owner.
    assert await write(here, "bookie-2", "bookie-1", old) == "SESSION_UNKNOWN"
    ended = rp.ClaimRequest(session_id=ids["bookie-1"], number=2, end=True)
    assert await here.code("Claim", ended, "bookie-2") == "SESSION_UNKNOWN"
    assert await here.code("Claim", ended, "bookie-1") == "SUCCESS"
    new = await lock(there, "bookie-2", number=2)
    assert new

    for side in sides:
        assert await write(side, "bookie-1", "bookie-1", old) == "SESSION_UNKNOWN"
        check = rp.ClaimRequest(session_id=ids["bookie-1"], number=3, check_lock=old)
        assert await side.code("Claim", check, "bookie-1") == "SESSION_UNKNOWN"
    # It opens a session anew, and has neither its former lock nor the other's.
    assert await lock(here, "bookie-1", number=4) == ""
    for token in (old, new):
        assert await write(here, "bookie-1", "bookie-1", token) == "LOCK_LOST"
    assert (await manager.read(LedgerId.unscoped(7))).version == 0
    assert await write(there, "bookie-2", "bookie-2", new) == "SUCCESS"
