"""grpcs://: who may talk to a gateway, and certificates that change while it serves."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import grpc
import pytest
import pytest_asyncio
import trustme

from bookgate.gateway.server import GatewayServer
from bookgate.gateway.stores.drivers import create_factory
from bookgate.ledger.errors import IncorrectParameterException
from bookgate.ledger.metadata_store import LedgerManagerFactory
from bookgate.protos.bookkeeper.gateway.v1 import service_discovery_pb2 as sd
from bookgate.protos.bookkeeper.gateway.v1.service_discovery_pb2_grpc import ServiceDiscoveryStub
from bookgate.runtime.tls.files import ServerTlsFiles
from bookgate.thinclient.gateways.factory import RpcLedgerManagerFactory
from bookgate.thinclient.gateways.uri import ClientTlsFiles
from tests.stores import made

pytestmark = pytest.mark.asyncio


class Certificates:
    """Files of a gateway, of one authority; a new pair may replace them."""

    def __init__(self, directory: Path) -> None:
        self.authority = trustme.CA()
        self.files = ServerTlsFiles(f"{directory}/cert.pem", f"{directory}/key.pem", f"{directory}/ca.pem")
        self.authority.cert_pem.write_to_path(f"{directory}/ca.pem")
        self.install(self.authority)

    def install(self, authority: trustme.CA) -> None:
        issued = authority.issue_cert("localhost", "127.0.0.1")
        _replace(self.files.key, issued.private_key_pem.bytes())
        _replace(self.files.cert, b"".join(blob.bytes() for blob in issued.cert_chain_pems))

    def client(self, authority: trustme.CA | None = None, trusts: trustme.CA | None = None) -> grpc.ChannelCredentials:
        """With a certificate of `authority`, if any; who trusts `trusts`, or this authority."""
        root = (trusts or self.authority).cert_pem.bytes()
        if authority is None:
            return grpc.ssl_channel_credentials(root)
        issued = authority.issue_cert("client@example.org")
        chain = b"".join(blob.bytes() for blob in issued.cert_chain_pems)
        return grpc.ssl_channel_credentials(root, issued.private_key_pem.bytes(), chain)


def _replace(path: str, content: bytes) -> None:
    """As certificate managers do: a new file under the old name."""
    Path(path + ".new").write_bytes(content)
    os.replace(path + ".new", path)


@pytest.fixture
def certificates(tmp_path: Path) -> Certificates:
    return Certificates(tmp_path)


@pytest_asyncio.fixture
async def factory(tmp_path: Path) -> AsyncIterator[LedgerManagerFactory]:
    factory = create_factory(made(f"sqlite://{tmp_path}/metadata.db"))
    await factory.initialize()
    yield factory
    await factory.close()


def files_of_client(directory: Path) -> ClientTlsFiles:
    return ClientTlsFiles(*(directory / f"client-{name}.pem" for name in ("ca", "cert", "key")))


def install_client(files: ClientTlsFiles, authority: trustme.CA, *trusted: trustme.CA) -> None:
    """A certificate of that authority, for a client that trusts some."""
    issued = authority.issue_cert("client@example.org")
    _replace(str(files.key), issued.private_key_pem.bytes())
    _replace(str(files.cert), b"".join(blob.bytes() for blob in issued.cert_chain_pems))
    _replace(str(files.ca), b"".join(each.cert_pem.bytes() for each in trusted))


async def call(port: int, credentials: grpc.ChannelCredentials) -> str:
    """The cluster's id, over a connection of its own. Raises AioRpcError."""
    options = [("grpc.use_local_subchannel_pool", 1)]
    async with grpc.aio.secure_channel(f"localhost:{port}", credentials, options=options) as channel:
        stub: Any = ServiceDiscoveryStub(channel)
        return str((await stub.GetClusterInfo(sd.GetClusterInfoRequest(), timeout=30)).instance_id)


async def refused(port: int, credentials: grpc.ChannelCredentials) -> bool:
    try:
        await call(port, credentials)
    except grpc.aio.AioRpcError as error:
        return error.code() is grpc.StatusCode.UNAVAILABLE
    return False


