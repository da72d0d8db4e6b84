"""The blocking client's life: what is under way when it ends, and what comes after."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Callable, Generator, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import pytest

from bookgate.ledger.errors import ClientClosedException, IllegalOpException
from bookgate.thinclient.administration import blocking as administration
from bookgate.thinclient.administration.blocking import Admin
from bookgate.thinclient.blocking import facades
from bookgate.thinclient.blocking.client import (
    AdvancedWriteHandle,
    BookKeeper,
    ReadHandle,
    RecordWriter,
    StreamReader,
    StreamWriter,
    UnboundedWriteHandle,
    WriteHandle,
)
from bookgate.thinclient.blocking.loop_thread import LoopThread, iterate, result_of

NOWHERE = "grpc://127.0.0.1:9"
"""Nothing connects before the first call."""


@pytest.fixture(autouse=True)
def own_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    """As in a process where nobody else has a client open."""
    monkeypatch.setattr(LoopThread, "_current", None)


async def never() -> None:
    await asyncio.Event().wait()


def loop_of_the_clients() -> LoopThread:
    """That of those which are open now; it is theirs to keep."""
    thread = LoopThread.acquire()
    thread.release()
    return thread


def test_what_is_under_way_ends_with_the_last_client() -> None:
    threads = set(threading.enumerate())
    with BookKeeper.connect_lazily(NOWHERE):
        client = BookKeeper.connect_lazily(NOWHERE)
        under_way = loop_of_the_clients().start(never())
        assert not set(threading.enumerate()) <= threads
        client.close()
        assert not under_way.done()
    with pytest.raises(ClientClosedException, match="under way"):
        result_of(under_way)
    assert set(threading.enumerate()) <= threads


def test_a_closed_client_says_so_whatever_is_asked_of_it() -> None:
    client = BookKeeper.connect_lazily(NOWHERE)
    discovery, ledgers = client.service_discovery, client.ledger_manager
    client.close()
    client.close()
    for call in (client.bookies, discovery.bookies, lambda: list(ledgers.ledger_ranges())):
        with pytest.raises(ClientClosedException):
            call()


class Connected:
    """A client that counts how often it is closed."""

    def __init__(self) -> None:
        self.closings = 0

    async def close(self) -> None:
        self.closings += 1


@pytest.mark.parametrize("kind", [BookKeeper, Admin])
def test_a_client_that_threads_close_at_once_is_closed_once(
    kind: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The loop is not taken from under another client."""
    both = threading.Barrier(2, timeout=30)
    for module in (facades, administration):
        monkeypatch.setattr(module, "check_may_wait", both.wait, raising=False)
    connected = Connected()
    client, thread = kind(LoopThread.acquire(), connected), LoopThread.acquire()
    try:
        with ThreadPoolExecutor(2) as pool:
            for closing in [pool.submit(client.close) for _ in range(2)]:
                closing.result()
        client.close()
        assert connected.closings == 1
        assert thread.run(asyncio.sleep(0, "goes on")) == "goes on"
    finally:
        if thread.running:
            thread.release()


def test_an_iterator_outlives_its_client_only_up_to_the_page_at_hand() -> None:
    async def numbers() -> AsyncIterator[int]:
        for number in range(100):
            yield number

    client = BookKeeper.connect_lazily(NOWHERE)
    pages: Iterator[int] = iterate(loop_of_the_clients(), numbers())
    assert next(pages) == 0
    client.close()
    with pytest.raises(ClientClosedException):
        list(pages)


def test_a_call_that_waits_on_the_loops_own_thread_is_refused_and_the_loop_goes_on() -> None:
    client = BookKeeper.connect_lazily(NOWHERE)
    thread, ledgers = loop_of_the_clients(), client.ledger_manager
    refused: list[type[BaseException]] = []

    async def callback() -> None:
        for call in (client.bookies, lambda: list(ledgers.ledger_ranges()), client.close):
            try:
                call()
            except IllegalOpException as error:
                refused.append(type(error))

    thread.start(callback()).result(timeout=10)
    assert refused == [IllegalOpException] * 3
    assert thread.run(asyncio.sleep(0, "goes on")) == "goes on"
    client.close()


class Taken:
    """A writer that notes what it is given when its turn comes."""

    last_add_confirmed = -1

    def __init__(self) -> None:
        self.payloads: list[bytes] = []

    async def append(self, *given: Any, **_: Any) -> int:
        self.payloads.append(bytes(given[-1]))
        return 0

    async def append_all(self, payloads: list[Any], **_: Any) -> int:
        self.payloads += map(bytes, payloads)
        return 0


