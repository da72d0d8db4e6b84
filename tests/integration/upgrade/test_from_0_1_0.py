"""Directories and metadata that version 0.1.0 left behind serve this version.

`cluster-0.1.0.tar.xz` is a standalone cluster of three bookies that 0.1.0 made and served: ledger 0 is closed, has
1,000 entries, password `secret` and custom metadata; ledger 1 was being written (300 acknowledged entries) when all
ended; ledger 2 was created, written, closed and deleted. Bookies 1 and 2 were stopped in order, bookie 3 was killed
before its first checkpoint, so all it has is in its journal. Bookies have ids of their own and find their ports anew.

`cluster-0.1.0-zookeeper.tar.xz` is the same with its metadata in ZooKeeper, whose directory is in there too. There the
deleted ledger is 3.
"""

from __future__ import annotations

import sqlite3
import tarfile
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest
from kazoo.client import KazooClient

from bookgate import BookKeeper, LedgerId, NoSuchLedgerExistsOnMetadataServerException
from bookgate.bookie.standalone.cluster import StandaloneCluster
from bookgate.bookie.standalone.local_zookeeper import LocalZooKeeper
from bookgate.ledger.metadata import LedgerState
from bookgate.thinclient.tools.single_replica import batches_of_bookie

HERE = Path(__file__).parent
CLOSED, OPEN = (LedgerId.unscoped(each) for each in range(2))

MADE_IN = b"/tmp/bookgate-0.1.0"
"""Where the directories were; cookies name it."""


@dataclass(frozen=True)
class OldCluster:
    """This version's bookies on the directories of 0.1.0."""

    running: StandaloneCluster
    deleted: LedgerId

    @property
    def gateway_uri(self) -> str:
        return self.running.gateway_uri


def _extract(archive: str, directory: Path) -> None:
    """Cookies on the disks name the directories where they are now."""
    with tarfile.open(HERE / archive) as files:
        files.extractall(directory, filter="data")
    for cookie in directory.rglob("VERSION"):
        cookie.write_bytes(cookie.read_bytes().replace(MADE_IN, bytes(directory)))


@contextmanager
def _over_sqlite(directory: Path) -> Iterator[OldCluster]:
    _extract("cluster-0.1.0.tar.xz", directory)
    with closing(sqlite3.connect(directory / "metadata.sqlite")) as store, store:
        for bookie_id, content in store.execute("SELECT bookie_id, content FROM cookies").fetchall():
            moved = content.replace(MADE_IN, bytes(directory))
            store.execute("UPDATE cookies SET content = ? WHERE bookie_id = ?", (moved, bookie_id))
    with StandaloneCluster(directory) as cluster:
        yield OldCluster(cluster, LedgerId.unscoped(2))


@contextmanager
def _over_zookeeper(directory: Path) -> Iterator[OldCluster]:
    _extract("cluster-0.1.0-zookeeper.tar.xz", directory)
    with LocalZooKeeper(directory / "zookeeper") as server:
        zookeeper = KazooClient(server.address)
        zookeeper.start()
        for bookie_id in ("bookie-1", "bookie-2", "bookie-3"):
            path = f"/ledgers/cookies/{bookie_id}"
            zookeeper.set(path, zookeeper.get(path)[0].replace(MADE_IN, bytes(directory)))
        zookeeper.stop()
        zookeeper.close()
        with StandaloneCluster(directory, metadata_uri=server.metadata_uri()) as cluster:
            yield OldCluster(cluster, LedgerId.unscoped(3))


def payload(entry_id: int) -> bytes:
    return b"%d:" % entry_id + bytes([entry_id % 251]) * (entry_id % 400)


@pytest.fixture(scope="module", params=[_over_sqlite, pytest.param(_over_zookeeper, marks=pytest.mark.long)])
def old_cluster(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[OldCluster]:
    with request.param(tmp_path_factory.mktemp("from-0.1.0")) as cluster:
        yield cluster


@pytest.mark.asyncio
async def test_a_closed_ledger_is_read_whole_from_each_bookie_that_held_it(old_cluster: OldCluster) -> None:
    async with await BookKeeper.connect(old_cluster.gateway_uri) as bookkeeper:
        async with await bookkeeper.open_ledger(CLOSED, b"secret") as reader:
            assert reader.metadata.state is LedgerState.CLOSED
            assert reader.metadata.custom_metadata == {"app": b"orders"}
            [fragment] = reader.metadata.fragments
            assert set(fragment.ensemble) == {"bookie-1", "bookie-2", "bookie-3"}
        record = await bookkeeper.ledger_manager.read(CLOSED)
        for bookie_id in fragment.ensemble:
            held = {
                entry.entry_id: entry.payload
                async for batch in batches_of_bookie(bookkeeper, record, b"secret", bookie_id, 0, 999)
                for entry in batch
            }
            assert held == {entry_id: payload(entry_id) for entry_id in range(1000)}


@pytest.mark.asyncio
async def test_a_ledger_whose_writer_was_lost_is_recovered_with_all_that_was_acknowledged(
    old_cluster: OldCluster,
) -> None:
    async with (
        await BookKeeper.connect(old_cluster.gateway_uri) as bookkeeper,
        await bookkeeper.open_ledger(OPEN, b"", recovery=True) as reader,
    ):
        assert reader.last_add_confirmed == 299
        assert [entry.payload async for entry in reader.read(0, 299)] == [payload(each) for each in range(300)]


@pytest.mark.asyncio
async def test_what_was_deleted_stays_deleted_and_ids_go_on(old_cluster: OldCluster) -> None:
    async with await BookKeeper.connect(old_cluster.gateway_uri) as bookkeeper:
        with pytest.raises(NoSuchLedgerExistsOnMetadataServerException):
            await bookkeeper.open_ledger(old_cluster.deleted)
        async with await bookkeeper.create_ledger() as ledger:
            assert ledger.ledger_id > old_cluster.deleted
            await ledger.append(b"by this version")
        async with await bookkeeper.open_ledger(ledger.ledger_id) as reader:
            assert [entry.payload async for entry in reader.read(0, 0)] == [b"by this version"]
