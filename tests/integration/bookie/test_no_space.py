"""Disks that are really full: what was acknowledged is there, reads go on, and writes as soon as there is room."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import shutil
import subprocess
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest

from bookgate.bookie.index.file_format import IndexHeader, SlotRun, slot_runs
from bookgate.bookie.index.rocksdb_index import RocksDbIndex
from bookgate.bookie.index.rocksdb_rows import SCOPED_LOCATIONS
from bookgate.bookie.index.rocksdb_sequences import SCOPED_SEQUENCES_FILE, SEQUENCES_FILE, Sequences
from bookgate.bookie.system.data_loss import refuse_loss
from bookgate.bookie.system.files import REAL_FILE_SYSTEM
from bookgate.ledger.ledger_id import LedgerId
from bookgate.ledger.wire.messages import AddResponse, ReadResponse, Status
from tests.integration.bookie.entry_client import EntryClient, add, fence, packet, read
from tests.integration.bookie.test_read_only import Running, running, sqlite

pytestmark = pytest.mark.asyncio

SIZE_MB = 48
FILLER_MB = 16
PAYLOAD = 64 * 1024
LEDGER = 9


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of its own, part of which a file takes that a test may remove."""
    disk = tmp_path / "disk"
    disk.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", f"size={SIZE_MB}m", "none", str(disk)]
    try:
        result = subprocess.run(mount, capture_output=True, text=True, check=False)
    except FileNotFoundError:
        pytest.skip("no mount command here")
    if result.returncode:
        pytest.skip(f"mounting a small file system is not permitted here: {result.stderr.strip()}")
    try:
        filler(disk).write_bytes(bytes(FILLER_MB << 20))
        yield disk
    finally:
        subprocess.run(["umount", "-l", str(disk)], check=False)


def filler(disk: Path) -> Path:
    return disk / "filler"


