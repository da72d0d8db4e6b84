"""Gateways killed in the middle of Iterate and Write; ZooKeeper stopped, killed and started again under load.

What must hold: a listing is whole or an error (M5, F13); a change has one winner, and its author never hears that
somebody else was faster when nobody was (M6); nothing that was acknowledged is lost; once everything is back, every
client goes on (progress).
"""

from __future__ import annotations

import asyncio
import contextlib
import signal
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack
from dataclasses import replace

import pytest
from kazoo.client import KazooClient

from bookgate.bookie.standalone.local_zookeeper import LocalZooKeeper
from bookgate.ledger.errors import BKException, MetadataVersionException, MetaStoreException, UnknownOutcomeException
from bookgate.ledger.metadata_codec import encode
from bookgate.ledger.metadata_store import LedgerManager, LedgerRecord
from bookgate.thinclient.gateways.factory import RpcLedgerManagerFactory
from tests.integration.gateway.conftest import all_ids, some_metadata, unscoped
from tests.integration.gateway.stress import (
    GatewayProcess,
    client_uri,
    gateway_here,
    gateway_processes,
    in_thread,
    number_of,
    numbered,
    size,
    until,
)
from tests.stores import made

pytestmark = [pytest.mark.asyncio, pytest.mark.timeout(300)]


@contextlib.asynccontextmanager
async def clients_of(gateways: list[GatewayProcess], count: int) -> AsyncIterator[list[RpcLedgerManagerFactory]]:
    async with AsyncExitStack() as stack:
        clients = []
        for _ in range(count):
            client = RpcLedgerManagerFactory(client_uri(gateways), timeout=30)
            stack.push_async_callback(client.close)
            await client.initialize()
            clients.append(client)
        yield clients


