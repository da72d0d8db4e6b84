"""One GET over HTTP/1.1, for the few small responses that the doctor needs."""

from __future__ import annotations

import asyncio
import http.client
import io
import ssl
from dataclasses import dataclass
from email.message import Message

from bookgate.ledger.addresses import address_of

_MOST_BYTES = 4 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class HttpResponse:
    """A complete response."""

    status: int
    headers: Message
    body: bytes


async def get(
    host: str, port: int, path: str, context: ssl.SSLContext | None = None, token: str | None = None
) -> HttpResponse:
    """Sends a GET request; over TLS with `context`, with `token` as bearer token.

    Raises OSError or ValueError; the caller limits the time.
    """
    reader, writer = await asyncio.open_connection(host, port, ssl=context)
    try:
        shown = "" if token is None else f"Authorization: Bearer {token}\r\n"
        head = f"GET {path} HTTP/1.1\r\nHost: {address_of(host, port)}\r\n{shown}Connection: close\r\n\r\n"
        writer.write(head.encode("ascii"))
        await writer.drain()
        content = bytearray()
        while len(content) < _MOST_BYTES and (piece := await reader.read(65536)):
            content += piece
    finally:
        writer.close()
    return _parse(bytes(content))


def _parse(content: bytes) -> HttpResponse:
    head, _, body = content.partition(b"\r\n\r\n")
    status_line, _, lines = head.partition(b"\r\n")
    words = status_line.split()
    if len(words) < 2 or not words[0].startswith(b"HTTP/") or not words[1].isdigit():
        raise ValueError(f"this is no answer of HTTP: {status_line[:60]!r}")
    try:
        headers = http.client.parse_headers(io.BytesIO(lines + b"\r\n\r\n"))
    except http.client.HTTPException as error:
        raise ValueError(f"its headers are none of HTTP: {error}") from None
    return HttpResponse(int(words[1]), headers, body)
