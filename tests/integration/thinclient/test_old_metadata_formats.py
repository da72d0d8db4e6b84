"""Ledgers whose metadata an old client wrote (formats 1 and 2): all goes on, and the format stays."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from typer.testing import CliRunner

from bookgate.bookie.standalone.cluster import StandaloneCluster
from bookgate.bookie.standalone.local_zookeeper import LocalZooKeeper
from bookgate.gateway.config import GatewayConfig
from bookgate.gateway.stores.drivers import create_factory
from bookgate.ledger.errors import BKException, IllegalOpException, UnauthorizedAccessException
from bookgate.ledger.ledger_id import LedgerId
from bookgate.ledger.metadata import DigestType, LedgerMetadata, LedgerState
from bookgate.ledger.metadata_store import BookieSet, LedgerManagerFactory, LedgerRecord
from bookgate.thinclient.client import BookKeeper
from bookgate.thinclient.commands.main import app
from bookgate.thinclient.config import ClientConfig

pytestmark = pytest.mark.asyncio

PASSWORD = b"planted-secret"
ENTRIES = [b"one", b"two", b"three"]
FORMATS = ["1", "2", "2 without password"]


@pytest.fixture(scope="module", params=["sqlite", "zookeeper"])
def cluster(
    request: pytest.FixtureRequest, zookeeper: LocalZooKeeper, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[StandaloneCluster]:
    uri = zookeeper.metadata_uri("/old-formats") if request.param == "zookeeper" else None
    with StandaloneCluster(tmp_path_factory.mktemp("old"), bookies=4, metadata_uri=uri) as running:
        yield running


def in_format(metadata: LedgerMetadata, name: str) -> LedgerMetadata:
    metadata = replace(metadata, format_version=int(name[0]), creator_token=0)
    return metadata if name == "2" else replace(metadata, digest_type=None, password=None)


class Old:
    """Ledgers as an old client left them: entries on real bookies, and metadata put into the store itself."""

    def __init__(self, client: BookKeeper, store: LedgerManagerFactory, name: str) -> None:
        self._client = client
        self._store = store
        self._name = name

    async def ledger(self, *, closed: bool, digest: DigestType = DigestType.CRC32) -> LedgerRecord:
        handle = await self._client.create_ledger(3, 3, 3, digest, PASSWORD)
        for entry in ENTRIES:
            await handle.append(entry)
        if closed:
            await handle.close()
        manager = self._store.ledger_manager
        metadata = in_format((await manager.read(handle.ledger_id)).metadata, self._name)
        await manager.remove(handle.ledger_id, None)
        await manager.create(handle.ledger_id, metadata)
        return await self.stored(handle.ledger_id)

    async def stored(self, ledger_id: LedgerId) -> LedgerRecord:
        record = await self._store.ledger_manager.read(ledger_id)
        assert record.metadata.format_version == int(self._name[0])
        assert (record.metadata.password is None) is (self._name != "2")
        return record


async def payloads(client: BookKeeper, ledger_id: LedgerId) -> list[bytes]:
    async with await client.open_ledger(ledger_id, PASSWORD) as handle:
        return [entry.payload async for entry in handle.read(0, len(ENTRIES) - 1)]


@pytest.mark.parametrize("name", FORMATS)
async def test_a_ledger_of_an_old_format(
    name: str, cluster: StandaloneCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BOOKGATE_GATEWAYS", cluster.gateway_uri)
    uri = cluster.metadata_uri
    store = create_factory(uri, GatewayConfig.load(None, {"metadata_uri": uri}))
    await store.initialize()
    async with await BookKeeper.connect(cluster.gateway_uri) as client:
        old = Old(client, store, name)

        closed = await old.ledger(closed=True)
        assert await payloads(client, closed.ledger_id) == ENTRIES
        listed = [record async for page in client.list_ledgers() for record in page]
        assert next(record.metadata for record in listed if record.ledger_id == closed.ledger_id).is_closed

        left = await old.ledger(closed=False)
        # Where the metadata have no password only bookies know it.
        with pytest.raises(UnauthorizedAccessException):
            await client.open_ledger(left.ledger_id, b"wrong", recovery=True)
        assert not (await old.stored(left.ledger_id)).metadata.is_closed
        async with await client.open_ledger(left.ledger_id, PASSWORD, recovery=True) as handle:
            assert [entry.payload async for entry in handle.read(0, 2)] == ENTRIES
        recovered = (await old.stored(left.ledger_id)).metadata
        assert (recovered.state, recovered.last_entry_id, recovered.length) == (LedgerState.CLOSED, 2, 11)
        assert await payloads(client, left.ledger_id) == ENTRIES

        mac = await old.ledger(closed=False, digest=DigestType.HMAC)
        if name != "2":
            with pytest.raises(BKException, match=r"entry 2 of ledger .* the digest does not match"):
                await payloads(client, mac.ledger_id)
        config = ClientConfig(gateways=cluster.gateway_uri, undeclared_digest_type="hmac")
        async with (
            await BookKeeper.connect(config=config) as other,
            await other.open_ledger(mac.ledger_id, PASSWORD, recovery=True) as handle,
        ):
            assert [entry.payload async for entry in handle.read(0, 2)] == ENTRIES
        await old.stored(mac.ledger_id)

        empty = await old.ledger(closed=False)
        if name != "2":
            with pytest.raises(IllegalOpException, match="old format"):
                await client.reopen_empty_ledger(empty.ledger_id, PASSWORD)

        # To a file and back.
        number, file = str(closed.ledger_id.low), str(tmp_path / "dump")
        run = CliRunner().invoke
        for arguments in (
            ["ledger", "show", number, "--json"],
            ["ledger", "metadata", "dump", number, file],
            ["ledger", "delete", number, "--yes"],
            ["ledger", "metadata", "restore", number, file, "--yes"],
        ):
            result = await asyncio.to_thread(run, app, arguments)
            assert result.exit_code == 0, (arguments, result.output, result.stderr)
            if arguments[1] == "show":
                shown = json.loads(result.stdout)
                assert shown["digest_type"] == ("CRC32" if name == "2" else None)
        restored = (await store.ledger_manager.read(closed.ledger_id)).metadata
        assert replace(restored, format_version=closed.metadata.format_version, creator_token=0) == closed.metadata
        assert await payloads(client, closed.ledger_id) == ENTRIES
    await store.close()


@pytest.mark.long
@pytest.mark.parametrize("name", FORMATS)
async def test_recovery_replaces_a_bookie_in_an_old_format(name: str, tmp_path: Path) -> None:
    with StandaloneCluster(tmp_path / "cluster", bookies=4) as cluster:
        store = create_factory(cluster.metadata_uri, GatewayConfig.load(None, {"metadata_uri": cluster.metadata_uri}))
        await store.initialize()
        async with await BookKeeper.connect(cluster.gateway_uri) as client:
            old = Old(client, store, name)
            left = await old.ledger(closed=False)
            gone = left.metadata.fragments[0].ensemble[0]
            next(process for process in cluster.processes if process.bookie_id == gone).kill()
            async with await client.open_ledger(left.ledger_id, PASSWORD, recovery=True) as handle:
                assert [entry.payload async for entry in handle.read(0, 2)] == ENTRIES
            recovered = (await old.stored(left.ledger_id)).metadata
            assert recovered.last_entry_id == 2
            assert gone not in recovered.last_fragment.ensemble
            assert len(await client.bookies(BookieSet.ALL)) == 4
        await store.close()
