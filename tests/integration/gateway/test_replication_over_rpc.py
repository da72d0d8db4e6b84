"""The contract of auto-recovery's metadata, kept by clients of gateways, over each store behind them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any, NamedTuple

import grpc
import pytest
import pytest_asyncio

from bookgate.gateway.server import GatewayServer
from bookgate.gateway.stores.drivers import create_factory
from bookgate.ledger.errors import IllegalOpException, MetaStoreException
from bookgate.ledger.metadata_codec import to_format
from bookgate.ledger.metadata_store import LedgerManagerFactory
from bookgate.ledger.replication_store import (
    FeedBegan,
    FeedLost,
    LedgerLock,
    LockLost,
    RecordKind,
    SwitchChanged,
    VoteState,
)
from bookgate.protos.bookkeeper.common.v1.status_pb2 import StatusCode
from bookgate.protos.bookkeeper.gateway.v1 import replication_service_pb2 as pb
from bookgate.protos.bookkeeper.gateway.v1.replication_service_pb2_grpc import ReplicationServiceStub
from bookgate.thinclient.spark.jobs.marking import require_auto_recovery
from tests.integration.cutting_proxy import CuttingProxy
from tests.integration.gateway.conftest import STORES, some_metadata, unscoped, unused_store
from tests.integration.gateway.test_replication_contract import (
    Ender,
    TestChanges,
    TestElection,
    TestLedgerFeed,
    TestLocks,
    TestSwitches,
    Told,
    end_claims_of,
    lock_when_free,
    stores,
)
from tests.integration.gateway.test_replication_contract import TestMarks as StoreMarks
from tests.stores import made

pytestmark = pytest.mark.asyncio

__all__ = ["TestChanges", "TestElection", "TestLedgerFeed", "TestLocks", "TestMarks", "TestSwitches", "stores"]


class TestMarks(StoreMarks):
    many = 1_000
    page = 100


@pytest.fixture(params=STORES)
def store_uri(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return made(unused_store(request, tmp_path))


@pytest_asyncio.fixture
async def gateways(store_uri: str) -> AsyncIterator[list[tuple[LedgerManagerFactory, int]]]:
    """Two gateways on one store: the factory of each, and its port."""
    async with AsyncExitStack() as stack:
        running = []
        for _ in range(2):
            factory = create_factory(store_uri)
            stack.push_async_callback(factory.close)
            await factory.initialize()
            gateway = GatewayServer(factory)
            stack.push_async_callback(gateway.stop, 0)
            running.append((factory, await gateway.start()))
        yield running


@pytest.fixture
def metadata_uri(gateways: list[tuple[LedgerManagerFactory, int]]) -> str:
    """What the tests of the contract make their factories from."""
    return "grpc://" + ",".join(f"127.0.0.1:{port}" for _, port in gateways)


@pytest.fixture
def end_claims(request: pytest.FixtureRequest, gateways: list[tuple[LedgerManagerFactory, int]]) -> Ender:
    """Ends what the gateways hold in the store: a client is at either of them."""

    async def end(factory: LedgerManagerFactory) -> None:
        for behind, _ in gateways:
            await end_claims_of(request, behind)

    return end


class AnswersLost(grpc.aio.ServerInterceptor):
    """Carries out the next call of a method, and loses its answer."""

    def __init__(self) -> None:
        self.next: str | None = None
        self.lost = 0

    async def intercept_service(self, continuation: Any, handler_call_details: Any) -> Any:
        handler = await continuation(handler_call_details)
        if handler_call_details.method.rpartition("/")[2] != self.next:
            return handler
        self.next = None

        async def lose(request: Any, context: Any) -> None:
            await handler.unary_unary(request, context)
            self.lost += 1
            await context.abort(grpc.StatusCode.UNAVAILABLE, "the answer is lost")

        return grpc.unary_unary_rpc_method_handler(lose, handler.request_deserializer, handler.response_serializer)


class OneGateway(NamedTuple):
    server: GatewayServer
    store: LedgerManagerFactory
    port: int
    answers: AnswersLost


@pytest_asyncio.fixture
async def one(tmp_path: Path) -> AsyncIterator[OneGateway]:
    async with AsyncExitStack() as stack:
        factory = create_factory(made(f"sqlite://{tmp_path}/metadata.db"))
        stack.push_async_callback(factory.close)
        await factory.initialize()
        answers = AnswersLost()
        server = GatewayServer(factory, lease_seconds=1.0, interceptors=[answers])
        stack.push_async_callback(server.stop, 0)
        yield OneGateway(server, factory, await server.start(), answers)


@pytest_asyncio.fixture
async def client(one: OneGateway) -> AsyncIterator[LedgerManagerFactory]:
    factory = create_factory(f"grpc://127.0.0.1:{one.port}")
    await factory.initialize()
    yield factory
    await factory.close()


class TestLostAnswers:
    async def test_one_lock_and_one_release(self, one: OneGateway, client: LedgerManagerFactory) -> None:
        store = client.replication_metadata
        one.answers.next = "Claim"
        lock = await store.try_lock(7, "h")
        assert lock is not None
        assert await store.is_held(lock)
        assert await store.try_lock(7, "h") is None
        one.answers.next = "Claim"
        await store.release(lock)
        assert one.answers.lost == 2
        assert await one.store.replication_metadata.lock_holders() == {}
        assert await store.try_lock(7, "h") is not None

    async def test_one_vote(self, one: OneGateway, client: LedgerManagerFactory) -> None:
        told = Told()
        one.answers.next = "Claim"
        vote = await client.replication_metadata.stand_for_auditor("b:1", told)
        await told.until(VoteState.ELECTED)
        assert one.answers.lost == 1
        one.answers.next = "Claim"
        await vote.withdraw()
        assert await one.store.replication_metadata.auditor() is None

    async def test_write_under_the_lock_is_found_out(self, one: OneGateway, client: LedgerManagerFactory) -> None:
        await client.ledger_manager.create(unscoped(7), some_metadata())
        lock = await client.replication_metadata.try_lock(7, "h")
        assert lock is not None
        one.answers.next = "WriteLedger"
        written = await client.replication_metadata.write_ledger(lock, some_metadata(x=b"1"), 0)
        assert (written.version, one.answers.lost) == (1, 1)
        assert (await client.ledger_manager.read(unscoped(7))).metadata.custom_metadata == {"x": b"1"}

    async def test_marks_and_records_are_found_out(self, one: OneGateway, client: LedgerManagerFactory) -> None:
        store = client.replication_metadata
        one.answers.next = "Mark"
        mark = await store.mark(7, ["a:1"])
        assert await store.read_mark(7) == mark
        one.answers.next = "DeleteMark"
        assert await store.delete_mark(7, mark.version)
        one.answers.next = "ChangeSettings"
        await store.set_enabled(False)
        one.answers.next = "WriteRecord"
        assert await store.write_record(RecordKind.SETTING, "budget", b"5", None) == 0
        one.answers.next = "RemoveRecord"
        await store.remove_record(RecordKind.SETTING, "budget", 0)
        assert one.answers.lost == 5

    async def test_lock_that_was_given_up_is_not_kept(
        self, one: OneGateway, client: LedgerManagerFactory, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Its caller was cancelled while the gateway was at it."""
        store, behind = client.replication_metadata, one.store.replication_metadata
        begun, go_on, taken, try_lock = asyncio.Event(), asyncio.Event(), asyncio.Event(), behind.try_lock

        async def slow(ledger_id: int, holder: str) -> LedgerLock | None:
            begun.set()
            await go_on.wait()
            lock = await try_lock(ledger_id, holder)
            taken.set()
            return lock

        monkeypatch.setattr(behind, "try_lock", slow)
        taking = asyncio.ensure_future(store.try_lock(7, "h"))
        await begun.wait()
        taking.cancel()
        await asyncio.gather(taking, return_exceptions=True)
        go_on.set()
        await taken.wait()
        monkeypatch.undo()
        await lock_when_free(behind, 7)


