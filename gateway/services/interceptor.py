"""Runs around every call of a gateway, whatever its method: guard, metrics, stream limits, encoded responses.

In a gateway with security the guard decides first (`access`), in one step without its own coroutine if nothing has to
wait. The response to a unary call names the gateway process that sent it (`instance`).

A handler may return a message, or one already encoded (`bytes`), which is sent unchanged. The number of streams is
limited per client, per principal and in total, since each occupies memory while it is open. A client is one connection
(address and port), so several clients on one machine count separately. A call over a limit is rejected with
RESOURCE_EXHAUSTED before the handler runs.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Hashable, Iterator
from contextlib import aclosing, contextmanager
from types import TracebackType
from typing import Any

import grpc

from bookgate.gateway.limits import GatewayLimits
from bookgate.gateway.metrics import GatewayMetrics, MethodCounts
from bookgate.gateway.services.access import Guard, MethodGate
from bookgate.gateway.services.caller import Caller, OverLimitException
from bookgate.gateway.services.instance import Instance
from bookgate.gateway.services.status import SUCCESS, Context, abort_with, outcome_of
from bookgate.protos.bookkeeper.common.v1.status_pb2 import StatusCode

Handler = Any
_STREAM_RETRY_SECONDS = 1.0


class _Call:
    """Records the outcome of one call for the metrics, and for the guard that admitted it."""

    __slots__ = ("_began", "_context", "_counts", "_gate", "_request", "code")

    def __init__(self, counts: MethodCounts, context: Context) -> None:
        self._counts = counts
        self._context = context
        self._gate: MethodGate | None = None
        self._request: Any = None
        self.code = SUCCESS

    def let_in(self, gate: MethodGate, request: Any) -> None:
        """Records the gate that admitted the call; it is told when the call ends."""
        self._gate, self._request = gate, request

    def __enter__(self) -> _Call:
        self._counts.in_flight += 1
        self._began = time.perf_counter()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is not None:
            self.code = "CANCELLED" if isinstance(error, asyncio.CancelledError) else _status_of(self._context)
        took = time.perf_counter() - self._began
        self._counts.in_flight -= 1
        self._counts.done(self.code, took)
        if self._gate is not None:
            self._gate.leave(self._request, self.code if error is None else outcome_of(error, self.code), took)


class CallInterceptor(grpc.aio.ServerInterceptor):
    """The interceptor; see the module. One per gateway, and the last one before the handlers."""

    def __init__(
        self, metrics: GatewayMetrics, limits: GatewayLimits, instance: Instance, guard: Guard | None = None
    ) -> None:
        """`guard` is None in a gateway without security."""
        self._metrics = metrics
        self._limits = limits
        self._instance = instance
        self._guard = guard
        self._streams: Counter[Hashable] = Counter()
        """Open streams by client, and by principal if known."""
        self._wrapped: dict[str, Handler] = {}
        self.stream_count = 0

    async def intercept_service(self, continuation: Callable[[Any], Awaitable[Any]], handler_call_details: Any) -> Any:
        if self._guard is not None:
            self._guard.saw(handler_call_details.invocation_metadata or ())
        method = handler_call_details.method
        known = self._wrapped.get(method)
        if known is not None:
            return known
        handler = await continuation(handler_call_details)
        if handler is None:
            return None
        wrapped = self._wrapped[method] = self._wrap(method, handler)
        return wrapped

    def _wrap(self, method: str, handler: Handler) -> Handler:
        counts = self._metrics.method(method.rpartition("/")[2])
        gate = None if self._guard is None else self._guard.gate(method)
        serializer = _serializer(handler.response_serializer)
        if handler.response_streaming:
            inner = handler.stream_stream if handler.request_streaming else handler.unary_stream
            make = (
                grpc.stream_stream_rpc_method_handler
                if handler.request_streaming
                else grpc.unary_stream_rpc_method_handler
            )
            stream = self._streaming(counts, gate, inner, unary_request=not handler.request_streaming)
            return make(stream, handler.request_deserializer, serializer)
        assert not handler.request_streaming, "no RPC of a gateway has this form"
        return grpc.unary_unary_rpc_method_handler(
            self._unary(counts, gate, handler.unary_unary), handler.request_deserializer, serializer
        )

    def _unary(self, counts: MethodCounts, gate: MethodGate | None, inner: Any) -> Any:
        async def call(request: Any, context: Context) -> Any:
            with _Call(counts, context) as outcome:
                self._instance.tell(context)
                if gate is not None:
                    if (waiting := gate.enter(request, context)) is not None:
                        await waiting
                    outcome.let_in(gate, request)
                response = inner(request, context)
                if asyncio.iscoroutine(response):
                    response = await response
                outcome.code = _code_of(response)
                return response

        return call

    def _streaming(self, counts: MethodCounts, gate: MethodGate | None, inner: Any, *, unary_request: bool) -> Any:
        async def call(request: Any, context: Context) -> None:
            with _Call(counts, context) as outcome:
                who = None
                if gate is not None:
                    who = await gate.enter_stream(request if unary_request else None, context)
                if (problem := self._over_limit(context.peer(), who)) is not None:
                    await abort_with(context, "stream", OverLimitException(problem, _STREAM_RETRY_SECONDS))
                with self._stream(context.peer(), who):
                    responses = inner(request, context)
                    if not hasattr(responses, "__aiter__"):
                        await responses
                        return
                    async with aclosing(responses):
                        async for response in responses:
                            outcome.code = _code_of(response)
                            await context.write(response)

        return call

    @contextmanager
    def _stream(self, client: str, who: Caller | None) -> Iterator[None]:
        keys: list[Hashable] = [client] if who is None else [client, who.principal]
        self._streams.update(keys)
        self.stream_count += 1
        try:
            yield
        finally:
            self.stream_count -= 1
            self._streams.subtract(keys)
            for key in keys:
                if not self._streams[key]:
                    del self._streams[key]

    def _over_limit(self, client: str, who: Caller | None) -> str | None:
        most = None if who is None else who.most("streams")
        if who is not None and most is not None and self._streams[who.principal] >= most:
            return f"{who.principal} has {most} streams here, its limit"
        if self._streams[client] >= self._limits.streams_a_client:
            return (
                f"{self._limits.streams_a_client} streaming calls of this client are under way, its limit; "
                "one Watch stream carries all watches of a client"
            )
        if self.stream_count >= self._limits.streams:
            return f"this gateway serves {self.stream_count} streaming calls, its limit; try another one"
        return None


def _status_of(context: Context) -> str:
    code = context.code()
    return code.name if isinstance(code, grpc.StatusCode) and code is not grpc.StatusCode.OK else "UNKNOWN"


def _code_of(response: object) -> str:
    if isinstance(response, bytes):
        return SUCCESS
    code = getattr(response, "code", 0)
    return StatusCode.Name(code) if code else SUCCESS


def _serializer(inner: Callable[[Any], bytes] | None) -> Callable[[Any], bytes] | None:
    if inner is None:
        return None

    def serialize(response: Any) -> bytes:
        return response if isinstance(response, bytes) else inner(response)

    return serialize
