"""What only ZooKeeper does: the layout that Java clusters have, sessions that are lost, ids that others count too."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from kazoo.client import KazooClient

from bookgate.bookie.standalone.local_zookeeper import LocalZooKeeper
from bookgate.gateway.server import GatewayServer
from bookgate.gateway.stores.drivers import create_factory
from bookgate.gateway.stores.zookeeper.factory import ZooKeeperLedgerManagerFactory
from bookgate.gateway.stores.zookeeper.kazoo_thread import ThreadHandler
from bookgate.gateway.stores.zookeeper.settings import DEFAULTS, ZooKeeperSettings
from bookgate.gateway.stores.zookeeper.uri import parse_zookeeper
from bookgate.ledger.bookie_info import BookieServiceInfo
from bookgate.ledger.errors import (
    IncorrectParameterException,
    LedgerExistException,
    MetaStoreException,
    UnknownOutcomeException,
)
from bookgate.ledger.metadata import LedgerState
from bookgate.ledger.metadata_store import BookieSet, CreateRequest
from bookgate.protos.bookkeeper.gateway.v1 import ledger_metadata_service_pb2 as pb
from bookgate.protos.bookkeeper.gateway.v1.ledger_metadata_service_pb2_grpc import LedgerMetadataServiceStub
from tests.conformance.golden import rows
from tests.integration.gateway.conftest import Recorder, all_ids, some_metadata, unscoped
from tests.stores import made

pytestmark = pytest.mark.asyncio

BOOKIE = BookieServiceInfo.legacy("h:1")


def root_of(uri: str) -> str:
    return parse_zookeeper(uri).ledgers_root


async def opened(uri: str, settings: ZooKeeperSettings = DEFAULTS, **timeouts: float) -> ZooKeeperLedgerManagerFactory:
    factory = ZooKeeperLedgerManagerFactory(
        parse_zookeeper(uri), settings=settings, make_handler=ThreadHandler, **timeouts
    )
    await factory.initialize()
    return factory


@pytest.fixture
def kazoo(zookeeper: LocalZooKeeper) -> Iterator[Any]:
    """Another client, which knows nothing of ours."""
    client = KazooClient(zookeeper.address)
    client.start()
    yield client
    client.stop()
    client.close()


class TestLayout:
    async def test_fresh_cluster_has_the_nodes_of_java(self, zookeeper_uri: str, kazoo: Any) -> None:
        factory = await opened(zookeeper_uri)
        root = root_of(zookeeper_uri)
        layout = kazoo.get(f"{root}/LAYOUT")[0]
        assert layout == b"2\norg.apache.bookkeeper.meta.HierarchicalLedgerManagerFactory:1"
        assert len(kazoo.get(f"{root}/INSTANCEID")[0]) == 36
        assert kazoo.get(f"{root}/available/readonly")[0] == b""
        for number, path in ((7, "00/0000/L0007"), (2**31 - 1, "000/0000/0021/4748/L3647")):
            record = await factory.ledger_manager.create(unscoped(number), some_metadata())
            content, stat = kazoo.get(f"{root}/{path}")
            assert content.startswith(b"BookieMetadataFormatVersion\t3\n")
            assert (stat.version, stat.ephemeralOwner) == (0, 0)
            await factory.ledger_manager.remove(record.ledger_id)
        # Empty nodes above a removed ledger go with it.
        assert not {"00", "000"} & set(kazoo.get_children(root))
        await factory.registration_manager.register_bookie(BOOKIE, read_only=False)
        assert kazoo.get(f"{root}/available/h:1")[1].ephemeralOwner != 0
        await factory.ledger_manager.create(None, some_metadata())
        assert kazoo.get_children(f"{root}/idgen") == []
        await factory.close()

    @pytest.mark.parametrize(
        ("manager", "path"),
        [("flat", "L0000000005"), ("longhierarchical", "000/0000/0000/0000/L0005")],
    )
    async def test_other_managers(self, empty_zookeeper_uri: str, kazoo: Any, manager: str, path: str) -> None:
        zookeeper_uri = empty_zookeeper_uri
        uri = made(zookeeper_uri.replace("hierarchical", manager))
        factory = await opened(uri)
        await factory.ledger_manager.create(unscoped(5), some_metadata())
        assert kazoo.exists(f"{root_of(uri)}/{path}")
        generated = (await factory.ledger_manager.create(None, some_metadata())).ledger_id.low
        assert await all_ids(factory) == sorted([5, generated])
        await factory.close()
        with pytest.raises(IncorrectParameterException, match=manager):
            await opened(zookeeper_uri)
        unspecified = await opened(zookeeper_uri.replace("zk+hierarchical", "zk"))
        assert await all_ids(unspecified) == sorted([5, generated])
        await unspecified.close()

    async def test_cluster_that_java_made(self, empty_zookeeper_uri: str, kazoo: Any) -> None:
        zookeeper_uri = empty_zookeeper_uri
        root, nodes = root_of(zookeeper_uri), rows("znodes.jsonl")
        for node in sorted(nodes, key=lambda node: node["path"]):
            path = node["path"].replace("/ledgers", root, 1)
            content = bytes.fromhex(node["hex"])
            kazoo.create(path, content, makepath=True)
            for _ in range(node["version"]):
                kazoo.set(path, content)
        factory = await opened(zookeeper_uri)
        assert await all_ids(factory) == [0, 1, 2, 3, 5, 6, 7]
        records = {number: await factory.ledger_manager.read(unscoped(number)) for number in (0, 1, 5, 6)}
        assert [record.version for record in records.values()] == [1, 1, 0, 2]
        assert records[0].metadata.last_entry_id == 499
        assert dict(records[1].metadata.custom_metadata) == {"app": b"demo", "team": b"x"}
        assert records[5].metadata.state is LedgerState.OPEN
        found = await factory.service_discovery.bookies(BookieSet.WRITABLE)
        endpoints = [bookie.info.endpoint("bookie-rpc") for bookie in found]
        assert [endpoint.port for endpoint in endpoints if endpoint] == [3181, 3182, 3183]
        cookie = await factory.registration_manager.read_cookie("127.0.0.1:3181")
        assert cookie is not None
        assert cookie.value.startswith(b"5\nbookieHost: ")
        # Numbers that the fresh counter gives again are passed over.
        created = await factory.ledger_manager.create(None, some_metadata())
        assert created.ledger_id.low not in (0, 1, 2, 3, 5, 6, 7)
        await factory.close()

    async def test_legacy_registration_without_content_is_listed(self, zookeeper_uri: str, kazoo: Any) -> None:
        factory = await opened(zookeeper_uri)
        told = Recorder()
        await factory.service_discovery.watch_bookies(BookieSet.WRITABLE, told)
        kazoo.create(f"{root_of(zookeeper_uri)}/available/10.0.0.1:3181", b"", ephemeral=True)
        (bookie,) = await told.until(len)
        assert bookie.info == BookieServiceInfo.legacy("10.0.0.1:3181")
        await factory.close()

    async def test_ledger_with_damaged_metadata_is_named(self, zookeeper_uri: str, kazoo: Any) -> None:
        factory = await opened(zookeeper_uri)
        kazoo.create(f"{root_of(zookeeper_uri)}/00/0000/L0003", b"junk", makepath=True)
        server = GatewayServer(factory)
        async with grpc.aio.insecure_channel(f"127.0.0.1:{await server.start()}") as channel:
            answer = await LedgerMetadataServiceStub(channel).Read(pb.LedgerMetadataRequest(ledger_id=3))
        assert answer.code == 700
        assert "ledger 3" in answer.message
        await server.stop(0)
        await factory.close()


class TestIds:
    async def test_ids_beyond_31_bits(self, zookeeper_uri: str, kazoo: Any) -> None:
        first, second = await opened(zookeeper_uri), await opened(zookeeper_uri)
        kazoo.create(f"{root_of(zookeeper_uri)}/idgen-long")
        factories = (first, second)
        creates = [factories[n % 2].ledger_manager.create(None, some_metadata()) for n in range(20)]
        ids = sorted(record.ledger_id.low for record in await asyncio.gather(*creates))
        assert len(set(ids)) == 20
        # Two factories that each have a block; nothing but the rest of a block is left out.
        assert (1 << 32) in ids
        assert ids[-1] < (1 << 32) + 100
        assert await all_ids(first) == ids
        await second.close()
        await first.close()


def watches_below(server: LocalZooKeeper, root: str) -> list[str]:
    """The paths below a root that the server has watches on."""
    return [line for line in server.command("wchp").splitlines() if line.startswith(root)]


class TestWatches:
    async def test_one_store_watch_a_ledger_and_none_afterwards(
        self, zookeeper_uri: str, zookeeper: LocalZooKeeper
    ) -> None:
        factory, root = await opened(zookeeper_uri), root_of(zookeeper_uri)
        manager = factory.ledger_manager
        ids = [(await manager.create(None, some_metadata())).ledger_id for _ in range(3)]
        listeners = [Recorder() for _ in range(5)]
        for told in listeners:
            for ledger_id in ids:
                await manager.register_listener(ledger_id, told)
            await told.until_version(0)
        await factory.catch_up(None)
        assert len(watches_below(zookeeper, root)) == 3
        for told in listeners:
            for ledger_id in ids:
                await manager.unregister_listener(ledger_id, told)
        # An answer from the server shows that what was sent before has arrived.
        await factory.catch_up(None)
        assert watches_below(zookeeper, root) == []
        # The session is none the worse for it.
        assert (await manager.read(ids[0])).version == 0
        await factory.close()


async def expire(server: LocalZooKeeper, factory: ZooKeeperLedgerManagerFactory) -> None:
    """Makes ZooKeeper end the session: another client takes it over and closes it."""
    kazoo = factory.session.kazoo
    assert kazoo is not None
    assert kazoo.session is not None
    seen = kazoo.session

    def end_session() -> None:
        usurper = KazooClient(server.address, client_id=(seen.number, seen.password))
        usurper.start()
        usurper.stop()
        usurper.close()

    await asyncio.get_running_loop().run_in_executor(None, end_session)


class TestSessions:
    async def test_nothing_is_lost_over_an_expiry(self, zookeeper_uri: str, zookeeper: LocalZooKeeper) -> None:
        first, second = await opened(zookeeper_uri), await opened(zookeeper_uri)
        await first.registration_manager.register_bookie(BOOKIE, read_only=False)
        ids = [(await second.ledger_manager.create(None, some_metadata())).ledger_id for _ in range(3)]
        recorders = [Recorder() for _ in ids]
        for ledger_id, told in zip(ids, recorders, strict=True):
            await first.ledger_manager.register_listener(ledger_id, told)
            await told.until_version(0)
        bookies, own_bookies = Recorder(), Recorder()
        await second.service_discovery.watch_bookies(BookieSet.WRITABLE, bookies)
        await first.service_discovery.watch_bookies(BookieSet.WRITABLE, own_bookies)
        await bookies.until(len)
        old_session = first.session.session_id
        await expire(zookeeper, first)
        await bookies.until(lambda found: found == ())
        await second.ledger_manager.write(ids[0], some_metadata(), 0)
        await second.ledger_manager.remove(ids[1])
        await bookies.until(len)
        await recorders[0].until_version(1)
        await recorders[1].until_version(None)
        assert first.session.session_id != old_session
        await second.ledger_manager.write(ids[2], some_metadata(), 0)
        await recorders[2].until_version(1)
        assert [recorder.versions for recorder in recorders] == [[0, 1], [0, None], [0, 1]]
        await own_bookies.until(len)
        await second.close()
        await first.close()

    async def test_living_bookie_keeps_its_id(self, zookeeper_uri: str) -> None:
        first, second = await opened(zookeeper_uri), await opened(zookeeper_uri, session_timeout_seconds=1)
        await first.registration_manager.register_bookie(BOOKIE, read_only=False)
        with pytest.raises(LedgerExistException, match="h:1"):
            await second.registration_manager.register_bookie(BOOKIE, read_only=False)
        waiting = asyncio.ensure_future(second.registration_manager.register_bookie(BOOKIE, read_only=False))
        await first.registration_manager.unregister_bookie("h:1")
        await waiting
        await second.close()
        await first.close()

    async def test_store_down_at_start_is_named(self) -> None:
        with pytest.raises(MetaStoreException, match=r"127\.0\.0\.1:1 "):
            await opened("zk://127.0.0.1:1/ledgers", connect_timeout_seconds=0.5)

    async def test_lost_answers(self, own_zookeeper: LocalZooKeeper) -> None:
        factory = await opened(made(own_zookeeper.metadata_uri()), call_timeout_seconds=0.5)
        record = await factory.ledger_manager.create(None, some_metadata())
        own_zookeeper.suspend()
        with pytest.raises(UnknownOutcomeException, match="may have happened"):
            await factory.ledger_manager.write(record.ledger_id, some_metadata(), 0)
        with pytest.raises(MetaStoreException):
            await factory.ledger_manager.read(record.ledger_id)
        own_zookeeper.resume()
        await factory.close()

    async def test_listing_while_the_store_is_away_raises(self, own_zookeeper: LocalZooKeeper) -> None:
        factory = await opened(made(own_zookeeper.metadata_uri()), call_timeout_seconds=0.5)
        # More leaf nodes than are read ahead.
        numbers = [10_000 * n + 1 for n in range(12)]
        await factory.ledger_manager.create_many([CreateRequest(unscoped(n), some_metadata()) for n in numbers])
        listing = factory.ledger_manager.ledger_ranges()
        seen = list(await anext(listing))

        async def read_on() -> None:
            async for run in listing:
                seen.extend(run)

        own_zookeeper.kill()
        with pytest.raises(MetaStoreException):
            await read_on()
        assert seen == numbers[: len(seen)]
        assert len(seen) < len(numbers)
        await factory.close()

    async def test_listing_without_the_ledgers_root_is_no_empty_listing(self, zookeeper_uri: str, kazoo: Any) -> None:
        factory = await opened(zookeeper_uri)
        kazoo.delete(root_of(zookeeper_uri), recursive=True)
        with pytest.raises(MetaStoreException, match="root was removed"):
            await all_ids(factory)
        await factory.close()

    async def test_gateway_over_a_restart_of_the_store(self, own_zookeeper: LocalZooKeeper) -> None:
        factory = await opened(made(own_zookeeper.metadata_uri()), call_timeout_seconds=20)
        server = GatewayServer(factory)
        loop = asyncio.get_running_loop()
        async with grpc.aio.insecure_channel(f"127.0.0.1:{await server.start()}") as channel:
            ledgers: Any = LedgerMetadataServiceStub(channel)
            health: Any = health_pb2_grpc.HealthStub(channel)
            record = await factory.ledger_manager.create(None, some_metadata())
            watch = ledgers.Watch()
            await watch.write(pb.LedgerMetadataRequest(ledger_id=record.ledger_id.low))
            assert (await watch.read()).version == 0
            statuses = health.Watch(health_pb2.HealthCheckRequest(service=""))
            assert (await statuses.read()).status == health_pb2.HealthCheckResponse.SERVING
            await loop.run_in_executor(None, own_zookeeper.kill)
            assert (await watch.read()).event == pb.WatchEvent.SUSPENDED
            assert (await statuses.read()).status == health_pb2.HealthCheckResponse.NOT_SERVING
            # A watch asked for now is served when the store is back.
            late = ledgers.Watch()
            assert (await late.read()).event == pb.WatchEvent.SUSPENDED
            await late.write(pb.LedgerMetadataRequest(ledger_id=record.ledger_id.low))
            await loop.run_in_executor(None, own_zookeeper.start)
            assert (await watch.read()).event == pb.WatchEvent.RESUMED
            assert (await statuses.read()).status == health_pb2.HealthCheckResponse.SERVING
            await factory.ledger_manager.write(record.ledger_id, some_metadata(), 0)
            assert (await watch.read()).version == 1
            for stream in (watch, late, statuses):
                stream.cancel()
        await server.stop(0)
        await factory.close()


async def test_revision_does_not_go_back_when_a_new_session_begins() -> None:
    factory = ZooKeeperLedgerManagerFactory(parse_zookeeper("zk://h:2181/ledgers"))
    kazoo: Any = SimpleNamespace(last_zxid=7)
    factory.session.kazoo = kazoo
    assert await factory.revision() == 7
    # As it is when a session has expired.
    kazoo.last_zxid = 0
    assert await factory.revision() == 7


async def test_driver_of_the_uri(zookeeper_uri: str) -> None:
    assert isinstance(create_factory(zookeeper_uri), ZooKeeperLedgerManagerFactory)
    with pytest.raises(IncorrectParameterException, match="unknown ledger manager"):
        create_factory(zookeeper_uri.replace("hierarchical", "longlonglonghierarchical"))
