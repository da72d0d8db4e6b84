"""A gRPC server for the simulation: the interface of `grpc.aio.Server`, over the simulated network.

Handlers, interceptors, serializers and contexts are used as gRPC uses them: an interceptor sees every call, a handler
may be a coroutine or an asynchronous generator, `context.abort` raises, a client that goes away or whose deadline is
over cancels the handler, `stop` lets calls under way finish within the grace and then ends them with UNAVAILABLE.

Not simulated: TLS, compression, initial metadata, handlers that are not asynchronous.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any, NoReturn

import grpc

from tests.simulation.grpc_flow import Incoming, Outgoing
from tests.simulation.grpc_frames import Frame, FrameReader, Kind, Metadata, decode_call, trailers_frame

Observe = Callable[[str, str, int, bool, bytes], None]
"""Told of a message: method, peer, the call's number, whether it is sent (or read by its handler), its bytes."""

_KEEPALIVE_TIME_MS, _KEEPALIVE_TIMEOUT_MS = 7_200_000, 20_000
"""Of gRPC, where nothing else is said."""

_EVERY_INTERFACE = {"0.0.0.0", "::", "[::]"}


class _Details(grpc.HandlerCallDetails):
    def __init__(self, method: str, metadata: Metadata) -> None:
        self.method = method
        self.invocation_metadata = metadata


class ServedCall:
    """One call at the server, and the context that its handler gets."""

    def __init__(self, connection: ServerConnection, number: int, payload: bytes) -> None:
        self._connection = connection
        self._number = number
        self.method, self._seconds, self._metadata = decode_call(payload)
        self.incoming = Incoming(number, connection.send)
        self.outgoing = Outgoing(number, connection.send)
        self._code: grpc.StatusCode | None = None
        self._details = ""
        self._trailing: Metadata = ()
        self._serializer: Callable[[Any], bytes] | None = None
        self._over = False
        self._callbacks: list[Callable[[Any], None]] = []
        self.task: asyncio.Task[None] | None = None

    # --- what handlers use --------------------------------------------------------------------------------------

    def peer(self) -> str:
        return self._connection.peer

    def code(self) -> grpc.StatusCode | None:
        return self._code

    def details(self) -> str:
        return self._details

    def set_code(self, code: grpc.StatusCode) -> None:
        self._code = code

    def set_details(self, details: str) -> None:
        self._details = details

    def set_trailing_metadata(self, metadata: Metadata) -> None:
        self._trailing = tuple(metadata)

    def trailing_metadata(self) -> Metadata:
        return self._trailing

    def invocation_metadata(self) -> Metadata:
        return self._metadata

    def cancelled(self) -> bool:
        return self.task is not None and self.task.cancelled()

    def done(self) -> bool:
        return self._over

    def time_remaining(self) -> float | None:
        return self._seconds

    def add_done_callback(self, callback: Callable[[Any], None]) -> None:
        self._callbacks.append(callback)

    async def abort(self, code: grpc.StatusCode, details: str = "", trailing_metadata: Metadata = ()) -> NoReturn:
        self._code, self._details = code, details
        if trailing_metadata:
            self._trailing = tuple(trailing_metadata)
        raise grpc.aio.AbortError("Locally aborted.")

    async def write(self, message: Any) -> None:
        assert self._serializer is not None
        data = self._serializer(message)
        self._observe(True, data)
        await self.outgoing.put(data)

    # --- running ------------------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Carries the call out and sends its trailers."""
        try:
            handler = await self._connection.server.handler_of(_Details(self.method, self._metadata))
            if handler is None:
                self._code, self._details = grpc.StatusCode.UNIMPLEMENTED, "Method not found!"
            else:
                await self._within_deadline(handler)
        except grpc.aio.AbortError:
            pass
        except asyncio.CancelledError:
            self.finish(grpc.StatusCode.CANCELLED, "the call was cancelled")
            raise
        except TimeoutError:
            self._code, self._details = grpc.StatusCode.DEADLINE_EXCEEDED, "Deadline Exceeded"
        except Exception as error:
            self._code, self._details = grpc.StatusCode.UNKNOWN, f"Unexpected {type(error)}: {error}"
        self.finish(self._code or grpc.StatusCode.OK, self._details)

    def finish(self, code: grpc.StatusCode, details: str) -> None:
        if self._over:
            return
        self._over = True
        self._connection.send(trailers_frame(self._number, code, details, self._trailing))
        self._connection.forget(self._number)
        for callback in self._callbacks:
            callback(self)

    async def _within_deadline(self, handler: Any) -> None:
        work = asyncio.ensure_future(self._handle(handler))
        try:
            done, _ = await asyncio.wait([work], timeout=self._seconds)
        except asyncio.CancelledError:
            work.cancel()
            await asyncio.gather(work, return_exceptions=True)
            raise
        if not done:
            work.cancel()
            await asyncio.gather(work, return_exceptions=True)
            raise TimeoutError
        work.result()

    async def _handle(self, handler: Any) -> None:
        self._serializer = handler.response_serializer or bytes
        read = handler.request_deserializer or bytes
        request: Any = self._requests(read)
        if not handler.request_streaming:
            message = await self.incoming.next()
            if message is None:
                return
            self._observe(False, message)
            request = read(message)
        if handler.response_streaming:
            inner = handler.stream_stream if handler.request_streaming else handler.unary_stream
            responses = inner(request, self)
            if inspect.isawaitable(responses):
                await responses
                return
            async for response in responses:
                await self.write(response)
            return
        inner = handler.stream_unary if handler.request_streaming else handler.unary_unary
        await self.write(await inner(request, self))

    async def _requests(self, read: Callable[[bytes], Any]) -> AsyncIterator[Any]:
        while (message := await self.incoming.next()) is not None:
            self._observe(False, message)
            yield read(message)

    def _observe(self, sent: bool, message: bytes) -> None:
        if self._connection.server.observe is not None:
            self._connection.server.observe(self.method, self.peer(), self._number, sent, message)


