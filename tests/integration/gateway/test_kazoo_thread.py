"""The event loop and kazoo's thread: the one never waits for the other, and the other's end is mended.

A real ZooKeeper stands behind a proxy that breaks off in the middle of an answer, resets, and falsifies.
"""

from __future__ import annotations

import asyncio
import struct
import threading
from collections import defaultdict
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest
from kazoo.exceptions import AuthFailedError, NoNodeError
from kazoo.protocol.states import WatchedEvent

from bookgate.bookie.standalone.local_zookeeper import LocalZooKeeper
from bookgate.gateway.server import GatewayServer
from bookgate.gateway.stores.zookeeper.factory import ZooKeeperLedgerManagerFactory
from bookgate.gateway.stores.zookeeper.session import ZooKeeperSession
from bookgate.gateway.stores.zookeeper.uri import parse_zookeeper
from bookgate.ledger.bookie_info import BookieServiceInfo
from bookgate.ledger.errors import BKException, StoreUnreachableException
from tests.integration.cutting_proxy import CuttingProxy
from tests.integration.gateway.conftest import Recorder, some_metadata, unscoped
from tests.integration.gateway.readings import shown
from tests.integration.gateway.stress import until as until_told
from tests.integration.loop_pauses import LoopPauses
from tests.stores import made

pytestmark = [pytest.mark.asyncio, pytest.mark.timeout(600)]

_LONGEST_PAUSE_SECONDS = 0.05
_LONGEST_STEP_SECONDS = 0.15
"""Of computing, when thousands of calls fail in one moment. Some 40 ms on a quiet machine; caches that others use
take it further."""
_SESSION_SECONDS = 6.0
_BIG = b"x" * 300_000
_XIDS = struct.Struct(">ii")


@asynccontextmanager
async def behind_a_proxy(
    zookeeper: LocalZooKeeper, call_timeout_seconds: float = 20
) -> AsyncIterator[tuple[CuttingProxy, ZooKeeperSession]]:
    async with CuttingProxy("127.0.0.1", zookeeper.port, lambda: None) as proxy:
        address = f"127.0.0.1:{proxy.port}"
        session = ZooKeeperSession([address], _SESSION_SECONDS, call_timeout_seconds=call_timeout_seconds)
        await session.start()
        try:
            yield proxy, session
        finally:
            proxy.pass_on(None)
            await session.close()


async def until(condition: Callable[[], bool]) -> None:
    await until_told(condition, lambda: "it has not come about")


async def many(count: int, call: Callable[[int], Any]) -> list[asyncio.Future[Any]]:
    """So many calls, some dozens a turn of the loop: making them is work as well."""
    calls = []
    for number in range(count):
        calls.append(asyncio.ensure_future(call(number)))
        if number % 30 == 0:
            await asyncio.sleep(0)
    return calls


