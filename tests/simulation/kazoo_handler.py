"""What kazoo runs on in the simulation: its threads, events, sockets and sleeps, in virtual time.

kazoo keeps these behind a handler (it has one for threads, one for gevent, …), so the whole client is the real one:
its connection loop, its time-outs, its watches. Threads and events are the simulated
host's; a socket is a connection of the simulated network, with a buffer from which a blocking read takes.
"""

from __future__ import annotations

import asyncio
import contextvars
import functools
from collections.abc import Callable, Sequence
from typing import Any

from greenlet import getcurrent
from kazoo.handlers.threading import KazooTimeoutError

from bookgate.bookie.system.threads import Event, RunningThread, Threads

_PAIR_HOLDS = 8
"""Bytes: a few hundred in a real one."""


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
    """One end of the pair by which kazoo's callers wake its connection thread. It holds little."""

    def __init__(self, threads: Threads, blocked: Callable[[str], None]) -> None:
        self.readiness = _Readiness()
        self.other: _Pipe | None = None
        self._threads = threads
        self._blocked = blocked
        self._bytes = 0
        self._blocks = True
        self._room: list[Event] = []

    def setblocking(self, flag: bool) -> None:
        self._blocks = flag

    @property
    def readable(self) -> bool:
        return self._bytes > 0

    def send(self, data: bytes) -> int:
        """Waits for room, or raises BlockingIOError; an event loop that would wait is reported."""
        other = self.other
        if other is None:
            raise BrokenPipeError("the pair is closed")
        while other._bytes + len(data) > _PAIR_HOLDS:
            if not self._blocks:
                raise BlockingIOError("the pair is full")
            if getattr(getcurrent(), "carries", True):
                self._blocked("the event loop blocks on a full socket pair of kazoo's")
                raise BlockingIOError("the pair is full")
            room = self._threads.event()
            other._room.append(room)
            room.wait()
        other._bytes += len(data)
        other.readiness.wake()
        return len(data)

    def recv(self, size: int) -> bytes:
        if not self._bytes:
            raise BlockingIOError("nothing to read")
        taken = min(size, self._bytes)
        self._bytes -= taken
        waiting, self._room = self._room, []
        for event in waiting:
            event.set()
        return b"\0" * taken

    def close(self) -> None:
        self.other = None


class SimulatedKazooHandler:
    """See the module. One a client, made on the host that the client runs on."""

    name = "simulated"
    timeout_exception = KazooTimeoutError

    def __init__(self, threads: Threads, blocked: Callable[[str], None]) -> None:
        """`blocked` is told of an event loop that would block."""
        self._threads = threads
        self._blocked = blocked
        self._loop = asyncio.get_running_loop()
        self.running = False
        self.sleep_func = self._sleep

    def start(self) -> None:
        self.running = True

    def stop(self) -> None:
        self.running = False

    def spawn(self, function: Callable[..., Any], *args: Any, **kwargs: Any) -> RunningThread:
        return self._threads.start(functools.partial(function, *args, **kwargs), "kazoo")

    def dispatch_callback(self, callback: Any) -> None:
        callback.func(*callback.args)

    def event_object(self) -> _Flag:
        return _Flag(self._threads)

    def create_socket_pair(self) -> tuple[_Pipe, _Pipe]:
        one, other = _Pipe(self._threads, self._blocked), _Pipe(self._threads, self._blocked)
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
        transport: Any
        transport, protocol = await self._loop.create_connection(SimulatedSocket, *address)
        # What arrives waits at the socket, however busy the event loop of this process is.
        transport.context = contextvars.Context()
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
