"""Bookies that register through gateways: leases, and moving between gateways without leaving discovery."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc
import pytest
import pytest_asyncio

from bookgate.bookie.standalone.local_zookeeper import LocalZooKeeper
from bookgate.gateway.server import GatewayServer
from bookgate.gateway.stores.drivers import create_factory
from bookgate.gateway.stores.sqlite.registration import SqliteRegistrationManager
from bookgate.ledger.bookie_info import BOOKIE_RPC, BookieServiceInfo, Endpoint, Lease
from bookgate.ledger.errors import (
    BookieHandleNotAvailableException,
    IncorrectParameterException,
    LedgerExistException,
    MetadataVersionException,
)
from bookgate.ledger.metadata_store import BookieSet, LedgerManagerFactory, RegisteredBookie
from bookgate.protos.bookkeeper.common.v1.status_pb2 import StatusCode
from bookgate.protos.bookkeeper.gateway.v1 import registration_service_pb2 as wire
from bookgate.protos.bookkeeper.gateway.v1.registration_service_pb2_grpc import RegistrationServiceStub
from bookgate.protos.bookkeeper.gateway.v1.service_discovery_pb2 import Bookie
from bookgate.thinclient.gateways.factory import RpcLedgerManagerFactory
from tests.integration.gateway.conftest import STORES, Recorder
from tests.stores import made

pytestmark = pytest.mark.asyncio

LEASE_SECONDS = 2.0
INFO = BookieServiceInfo("b-1", (Endpoint("bookie", "h", 1, BOOKIE_RPC),), {"k": "v"})


@dataclass
class Gateway:
    factory: LedgerManagerFactory
    server: GatewayServer
    carrier: grpc.aio.Server
    """What carries its calls."""

    @property
    def address(self) -> str:
        return self.server.address


@dataclass
class Setting:
    """Two gateways on a store, and who watches the store itself."""

    gateways: list[Gateway]
    observer: LedgerManagerFactory
    seen: list[tuple[bool, bool]]
    """(writable, read-only) of the bookie in each set that discovery told."""

    def uri(self, *order: int) -> str:
        return "grpc://" + ",".join(self.gateways[number].address for number in order or (0, 1))

    async def until(self, condition: Callable[[Any], object]) -> Any:
        return await self.told.until(condition)

    def __post_init__(self) -> None:
        self.told = Recorder()

    def take(self, bookies: tuple[RegisteredBookie, ...]) -> None:
        mine = [bookie for bookie in bookies if bookie.bookie_id == "b-1"]
        self.seen += [(bookie.writable, bookie.read_only) for bookie in mine] or [(False, False)]
        assert not any(bookie.info.lease for bookie in mine)
        self.told(self.seen[-1])


@pytest.fixture(params=STORES)
def store_uri(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "sqlite":
        return made(f"sqlite://{tmp_path}/metadata.db")
    server: LocalZooKeeper = request.getfixturevalue("zookeeper")
    return made(server.metadata_uri(f"/registration/{tmp_path.name}/ledgers"))


@pytest_asyncio.fixture
async def setting(store_uri: str) -> AsyncIterator[Setting]:
    async with AsyncExitStack() as stack:

        async def opened() -> LedgerManagerFactory:
            factory = create_factory(store_uri)
            stack.push_async_callback(factory.close)
            await factory.initialize()
            return factory

        gateways = []
        for _ in range(2):
            factory = await opened()
            carriers: list[grpc.aio.Server] = []

            def carrier(*, made: list[grpc.aio.Server] = carriers, **options: Any) -> grpc.aio.Server:
                made.append(grpc.aio.server(**options))
                return made[0]

            server = GatewayServer(factory, lease_seconds=LEASE_SECONDS, make_server=carrier)
            stack.push_async_callback(server.stop, 0)
            await server.start()
            gateways.append(Gateway(factory, server, *carriers))
        made = Setting(gateways, await opened(), [])
        await made.observer.service_discovery.watch_bookies(BookieSet.ALL, made.take)  # type: ignore[arg-type]
        await made.until(lambda state: state == (False, False))
        yield made


@asynccontextmanager
async def bookie(uri: str) -> AsyncIterator[RpcLedgerManagerFactory]:
    factory = RpcLedgerManagerFactory(uri, timeout=10)
    try:
        yield factory
    finally:
        await factory.close()


def holder(setting: Setting) -> Gateway:
    """The gateway at which the bookie is registered now."""
    return max(setting.gateways, key=lambda gateway: gateway.server.registrations.leases)


def done_at(gateway: Gateway, name: str, monkeypatch: pytest.MonkeyPatch) -> asyncio.Event:
    """Set once the gateway has carried out this change of a registration in the store."""
    manager, done = gateway.factory.registration_manager, asyncio.Event()
    change = getattr(manager, name)

    async def and_tell(*args: object, **named: object) -> None:
        await change(*args, **named)
        done.set()

    monkeypatch.setattr(manager, name, and_tell)
    return done


async def test_a_bookie_moves_off_a_gateway_that_stops_and_never_leaves_discovery(setting: Setting) -> None:
    async with bookie(setting.uri()) as client:
        await client.registration_manager.register_bookie(INFO, read_only=False)
        await setting.until(lambda state: state == (True, False))
        del setting.seen[:]
        first = holder(setting)
        await first.server.stop(5)
        await first.factory.close()
        assert holder(setting) is not first
        # Changing the list works where it is now.
        await client.registration_manager.register_bookie(INFO, read_only=True)
        await setting.until(lambda state: state == (False, True))
        assert (False, False) not in setting.seen
        await client.registration_manager.unregister_bookie("b-1")
        await setting.until(lambda state: state == (False, False))


async def test_a_bookie_whose_stream_breaks_is_kept_for_its_lease_and_taken_over(
    setting: Setting, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with bookie(setting.uri()) as client:
        await client.registration_manager.register_bookie(INFO, read_only=False)
        await setting.until(lambda state: state == (True, False))
        del setting.seen[:]
        first = holder(setting)
        other = next(gateway for gateway in setting.gateways if gateway is not first)
        registered = done_at(other, "register_bookie", monkeypatch)
        dropped = done_at(first, "unregister_bookie", monkeypatch)
        # As if its machine were gone: streams are cut, and its store session goes on for a while.
        await first.carrier.stop(None)
        async with asyncio.timeout(30):
            await registered.wait()
            # What the first gateway drops when the lease is over is no longer the bookie's registration.
            await dropped.wait()
        found = await setting.observer.service_discovery.bookie_service_info("b-1")
        assert (found.writable, found.info.properties["k"]) == (True, "v")
        assert (False, False) not in setting.seen


async def test_a_bookie_that_dies_leaves_discovery_with_its_lease(setting: Setting) -> None:
    async with grpc.aio.insecure_channel(setting.gateways[0].address) as channel:
        stream: Any = RegistrationServiceStub(channel).Register()
        lease = wire.Lease(lease_id="a-life", epoch=1)
        await stream.write(wire.RegisterRequest(sequence=1, bookie=Bookie(bookie_id="b-1"), lease=lease))
        await setting.until(lambda state: state == (True, False))
        stream.cancel()
        await setting.until(lambda state: state == (False, False))


async def test_a_second_process_waits_for_the_id_and_gets_it_when_the_first_is_gone(setting: Setting) -> None:
    async with bookie(setting.uri(0)) as first, bookie(setting.uri(0)) as second:
        await first.registration_manager.register_bookie(INFO, read_only=False)
        with pytest.raises(LedgerExistException, match="holds the bookie id b-1"):
            await second.registration_manager.register_bookie(INFO, read_only=False)
        waiting = asyncio.ensure_future(second.registration_manager.register_bookie(INFO, read_only=True))
        await first.registration_manager.unregister_bookie("b-1")
        await waiting
        await setting.until(lambda state: state == (False, True))


async def test_what_is_left_of_a_bookie_at_a_former_gateway_comes_back_in_no_list(setting: Setting) -> None:
    former, present = (gateway.factory.registration_manager for gateway in setting.gateways)
    discovery = setting.observer.service_discovery
    old, new = INFO.with_lease(Lease.of("x", 1)), INFO.with_lease(Lease.of("x", 2))
    await former.register_bookie(old, read_only=False)
    await present.register_bookie(new, read_only=True)
    # A request that the former gateway took long for, and one that it repeats.
    with pytest.raises(LedgerExistException, match="at another gateway since"):
        await former.register_bookie(old, read_only=False)
    found = await discovery.bookie_service_info("b-1")
    assert (found.writable, found.read_only) == (False, True)
    assert (False, False) not in setting.seen[1:]

    await present.unregister_bookie("b-1", new.lease)
    if isinstance(former, SqliteRegistrationManager):
        for held in (former._renew_all, former._renew_all):
            for bookie_id, registration in (await former._store.change(held)).items():
                former._claims.drop(bookie_id, registration)
        assert former._held == {}
    with pytest.raises(BookieHandleNotAvailableException):
        await discovery.bookie_service_info("b-1")


async def test_a_process_tells_the_owners_of_its_registrations_apart(setting: Setting) -> None:
    """To the store they are one: the bookie that hosts the gateway, and those that register there by a lease."""
    manager = setting.gateways[0].factory.registration_manager
    mine, other = INFO.with_lease(Lease.of("x", 1)), INFO.with_lease(Lease.of("y", 9))
    for registered, thieves in ((INFO, (mine, other)), (mine, (INFO, other))):
        await manager.register_bookie(registered, read_only=False)
        for thief in thieves:
            with pytest.raises(LedgerExistException, match="holds the bookie id b-1"):
                await manager.register_bookie(thief, read_only=True)
            await manager.unregister_bookie("b-1", thief.lease)
        assert await manager.is_registered(registered, read_only=False)
        assert not await manager.is_registered(registered, read_only=True)
        await manager.unregister_bookie("b-1", registered.lease)
        assert not await manager.is_registered(registered, read_only=False)
    manager.reserve("b-1")
    with pytest.raises(LedgerExistException):
        await manager.register_bookie(mine, read_only=False)
    await manager.register_bookie(INFO, read_only=False)


# Who takes the id in the end lets the next one look for it without a pause: only a signal gets through to the process.
@pytest.mark.timeout(60)
async def test_a_bookie_that_gives_up_waiting_for_its_id_leaves_it_to_others(setting: Setting) -> None:
    """It was unregistered while it waited, took the id nevertheless, and kept it for as long as the gateway ran."""

    def request(lease_id: str, **more: Any) -> wire.RegisterRequest:
        return wire.RegisterRequest(
            sequence=1, bookie=Bookie(bookie_id="b-1"), lease=wire.Lease(lease_id=lease_id, epoch=1), **more
        )

    async with grpc.aio.insecure_channel(setting.gateways[0].address) as channel:
        streams: list[Any] = [RegistrationServiceStub(channel).Register() for _ in range(3)]
        first, waiting, third = streams
        await first.write(request("first"))
        assert (await first.read()).state == wire.RegistrationState.REGISTRATION_STATE_REGISTERED
        await waiting.write(request("waiting"))
        await waiting.write(wire.RegisterRequest(sequence=2, unregister=True))
        assert (await waiting.read()).state == wire.RegistrationState.REGISTRATION_STATE_UNREGISTERED
        await first.write(wire.RegisterRequest(sequence=2, unregister=True))
        assert (await first.read()).state == wire.RegistrationState.REGISTRATION_STATE_UNREGISTERED
        await third.write(request("third"))
        async with asyncio.timeout(30):
            held = await third.read()
        assert held.state == wire.RegistrationState.REGISTRATION_STATE_REGISTERED


async def test_cookies(setting: Setting) -> None:
    async with bookie(setting.uri()) as client:
        manager = client.registration_manager
        assert await manager.cluster_instance_id() == await setting.observer.registration_manager.cluster_instance_id()
        assert await manager.read_cookie("b-1") is None
        await manager.write_cookie("b-1", b"", None)
        cookie = await manager.read_cookie("b-1")
        assert cookie is not None
        assert (cookie.value, cookie.version) == (b"", 0)
        with pytest.raises(IncorrectParameterException, match="65536"):
            await manager.write_cookie("b-1", bytes(65_537), 0)
        with pytest.raises(IncorrectParameterException, match="bookie id"):
            await manager.write_cookie("readonly", b"", None)
        with pytest.raises(MetadataVersionException):
            await manager.remove_cookie("b-1", 7)
        await manager.remove_cookie("b-1", 0)


@pytest.mark.parametrize(
    ("request_", "problem"),
    [
        (wire.RegisterRequest(sequence=1, bookie=Bookie(bookie_id="b-1")), "lease"),
        (wire.RegisterRequest(sequence=1, lease=wire.Lease(lease_id="x/1", epoch=1)), "lease"),
        (wire.RegisterRequest(sequence=1, lease=wire.Lease(lease_id="x", epoch=1)), "bookie id"),
        (
            wire.RegisterRequest(
                sequence=1,
                lease=wire.Lease(lease_id="x", epoch=1),
                bookie=Bookie(bookie_id="b-1", properties={"a": "b" * 70_000}),
            ),
            "65536",
        ),
    ],
)
async def test_registrations_that_are_none(setting: Setting, request_: wire.RegisterRequest, problem: str) -> None:
    async with grpc.aio.insecure_channel(setting.gateways[0].address) as channel:
        call = RegistrationServiceStub(channel).Register(iter([request_]))
        (answer,) = [response async for response in call]
    assert (answer.code, answer.sequence) == (StatusCode.BAD_REQUEST, 1)
    assert problem in answer.message
    assert setting.gateways[0].server.registrations.leases == 0