@pytest.mark.timeout(600, method="thread")  # a loop that is blocked hears of no signal
class TestTheLoop:
    @pytest.mark.parametrize("ends", ["goes on", "reset", pytest.param("away", marks=pytest.mark.long)])
    async def test_an_answer_that_breaks_off_holds_nothing_up(self, own_zookeeper: LocalZooKeeper, ends: str) -> None:
        """kazoo reads the rest of an answer for seconds, and nothing else; then it may be without a server for long."""
        async with behind_a_proxy(own_zookeeper) as (proxy, session):
            await session.create("/big", _BIG)
            async with LoopPauses() as pauses:
                proxy.pass_on(1_000)
                calls = await many(3_000, lambda number: session.get("/big" if number == 0 else "/zookeeper"))
                for number in range(1_000):
                    session.remove_data_watch(f"/none-{number}")
                    session.delete_soon(f"/none-{number}")
                await asyncio.sleep(1)
                if ends == "reset":
                    proxy.cut_all()
                if ends == "away":
                    await until(lambda: not session.connected)
                    await asyncio.sleep(2)
                proxy.pass_on(None)
                answers = await asyncio.gather(*calls, return_exceptions=True)
            assert pauses.blocked_seconds <= _LONGEST_PAUSE_SECONDS, (pauses.blocked_seconds, pauses.where)
            assert pauses.busy_seconds <= _LONGEST_STEP_SECONDS
            errors = [answer for answer in answers if isinstance(answer, BaseException)]
            assert all(isinstance(error, BKException) for error in errors)
            assert (await session.get("/big"))[0] == _BIG
            assert session.client_restarts == 0

    async def test_reconnects_under_load_hold_nothing_up(self, own_zookeeper: LocalZooKeeper) -> None:
        async with behind_a_proxy(own_zookeeper) as (proxy, session):
            await session.create("/one", b"1")
            async with LoopPauses() as pauses:
                for _ in range(4):
                    calls = await many(1_500, lambda number: session.get("/one"))
                    proxy.cut_all()
                    for error in await asyncio.gather(*calls, return_exceptions=True):
                        assert isinstance(error, tuple | BKException)
                    await until(lambda: session.connected)
            assert pauses.blocked_seconds <= _LONGEST_PAUSE_SECONDS, (pauses.blocked_seconds, pauses.where)
            assert pauses.busy_seconds <= _LONGEST_STEP_SECONDS
            assert session.client_restarts == 0

    async def test_what_was_given_up_before_it_was_sent_never_happens(self, own_zookeeper: LocalZooKeeper) -> None:
        async with (
            behind_a_proxy(own_zookeeper) as (_, patient),
            behind_a_proxy(own_zookeeper, call_timeout_seconds=0.5) as (proxy, session),
        ):
            await patient.create("/big", _BIG)
            proxy.pass_on(1_000)
            reading = asyncio.ensure_future(session.get("/big"))
            await until(lambda: proxy.passes == 0)
            with pytest.raises(StoreUnreachableException):
                await session.create("/late")
            proxy.pass_on(None)
            await asyncio.gather(reading, return_exceptions=True)
            # What comes after it in its session is answered.
            async with asyncio.timeout(60):
                while (await asyncio.gather(session.sync("/"), return_exceptions=True))[0] is not None:
                    pass
            await patient.sync("/")
            assert await patient.exists("/late") is None


class TestTheTables:
    async def test_only_its_own_thread_changes_what_is_kazoos(self, own_zookeeper: LocalZooKeeper) -> None:
        """Changed while kazoo walks them, they end its thread."""
        async with behind_a_proxy(own_zookeeper) as (_, session):
            kazoo = session.kazoo
            assert kazoo is not None
            watchers = kazoo.client._data_watchers = _Watchers(kazoo.client._connection._connection_routine)
            children = kazoo.client._child_watchers = _Watchers(kazoo.client._connection._connection_routine)
            told = Recorder()
            with pytest.raises(NoNodeError):
                await session.get("/a", told)
            with pytest.raises(NoNodeError):
                await session.children("/a", told)
            await session.create("/a")
            await session.get("/a", told)
            await session.children("/a", told)
            await session.get("/zookeeper", told)
            session.remove_data_watch("/zookeeper")
            await session.delete("/a")
            await session.sync("/")
            assert told.told
            assert watchers.changes >= 4
            assert watchers.strangers == children.strangers == 0
            assert not watchers

    @pytest.mark.parametrize("round_", [0, *(pytest.param(each, marks=pytest.mark.long) for each in (1, 2))])
    async def test_watches_are_released_while_the_connection_is_lost(
        self, own_zookeeper: LocalZooKeeper, round_: int
    ) -> None:
        async with behind_a_proxy(own_zookeeper) as (proxy, session):
            for start in range(0, 3_000, 500):
                await session.create_together([(f"/n{number}", b"") for number in range(start, start + 500)])
            told = Recorder()
            await asyncio.gather(*await many(3_000, lambda number: session.get(f"/n{number}", told)))
            for number in range(3_000):
                session.remove_data_watch(f"/n{number}")
                if number == 1_000:
                    proxy.cut_all()
                if number % 100 == 0:
                    await asyncio.sleep(0)
            await until(lambda: session.connection_epoch == 1)
            await until(lambda: session.connected)
            assert session.client_restarts == 0


class _Watchers(defaultdict[str, set[Any]]):
    """kazoo's table, which counts who changes it."""

    def __init__(self, owner: threading.Thread) -> None:
        super().__init__(set)
        self._owner = owner
        self.changes = self.strangers = 0

    def _changed(self) -> None:
        self.changes += 1
        self.strangers += threading.current_thread() is not self._owner

    def __missing__(self, key: str) -> set[Any]:
        self._changed()
        return super().__missing__(key)

    def pop(self, *arguments: Any) -> Any:
        self._changed()
        return super().pop(*arguments)


