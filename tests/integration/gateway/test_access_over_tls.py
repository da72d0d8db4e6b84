"""Principals of client certificates; certificates and policy replaced under load without a failed call."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import grpc
import pytest

from bookgate.gateway.server import GatewayServer
from bookgate.gateway.stores.drivers import create_factory
from bookgate.protos.bookkeeper.gateway.v1 import service_discovery_pb2 as sd
from bookgate.protos.bookkeeper.gateway.v1.service_discovery_pb2_grpc import ServiceDiscoveryStub
from bookgate.runtime.security.access_control import AccessControl
from bookgate.runtime.security.settings import SecuritySettings
from tests.access_policy import look_at_files
from tests.integration.gateway.test_tls import Certificates
from tests.stores import made

pytestmark = pytest.mark.asyncio

_RULES = ["subject:CN=([^,]+),.* => \\1", "dns:(.*)\\.example => \\1"]
_POLICY = """
[[bindings]]
principals = ["tls:etl", "tls:batch"]
role = "{role}"
"""


def credentials(certificates: Certificates, *names: str, common_name: str | None = None) -> grpc.ChannelCredentials:
    issued = certificates.authority.issue_cert(*names, common_name=common_name)
    chain = b"".join(blob.bytes() for blob in issued.cert_chain_pems)
    return grpc.ssl_channel_credentials(certificates.authority.cert_pem.bytes(), issued.private_key_pem.bytes(), chain)


async def call(port: int, shown: grpc.ChannelCredentials, metadata: tuple[tuple[str, str], ...] = ()) -> str:
    """The gRPC status, over a connection of its own."""
    options = [("grpc.use_local_subchannel_pool", 1)]
    async with grpc.aio.secure_channel(f"localhost:{port}", shown, options=options) as channel:
        stub: Any = ServiceDiscoveryStub(channel)
        try:
            await stub.GetClusterInfo(sd.GetClusterInfoRequest(), timeout=30, metadata=metadata)
        except grpc.aio.AioRpcError as error:
            return error.code().name
    return "OK"


async def test_certificates_are_principals_and_all_may_change_under_load(tmp_path: Path) -> None:
    certificates = Certificates(tmp_path)
    policy = tmp_path / "policy.toml"
    policy.write_text(_POLICY.format(role="reader"))
    settings = SecuritySettings(security_policy=policy, security_principal_rules=_RULES)
    access = AccessControl.from_settings(settings, certificates=True)
    assert access is not None
    factory = create_factory(made(f"sqlite://{tmp_path}/metadata.db"))
    await factory.initialize()
    server = GatewayServer(factory, tls=certificates.files, access=access)
    port = await server.start()
    try:
        etl = credentials(certificates, "host.example", common_name="etl")
        assert await call(port, etl) == "OK"
        assert await call(port, credentials(certificates, "batch.example")) == "OK"
        assert await call(port, credentials(certificates, "etl.elsewhere")) == "PERMISSION_DENIED"
        # A token that is not taken is not made good by a certificate.
        assert await call(port, etl, (("authorization", "Bearer x"),)) == "UNAUTHENTICATED"
        stop = asyncio.Event()
        outcomes: list[str] = []

        done = asyncio.Semaphore(0)

        async def load() -> None:
            while not stop.is_set():
                outcomes.append(await call(port, etl))
                done.release()

        loads = [asyncio.ensure_future(load()) for _ in range(3)]
        for role in ("writer", "admin", "reader"):
            certificates.install(certificates.authority)
            policy.write_text("broken")
            look_at_files(access)
            policy.write_text(_POLICY.format(role=role))
            look_at_files(access)
            async with asyncio.timeout(60):
                for _ in range(6):
                    await done.acquire()
        stop.set()
        await asyncio.gather(*loads)
        assert set(outcomes) == {"OK"}
        policy.write_text(_POLICY.format(role="bookie").replace("etl", "other"))
        look_at_files(access)
        assert await call(port, etl) == "PERMISSION_DENIED"
    finally:
        await server.stop(0)
        await factory.close()
