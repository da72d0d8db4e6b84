"""Tailing and ranged reads from real bookies that are killed, frozen, replaced, and whose connections break."""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path

import pytest

from bookgate import BookKeeper, ClientConfig
from bookgate.bookie.standalone.cluster import BookieProcess, StandaloneCluster
from bookgate.ledger.errors import NoSuchLedgerExistsOnMetadataServerException
from bookgate.thinclient.blocking import client as blocking
from bookgate.thinclient.bookies.connection import tcp_connector
from bookgate.thinclient.handles.read_handle import ReadHandle
from bookgate.thinclient.handles.write_handle import WriteHandle
from tests.integration.cluster import own_cluster, standalone_cluster

__all__ = ["own_cluster", "standalone_cluster"]

PATIENCE_SECONDS = 250
"""What hangs is found all the same; a busy machine may take long."""

IMPATIENT = ClientConfig(
    read_timeout_seconds=2.0,
    add_timeout_seconds=2.0,
    speculative_read_timeout_seconds=0.2,
    first_speculative_lac_timeout_seconds=0.3,
    tail_failure_timeout_seconds=20,
)


@pytest.fixture
def five_bookies(tmp_path: Path) -> Iterator[StandaloneCluster]:
    with StandaloneCluster(tmp_path / "cluster", bookies=5) as cluster:
        yield cluster


def text(entry_id: int) -> bytes:
    return b"entry %d" % entry_id


async def ids(reader: ReadHandle, **options: bool) -> list[int]:
    found = []
    async for entry in reader.tail(**options):
        assert entry.payload == text(entry.entry_id)
        assert entry.entry_id <= reader.last_add_confirmed
        found.append(entry.entry_id)
    return found


async def write(ledger: WriteHandle, first: int, last: int, pause: float = 0.0) -> None:
    for entry_id in range(first, last + 1):
        assert await ledger.append(text(entry_id)) == entry_id
        if pause:
            await asyncio.sleep(pause)


@pytest.mark.asyncio
async def test_what_is_acknowledged_is_seen_without_a_further_append(standalone_cluster: StandaloneCluster) -> None:
    """By a tail, by long polls and without them, and by who asks how far the ledger may be read."""
    uri = standalone_cluster.gateway_uri
    async with await BookKeeper.connect(uri) as writers, await BookKeeper.connect(uri) as readers:
        ledger = await writers.create_ledger()
        for last in (4, 5):
            await write(ledger, ledger.last_add_confirmed + 1, last)
            for options in ({}, {"long_poll": False}):
                async with asyncio.timeout(PATIENCE_SECONDS):
                    reader = await readers.open_ledger(ledger.ledger_id)
                    async for entry in reader.tail(**options):
                        if entry.entry_id == last:
                            break
        assert await (await readers.open_ledger(ledger.ledger_id)).read_last_confirmed() == 5
        await ledger.close()


def process_of(cluster: StandaloneCluster, bookie_id: str) -> BookieProcess:
    return next(process for process in cluster.processes if process.bookie_id == bookie_id)


@contextlib.asynccontextmanager
async def client_of(cluster: StandaloneCluster, config: ClientConfig = IMPATIENT) -> AsyncIterator[BookKeeper]:
    async with await BookKeeper.connect(cluster.gateway_uri, config) as client:
        yield client


@pytest.mark.asyncio
async def test_several_readers_follow_a_writer_each_in_its_way(standalone_cluster: StandaloneCluster) -> None:
    v2 = ClientConfig(wire_protocol="v2", tail_poll_interval_seconds=0.02)
    async with (
        asyncio.timeout(PATIENCE_SECONDS),
        client_of(standalone_cluster) as client,
        client_of(standalone_cluster, v2) as other,
    ):
        ledger = await client.create_ledger(3, 2, 2)
        readers = [await client.open_ledger(ledger.ledger_id) for _ in range(3)]
        readers.append(await other.open_ledger(ledger.ledger_id))
        ways: tuple[dict[str, bool], ...] = ({}, {"parallel": True}, {"long_poll": False}, {})
        tails = [asyncio.create_task(ids(r, **way)) for r, way in zip(readers, ways, strict=True)]
        await write(ledger, 0, 30, 0.005)
        await ledger.append_all(text(entry_id) for entry_id in range(31, 3000))
        await write(ledger, 3000, 3020, 0.005)
        await ledger.close()
        assert await asyncio.gather(*tails) == [list(range(3021))] * 4
        for reader in readers:
            await reader.close()