def body(entry_id: int) -> bytes:
    return packet(LEDGER, entry_id, entry_id.to_bytes(8, "big") * (PAYLOAD // 8))


def add_until_refused(client: EntryClient) -> tuple[int, list[int]]:
    """Adds entries, some at a time; how many were acknowledged before the first that was not, and all errors."""
    entry_id, errors = 0, list[int]()
    while not errors:
        batch = range(entry_id, entry_id + 8)
        client.send(*(add(LEDGER, each, body=body(each)) for each in batch))
        statuses = {}
        for _ in batch:
            answer = client.receive()
            assert isinstance(answer, AddResponse)
            statuses[answer.entry_id] = answer.status
        assert sorted(statuses) == list(batch)
        errors = [status for status in statuses.values() if status != Status.EOK]
        while entry_id in batch and statuses[entry_id] == Status.EOK:
            entry_id += 1
        assert entry_id < 10_000, "the disk never got full"
    return entry_id, errors


def wrong_reads(client: EntryClient, count: int) -> list[int]:
    wrong = []
    for entry_id in range(count):
        answer = client.ask(read(LEDGER, entry_id))
        if not isinstance(answer, ReadResponse) or answer.body != body(entry_id):
            wrong.append(entry_id)
    return wrong


@contextlib.asynccontextmanager
async def connected(bookie: Running) -> AsyncIterator[EntryClient]:
    client = await asyncio.to_thread(EntryClient, bookie.server.addresses["bookie"] or "")
    with client:
        yield client


PLACES = {
    "journal": ["journal_directory"],
    "ledgers": ["ledger_directory"],
    "both": ["journal_directory", "ledger_directory"],
}


KINDS = [*((place, "sorted") for place in sorted(PLACES)), ("ledgers", "db"), ("both", "db")]


@pytest.mark.parametrize(("place", "storage"), KINDS)
async def test_a_full_disk_is_survived(place: str, storage: str, tmp_path: Path, small_disk: Path) -> None:
    settings: dict[str, Any] = {name: small_disk / name.partition("_")[0] for name in PLACES[place]}
    settings |= {"storage_type": storage}
    settings |= {"write_cache_mb": 4, "flush_interval_seconds": 0.2, "bookie_id": "small", "journal_max_backups": 0}
    uri = sqlite(tmp_path)
    async with running(tmp_path, uri, **settings) as bookie, connected(bookie) as client:
        acknowledged, errors = await asyncio.to_thread(add_until_refused, client)
        assert set(errors) <= {Status.EIO, Status.EREADONLY}
        await bookie.until_listed(0, 1)
        assert await bookie.status(add(LEDGER + 1, 0)) == Status.EREADONLY
        # Recovery would write as well.
        assert await bookie.status(add(LEDGER + 1, 0)._replace(priority=100)) == Status.EREADONLY
        assert await asyncio.to_thread(wrong_reads, client, acknowledged) == []
        # The journal takes a fence as long as it has space.
        fenced = await bookie.status(fence(LEDGER + 2))
        assert fenced in ({Status.ENOENTRY} if place == "ledgers" else {Status.EIO, Status.ENOENTRY})

        filler(small_disk).unlink()
        await bookie.until_listed(1, 0)
        assert await bookie.status(add(LEDGER, acknowledged, body=body(acknowledged))) == Status.EOK
        assert await asyncio.to_thread(wrong_reads, client, acknowledged + 1) == []
        # Asked again, the fence is durable.
        assert await bookie.status(fence(LEDGER + 2)) == Status.ENOENTRY
    async with running(tmp_path, uri, **settings) as bookie, connected(bookie) as client:
        assert await asyncio.to_thread(wrong_reads, client, acknowledged + 1) == []
        assert await bookie.status(add(LEDGER + 2, 0)) == Status.EFENCED


def fill(path: Path) -> None:
    """Takes every byte that is left."""
    with contextlib.suppress(OSError), path.open("ab", buffering=0) as file:
        for size in (1 << 20, 1 << 12, 1):
            with contextlib.suppress(OSError):
                while True:
                    file.write(bytes(size))


@pytest.mark.parametrize(("place", "storage"), KINDS)
async def test_a_start_on_a_full_disk_serves_everything(
    place: str, storage: str, tmp_path: Path, small_disk: Path
) -> None:
    """What only the journal has is read back, nothing is taken, and with room the bookie goes on."""
    settings: dict[str, Any] = {name: small_disk / name.partition("_")[0] for name in PLACES[place]}
    settings |= {"storage_type": storage}
    settings |= {"write_cache_mb": 4, "bookie_id": "small", "journal_max_backups": 0, "persist_bookie_status": True}
    uri = sqlite(tmp_path)
    async with running(tmp_path, uri, **settings, flush_interval_seconds=3600) as bookie:
        for entry_id in range(8):
            assert await bookie.status(add(LEDGER, entry_id, body=body(entry_id))) == Status.EOK
        assert await bookie.status(fence(LEDGER + 1)) == Status.ENOENTRY
        fill(filler(small_disk))
    settings |= {"flush_interval_seconds": 0.2}
    journals = sorted((settings.get("journal_directory") or tmp_path / "data" / "journal").glob("current/*.txn"))
    assert journals
    async with running(tmp_path, uri, **settings) as bookie, connected(bookie) as client:
        await bookie.until_listed(0, 1)
        assert await asyncio.to_thread(wrong_reads, client, 8) == []
        assert await bookie.status(add(LEDGER, 8, body=body(8))) == Status.EREADONLY
        assert all(path.exists() for path in journals)

        filler(small_disk).unlink()
        await bookie.until_listed(1, 0)
        assert await bookie.status(add(LEDGER, 8, body=body(8))) == Status.EOK
        assert await bookie.status(add(LEDGER + 1, 0)) == Status.EFENCED
        assert await asyncio.to_thread(wrong_reads, client, 9) == []
    async with running(tmp_path, uri, **settings) as bookie, connected(bookie) as client:
        assert await asyncio.to_thread(wrong_reads, client, 9) == []


def rows_of(number: int, version: int) -> list[SlotRun]:
    return slot_runs(list(range(1000)), list(range(version, version + 1000)))


async def test_a_database_goes_on_after_a_full_disk(small_disk: Path) -> None:
    """Its reads go on throughout, also where it is opened on the full disk; writes say that there is no space."""
    ledger = LedgerId.unscoped(1)
    header = IndexHeader(b"k" * 20, True, None)
    directory = small_disk / "index"
    directory.mkdir()
    index = RocksDbIndex(REAL_FILE_SYSTEM, directory, 1 << 20)
    index.update(ledger, header, rows_of(1, 1))
    index.sync()
    fill(filler(small_disk))
    for opened_on_full_disk in (False, True):
        if opened_on_full_disk:
            index.close()
            index = RocksDbIndex(REAL_FILE_SYSTEM, directory, 1 << 20)
        entries = index.entry_ids(ledger)
        assert next(entries) == 0
        for number in (2, 3, 2):
            index.update(LedgerId.unscoped(number), header, rows_of(number, 1))
            with pytest.raises(OSError, match="room") as caught:
                index.sync()
            assert caught.value.errno == errno.ENOSPC
            assert index.location(ledger, 7) == 8
            assert index.read_header(ledger) == (header, 999)
            assert list(index.ledger_ids()) == [1]
        assert list(entries) == list(range(1, 1000)), "a reader goes on where it was"
    filler(small_disk).unlink()
    index.update(LedgerId.unscoped(2), header, rows_of(2, 1))
    index.sync()
    assert index.location(LedgerId.unscoped(2), 7) == 8
    index.close()
    index = RocksDbIndex(REAL_FILE_SYSTEM, directory, 1 << 20)
    assert list(index.ledger_ids()) == [1, 2]
    assert list(index.entry_ids(LedgerId.unscoped(2))) == list(range(1000))
    index.close()


async def test_a_batch_that_may_not_be_durable_is_not_missed_after_a_loss_of_power(
    tmp_path: Path, small_disk: Path
) -> None:
    """A process was killed while it synced the batch, and the next one opened the database on a full disk."""
    ledger, header, directory = LedgerId.unscoped(1), IndexHeader(b"k" * 20, False, None), small_disk / "index"

    def open_index() -> RocksDbIndex:
        index = RocksDbIndex(REAL_FILE_SYSTEM, directory, 1 << 20, sequences=Sequences(REAL_FILE_SYSTEM, stored))
        index.find_lost(True, refuse_loss)
        return index

    directory.mkdir()
    stored = tmp_path / SEQUENCES_FILE
    index = open_index()
    index.update(ledger, header, rows_of(1, 1))
    index.sync()
    shutil.copytree(directory, tmp_path / "durable")
    index.update(ledger, None, rows_of(1, 5000))
    index._unscoped._write_locations()
    index.close()
    fill(filler(small_disk))
    index = open_index()
    with pytest.raises(OSError, match="room"):
        index.read_back(())
    index.close()
    filler(small_disk).unlink()
    shutil.rmtree(directory)
    shutil.copytree(tmp_path / "durable", directory)
    open_index().close()


@pytest.mark.parametrize("room", [0, 16 << 10, 64 << 10])
async def test_an_index_whose_first_scoped_ledger_met_a_full_disk_opens_on_it(
    room: int, tmp_path: Path, small_disk: Path
) -> None:
    """RocksDB leaves unfinished databases: none, the first or a part of the second."""
    directory, spare = small_disk / "index", small_disk / "spare"
    directory.mkdir()
    spare.write_bytes(bytes(room))

    def open_index() -> RocksDbIndex:
        sequences = Sequences(REAL_FILE_SYSTEM, tmp_path / SCOPED_SEQUENCES_FILE)
        return RocksDbIndex(REAL_FILE_SYSTEM, directory, 1 << 20, scoped_sequences=sequences)

    ledger, header = LedgerId(5, 1), IndexHeader(b"k" * 20, True, None)
    index = open_index()
    index.update(LedgerId.unscoped(1), header, rows_of(1, 1))
    index.sync()
    fill(filler(small_disk))
    spare.unlink()
    for _ in range(2):
        with pytest.raises(OSError, match="room") as caught:
            index.update(ledger, header, rows_of(1, 1))
        assert caught.value.errno == errno.ENOSPC
        index.close()
        assert (directory / SCOPED_LOCATIONS).exists()
        fill(filler(small_disk))
        index = open_index()
        assert index.location(LedgerId.unscoped(1), 7) == 8
    filler(small_disk).unlink()
    index.update(ledger, header, rows_of(1, 1))
    index.sync()
    index.close()
    index = open_index()
    assert index.read_header(ledger) == (header, 999)
    index.close()


async def test_a_bookie_that_is_stopped_without_space_keeps_everything(tmp_path: Path, small_disk: Path) -> None:
    settings: dict[str, Any] = {"ledger_directory": small_disk / "ledgers", "bookie_id": "small"}
    settings |= {"write_cache_mb": 4, "flush_interval_seconds": 0.2}
    async with running(tmp_path, sqlite(tmp_path), **settings) as bookie, connected(bookie) as client:
        acknowledged, _ = await asyncio.to_thread(add_until_refused, client)
    filler(small_disk).unlink()
    async with running(tmp_path, sqlite(tmp_path), **settings) as bookie, connected(bookie) as client:
        assert await asyncio.to_thread(wrong_reads, client, acknowledged) == []
        assert await bookie.status(add(LEDGER, acknowledged, body=body(acknowledged))) == Status.EOK
