"""The audit trail of a gateway: a line for each change, however it ended, and what it says."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import grpc
import pytest
import pytest_asyncio
from google.protobuf.message import Message

from bookgate.ledger.errors import UnknownOutcomeException
from bookgate.ledger.ledger_id import LedgerId
from bookgate.ledger.metadata_codec import to_format
from bookgate.protos.bookkeeper.gateway.v1 import ledger_metadata_service_pb2 as lm
from bookgate.protos.bookkeeper.gateway.v1 import registration_service_pb2 as rs
from bookgate.protos.bookkeeper.gateway.v1 import replication_service_pb2 as rp
from bookgate.protos.bookkeeper.gateway.v1 import service_discovery_pb2 as sd
from bookgate.runtime.logs import Event
from bookgate.runtime.security.audit_trail import AUDIT_LOGGER
from tests.integration.gateway.conftest import Recorder, some_metadata
from tests.integration.gateway.guarded import Guarded, call, guarded_gateway, methods, outcome, path_of

pytestmark = pytest.mark.asyncio(loop_scope="module")

METHODS = {method.name: method for method in methods()}
METADATA = to_format(some_metadata())
LEASE_SECONDS = 2.0

Line = tuple[str, str, str, str]
"""Principal, action, resource, outcome."""


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def gateway(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Guarded]:
    async with guarded_gateway(tmp_path_factory.mktemp("audited"), lease_seconds=LEASE_SECONDS) as guarded:
        yield guarded


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def channel(gateway: Guarded) -> AsyncIterator[grpc.aio.Channel]:
    async with gateway.channel() as channel:
        yield channel


class Trail(logging.Handler):
    """The lines since this test began."""

    def __init__(self) -> None:
        super().__init__()
        self.lines: list[Line] = []
        self._recorder = Recorder()

    def emit(self, record: logging.LogRecord) -> None:
        assert isinstance(record.msg, Event)
        fields = record.msg.fields
        if str(fields["principal"]) == "anonymous":
            # A client of another test, that looks for a server that was at this port.
            return
        self.lines.append(tuple(str(fields[name]) for name in ("principal", "action", "resource", "outcome")))  # type: ignore[arg-type]
        self._recorder(self.lines)

    async def until(self, condition: Callable[[list[Line]], object]) -> list[Line]:
        await self._recorder.until(condition)
        return self.lines

    async def until_as_many(self, expected: list[Line]) -> list[Line]:
        """A refusal reaches its caller a moment before its line is written."""
        return await self.until(lambda lines: len(lines) >= len(expected))


@pytest.fixture
def trail(gateway: Guarded) -> Iterator[Trail]:
    trail = Trail()
    logger = logging.getLogger(AUDIT_LOGGER)
    logger.addHandler(trail)
    yield trail
    logger.removeHandler(trail)


def on(ledger: int, **fields: Any) -> lm.LedgerMetadataRequest:
    return lm.LedgerMetadataRequest(ledger_id=ledger, **fields)


async def ask(gateway: Guarded, channel: grpc.aio.Channel, name: str, request: Message, who: str = "admin") -> str:
    return await outcome(channel, METHODS[name], request, gateway.bearer(who))


def lost(*_: Any, **__: Any) -> Any:
    raise UnknownOutcomeException("the response was lost")


async def test_every_end_of_a_change_of_a_ledger(
    gateway: Guarded, channel: grpc.aio.Channel, trail: Trail, monkeypatch: pytest.MonkeyPatch
) -> None:
    manager = gateway.factory.ledger_manager
    write = on(1, metadata=METADATA, expected_version=0)
    assert await ask(gateway, channel, "Create", on(1, metadata=METADATA)) == "SUCCESS"
    assert await ask(gateway, channel, "Create", on(1, metadata=METADATA)) == "LEDGER_EXISTS"
    seen = await call(channel, METHODS["Read"], on(1), gateway.bearer("admin"))
    write.metadata.CopyFrom(seen.metadata)
    assert await ask(gateway, channel, "Write", write) == "SUCCESS"
    assert await ask(gateway, channel, "Write", write) == "BAD_VERSION"
    with monkeypatch.context() as patched:
        for name in ("create", "write_to", "remove"):
            patched.setattr(manager, name, lost)
        write.expected_version = 1
        assert await ask(gateway, channel, "Create", on(2, metadata=METADATA)) == "UNAVAILABLE"
        assert await ask(gateway, channel, "Write", write) == "UNAVAILABLE"
        assert await ask(gateway, channel, "Remove", on(1)) == "UNAVAILABLE"
    assert await ask(gateway, channel, "Remove", on(1)) == "SUCCESS"
    assert await ask(gateway, channel, "Remove", on(1)) == "LEDGER_NOT_FOUND"
    expected = [
        ("token:admin", f"ledger.{action}", f"ledger:{number}", end)
        for action, number, end in (
            ("create", 1, "SUCCESS"),
            ("create", 1, "LEDGER_EXISTS"),
            ("write", 1, "SUCCESS"),
            ("write", 1, "BAD_VERSION"),
            ("create", 2, "UNKNOWN_OUTCOME"),
            ("write", 1, "UNKNOWN_OUTCOME"),
            ("delete", 1, "UNKNOWN_OUTCOME"),
            ("delete", 1, "SUCCESS"),
            ("delete", 1, "LEDGER_NOT_FOUND"),
        )
    ]
    assert await trail.until_as_many(expected) == expected


async def test_a_change_whose_caller_has_gone(
    gateway: Guarded, channel: grpc.aio.Channel, trail: Trail, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun, remove = asyncio.Event(), gateway.factory.ledger_manager.remove
    await gateway.factory.ledger_manager.create(LedgerId.unscoped(3), some_metadata())

    async def slow(ledger_id: LedgerId, version: int | None = None) -> None:
        begun.set()
        await asyncio.Event().wait()
        await remove(ledger_id, version)

    monkeypatch.setattr(gateway.factory.ledger_manager, "remove", slow)
    removal = asyncio.ensure_future(ask(gateway, channel, "Remove", on(3)))
    await begun.wait()
    removal.cancel()
    assert await trail.until(lambda lines: lines) == [("token:admin", "ledger.delete", "ledger:3", "CANCELLED")]


async def test_a_batch_has_a_line_for_each_ledger_and_its_repetition_none(
    gateway: Guarded, channel: grpc.aio.Channel, trail: Trail, monkeypatch: pytest.MonkeyPatch
) -> None:
    await gateway.factory.ledger_manager.create(LedgerId.unscoped(11), some_metadata())
    requests = [on(number, metadata=METADATA, request_token=b"%d" % number) for number in (10, 11)]
    for _ in range(2):
        await ask(gateway, channel, "BatchCreate", lm.BatchCreateRequest(requests=requests[:1]))
    await ask(gateway, channel, "BatchCreate", lm.BatchCreateRequest(requests=requests))
    monkeypatch.setattr(gateway.factory.ledger_manager, "create_many", lost)
    await ask(gateway, channel, "BatchCreate", lm.BatchCreateRequest(requests=[{"metadata": METADATA}]))
    expected = [
        ("token:admin", "ledger.create", "ledger:10", "SUCCESS"),
        ("token:admin", "ledger.create", "ledger:11", "LEDGER_EXISTS"),
        ("token:admin", "ledger.create", "ledger:new", "UNKNOWN_OUTCOME"),
    ]
    assert await trail.until_as_many(expected) == expected


async def test_cookies(
    gateway: Guarded, channel: grpc.aio.Channel, trail: Trail, monkeypatch: pytest.MonkeyPatch
) -> None:
    write = rs.WriteCookieRequest(bookie_id="bookie-1", cookie=b"c")
    remove = rs.RemoveCookieRequest(bookie_id="bookie-1", expected_version=0)
    assert await ask(gateway, channel, "WriteCookie", write, "bookie-1") == "SUCCESS"
    assert await ask(gateway, channel, "WriteCookie", write, "bookie-1") == "BAD_VERSION"
    monkeypatch.setattr(gateway.factory.registration_manager, "remove_cookie", _lost)
    assert await ask(gateway, channel, "RemoveCookie", remove, "bookie-1") == "UNAVAILABLE"
    expected = [
        ("token:bookie-1", "cookie.write", "bookie:bookie-1 WriteCookie", "SUCCESS"),
        ("token:bookie-1", "cookie.write", "bookie:bookie-1 WriteCookie", "BAD_VERSION"),
        ("token:bookie-1", "cookie.delete", "bookie:bookie-1 RemoveCookie", "UNKNOWN_OUTCOME"),
    ]
    assert await trail.until_as_many(expected) == expected


async def _lost(*_: Any) -> None:
    lost()


def registration(lease: str, **fields: Any) -> rs.RegisterRequest:
    bookie = sd.Bookie(bookie_id="bookie-2")
    return rs.RegisterRequest(sequence=1, bookie=bookie, lease=rs.Lease(lease_id=lease, epoch=1), **fields)


async def test_registrations(gateway: Guarded, channel: grpc.aio.Channel, trail: Trail) -> None:
    rpc: Any = channel.stream_stream(
        path_of(METHODS["Register"]), rs.RegisterRequest.SerializeToString, rs.RegisterResponse.FromString
    )
    stream = rpc(metadata=gateway.bearer("bookie-2"))
    for sequence, request in enumerate((registration("one"), rs.RegisterRequest(unregister=True)), start=1):
        request.sequence = sequence
        await stream.write(request)
        while (await stream.read()).sequence != sequence:
            pass
    assert await ask(gateway, channel, "Register", registration("no lease"), "bookie-2") == "BAD_REQUEST"
    await trail.until(lambda lines: lines[-1][3] == "BAD_REQUEST")
    # Its stream breaks, and it is not heard of for a lease.
    await ask(gateway, channel, "Register", registration("two"), "bookie-2")
    lines = await trail.until(lambda lines: lines[-1][3] == "LOST")
    assert lines == [
        ("token:bookie-2", "bookie.register", "bookie:bookie-2", end)
        for end in ("REGISTERED", "UNREGISTERED", "BAD_REQUEST", "REGISTERED", "LOST")
    ]


async def test_a_registration_that_is_refused(gateway: Guarded, channel: grpc.aio.Channel, trail: Trail) -> None:
    first = channel.stream_stream(
        path_of(METHODS["Register"]), rs.RegisterRequest.SerializeToString, rs.RegisterResponse.FromString
    )
    stream: Any = first(metadata=gateway.bearer("bookie-2"))
    await stream.write(registration("three"))
    await stream.read()
    assert await ask(gateway, channel, "Register", registration("three"), "admin") == "UNEXPECTED"
    expected = [
        ("token:bookie-2", "bookie.register", "bookie:bookie-2", "REGISTERED"),
        ("token:admin", "bookie.register", "bookie:bookie-2", "HELD_BY_ANOTHER"),
    ]
    assert await trail.until_as_many(expected) == expected
    await stream.write(rs.RegisterRequest(sequence=2, unregister=True))
    assert (await stream.read()).sequence == 2


async def test_auto_recovery_names_ledgers_and_sessions(
    gateway: Guarded, channel: grpc.aio.Channel, trail: Trail
) -> None:
    await gateway.factory.ledger_manager.create(LedgerId.unscoped(20), some_metadata())
    marked = rp.MarkRequest(ledger_id=20, replicas=["b"])
    mark = (await call(channel, METHODS["Mark"], marked, gateway.bearer("bookie-1"))).mark
    attend = rp.AttendRequest(sequence=1, session_id="session-of-bookie-1")
    assert await ask(gateway, channel, "Attend", attend, "bookie-1") == "SUCCESS"
    assert await ask(gateway, channel, "Attend", attend, "bookie-2") == "SESSION_UNKNOWN"
    claim = rp.ClaimRequest(session_id=attend.session_id, number=1, try_lock=rp.TryLock(ledger_id=20))
    token = (await call(channel, METHODS["Claim"], claim, gateway.bearer("bookie-1"))).token
    write = rp.WriteLedgerRequest(session_id=attend.session_id, token=token, metadata=METADATA, expected_version=0)
    assert await ask(gateway, channel, "WriteLedger", write, "bookie-1") == "SUCCESS"
    delete = rp.DeleteMarkRequest(ledger_id=20, expected_version=mark.version)
    assert await ask(gateway, channel, "DeleteMark", delete, "bookie-1") == "SUCCESS"
    lines = await trail.until(lambda lines: lines[-1][3] == "LOST")
    session = lines[1][2]
    assert session.startswith("session:")
    assert attend.session_id not in session
    assert [(who, resource, end) for who, _, resource, end in lines] == [
        ("token:bookie-1", "ledger:20 Mark", "SUCCESS"),
        ("token:bookie-1", session, "OPENED"),
        ("token:bookie-2", session, "SESSION_UNKNOWN"),
        ("token:bookie-1", "ledger:20 Claim", "SUCCESS"),
        ("token:bookie-1", "ledger:20 WriteLedger", "SUCCESS"),
        ("token:bookie-1", "ledger:20 DeleteMark", "SUCCESS"),
        ("token:bookie-1", session, "LOST"),
    ]
    assert {action for _, action, _, _ in lines} == {"replication.work"}
