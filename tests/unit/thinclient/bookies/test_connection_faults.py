"""Connections to bookies that keep silent, lie, stand still or can't be made; what a closed client ends (F12)."""

import asyncio
from collections.abc import Iterator
from typing import Never

import pytest

from bookgate import BookKeeper
from bookgate.ledger.errors import (
    BookieHandleNotAvailableException,
    ClientClosedException,
    NotEnoughBookiesException,
    ReadException,
)
from bookgate.ledger.ledger_id import LedgerId
from bookgate.ledger.metadata_store import RegisteredBookie
from bookgate.ledger.wire.messages import Operation, ReadLacRequest, ReadResponse, Response, Status
from bookgate.thinclient.bookies.connection import Address, BookieConnection, ConnectionSettings
from tests.unit.thinclient.fakes import fake_cluster, ledger_of, payloads
from tests.unit.thinclient.inside import pool_of
from tests.unit.virtual_time import VirtualTime

pytestmark = pytest.mark.usefixtures("virtual_time")


async def test_a_silent_bookie_times_out_and_the_ledger_goes_on() -> None:
    async with fake_cluster() as cluster:
        ledger = await cluster.client(add_timeout_seconds=0.05).create_ledger()
        silent = cluster.ensemble(ledger.metadata)[2]
        silent.silent = True
        assert await ledger.append(b"x") == 0
        for bookie in cluster.ensemble(ledger.metadata)[:2]:
            bookie.silent = True
        with pytest.raises(NotEnoughBookiesException, match="did not answer in time"):
            await ledger.append(b"y")


@pytest.mark.parametrize(
    "garbage", [b"\x00\x00\x00\x00", b"\x7f\xff\xff\xff", b"HTTP/1.1 400 Bad Request\r\n\r\n", b"\x00\x00\x00\x03abc"]
)
async def test_garbage_closes_the_connection_and_says_so(garbage: bytes) -> None:
    async with fake_cluster() as cluster:
        ledger = await cluster.client().create_ledger()
        liar = cluster.ensemble(ledger.metadata)[0]
        liar.garbage = garbage
        await ledger.append(b"x")
        await liar.until_requested(1)
        reader_client = cluster.client(read_timeout_seconds=0.2)
        for bookie in cluster.bookies:
            bookie.garbage = garbage
        with pytest.raises(ReadException, match="is not the entry protocol"):
            await reader_client.open_ledger(ledger.ledger_id)
        # The next request makes a new connection.
        for bookie in cluster.bookies:
            bookie.garbage = None
        await reader_client.open_ledger(ledger.ledger_id)


async def test_time_in_which_the_event_loop_was_held_up_does_not_count(virtual_time: VirtualTime) -> None:
    async with fake_cluster() as cluster:
        client = cluster.client(add_timeout_seconds=1, read_timeout_seconds=1, read_ahead_entries=150)
        ledger = await client.create_ledger(1, 1, 1)

        def slow() -> Iterator[bytes]:
            for i in range(2):
                yield b"%d" % i
                virtual_time.hold_up(1.5)  # as a generator does that reads from a slow source

        assert await ledger.append_all(slow()) == 1
        in_flight = ledger.append_nowait(b"x")
        await asyncio.sleep(0)
        virtual_time.hold_up(1.5)  # as anything does that computes for long; the answer comes only then
        assert await in_flight == 2
        await ledger.append_all(b"x" for _ in range(397))
        await ledger.close()
        batches = 0
        async for _ in client.open_record(ledger.record).read_batches(0, 399, max_entries=100):
            batches += 1
            if batches == 1:
                virtual_time.hold_up(1.5)  # as a reader does whose output is not taken
        assert batches == 4
        counted = {metric.name: metric.samples[0].value for metric in client.metrics.snapshot() if metric.samples}
        assert counted["bookkeeper_client_per_channel_bookie_client_TIMEOUT"] == 0


