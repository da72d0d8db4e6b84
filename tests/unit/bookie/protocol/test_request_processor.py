"""What a bookie counts and times of adds: what it acknowledged, and nothing twice or back."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import pytest_asyncio

from bookgate.bookie.mode.mode import BookieMode
from bookgate.bookie.protocol.long_polls import LongPolls
from bookgate.bookie.protocol.read_scheduler import EntryReads, QueuedRead
from bookgate.bookie.protocol.request_processor import RequestProcessor
from bookgate.bookie.statistics import SAMPLED, BookieStatistics
from bookgate.bookie.storage_events import Completion
from bookgate.ledger.wire import v2
from bookgate.ledger.wire.fast_add import AddReader, FastAdd, read_copy, read_v2, read_v3
from bookgate.ledger.wire.messages import HIGH_PRIORITY, AddRequest, AddResponse, ReadRequest, Response, Status
from bookgate.ledger.wire.v3 import decode_response, encode_request, encode_response
from tests.unit.bookie.storage.storage_support import KEY, OpenStorage, opened, packet

LEDGER = 5


class RecordingClient:
    """A connection that keeps what it was told to send."""

    is_open = True
    takes_answers = True
    reading = False

    def __init__(self) -> None:
        self.reads: deque[QueuedRead] = deque()
        self.statuses: list[int] = []
        self.responses: list[Response] = []
        self._answered = asyncio.Event()

    def encode(self, response: Response) -> bytes:
        return encode_response(response)

    def answer(self, response: Response) -> None:
        self.send(self.encode(response))

    def send(self, frame: bytes, count: int = 1) -> None:
        size = len(frame) // count
        for start in range(0, len(frame), size):
            self.responses.append(decode_response(memoryview(frame)[start + 4 : start + size]))
            self.statuses.append(self.responses[-1].status)
        self._answered.set()

    async def until_answered(self, count: int) -> None:
        """Returns once so many responses were sent."""
        while len(self.responses) < count:
            self._answered.clear()
            await self._answered.wait()

    def flush(self) -> None:
        return

    def start_tls(self, txn_id: int) -> bool:
        return False

    def pause_reading(self) -> None:
        return


class Bench:
    """A processor over a real storage, whose acknowledgements the test passes on."""

    def __init__(self, opened_storage: OpenStorage, reader: ThreadPoolExecutor) -> None:
        self.acks = opened_storage.acks
        self.statistics = BookieStatistics()
        storage = self.storage = opened_storage.storage
        reads = EntryReads(storage, reader, self.statistics)
        long_polls = LongPolls(storage, reads, reader)
        self.processor = RequestProcessor(storage, reads, long_polls, self.statistics, BookieMode())
        self.client = RecordingClient()

    def add(self, entry_id: int) -> AddRequest:
        """Through the general path."""
        request = AddRequest(entry_id, LEDGER, entry_id, KEY, packet(LEDGER, entry_id))
        self.processor.process(self.client, request)
        return request

    def add_fast(self, entry_id: int) -> None:
        request = AddRequest(entry_id, LEDGER, entry_id, KEY, packet(LEDGER, entry_id))
        fast = read_v3(memoryview(encode_request(request))[4:])
        assert isinstance(fast, FastAdd)
        assert self.processor.add(self.client, fast)

    def add_run(self, *entry_ids: int, key: bytes = KEY) -> bool:
        """As a connection does that received them together."""
        adds = [AddRequest(each, LEDGER, each, key, packet(LEDGER, each)) for each in (*entry_ids[:2], *entry_ids)]
        packets = [memoryview(encode_request(add))[4:] for add in adds]
        reader = AddReader()
        for each in packets[:2]:
            assert reader.read(each) is not None
        run = reader.read_run(packets, 2)
        assert run is not None
        assert run.entry_ids == list(entry_ids)
        return self.processor.add_run(self.client, run)

    def take_stored(self, count: int) -> list[Completion]:
        self.acks.wait_until(lambda: len(self.acks.completions) >= count, f"{count} completions")
        completions, self.acks.completions = self.acks.completions, []
        return completions

    @property
    def counted(self) -> tuple[int, int, int]:
        """Adds, bytes of them, refused adds."""
        return self.statistics.adds, self.statistics.add_bytes, self.statistics.adds_refused


@pytest_asyncio.fixture
async def bench(tmp_path: Path) -> AsyncIterator[Bench]:
    with ThreadPoolExecutor(1) as reader, opened(tmp_path) as storage:
        yield Bench(storage, reader)


@pytest.mark.asyncio
async def test_an_add_counts_once_it_is_acknowledged(bench: Bench) -> None:
    size = len(bench.add(0).body)
    bench.add_fast(1)
    completions = bench.take_stored(2)
    assert bench.counted == (0, 0, 0)
    bench.processor.stored(completions)
    assert bench.client.statuses == [Status.EOK, Status.EOK]
    assert bench.counted == (2, 2 * size, 0)


@pytest.mark.asyncio
async def test_adds_that_find_no_space_lower_no_count(bench: Bench) -> None:
    """A counter that falls is read as one that began anew."""
    size = len(bench.add(0).body)
    bench.processor.stored(bench.take_stored(1))
    bench.add(1)
    bench.add_fast(300)
    bench.processor.not_stored(bench.take_stored(2))
    assert bench.client.statuses == [Status.EOK, Status.EIO, Status.EIO]
    refused = [AddResponse(number, Status.EIO, LEDGER, number) for number in (1, 300)]
    assert bench.client.responses[1:] == refused
    assert bench.counted == (1, size, 2)


@pytest.mark.asyncio
async def test_a_run_of_adds_is_stored_as_each_alone(bench: Bench) -> None:
    size = len(bench.add(0).body)
    assert bench.add_run(1, 2, 3, 9)
    assert bench.add_run(2, 10, 11)
    bench.add_fast(4)
    completions = bench.take_stored(4)
    assert bench.counted == (0, 0, 0)
    bench.processor.stored(completions)
    assert bench.client.responses == [
        AddResponse(each, Status.EOK, LEDGER, each) for each in (0, 1, 2, 3, 9, 2, 10, 11, 4)
    ]
    assert bench.counted == (9, 9 * size, 0)
    ledger = bench.storage.ledgers.recent(LEDGER)
    assert ledger is not None
    assert (ledger.last_entry_id, ledger.known_lac) == (11, 10)
    for each in (0, 1, 2, 3, 4, 9, 10, 11):
        assert bench.storage.reader.read_entry(ledger, each) == packet(LEDGER, each)
    assert not bench.storage.reader.held_entry(ledger, 5)


@pytest.mark.asyncio
async def test_a_run_that_finds_no_space_is_refused_add_by_add(bench: Bench) -> None:
    size = len(bench.add(0).body)
    bench.processor.stored(bench.take_stored(1))
    assert bench.add_run(1, 2, 3)
    bench.processor.not_stored(bench.take_stored(1))
    assert bench.client.responses[1:] == [AddResponse(each, Status.EIO, LEDGER, each) for each in (1, 2, 3)]
    assert bench.counted == (1, size, 3)


@pytest.mark.asyncio
async def test_a_run_that_may_be_refused_is_left_to_the_long_way(bench: Bench) -> None:
    assert not bench.add_run(1, 2), "the ledger is not there"
    bench.add(0)
    assert not bench.add_run(1, 2, key=b"another key of twenty"[:20])
    assert not bench.add_run(1 << 40, (1 << 40) + 1, 1 << 41), "too high an id"
    assert bench.add_run(1, 2)
    bench.processor.process(bench.client, ReadRequest(9, LEDGER, 0, True, KEY))
    assert not bench.add_run(3, 4), "fenced"
    ledger = bench.storage.ledgers.recent(LEDGER)
    assert ledger is not None
    assert (ledger.last_entry_id, bench.storage.reader.held_entry(ledger, 3)) == (2, None)


@pytest.mark.asyncio
async def test_a_run_without_a_journal_is_acknowledged_at_once(tmp_path: Path) -> None:
    with ThreadPoolExecutor(1) as reader, opened(tmp_path, journal_entries=False) as storage:
        bench = Bench(storage, reader)
        bench.add(0)
        assert bench.add_run(1, 2, 3)
        bench.processor.stored(bench.take_stored(2))
        assert bench.client.statuses == [Status.EOK] * 4


@pytest.mark.asyncio
async def test_runs_are_timed_as_adds_are(bench: Bench) -> None:
    bench.add(0)
    firsts = range(200, 200 + 2 * SAMPLED, 10)
    for first in firsts:
        assert bench.add_run(*range(first, first + 10))
    bench.processor.stored(bench.take_stored(1 + len(firsts)))
    assert bench.statistics.add_latency.succeeded.count == 2


@pytest.mark.asyncio
async def test_adds_of_the_fast_path_are_timed_there(bench: Bench) -> None:
    bench.add(0)
    for entry_id in range(1, 2 * SAMPLED):
        bench.add_fast(entry_id)
    bench.processor.stored(bench.take_stored(2 * SAMPLED))
    assert bench.statistics.adds == 2 * SAMPLED
    assert bench.statistics.add_latency.succeeded.count == 2


@pytest.mark.asyncio
async def test_a_fence_waits_for_the_disk_until_it_is_known_to_be_there(bench: Bench) -> None:
    """S6, and the reads of a recovery, each of which fences again."""
    bench.add(0)
    bench.processor.stored(bench.take_stored(1))

    def fence(txn_id: int) -> None:
        bench.processor.process(bench.client, ReadRequest(txn_id, LEDGER, 0, True, KEY, priority=100))

    fence(1)
    fence(2)
    fences = bench.take_stored(2)
    assert len(bench.client.responses) == 1, "neither is answered before the first is durable"
    bench.processor.stored(fences)
    fence(3)
    bench.processor.reads.pump(bench.client)  # as the connection does
    assert [response.txn_id for response in bench.client.responses[1:]] == [1, 2, 3]
    assert not bench.acks.completions, "the third found a durable fence"
    assert bench.statistics.fences == 2


@pytest.mark.asyncio
async def test_a_copy_goes_the_short_way_on_a_fenced_ledger_and_with_its_key_only(bench: Bench) -> None:
    bench.add(0)
    bench.processor.stored(bench.take_stored(1))

    def takes(entry_id: int, key: bytes = KEY) -> bool:
        request = AddRequest(entry_id, LEDGER, entry_id, key, packet(LEDGER, entry_id), True, priority=HIGH_PRIORITY)
        copy = read_copy(memoryview(encode_request(request))[4:])
        assert isinstance(copy, FastAdd)
        return bench.processor.add_copy(bench.client, copy)

    bench.processor.process(bench.client, ReadRequest(9, LEDGER, 0, True, KEY))
    bench.processor.stored(bench.take_stored(1))
    assert takes(1)
    bench.processor.stored(bench.take_stored(1))
    assert bench.client.responses[-1] == AddResponse(1, Status.EOK, LEDGER, 1)
    assert not takes(2, b"another key of twenty"[:20])
    assert not takes(0), "the first entry is checked"
    assert not takes(1 << 41)


@pytest.mark.asyncio
@pytest.mark.parametrize("path", ["general", "copy", "v2", "run"])
async def test_a_client_without_a_key_adds_nothing_to_a_ledger_whose_key_is_not_known(
    tmp_path: Path, path: str
) -> None:
    """As BookKeeper's data-integrity check leaves ledgers (docs/protocol/entry-format.md#master-keys)."""
    unset = bytes(20)
    with ThreadPoolExecutor(1) as reader, opened(tmp_path) as storage:
        ledger = storage.ledger(LEDGER, unset)
        for entry_id in range(3):
            storage.writer.add_entry(ledger, entry_id, packet(LEDGER, entry_id), entry_id)
        storage.acks.wait_for(2)
        bench = Bench(storage, reader)
        add = AddRequest(0, LEDGER, 2, unset, packet(LEDGER, 2, fill=66), recovery=path == "copy")
        if path == "run":
            assert not bench.add_run(1, 2, key=unset)
        elif path == "v2":
            fast = read_v2(memoryview(v2.encode_request(add))[4:])
            assert fast is not None
            assert not bench.processor.add(bench.client, fast)
        elif path == "copy":
            add = add._replace(priority=HIGH_PRIORITY)
            fast_copy = read_copy(memoryview(encode_request(add))[4:])
            assert fast_copy is not None
            assert not bench.processor.add_copy(bench.client, fast_copy)
        bench.processor.process(bench.client, add)
        assert bench.client.statuses == [Status.EUA]
        assert storage.storage.reader.read_entry(ledger, 2) == packet(LEDGER, 2)
