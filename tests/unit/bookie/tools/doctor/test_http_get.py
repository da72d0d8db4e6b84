"""The doctor's GET: an answer, and what is none."""

from __future__ import annotations

import asyncio

import pytest

from bookgate.bookie.tools.doctor.http_get import HttpResponse, get


async def answered(content: bytes) -> HttpResponse:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(content)
        writer.close()

    async with await asyncio.start_server(serve, "127.0.0.1", 0) as server:
        return await get("127.0.0.1", server.sockets[0].getsockname()[1], "/")


@pytest.mark.asyncio
async def test_an_answer() -> None:
    answer = await answered(b"HTTP/1.1 200 OK\r\nServer: some\r\n\r\nbody")
    assert (answer.status, answer.headers["server"], answer.body) == (200, "some", b"body")


@pytest.mark.asyncio
@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"SSH-2.0-OpenSSH\r\n",
        b"HTTP/1.1 200 OK\r\n" + b"Many: more\r\n" * 200 + b"\r\n",
        b"HTTP/1.1 200 OK\r\nLong: " + b"x" * 100_000 + b"\r\n\r\n",
    ],
    ids=["nothing", "another protocol", "many headers", "a long header"],
)
async def test_what_is_no_answer_is_a_value_error(content: bytes) -> None:
    with pytest.raises(ValueError, match="HTTP"):
        await answered(content)
