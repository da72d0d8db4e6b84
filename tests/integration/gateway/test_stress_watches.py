"""Thousands of watchers over expired sessions and killed gateways: nothing twice, lost or left over (M1-M3, M7)."""

from __future__ import annotations

import asyncio
import random
from contextlib import AsyncExitStack

import grpc
import pytest

from bookgate.bookie.standalone.local_zookeeper import LocalZooKeeper
from bookgate.gateway.stores.zookeeper.factory import ZooKeeperLedgerManagerFactory
from bookgate.gateway.stores.zookeeper.kazoo_thread import Call, Request
from bookgate.ledger.ledger_id import LedgerId
from bookgate.ledger.metadata_store import LedgerManager, LedgerRecord
from bookgate.thinclient.gateways.factory import RpcLedgerManagerFactory
from tests.integration.gateway.conftest import some_metadata, unscoped
from tests.integration.gateway.stress import (
    WatchStream,
    client_uri,
    gateway_here,
    gateway_processes,
    in_thread,
    server_figure,
    size,
    until,
)
from tests.integration.gateway.test_zookeeper import expire, root_of, watches_below
from tests.stores import made

pytestmark = pytest.mark.asyncio


class Ledgers:
    """Ledgers that change and go; knows what the newest state of each is."""

    def __init__(self, manager: LedgerManager, rng: random.Random) -> None:
        self._manager = manager
        self._rng = rng
        self.versions: dict[int, int] = {}
        self.removed: set[int] = set()

    async def create(self, count: int) -> None:
        for record in await asyncio.gather(*(self._manager.create(None, some_metadata()) for _ in range(count))):
            self.versions[record.ledger_id.low] = 0

    async def change_some(self, changes: int) -> None:
        for number in self._rng.choices(sorted(self.versions), k=changes):
            await self._manager.write(unscoped(number), some_metadata(), self.versions[number])
            self.versions[number] += 1

    async def remove_some(self, count: int) -> None:
        for number in self._rng.sample(sorted(self.versions), count):
            await self._manager.remove(unscoped(number))
            del self.versions[number]
            self.removed.add(number)

    def missing(self, told: dict[int, int], removed: set[int], watched: set[int]) -> list[str]:
        """What a watcher of some ledgers has not been told yet."""
        return [
            f"ledger {number}: told {told.get(number)}, is at {self.versions.get(number)}"
            for number in watched
            if told.get(number) != self.versions.get(number) or (number in self.removed and number not in removed)
        ]


