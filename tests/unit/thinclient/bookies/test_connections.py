"""Connections that fail, come back, fill up, multiply and end: what requests get, and what is left behind."""

import asyncio
import gc
import os
import random
import weakref
from collections.abc import Awaitable, Callable

import pytest

from bookgate import BookKeeper
from bookgate.ledger.bookie_info import BookieServiceInfo
from bookgate.ledger.digest import digest_for
from bookgate.ledger.entry import encode_entry
from bookgate.ledger.errors import (
    BookieHandleNotAvailableException,
    ClientClosedException,
    TimeoutException,
    TooManyRequestsException,
)
from bookgate.ledger.metadata import DigestType
from bookgate.ledger.wire.messages import AddRequest, Operation, ReadLacRequest, ReadLacResponse, Status
from bookgate.ledger.wire.v3 import encode_request, encode_response
from bookgate.thinclient.bookies.connection import (
    GIVEN_UP_AFTER,
    Address,
    BookieConnection,
    ConnectionSettings,
    tcp_connector,
)
from bookgate.thinclient.bookies.reconnect_backoff import FIRST_PAUSE, LONGEST_PAUSE, ReconnectPauses
from bookgate.thinclient.bookies.wire import Wire
from tests.unit.thinclient.fakes import FakeBookie, FakeCluster, RawLedgerRecord, fake_cluster
from tests.unit.thinclient.inside import pool_of
from tests.unit.virtual_time import VirtualTime


def resolver(port: int) -> Callable[[str], Awaitable[Address]]:
    async def resolve(_bookie_id: str) -> Address:
        return Address("127.0.0.1", port)

    return resolve


class Asked:
    """Requests on one connection, and what became of them."""

    def __init__(self, connection: BookieConnection) -> None:
        self.connection = connection
        self._txn_id = 0

    def send(self, timeout: float = 5) -> asyncio.Future[object]:
        self._txn_id += 1
        loop = asyncio.get_running_loop()
        outcome: asyncio.Future[object] = loop.create_future()

        def sink(_token: object, response: object, error: object) -> None:
            outcome.set_result(response or error)

        frame = encode_request(ReadLacRequest(self._txn_id, 1))
        self.connection.send(Operation.READ_LAC, self._txn_id, frame, loop.time() + timeout, sink, None)
        return outcome

    async def ask(self) -> object:
        async with asyncio.timeout(20):
            return await self.send()


def test_pauses_grow_to_their_bound_and_end_with_success() -> None:
    pauses, error = ReconnectPauses(random.Random(1)), BookieHandleNotAvailableException("x")
    assert pauses.remaining(0) == 0
    pauses.failed(0, error)
    assert pauses.remaining(0) == 0
    lengths = []
    for _ in range(20):
        pauses.failed(100, error)
        lengths.append(pauses.remaining(100))
    for i, length in enumerate(lengths):
        whole = min(FIRST_PAUSE * 2**i, LONGEST_PAUSE)
        assert whole / 2 <= length <= whole
    assert len(set(lengths[10:])) > 1
    assert pauses.remaining(100 + LONGEST_PAUSE) == 0
    assert pauses.last_error is error
    pauses.succeeded()
    assert pauses.remaining(100) == 0


async def test_a_dead_bookie_is_tried_twice_and_then_left_alone_for_a_while(virtual_time: VirtualTime) -> None:
    attempts: list[int] = []

    async def refuse(_factory: object, _host: str, _port: int) -> None:
        attempts.append(1)
        raise ConnectionRefusedError("refused")

    settings = ConnectionSettings(5, 1 << 20, 1 << 16)
    connection = BookieConnection("dead", resolver(1), settings, refuse, random.Random(1))
    asked = Asked(connection)
    for _ in range(2):
        assert "could not be reached: refused" in str(await asked.ask())
    outcome = await asked.ask()
    assert isinstance(outcome, BookieHandleNotAvailableException)
    assert str(outcome).startswith("bookie dead (127.0.0.1:1) is not asked: it is tried again in 0.")
    assert "refused" in str(outcome)
    assert len(attempts) == 2
    await asyncio.sleep(FIRST_PAUSE / 2 - 0.001)
    await asked.ask()
    assert len(attempts) == 2
    await asyncio.sleep(FIRST_PAUSE / 2 + 0.001)
    await asked.ask()
    assert len(attempts) == 3
    connection.close()