STARTS: list[tuple[Callable[..., Any], Callable[[Any, Any], Future[Any]]]] = [
    (WriteHandle, lambda writer, payload: writer.append_future(payload)),
    (WriteHandle, lambda writer, payload: writer.append_all_future([payload])),
    (UnboundedWriteHandle, lambda writer, payload: writer.append_future(payload)),
    (AdvancedWriteHandle, lambda writer, payload: writer.append_future(7, payload)),
    (RecordWriter, lambda writer, payload: writer.append_future(payload)),
    (StreamWriter, lambda writer, payload: writer.append_future(payload)),
]


@pytest.mark.parametrize(("kind", "start"), STARTS)
def test_a_buffer_may_be_used_again_at_once(kind: Callable[..., Any], start: Callable[[Any, Any], Future[Any]]) -> None:
    thread, taken, busy = LoopThread.acquire(), Taken(), threading.Event()
    try:
        thread.loop.call_soon_threadsafe(busy.wait)  # the appends start, and their turn comes later
        buffer, futures = bytearray(1), []
        for number in range(3):
            buffer[0] = number
            futures.append(start(kind(thread, taken), memoryview(buffer)))
        busy.set()
        for future in futures:
            result_of(future)
    finally:
        busy.set()
        thread.release()
    assert taken.payloads == [b"\0", b"\1", b"\2"]


@pytest.mark.parametrize("kind", [WriteHandle, UnboundedWriteHandle, StreamWriter])
def test_an_iterable_may_give_the_same_buffer_each_time(kind: Callable[..., Any]) -> None:
    def numbers() -> Iterator[bytearray]:
        buffer = bytearray(2)
        for number in range(1500):  # more than are collected at once
            buffer[:] = number.to_bytes(2)
            yield buffer

    thread, taken = LoopThread.acquire(), Taken()
    try:
        kind(thread, taken).append_all(numbers())
    finally:
        thread.release()
    assert taken.payloads == [number.to_bytes(2) for number in range(1500)]


class Opened:
    """A reader, or a writer, that notes its end. The end takes as long as an answer."""

    position = (0, 0)

    def __init__(self) -> None:
        self.ended = threading.Event()

    async def __aexit__(self, *_error: object) -> None:
        await asyncio.sleep(0.05)
        self.ended.set()


def reads(handle: ReadHandle | StreamReader, failure: Exception | None) -> Generator[int, None, None]:
    with handle:
        try:
            yield 1
        finally:
            if failure:
                raise failure


@pytest.mark.parametrize("failure", [None, ValueError("while it is ended")])
@pytest.mark.parametrize("kind", [ReadHandle, StreamReader])
def test_the_end_of_an_abandoned_read_waits_for_nothing(kind: Callable[..., Any], failure: Exception | None) -> None:
    """The collector ends it in any thread, which may hold a lock that the event loop waits for."""
    thread, opened = LoopThread.acquire(), Opened()
    locked, outcome = threading.Event(), list[Exception]()
    abandoned = reads(kind(thread, opened), failure)
    next(abandoned)

    def collect() -> None:
        try:
            abandoned.close()
        except ValueError as error:
            outcome.append(error)

    try:
        thread.loop.call_soon_threadsafe(locked.wait, 60)
        collecting = threading.Thread(target=collect, daemon=True)
        collecting.start()
        collecting.join(10)
        assert not collecting.is_alive()
        assert not opened.ended.is_set()
        locked.set()
        assert opened.ended.wait(30)
        assert outcome == ([failure] if failure else [])
    finally:
        locked.set()
        thread.release()


@pytest.mark.parametrize("kind", [ReadHandle, StreamReader])
def test_an_abandoned_read_ends_on_the_loops_own_thread_too(kind: Callable[..., Any]) -> None:
    thread, opened = LoopThread.acquire(), Opened()
    abandoned = reads(kind(thread, opened), None)
    next(abandoned)

    async def collect() -> None:
        abandoned.close()

    try:
        thread.start(collect()).result(timeout=30)
        assert opened.ended.wait(30)
    finally:
        thread.release()


def test_a_read_that_outlives_its_loop_ends_without_a_word() -> None:
    thread, opened = LoopThread.acquire(), Opened()
    abandoned = reads(ReadHandle(thread, opened), None)  # type: ignore[arg-type]
    next(abandoned)
    thread.release()
    abandoned.close()
    assert not opened.ended.is_set()


