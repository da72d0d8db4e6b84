"""The HTTP interface of a gateway without a bookie: heartbeat, readiness, metrics, and the cluster's part of the admin
interface.
"""

from __future__ import annotations

import asyncio
import socket

from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, generate_latest

from bookgate.gateway.config import GatewayConfig
from bookgate.gateway.console.cluster_routes import Server
from bookgate.gateway.console.console import Console
from bookgate.gateway.console.pages import console_routes
from bookgate.gateway.http.access import Access
from bookgate.gateway.http.api import TEXT, AnyQuery, Call, NoBody, Route, create_app, get
from bookgate.gateway.http.errors import HttpError
from bookgate.gateway.http.openapi import document
from bookgate.gateway.http.routes.autorecovery import auto_recovery_routes
from bookgate.gateway.http.routes.cluster import cluster_routes
from bookgate.gateway.http.routes.ledgers import ledger_routes
from bookgate.gateway.http.routes.process import process_routes
from bookgate.gateway.http.routes.session import session_routes
from bookgate.gateway.http.server import AdminServer
from bookgate.gateway.metrics import GatewayNumbers
from bookgate.ledger.metadata_store import LedgerManagerFactory
from bookgate.runtime.background import keep_running
from bookgate.runtime.listening import listen
from bookgate.runtime.security.access_control import AccessControl
from bookgate.runtime.security.authenticators import is_loopback
from bookgate.runtime.version import own_version


def gateway_routes(
    settings: GatewayConfig,
    factory: LedgerManagerFactory,
    registry: CollectorRegistry,
    stopping: asyncio.Event,
    console: Console,
    access: Access,
) -> list[Route]:
    """The routes of a gateway without a bookie."""

    async def ready(_call: Call[AnyQuery, NoBody]) -> str:
        if not factory.connected or stopping.is_set():
            raise HttpError(503, "the gateway is not ready to serve: it stops, or its store is out of reach")
        if not factory.writable:
            raise HttpError(503, "the metadata store takes no changes: its disk is full, or its file read-only")
        return "OK\n"

    return [
        *process_routes(settings, lambda: generate_latest(registry), CONTENT_TYPE_LATEST),
        get(
            "/ready",
            "The store is reached and has room, nothing drains",
            ready,
            query=AnyQuery,
            answer=None,
            media_type=TEXT,
            failures={503: "not ready"},
        ),
        *ledger_routes(factory),
        *cluster_routes(factory),
        *auto_recovery_routes(factory),
        *console.rows(),
        *session_routes(access),
    ]


class HttpServer:
    """Serves these routes. `stopping` is set when the gateway begins to drain."""

    def __init__(
        self,
        settings: GatewayConfig,
        factory: LedgerManagerFactory,
        registry: CollectorRegistry,
        stopping: asyncio.Event,
        metrics: GatewayNumbers | None = None,
        control: AccessControl | None = None,
    ) -> None:
        """`metrics` is what the gateway counts; `control` None: everybody may everything.

        Raises IncorrectParameterException for files of no use.
        """
        names = (socket.gethostname(), *settings.http_host_names)
        token, loopback = settings.http_bearer_token(), is_loopback(settings.host)
        access = Access(token, loopback=loopback, names=names, control=control)
        self._contexts = settings.http_contexts()
        self._max_connections = settings.http_connections()
        server = Server(
            "gateway",
            "gateway",
            own_version(),
            settings.metadata_uri,
            stopping.is_set,
            metrics,
            open_doors=tuple(settings.open_doors),
        )
        self._console = Console(server, factory, access)
        rows = gateway_routes(settings, factory, registry, stopping, self._console, access)
        description = document("Bookgate gateway", rows, access)
        self._app = create_app(rows, access, description, console_routes())
        self._server: AdminServer | None = None
        self._task: asyncio.Task[None] | None = None

    async def start(self, host: str, port: int) -> int:
        """Starts serving; returns the port. Raises OSError with the address and the reason."""
        listener = _listen(host, port)
        self._console.start()
        self._server = AdminServer(self._app, listener, contexts=self._contexts, max_connections=self._max_connections)
        self._task = keep_running("HTTP server", self._server.run_until_stopped)
        return int(listener.getsockname()[1])

    async def stop(self) -> None:
        if self._server is None or self._task is None:
            return
        self._server.should_exit = True
        await self._task
        await self._console.close()


def _listen(host: str, port: int) -> socket.socket:
    try:
        return listen(host, port)
    except OSError as error:
        message = f"the gateway can't serve HTTP at {host}, port {port}: {error.strerror}; see --http-port"
        raise OSError(error.errno, message) from error
