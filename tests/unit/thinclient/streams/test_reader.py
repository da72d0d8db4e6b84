"""The reader of a stream, with and without asyncio: several iterators of one reader, and iterators that are left."""

from __future__ import annotations

import threading
from collections.abc import AsyncGenerator, Callable, Coroutine, Iterable
from concurrent.futures import Future
from contextlib import aclosing, closing
from itertools import islice
from typing import Any

import pytest

from bookgate.ledger.entry import Entry
from bookgate.ledger.payload_codec import RecordPosition
from bookgate.ledger.stream_entry import StreamEntry, StreamRecord, encode_stream_entry
from bookgate.thinclient.blocking import client as blocking
from bookgate.thinclient.blocking.loop_thread import LoopThread
from bookgate.thinclient.streams.reader import StreamReader

ENTRIES, IN_ENTRY = 12, 3
RECORDS = [b"%d" % number for number in range(ENTRIES * IN_ENTRY)]
IN_PAGE = 2
"""Entries of a page, whatever is asked for."""


def entry(entry_id: int) -> Entry:
    records = tuple(RECORDS[entry_id * IN_ENTRY : (entry_id + 1) * IN_ENTRY])
    return Entry(0, entry_id, 0, 0, encode_stream_entry(StreamEntry(1, 0, records)))


class Handle:
    """A ledger in memory. `before_page` is called with the first entry of each page."""

    last_add_confirmed = ENTRIES - 1

    def __init__(self, before_page: Callable[[int], None] = lambda _: None) -> None:
        self.before_page = before_page

    async def read_batches(self, first: int, last: int, _: int) -> AsyncGenerator[list[Entry], None]:
        for start in range(first, last + 1, IN_PAGE):
            self.before_page(start)
            yield [entry(each) for each in range(start, min(start + IN_PAGE, last + 1))]


class CommittedTo:
    """A cursor that notes what is committed."""

    def __init__(self) -> None:
        self.positions: list[RecordPosition] = []

    async def commit(self, position: RecordPosition) -> None:
        self.positions.append(position)


def reader_of(handle: Handle, cursor: CommittedTo | None = None) -> StreamReader:
    return StreamReader("s", handle, RecordPosition(0, 0), cursor, follow=False)  # type: ignore[arg-type]


def payloads(records: Iterable[StreamRecord]) -> list[bytes]:
    return [record.payload for record in records]


@pytest.mark.parametrize("in_batches", [False, True])
def test_a_page_that_is_fetched_ahead_while_its_iterator_is_left_moves_nothing(
    in_batches: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The fetch ends only after the next iterator has asked for its first page."""
    fetches, goes_on = threading.Event(), threading.Event()

    def before_page(first: int) -> None:
        if first == IN_PAGE and not fetches.is_set():
            fetches.set()
            goes_on.wait(30)

    cursor, thread = CommittedTo(), LoopThread.acquire()
    reader = blocking.StreamReader(thread, reader_of(Handle(before_page), cursor))
    start = thread.start

    def starting(coroutine: Coroutine[Any, Any, Any]) -> Future[Any]:
        future = start(coroutine)
        goes_on.set()
        return future

    def taken() -> list[bytes]:
        if in_batches:
            with closing(reader.records_batches()) as batches:
                found = payloads(next(batches))
                assert fetches.wait(30)
        else:
            with closing(reader.records()) as records:
                found = payloads(islice(records, 4))
                assert fetches.wait(30)
        return found

    try:
        first = taken()
        monkeypatch.setattr(thread, "start", starting)
        second = taken()
        assert first + second == RECORDS[: len(first) + len(second)]
        assert second
        reader.commit()
    finally:
        goes_on.set()
        thread.release()
    entry_id, number = reader.position
    assert repr(reader) == f"<StreamReader of 's' at entry {entry_id} record {number}>"
    assert cursor.positions == [(entry_id, number)]
    assert entry_id * IN_ENTRY + number == len(first) + len(second)


def test_iterators_of_one_blocking_reader_keep_their_own_places() -> None:
    thread = LoopThread.acquire()
    try:
        reader = blocking.StreamReader(thread, reader_of(Handle()))
        with closing(reader.records()) as first:
            assert payloads(islice(first, 2)) == RECORDS[:2]
            reader.seek(RecordPosition(5, 2))
            with closing(reader.records()) as second:
                assert payloads(islice(second, 2)) == RECORDS[17:19]
                assert payloads(first) == RECORDS[2:]
                assert payloads(second) == RECORDS[19:]
    finally:
        thread.release()


@pytest.mark.asyncio
async def test_an_iterator_is_given_the_records_before_the_place_that_another_one_begins_at() -> None:
    reader = reader_of(Handle())
    async with aclosing(reader.records_batches()) as batches:
        found = payloads(await anext(batches))
        reader.seek(RecordPosition(IN_PAGE, 2))
        async for batch in batches:
            found += payloads(batch)
    assert found == RECORDS


@pytest.mark.asyncio
async def test_a_reader_goes_on_after_the_last_record_that_it_delivered() -> None:
    cursor = CommittedTo()
    reader = reader_of(Handle(), cursor)
    found: list[bytes] = []
    for _ in range(2):
        async for record in reader.records():
            found.append(record.payload)
            if len(found) % 4 == 0:
                break
    await reader.commit()
    assert found == RECORDS[:8]
    assert cursor.positions == [RecordPosition(2, 2)] == [reader.position]
    async with aclosing(reader.records_batches()) as batches:
        assert payloads(await anext(batches)) == RECORDS[8:12]
    assert reader.position == RecordPosition(3, 3)
