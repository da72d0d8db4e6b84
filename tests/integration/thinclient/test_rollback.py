"""The way back: the same client on a metadata store itself, with nothing but another URI."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from bookgate import BookKeeper
from bookgate.bookie.standalone.cluster import StandaloneCluster
from bookgate.bookie.standalone.local_zookeeper import LocalZooKeeper
from bookgate.ledger.errors import IncorrectParameterException, LedgerFencedException
from tests.integration.cluster import standalone_cluster
from tests.stores import made

__all__ = ["standalone_cluster"]


async def live_with(uri: str, other_uri: str) -> None:
    """What an application does; a ledger written through one URI is listed, recovered and read through the other."""
    async with await BookKeeper.connect(uri) as client, await BookKeeper.connect(other_uri) as other:
        ledger = await client.create_ledger(password=b"planted-secret", custom_metadata={"app": b"test"})
        await ledger.append_all(b"entry %d" % number for number in range(100))
        listed = [record async for page in other.list_ledgers() for record in page]
        assert ledger.ledger_id in [record.ledger_id for record in listed]
        reader = await other.open_ledger(ledger.ledger_id, b"planted-secret", recovery=True)
        entries = [entry.payload async for entry in reader.read(0, reader.last_add_confirmed)]
        assert entries == [b"entry %d" % number for number in range(100)]
        with pytest.raises(LedgerFencedException):
            await ledger.append(b"late")
        assert {b.bookie_id for b in await client.bookies()} == {b.bookie_id for b in await other.bookies()}
        await client.delete_ledger(ledger.ledger_id)


@pytest.mark.asyncio
async def test_on_the_embedded_store(standalone_cluster: StandaloneCluster) -> None:
    await live_with(standalone_cluster.metadata_uri, standalone_cluster.gateway_uri)


@pytest.mark.asyncio
async def test_on_zookeeper(zookeeper: LocalZooKeeper, tmp_path: Path) -> None:
    uri = made(zookeeper.metadata_uri("/rollback/ledgers"))
    with StandaloneCluster(tmp_path, metadata_uri=uri) as cluster:
        await live_with(cluster.gateway_uri, uri)
        await live_with(uri, cluster.gateway_uri)


def test_the_command_takes_a_store(standalone_cluster: StandaloneCluster) -> None:
    command = [sys.executable, "-m", "bookgate", "bookie", "list", "--json"]
    command += ["--metadata-uri", standalone_cluster.metadata_uri]
    done = subprocess.run(command, capture_output=True, text=True, env=os.environ, timeout=60)
    assert done.returncode == 0, done.stderr
    assert len(json.loads(done.stdout)) == 3


@pytest.mark.asyncio
async def test_a_store_is_not_connected_to_lazily() -> None:
    with pytest.raises(IncorrectParameterException, match="names no gateways"):
        BookKeeper.connect_lazily("zk+hierarchical://127.0.0.1:1/ledgers")
    with pytest.raises(IncorrectParameterException, match="no driver for scheme 'etcd'"):
        await BookKeeper.connect("etcd://127.0.0.1:1/ledgers")