@pytest.mark.asyncio
async def test_a_bookie_restarted_at_the_same_address_is_asked_at_once() -> None:
    async with fake_cluster(1) as cluster:
        (bookie,) = cluster.bookies
        connection = BookieConnection("b", resolver(bookie.port), ConnectionSettings(5, 1 << 20, 1 << 16))
        asked = Asked(connection)
        for _ in range(5):
            assert isinstance(await asked.ask(), ReadLacResponse)
            bookie.silent = True
            lost = asked.send()
            await bookie.until_requested(len(bookie.requests) + 1)
            await bookie.stop()
            assert "lost the connection" in str(await lost)
            bookie.silent = False
            await bookie.start()
        connection.close()


def where(bookie: FakeBookie, port: int | None = None) -> BookieServiceInfo:
    """What somebody tells of a bookie."""
    endpoints = BookieServiceInfo.legacy(f"127.0.0.1:{port or bookie.port}").endpoints
    return BookieServiceInfo(bookie.bookie_id, endpoints)


@pytest.mark.asyncio
async def test_a_bookie_that_the_client_was_told_of_is_looked_up_only_when_it_is_not_there() -> None:
    async with fake_cluster(1) as cluster, cluster.client() as client:
        (bookie,), discovery = cluster.bookies, cluster.discovery
        client.seed_addresses([where(bookie)])
        asked = Asked(pool_of(client).connection(bookie.bookie_id))
        assert isinstance(await asked.ask(), ReadLacResponse)
        assert discovery.lookups == []
        await bookie.stop()
        await bookie.start()
        registered, discovery.registered = discovery.registered, []
        assert isinstance(await asked.ask(), ReadLacResponse), "discovery does not know it: where it was told to be"
        assert set(discovery.lookups) == {bookie.bookie_id}
        discovery.registered = registered


@pytest.mark.asyncio
async def test_a_bookie_that_has_moved_since_the_client_was_told_is_found_by_discovery() -> None:
    async with fake_cluster(1) as cluster, cluster.client() as client:
        (bookie,) = cluster.bookies
        client.seed_addresses([where(bookie, port=1)])
        asked = Asked(pool_of(client).connection(bookie.bookie_id))
        assert "could not be reached" in str(await asked.ask())
        assert isinstance(await asked.ask(), ReadLacResponse)
        assert cluster.discovery.lookups == [bookie.bookie_id]


