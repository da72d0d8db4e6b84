"""Why there is no connection to a gateway: gRPC does not say, but a plain connection and its first bytes do.

| found | reported | hopeless |
|---|---|---|
| the name has no address | `… has no address` | yes |
| refused, no route | the system's message | yes |
| no response to the connection | `no connection within …` | no |
| TLS is expected and the server does not use it, or the other way round | the scheme to use | yes |
| the certificate is not accepted | why | yes |
| HTTP/1, another protocol, closed at once | which | yes |
| connected, and silent | that it sends nothing | no |

A connection is hopeless if waiting a second does not help unless somebody starts or changes something meanwhile.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
from dataclasses import dataclass

from bookgate.ledger.addresses import host_and_port
from bookgate.thinclient.gateways.uri import ClientTlsFiles

_PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes([0, 0, 0, 4, 0, 0, 0, 0, 0])
"""HTTP/2's connection preface with empty settings; a server responds with its own."""
_SETTINGS = 4
_TLS_ALERT = b"\x15\x03"
_LONGEST_SECONDS = 1.0


@dataclass(frozen=True, slots=True)
class NoConnection:
    """Why there is no connection. `hopeless`: see the module."""

    reason: str
    hopeless: bool = False


async def why_no_connection(address: str, tls: ClientTlsFiles | None, timeout: float) -> NoConnection:
    """Determines within `timeout` seconds (at most 1 s) why `host:port` accepts no gRPC connection."""
    limit = max(min(timeout, _LONGEST_SECONDS), 0.05)
    try:
        async with asyncio.timeout(limit):
            return await _look(*host_and_port(address), tls)
    except TimeoutError:
        return NoConnection(f"no connection within {limit:g} s")


async def _look(host: str, port: int, tls: ClientTlsFiles | None) -> NoConnection:
    try:
        reader, writer = await asyncio.open_connection(host, port, ssl=None if tls is None else context_of(tls))
    except socket.gaierror as error:
        return NoConnection(f"the host {host} has no address ({error.strerror or error})", True)
    except ssl.SSLCertVerificationError as error:
        return NoConnection(f"its certificate is not accepted: {error.verify_message} (tls_ca)", True)
    except ssl.SSLError as error:
        return NoConnection(_no_tls(error), True)
    except ConnectionRefusedError:
        return NoConnection("connection refused: nothing listens there", True)
    except ConnectionResetError:
        return NoConnection("it broke the connection off", True)
    except OSError as error:
        return NoConnection(error.strerror or str(error), True)
    try:
        writer.write(_PREFACE)
        return _told(await _first_bytes(reader), tls is not None)
    finally:
        writer.close()


def context_of(tls: ClientTlsFiles) -> ssl.SSLContext:
    """The context of a plain TLS connection to a gateway. Raises OSError for unusable files."""
    context = ssl.create_default_context(cafile=tls.ca)
    context.set_alpn_protocols(["h2"])
    if tls.cert is not None:
        context.load_cert_chain(tls.cert, tls.key)
    return context


def _no_tls(error: ssl.SSLError) -> str:
    reason = (error.reason or "").replace("_", " ").lower()
    if "wrong version number" in reason or "record layer failure" in reason or "packet length" in reason:
        return "it speaks no TLS: write grpc:// for it"
    return f"no TLS with it: {reason or error}"


async def _first_bytes(reader: asyncio.StreamReader) -> bytes | None:
    """The first bytes; None if there are none in time, empty if the server closes the connection."""
    try:
        async with asyncio.timeout(_LONGEST_SECONDS / 2):
            return await reader.read(16)
    except TimeoutError:
        return None
    except OSError:
        # TLS 1.3 reports some errors only now, such as a missing client certificate.
        return b""


def _told(first: bytes | None, with_tls: bool) -> NoConnection:
    if first is None:
        return NoConnection("it takes the connection and says nothing")
    if first.startswith(_TLS_ALERT) or first.startswith(b"\x16\x03"):
        return NoConnection("it speaks TLS: write grpcs:// for it, and give tls_ca that vouches for it", True)
    if first.startswith(b"HTTP/1"):
        return NoConnection("it is an HTTP server, and no gateway (the gateway's port is 4181 by default)", True)
    if len(first) > 3 and first[3] == _SETTINGS:
        return NoConnection("it speaks HTTP/2 but gave gRPC no connection")
    if not first:
        hint = (
            "it may ask for a client's certificate (tls_cert)"
            if with_tls
            else "it is no gateway, or it speaks TLS (grpcs://)"
        )
        return NoConnection(f"it closed the connection at once: {hint}", True)
    return NoConnection("it speaks another protocol: no gateway is at this port", True)
