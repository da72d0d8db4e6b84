"""Connections of HTTP over TLS on both event loops: every one is served, and the limits hold from its acceptance on."""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import http.client
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import pytest
import uvloop
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse
from starlette.routing import Route

from bookgate.gateway.http import connections
from bookgate.gateway.http.server import AdminServer
from bookgate.runtime.listening import listen
from bookgate.runtime.tls.files import ServerTlsFiles
from bookgate.runtime.tls.server_context import ServerContexts
from tests.integration.bookie.certificates import Files, client_context

MANY = 40
PATIENCE_SECONDS = 250
"""What hangs is found all the same, since the server ends what says nothing; a busy machine may take long."""
LARGE = 4 * 1024 * 1024
GET = b"GET /small HTTP/1.1\r\nHost: x\r\n\r\n"

Scenario = Callable[[int], Awaitable[None]]
Run = Callable[..., None]


async def _small(_request: Request) -> PlainTextResponse:
    return PlainTextResponse("small")


async def _large(_request: Request) -> PlainTextResponse:
    return PlainTextResponse("x" * LARGE)


async def _length(request: Request) -> PlainTextResponse:
    return PlainTextResponse(str(len(await request.body())))


@contextlib.asynccontextmanager
async def _serving(files: Files, max_connections: int) -> AsyncIterator[int]:
    routes = [Route("/small", _small), Route("/large", _large), Route("/length", _length, methods=["PUT"])]
    listener = listen("127.0.0.1", 0)
    contexts = ServerContexts(ServerTlsFiles(cert=str(files.certificate), key=str(files.key)))
    admin = AdminServer(Starlette(routes=routes), listener, contexts=contexts, max_connections=max_connections)
    task = asyncio.create_task(admin.run_until_stopped())
    try:
        yield listener.getsockname()[1]
    finally:
        admin.should_exit = True
        await task
        listener.close()


@pytest.fixture(params=[asyncio.new_event_loop, uvloop.new_event_loop], ids=["asyncio", "uvloop"])
def run(request: pytest.FixtureRequest, tmp_path: Path) -> Run:
    """Runs a scenario against a server on one of the loops."""
    files = Files(tmp_path)

    def run(scenario: Scenario, max_connections: int = 64) -> None:
        async def served() -> None:
            async with _serving(files, max_connections) as port, asyncio.timeout(PATIENCE_SECONDS):
                await scenario(port)

        with asyncio.Runner(loop_factory=request.param) as runner:
            runner.run(served())

    return run


def _ask(port: int, context: ssl.SSLContext, method: str = "GET", path: str = "/small", body: bytes = b"") -> bytes:
    """One connection with one request, from a thread: its first bytes come when they like."""
    connection = http.client.HTTPSConnection("127.0.0.1", port, timeout=PATIENCE_SECONDS, context=context)
    try:
        connection.request(method, path, body=body)
        return connection.getresponse().read()
    finally:
        connection.close()


async def _answers(port: int) -> bool:
    return await asyncio.to_thread(_ask, port, client_context()) == b"small"


async def _ends(reader: asyncio.StreamReader) -> None:
    with contextlib.suppress(OSError):
        while await reader.read(65536):
            pass


def test_one_connection_after_another_and_many_at_once(run: Run) -> None:
    context = client_context()

    async def scenario(port: int) -> None:
        for _ in range(MANY):
            assert await asyncio.to_thread(_ask, port, context) == b"small"
        loop = asyncio.get_running_loop()
        with concurrent.futures.ThreadPoolExecutor(8) as threads:
            asked = [loop.run_in_executor(threads, _ask, port, context) for _ in range(MANY)]
            assert await asyncio.gather(*asked) == [b"small"] * MANY

    run(scenario)


def test_large_bodies_both_ways(run: Run) -> None:
    context = client_context()

    async def scenario(port: int) -> None:
        assert len(await asyncio.to_thread(_ask, port, context, "GET", "/large")) == LARGE
        sent = await asyncio.to_thread(_ask, port, context, "PUT", "/length", bytes(LARGE))
        assert sent == str(LARGE).encode()

    run(scenario)


def test_a_client_that_sends_byte_by_byte(run: Run) -> None:
    """It has two requests in one connection, and ends TLS in order."""

    async def scenario(port: int) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        tls = client_context().wrap_bio(incoming, outgoing, server_hostname="127.0.0.1")

        async def send() -> None:
            for byte in outgoing.read():
                writer.write(bytes([byte]))
                await writer.drain()

        async def until_done(step: Callable[[], bytes | None]) -> bytes | None:
            while True:
                try:
                    return step()
                except ssl.SSLWantReadError:
                    await send()
                    incoming.write(await reader.read(65536))

        await until_done(tls.do_handshake)
        for _ in range(2):
            tls.write(GET)
            await send()
            answer = b""
            while not answer.endswith(b"small"):
                answer += await until_done(tls.read) or b""
        with pytest.raises(ssl.SSLWantReadError):
            tls.unwrap()
        await send()
        incoming.write(await reader.read())
        tls.unwrap()
        writer.close()

    run(scenario)


@pytest.mark.parametrize("sent", [GET, b"\x16\x03\x01" + b"garbage" * 100, b"\0" * 5000], ids=["clear", "tls", "zeros"])
def test_what_is_no_tls_is_closed_and_harms_no_other(run: Run, sent: bytes) -> None:
    async def scenario(port: int) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(sent)
        await _ends(reader)
        writer.close()
        assert await _answers(port)

    run(scenario)


@pytest.mark.parametrize("sent", [b"", b"\x16\x03\x01\x02\x00\x01"], ids=["nothing", "half a hello"])
def test_a_handshake_has_its_time(run: Run, monkeypatch: pytest.MonkeyPatch, sent: bytes) -> None:
    async def scenario(port: int) -> None:
        monkeypatch.setattr(connections, "REQUEST_SECONDS", 0.2)
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(sent)
        await _ends(reader)
        writer.close()
        monkeypatch.undo()
        assert await _answers(port)

    run(scenario)


def test_so_has_the_request_behind_it(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario(port: int) -> None:
        monkeypatch.setattr(connections, "REQUEST_SECONDS", 1.0)
        reader, writer = await asyncio.open_connection("127.0.0.1", port, ssl=client_context())
        writer.write(GET[:-2])
        await _ends(reader)
        writer.close()

    run(scenario)


def test_one_that_has_not_begun_its_handshake_counts(run: Run) -> None:
    async def scenario(port: int) -> None:
        crowd = [await asyncio.open_connection("127.0.0.1", port) for _ in range(6)]
        for reader, _ in crowd[:4]:
            await _ends(reader)
        assert await _answers(port)
        await _ends(crowd[4][0])
        for _, writer in crowd:
            writer.close()

    run(scenario, max_connections=2)


def test_a_stop_waits_for_no_handshake(run: Run) -> None:
    crowd = []

    async def scenario(port: int) -> None:
        crowd.extend([await asyncio.open_connection("127.0.0.1", port) for _ in range(3)])
        assert await _answers(port)

    run(scenario)
    assert len(crowd) == 3
