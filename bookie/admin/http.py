"""HTTP admin of a bookie: the paths and bodies of BookKeeper's own (operations page, section 4).

Served here: heartbeat, metrics, and the bookie's state, readiness and disk space.
"""

from __future__ import annotations

import socket
from collections.abc import Callable
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

import uvicorn
from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, generate_latest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.routing import Route

if TYPE_CHECKING:
    from collections.abc import Iterator

    from bookie.core.disk_space import DirectoryUsage


_GRACE_SECONDS = 2


@dataclass(frozen=True)
class BookieView:
    """What the admin interface may ask of a bookie."""

    is_running: Callable[[], bool]
    is_shutting_down: Callable[[], bool]
    usage: Callable[[], DirectoryUsage]
    metrics: CollectorRegistry


def create_app(view: BookieView) -> Starlette:
    """The ASGI application of one bookie."""

    async def heartbeat(_request: Request) -> Response:
        return PlainTextResponse("OK\n")

    async def metrics(_request: Request) -> Response:
        return Response(generate_latest(view.metrics), media_type=CONTENT_TYPE_LATEST)

    async def state(_request: Request) -> Response:
        return JSONResponse(
            {
                "running": view.is_running(),
                "readOnly": False,
                "shuttingDown": view.is_shutting_down(),
                "availableForHighPriorityWrites": view.is_running(),
            }
        )

    async def is_ready(_request: Request) -> Response:
        if view.is_running() and not view.is_shutting_down():
            return PlainTextResponse("OK")
        return PlainTextResponse("the bookie is not ready to serve", status_code=503)

    async def info(_request: Request) -> Response:
        usage = view.usage()
        return JSONResponse({"freeSpace": usage.free_bytes, "totalSpace": usage.total_bytes})

    return Starlette(
        routes=[
            Route("/heartbeat", heartbeat),
            Route("/metrics", metrics),
            Route("/api/v1/bookie/state", state),
            Route("/api/v1/bookie/is_ready", is_ready),
            Route("/api/v1/bookie/info", info),
        ]
    )


class AdminServer(uvicorn.Server):
    """Serves the application on a socket bound earlier; leaves signals to the process that runs it."""

    def __init__(self, view: BookieView, listener: socket.socket) -> None:
        config = uvicorn.Config(
            create_app(view),
            log_level="warning",
            lifespan="off",
            access_log=False,
            # A client that does not take its answers must not hold up the bookie's stop.
            timeout_graceful_shutdown=_GRACE_SECONDS,
        )
        super().__init__(config)
        self._listener = listener

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield

    async def run_until_stopped(self) -> None:
        """Serves until `should_exit` is set."""
        await self.serve(sockets=[self._listener])
