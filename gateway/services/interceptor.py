"""Runs around every call of a gateway, whatever its method: metrics, stream limits, encoded responses.

The response to a unary call names the gateway process that sent it (`instance`).

A handler may return a message, or one already encoded (`bytes`), which is sent unchanged. The number of streams is
limited per client and in total, since each occupies memory while it is open. A client is one connection (address and
port), so several clients on one machine count separately. A call over a limit is rejected with RESOURCE_EXHAUSTED
before the handler runs.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import aclosing, asynccontextmanager
from typing import Any

import grpc

from bookgate.gateway.limits import Limits
from bookgate.gateway.metrics import GatewayMetrics, MethodCounts
from bookgate.gateway.services.instance import Instance
from bookgate.gateway.services.status import Context
from bookgate.protos.bookkeeper.common.v1.status_pb2 import StatusCode

Handler = Any
_SUCCESS = StatusCode.Name(StatusCode.SUCCESS)


class _Call:
    """Records the outcome of one call for the metrics."""

    __slots__ = ("code",)

    def __init__(self) -> None:
        self.code = _SUCCESS


class CallInterceptor(grpc.aio.ServerInterceptor):
    """The interceptor; see the module. One per gateway."""

    def __init__(self, metrics: GatewayMetrics, limits: Limits, instance: Instance) -> None:
        self._metrics = metrics
        self._limits = limits
        self._instance = instance
        self._streams: dict[str, int] = {}
        self._wrapped: dict[str, tuple[Handler, Handler]] = {}
        self.stream_count = 0

    async def intercept_service(self, continuation: Callable[[Any], Awaitable[Any]], handler_call_details: Any) -> Any:
        handler = await continuation(handler_call_details)
        if handler is None:
            return None
        method = handler_call_details.method
        known = self._wrapped.get(method)
        if known is None or known[0] is not handler:
            known = self._wrapped[method] = (handler, self._wrap(method.rpartition("/")[2], handler))
        return known[1]

    def _wrap(self, method: str, handler: Handler) -> Handler:
        counts = self._metrics.method(method)
        serializer = _serializer(handler.response_serializer)
        if handler.response_streaming:
            inner = handler.stream_stream if handler.request_streaming else handler.unary_stream
            make = (
                grpc.stream_stream_rpc_method_handler
                if handler.request_streaming
                else grpc.unary_stream_rpc_method_handler
            )
            return make(self._streaming(counts, inner), handler.request_deserializer, serializer)
        if handler.request_streaming:
            return handler
        return grpc.unary_unary_rpc_method_handler(
            self._unary(counts, handler.unary_unary), handler.request_deserializer, serializer
        )

    def _unary(self, counts: MethodCounts, inner: Any) -> Any:
        async def call(request: Any, context: Context) -> Any:
            async with _counted(counts, context) as outcome:
                self._instance.tell(context)
                response = inner(request, context)
                if asyncio.iscoroutine(response):
                    response = await response
                outcome.code = _code_of(response)
                return response

        return call

    def _streaming(self, counts: MethodCounts, inner: Any) -> Any:
        async def call(request: Any, context: Context) -> None:
            async with _counted(counts, context) as outcome, self._stream(context):
                responses = inner(request, context)
                if not hasattr(responses, "__aiter__"):
                    await responses
                    return
                async with aclosing(responses):
                    async for response in responses:
                        outcome.code = _code_of(response)
                        await context.write(response)

        return call

    @asynccontextmanager
    async def _stream(self, context: Context) -> AsyncIterator[None]:
        client = context.peer()
        problem = self._over_limit(client)
        if problem:
            await context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, problem)
        self._streams[client] = self._streams.get(client, 0) + 1
        self.stream_count += 1
        try:
            yield
        finally:
            self.stream_count -= 1
            self._streams[client] -= 1
            if not self._streams[client]:
                del self._streams[client]

    def _over_limit(self, client: str) -> str | None:
        if self._streams.get(client, 0) >= self._limits.streams_a_client:
            return (
                f"{self._limits.streams_a_client} streaming calls of this client are under way, its limit; "
                "one Watch stream carries all watches of a client"
            )
        if self.stream_count >= self._limits.streams:
            return f"this gateway serves {self.stream_count} streaming calls, its limit; try another one"
        return None


@asynccontextmanager
async def _counted(counts: MethodCounts, context: Context) -> AsyncIterator[_Call]:
    outcome = _Call()
    counts.in_flight += 1
    began = time.perf_counter()
    try:
        yield outcome
    except asyncio.CancelledError:
        outcome.code = "CANCELLED"
        raise
    except BaseException:
        outcome.code = _status_of(context)
        raise
    finally:
        counts.in_flight -= 1
        counts.done(outcome.code, time.perf_counter() - began)


def _status_of(context: Context) -> str:
    code = context.code()
    return code.name if isinstance(code, grpc.StatusCode) and code is not grpc.StatusCode.OK else "UNKNOWN"


def _code_of(response: object) -> str:
    if isinstance(response, bytes):
        return _SUCCESS
    code = getattr(response, "code", 0)
    return StatusCode.Name(code) if code else _SUCCESS


def _serializer(inner: Callable[[Any], bytes] | None) -> Callable[[Any], bytes] | None:
    if inner is None:
        return None

    def serialize(response: Any) -> bytes:
        return response if isinstance(response, bytes) else inner(response)

    return serialize
