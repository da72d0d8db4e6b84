"""Requests that another process answers: what comes back, also when it has no end or nobody is there."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse

from bookgate.gateway.http.caller import ANYBODY
from bookgate.gateway.http.errors import HttpError
from bookgate.gateway.process.handed_over import HandOver
from bookgate.gateway.process.passed_on import PassedOn
from bookgate.ledger.errors import MetaStoreException

pytestmark = pytest.mark.asyncio

WHOLE = (
    b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nLink: <next>\r\nRetry-After: 7\r\nServer: other\r\n"
    b"Transfer-Encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\n\r\n"
)


@asynccontextmanager
async def other_process(answer: bytes, asked: list[bytes]) -> AsyncIterator[int]:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        asked.append(await reader.readuntil(b"\r\n\r\n"))
        writer.write(answer)
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with server:
        yield server.sockets[0].getsockname()[1]


def request(host: str = "b:8080") -> Request:
    scope = {
        "type": "http",
        "method": "GET",
        "scheme": "http",
        "server": ("b", 8080),
        "path": "/api/v1/ledger/list",
        "query_string": b"limit=3",
        "headers": [(b"host", host.encode()), (b"authorization", b"Bearer of-the-client")],
    }
    return Request(scope)


async def body(response: Response) -> bytes:
    assert isinstance(response, StreamingResponse)
    parts = [part async for part in response.body_iterator]
    assert all(isinstance(part, bytes) for part in parts)
    return b"".join(part for part in parts if isinstance(part, bytes))


async def test_path_query_and_secret_go_there_and_the_answer_comes_back() -> None:
    asked: list[bytes] = []
    async with other_process(WHOLE, asked) as port:
        response = await PassedOn("127.0.0.1", port, "secret", HandOver(), lambda: True).answer(request(), ANYBODY)
        assert await body(response) == b"{}"
    assert response.status_code == 200
    assert dict(response.headers) == {"content-type": "application/json", "link": "<next>", "retry-after": "7"}
    assert asked[0].startswith(b"GET /api/v1/ledger/list?limit=3 HTTP/1.1\r\n")
    assert b"Bearer secret" in asked[0]
    assert b"of-the-client" not in asked[0]


@pytest.mark.parametrize("host", ["127.0.0.1:80/other?x=", "127.0.0.1:80/other#"])
async def test_the_path_that_was_checked_goes_there_whatever_host_the_request_names(host: str) -> None:
    """Earlier versions of Starlette take the path of `request.url` from such a host."""
    asked: list[bytes] = []
    async with other_process(WHOLE, asked) as port:
        await PassedOn("127.0.0.1", port, "secret", HandOver(), lambda: True).answer(request(host), ANYBODY)
    assert asked[0].startswith(b"GET /api/v1/ledger/list?limit=3 HTTP/1.1\r\n")


async def test_an_answer_that_breaks_off_is_not_taken_for_complete() -> None:
    async with other_process(WHOLE[: -len(b"0\r\n\r\n")], []) as port:
        response = await PassedOn("127.0.0.1", port, "secret", HandOver(), lambda: True).answer(request(), ANYBODY)
        with pytest.raises(MetaStoreException, match="in the middle"):
            await body(response)


@pytest.mark.parametrize("answers", [False, True])
async def test_nobody_there_is_a_status(*, answers: bool) -> None:
    async with other_process(b"", []) as port:
        with pytest.raises(HttpError, match="try again") as refused:
            await PassedOn("127.0.0.1", port, "secret", HandOver(), lambda: answers).answer(request(), ANYBODY)
    assert refused.value.status == 503
