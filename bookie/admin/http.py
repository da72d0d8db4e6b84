"""HTTP admin of a bookie: the paths and bodies of BookKeeper's own (operations page, section 4).

Served here: heartbeat and metrics; the rest is in rooms of its own (`state_routes`, `gc_routes`).
"""

from __future__ import annotations

import socket
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

import uvicorn
from prometheus_client import CollectorRegistry
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route

from bookie.admin.gc_routes import gc_routes
from bookie.admin.state_routes import StateView, state_routes
from bookie.exposition import CONTENT_TYPE, render
from bookie.garbage_collector import GarbageCollector
from bookie.version import own_version

if TYPE_CHECKING:
    from collections.abc import Iterator


_GRACE_SECONDS = 2


@dataclass(frozen=True)
class BookieView:
    """What the admin interface may ask of a bookie."""

    state: StateView
    gc: GarbageCollector
    metrics: CollectorRegistry


def create_app(view: BookieView) -> Starlette:
    """The ASGI application of one bookie."""

    async def heartbeat(_request: Request) -> Response:
        return PlainTextResponse("OK\n")

    async def metrics(_request: Request) -> Response:
        return Response(render(view.metrics), media_type=CONTENT_TYPE)

    return Starlette(
        routes=[
            Route("/heartbeat", heartbeat),
            Route("/metrics", metrics),
            *state_routes(view.state),
            *gc_routes(view.gc),
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
            server_header=False,
            headers=[("Server", own_version())],
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