class ServerConnection(asyncio.Protocol):
    """One client's connection."""

    def __init__(self, server: SimulatedGrpcServer) -> None:
        self.server = server
        self.peer = ""
        self._frames = FrameReader()
        self._calls: dict[int, ServedCall] = {}
        self._transport: asyncio.Transport | None = None
        self._loop = asyncio.get_running_loop()
        self._heard = self._loop.time()
        self._watchdog: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        self._watch()
        host, port = transport.get_extra_info("peername")[:2]
        self.peer = f"ipv4:{host}:{port}"
        self.server.connections[self] = None

    def data_received(self, data: bytes) -> None:
        self._heard = self._loop.time()
        for frame in self._frames.feed(data):
            self._take(frame)

    def _watch(self) -> None:
        """Asks a client that is silent whether it is there, and gives it up where no answer comes."""
        ask_after, give_up_after = self.server.keepalive
        silence = self._loop.time() - self._heard
        if silence >= ask_after + give_up_after and self._transport is not None:
            self._transport.abort()
            return
        if silence >= ask_after:
            self.send(Frame(Kind.PING, 0))
        pause = (give_up_after if silence >= ask_after else 0.0) + ask_after - silence
        self._watchdog = self._loop.call_later(max(pause, 0.01), self._watch)

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        if self._watchdog is not None:
            self._watchdog.cancel()
        self.server.connections.pop(self, None)
        for call in list(self._calls.values()):
            self._cancel(call)

    @property
    def calls(self) -> list[ServedCall]:
        return list(self._calls.values())

    def send(self, frame: Frame) -> None:
        if self._transport is not None:
            self._transport.write(frame.encode())

    def forget(self, number: int) -> None:
        self._calls.pop(number, None)

    def close(self) -> None:
        if self._transport is not None:
            self._transport.close()

    def _take(self, frame: Frame) -> None:
        if frame.kind is Kind.PING:
            self.send(Frame(Kind.PONG, 0))
            return
        if frame.kind is Kind.CALL:
            self._begin(frame)
            return
        call = self._calls.get(frame.call)
        if call is None:
            return
        if frame.kind is Kind.MESSAGE:
            call.incoming.add(frame.payload)
        elif frame.kind is Kind.HALF_CLOSE:
            call.incoming.end()
        elif frame.kind is Kind.TAKEN:
            call.outgoing.taken(int.from_bytes(frame.payload, "big"))
        elif frame.kind is Kind.CANCEL:
            self._cancel(call)

    def _begin(self, frame: Frame) -> None:
        call = ServedCall(self, frame.call, frame.payload)
        if not self.server.serving:
            call.finish(grpc.StatusCode.UNAVAILABLE, "Server shutdown")
            return
        self._calls[frame.call] = call
        call.task = asyncio.get_running_loop().create_task(call.run())
        self.server.tasks[call.task] = None
        call.task.add_done_callback(lambda task: self.server.tasks.pop(task, None))

    def _cancel(self, call: ServedCall) -> None:
        call.incoming.end()
        if call.task is not None:
            call.task.cancel()