class TestExpiries:
    @pytest.mark.long
    @pytest.mark.timeout(300)
    async def test_watchers_through_two_gateways(self, zookeeper_uri: str, zookeeper: LocalZooKeeper) -> None:
        streams_a_gateway, ledgers_count, rounds = 10, 100, 10
        async with AsyncExitStack() as stack:
            gateways = [await stack.enter_async_context(gateway_here(zookeeper_uri)) for _ in range(2)]
            writer, _ = await stack.enter_async_context(gateway_here(zookeeper_uri))
            ledgers = Ledgers(writer.ledger_manager, random.Random(7))
            await ledgers.create(ledgers_count)
            watched = set(ledgers.versions)
            streams = []
            for _, server in gateways:
                channel = await stack.enter_async_context(grpc.aio.insecure_channel(server.address))
                streams += [WatchStream(channel) for _ in range(streams_a_gateway)]
            for stream in streams:
                for number in watched:
                    await stream.subscribe(number)

            def missing() -> list[str]:
                return [text for s in streams for text in (s.faults or ledgers.missing(s.versions, s.removed, watched))]

            await until(lambda: not missing(), missing)
            for turn in range(rounds):
                victims = [gateways[turn % 2][0]] if turn % 3 else [factory for factory, _ in gateways]
                before = [factory.session.session_id for factory in victims]
                await asyncio.gather(
                    ledgers.change_some(ledgers_count), *(expire(zookeeper, factory) for factory in victims)
                )
                await ledgers.remove_some(2)
                await ledgers.change_some(10)
                await until(lambda: not missing(), missing)
                assert all(f.session.session_id != old for f, old in zip(victims, before, strict=True))
            assert [fault for stream in streams for fault in stream.faults] == []
            # One store watch a ledger a gateway, however many streams; the removed ones have none.
            for factory, _ in gateways:
                await factory.catch_up(None)
            root = root_of(zookeeper_uri)
            ledger_watches = [path for path in watches_below(zookeeper, root) if "/L" in path]
            assert len(ledger_watches) == len(ledgers.versions)
            for stream in streams:
                await stream.close()
            await until(
                lambda: all(not server.watches.hub.ledger_count for _, server in gateways),
                lambda: "a gateway still has subscriptions",
            )
            for factory, _ in gateways:
                await factory.catch_up(None)
            assert [path for path in watches_below(zookeeper, root) if "/L" in path] == []

    @pytest.mark.long
    async def test_rearming_many_watches_does_not_cost_the_next_session(self, own_zookeeper: LocalZooKeeper) -> None:
        """F14: every watched ledger read again at once has starved heartbeats until that session expired too."""
        count = size(1_000, 5_000)
        uri = made(own_zookeeper.metadata_uri())
        async with gateway_here(uri, session_timeout_seconds=6.0) as (factory, server):
            created = []
            for start in range(0, count, 250):
                creates = (factory.ledger_manager.create(unscoped(start + n), some_metadata()) for n in range(250))
                created += await asyncio.gather(*creates)
            async with grpc.aio.insecure_channel(server.address) as channel:
                stream = WatchStream(channel)
                for record in created:
                    await stream.subscribe(record.ledger_id.low)
                await until(lambda: len(stream.versions) == count, lambda: len(stream.versions))
                at_once = _most_at_once(factory)
                await expire(own_zookeeper, factory)
                await until(lambda: server_figure(own_zookeeper, "zk_watch_count") >= count, lambda: "not all armed")
                session = factory.session.session_id
                await factory.ledger_manager.write(created[0].ledger_id, some_metadata(), 0)
                await until(lambda: stream.versions[0] == 1, lambda: stream.versions[0])
                assert factory.session.session_id == session
                assert 0 < at_once[0] <= 256
                # Nobody was told of what had not changed.
                assert stream.faults == []
                await stream.close()


def _most_at_once(factory: ZooKeeperLedgerManagerFactory) -> list[int]:
    """Counts the calls under way in the session; the greatest number is kept current in the list returned."""
    kazoo, running, most = factory.session.kazoo, 0, [0]
    assert kazoo is not None
    call = kazoo.call

    def counted(request: Request, generation: int) -> Call:
        nonlocal running
        running += 1
        most[0] = max(most[0], running)
        made = call(request, generation)
        made.answer.add_done_callback(ended)
        return made

    def ended(_: object) -> None:
        nonlocal running
        running -= 1

    kazoo.call = counted  # type: ignore[method-assign]
    return most


class TestKilledGateways:
    @pytest.mark.long
    @pytest.mark.timeout(300)
    async def test_watches_move_on(self, zookeeper_uri: str) -> None:
        clients_count, ledgers_count, rounds = size(5, 20), 20, size(3, 8)
        with gateway_processes(zookeeper_uri, 2) as gateways:
            async with AsyncExitStack() as stack:
                writer, _ = await stack.enter_async_context(gateway_here(zookeeper_uri))
                ledgers = Ledgers(writer.ledger_manager, random.Random(11))
                await ledgers.create(ledgers_count)
                watched = set(ledgers.versions)
                listeners = []
                for _ in range(clients_count):
                    client = RpcLedgerManagerFactory(client_uri(gateways), timeout=20)
                    await client.initialize()
                    stack.push_async_callback(client.close)
                    listener = Listener()
                    listeners.append(listener)
                    for number in watched:
                        await client.ledger_manager.register_listener(unscoped(number), listener)

                def missing() -> list[str]:
                    return [
                        text
                        for told in listeners
                        for text in (told.faults or ledgers.missing(told.versions, told.removed, watched))
                    ]

                await until(lambda: not missing(), missing)
                for turn in range(rounds):
                    gateway = gateways[turn % 2]
                    changes = asyncio.ensure_future(ledgers.change_some(40))
                    await in_thread(gateway.end)
                    await changes
                    await ledgers.remove_some(1)
                    await until(lambda: not missing(), missing)
                    await in_thread(gateway.start)
                assert [fault for told in listeners for fault in told.faults] == []


