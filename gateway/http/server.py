"""Serves an ASGI application on the current event loop, together with whatever else runs there."""

from __future__ import annotations

import asyncio
import socket
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING

import uvicorn
from starlette.applications import Starlette

from bookgate.gateway.http.connections import bounded_http
from bookgate.runtime.listening import backlog_for
from bookgate.runtime.tls.server_context import ServerContexts

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

_GRACE_SECONDS = 2


class AdminServer(uvicorn.Server):
    """Serves the application on a socket bound earlier; leaves signals to the process that runs it."""

    def __init__(
        self,
        app: Starlette,
        listener: socket.socket,
        name: str | None = None,
        contexts: ServerContexts | None = None,
        *,
        max_connections: int = 256,
    ) -> None:
        """`name` is what the header `Server` says; with `contexts` it speaks TLS."""
        config = uvicorn.Config(
            app,
            http=bounded_http(max_connections, contexts),
            # It would take the connection away from its limits.
            ws="none",
            # All that wait are accepted at once, and counted then.
            backlog=backlog_for(max_connections),
            log_level="warning",
            # Its records go where those of the process go.
            log_config=None,
            lifespan="off",
            access_log=False,
            server_header=False,
            # Whoever connects from this machine, or through a tunnel that ends here, could say any address.
            proxy_headers=False,
            headers=[("Server", name)] if name else [],
            # A client that does not take its answers must not hold up the process's stop.
            timeout_graceful_shutdown=_GRACE_SECONDS,
        )
        super().__init__(config)
        self._listener = listener

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield

    async def adopt(self, connection: socket.socket, request: bytes) -> None:
        """Answers at a connection that another process has accepted, and whose request it has read. Raises OSError."""
        if not self.config.loaded:
            self.config.load()
        connection.setblocking(False)
        kind: Callable[..., asyncio.BaseProtocol] = self.config.http_protocol_class
        protocol = partial(kind, config=self.config, server_state=self.server_state, app_state={}, received=request)
        await asyncio.get_running_loop().connect_accepted_socket(protocol, connection)

    async def run_until_stopped(self) -> None:
        """Serves until `should_exit` is set."""
        await self.serve(sockets=[self._listener])