@pytest.mark.asyncio
async def test_an_entry_is_there_soon_after_its_lac(standalone_cluster: StandaloneCluster) -> None:
    """No wait runs to its end: with polls of a minute a test of ten entries would take minutes."""
    patient = ClientConfig(long_poll_timeout_seconds=60, first_speculative_lac_timeout_seconds=0)
    async with asyncio.timeout(PATIENCE_SECONDS), client_of(standalone_cluster, patient) as client:
        ledger = await client.create_ledger()
        await write(ledger, 0, 0)
        reader = await client.open_ledger(ledger.ledger_id)
        entries = reader.tail()
        for entry_id in range(1, 11):
            waiting = asyncio.ensure_future(anext(entries))
            await write(ledger, entry_id, entry_id)
            assert (await waiting).entry_id == entry_id - 1
        waiting = asyncio.ensure_future(anext(entries))
        await asyncio.sleep(0.05)
        await ledger.close()
        assert (await waiting).entry_id == 10
        assert [entry async for entry in entries] == []
        await reader.close()


@pytest.mark.long
@pytest.mark.asyncio
async def test_bookies_die_and_freeze_under_writer_and_reader(five_bookies: StandaloneCluster) -> None:
    async with asyncio.timeout(PATIENCE_SECONDS), client_of(five_bookies) as client, client_of(five_bookies) as other:
        ledger = await client.create_ledger()
        reader = await other.open_ledger(ledger.ledger_id)
        tail = asyncio.create_task(ids(reader))
        await write(ledger, 0, 100)
        process_of(five_bookies, ledger.metadata.last_fragment.ensemble[0]).kill()
        await write(ledger, 101, 200)
        frozen = process_of(five_bookies, ledger.metadata.last_fragment.ensemble[1])
        assert frozen.process is not None
        os.kill(frozen.process.pid, signal.SIGSTOP)
        try:
            await write(ledger, 201, 300)
            await ledger.close()
            assert await tail == list(range(301))
            again = await other.open_ledger(ledger.ledger_id)
            assert [e.entry_id async for e in again.read(0, 300)] == list(range(301))
        finally:
            os.kill(frozen.process.pid, signal.SIGCONT)
        await reader.close()


@pytest.mark.asyncio
async def test_the_writer_is_gone_and_another_client_ends_the_ledger(standalone_cluster: StandaloneCluster) -> None:
    async with asyncio.timeout(PATIENCE_SECONDS), client_of(standalone_cluster) as reading:
        async with client_of(standalone_cluster) as writing:
            ledger = await writing.create_ledger()
            await write(ledger, 0, 20)
        reader = await reading.open_ledger(ledger.ledger_id)
        tail = asyncio.create_task(ids(reader))
        async with client_of(standalone_cluster) as recovering:
            await recovering.open_ledger(ledger.ledger_id, recovery=True)
        assert await tail == list(range(21))


@pytest.mark.asyncio
async def test_the_ledger_is_deleted_under_the_reader(standalone_cluster: StandaloneCluster) -> None:
    async with asyncio.timeout(PATIENCE_SECONDS), client_of(standalone_cluster) as client:
        ledger = await client.create_ledger()
        await write(ledger, 0, 3)
        reader = await client.open_ledger(ledger.ledger_id)
        tail = asyncio.create_task(ids(reader))
        await client.delete_ledger(ledger.ledger_id)
        with pytest.raises(NoSuchLedgerExistsOnMetadataServerException):
            await tail
        await reader.close()


