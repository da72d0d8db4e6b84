"""A gRPC channel for the simulation: the interface of `grpc.aio.Channel`, over the simulated network.

States, as gRPC has them: IDLE → CONNECTING → READY → IDLE (connection lost) …; CONNECTING → TRANSIENT_FAILURE (calls
fail at once) → IDLE after a pause that grows; SHUTDOWN. Calls of a connection that is lost end with UNAVAILABLE,
whatever the server did with them. While calls are under way a connection on which nothing arrives is asked, and given
up when it stays silent: as the client's keepalive settings have it.

Not simulated: TLS, compression, interceptors, `wait_for_ready`, transparent retries.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Generator
from typing import Any

import grpc
from grpc import ChannelConnectivity

from tests.simulation.grpc_flow import Incoming, Outgoing
from tests.simulation.grpc_frames import Frame, FrameReader, Kind, Metadata, call_frame, decode_trailers

_FIRST_PAUSE, _LONGEST_PAUSE = 0.1, 1.0
_CONNECT_SECONDS = 5.0
_ASK_AFTER, _GIVE_UP_AFTER = 0.3, 0.7
_NO_CONNECTION = "failed to connect to all addresses; last error: "


class _Connection(asyncio.Protocol):
    """One connection to the server."""

    def __init__(self, lost: Callable[[_Connection, bool], None]) -> None:
        """`lost` is told when no new call can begin here, and whether there are still calls."""
        self._lost = lost
        self._frames = FrameReader()
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport | None = None
        self._heard = self._loop.time()
        self._watchdog: asyncio.TimerHandle | None = None
        self._numbers = 0
        self._calls: dict[int, Call] = {}
        self.usable = True

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        self._heard = self._loop.time()
        for frame in self._frames.feed(data):
            self._take(frame)

    def connection_lost(self, exc: Exception | None) -> None:
        self.end("Socket closed" if exc is None else f"recvmsg:{exc}")

    def begin(self, call: Call) -> int:
        self._numbers += 1
        self._calls[self._numbers] = call
        if self._watchdog is None:
            self._heard = self._loop.time()
            self._watchdog = self._loop.call_later(_ASK_AFTER, self._watch)
        return self._numbers

    def forget(self, number: int) -> None:
        self._calls.pop(number, None)
        if not self.usable and not self._calls:
            self.end("drained")

    def send(self, frame: Frame) -> None:
        if self._transport is not None:
            self._transport.write(frame.encode())

    def end(self, reason: str) -> None:
        """Closes it; every call on it fails."""
        transport, self._transport = self._transport, None
        if self._watchdog is not None:
            self._watchdog.cancel()
        if transport is not None:
            transport.abort()
        self.usable = False
        calls, self._calls = list(self._calls.values()), {}
        for call in calls:
            call.finish(grpc.StatusCode.UNAVAILABLE, reason)
        self._lost(self, False)

    def _watch(self) -> None:
        self._watchdog = None
        silence = self._loop.time() - self._heard
        if not self._calls:
            return
        if silence >= _GIVE_UP_AFTER:
            self.end("keepalive watchdog timeout")
            return
        if silence >= _ASK_AFTER:
            self.send(Frame(Kind.PING, 0))
        pause = (_GIVE_UP_AFTER if silence >= _ASK_AFTER else _ASK_AFTER) - silence
        self._watchdog = self._loop.call_later(max(pause, 0.01), self._watch)

    def _take(self, frame: Frame) -> None:
        if frame.kind is Kind.GO_AWAY:
            self.usable = False
            if self._calls:
                self._lost(self, True)
            else:
                self.end("the server goes away")
            return
        if frame.kind is Kind.PING:
            self.send(Frame(Kind.PONG, 0))
            return
        call = self._calls.get(frame.call)
        if call is None:
            return
        if frame.kind is Kind.MESSAGE:
            call.incoming.add(frame.payload)
        elif frame.kind is Kind.TAKEN:
            call.outgoing.taken(int.from_bytes(frame.payload, "big"))
        elif frame.kind is Kind.TRAILERS:
            call.finish(*decode_trailers(frame.payload))


class Call:
    """One call at the client: awaitable where the answer is one message, iterable where it is a stream."""

    def __init__(
        self, channel: SimulatedChannel, method: _Method, request: Any, timeout: float | None, sent: Metadata
    ) -> None:
        self._channel = channel
        self._method = method
        self._sent = sent
        self._loop = asyncio.get_running_loop()
        self._timeout = timeout
        self._connection: _Connection | None = None
        self._number = 0
        self.incoming = Incoming(0, self._send)
        self.outgoing = Outgoing(0, self._send)
        self._status: tuple[grpc.StatusCode, str, Metadata] | None = None
        self._locally_cancelled = False
        self._task = self._loop.create_task(self._start(request))
        self._task.add_done_callback(_nobody_waits)
        self._timer = None if timeout is None else self._loop.call_later(timeout, self._too_late)

    # --- what callers use ---------------------------------------------------------------------------------------

    def __await__(self) -> Generator[Any, None, Any]:
        return self._answer().__await__()

    def __aiter__(self) -> AsyncIterator[Any]:
        return self._answers()

    async def trailing_metadata(self) -> grpc.aio.Metadata:
        """Of a call that has ended."""
        assert self._status is not None
        return grpc.aio.Metadata(*self._status[2])

    def cancel(self) -> bool:
        if self._status is not None:
            return False
        self._locally_cancelled = True
        self._send(Frame(Kind.CANCEL, self._number))
        self.finish(grpc.StatusCode.CANCELLED, "Locally cancelled by application!")
        return True

    def cancelled(self) -> bool:
        return self._status is not None and self._status[0] is grpc.StatusCode.CANCELLED

    def done(self) -> bool:
        return self._status is not None

    async def _answer(self) -> Any:
        message = await self._read()
        if message is None:
            self._raise()
            raise AssertionError("the call has ended well without an answer")
        while self._status is None and await self._read() is not None:
            continue
        self._raise()
        return self._method.read(message)

    async def _answers(self) -> AsyncIterator[Any]:
        while (message := await self._read()) is not None:
            yield self._method.read(message)
        self._raise()

    async def _read(self) -> bytes | None:
        try:
            return await self.incoming.next()
        except asyncio.CancelledError:
            self.cancel()
            raise

    def _raise(self) -> None:
        if self._locally_cancelled:
            raise asyncio.CancelledError
        assert self._status is not None
        code, details, metadata = self._status
        if code is not grpc.StatusCode.OK:
            nothing = grpc.aio.Metadata()
            raise grpc.aio.AioRpcError(code, nothing, grpc.aio.Metadata(*metadata), details)

    # --- running ------------------------------------------------------------------------------------------------

    def finish(self, code: grpc.StatusCode, details: str, metadata: Metadata = ()) -> None:
        if self._status is not None:
            return
        self._status = (code, details, metadata)
        self._channel.calls.pop(self, None)
        if self._timer is not None:
            self._timer.cancel()
        self._task.cancel()
        if self._connection is not None:
            self._connection.forget(self._number)
        self.incoming.end()

    def _too_late(self) -> None:
        self._send(Frame(Kind.CANCEL, self._number))
        self.finish(grpc.StatusCode.DEADLINE_EXCEEDED, "Deadline Exceeded")

    def _send(self, frame: Frame) -> None:
        if self._connection is not None:
            self._connection.send(frame._replace(call=self._number))

    async def _start(self, request: Any) -> None:
        began = self._loop.time()
        connection = await self._channel.ready()
        if isinstance(connection, str):
            self.finish(grpc.StatusCode.UNAVAILABLE, _NO_CONNECTION + connection)
            return
        self._connection = connection
        self._number = connection.begin(self)
        left = None if self._timeout is None else max(0.0, self._timeout - (self._loop.time() - began))
        self._send(call_frame(self._number, self._method.name, left, self._sent))
        if self._method.request_streaming:
            async for each in request:
                await self.outgoing.put(self._method.write(each))
        else:
            await self.outgoing.put(self._method.write(request))
        self._send(Frame(Kind.HALF_CLOSE, self._number))


class _Method:
    """One method of a stub."""

    def __init__(
        self,
        channel: SimulatedChannel,
        name: str,
        request_streaming: bool,
        write: Callable[[Any], bytes] | None,
        read: Callable[[bytes], Any] | None,
    ) -> None:
        self._channel = channel
        self.name = name
        self.request_streaming = request_streaming
        self.write = write or bytes
        self.read = read or bytes

    def __call__(
        self, request: Any, timeout: float | None = None, metadata: Metadata | None = None, **_ignored: Any
    ) -> Call:
        return self._channel.call(self, request, timeout, metadata or ())


class SimulatedChannel:
    """See the module. Belongs to the host on which it is made."""

    def __init__(self, address: str) -> None:
        host, _, port = address.rpartition(":")
        self._host, self._port = host.strip("[]"), int(port)
        self._loop = asyncio.get_running_loop()
        self._state = ChannelConnectivity.IDLE
        self._changed = asyncio.Event()
        self._connection: _Connection | None = None
        self._old: list[_Connection] = []
        self._connecting: asyncio.Task[None] | None = None
        self._pause = _FIRST_PAUSE
        self._resting: asyncio.TimerHandle | None = None
        self._error = ""
        self.calls: dict[Call, None] = {}

    # --- the interface of a channel -----------------------------------------------------------------------------

    def unary_unary(self, method: str, request_serializer: Any, response_deserializer: Any, **_: Any) -> _Method:
        return _Method(self, method, False, request_serializer, response_deserializer)

    unary_stream = unary_unary

    def stream_stream(self, method: str, request_serializer: Any, response_deserializer: Any, **_: Any) -> _Method:
        return _Method(self, method, True, request_serializer, response_deserializer)

    stream_unary = stream_stream

    def get_state(self, try_to_connect: bool = False) -> ChannelConnectivity:
        if try_to_connect:
            self._connect()
        return self._state

    async def wait_for_state_change(self, last_observed_state: ChannelConnectivity) -> None:
        while self._state is last_observed_state:
            await self._changed.wait()

    async def close(self, grace: float | None = None) -> None:
        self._become(ChannelConnectivity.SHUTDOWN)
        if self._connecting is not None:
            self._connecting.cancel()
        if self._resting is not None:
            self._resting.cancel()
        for call in list(self.calls):
            call.cancel()
        for connection in (self._connection, *self._old):
            if connection is not None:
                connection.end("Channel closed!")

    # --- for its calls ------------------------------------------------------------------------------------------

    def call(self, method: _Method, request: Any, timeout: float | None, metadata: Metadata) -> Call:
        if self._state is ChannelConnectivity.SHUTDOWN:
            raise grpc.aio.UsageError("Channel is closed.")
        call = Call(self, method, request, timeout, metadata)
        self.calls[call] = None
        return call

    async def ready(self) -> _Connection | str:
        """A connection, or why there is none."""
        while True:
            self._connect()
            if self._connection is not None:
                return self._connection
            if self._state in (ChannelConnectivity.TRANSIENT_FAILURE, ChannelConnectivity.SHUTDOWN):
                return self._error or "the channel is closed"
            await self.wait_for_state_change(self._state)

    # --- connecting ---------------------------------------------------------------------------------------------

    def _become(self, state: ChannelConnectivity) -> None:
        if self._state is ChannelConnectivity.SHUTDOWN:
            return
        self._state = state
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()

    def _connect(self) -> None:
        if self._state is ChannelConnectivity.IDLE and self._connecting is None:
            self._become(ChannelConnectivity.CONNECTING)
            self._connecting = self._loop.create_task(self._try())

    async def _try(self) -> None:
        try:
            async with asyncio.timeout(_CONNECT_SECONDS):
                _, connection = await self._loop.create_connection(
                    lambda: _Connection(self._lost), self._host, self._port
                )
        except OSError as error:
            self._error = f"{self._host}:{self._port}: {error}"
            self._become(ChannelConnectivity.TRANSIENT_FAILURE)
            self._resting = self._loop.call_later(self._pause, self._rested)
            self._pause = min(self._pause * 1.6, _LONGEST_PAUSE)
            return
        finally:
            self._connecting = None
        self._pause = _FIRST_PAUSE
        self._connection = connection
        self._become(ChannelConnectivity.READY)

    def _rested(self) -> None:
        """gRPC tries again by itself after a failure."""
        self._become(ChannelConnectivity.IDLE)
        self._connect()

    def _lost(self, connection: _Connection, has_calls: bool) -> None:
        if connection is self._connection:
            self._connection = None
            self._become(ChannelConnectivity.IDLE)
        if connection in self._old:
            self._old.remove(connection)
        if has_calls:
            self._old.append(connection)


def open_simulated(address: str, credentials: grpc.ChannelCredentials | None) -> Any:
    """In place of `grpc.aio.insecure_channel`."""
    return SimulatedChannel(address)


def _nobody_waits(task: asyncio.Task[None]) -> None:
    """What stops sending a call's requests ends the call, too."""
    if not task.cancelled() and (error := task.exception()) is not None:
        asyncio.get_running_loop().call_exception_handler({"message": "a call's requests failed", "exception": error})
