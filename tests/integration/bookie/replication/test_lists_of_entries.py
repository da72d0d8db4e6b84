"""What a bookie holds whose lists of entries can't be relied on.

BookKeeper's RocksDB storage leaves requests for them unanswered, its interleaved storage leaves a last entry out.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Self

import pytest
from pyroaring import BitMap64

from bookgate import ClientConfig, WriteHandle
from bookgate.bookie.replication.copies.bookies import Bookies, left_out_of_lists
from bookgate.bookie.replication.copies.verdicts import Copies, Holding, Unknown, may_be_another
from bookgate.ledger.entry_availability import decode_runs, encode_runs
from bookgate.protos.bookkeeper.proto import bookkeeper_protocol_pb2 as pb
from bookgate.thinclient.bookies.connection import tcp_connector
from bookgate.thinclient.bookies.pool import BookiePool
from tests.integration.bookie.replication.test_auto_recovery import metadata_of
from tests.integration.bookie.replication.test_worker import written
from tests.integration.thinclient.forked_cluster import ForkedCluster, forked_cluster

pytestmark = pytest.mark.asyncio

ENTRIES = 7
PATIENT = ClientConfig(read_timeout_seconds=1.5)


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[ForkedCluster]:
    with forked_cluster(tmp_path, 1) as made:
        yield made


class Relay:
    """Connections through a server of its own, which passes on a bookie's requests except those that it swallows."""

    def __init__(self) -> None:
        self.swallows: set[int] = set()
        """Operations."""
        self.swallowed = 0
        self.unlisted: BitMap64 = BitMap64()
        """Entries that the bookie's lists leave out."""
        self.in_limbo = False
        """Whether it answers reads as for a ledger that is in limbo and lacks the entry."""
        self._tasks: set[asyncio.Task[None]] = set()

    async def connect(self, factory: object, host: str, port: int) -> object:
        """The connector of a pool."""

        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await self._serve(reader, writer, host, port)

        server = await asyncio.start_server(serve, "127.0.0.1", 0)
        return await tcp_connector(factory, "127.0.0.1", server.sockets[0].getsockname()[1])  # type: ignore[arg-type]

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, host: str, port: int) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        far_reader, far_writer = await asyncio.open_connection(host, port)
        with contextlib.suppress(asyncio.IncompleteReadError, OSError, asyncio.CancelledError):
            await asyncio.gather(self._pass_requests(reader, far_writer), self._pass_answers(far_reader, writer))
        for end in (writer, far_writer):
            end.transport.abort()

    async def _pass_requests(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while True:
            size = await reader.readexactly(4)
            frame = await reader.readexactly(int.from_bytes(size, "big"))
            if pb.Request.FromString(frame).header.operation in self.swallows:
                self.swallowed += 1
            else:
                writer.write(size + frame)

    async def _pass_answers(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while True:
            frame = await reader.readexactly(int.from_bytes(await reader.readexactly(4), "big"))
            answer = pb.Response.FromString(frame)
            if answer.HasField("getListOfEntriesOfLedgerResponse") and self.unlisted:
                found = answer.getListOfEntriesOfLedgerResponse
                listed = BitMap64()
                for first, count in decode_runs(found.availabilityOfEntriesOfLedger):
                    listed.add_range(first, first + count)
                found.availabilityOfEntriesOfLedger = encode_runs((entry_id, 1) for entry_id in listed - self.unlisted)
                frame = answer.SerializeToString()
            if answer.HasField("readResponse") and self.in_limbo:
                answer.status = answer.readResponse.status = pb.EUNKNOWNLEDGERSTATE
                frame = answer.SerializeToString()
            writer.write(len(frame).to_bytes(4, "big") + frame)


@contextlib.asynccontextmanager
async def asking(cluster: ForkedCluster, entries: int = ENTRIES) -> AsyncIterator[tuple[Bookies, Relay, WriteHandle]]:
    """Requests through a relay, and a ledger on the one bookie."""
    async with metadata_of(cluster) as factory, await cluster.client() as client, Relay() as relay:
        ledger = await written(client, entries, 1, 1, 1)
        pool = BookiePool.of(PATIENT, factory.service_discovery, relay.connect, random.Random(1))
        try:
            yield Bookies(pool, PATIENT), relay, ledger
        finally:
            await pool.close_and_wait()


async def test_a_bookie_that_never_lists_is_asked_for_the_entries_themselves(cluster: ForkedCluster) -> None:
    due, more = BitMap64(range(ENTRIES)), BitMap64(range(ENTRIES + 2))
    async with asking(cluster) as (bookies, relay, ledger):
        relay.swallows = {pb.GET_LIST_OF_ENTRIES_OF_LEDGER}
        number = ledger.ledger_id.low
        assert await bookies.copies("bookie-0", number, due) == Holding(due)
        asked = relay.swallowed
        assert asked == 2
        assert await bookies.copies("bookie-0", number, more) == Holding(due), "what it lacks is missing"
        assert await bookies.copies("bookie-0", number + 1, due) == Holding(BitMap64()), "it has no such ledger"
        assert relay.swallowed == asked, "it is not asked for each ledger again"


async def test_a_bookie_that_has_sent_a_list_is_slow(cluster: ForkedCluster) -> None:
    due = BitMap64(range(ENTRIES))
    async with asking(cluster) as (bookies, relay, ledger):
        number = ledger.ledger_id.low
        assert await bookies.copies("bookie-0", number, due) == Holding(due)
        relay.swallows = {pb.GET_LIST_OF_ENTRIES_OF_LEDGER}
        assert isinstance(await bookies.copies("bookie-0", number, due), Unknown)


async def test_a_bookie_that_answers_no_read_either_is_unknown(cluster: ForkedCluster) -> None:
    async with asking(cluster) as (bookies, relay, ledger):
        relay.swallows = {pb.GET_LIST_OF_ENTRIES_OF_LEDGER, pb.READ_ENTRY}
        copies = await bookies.copies("bookie-0", ledger.ledger_id.low, BitMap64(range(ENTRIES)))
        assert isinstance(copies, Unknown)
        relay.swallows = set()
        again = await bookies.copies("bookie-0", ledger.ledger_id.low, BitMap64(range(ENTRIES)))
        assert again == Holding(BitMap64(range(ENTRIES)))
        assert relay.swallowed == 2


@pytest.mark.parametrize("last", [0, 1024])
async def test_a_last_entry_that_the_list_leaves_out_is_read(cluster: ForkedCluster, last: int) -> None:
    due, all_held = BitMap64(range(last + 2048)), BitMap64(range(last + 1))
    async with asking(cluster, last + 1) as (bookies, relay, ledger):
        relay.unlisted = BitMap64([last])
        assert await bookies.copies("bookie-0", ledger.ledger_id.low, due) == Holding(all_held)
        relay.unlisted = BitMap64(range(last + 1))
        relay.swallows = {pb.READ_ENTRY}
        assert isinstance(await bookies.copies("bookie-0", ledger.ledger_id.low, due), Unknown)


async def test_in_limbo_what_the_list_leaves_out_is_missing_and_nothing_is_given_up(cluster: ForkedCluster) -> None:
    """Its index file was lost: were all of the ledger unknown there, nothing would ever be put back."""
    async with asking(cluster) as (bookies, relay, ledger):
        relay.unlisted, relay.in_limbo = BitMap64([0]), True
        due, number = BitMap64([0]), ledger.ledger_id.low
        rest = BitMap64(range(1, ENTRIES))
        assert await bookies.copies("bookie-0", number, due) == Holding(rest)
        relay.unlisted = BitMap64(range(ENTRIES))
        assert await bookies.copies("bookie-0", number, due) == Holding(BitMap64(), limbo=True)


async def test_only_what_a_page_begins_with_behind_the_list_is_read() -> None:
    due = BitMap64(range(0, 5000))
    assert list(left_out_of_lists(BitMap64(), due)) == [0, 1024, 2048, 3072, 4096]
    assert list(left_out_of_lists(BitMap64([5, 1500]), due)) == [2048, 3072, 4096]
    assert list(left_out_of_lists(due, due)) == []
    assert list(left_out_of_lists(due, BitMap64())) == []
    assert list(left_out_of_lists(BitMap64(range(1024)), BitMap64(range(1025)))) == [1024]
    assert list(left_out_of_lists(BitMap64([0]), BitMap64(range(1, 5000, 2)))) == []


async def test_entries_far_behind_others_are_looked_at_at_once() -> None:
    """Any client can create a ledger whose first fragment begins at 2^62, and have a bookie hold entry 0."""
    far = BitMap64(range(1 << 62, (1 << 62) + 6))
    assert list(left_out_of_lists(BitMap64([0]), far)) == [1 << 62]
    assert list(left_out_of_lists(BitMap64([0, 7]), BitMap64([1, 2048, (1 << 62) + 5, (1 << 63) - 1024]))) == [
        2048,
        (1 << 63) - 1024,
    ]
    assert list(left_out_of_lists(BitMap64([(1 << 64) - 1]), far)) == []


async def test_a_bookie_that_was_started_again_is_another(cluster: ForkedCluster) -> None:
    """Last, since it has to start again."""
    due = BitMap64(range(ENTRIES))
    async with asking(cluster) as (bookies, _, ledger):
        number = ledger.ledger_id.low
        first, same = [await bookies.copies("bookie-0", number, due) for _ in range(2)]
        await asyncio.to_thread(cluster.kill, "bookie-0")
        await asyncio.to_thread(cluster.start, "bookie-0")
        states: list[Copies] = []
        async with asyncio.timeout(30):
            while not states or isinstance(states[-1], Unknown):
                states.append(await bookies.copies("bookie-0", number, due))
        assert first == states[-1] == Holding(due)
        assert not may_be_another(first, same)
        assert may_be_another(first, states[-1])