def works(client: BookKeeper | Admin) -> Generator[int, None, None]:
    with client:
        yield 1


@pytest.mark.parametrize("kind", [BookKeeper, Admin])
def test_the_end_of_an_abandoned_client_waits_for_nothing(kind: Callable[..., Any]) -> None:
    """As that of an abandoned read; and the loop, of which it was the last user, ends after it."""
    thread, connected, locked = LoopThread.acquire(), Connected(), threading.Event()
    client = kind(thread, connected)
    abandoned = works(client)
    next(abandoned)
    thread.loop.call_soon_threadsafe(locked.wait, 60)
    collecting = threading.Thread(target=abandoned.close, daemon=True)
    collecting.start()
    try:
        collecting.join(10)
        assert not collecting.is_alive()
        assert connected.closings == 0
        client.close()
    finally:
        locked.set()
    thread._thread.join(30)
    assert not thread.running
    assert connected.closings == 1


def test_an_abandoned_client_is_closed_on_the_loops_own_thread_too() -> None:
    thread, connected, other = LoopThread.acquire(), Connected(), LoopThread.acquire()
    abandoned = works(BookKeeper(thread, connected))  # type: ignore[arg-type]
    next(abandoned)

    async def collect() -> None:
        abandoned.close()

    thread.start(collect()).result(timeout=30)
    assert thread.run(asyncio.sleep(0, "goes on")) == "goes on"
    assert connected.closings == 1
    other.release()
    assert not thread.running


def test_what_ends_after_its_loop_waits_for_no_thread_that_makes_the_next_one() -> None:
    """That one may wait for the lock of a log's handler, which the thread may have that the collector comes in."""
    thread, locked, made = LoopThread.acquire(), threading.Event(), threading.Event()
    abandoned = reads(ReadHandle(thread, Opened()), None)  # type: ignore[arg-type]
    next(abandoned)
    thread.release()

    def make_the_next() -> None:
        with LoopThread._lock:
            locked.set()
            made.wait(60)

    making = threading.Thread(target=make_the_next)
    making.start()
    try:
        assert locked.wait(30)
        collecting = threading.Thread(target=abandoned.close, daemon=True)
        collecting.start()
        collecting.join(10)
        assert not collecting.is_alive()
    finally:
        made.set()
        making.join()


_LEFT_OPEN = """
import sys, threading
from bookgate.thinclient.blocking.client import BookKeeper, ReadHandle, WriteHandle
from bookgate.thinclient.blocking.loop_thread import LoopThread, iterate

class Opened:
    async def close(self): pass
    async def __aexit__(self, *_error): pass

async def pages():
    while True:
        yield 1

def rows(opened):
    with opened:
        yield 1

# Not of this module, which the thread would keep.
held = {"lock": LoopThread._lock, "event": threading.Event()}
exec("def hold():\\n    with lock:\\n        event.set()\\n        type(event)().wait()", held)

kind, lock = sys.argv[1:]
thread = LoopThread.acquire()
kinds = {"client": BookKeeper, "reader": ReadHandle, "writer": WriteHandle}
left = rows(kinds[kind](thread, Opened())) if kind in kinds else iterate(thread, pages())
next(left)
if lock == "held":
    threading.Thread(target=held["hold"], daemon=True).start()
    held["event"].wait()
"""


@pytest.mark.parametrize(
    ("kind", "lock"), [("client", "free"), ("writer", "free"), ("reader", "held"), ("pages", "held")]
)
def test_a_process_ends_whatever_generator_it_left_open(kind: str, lock: str) -> None:
    """The interpreter frees it last, when it has stopped the loop's thread and any that has a lock. Only a writer's is
    told: its ledger was not closed.
    """
    ended = subprocess.run(
        [sys.executable, "-c", _LEFT_OPEN, kind, lock], capture_output=True, text=True, timeout=30, check=False
    )
    assert ended.returncode == 0
    assert ("the process ends" in ended.stderr) == (kind == "writer")
    assert ended.stderr == "" or kind == "writer"


@pytest.mark.parametrize("kind", [WriteHandle, UnboundedWriteHandle, AdvancedWriteHandle, RecordWriter, StreamWriter])
def test_whoever_closes_a_generator_that_writes_finds_its_ledger_ended(kind: Callable[..., Any]) -> None:
    def written() -> Generator[None, bytes, None]:
        with kind(thread, opened):
            yield

    thread, opened = LoopThread.acquire(), Opened()
    try:
        writes = written()
        next(writes)
        writes.close()
        assert opened.ended.is_set()
    finally:
        thread.release()
