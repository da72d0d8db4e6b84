"""Why there is no connection to a gateway: every cause against a real server, and that a first call ends at once."""

from __future__ import annotations

import asyncio
import ssl
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import trustme

from bookgate.ledger.errors import MetaStoreException
from bookgate.thinclient.client import BookKeeper
from bookgate.thinclient.config import ClientConfig
from bookgate.thinclient.gateways.connection_diagnosis import why_no_connection
from bookgate.thinclient.gateways.uri import ClientTlsFiles

Answer = Callable[[bytes], bytes | None]
"""What a server says to the first bytes; None closes the connection."""


@asynccontextmanager
async def server(answer: Answer, context: ssl.SSLContext | None = None) -> AsyncIterator[str]:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            said = answer(await reader.read(64))
            if said:
                writer.write(said)
                await writer.drain()
            if said is not None:
                await reader.read()
        except OSError:
            pass
        finally:
            writer.close()

    async with await asyncio.start_server(serve, "127.0.0.1", 0, ssl=context) as listening:
        yield f"127.0.0.1:{listening.sockets[0].getsockname()[1]}"


@pytest.fixture(scope="module")
def authority() -> trustme.CA:
    return trustme.CA()


@pytest.fixture
def trusted(authority: trustme.CA, tmp_path: Path) -> ClientTlsFiles:
    authority.cert_pem.write_to_path(tmp_path / "ca.pem")
    return ClientTlsFiles(tmp_path / "ca.pem")


def tls_server(authority: trustme.CA, host: str = "127.0.0.1") -> ssl.SSLContext:
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    authority.issue_cert(host).configure_cert(context)
    return context


@pytest.mark.asyncio
@pytest.mark.parametrize(
    ("address", "reason"),
    [("nobody.invalid:4181", "the host nobody.invalid has no address"), ("127.0.0.1:1", "connection refused")],
)
async def test_who_is_not_there(address: str, reason: str) -> None:
    found = await why_no_connection(address, None, 5)
    assert found.reason.startswith(reason)
    assert found.hopeless


@pytest.mark.asyncio
@pytest.mark.parametrize(
    ("answer", "reason", "hopeless"),
    [
        (b"HTTP/1.1 400 Bad Request\r\n", "it is an HTTP server", True),
        (b"\x15\x03\x01\x00\x02\x02\x46", "it speaks TLS: write grpcs://", True),
        (b"\x00\x00\x00\x04\x00\x00\x00\x00\x00", "it speaks HTTP/2 but", False),
        (b"SSH-2.0-OpenSSH_9.6\r\n", "it speaks another protocol", True),
        (None, "it closed the connection at once", True),
        (b"", "it takes the connection and says nothing", False),
    ],
)
async def test_who_is_something_else(answer: bytes | None, reason: str, hopeless: bool) -> None:
    async with server(lambda _: answer) as address:
        found = await why_no_connection(address, None, 5)
    assert found.reason.startswith(reason)
    assert found.hopeless is hopeless


@pytest.mark.asyncio
async def test_tls_that_differs(authority: trustme.CA, trusted: ClientTlsFiles) -> None:
    async with server(lambda _: b"", tls_server(authority)) as address:
        assert (await why_no_connection(address, None, 5)).reason.startswith(("it speaks TLS", "it closed the"))
        unknown = await why_no_connection(address, ClientTlsFiles(), 5)
        assert unknown.reason.startswith("its certificate is not accepted: ")
        assert (await why_no_connection(address, trusted, 5)).reason == "it takes the connection and says nothing"
    async with server(lambda _: b"", tls_server(authority, "another.host")) as address:
        found = await why_no_connection(address, trusted, 5)
        assert found.hopeless
        assert "is not valid for '127.0.0.1'" in found.reason
    async with server(lambda _: b"HTTP/1.1 400 Bad Request\r\n\r\n") as address:
        assert (await why_no_connection(address, trusted, 5)).reason == "it speaks no TLS: write grpc:// for it"


@pytest.mark.asyncio
async def test_connecting_ends_at_once_where_all_turn_it_down() -> None:
    began = time.monotonic()
    with pytest.raises(MetaStoreException) as caught:
        await BookKeeper.connect("grpc://nobody.invalid:4181,127.0.0.1:1", ClientConfig(metadata_timeout_seconds=60))
    assert time.monotonic() - began < 20
    assert "nobody.invalid:4181: the host nobody.invalid has no address" in str(caught.value)
    assert "127.0.0.1:1: connection refused" in str(caught.value)
    assert " within " not in str(caught.value)


@pytest.mark.asyncio
async def test_who_starts_beside_its_gateways_waits_for_them() -> None:
    config = ClientConfig(metadata_timeout_seconds=0.5, connect_fails_fast=False)
    with pytest.raises(MetaStoreException, match=r"within 0\.5 s .*connection refused"):
        await BookKeeper.connect("grpc://127.0.0.1:1", config)