async def test_frames_that_a_stuck_bookie_does_not_take_in_go_with_their_deadlines() -> None:
    accepted, never = asyncio.Event(), asyncio.Event()

    async def take_nothing(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.transport.pause_reading()  # type: ignore[attr-defined]
        accepted.set()
        await never.wait()
        writer.close()

    async with await asyncio.start_server(take_nothing, "127.0.0.1", 0) as server:
        address = Address("127.0.0.1", server.sockets[0].getsockname()[1])

        async def resolve(_bookie_id: str) -> Address:
            return address

        connection = BookieConnection("stuck", resolve, ConnectionSettings(5, 1 << 20, 1 << 16))
        ended: list[object] = []
        frame = bytes(1 << 20)
        for txn_id in range(50):
            connection.send(Operation.ADD_ENTRY, txn_id, frame, 0.0, lambda _t, _r, error: ended.append(error), None)
            await accepted.wait()
            await asyncio.sleep(0)
        assert connection.waiting_count > 0
        connection.expire(1.0)
        assert len(ended) == 50
        assert connection.waiting_count == 0
        connection.close()
        never.set()


@pytest.mark.parametrize("bookie_id", ["127.0.0.1:99999", "a..b:3181"])
async def test_an_id_that_is_no_address_after_all_fails_and_is_tried_again(bookie_id: str) -> None:
    async with fake_cluster() as cluster:
        pool = pool_of(cluster.client())
        for _ in range(2):
            request = ReadLacRequest(pool.next_txn_id(), 1)
            with pytest.raises(BookieHandleNotAvailableException, match="could not be reached"):
                await pool.request(bookie_id, Operation.READ_LAC, request, timeout=30)


async def test_an_address_as_id_is_reached_while_discovery_keeps_silent() -> None:
    async with fake_cluster() as cluster:
        ledger = await ledger_of(cluster, 5)
        await ledger.close()

        async def silent(bookie_id: str) -> RegisteredBookie:
            await asyncio.Event().wait()
            raise AssertionError

        cluster.discovery.bookie_service_info = silent  # type: ignore[method-assign]
        reader = cluster.client(connect_timeout_seconds=2).open_record(ledger.record, b"planted-p")
        assert len(await payloads(reader)) == 5


async def test_a_bookie_that_comes_back_is_used_again() -> None:
    async with fake_cluster() as cluster:
        ledger = await ledger_of(cluster, 3)
        await ledger.close()
        client = cluster.client()
        for bookie in cluster.bookies:
            await bookie.stop()
        reader = await client.open_ledger(ledger.ledger_id, b"planted-p")
        with pytest.raises(BookieHandleNotAvailableException, match="could not be reached"):
            await payloads(reader)
        for bookie in cluster.bookies:
            await bookie.start()
        assert await payloads(reader) == [b"0", b"1", b"2"]


async def test_closing_the_client_ends_everything_outstanding() -> None:
    async with fake_cluster() as cluster:
        for bookie in cluster.bookies:
            bookie.silent = True
        client = cluster.client()
        ledger = await client.create_ledger()
        append = asyncio.ensure_future(ledger.append(b"x"))
        for bookie in cluster.bookies:
            await bookie.until_requested(1)
        await client.close()
        with pytest.raises(ClientClosedException, match="the client was closed"):
            await append
        with pytest.raises(ClientClosedException):
            await client.create_ledger()
        with pytest.raises(ClientClosedException):
            await client.open_ledger(LedgerId.unscoped(0))


async def test_an_answer_to_another_operation_or_to_nobody_is_dropped() -> None:
    async with fake_cluster() as cluster:
        ledger = await cluster.client(add_timeout_seconds=0.05).create_ledger()

        def confuse(response: Response) -> Response:
            return ReadResponse(response.txn_id, Status.EOK, 0, 0, b"")

        for bookie in cluster.bookies:
            bookie.tamper = confuse
        with pytest.raises(NotEnoughBookiesException, match="did not answer in time"):
            await ledger.append(b"x")


async def test_an_unknown_bookie_without_an_address_is_named() -> None:
    async with fake_cluster(names=["alpha", "beta", "gamma"]) as cluster:
        ledger = await ledger_of(cluster, 1)
        await ledger.close()
        cluster.discovery.registered.clear()
        reader = await cluster.client().open_ledger(ledger.ledger_id, b"planted-p")
        with pytest.raises(BookieHandleNotAvailableException, match="its address is unknown"):
            await payloads(reader)


async def test_whoever_watches_a_ledger_hears_that_the_client_is_closed() -> None:
    async with fake_cluster(3) as cluster:
        client = cluster.client()
        ledger = await client.create_ledger()
        watch = client.watch_ledger(ledger.ledger_id)
        waiting = asyncio.ensure_future(anext(watch))
        await asyncio.sleep(0)
        await client.close()
        with pytest.raises(ClientClosedException):
            async with asyncio.timeout(10):
                await waiting
        assert cluster.metadata.listeners[ledger.ledger_id] == []


class BrokenProvider:
    """Fails by an error of its own."""

    plugin_name = "broken"

    def new_session(self) -> Never:
        raise ZeroDivisionError


async def test_a_broken_authentication_provider_fails_requests_at_once_and_again(virtual_time: VirtualTime) -> None:
    async with fake_cluster(1) as cluster:
        client = BookKeeper(cluster.metadata, cluster.discovery, auth_provider=BrokenProvider())
        cluster.clients.append(client)
        ledger = await client.create_ledger(1, 1, 1)
        with pytest.raises(NotEnoughBookiesException, match="ZeroDivisionError"):
            async with asyncio.timeout(3):
                await ledger.append(b"x")
        assert all(not connection._tasks for connection in pool_of(client)._connections.values())
        assert {*map(type, virtual_time.take_bugs())} == {ZeroDivisionError}
