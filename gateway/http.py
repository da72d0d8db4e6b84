"""HTTP beside a gateway of its own: heartbeat, readiness and metrics."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import uvicorn
from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, generate_latest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route

_GRACE_SECONDS = 2


class _Server(uvicorn.Server):
    """Leaves signals to the process that runs it."""

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


class HttpServer:
    """`/heartbeat` (the process lives), `/ready` (the store is reached, nothing drains), `/metrics`."""

    def __init__(self, registry: CollectorRegistry, is_ready: Callable[[], bool]) -> None:
        self._registry = registry
        self._is_ready = is_ready
        self._server: _Server | None = None
        self._task: asyncio.Task[None] | None = None

    async def start(self, host: str, port: int) -> int:
        """Serves; returns the port. Raises OSError that says what is wrong."""
        listener = _listen(host, port)
        config = uvicorn.Config(
            self._app(),
            log_level="warning",
            lifespan="off",
            access_log=False,
            timeout_graceful_shutdown=_GRACE_SECONDS,
        )
        self._server = _Server(config)
        self._task = asyncio.get_running_loop().create_task(self._server.serve(sockets=[listener]))
        return int(listener.getsockname()[1])

    async def stop(self) -> None:
        if self._server is None or self._task is None:
            return
        self._server.should_exit = True
        await self._task

    def _app(self) -> Starlette:
        async def heartbeat(_request: Request) -> Response:
            return PlainTextResponse("OK\n")

        async def ready(_request: Request) -> Response:
            if self._is_ready():
                return PlainTextResponse("OK\n")
            return PlainTextResponse("the gateway is not ready to serve\n", status_code=503)

        async def metrics(_request: Request) -> Response:
            return Response(generate_latest(self._registry), media_type=CONTENT_TYPE_LATEST)

        return Starlette(routes=[Route("/heartbeat", heartbeat), Route("/ready", ready), Route("/metrics", metrics)])


def _listen(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.setblocking(False)
        listener.bind((host, port))
        listener.listen()
    except OSError as error:
        listener.close()
        message = f"the gateway can't serve HTTP at {host}, port {port}: {error.strerror}; see --http-port"
        raise OSError(error.errno, message) from error
    return listener