class Listener:
    """Hears of many ledgers, and judges what it hears."""

    def __init__(self) -> None:
        self.versions: dict[int, int] = {}
        self.removed: set[int] = set()
        self.faults: list[str] = []

    def __call__(self, ledger_id: LedgerId, record: LedgerRecord | None) -> None:
        number = ledger_id.low
        if number in self.removed:
            self.faults.append(f"ledger {number}: told of something after its removal")
        elif record is None:
            self.removed.add(number)
            self.versions.pop(number, None)
        elif record.version <= self.versions.get(number, -1):
            self.faults.append(f"ledger {number}: version {record.version} after {self.versions[number]}")
        else:
            self.versions[number] = record.version


class TestNothingLeft:
    @pytest.mark.long
    @pytest.mark.timeout(300)
    async def test_memory_and_watches_after_clients_have_gone(self, own_zookeeper: LocalZooKeeper) -> None:
        """M7: clients that come, watch and go leave neither watches nor memory behind."""
        uri, ledgers_count, rounds = made(own_zookeeper.metadata_uri()), 100, size(2, 12)
        with gateway_processes(uri, 1) as (gateway,):
            async with gateway_here(uri) as (factory, _):
                ledgers = Ledgers(factory.ledger_manager, random.Random(3))
                await ledgers.create(ledgers_count)
            idle = server_figure(own_zookeeper, "zk_watch_count")
            sizes = []
            for _ in range(3 + rounds):
                await _come_and_go(gateway.address, sorted(ledgers.versions), streams=size(30, 100))
                await until(
                    lambda: server_figure(own_zookeeper, "zk_watch_count") <= idle,
                    lambda: own_zookeeper.command("wchp"),
                )
                sizes.append(gateway.rss_bytes)
            # The first rounds fill pools and caches.
            assert max(sizes[3:]) - sizes[2] < 16 * 1024 * 1024, sizes
            assert server_figure(own_zookeeper, "zk_num_alive_connections") == 2  # the gateway, and who asks


async def _come_and_go(address: str, numbers: list[int], streams: int) -> None:
    channels = [
        grpc.aio.insecure_channel(address, options=[("grpc.use_local_subchannel_pool", 1)])
        for _ in range(streams // 10)
    ]
    watches = [WatchStream(channel) for channel in channels for _ in range(10)]
    for stream in watches:
        for number in numbers:
            await stream.subscribe(number)
    await until(
        lambda: all(len(stream.versions) == len(numbers) for stream in watches),
        lambda: [len(stream.versions) for stream in watches],
    )
    assert [fault for stream in watches for fault in stream.faults] == []
    for index, channel in enumerate(channels):
        # Half of them leave in order, half just go away.
        if index % 2:
            await asyncio.gather(*(stream.close() for stream in watches[index * 10 : index * 10 + 10]))
        await channel.close()
    await asyncio.gather(*(stream.close() for stream in watches))


class TestSessions:
    @pytest.mark.long
    async def test_as_many_sessions_as_gateways(self, own_zookeeper: LocalZooKeeper) -> None:
        clients_count = size(50, 300)
        with gateway_processes(made(own_zookeeper.metadata_uri()), 2) as gateways:
            clients = [RpcLedgerManagerFactory(client_uri(gateways), timeout=20) for _ in range(clients_count)]
            await asyncio.gather(*(client.initialize() for client in clients))
            created = await asyncio.gather(*(c.ledger_manager.create(None, some_metadata()) for c in clients))
            assert len({record.ledger_id for record in created}) == clients_count
            assert server_figure(own_zookeeper, "zk_num_alive_connections") == 2 + 1
            assert server_figure(own_zookeeper, "zk_global_sessions") == 2
            await asyncio.gather(*(client.close() for client in clients))