async def test_clients_who_trust_the_authority_are_served(
    factory: LedgerManagerFactory, certificates: Certificates
) -> None:
    files = certificates.files
    server = GatewayServer(factory, "localhost", tls=ServerTlsFiles(files.cert, files.key))
    port = await server.start()
    assert len(await call(port, certificates.client())) == 36
    assert await refused(port, certificates.client(trusts=trustme.CA()))
    await server.stop(0)


async def test_client_certificates_where_they_are_required(
    factory: LedgerManagerFactory, certificates: Certificates
) -> None:
    server = GatewayServer(factory, "localhost", tls=certificates.files)
    port = await server.start()
    assert len(await call(port, certificates.client(certificates.authority))) == 36
    assert await refused(port, certificates.client())
    assert await refused(port, certificates.client(trustme.CA()))
    await server.stop(0)


async def test_certificates_that_change_are_used_without_a_restart(
    factory: LedgerManagerFactory, certificates: Certificates
) -> None:
    files = certificates.files
    server = GatewayServer(factory, "localhost", tls=ServerTlsFiles(files.cert, files.key))
    port = await server.start()
    assert len(await call(port, certificates.client())) == 36
    other = trustme.CA()
    certificates.install(other)
    assert len(await call(port, certificates.client(trusts=other))) == 36
    assert await refused(port, certificates.client())
    await server.stop(0)


async def test_half_a_change_leaves_the_old_certificate_in_use(
    factory: LedgerManagerFactory, certificates: Certificates
) -> None:
    files = certificates.files
    server = GatewayServer(factory, "localhost", tls=ServerTlsFiles(files.cert, files.key))
    port = await server.start()
    _replace(files.key, trustme.CA().issue_cert("localhost").private_key_pem.bytes())
    assert len(await call(port, certificates.client())) == 36
    os.unlink(files.key)
    assert len(await call(port, certificates.client())) == 36
    await server.stop(0)


async def test_files_that_can_not_be_used_refuse_the_start(
    factory: LedgerManagerFactory, certificates: Certificates, tmp_path: Path
) -> None:
    files = certificates.files
    with pytest.raises(IncorrectParameterException, match=r"missing\.pem"):
        await GatewayServer(factory, tls=ServerTlsFiles(f"{tmp_path}/missing.pem", files.key)).start()
    with pytest.raises(IncorrectParameterException, match="together"):
        await GatewayServer(factory, tls=ServerTlsFiles(files.key, files.cert)).start()


def _replace_half(files: ClientTlsFiles, authority: trustme.CA, half: str) -> None:
    """As somebody does who is interrupted, or copies a file over the old one in place."""
    assert files.cert is not None
    torn = files.cert.read_bytes()[:300]
    if half == "authorities":
        _replace(str(files.ca), torn)
    elif half == "certificate":
        _replace(str(files.cert), torn)
    else:
        _replace(str(files.cert), authority.issue_cert("client@example.org").cert_chain_pems[0].bytes())


@pytest.mark.parametrize("half", [None, "authorities", "certificate", "pair"])
async def test_a_running_client_connects_with_its_files_as_they_are(
    factory: LedgerManagerFactory,
    certificates: Certificates,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    half: str | None,
) -> None:
    monkeypatch.setattr("bookgate.thinclient.gateways.channel._LOOK_SECONDS", 0.0)
    server = GatewayServer(factory, "localhost", tls=certificates.files)
    port = await server.start()
    files, other = files_of_client(tmp_path), trustme.CA()
    install_client(files, certificates.authority, certificates.authority)
    client = RpcLedgerManagerFactory(f"grpcs://localhost:{port}", timeout=30.0, tls=files)
    await client.initialize()
    await server.stop(0)
    if half is not None:
        _replace_half(files, certificates.authority, half)
        server = GatewayServer(factory, "localhost", port, tls=certificates.files)
        await server.start()
        await client.service_discovery.cluster_info()
        await server.stop(0)
    # Another authority for both sides.
    install_client(files, other, certificates.authority, other)
    certificates.install(other)
    assert certificates.files.client_ca is not None
    _replace(certificates.files.client_ca, other.cert_pem.bytes())
    server = GatewayServer(factory, "localhost", port, tls=certificates.files)
    await server.start()
    await client.service_discovery.cluster_info()
    await client.close()
    await server.stop(0)