class TestSessions:
    async def test_end_of_the_gateway_ends_locks_and_votes(
        self, gateways: list[tuple[LedgerManagerFactory, int]]
    ) -> None:
        """What is asked for next is held at the other one."""
        servers = [GatewayServer(factory) for factory, _ in gateways]
        ports = [await server.start() for server in servers]
        client = create_factory("grpc://" + ",".join(f"127.0.0.1:{port}" for port in ports))
        await client.initialize()
        store, told, states = client.replication_metadata, Told(), Told()
        store.watch(told)
        lock = await store.try_lock(7, "h")
        assert lock is not None
        await store.stand_for_auditor("b:1", states)
        await states.until(VoteState.ELECTED)
        at = next(server for server in servers if server.replication.leases)
        await at.stop(1.0)
        await told.until(LockLost(lock))
        await states.until(VoteState.LOST)
        other = await lock_when_free(store, 7)
        assert other != lock
        assert [server.replication.leases for server in servers if server is not at] == [1]
        await client.close()
        assert [server.replication.leases for server in servers] == [0, 0]
        assert await gateways[0][0].replication_metadata.lock_holders() == {}
        for server in servers:
            await server.stop(0)

    async def test_silent_owner_loses_its_lock_with_its_lease(self, one: OneGateway) -> None:
        async with grpc.aio.insecure_channel(f"127.0.0.1:{one.port}") as channel:
            stub: Any = ReplicationServiceStub(channel)
            call = stub.Attend(iter([pb.AttendRequest(sequence=1, session_id=OWNER)]))
            assert (await call.read()).lease_ms == 1000
            request = pb.ClaimRequest(session_id=OWNER, number=1, try_lock=pb.TryLock(ledger_id=7, holder="h"))
            assert (await stub.Claim(request)).HasField("token")
            assert await one.store.replication_metadata.lock_holders() == {7: "h"}
            await lock_when_free(one.store.replication_metadata, 7)
            assert (await stub.Claim(request)).code == StatusCode.SESSION_UNKNOWN
            resumed = stub.Attend(iter([pb.AttendRequest(sequence=1, session_id=OWNER, resume=True)]))
            assert (await resumed.read()).code == StatusCode.SESSION_UNKNOWN

    async def test_claim_is_its_owners_only(self, one: OneGateway, client: LedgerManagerFactory) -> None:
        await client.ledger_manager.create(unscoped(7), some_metadata())
        lock = await client.replication_metadata.try_lock(7, "h")
        assert lock is not None
        async with grpc.aio.insecure_channel(f"127.0.0.1:{one.port}") as channel:
            stub: Any = ReplicationServiceStub(channel)
            call = stub.Attend(_endless(OWNER))
            await call.read()
            release = pb.ClaimRequest(session_id=OWNER, number=1, release_lock=pb.ReleaseLock(ledger_id=7))
            assert (await stub.Claim(release)).code == StatusCode.SUCCESS
            assert await client.replication_metadata.is_held(lock)
            check = pb.ClaimRequest(session_id=OWNER, number=2, check_lock=lock.token)
            assert not (await stub.Claim(check)).held
            write = pb.WriteLedgerRequest(session_id=OWNER, token=lock.token, metadata=to_format(some_metadata()))
            assert (await stub.WriteLedger(write)).code == StatusCode.LOCK_LOST
            late = pb.ClaimRequest(session_id=OWNER, number=1, try_lock=pb.TryLock(ledger_id=7))
            await client.replication_metadata.release(lock)
            assert (await stub.Claim(late)).code == StatusCode.BAD_REQUEST, "it was given back under that number"
            late.number = 3
            assert (await stub.Claim(late)).HasField("token")
            call.cancel()

    async def test_stream_that_broke_is_taken_up_and_nothing_is_lost(self, one: OneGateway) -> None:
        async with CuttingProxy("127.0.0.1", one.port, lambda: None) as proxy:
            client = create_factory(f"grpc://127.0.0.1:{proxy.port}")
            await client.initialize()
            store, told = client.replication_metadata, Told()
            store.watch(told)
            lock = await store.try_lock(7, "h")
            assert lock is not None
            proxy.cut_all()
            await one.store.replication_metadata.set_enabled(False)
            await told.until(SwitchChanged(False))
            assert await store.is_held(lock)
            assert LockLost(lock) not in told.events
            await client.close()

    async def test_store_without_auto_recovery_says_so(self, request: pytest.FixtureRequest, tmp_path: Path) -> None:
        request.getfixturevalue("third_store")
        factory = create_factory(made(f"tiny://{tmp_path}/tiny"))
        await factory.initialize()
        server = GatewayServer(factory)
        port = await server.start()
        client = create_factory(f"grpc://127.0.0.1:{port}")
        await client.initialize()
        for call in (client.replication_metadata.mark(7, []), client.replication_metadata.try_lock(7, "h")):
            with pytest.raises(IllegalOpException, match="no place"):
                await call
        with pytest.raises(IllegalOpException, match=r"no place.*run the audit without --mark"):
            await asyncio.to_thread(require_auto_recovery, {"gateways": f"127.0.0.1:{port}"})
        await client.close()
        await server.stop(0)
        await factory.close()


