"""Reads of a bookie: runs that are served at once, and what becomes of them when it stops."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from unittest.mock import Mock

import pytest

from bookgate.bookie.protocol.read_scheduler import EntryReads
from bookgate.bookie.statistics import BookieStatistics
from bookgate.ledger.wire.fast_read import read_v3
from bookgate.ledger.wire.messages import ReadRequest, ReadResponse, Response, Status
from bookgate.ledger.wire.v3 import decode_response, encode_request
from tests.unit.bookie.storage.storage_support import OpenStorage, opened, packet

LEDGER = 5
HELD = 40
SIZE = 5_000


@pytest.mark.asyncio
async def test_a_read_that_waited_for_its_fence_is_dropped_once_the_reader_has_ended() -> None:
    """It was handed over all the same: an error that nobody caught."""
    storage = Mock()
    storage.ledgers.recent.return_value = None
    reader = ThreadPoolExecutor(1)
    reads = EntryReads(storage, reader, BookieStatistics())
    client = Mock(reads=deque(), reading=False, takes_answers=True)
    reads.close()
    reader.shutdown()
    reads.queue(client, ReadRequest(1, 7, 0), first=True)
    reads.pump(client)
    assert not client.reads
    assert not client.reading


class Client:
    """A connection that takes so many responses."""

    reading = False

    def __init__(self, takes: int) -> None:
        self.reads: deque[object] = deque()
        self.responses: list[Response] = []
        self._takes = takes

    @property
    def takes_answers(self) -> bool:
        return len(self.responses) < self._takes

    def send(self, frame: bytes, count: int = 1) -> None:
        start = 0
        for _ in range(count):
            end = start + 4 + int.from_bytes(frame[start : start + 4])
            self.responses.append(decode_response(memoryview(frame)[start + 4 : end]))
            start = end
        assert start == len(frame)


@pytest.fixture(params=["write cache", "entry log"])
def storage(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[OpenStorage]:
    """With entries of one ledger, all of them in memory."""
    with opened(tmp_path) as found:
        found.add(LEDGER, *range(HELD), size=SIZE)
        if request.param == "entry log":
            found.storage.checkpoint()
            found.storage.reader.known_lac(found.ledger(LEDGER))
            found.storage.reader.read_entry(found.ledger(LEDGER), 0)
        yield found


def serve(storage: OpenStorage, client: Client, *entry_ids: int) -> tuple[int, BookieStatistics]:
    statistics = BookieStatistics()
    packets = [memoryview(encode_request(ReadRequest(300 + each, LEDGER, each)))[4:] for each in entry_ids]
    first = read_v3(packets[0])
    assert first is not None
    with ThreadPoolExecutor(1) as reader:
        reads = EntryReads(storage.storage, reader, statistics)
        return reads.serve_now(client, first, packets, 1), statistics  # type: ignore[arg-type]


@pytest.mark.asyncio
@pytest.mark.parametrize(
    ("asked", "served"),
    [
        (range(5, 30), 25),
        ((5, 6, 7, 9, 10), 5),
        ((HELD - 2, HELD - 1, HELD), 2),
        (range(30, 5, -1), 25),
        (range(0, HELD, 3), 14),
        ((5, 5), 2),
        ((9, 3, 20, 21, 22), 5),
        ((9, 3, HELD, 2), 2),
        ((HELD, 3), 0),
    ],
)
async def test_reads_that_came_together_are_served_at_once(
    storage: OpenStorage, asked: tuple[int, ...], served: int
) -> None:
    client = Client(1000)
    count, statistics = serve(storage, client, *asked)
    assert count == served
    assert [
        (each.txn_id, each.entry_id, each.status, each.body)
        for each in client.responses
        if isinstance(each, ReadResponse)
    ] == [(300 + each, each, Status.EOK, packet(LEDGER, each, SIZE)) for each in list(asked)[:served]]
    assert statistics.reads == served
    assert statistics.read_bytes == served * len(packet(LEDGER, 0, SIZE))
    assert statistics.write_cache_hits + statistics.write_cache_misses == served


@pytest.mark.asyncio
@pytest.mark.parametrize("step", [1, -1])
async def test_a_client_that_does_not_read_is_sent_a_bounded_part(storage: OpenStorage, step: int) -> None:
    client = Client(1)
    count, _ = serve(storage, client, *range(30)[::step])
    assert count == len(client.responses)
    assert 1 <= count <= 1 + 65_536 // SIZE


@pytest.mark.asyncio
async def test_a_read_behind_waiting_ones_has_to_wait(storage: OpenStorage) -> None:
    client = Client(1000)
    client.reads.append(ReadRequest(1, LEDGER, 7))
    assert serve(storage, client, 0, 1)[0] == 0
    assert not client.responses
