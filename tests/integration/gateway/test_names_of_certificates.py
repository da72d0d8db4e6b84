"""The names of a client's certificate are the same at the gateway, which has TLS of gRPC, and where it is of Python."""

from __future__ import annotations

import ssl
from pathlib import Path
from typing import Any

import grpc
import pytest

from bookgate.bookie.tools.trial_security.certificates import Authority
from bookgate.gateway.services.access import _certificate
from bookgate.runtime.security.principal import CertificateNames, names_of_certificate

pytestmark = pytest.mark.asyncio

_SERVER = "server.example"


async def told_by_grpc(authority: Authority, shown: tuple[bytes, bytes]) -> CertificateNames:
    told = []

    async def call(_request: bytes, context: Any) -> bytes:
        told.append(_certificate(context))
        return b""

    certificate, key = authority.issue("server", [_SERVER])
    server = grpc.aio.server()
    handlers: dict[str, Any] = {"Call": grpc.unary_unary_rpc_method_handler(call)}
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("Service", handlers),))
    credentials = grpc.ssl_server_credentials([(key, certificate)], authority.certificate, True)
    port = server.add_secure_port("127.0.0.1:0", credentials)
    await server.start()
    options = [("grpc.ssl_target_name_override", _SERVER)]
    client = grpc.ssl_channel_credentials(authority.certificate, shown[1], shown[0])
    try:
        async with grpc.aio.secure_channel(f"127.0.0.1:{port}", client, options) as channel:
            method: Any = channel.unary_unary("/Service/Call")
            await method(b"", timeout=30)
    finally:
        await server.stop(0)
    (found,) = told
    assert found is not None
    return found


def told_by_python(authority: Authority, shown: tuple[bytes, bytes], directory: Path) -> CertificateNames:
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    contexts = []
    pairs = ((ssl.PROTOCOL_TLS_SERVER, authority.issue("server", [_SERVER])), (ssl.PROTOCOL_TLS_CLIENT, shown))
    for protocol, (certificate, key) in pairs:
        context = ssl.SSLContext(protocol)
        context.verify_mode = ssl.CERT_REQUIRED
        context.load_verify_locations(cadata=authority.certificate.decode())
        (directory / "pair.pem").write_bytes(certificate + key)
        context.load_cert_chain(directory / "pair.pem")
        contexts.append(context)
    server = contexts[0].wrap_bio(to_server, to_client, server_side=True)
    client = contexts[1].wrap_bio(to_client, to_server, server_hostname=_SERVER)
    waiting = [client, server]
    while waiting:
        side = waiting.pop(0)
        try:
            side.do_handshake()
        except ssl.SSLWantReadError:
            waiting.append(side)
    found = server.getpeercert()
    assert found is not None
    return names_of_certificate(found)


@pytest.mark.parametrize(
    ("name", "subject"),
    [
        ("etl", "CN=etl"),
        ('a,b+c="d\\;<e>', 'CN=a\\,b\\+c=\\"d\\\\\\;\\<e\\>'),
        ("#x ", "CN=\\#x\\ "),
        ("Jürgen", "CN=J\\C3\\BCrgen"),
        ("a\tb\x7f", "CN=a\\09b\\7F"),
        ("東", "CN=\\E6\\9D\\B1"),
    ],
)
async def test_names_are_the_same_at_all_doors(tmp_path: Path, name: str, subject: str) -> None:
    """A principal may do at one what it owns by another, and policies name it once."""
    authority = Authority()
    shown = authority.issue(name, ["client.example"])
    expected = CertificateNames(subject, (), ("client.example",))
    assert told_by_python(authority, shown, tmp_path) == expected
    assert await told_by_grpc(authority, shown) == expected
