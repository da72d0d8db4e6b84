"""Directories and metadata that version 0.1.0 left behind serve this version.

`cluster-0.1.0.tar.xz` is a standalone cluster of three bookies that 0.1.0 made and served: ledger 0 is closed, has
1,000 entries, password `secret` and custom metadata; ledger 1 was being written (300 acknowledged entries) when all
ended; ledger 2 was created, written, closed and deleted. Bookies 1 and 2 were stopped in order, bookie 3 was killed
before its first checkpoint, so all it has is in its journal. Bookies have ids of their own and find their ports anew.
"""

from __future__ import annotations

import contextlib
import sqlite3
import tarfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from bookgate import BookKeeper, LedgerId, NoSuchLedgerExistsOnMetadataServerException
from bookgate.bookie.standalone.cluster import StandaloneCluster
from bookgate.ledger.metadata import LedgerState
from bookgate.thinclient.tools.single_replica import batches_of_bookie

ARCHIVE = Path(__file__).with_name("cluster-0.1.0.tar.xz")
CLOSED, OPEN, DELETED = (LedgerId.unscoped(each) for each in range(3))


MADE_IN = "/tmp/bookgate-0.1.0"
"""Where the directories were; cookies name it."""


def _move(old: str, new: Path) -> None:
    """Cookies, on the disks and in the store, name the directories where they are now."""
    for cookie in new.rglob("VERSION"):
        cookie.write_text(cookie.read_text().replace(old, str(new)))
    with contextlib.closing(sqlite3.connect(new / "metadata.sqlite")) as store, store:
        for bookie_id, content in store.execute("SELECT bookie_id, content FROM cookies").fetchall():
            moved = content.replace(old.encode(), str(new).encode())
            store.execute("UPDATE cookies SET content = ? WHERE bookie_id = ?", (moved, bookie_id))


def payload(entry_id: int) -> bytes:
    return b"%d:" % entry_id + bytes([entry_id % 251]) * (entry_id % 400)


@pytest.fixture(scope="module")
def old_cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[StandaloneCluster]:
    """This version's bookies on the directories of 0.1.0."""
    directory = tmp_path_factory.mktemp("from-0.1.0")
    with tarfile.open(ARCHIVE) as archive:
        archive.extractall(directory, filter="data")
    _move(MADE_IN, directory)
    with StandaloneCluster(directory) as cluster:
        yield cluster


@pytest.mark.asyncio
async def test_a_closed_ledger_is_read_whole_from_each_bookie_that_held_it(old_cluster: StandaloneCluster) -> None:
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
    old_cluster: StandaloneCluster,
) -> None:
    async with (
        await BookKeeper.connect(old_cluster.gateway_uri) as bookkeeper,
        await bookkeeper.open_ledger(OPEN, b"", recovery=True) as reader,
    ):
        assert reader.last_add_confirmed == 299
        assert [entry.payload async for entry in reader.read(0, 299)] == [payload(each) for each in range(300)]


@pytest.mark.asyncio
async def test_what_was_deleted_stays_deleted_and_ids_go_on(old_cluster: StandaloneCluster) -> None:
    async with await BookKeeper.connect(old_cluster.gateway_uri) as bookkeeper:
        with pytest.raises(NoSuchLedgerExistsOnMetadataServerException):
            await bookkeeper.open_ledger(DELETED)
        async with await bookkeeper.create_ledger() as ledger:
            assert ledger.ledger_id > DELETED
            await ledger.append(b"by this version")
        async with await bookkeeper.open_ledger(ledger.ledger_id) as reader:
            assert [entry.payload async for entry in reader.read(0, 0)] == [b"by this version"]