def scattered(server: LocalZooKeeper, count: int) -> list[int]:
    """Ledgers that lie in different leaf nodes, created at once; their ids."""
    numbers = [leaf * 10_000 + place for leaf in range(count // 50) for place in range(50)]
    client = KazooClient(server.address)
    client.start()
    data = encode(some_metadata())
    for start in range(0, len(numbers), 50):
        client.ensure_path(f"/ledgers/00/{numbers[start] // 10_000:04d}")
        transaction = client.transaction()
        for number in numbers[start : start + 50]:
            transaction.create(f"/ledgers/00/{number // 10_000:04d}/L{number % 10_000:04d}", data)
        assert all(isinstance(result, str) for result in transaction.commit())
    client.stop()
    client.close()
    return numbers


class TestIterate:
    @pytest.mark.long
    async def test_listing_goes_on_at_another_gateway(self, own_zookeeper: LocalZooKeeper) -> None:
        with gateway_processes(made(own_zookeeper.metadata_uri()), 2) as gateways:
            numbers = await in_thread(scattered, own_zookeeper, size(3_000, 50_000))
            async with clients_of(gateways, 1) as (client,):
                for victim in (0, 1):
                    listed: list[int] = []
                    async for page in client.ledger_manager.ledger_records(page_size=100):
                        listed += [record.ledger_id.low for record in page]
                        if len(listed) == 300:
                            # Whichever of them carries the listing, it is gone for a while.
                            await in_thread(gateways[victim].end)
                        if len(listed) == 2_000:
                            await in_thread(gateways[victim].start)
                            await in_thread(gateways[1 - victim].end)
                    assert listed == numbers
                    await in_thread(gateways[1 - victim].start)

    @pytest.mark.long
    async def test_listing_that_nobody_can_finish_is_an_error(self, own_zookeeper: LocalZooKeeper) -> None:
        with gateway_processes(made(own_zookeeper.metadata_uri()), 1) as gateways:
            await in_thread(scattered, own_zookeeper, 5_000)
            client = RpcLedgerManagerFactory(client_uri(gateways), timeout=2)
            await client.initialize()
            listing = client.ledger_manager.ledger_records(page_size=100)
            assert len(await anext(listing)) == 100
            await in_thread(gateways[0].end)
            with pytest.raises(MetaStoreException):
                async for _ in listing:
                    pass
            await client.close()

    @pytest.mark.long
    async def test_store_killed_in_the_middle_is_an_error(self, own_zookeeper: LocalZooKeeper) -> None:
        """F13: a read error has ended a listing as if there were no more."""
        async with gateway_here(made(own_zookeeper.metadata_uri()), call_timeout_seconds=1.0) as (_, server):
            await in_thread(scattered, own_zookeeper, 5_000)
            client = RpcLedgerManagerFactory(f"grpc://{server.address}", timeout=3)
            await client.initialize()
            listing = client.ledger_manager.ledger_records(page_size=100)
            assert len(await anext(listing)) == 100
            await in_thread(own_zookeeper.kill)
            with pytest.raises(MetaStoreException):
                async for _ in listing:
                    pass
            await client.close()


class Author:
    """The only one who writes a ledger: nobody can ever be faster."""

    def __init__(self, manager: LedgerManager, record: LedgerRecord) -> None:
        self._manager = manager
        self.record = record
        self.written = 0
        self.unknown = 0

    async def write_once(self) -> None:
        """Writes the next number. Raises MetadataVersionException if it was told that another was faster."""
        number = self.record.version + 1
        try:
            self.record = await self._manager.write(self.record.ledger_id, numbered(number), self.record.version)
            self.written += 1
        except UnknownOutcomeException:
            self.unknown += 1
            await self._look()

    async def _look(self) -> None:
        with contextlib.suppress(MetaStoreException):
            found = await self._manager.read(self.record.ledger_id)
            assert found.version in (self.record.version, self.record.version + 1)
            self.record = found

    def check(self, final: LedgerRecord) -> None:
        assert final.version >= self.record.version
        assert self.written <= final.version <= self.written + self.unknown
        assert not final.version or number_of(final.metadata) == final.version


async def work(stop: asyncio.Event, once: Callable[[], Awaitable[None]]) -> None:
    while not stop.is_set():
        # A store or a gateway away for longer than a call's time is no fault here.
        with contextlib.suppress(MetaStoreException):
            await once()


class TestWrite:
    @pytest.mark.long
    async def test_killed_gateways(self, zookeeper_uri: str) -> None:
        """M6: a lost answer is resolved; a version conflict is reported only when there was another author."""
        with gateway_processes(zookeeper_uri, 2) as gateways:
            async with clients_of(gateways, size(10, 40)) as clients:
                authors = []
                for client in clients:
                    record = await client.ledger_manager.create(None, numbered(0))
                    authors.append(Author(client.ledger_manager, record))
                stop = asyncio.Event()
                running = [asyncio.ensure_future(work(stop, author.write_once)) for author in authors]
                for turn in range(size(2, 12)):
                    goal = sum(author.written for author in authors) + 10 * len(authors)
                    await until(_reached(authors, goal), lambda: [author.written for author in authors])
                    await in_thread(gateways[turn % 2].end)
                    goal = sum(author.written for author in authors) + 5 * len(authors)
                    await until(_reached(authors, goal), lambda: [author.written for author in authors])
                    await in_thread(gateways[turn % 2].start)
                stop.set()
                await asyncio.gather(*running)
                for author in authors:
                    author.check(await clients[0].ledger_manager.read(author.record.ledger_id))

    @pytest.mark.long
    async def test_rivals(self, zookeeper_uri: str) -> None:
        """Many authors of one ledger, over a kill: every version has exactly one."""
        with gateway_processes(zookeeper_uri, 2) as gateways:
            async with clients_of(gateways, 8) as clients:
                ledger_id = (await clients[0].ledger_manager.create(None, numbered(0))).ledger_id
                won: list[int] = []
                unknown: list[int] = []

                async def write(client: RpcLedgerManagerFactory) -> None:
                    record = await client.ledger_manager.read(ledger_id)
                    number = record.version + 1
                    # Equal contents would let two rivals rightly say that theirs is what stands there.
                    metadata = replace(numbered(number), custom_metadata={"author": str(id(client)).encode()})
                    try:
                        written = await client.ledger_manager.write(ledger_id, metadata, record.version)
                        won.append(written.version)
                    except MetadataVersionException:
                        return
                    except UnknownOutcomeException:
                        unknown.append(number)

                stop = asyncio.Event()
                running = [asyncio.ensure_future(work(stop, lambda c=c: write(c))) for c in clients]  # type: ignore[misc]
                for turn in range(size(2, 6)):
                    goal = len(won) + 40
                    await until(lambda goal=goal: len(won) >= goal, lambda: won)  # type: ignore[misc]
                    await in_thread(gateways[turn % 2].end)
                    goal = len(won) + 20
                    await until(lambda goal=goal: len(won) >= goal, lambda: won)  # type: ignore[misc]
                    await in_thread(gateways[turn % 2].start)
                stop.set()
                await asyncio.gather(*running)
                final = await clients[0].ledger_manager.read(ledger_id)
                assert len(won) == len(set(won))
                assert set(range(1, final.version + 1)) - set(won) <= set(unknown)


def _reached(authors: list[Author], goal: int) -> Callable[[], bool]:
    return lambda: sum(author.written for author in authors) >= goal


class TestStore:
    @pytest.mark.long
    @pytest.mark.parametrize("how", ["suspended", "killed"])
    async def test_under_load(self, own_zookeeper: LocalZooKeeper, how: str) -> None:
        """Creates, writes, reads, listings and watches, while ZooKeeper goes and comes back."""
        with gateway_processes(made(own_zookeeper.metadata_uri()), 2) as gateways:
            async with clients_of(gateways, size(6, 20)) as clients:
                load = Load(clients)
                await load.start()
                for _ in range(size(2, 6)):
                    await load.progress()
                    await in_thread(own_zookeeper.suspend if how == "suspended" else own_zookeeper.kill)
                    # Long enough for calls to fail and, at ten seconds a session, not for sessions to expire.
                    await asyncio.sleep(1.5)
                    await in_thread(own_zookeeper.resume if how == "suspended" else own_zookeeper.start)
                    await load.progress()
                await load.finish()
                for gateway in gateways:
                    assert gateway.end(signal.SIGTERM) == 0


class Load:
    """Everything that clients do, at once; keeps what was acknowledged."""

    def __init__(self, clients: list[RpcLedgerManagerFactory]) -> None:
        self._managers = [client.ledger_manager for client in clients]
        self._created: set[int] = set()
        self._authors: list[Author] = []
        self._told: dict[int, int] = {}
        self._listings = 0
        self._stop = asyncio.Event()
        self._running: list[asyncio.Future[None]] = []

    async def start(self) -> None:
        for manager in self._managers:
            record = await manager.create(None, numbered(0))
            self._authors.append(Author(manager, record))
            await self._managers[0].register_listener(record.ledger_id, self._listen)
        jobs = [author.write_once for author in self._authors]
        jobs += [lambda m=m: self._create(m) for m in self._managers]  # type: ignore[misc]
        jobs += [lambda m=m: self._list(m) for m in self._managers[:2]]  # type: ignore[misc]
        self._running = [asyncio.ensure_future(work(self._stop, job)) for job in jobs]

    async def progress(self) -> None:
        """Returns when everybody has got on since the call."""
        created, listings = len(self._created), self._listings
        goals = [author.written + 3 for author in self._authors]
        await until(
            lambda: (
                len(self._created) >= created + len(self._managers)
                and self._listings >= listings + 2
                and all(author.written >= goal for author, goal in zip(self._authors, goals, strict=True))
            ),
            lambda: (len(self._created), self._listings, [author.written for author in self._authors], goals),
        )

    async def finish(self) -> None:
        self._stop.set()
        await asyncio.gather(*self._running)
        finals = [await self._managers[-1].read(author.record.ledger_id) for author in self._authors]
        for author, final in zip(self._authors, finals, strict=True):
            author.check(final)
        newest = {final.ledger_id.low: final.version for final in finals}
        await until(lambda: self._told == newest, lambda: (self._told, newest))
        listed = [i async for run in self._managers[0].ledger_ranges() for i in run]
        assert listed == sorted(set(listed))
        assert self._created <= set(listed)

    async def _create(self, manager: LedgerManager) -> None:
        with contextlib.suppress(UnknownOutcomeException):
            created = (await manager.create(None, some_metadata())).ledger_id.low
            assert created not in self._created, f"ledger {created} was given to two"
            self._created.add(created)

    async def _list(self, manager: LedgerManager) -> None:
        before = set(self._created)
        listed = [i async for run in manager.ledger_ranges() for i in run]
        assert listed == sorted(set(listed))
        assert before <= set(listed)
        self._listings += 1

    def _listen(self, ledger_id: object, record: LedgerRecord | None) -> None:
        assert record is not None
        number = record.ledger_id.low
        assert record.version > self._told.get(number, -1)
        self._told[number] = record.version


async def test_session_expired_in_the_middle_of_everything(own_zookeeper: LocalZooKeeper) -> None:
    """ZooKeeper stands still for longer than a session lives; what was created through either gateway is there."""
    async with AsyncExitStack() as stack:
        uri = made(own_zookeeper.metadata_uri())
        gateways = [
            await stack.enter_async_context(gateway_here(uri, session_timeout_seconds=1.0, call_timeout_seconds=3.0))
            for _ in range(2)
        ]
        addresses = ",".join(server.address for _, server in gateways)
        client = RpcLedgerManagerFactory(f"grpc://{addresses}", timeout=30)
        stack.push_async_callback(client.close)
        await client.initialize()
        created = {(await client.ledger_manager.create(None, some_metadata())).ledger_id.low for _ in range(20)}
        sessions = [factory.session.session_id for factory, _ in gateways]
        await in_thread(own_zookeeper.kill)
        await asyncio.sleep(2.5)
        await in_thread(own_zookeeper.start)
        record = None
        while record is None:
            with contextlib.suppress(BKException):
                record = await client.ledger_manager.create(None, some_metadata())
        created.add(record.ledger_id.low)
        assert len(created) == 21
        for factory, _ in gateways:
            assert set(await all_ids(factory)) >= created
            await factory.ledger_manager.read(unscoped(min(created)))
        assert len(sessions) == 2
