"""The two ends of a simulated connection, and what is between them: pieces, windows, buffers, ends.

A pipe is one direction. It delivers in the process that receives, so that one which is paused receives nothing, and
asks the network at that moment whether anything gets through. Both kinds of protocol are served, `BufferedProtocol` as
asyncio does it.

Not its job: who is connected with whom, faults and chance (`network`).
"""

from __future__ import annotations

import asyncio
import errno
import os
from collections import deque
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, cast

from tests.simulation.loop import Process

if TYPE_CHECKING:
    from tests.simulation.network import Network

RETRY_SECONDS = 0.2
FIN = b"FIN"
RST = b"RST"


class Pipe:
    """One direction of a connection."""

    def __init__(self, network: Network, source: Transport, target: Transport) -> None:
        self._network = network
        self.source = source
        self.target = target
        self.queue: deque[tuple[float, bytes]] = deque()
        self.in_flight = 0
        self._last = 0.0
        self._timer: asyncio.TimerHandle | None = None
        self._blocked_since: float | None = None

    def send(self, data: bytes) -> None:
        """Sends data, or the marks of an end."""
        when = max(self._last, self._network.arrival())
        self._last = when
        self.queue.append((when, data))
        if data is not FIN and data is not RST:
            self.in_flight += len(data)
        if self._timer is None:
            self._at(when)

    def drop(self) -> None:
        self.queue.clear()
        self.in_flight = 0

    def kick(self) -> None:
        """Something has changed that may let it through."""
        if self._timer is None and self.queue:
            self._at(self._network.arrival())

    def target_is_gone(self) -> None:
        """What is under way now reaches the host only."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self.kick()

    def _at(self, when: float) -> None:
        target, loop = self.target, self._network.loop
        context = loop.outside.context if target.vanished else target.context
        self._timer = loop.call_at_exact(when, self._deliver, context=context)

    def _deliver(self) -> None:
        self._timer = None
        network, queue, target = self._network, self.queue, self.target
        now = network.loop.time()
        if not queue:
            return
        if queue[0][0] > now:
            self._at(queue[0][0])
            return
        if target.vanished or target.closed:
            self._deliver_to_nobody()
            return
        blocked = network.blocked_until(self.source.host, target.host)
        if blocked is not None:
            self._wait(now, blocked)
            return
        self._blocked_since = None
        if not target.reads:
            return  # it kicks
        self._hand_over(now)
        if queue and self._timer is None and target.reads:
            self._at(max(queue[0][0], now))

    def _hand_over(self, now: float) -> None:
        network, queue, target = self._network, self.queue, self.target
        parts = []
        while queue and queue[0][0] <= now and queue[0][1] is not FIN and queue[0][1] is not RST:
            parts.append(queue.popleft()[1])
        if not parts:
            target.ended(queue.popleft()[1] is RST)
            return
        data = parts[0] if len(parts) == 1 else b"".join(parts)
        if network.splits(len(data)):
            cut = 1 + int(network.rng.random() * (len(data) - 1))
            later = network.arrival()
            queue.appendleft((later, data[cut:]))
            self._last = max(self._last, later)
            data = data[:cut]
        if network.transcript.keeps:
            network.transcript.note(target.host, f"gets {len(data)} bytes from {self.source.host}")
        rest = target.take(data)
        self.in_flight -= len(data) - len(rest)
        if rest:
            queue.appendleft((now, rest))
        self.source.has_room()

    def _deliver_to_nobody(self) -> None:
        """The other end is gone: its host says so, if it is there to say it."""
        network = self._network
        host = network.hosts[self.target.host]
        if not host.up or network.blocked_until(self.source.host, host.name) is not None:
            self._wait(network.loop.time(), network.loop.time() + RETRY_SECONDS)
            return
        had_data = any(data is not RST and data is not FIN for _, data in self.queue)
        self.drop()
        if had_data:
            self.source.peer_is_gone()

    def _wait(self, now: float, until: float) -> None:
        if self._blocked_since is None:
            self._blocked_since = now
        if now - self._blocked_since >= self._network.settings.give_up_after:
            self.drop()
            self.source.fail(TimeoutError(errno.ETIMEDOUT, os.strerror(errno.ETIMEDOUT)))
            return
        self._at(max(until, now + RETRY_SECONDS))


class Transport(asyncio.Transport):
    """One end of a connection."""

    def __init__(self, network: Network, process: Process, own: tuple[str, int], peer: tuple[str, int]) -> None:
        super().__init__()
        self._network = network
        self.process = process
        self.host = process.host
        self.context = process.context
        self.peer = peer
        self._extra_info = {"peername": peer, "sockname": own}
        self._protocol: asyncio.BaseProtocol | None = None
        self.out: Pipe
        self.into: Pipe
        self._buffer: deque[bytes] = deque()
        self._buffered = 0
        self._high, self._low = 64 * 1024, 16 * 1024
        self._paused_writing = False
        self._paused_reading = False
        self._closing = False
        self._eof_sent = False
        self.closed = False
        self.vanished = False
        """Its process or its host is gone."""

    # asyncio.Transport

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return self._extra_info.get(name, default)

    def is_closing(self) -> bool:
        return self._closing

    def set_protocol(self, protocol: asyncio.BaseProtocol) -> None:
        self._protocol = protocol

    def get_protocol(self) -> asyncio.BaseProtocol:
        return cast("asyncio.BaseProtocol", self._protocol)

    def is_reading(self) -> bool:
        return not self._paused_reading and not self._closing

    def pause_reading(self) -> None:
        self._paused_reading = True

    def resume_reading(self) -> None:
        if self._paused_reading:
            self._paused_reading = False
            self.into.kick()

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        self._high = 64 * 1024 if high is None else high
        self._low = self._high // 4 if low is None else low
        self._check_full()

    def get_write_buffer_limits(self) -> tuple[int, int]:
        return self._low, self._high

    def get_write_buffer_size(self) -> int:
        return self._buffered

    def write(self, data: bytes | bytearray | memoryview) -> None:
        if self._closing or self.closed or not data:
            return
        data = bytes(data)
        if not self._buffer and self.out.in_flight < self._network.settings.window:
            self.out.send(data)
            return
        self._buffer.append(data)
        self._buffered += len(data)
        self._check_full()

    def writelines(self, parts: Iterable[Any]) -> None:
        self.write(b"".join(parts))

    def write_eof(self) -> None:
        self._eof_sent = True
        if not self._buffer:
            self.out.send(FIN)

    def can_write_eof(self) -> bool:
        return True

    def close(self) -> None:
        if self._closing:
            return
        self._closing = True
        if not self._buffer:
            self._finish()

    def abort(self) -> None:
        self.fail(None)

    # The network's side

    @property
    def reads(self) -> bool:
        return self._protocol is not None and not self._paused_reading

    def attach(self, protocol: asyncio.BaseProtocol) -> None:
        """The protocol takes over."""
        if self.closed or self.vanished:
            return
        self._protocol = protocol
        protocol.connection_made(self)
        self.into.kick()

    def take(self, data: bytes) -> bytes:
        """Hands data to the protocol; what it does not take now."""
        protocol = self._protocol
        if self._closing:
            return b""
        try:
            if not isinstance(protocol, asyncio.BufferedProtocol):
                cast("asyncio.Protocol", protocol).data_received(data)
                return b""
            rest = memoryview(data)
            while rest and not self._closing and not self._paused_reading:
                room = memoryview(cast("bytearray", protocol.get_buffer(-1)))
                count = min(len(room), len(rest))
                room[:count] = rest[:count]
                rest = rest[count:]
                protocol.buffer_updated(count)
            return b"" if self._closing else bytes(rest)
        except Exception as error:
            self._network.loop.call_exception_handler({"message": "a protocol failed", "exception": error})
            self.fail(error)
            return b""

    def ended(self, reset: bool) -> None:
        """The peer has ended the connection."""
        if reset:
            self.fail(ConnectionResetError(errno.ECONNRESET, os.strerror(errno.ECONNRESET)), tell=False)
        elif not self._closing and not cast("asyncio.Protocol", self._protocol).eof_received():
            self.close()

    def peer_is_gone(self) -> None:
        """What was sent came back with RST."""
        if not self.closed and not self.vanished:
            reset = ConnectionResetError(errno.ECONNRESET, os.strerror(errno.ECONNRESET))
            self._network.loop.call_at_exact(self._network.arrival(), self.fail, reset, context=self.context)

    def has_room(self) -> None:
        """The peer has read something."""
        if self._buffer and not self.closed:
            self._network.loop.call_soon(self._drain, context=self.context)

    def fail(self, error: Exception | None, *, tell: bool = True) -> None:
        """Ends it at once, with RST to the peer unless that is where it came from."""
        if self.closed or self.vanished:
            return
        self._closing = self.closed = True
        self._buffer.clear()
        self._buffered = 0
        if tell:
            self.out.drop()
            self.out.send(RST)
        self._network.forget(self)
        self._network.loop.call_soon(self._tell_lost, error, context=self.context)

    def vanish(self, last: bytes | None) -> None:
        """Its process is gone: its host sends a last word, or None says that the host is silent too."""
        if self.vanished:
            return
        self.vanished = True
        self._network.forget(self)
        if self.closed:
            return
        if last is not None:
            self.out.send(last)
        self.into.target_is_gone()

    def _drain(self) -> None:
        while self._buffer and self.out.in_flight < self._network.settings.window:
            data = self._buffer.popleft()
            self._buffered -= len(data)
            self.out.send(data)
        if self._paused_writing and self._buffered <= self._low:
            self._paused_writing = False
            cast("asyncio.Protocol", self._protocol).resume_writing()
        if not self._buffer and self._closing:
            self._finish()
        elif not self._buffer and self._eof_sent:
            self.out.send(FIN)

    def _check_full(self) -> None:
        if self._buffered > self._high and not self._paused_writing and self._protocol is not None:
            self._paused_writing = True
            self._protocol.pause_writing()

    def _finish(self) -> None:
        if self.closed:
            return
        self.closed = True
        if not self._eof_sent:
            self.out.send(FIN)
        self._network.forget(self)
        self._network.loop.call_soon(self._tell_lost, None, context=self.context)
        self.into.kick()

    def _tell_lost(self, error: Exception | None) -> None:
        if self._network.transcript.keeps:
            self._network.transcript.note(self.host, f"connection with {self.peer[0]} ends: {error or 'closed'}")
        if self._protocol is not None:
            self._protocol.connection_lost(error)
