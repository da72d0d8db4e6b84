"""HTTP requests that another process answers, so that a listing does not delay an event loop that handles adds.

The request has been checked already; its path and query are sent to the other process unchanged. The client's
connection goes with them (`handed_over`) and ends with the response, of which this process sees nothing. Where that is
impossible, as with TLS, the request goes over a separate connection, and the response is relayed part by part, as fast
as the client reads.

A process that is not there, or is silent for long, gives status 503; a response that breaks off is broken off here too,
so that no client takes it for complete.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from urllib.parse import quote

import h11
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse

from bookgate.gateway.console.auto_recovery import RECOVERY
from bookgate.gateway.console.paths import CONSOLE
from bookgate.gateway.http.access import PASSED_ON_HEADER, passed_on_header, path_of
from bookgate.gateway.http.caller import Caller
from bookgate.gateway.http.connections import BoundedHttp
from bookgate.gateway.http.errors import HttpError
from bookgate.gateway.http.routes.autorecovery import LIST_MARKS
from bookgate.gateway.process.handed_over import HandOver
from bookgate.ledger.errors import MetaStoreException

LISTINGS = ("/api/v1/ledger/list", LIST_MARKS, f"{CONSOLE}/ledgers", f"{CONSOLE}/ledger_counts", RECOVERY)
"""Paths whose answers grow with the number of ledgers, or read many of them or of their marks."""

_PART = 64 * 1024
_HEAD_SECONDS = 60.0
_KEPT = (b"content-type", b"link", b"retry-after")
_AWAY = "the gateway's process, which lists the ledgers, is being started again or is stuck; try again, or at another"


class PassedOn:
    """See the module. `answers`: whether the other process does, at the last look."""

    def __init__(self, host: str, port: int, secret: str, hand_over: HandOver, answers: Callable[[], bool]) -> None:
        self._host = host
        self._port = port
        self._authorization = f"Bearer {secret}"
        self._hand_over = hand_over
        self._answers = answers

    async def answer(self, request: Request, caller: Caller) -> Response:
        """The response of the other process. Raises HttpError."""
        if not self._answers():
            raise HttpError(503, _AWAY)
        if self._handed_over(request, caller):
            return Response()  # to nobody
        received = self._ask(request, caller)
        try:
            async with asyncio.timeout(_HEAD_SECONDS):
                head = await anext(received)
        except (OSError, h11.RemoteProtocolError, TimeoutError):
            await received.aclose()
            raise HttpError(503, _AWAY) from None
        assert isinstance(head, h11.Response)
        headers = {name.decode(): value.decode() for name, value in head.headers if name in _KEPT}
        return StreamingResponse(_parts(received), head.status_code, headers)

    def _handed_over(self, request: Request, caller: Caller) -> bool:
        connection = getattr(request.state, "connection", None)
        if not isinstance(connection, BoundedHttp) or request.scope["http_version"] != "1.1":
            return False
        asked = self._asked(h11.Connection(h11.CLIENT), request, request.method, caller)
        try:
            return connection.give_away(lambda descriptor: self._hand_over.give(descriptor, asked))
        except OSError:  # it is too busy to take more, or has just ended
            return False

    def _asked(self, connection: h11.Connection, request: Request, method: str, caller: Caller) -> bytes:
        query: bytes = request.scope["query_string"]
        target = quote(path_of(request)) + (f"?{query.decode()}" if query else "")
        headers = [
            ("Host", "localhost"),
            ("Authorization", self._authorization),
            (PASSED_ON_HEADER, passed_on_header(caller)),
            ("Connection", "close"),
        ]
        head = connection.send(h11.Request(method=method, target=target, headers=headers)) or b""
        return head + (connection.send(h11.EndOfMessage()) or b"")

    async def _ask(self, request: Request, caller: Caller) -> AsyncGenerator[h11.Response | h11.Data, None]:
        """The head of the response, then its parts."""
        connection = h11.Connection(h11.CLIENT)
        reader, writer = await asyncio.open_connection(self._host, self._port)
        try:
            writer.write(self._asked(connection, request, "GET", caller))
            while True:
                event = connection.next_event()
                if event is h11.NEED_DATA:
                    connection.receive_data(await reader.read(_PART))
                elif isinstance(event, h11.Response | h11.Data):
                    yield event
                elif isinstance(event, h11.EndOfMessage):
                    return
        finally:
            writer.close()


async def _parts(received: AsyncGenerator[h11.Response | h11.Data, None]) -> AsyncGenerator[bytes, None]:
    async with aclosing(received):
        try:
            async for part in received:
                assert isinstance(part, h11.Data)
                yield bytes(part.data)
        except (OSError, h11.RemoteProtocolError) as error:
            raise MetaStoreException("the gateway's process ended in the middle of the answer") from error
