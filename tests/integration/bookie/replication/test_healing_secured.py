"""A cluster with TLS and tokens on every port heals itself: its bookies are each other's clients."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from bookgate import BookKeeper, ClientConfig
from bookgate.bookie.standalone.cluster import StandaloneCluster
from bookgate.gateway.stores.drivers import create_factory
from tests.integration.bookie.certificates import Files
from tests.integration.bookie.replication import healing

CONFIG = """
auto_recovery = true
lost_bookie_recovery_delay_seconds = 0
tls_cert = "{certificate}"
tls_key = "{key}"
tls_required = true
auth_provider = "bookgate-token"
auth_options = {{ file = "{tokens}" }}
[gateway]
tls_cert = "{certificate}"
tls_key = "{key}"
[client]
"""


@pytest.mark.long
@pytest.mark.asyncio
async def test_a_secured_cluster_heals(tmp_path: Path) -> None:
    files = Files(tmp_path)
    token = tmp_path / "token"
    token.write_text("open sesame\n")
    secured: dict[str, Any] = {
        "tls_ca": str(files.authority),
        "bookie_tls": "start-tls",
        "auth_provider": "bookgate-token",
        "auth_token_file": str(token),
    }
    config = tmp_path / "bookie.toml"
    table = "".join(f'{key} = "{value}"\n' for key, value in secured.items())
    config.write_text(CONFIG.format(certificate=files.certificate, key=files.key, tokens=files.tokens) + table)
    with StandaloneCluster(tmp_path / "cluster", 4, bookie_options=(f"--config={config}",)) as cluster:
        factory = create_factory(cluster.metadata_uri)
        await factory.initialize()
        settings = ClientConfig(
            gateways=cluster.gateway_uri.replace("grpc://", "grpcs://"),
            **secured,
            add_timeout_seconds=60,
            read_timeout_seconds=60,
        )
        try:
            async with await BookKeeper.connect(config=settings) as client:
                acknowledged = await healing.filled(client, 10)
                record = await factory.ledger_manager.read(next(iter(acknowledged)))
                lost = min(record.metadata.bookies)
                await asyncio.to_thread(cluster.processes[int(lost.removeprefix("bookie-")) - 1].kill)
                await healing.until_healed(factory, {lost})
                assert await healing.audit(factory, client, acknowledged) == 10 * 20 * 3
        finally:
            await factory.close()