class CuttingProxy:
    """Forwards to bookies, and cuts connections after a random number of bytes from the bookie."""

    def __init__(self, rng: random.Random) -> None:
        self._rng = rng
        self._servers: dict[tuple[str, int], asyncio.Server] = {}
        self.cuts = 0

    async def connect(self, factory: Callable[[], asyncio.BufferedProtocol], host: str, port: int) -> object:
        if (host, port) not in self._servers:

            async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
                await self._serve(host, port, reader, writer)

            self._servers[host, port] = await asyncio.start_server(serve, "127.0.0.1", 0)
        address = self._servers[host, port].sockets[0].getsockname()
        return await tcp_connector(factory, *address[:2])

    async def _serve(self, host: str, port: int, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        upstream, to_bookie = await asyncio.open_connection(host, port)

        async def forward() -> None:
            while data := await reader.read(1 << 16):
                to_bookie.write(data)

        forwarding = asyncio.ensure_future(forward())
        left = self._rng.randrange(200, 40_000)
        while left and (data := await upstream.read(min(left, 1 << 16))):
            left -= len(data)
            writer.write(data)
        self.cuts += not left
        forwarding.cancel()
        await asyncio.gather(forwarding, return_exceptions=True)
        with contextlib.suppress(ConnectionError):
            await writer.drain()
        writer.transport.close()
        to_bookie.transport.abort()

    def close(self) -> None:
        for server in self._servers.values():
            server.close()


@pytest.mark.asyncio
@pytest.mark.parametrize("batches", [True, False])
async def test_connections_are_cut_in_the_middle_of_answers(
    standalone_cluster: StandaloneCluster, batches: bool
) -> None:
    proxy = CuttingProxy(random.Random(5))
    # A cut connection tells of itself: how long the bookies of a busy machine take is not asked here.
    patient = {"read_timeout_seconds": PATIENCE_SECONDS, "tail_failure_timeout_seconds": PATIENCE_SECONDS}
    config = IMPATIENT.model_copy(update={**patient, "batch_reads": batches, "batch_read_entries": 50})
    async with (
        asyncio.timeout(PATIENCE_SECONDS),
        client_of(standalone_cluster) as writing,
        client_of(standalone_cluster) as metadata,
    ):
        ledger = await writing.create_ledger()
        async with BookKeeper(
            metadata.ledger_manager, metadata.service_discovery, config, connector=proxy.connect
        ) as reading:
            reader = await reading.open_ledger(ledger.ledger_id)
            tail = asyncio.create_task(ids(reader))
            await write(ledger, 0, 200)
            await ledger.append_all(text(entry_id) for entry_id in range(201, 3000))
            await ledger.close()
            assert await tail == list(range(3000))
            await reader.close()
    assert proxy.cuts > 0
    proxy.close()


def test_blocking_readers_follow_too(standalone_cluster: StandaloneCluster) -> None:
    with blocking.BookKeeper.connect(standalone_cluster.gateway_uri) as client, client.create_ledger() as ledger:
        for entry_id in range(10):
            ledger.append(text(entry_id))
        with client.open_ledger(ledger.ledger_id) as reader:
            tail = reader.tail(3)
            assert [next(tail).entry_id for _ in range(6)] == [3, 4, 5, 6, 7, 8]
            ledger.close()
            assert [entry.entry_id for entry in tail] == [9]
            assert reader.read_last_entry().entry_id == 9
            assert reader.try_read_last_confirmed() == 9
            assert [entry.entry_id for entry in reader.read_unconfirmed(8, 9)] == [8, 9]
            assert reader.read_last_confirmed_and_entry(9).last_add_confirmed == 9
            abandoned = reader.tail()
            next(abandoned)
            abandoned.close()


def test_the_command_follows_until_the_ledger_is_closed(standalone_cluster: StandaloneCluster) -> None:
    with blocking.BookKeeper.connect(standalone_cluster.gateway_uri) as client:
        ledger = client.create_ledger(password=b"planted-secret")
        for entry_id in range(5):
            ledger.append(text(entry_id))
        command = [sys.executable, "-m", "bookgate", "ledger", "tail", str(ledger.ledger_id), "--from", "2"]
        command += ["-g", standalone_cluster.gateway_uri]
        environment = {**os.environ, "BOOKGATE_LEDGER_PASSWORD": "planted-secret"}
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as process:
            assert process.stdout is not None
            assert [process.stdout.readline() for _ in range(3)] == ["entry 2\n", "entry 3\n", "entry 4\n"]
            ledger.append(text(5))
            ledger.close()
            assert process.communicate(timeout=30)[0] == "entry 5\n"
            assert process.returncode == 0