@pytest.mark.asyncio
async def test_a_port_that_takes_connections_and_drops_them_counts_as_failing() -> None:
    accepted = 0

    async def drop(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal accepted
        accepted += 1
        writer.transport.abort()

    async with await asyncio.start_server(drop, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        connection = BookieConnection("b", resolver(port), ConnectionSettings(5, 1 << 20, 1 << 16))
        asked = Asked(connection)
        outcomes = [str(await asked.ask()) for _ in range(10)]
        assert accepted < 10
        assert "is not asked: it is tried again in" in outcomes[-1]
        connection.close()


@pytest.mark.asyncio
@pytest.mark.parametrize("limit", [0.0, 60.0, None])
async def test_requests_to_a_bookie_that_takes_nothing_in_are_refused_when_that_is_asked_for(
    limit: float | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    accepted, let_go = asyncio.Event(), asyncio.Event()

    async def take_nothing(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.transport.pause_reading()  # type: ignore[attr-defined]
        accepted.set()
        await let_go.wait()
        writer.close()

    async with await asyncio.start_server(take_nothing, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        settings = ConnectionSettings(5, 1 << 20, 1 << 16, limit)
        connection = BookieConnection("stuck", resolver(port), settings)
        asked = Asked(connection)
        asked.send(600)
        await accepted.wait()
        loop = asyncio.get_running_loop()
        big = bytes(1 << 20)
        for txn_id in range(1000, 1050):
            connection.send(Operation.ADD_ENTRY, txn_id, big, loop.time() + 600, lambda *_: None, None)
            await asyncio.sleep(0)
        assert connection.connected
        assert connection.waiting_count > 0 or limit == 0, "the buffer is full"
        waiting = asked.send(600)
        if limit:
            connection.expire(loop.time())
            await asyncio.sleep(0)
            assert not waiting.done()
            now = loop.time
            monkeypatch.setattr(loop, "time", lambda: now() + limit)
        connection.expire(loop.time())
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        if limit is None:
            assert not waiting.done()
        else:
            for outcome in (await waiting, await asked.ask()):
                assert isinstance(outcome, TooManyRequestsException)
        connection.close()
        if limit is None:
            assert isinstance(await waiting, ClientClosedException)
        let_go.set()


@pytest.mark.asyncio
async def test_a_bookie_that_has_fallen_silent_is_given_up_after_a_while_and_reached_anew() -> None:
    async with fake_cluster(1) as cluster:
        (bookie,) = cluster.bookies
        connection = BookieConnection("b", resolver(bookie.port), ConnectionSettings(5, 1 << 20, 1 << 16))
        asked = Asked(connection)
        await asked.ask()
        bookie.silent = True
        start = asyncio.get_running_loop().time()
        first = asked.send(0)
        patient = asked.send(60)
        await bookie.until_requested(3)
        connection.expire(start)
        connection.expire(start + 1)
        assert isinstance(await first, TimeoutException)
        assert connection.connected
        second = asked.send(0)
        connection.expire(start + 1 + GIVEN_UP_AFTER)
        assert isinstance(await second, TimeoutException)
        assert "has said nothing for" in str(await patient)
        assert not connection.connected
        bookie.silent = False
        assert isinstance(await asked.ask(), ReadLacResponse)
        connection.close()


@pytest.mark.asyncio
async def test_the_room_for_a_large_answer_is_given_back() -> None:
    async with fake_cluster(1) as cluster:
        (bookie,) = cluster.bookies
        settings = ConnectionSettings(5, 1 << 21, 1 << 16)
        wires: list[asyncio.BufferedProtocol] = []

        async def connect(factory: Callable[[], asyncio.BufferedProtocol], host: str, port: int) -> object:
            wires.append(factory())
            return await tcp_connector(lambda: wires[0], host, port)

        connection = BookieConnection("b", resolver(bookie.port), settings, connect)
        body = encode_entry(digest_for(DigestType.CRC32C, b""), 1, 0, -1, 1 << 20, bytes(1 << 20))
        bookie.ledgers[1] = RawLedgerRecord(b"", {0: body})
        answer = await Asked(connection).ask()
        assert isinstance(answer, ReadLacResponse)
        assert answer.last_entry_body == body
        (wire,) = wires
        assert memoryview(wire.get_buffer(-1)).nbytes > 1 << 20
        for _ in range(2):
            connection.expire(asyncio.get_running_loop().time())
        assert memoryview(wire.get_buffer(-1)).nbytes < 1 << 14
        connection.close()


@pytest.mark.asyncio
async def test_a_bookie_that_answers_others_is_not_given_up() -> None:
    async with fake_cluster(1) as cluster:
        (bookie,) = cluster.bookies
        connection = BookieConnection("b", resolver(bookie.port), ConnectionSettings(5, 1 << 20, 1 << 16))
        asked = Asked(connection)
        start = asyncio.get_running_loop().time()
        for round_number in range(4):
            bookie.silent = True
            late = asked.send(0)
            await bookie.until_requested(len(bookie.requests) + 1)
            bookie.silent = False
            assert isinstance(await asked.ask(), ReadLacResponse)
            connection.expire(start + 1 + 100 * round_number)
            assert isinstance(await late, TimeoutException)
            assert connection.connected
        connection.close()


@pytest.mark.asyncio
async def test_several_connections_a_bookie_and_one_for_each_ledger() -> None:
    async with fake_cluster(1) as cluster:
        pool = pool_of(cluster.client(num_channels_per_bookie=3))
        bookie_id = cluster.bookies[0].bookie_id
        connections = [pool.connection(bookie_id, ledger_id) for ledger_id in range(6)]
        assert connections[:3] == connections[3:]
        assert len(set(connections)) == 3
        for connection in connections:
            assert isinstance(await Asked(connection).ask(), ReadLacResponse)
        assert len(cluster.bookies[0].writers) == 3


ANSWER = encode_response(ReadLacResponse(1, Status.EOK, 1))


@pytest.mark.asyncio
@pytest.mark.parametrize(
    "sent", [ANSWER[:-1], ANSWER[:4], ANSWER[:2], b"\0\0\0\5hello", b"\xff" * 20, b"\0\0\0\4\x02\x63\0\0"]
)
@pytest.mark.parametrize("protocol", ["v3", "v2"])
async def test_a_connection_cut_in_a_frame_or_full_of_garbage_ends_its_requests_and_is_made_anew(
    sent: bytes, protocol: str
) -> None:
    sound = False

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(1)
        if not sound:
            writer.write(sent)
        writer.close()

    bookie = FakeBookie()
    async with await asyncio.start_server(serve, "127.0.0.1", 0) as server:
        bookie.port = server.sockets[0].getsockname()[1]
        client = FakeCluster([bookie]).client(wire_protocol=protocol)
        asked = Asked(pool_of(client).connection(bookie.bookie_id))
        outcomes = await asyncio.gather(*(asked.send() for _ in range(3)))
        for outcome in outcomes:
            assert isinstance(outcome, BookieHandleNotAvailableException)
        server.close()
    await bookie.start()
    assert isinstance(await asked.ask(), ReadLacResponse)
    await client.close()
    await bookie.stop()


async def used_clients(cluster: FakeCluster) -> list[BookKeeper]:
    """Clients in every state: open and idle, with requests outstanding, connecting, and between attempts."""
    clients = [cluster.client(wire_protocol=protocol, num_channels_per_bookie=2) for protocol in ("v3", "v2")]
    for client in clients:
        pool = pool_of(client)
        for ledger_id in range(2):
            await Asked(pool.connection(cluster.bookies[0].bookie_id, ledger_id)).ask()
        await Asked(pool.batch_connection(cluster.bookies[1].bookie_id)).ask()
        cluster.bookies[2].silent = True
        asked = Asked(pool.connection(cluster.bookies[2].bookie_id))
        asked.send()
        await cluster.bookies[2].until_requested(1)
        for _ in range(3):
            await Asked(pool.connection("127.0.0.1:1")).ask()
        Asked(pool.connection(cluster.bookies[1].bookie_id, 1)).send()
    return clients


@pytest.mark.asyncio
async def test_nothing_is_left_after_close() -> None:
    async with fake_cluster(3) as cluster:
        tasks, files = asyncio.all_tasks(), set(os.listdir("/proc/self/fd"))
        others = weakref.WeakSet(thing for thing in gc.get_objects() if isinstance(thing, Wire))
        clients = await used_clients(cluster)
        wires = [weakref.ref(thing) for thing in gc.get_objects() if isinstance(thing, Wire) and thing not in others]
        assert len(wires) >= 6
        for client in clients:
            await client.close()
        cluster.clients.clear()
        async with asyncio.timeout(10):
            for bookie in cluster.bookies:
                await bookie.until_left()
        assert asyncio.all_tasks() == tasks
        assert set(os.listdir("/proc/self/fd")) <= files  # what earlier tests left may go meanwhile
        del clients, client
        gc.collect()
        assert [wire for wire in wires if wire() is not None] == []


@pytest.mark.asyncio
async def test_a_client_closed_while_it_connects_leaves_nothing() -> None:
    started = asyncio.Event()

    async def endless(_factory: object, _host: str, _port: int) -> None:
        started.set()
        await asyncio.Event().wait()

    connection = BookieConnection("b", resolver(1), ConnectionSettings(5, 1 << 20, 1 << 16), endless)
    tasks = asyncio.all_tasks()
    outcome = Asked(connection).send()
    await started.wait()
    connection.close()
    await connection.wait_closed()
    assert isinstance(await outcome, ClientClosedException)
    assert asyncio.all_tasks() == tasks
    assert isinstance(await Asked(connection).ask(), ClientClosedException)


@pytest.mark.asyncio
async def test_requests_sent_while_connecting_all_arrive_in_order() -> None:
    async with fake_cluster(1) as cluster:
        (bookie,) = cluster.bookies
        pool = pool_of(cluster.client())
        connection, left = pool.connection(bookie.bookie_id), asyncio.Semaphore(0)
        loop = asyncio.get_running_loop()
        for entry in range(2000):
            txn_id = pool.next_txn_id()
            frame = encode_request(AddRequest(txn_id, 1, entry, b"k" * 20, bytes(32)))
            connection.send(Operation.ADD_ENTRY, txn_id, frame, loop.time() + 20, lambda *_: left.release(), None)
        for _ in range(2000):
            await left.acquire()
        entries = [request.entry_id for request in bookie.requests if isinstance(request, AddRequest)]
        assert entries == list(range(2000))


@pytest.mark.asyncio
async def test_connections_and_what_became_of_them_are_counted_and_logged(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", "bookgate.thinclient.bookies.connection")
    channel = "per_channel_bookie_client_"
    async with fake_cluster(1) as cluster:
        (bookie,) = cluster.bookies
        client = cluster.client()
        pool, metrics = pool_of(client), client.metrics
        connection = pool.connection(bookie.bookie_id)
        asked = Asked(connection)
        await asked.ask()
        active = metrics.gauges[channel + "ACTIVE_NON_TLS_CHANNEL_COUNTER"]
        assert active() == 1
        bookie.silent = True
        late = asked.send(0)
        await bookie.until_requested(2)
        connection.expire(asyncio.get_running_loop().time())
        assert isinstance(await late, TimeoutException)
        lost = asked.send()
        await bookie.until_requested(3)
        await bookie.stop()
        await lost
        await asked.ask()
        assert metrics.counters[channel + "TIMEOUT"] == 1
        assert metrics.counters[channel + "FAILED_CONNECTION_COUNTER"] == 1
        assert active() == 0
    events = [record.getMessage().split()[0] for record in caplog.records]
    assert events == ["event=bookie_connected", "event=bookie_lost", "event=bookie_not_reached"]
