"""A request beyond a bound is refused, whatever way it takes, and costs no other client its calls."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import grpc
import pytest

from bookgate.gateway.server import GatewayServer
from bookgate.gateway.stores.drivers import create_factory
from bookgate.gateway.stores.zookeeper.factory import ZooKeeperLedgerManagerFactory
from bookgate.gateway.stores.zookeeper.session import ZooKeeperSession
from bookgate.gateway.stores.zookeeper.settings import ZooKeeperSettings
from bookgate.ledger.bookie_info import BookieServiceInfo
from bookgate.ledger.errors import IncorrectParameterException
from bookgate.ledger.ledger_id import LedgerId
from bookgate.ledger.metadata import Fragment, LedgerMetadata
from bookgate.ledger.metadata_codec import to_format
from bookgate.ledger.metadata_store import LedgerManagerFactory
from bookgate.protos.bookkeeper.common.v1.status_pb2 import StatusCode
from bookgate.protos.bookkeeper.gateway.v1 import ledger_metadata_service_pb2 as lm
from bookgate.protos.bookkeeper.gateway.v1 import registration_service_pb2 as rg
from bookgate.protos.bookkeeper.gateway.v1 import replication_service_pb2 as rp
from bookgate.protos.bookkeeper.gateway.v1 import service_discovery_pb2 as sd
from bookgate.protos.bookkeeper.gateway.v1.ledger_metadata_service_pb2_grpc import LedgerMetadataServiceStub
from bookgate.protos.bookkeeper.gateway.v1.registration_service_pb2_grpc import RegistrationServiceStub
from bookgate.protos.bookkeeper.gateway.v1.replication_service_pb2_grpc import ReplicationServiceStub
from bookgate.protos.bookkeeper.gateway.v1.service_discovery_pb2_grpc import ServiceDiscoveryStub
from bookgate.protos.bookkeeper.proto.data_formats_pb2 import LedgerMetadataFormat
from tests.integration.gateway.conftest import some_metadata
from tests.stores import made

pytestmark = pytest.mark.asyncio

LONG = "b" * (1 << 20)


class Served:
    """A gateway, its store, and its services."""

    def __init__(self, factory: LedgerManagerFactory, channel: grpc.aio.Channel) -> None:
        self.factory = factory
        self.ledgers: Any = LedgerMetadataServiceStub(channel)
        self.discovery: Any = ServiceDiscoveryStub(channel)
        self.registrations: Any = RegistrationServiceStub(channel)
        self.replication: Any = ReplicationServiceStub(channel)


@pytest.fixture(params=["sqlite", "zookeeper"])
def uri(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    if request.param == "sqlite":
        yield made(f"sqlite://{tmp_path}/metadata.db")
    else:
        yield request.getfixturevalue("zookeeper_uri")


@asynccontextmanager
async def gateway(uri: str) -> AsyncIterator[Served]:
    factory = create_factory(uri)
    await factory.initialize()
    server = GatewayServer(factory)
    port = await server.start()
    try:
        async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
            yield Served(factory, channel)
    finally:
        await server.stop(0)
        await factory.close()


def message(*, password: bytes | None = b"planted-pw", ensemble: int = 3, **custom: bytes) -> LedgerMetadataFormat:
    bookies = [f"b{number}" for number in range(ensemble)]
    made_message = to_format(LedgerMetadata.new(bookies, 2, 2, password=password or b"", custom_metadata=custom))
    if password is None:
        made_message.ClearField("password")
        made_message.ClearField("digestType")
    return made_message


async def test_every_call_that_takes_a_name_refuses_one_of_any_length(uri: str) -> None:
    async with gateway(uri) as served:
        await served.factory.ledger_manager.create(LedgerId.unscoped(1), some_metadata())
        answers = [
            await served.discovery.GetBookieServiceInfo(sd.GetBookieServiceInfoRequest(bookie_id=LONG)),
            await served.registrations.ReadCookie(rg.ReadCookieRequest(bookie_id=LONG)),
            await served.registrations.WriteCookie(rg.WriteCookieRequest(bookie_id=LONG, cookie=b"c")),
            await served.registrations.RemoveCookie(rg.RemoveCookieRequest(bookie_id=LONG, expected_version=0)),
            await served.replication.Mark(rp.MarkRequest(ledger_id=1, replicas=[LONG])),
        ]
        register = rg.RegisterRequest(sequence=1)
        register.bookie.bookie_id = LONG
        register.lease.lease_id, register.lease.epoch = "a-lease", 1
        stream = served.registrations.Register()
        await stream.write(register)
        answers.append(await stream.read())
        stream.cancel()
        async with attended(served) as session_id:
            stand = rp.ClaimRequest(session_id=session_id, number=1, stand=LONG)
            lock = rp.ClaimRequest(session_id=session_id, number=2, try_lock=rp.TryLock(ledger_id=1, holder=LONG))
            answers += [await served.replication.Claim(claim) for claim in (stand, lock)]
        assert [StatusCode.Name(answer.code) for answer in answers] == ["BAD_REQUEST"] * 8, answers
        assert served.factory.connection_epoch == 0


@asynccontextmanager
async def attended(served: Served) -> AsyncIterator[str]:
    stream = served.replication.Attend()
    session_id = "a-session-of-a-test"
    await stream.write(rp.AttendRequest(sequence=1, session_id=session_id))
    assert (await stream.read()).code == StatusCode.SUCCESS
    yield session_id
    stream.cancel()


@pytest.mark.parametrize(
    "wanted",
    [
        message(password=None, x=b"\xff" * 300_000),
        message(password=None, x=b"\xff" * 20_000),
        message(ensemble=1025),
        message(password=None, ensemble=40_000),
    ],
)
async def test_a_ledger_beyond_a_bound_is_not_created(uri: str, wanted: LedgerMetadataFormat) -> None:
    async with gateway(uri) as served:
        request = lm.LedgerMetadataRequest(metadata=wanted)
        assert (await served.ledgers.Create(request)).code == StatusCode.BAD_REQUEST
        batch = await served.ledgers.BatchCreate(lm.BatchCreateRequest(requests=[request]))
        assert [each.code for each in batch.responses] == [StatusCode.BAD_REQUEST]
        assert served.factory.connection_epoch == 0


async def test_a_write_is_measured_with_the_password_that_is_stored(uri: str) -> None:
    async with gateway(uri) as served:
        wanted = message(password=b"p" * 600_000)
        ledger_id = (await served.ledgers.Create(lm.LedgerMetadataRequest(metadata=wanted))).ledger_id
        changed = lm.LedgerMetadataRequest(
            ledger_id=ledger_id,
            expected_version=0,
            metadata=message(password=b"", x=b"\xff" * 600_000),
            password_withheld=True,
        )
        assert (await served.ledgers.Write(changed)).code == StatusCode.BAD_REQUEST
        assert served.factory.connection_epoch == 0


async def test_a_ledger_of_another_client_beyond_the_bounds_is_read_and_closed(uri: str) -> None:
    """Written by a client of the store itself."""
    async with gateway(uri) as served:
        bookies = tuple(f"b{number}" for number in range(4000))
        stored = LedgerMetadata(
            4000, 5, 5, (Fragment(0, bookies),), password=b"p", custom_metadata={"x": b"y"}, format_version=2
        )
        record = await served.factory.ledger_manager.create(LedgerId.unscoped(7), stored)
        answer = await served.ledgers.Read(lm.LedgerMetadataRequest(ledger_id=7))
        assert answer.metadata == to_format(record.metadata)
        closed = to_format(stored.close(5, 50))
        wanted = lm.LedgerMetadataRequest(ledger_id=7, expected_version=0, metadata=closed)
        assert (await served.ledgers.Write(wanted)).code == StatusCode.SUCCESS
        larger = to_format(stored)
        larger.customMetadata.add(key="z", value=b"\xff" * 300_000)
        wanted = lm.LedgerMetadataRequest(ledger_id=7, expected_version=1, metadata=larger)
        assert (await served.ledgers.Write(wanted)).code == StatusCode.BAD_REQUEST


async def test_a_mark_may_name_a_bookie_that_can_not_be_if_the_ledger_does(uri: str) -> None:
    async with gateway(uri) as served:
        await served.factory.ledger_manager.create(LedgerId.unscoped(7), LedgerMetadata.new(["a b", "b:1"], 1, 1))
        answer = await served.replication.Mark(rp.MarkRequest(ledger_id=7, replicas=["a b"]))
        assert answer.code == StatusCode.SUCCESS
        answer = await served.replication.Mark(rp.MarkRequest(ledger_id=7, replicas=["a c"]))
        assert answer.code == StatusCode.BAD_REQUEST


async def test_a_mark_names_some_of_any_number_of_bookies(uri: str) -> None:
    async with gateway(uri) as served:
        versions = [-1]
        for part in range(3):
            replicas = [f"{part}-{number:0200}" for number in range(5000)]
            answer = await served.replication.Mark(rp.MarkRequest(ledger_id=7, replicas=replicas))
            assert answer.code == StatusCode.SUCCESS
            versions.append(answer.mark.version)
        mark = await served.factory.replication_metadata.read_mark(7)
        assert mark is not None
        assert versions == sorted({*versions})
        assert mark.version == versions[-1]
        assert 60_000 < len(mark.value.encode()) < 65_600
        assert served.factory.connection_epoch == 0


async def test_an_id_is_no_path(uri: str) -> None:
    async with gateway(uri) as served:
        await served.factory.registration_manager.register_bookie(BookieServiceInfo.legacy("h:1"), read_only=True)
        answer = await served.discovery.GetBookieServiceInfo(sd.GetBookieServiceInfoRequest(bookie_id="readonly/h:1"))
        assert answer.code == StatusCode.BAD_REQUEST


async def test_zookeeper_is_sent_no_request_that_it_does_not_take(zookeeper_uri: str) -> None:
    """The bound is the server's: what has exactly so many bytes is taken."""
    factory = create_factory(zookeeper_uri)
    assert isinstance(factory, ZooKeeperLedgerManagerFactory)
    await factory.initialize()
    session = factory.session
    path = "/a-node-of-a-test"
    besides = 8 + 4 + len(path) + 4 + 4 + 4 + 4 + len("world") + 4 + len("anyone") + 4
    most = 0xFFFFF - besides
    for size in (most + 1, 1 << 20, 3 << 20):
        with pytest.raises(IncorrectParameterException, match="more than the 1048575 that ZooKeeper takes"):
            await session.create(path, b"x" * size)
    await session.create(path, b"x" * most)
    assert session.connection_epoch == 0
    with pytest.raises(IncorrectParameterException):
        await session.get("/" + "x" * (1 << 20))
    await session.delete(path)
    await factory.close()


async def test_the_bound_of_a_request_can_be_set(own_zookeeper: Any) -> None:
    settings = ZooKeeperSettings(zookeeper_max_request_bytes=600_000)
    session = ZooKeeperSession([own_zookeeper.address], settings=settings)
    await session.start()
    with pytest.raises(IncorrectParameterException, match="600000"):
        await session.create("/a", b"x" * 600_000)
    await session.close()


async def test_an_ordinary_ledger_is_created(uri: str) -> None:
    async with gateway(uri) as served:
        wanted = lm.LedgerMetadataRequest(metadata=to_format(some_metadata(x=b"\xff" * 1_000_000)))
        assert (await served.ledgers.Create(wanted)).code == StatusCode.SUCCESS
        assert served.factory.connection_epoch == 0