OWNER = "0123456789abcdef-owner"


async def _endless(session_id: str) -> AsyncIterator[pb.AttendRequest]:
    """An owner that is heard of until its call is cancelled."""
    yield pb.AttendRequest(sequence=1, session_id=session_id)
    while True:
        await asyncio.sleep(0.1)
        yield pb.AttendRequest(sequence=2)


class RefusesFeeds(grpc.aio.ServerInterceptor):
    """As a gateway does that is older than the call."""

    async def intercept_service(self, continuation: Any, handler_call_details: Any) -> Any:
        if handler_call_details.method.endswith("/WatchLedgers"):
            return None
        return await continuation(handler_call_details)


class TestFeedOfAGateway:
    async def test_another_gateway_takes_over_after_a_gap(self, tmp_path: Path) -> None:
        uri = made(f"sqlite://{tmp_path}/metadata.db")
        async with AsyncExitStack() as stack:
            gateways = []
            for _ in range(2):
                store = create_factory(uri)
                stack.push_async_callback(store.close)
                await store.initialize()
                server = GatewayServer(store)
                gateways.append((server, await server.start()))
            client = create_factory("grpc://" + ",".join(f"127.0.0.1:{port}" for _, port in gateways))
            stack.push_async_callback(client.close)
            await client.initialize()
            told = Told()
            feed = client.replication_metadata.watch_ledgers(told)
            assert feed is not None
            await told.until(FeedBegan())
            serving = next(server for server, _ in gateways if server.replication.feed_count)
            await serving.stop(0)
            seen = await told.until(FeedLost())
            seen = await told.until(FeedBegan(), seen)
            await client.ledger_manager.create(unscoped(7), some_metadata())
            await feed.catch_up()
            assert 7 in told.touched(seen)
            (other,) = (server for server, _ in gateways if server is not serving)
            feed.close()
            async with asyncio.timeout(10):
                while other.replication.feed_count:  # noqa: ASYNC110 - the gateway has no event for it
                    await asyncio.sleep(0.01)
            await other.stop(0)

    async def test_what_was_told_is_read_at_any_gateway(self, one: OneGateway, client: LedgerManagerFactory) -> None:
        told = Told()
        feed = client.replication_metadata.watch_ledgers(told)
        assert feed is not None
        await told.until(FeedBegan())
        record = await one.store.ledger_manager.create(unscoped(7), some_metadata())
        await feed.catch_up()
        assert await client.revision() >= await one.store.revision()
        assert (await client.ledger_manager.read(unscoped(7))).version == record.version

    async def test_an_older_gateway_has_none_and_serves_all_else(
        self, tmp_path: Path, caplog: pytest.LogCaptureFixture
    ) -> None:
        async with AsyncExitStack() as stack:
            store = create_factory(made(f"sqlite://{tmp_path}/metadata.db"))
            stack.push_async_callback(store.close)
            await store.initialize()
            server = GatewayServer(store, interceptors=[RefusesFeeds()])
            stack.push_async_callback(server.stop, 0)
            client = create_factory(f"grpc://127.0.0.1:{await server.start()}")
            stack.push_async_callback(client.close)
            await client.initialize()
            told = Told()
            feed = client.replication_metadata.watch_ledgers(told)
            assert feed is not None
            with pytest.raises(MetaStoreException):
                await feed.catch_up()
            for number in range(20):
                await client.ledger_manager.create(unscoped(number), some_metadata())
            assert told.events == []
            assert caplog.text.count("gateway_without_ledger_feed") == 1
            assert "gateway_failed" not in caplog.text