class TestAThreadThatEnds:
    """Whatever ends kazoo's thread, there is a new client soon, and all that was watched or registered goes on."""

    @pytest.mark.parametrize("error", [RuntimeError("a bug"), AuthFailedError("no")], ids=repr)
    async def test_a_gateway_goes_on(self, own_zookeeper: LocalZooKeeper, error: Exception) -> None:
        def end() -> None:
            raise error

        async with _gateway(own_zookeeper) as (_, factory, server):
            await _survives(factory, lambda kazoo: setattr(kazoo, "take_requests", lambda _: end()))
            assert shown(server, "store_client_restarts") == 1

    async def test_an_answer_to_another_request(self, own_zookeeper: LocalZooKeeper) -> None:
        async with _gateway(own_zookeeper) as (proxy, factory, _):

            def falsify(data: bytes) -> bytes:
                length, xid = _XIDS.unpack_from(data)
                if xid < 0:
                    return data
                proxy.alter = lambda data: data
                return _XIDS.pack(length, xid + 7) + data[_XIDS.size :]

            await _survives(factory, lambda _: setattr(proxy, "alter", falsify))

    async def test_one_that_ends_again_and_again_is_made_anew_once_a_second(
        self, own_zookeeper: LocalZooKeeper, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def refuse(*_: object) -> None:
            raise ValueError("a bug")

        async with behind_a_proxy(own_zookeeper) as (_, session):
            assert session.kazoo is not None
            with monkeypatch.context() as broken:
                broken.setattr("bookgate.gateway.stores.zookeeper.kazoo_thread._Connection._connect", refuse)
                session.kazoo.client._connection._socket.shutdown(2)
                began = asyncio.get_running_loop().time()
                await until(lambda: session.client_restarts == 3)
            assert asyncio.get_running_loop().time() - began > 1.5
            await session.sync("/")


@asynccontextmanager
async def _gateway(
    zookeeper: LocalZooKeeper,
) -> AsyncIterator[tuple[CuttingProxy, ZooKeeperLedgerManagerFactory, GatewayServer]]:
    await asyncio.get_running_loop().run_in_executor(None, made, zookeeper.metadata_uri())
    async with CuttingProxy("127.0.0.1", zookeeper.port, lambda: None) as proxy:
        factory = ZooKeeperLedgerManagerFactory(parse_zookeeper(f"zk://127.0.0.1:{proxy.port}/ledgers"))
        await factory.initialize()
        server = GatewayServer(factory)
        await server.start()
        try:
            yield proxy, factory, server
        finally:
            await server.stop(0)
            await factory.close()


async def _survives(factory: ZooKeeperLedgerManagerFactory, damage: Callable[[Any], None]) -> None:
    """The next request ends kazoo's thread."""
    manager, told = factory.ledger_manager, Recorder()
    await factory.registration_manager.register_bookie(BookieServiceInfo.legacy("h:1"), read_only=False)
    await manager.create(unscoped(1), some_metadata())
    await manager.register_listener(unscoped(1), told)
    await told.until_version(0)
    before = factory.session.kazoo
    assert before is not None
    session_id, epoch = factory.session.session_id, factory.connection_epoch
    damage(before)
    with pytest.raises(BKException):
        await manager.read(unscoped(1))
    # The read fails before the loop hears what became of the connection.
    await until(lambda: factory.client_restarts == 1 and factory.connected)
    assert factory.connection_epoch == epoch + 1
    # The session goes on, and with it the registration.
    assert factory.session.session_id == session_id
    assert (await factory.service_discovery.bookie_service_info("h:1")).writable
    await manager.write(unscoped(1), some_metadata(), 0)
    await told.until_version(1)
    assert told.versions == [0, 1]


async def test_an_event_is_told_before_the_answer_behind_it(own_zookeeper: LocalZooKeeper) -> None:
    """Whoever has an answer has heard of every change before it: nothing has to be waited for."""
    one, other = (ZooKeeperSession([own_zookeeper.address]) for _ in range(2))
    await one.start()
    await other.start()
    await one.create("/n")
    for version in range(50):
        events: list[WatchedEvent] = []
        await one.get("/n", events.append)
        await other.set("/n", b"", version)
        await one.sync("/")
        assert len(events) == 1
    await other.close()
    await one.close()
