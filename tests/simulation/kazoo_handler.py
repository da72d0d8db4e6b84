"""What kazoo runs on in the simulation: its threads, events, sockets and sleeps, in virtual time.

kazoo keeps these behind a handler (it has one for threads, one for gevent, …), so the whole client is the real one:
its connection loop, its time-outs, its watches, its queues for callbacks. Threads and events are the simulated
host's; a socket is a connection of the simulated network, with a buffer from which a blocking read takes.
"""

from __future__ import annotations

import asyncio
import functools
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

from kazoo.handlers import utils
from kazoo.handlers.threading import KazooTimeoutError

from bookie.threads import Event, RunningThread, Threads

_STOP = object()


class _Readiness:
    """Who waits for a socket to become readable."""

    def __init__(self) -> None:
        self.waiting: list[Event] = []

    def wake(self) -> None:
        for event in self.waiting:
            event.set()


class SimulatedSocket(asyncio.Protocol):
    """The client's end of a connection."""

    def __init__(self) -> None:
        self.readiness = _Readiness()
        self._buffer = bytearray()
        self._ended = False
        self._error: Exception | None = None
        self._transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        self.readiness.wake()

    def eof_received(self) -> bool:
        self._ended = True
        self.readiness.wake()
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        self._ended, self._error = True, exc
        self.readiness.wake()

    @property
    def readable(self) -> bool:
        return bool(self._buffer) or self._ended

    def recv(self, size: int) -> bytes:
        """What is there; nothing at the end. Raises OSError."""
        if not self._buffer and self._error is not None:
            raise ConnectionResetError(str(self._error))
        taken = bytes(self._buffer[:size])
        del self._buffer[:size]
        return taken

    def send(self, data: bytes) -> int:
        if self._ended or self._transport is None:
            raise BrokenPipeError("the connection has ended")
        self._transport.write(bytes(data))
        return len(data)

    def setblocking(self, flag: int) -> None:
        """Reads never block here: kazoo asks `select` first."""

    def close(self) -> None:
        self._ended = True
        if self._transport is not None:
            self._transport.close()


class _Pipe:
    """One end of the pair by which kazoo's callers wake its connection thread."""

    def __init__(self) -> None:
        self.readiness = _Readiness()
        self.other: _Pipe | None = None
        self._bytes = 0

    @property
    def readable(self) -> bool:
        return self._bytes > 0

    def send(self, data: bytes) -> int:
        if self.other is None:
            raise BrokenPipeError("the pair is closed")
        self.other._bytes += len(data)
        self.other.readiness.wake()
        return len(data)

    def recv(self, size: int) -> bytes:
        if not self._bytes:
            raise BlockingIOError("nothing to read")
        taken = min(size, self._bytes)
        self._bytes -= taken
        return b"\0" * taken

    def close(self) -> None:
        self.other = None


class _Queue:
    """Work for one of kazoo's callback threads."""

    def __init__(self, threads: Threads) -> None:
        self._items: deque[Any] = deque()
        self._changed = threads.condition()

    def put(self, item: Any) -> None:
        with self._changed:
            self._items.append(item)
            self._changed.notify()

    def get(self) -> Any:
        with self._changed:
            while not self._items:
                self._changed.wait()
            return self._items.popleft()


class _Condition:
    """A condition whose lock is never in the way: simulated threads take turns only where they wait."""

    def __init__(self, threads: Threads) -> None:
        self._threads = threads
        self._waiting: list[Event] = []

    def __enter__(self) -> bool:
        return True

    def __exit__(self, *error: object) -> None:
        return

    def wait(self, timeout: float | None = None) -> bool:
        event = self._threads.event()
        self._waiting.append(event)
        return event.wait(timeout)

    def notify_all(self) -> None:
        waiting, self._waiting = self._waiting, []
        for event in waiting:
            event.set()


class SimulatedKazooHandler:
    """See the module. One a client, made on the host that the client runs on."""

    name = "simulated"
    timeout_exception = KazooTimeoutError

    def __init__(self, threads: Threads) -> None:
        self._threads = threads
        self._loop = asyncio.get_running_loop()
        self._workers: list[RunningThread] = []
        self.running = False
        self.sleep_func = self._sleep
        self.completion_queue = _Queue(threads)
        self.callback_queue = _Queue(threads)

    def start(self) -> None:
        if self.running:
            return
        self.running = True
        for queue in (self.completion_queue, self.callback_queue):
            self._workers.append(self.spawn(self._work, queue))

    def stop(self) -> None:
        if not self.running:
            return
        self.running = False
        for queue in (self.completion_queue, self.callback_queue):
            queue.put(_STOP)
        while self._workers:
            self._workers.pop().join()

    def spawn(self, function: Callable[..., Any], *args: Any, **kwargs: Any) -> RunningThread:
        return self._threads.start(functools.partial(function, *args, **kwargs), "kazoo")

    def dispatch_callback(self, callback: Any) -> None:
        self.callback_queue.put(lambda: callback.func(*callback.args))

    def event_object(self) -> _Flag:
        return _Flag(self._threads)

    def async_result(self) -> utils.AsyncResult:
        return utils.AsyncResult(self, lambda: _Condition(self._threads), KazooTimeoutError)

    def create_socket_pair(self) -> tuple[_Pipe, _Pipe]:
        one, other = _Pipe(), _Pipe()
        one.other, other.other = other, one
        return one, other

    def create_connection(self, address: tuple[str, int], timeout: float, **_ignored: Any) -> SimulatedSocket:
        """Blocks until connected. Raises OSError."""
        over = self._threads.event()
        task = self._loop.create_task(self._connect(address))
        task.add_done_callback(lambda _: over.set())
        if not over.wait(timeout):
            task.cancel()
            raise TimeoutError(f"no connection with {address} within {timeout:g} s")
        return task.result()

    async def _connect(self, address: tuple[str, int]) -> SimulatedSocket:
        _, protocol = await self._loop.create_connection(SimulatedSocket, *address)
        return protocol

    def select(
        self, readers: Sequence[Any], writers: Sequence[Any], _errors: Sequence[Any], timeout: float | None = None
    ) -> tuple[list[Any], list[Any], list[Any]]:
        """Writing never blocks: the network takes all."""
        ready = [each for each in readers if each.readable]
        if not ready and not writers:
            over = self._threads.event()
            for each in readers:
                each.readiness.waiting.append(over)
            try:
                over.wait(timeout)
            finally:
                for each in readers:
                    each.readiness.waiting.remove(over)
            ready = [each for each in readers if each.readable]
        return ready, list(writers), []

    def _sleep(self, seconds: float) -> None:
        self._threads.event().wait(seconds)

    def _work(self, queue: _Queue) -> None:
        while (function := queue.get()) is not _STOP:
            function()


class _Flag:
    """An event that can be cleared, too."""

    def __init__(self, threads: Threads) -> None:
        self._threads = threads
        self._event = threads.event()
        self._set = False

    def set(self) -> None:
        self._set = True
        self._event.set()

    def clear(self) -> None:
        if self._set:
            self._set = False
            self._event = self._threads.event()

    def is_set(self) -> bool:
        return self._set

    def wait(self, timeout: float | None = None) -> bool:
        return self._set or self._event.wait(timeout)