class SimulatedGrpcServer:
    """See the module."""

    def __init__(
        self,
        interceptors: Sequence[grpc.aio.ServerInterceptor] = (),
        options: Any = None,
        observe: Observe | None = None,
    ) -> None:
        """Of the options, those of keepalive count: a client that is silent for longer is given up."""
        self._interceptors = interceptors
        self.observe = observe
        given = dict(options or ())
        self.keepalive = (
            given.get("grpc.keepalive_time_ms", _KEEPALIVE_TIME_MS) / 1000,
            given.get("grpc.keepalive_timeout_ms", _KEEPALIVE_TIMEOUT_MS) / 1000,
        )
        """Seconds of silence after which a client is asked, and then given up."""
        self._handlers: list[grpc.GenericRpcHandler] = []
        self._addresses: list[tuple[str, int]] = []
        self._listeners: list[asyncio.AbstractServer] = []
        self.connections: dict[ServerConnection, None] = {}
        self.tasks: dict[asyncio.Task[None], None] = {}
        self.serving = False

    def add_generic_rpc_handlers(self, handlers: Sequence[grpc.GenericRpcHandler]) -> None:
        self._handlers.extend(handlers)

    def add_registered_method_handlers(self, service: str, handlers: Any) -> None:
        """The generic handlers do for these too."""

    def add_insecure_port(self, address: str) -> int:
        host, _, port = address.rpartition(":")
        self._addresses.append((host, int(port)))
        return int(port)

    async def start(self) -> None:
        loop = asyncio.get_running_loop()
        self.serving = True
        for host, port in self._addresses:
            bound = None if host in _EVERY_INTERFACE else host
            self._listeners.append(await loop.create_server(lambda: ServerConnection(self), bound, port))

    async def stop(self, grace: float | None) -> None:
        self.serving = False
        for listener in self._listeners:
            listener.close()
        for connection in list(self.connections):
            connection.send(Frame(Kind.GO_AWAY, 0))
        if self.tasks and grace:
            await asyncio.wait(list(self.tasks), timeout=grace)
        for connection in list(self.connections):
            for call in connection.calls:
                call.finish(grpc.StatusCode.UNAVAILABLE, "Cancelling all calls")
        tasks = list(self.tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for connection in list(self.connections):
            connection.close()

    async def handler_of(self, details: grpc.HandlerCallDetails) -> Any:
        """What serves a method, as the interceptors leave it; None: nobody."""

        async def registered(wanted: grpc.HandlerCallDetails) -> Any:
            return next((found for each in self._handlers if (found := each.service(wanted)) is not None), None)

        continuation: Any = registered
        for interceptor in reversed(self._interceptors):
            continuation = _behind(interceptor, continuation)
        return await continuation(details)


def _behind(interceptor: grpc.aio.ServerInterceptor, continuation: Any) -> Any:
    async def intercept(details: grpc.HandlerCallDetails) -> Any:
        return await interceptor.intercept_service(continuation, details)

    return intercept
