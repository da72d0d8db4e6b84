"""Connections of HTTP: their number, and the time in which a request must arrive.

A connection has `REQUEST_SECONDS` from its beginning (TLS handshake included), or from the first byte after a response,
until its request is complete. If there are too many, the oldest is closed, beginning with those that wait for nothing.
With certificates each connection begins with those currently in the files.

A request finds its connection in its state, as `connection`, and may hand it over to be answered elsewhere.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import ssl
from collections.abc import Callable
from typing import Any

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

from bookgate.gateway.http.access import CERTIFICATE_STATE
from bookgate.runtime.logs import log_event
from bookgate.runtime.tls.server_context import ServerContexts
from bookgate.runtime.tls.transport import TlsTransport

_LOG = logging.getLogger(__name__)

REQUEST_SECONDS = 10.0
_NUMBERS = itertools.count()
"""In the order of acceptance, which a clock of milliseconds does not tell."""


class BoundedHttp(H11Protocol):
    """One connection. `max_connections` is of all that share the server's state."""

    max_connections: int
    contexts: ServerContexts | None

    def __init__(self, *arguments: Any, received: bytes = b"", **options: Any) -> None:
        """`received` is what another process has read already."""
        super().__init__(*arguments, **options)
        self.app_state = {**self.app_state, "connection": self}
        self._received = received
        self._deadline: asyncio.TimerHandle | None = None
        self._tls: TlsTransport | None = None
        self._number = next(_NUMBERS)

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        self._make_room()
        self._expect_request()
        if self.contexts is not None:
            transport = self._tls = TlsTransport(transport, self.contexts.context())
        super().connection_made(transport)
        if self._received:
            self._take(self._received)

    def connection_lost(self, exc: Exception | None) -> None:
        self._request_is_whole()
        super().connection_lost(exc)

    def give_away(self, give: Callable[[int], None]) -> bool:
        """Gives the connection, whose request will be answered elsewhere, away; nothing more is said here.

        Args:
            give: Gets the descriptor, which it has to copy.

        Returns:
            False if that can't be: it is encrypted here, or there is more to read or to write than this request.

        Raises:
            OSError: As `give` raises it; the connection stays then.
        """
        is_all = self.conn.their_state in (h11.DONE, h11.MUST_CLOSE) and not self.conn.trailing_data[0]
        if self._tls is not None or not is_all or self.transport.get_write_buffer_size():
            return False
        give(self.transport.get_extra_info("socket").fileno())
        self.cycle.disconnected = True
        self.transport.abort()
        return True

    def data_received(self, data: bytes) -> None:
        if self._tls is None:
            self._take(data)
        else:
            self._take_encrypted(self._tls, data)

    def _take_encrypted(self, tls: TlsTransport, data: bytes) -> None:
        try:
            said = tls.receive(data)
        except ssl.SSLError:  # what the client did is its own affair
            tls.close()
            return
        if said:
            if CERTIFICATE_STATE not in self.app_state:  # once, when the handshake is done
                self.app_state = {**self.app_state, CERTIFICATE_STATE: tls.certificate}
            self._take(said)
        if tls.ended:
            tls.close()

    def _take(self, data: bytes) -> None:
        super().data_received(data)
        if self.conn.their_state in (h11.IDLE, h11.SEND_BODY):
            self._expect_request()
        else:
            self._request_is_whole()

    def on_response_complete(self) -> None:
        # What was sent behind the request may be whole, or the beginning of the next.
        self._request_is_whole()
        super().on_response_complete()
        if self.conn.trailing_data[0]:
            self._expect_request()

    def _expect_request(self) -> None:
        if self._deadline is None:
            self._deadline = self.loop.call_later(REQUEST_SECONDS, self._is_late)

    def _request_is_whole(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    def _is_late(self) -> None:
        self._deadline = None
        self.transport.abort()

    def _make_room(self) -> None:
        others = [each for each in self.connections if isinstance(each, BoundedHttp)]
        if len(others) < self.max_connections:
            return
        oldest = min(others, key=lambda each: (each._is_busy, each._number))
        self.connections.discard(oldest)
        log_event(_LOG, "http_connection_closed", logging.WARNING, reason="too many", limit=self.max_connections)
        oldest.transport.abort()

    @property
    def _is_busy(self) -> bool:
        return self.cycle is not None and not self.cycle.response_complete


def bounded_http(max_connections: int, contexts: ServerContexts | None) -> type[BoundedHttp]:
    """The protocol of one server."""
    return type("BoundedHttp", (BoundedHttp,), {"max_connections": max_connections, "contexts": contexts})
