"""A client's connection that goes to another process with its request: which do, and what the client sees of it."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager

import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route

from bookgate.gateway.http.access import PASSED_ON_HEADER, passed_on_header
from bookgate.gateway.http.caller import ANYBODY
from bookgate.gateway.http.server import AdminServer
from bookgate.gateway.process.handed_over import HandedOver, HandOver
from bookgate.gateway.process.passed_on import PassedOn

pytestmark = pytest.mark.asyncio

LIST = b"GET /list?limit=3 HTTP/1.1\r\nHost: b\r\nAuthorization: Bearer of-the-client\r\n"
HERE = b"GET /here HTTP/1.1\r\nHost: b\r\n"


class Two:
    """A bookie's server, which passes /list on, and that of its gateway's process: two in this one."""

    def __init__(self) -> None:
        self.asked: list[Request] = []
        """At the gateway's process."""
        self.hand_over = HandOver()
        self.taken: HandedOver | None = None
        self.port = 0
        self.clients: set[int] = set()
        """Ports of the test's own connections."""

    async def listed(self, request: Request) -> Response:
        self.asked.append(request)
        return PlainTextResponse("listed " + "x" * 300_000)

    async def here(self, _request: Request) -> Response:
        return PlainTextResponse("here")

    @property
    def relayed(self) -> bool:
        """Whether what was asked last came over a connection of the bookie's own."""
        client = self.asked[-1].client
        assert client is not None
        return client[1] not in self.clients

    async def ask(self, said: bytes) -> bytes:
        """All that is answered until the connection ends."""
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        self.clients.add(writer.get_extra_info("sockname")[1])
        writer.write(said)
        try:
            return await reader.read()
        finally:
            writer.close()


@asynccontextmanager
async def serving(app: Starlette) -> AsyncIterator[tuple[AdminServer, int]]:
    listener = socket.create_server(("127.0.0.1", 0))
    server = AdminServer(app, listener, "bookgate test")
    task = asyncio.create_task(server.run_until_stopped())
    try:
        yield server, listener.getsockname()[1]
    finally:
        server.should_exit = True
        await task


@asynccontextmanager
async def two(*, takes: bool = True) -> AsyncIterator[Two]:
    both = Two()
    async with AsyncExitStack() as stack:
        theirs, port = await stack.enter_async_context(serving(Starlette(routes=[Route("/list", both.listed)])))
        if takes:
            both.taken = HandedOver(both.hand_over.renew().detach(), theirs)
            both.taken.start()
            stack.callback(both.taken.close)
        stack.callback(both.hand_over.close)
        passed_on = PassedOn("127.0.0.1", port, "secret", both.hand_over, lambda: True)

        async def listing(request: Request) -> Response:
            return await passed_on.answer(request, ANYBODY)

        routes = [Route("/list", listing), Route("/here", both.here)]
        _, both.port = await stack.enter_async_context(serving(Starlette(routes=routes)))
        yield both


@pytest.mark.parametrize("more", [b"", b"Connection: close\r\n"])
async def test_the_other_answers_on_the_clients_own_connection_and_ends_it(more: bytes) -> None:
    async with two() as both:
        answer = await both.ask(LIST + more + b"\r\n")
        head, _, body = answer.partition(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 200 OK")
        assert b"connection: close" in head.lower()
        assert b"server: bookgate test" in head.lower()
        assert body == b"listed " + b"x" * 300_000
        assert not both.relayed
        (asked,) = both.asked
        assert str(asked.url.query) == "limit=3"
        assert asked.headers["authorization"] == "Bearer secret"
        assert asked.headers[PASSED_ON_HEADER] == passed_on_header(ANYBODY)
        assert b"here" in await both.ask(HERE + b"Connection: close\r\n\r\n")


async def test_a_connection_that_was_used_before_goes_too() -> None:
    async with two() as both:
        reader, writer = await asyncio.open_connection("127.0.0.1", both.port)
        writer.write(HERE + b"\r\n")
        await reader.readuntil(b"here")
        both.clients.add(writer.get_extra_info("sockname")[1])
        writer.write(LIST + b"\r\n")
        assert (await reader.read()).endswith(b"x" * 300_000)
        writer.close()
        assert not both.relayed


async def test_a_head_is_asked_as_one() -> None:
    async with two() as both:
        answer = await both.ask(LIST.replace(b"GET", b"HEAD") + b"\r\n")
        assert answer.startswith(b"HTTP/1.1 200 OK")
        assert answer.endswith(b"\r\n\r\n")
        assert not both.relayed


async def test_what_came_behind_the_request_is_answered_too() -> None:
    async with two() as both:
        answer = await both.ask(LIST + b"\r\n" + HERE + b"Connection: close\r\n\r\n")
        assert answer.count(b"x") >= 300_000
        assert answer.endswith(b"here")
        assert both.relayed


async def test_an_older_client_is_answered() -> None:
    async with two() as both:
        answer = await both.ask(LIST.replace(b"1.1", b"1.0") + b"\r\n")
        assert answer.endswith(b"x" * 300_000)
        assert both.relayed


async def test_where_nobody_takes_connections_the_answer_comes_by_the_other_way() -> None:
    async with two(takes=False) as both:
        assert (await both.ask(LIST + b"Connection: close\r\n\r\n")).count(b"x") >= 300_000
        assert both.relayed


async def test_what_a_process_has_not_taken_ends_with_it() -> None:
    async with two(takes=False) as both:
        end = both.hand_over.renew()
        asking = asyncio.create_task(both.ask(LIST + b"\r\n"))
        loop = asyncio.get_running_loop()
        end.setblocking(False)
        waits = loop.create_future()
        loop.add_reader(end, waits.set_result, None)
        await waits
        loop.remove_reader(end)
        assert not asking.done()
        end.close()
        assert await asking == b""
        assert both.asked == []
