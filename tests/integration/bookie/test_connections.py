"""What all clients together can make a bookie hold: connections, and their memory."""

from __future__ import annotations

import asyncio
import contextlib
import struct
from collections.abc import Iterator
from pathlib import Path

import pytest

from bookgate.bookie.server import BookieServer
from bookgate.ledger.wire.messages import AuthRequest, ReadRequest, Status
from tests.integration.bookie.entry_client import EntryClient, add, read
from tests.integration.bookie.in_process import entry_address, running_bookie, until

pytestmark = pytest.mark.asyncio

MIB = 1 << 20


@contextlib.contextmanager
def clients(server: BookieServer, count: int) -> Iterator[list[EntryClient]]:
    with contextlib.ExitStack() as stack:
        yield [stack.enter_context(EntryClient(entry_address(server))) for _ in range(count)]


async def served(client: EntryClient, entry_id: int = 0) -> bool:
    return await asyncio.to_thread(client.status, add(1, entry_id)) == Status.EOK


async def is_closed(client: EntryClient) -> bool:
    return await asyncio.to_thread(client.is_closed_by_bookie)


async def test_frames_that_are_announced_only_cost_nothing(tmp_path: Path) -> None:
    async with running_bookie(tmp_path) as server:
        with clients(server, 200) as many:
            for client in many:
                client.socket.sendall(struct.pack(">I", 5 * MIB - 4) + b"\x0a")
            await until(lambda: [each._decoder.pending for each in server.connections] == [5] * 200)
            for client in many:
                client.socket.sendall(b"\0")
            await until(lambda: [each._decoder.pending for each in server.connections] == [6] * 200)
            assert server.statistics.connection_bytes < 200 * 16 * 1024


async def test_a_frame_before_authentication_is_small(tmp_path: Path) -> None:
    tokens = tmp_path / "tokens"
    tokens.write_text("open sesame\n")
    settings = {"auth_provider": "bookgate-token", "auth_options": {"file": str(tokens)}}
    async with running_bookie(tmp_path, **settings) as server:
        with clients(server, 2) as (stranger, known):
            large = add(1, 0, bytes(100 * 1024))
            assert await asyncio.to_thread(stranger.status, add(1, 0, bytes(50 * 1024))) == Status.EUA
            stranger.send(large)
            assert await is_closed(stranger)
            assert await asyncio.to_thread(known.status, AuthRequest(1, "bookgate-token", b"open sesame")) == Status.EOK
            assert await asyncio.to_thread(known.status, large) == Status.EOK


async def test_a_new_connection_takes_the_place_of_the_idlest(tmp_path: Path) -> None:
    async with running_bookie(tmp_path, max_connections=4) as server:
        with clients(server, 1) as (polling,), clients(server, 1) as (used,):
            assert await served(polling)
            polling.send(ReadRequest(7, 1, -1, previous_lac=5, timeout_ms=600_000, piggyback=True))
            await until(lambda: server.long_polls.parked)
            assert await served(used, 1)
            with clients(server, 1) as (silent,), clients(server, 1) as (half,):
                half.socket.sendall(b"\0\0")
                await until(lambda: len(server.connections) == 4)
                with clients(server, 1) as (newest,):
                    assert await served(newest, 2)
                    assert await is_closed(silent), "the first to go has never asked for anything"
                with clients(server, 2):
                    assert await is_closed(half), "nor has a whole request come of this one"
                    assert await served(used, 3)
                    assert server.long_polls.parked == 1
        assert server.statistics.closed_idle == 2
        assert server.statistics.refused == 0


async def test_a_new_connection_is_refused_where_none_is_idle(tmp_path: Path) -> None:
    async with running_bookie(tmp_path, max_connections=1) as server:
        with clients(server, 1) as (polling,):
            assert await served(polling)
            polling.send(ReadRequest(7, 1, -1, previous_lac=5, timeout_ms=600_000, piggyback=True))
            await until(lambda: server.long_polls.parked)
            with clients(server, 1) as (newcomer,):
                assert await is_closed(newcomer)
            assert server.statistics.refused == 1
            assert server.long_polls.parked == 1


async def test_the_answers_of_all_slow_readers_have_one_budget(tmp_path: Path) -> None:
    async with running_bookie(tmp_path, connection_memory_mb=16) as server:
        with clients(server, 24) as slow, clients(server, 1) as (honest,):
            assert await served(honest)
            assert await asyncio.to_thread(honest.status, add(1, 1, bytes(MIB))) == Status.EOK
            largest = 0
            for client in slow:
                client.send(*(read(1, 1) for _ in range(40)))
            async with asyncio.timeout(30):
                while server.statistics.closed_for_memory < 5:
                    assert await asyncio.to_thread(honest.status, read(1, 0)) == Status.EOK
                    largest = max(largest, sum(each.held_bytes for each in server.connections))
            assert largest <= 16 * MIB
            assert await asyncio.to_thread(honest.status, read(1, 1)) == Status.EOK


async def test_frames_that_do_not_end_have_the_same_budget(tmp_path: Path) -> None:
    async with running_bookie(tmp_path, connection_memory_mb=16) as server:
        with clients(server, 12) as slow, clients(server, 1) as (honest,):
            begun = struct.pack(">I", 5 * MIB - 4) + b"\x0a" + bytes(3 * MIB)
            sending = [asyncio.create_task(asyncio.to_thread(send_what_is_taken, client, begun)) for client in slow]
            await asyncio.gather(*sending)
            assert await served(honest)
            await until(lambda: server.statistics.closed_for_memory >= 8)
            assert sum(each.held_bytes for each in server.connections) <= 16 * MIB


def send_what_is_taken(client: EntryClient, data: bytes) -> None:
    with contextlib.suppress(ConnectionError):
        client.socket.sendall(data)


async def test_buffers_are_given_back(tmp_path: Path) -> None:
    async with running_bookie(tmp_path) as server:
        with clients(server, 1) as (client,):
            assert await asyncio.to_thread(client.status, add(1, 0, bytes(4 * MIB))) == Status.EOK
            assert server.statistics.connection_bytes > 4 * MIB
            await until(lambda: server.statistics.connection_bytes < 16 * 1024)
        await until(lambda: server.statistics.connection_bytes == 0)
        assert server.statistics.connections == 0
