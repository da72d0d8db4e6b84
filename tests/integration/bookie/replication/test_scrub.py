"""The scrub on real bookie processes: bytes that rotted on one disk are found, marked and written anew."""

from __future__ import annotations

import asyncio
import contextlib
import random
import sqlite3
from collections.abc import AsyncIterator, Iterable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from pyroaring import BitMap64

from bookgate import BookKeeper, WriteHandle
from bookgate.bookie.replication.audits.auditor import AuditorOptions
from bookgate.bookie.replication.auto_recovery import AutoRecovery, AutoRecoveryOptions
from bookgate.bookie.replication.checks import scrub as module
from bookgate.bookie.replication.checks.replica_check import ReplicaCheckOptions
from bookgate.bookie.replication.checks.scrub import Scrub, ScrubOptions
from bookgate.bookie.replication.checks.scrub_progress import ScrubProgress
from bookgate.bookie.replication.copies.bookies import Bookies
from bookgate.bookie.replication.copies.budget import CopyLimits
from bookgate.bookie.replication.copies.corrupt_copies import decode_corrupt
from bookgate.bookie.replication.repairs.tools import WorkerTools
from bookgate.ledger.corrupt_copies import encode
from bookgate.ledger.errors import BKException, DigestMatchException, ReadException
from bookgate.ledger.ledger_id import LedgerId
from bookgate.ledger.metadata import DigestType, LedgerMetadata
from bookgate.ledger.metadata_store import BookieSet, LedgerManagerFactory
from bookgate.ledger.replication_store import RecordKind
from bookgate.thinclient.tools.single_replica import batches_of_bookie
from tests.integration.bookie.replication.test_auditor_metrics import register
from tests.integration.bookie.replication.test_auto_recovery import metadata_of
from tests.integration.bookie.replication.test_draining import until_unregistered
from tests.integration.bookie.replication.test_replica_check import CLIENT, claims_too_much, marked, moved, until
from tests.integration.bookie.replication.test_worker import PASSWORD, check, payload, written
from tests.integration.thinclient.forked_cluster import ForkedCluster, forked_cluster

pytestmark = pytest.mark.asyncio


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[ForkedCluster]:
    with forked_cluster(tmp_path, 4) as running:
        yield running


@contextlib.asynccontextmanager
async def scrubbing(
    factory: LedgerManagerFactory, bytes_a_second: float = 1e9, interval_seconds: float = 3600.0
) -> AsyncIterator[Scrub]:
    """The scrub alone, in office."""
    tools = WorkerTools(factory, CLIENT, random.Random(1), CopyLimits())
    options = ScrubOptions(bytes_a_second, interval_seconds, first_pause_seconds=0.02)
    scrub = Scrub(factory, tools.repair.client, tools.repair.bookies, options)
    scrub.allow(True)
    try:
        yield scrub
    finally:
        await scrub.stop()
        await tools.close()


async def stopped(cluster: ForkedCluster, factory: LedgerManagerFactory, bookie_id: str) -> None:
    """All that it has is in its entry logs then."""
    await asyncio.to_thread(cluster.bookies[bookie_id].stop)
    await until_unregistered(factory, bookie_id)


async def started(cluster: ForkedCluster, factory: LedgerManagerFactory, bookie_id: str) -> None:
    await asyncio.to_thread(cluster.start, bookie_id)
    async with asyncio.timeout(60):
        while not any(  # noqa: ASYNC110 - polled, as elsewhere
            each.bookie_id == bookie_id for each in await factory.service_discovery.bookies(BookieSet.WRITABLE)
        ):
            await asyncio.sleep(0.05)


def rot(home: Path, number: int, *, ids: bool = False) -> None:
    """Turns over a bit of the payload of that entry in the entry logs, or of its ids."""
    content = payload(number)
    for log in home.rglob("*.log"):
        data = bytearray(log.read_bytes())
        at = data.find(content)
        if at >= 0:
            # Ledger id, entry id, last add confirmed, length and a digest of 4 bytes are before it.
            data[at - 36 + 15 if ids else at] ^= 4
            log.write_bytes(data)
            return
    raise AssertionError(f"no entry {number} below {home}")


async def rotten(
    cluster: ForkedCluster, factory: LedgerManagerFactory, root: Path, bookie_id: str, *entries: int, ids: bool = False
) -> None:
    await stopped(cluster, factory, bookie_id)
    for number in entries:
        rot(root / bookie_id, number, ids=ids)
    await started(cluster, factory, bookie_id)


async def read_from(client: BookKeeper, factory: LedgerManagerFactory, ledger: WriteHandle, bookie_id: str) -> None:
    """What that bookie alone answers is right. Raises its error."""
    record = await factory.ledger_manager.read(ledger.ledger_id)
    last = record.metadata.last_entry_id
    async with contextlib.aclosing(batches_of_bookie(client, record, PASSWORD, bookie_id, 0, last)) as batches:
        async for batch in batches:
            for entry in batch:
                assert entry.payload == payload(entry.entry_id)


async def progress_of(factory: LedgerManagerFactory) -> ScrubProgress:
    stored = await factory.replication_metadata.read_record(RecordKind.PROGRESS, "scrub")
    return ScrubProgress() if stored is None else ScrubProgress.decode(stored.value)


async def corrupt_of(factory: LedgerManagerFactory) -> dict[str, dict[str, list[int]]]:
    """By ledger and bookie the entries recorded."""
    found = await factory.replication_metadata.records(RecordKind.CORRUPT_LEDGER)
    return {key: {name: list(ids) for name, ids in decode_corrupt(each.value).items()} for key, each in found.items()}


@pytest.mark.parametrize(
    ("sizes", "ids", "error"),
    [
        pytest.param((3, 3, 2), False, DigestMatchException, marks=pytest.mark.long),
        ((4, 2, 2), False, DigestMatchException),
        pytest.param((3, 3, 2), True, ReadException, marks=pytest.mark.long),
    ],
    ids=["payload", "striped", "ids"],
)
async def test_what_rotted_on_a_disk_is_found_and_healed_in_place(
    cluster: ForkedCluster, tmp_path: Path, sizes: tuple[int, int, int], ids: bool, error: type[BKException]
) -> None:
    async with metadata_of(cluster) as factory, await cluster.client() as client:
        ledger = await written(client, 60, *sizes)
        sound = [await written(client, 3, 3, 3, 2) for _ in range(3)]
        bookie_id = ledger.metadata.fragments[0].ensemble[17 % sizes[0]]
        before = await factory.ledger_manager.read(ledger.ledger_id)
        await rotten(cluster, factory, tmp_path, bookie_id, 17, ids=ids)
        with pytest.raises(error):
            await read_from(client, factory, ledger, bookie_id)
        auditor = AuditorOptions(lost_bookie_delay_seconds=3600)
        options = AutoRecoveryOptions(auditor, check=ReplicaCheckOptions(0), scrub=ScrubOptions(1e9))
        running = AutoRecovery(factory, "here", options, CLIENT)
        await running.start()
        try:
            await until(lambda: running.scrub.statistics.corrupt)
            assert running.scrub.statistics.corrupt == 1
            await until(lambda: running.worker.statistics.ledgers_repaired)
            await until(lambda: running.scrub.statistics.passes)
        finally:
            await running.stop()
        await read_from(client, factory, ledger, bookie_id)
        assert await factory.ledger_manager.read(ledger.ledger_id) == before, "it was healed in place"
        assert running.copied_entries == 1
        assert await corrupt_of(factory) == {}
        assert await marked(factory) == {}
        assert (await progress_of(factory)).ended_ms
        # It stays healed when the bookie begins again.
        await stopped(cluster, factory, bookie_id)
        await started(cluster, factory, bookie_id)
        await read_from(client, factory, ledger, bookie_id)
        for each in sound:
            await check(client, each.ledger_id, 3)


async def test_what_is_corrupt_is_recorded_and_marked_for_its_bookie_alone(
    cluster: ForkedCluster, tmp_path: Path
) -> None:
    async with metadata_of(cluster) as factory, await cluster.client() as client:
        ledger = await written(client, 40, 3, 3, 2)
        key, bookie_id = str(ledger.ledger_id.low), ledger.metadata.fragments[0].ensemble[0]
        await rotten(cluster, factory, tmp_path, bookie_id, 5, 6, 30)
        async with scrubbing(factory) as scrub:
            await until(lambda: scrub.statistics.passes)
            assert scrub.statistics.corrupt == 3
            assert scrub.statistics.entries == 3 * 40
        assert await corrupt_of(factory) == {key: {bookie_id: [5, 6, 30]}}
        assert await marked(factory) == {int(key): (bookie_id,)}
        # A worker of BookKeeper finds the first and the last entry well, and takes the mark away.
        store = factory.replication_metadata
        mark = await store.read_mark(int(key))
        assert mark is not None
        await store.delete_mark(int(key), mark.version)
        async with scrubbing(factory) as scrub:
            await until(lambda: scrub.statistics.ended_ms)
            async with asyncio.timeout(30):
                while not await marked(factory):  # noqa: ASYNC110 - polled
                    await asyncio.sleep(0.05)
            assert scrub.statistics.passes == 0, "the next pass is not due"


async def test_no_answer_is_no_corrupt_copy_and_keeps_a_pass_from_being_complete(
    cluster: ForkedCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_SEEN_EVERY_SECONDS", 0.0)
    async with metadata_of(cluster) as factory, await cluster.client() as client:
        ledgers = [await written(client, 10, 3, 3, 2) for _ in range(3)]
        await register(factory, "silent")  # not before, or they may be put there
        await moved(factory, ledgers[0].ledger_id, 0, "silent")
        first = ledgers[0].ledger_id.low
        async with scrubbing(factory) as scrub:
            await until(lambda: scrub.statistics.ledgers_left_out)
            # The others are looked at; a new auditor knows what is left.
            await until(lambda: scrub.statistics.entries >= 2 * 3 * 10)
            async with asyncio.timeout(30):
                while (await progress_of(factory)).left_out != (first,):  # noqa: ASYNC110 - polled
                    await asyncio.sleep(0.05)
        left = await progress_of(factory)
        assert (left.ended_ms, left.ledger_id) == (None, first + 3), "the others are not read again"
        assert await corrupt_of(factory) == {}
        async with scrubbing(factory) as scrub:
            await until(lambda: scrub.statistics.ledgers_left_out)
            await factory.registration_manager.unregister_bookie("silent")
            await until(lambda: scrub.statistics.passes)
        assert (await progress_of(factory)).ended_ms
        assert await marked(factory) == {}


async def test_a_copy_that_is_good_when_it_is_read_again_is_not_corrupt(
    cluster: ForkedCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[tuple[str, int]] = []

    async def said_once(
        _self: Bookies, bookie_id: str, ledger_id: int, ids: Iterable[int], *_secrets: object, unbounded: bool
    ) -> BitMap64:
        found = BitMap64() if (bookie_id, ledger_id) in asked else BitMap64(ids)
        asked.append((bookie_id, ledger_id))
        return found

    async def nothing(*_arguments: object) -> int:
        return 0

    async with metadata_of(cluster) as factory, await cluster.client() as client:
        await written(client, 10, 3, 3, 2)
        monkeypatch.setattr(Bookies, "damaged", said_once)
        monkeypatch.setattr(module._Copies, "_good", nothing)
        async with scrubbing(factory) as scrub:
            await until(lambda: scrub.statistics.passes)
            assert len(asked) == 6
            assert scrub.statistics.corrupt == 0
        assert (await corrupt_of(factory), await marked(factory)) == ({}, {})


async def test_a_new_auditor_goes_on_in_the_middle_of_a_ledger(
    cluster: ForkedCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_PIECES_A_LOOK", 1)
    monkeypatch.setattr(module, "entries_a_piece", lambda _metadata: 10)
    monkeypatch.setattr(module, "_SAVED_EVERY_SECONDS", 0.0)
    async with metadata_of(cluster) as factory, await cluster.client() as client:
        ledger = await written(client, 100, 3, 3, 2)
        number, size = ledger.ledger_id.low, 3 * sum(len(payload(each)) for each in range(100))
        async with scrubbing(factory, bytes_a_second=size / 4) as scrub:
            await until(lambda: scrub.statistics.entries >= 60)
        stopped_at = await progress_of(factory)
        assert stopped_at.ledger_id == number
        assert 10 <= stopped_at.entry_id < 100
        async with scrubbing(factory) as scrub:
            await until(lambda: scrub.statistics.passes)
            assert scrub.statistics.entries == 3 * (100 - stopped_at.entry_id)


async def test_the_rate_bounds_what_is_read(cluster: ForkedCluster) -> None:
    async with metadata_of(cluster) as factory, await cluster.client() as client:
        await written(client, 100, 3, 3, 2)
        size = 3 * sum(len(payload(each)) for each in range(100))
        loop = asyncio.get_running_loop()
        began = loop.time()
        async with scrubbing(factory, bytes_a_second=size) as scrub:
            await until(lambda: scrub.statistics.passes)
            assert loop.time() - began >= 0.5
            assert scrub.statistics.bytes == size
        async with scrubbing(factory, bytes_a_second=0) as never, scrubbing(factory, interval_seconds=0.0) as scrub:
            await until(lambda: scrub.statistics.passes)
            assert never.statistics.ended_ms is None


async def test_a_ledger_that_claims_too_many_entries_is_left_out_and_said(cluster: ForkedCluster) -> None:
    async with metadata_of(cluster) as factory:
        await claims_too_much(factory, "bookie-0", "bookie-1")
        async with scrubbing(factory) as scrub:
            await until(lambda: scrub.statistics.passes)
            assert (scrub.statistics.entries, scrub.statistics.ledgers_unverified) == (0, 1)


async def test_a_ledger_without_entries_whose_metadata_tell_a_length_is_passed(cluster: ForkedCluster) -> None:
    async with metadata_of(cluster) as factory:
        strange = LedgerMetadata.new(("bookie-0", "bookie-1"), 2, 1).close(-1, 50)
        await factory.ledger_manager.create(LedgerId.unscoped(1000), strange)
        async with scrubbing(factory) as scrub:
            await until(lambda: scrub.statistics.passes)
            assert scrub.statistics.ledgers_unverified == 0


async def test_a_record_of_corrupt_copies_that_can_not_be_used_stops_no_scrub(cluster: ForkedCluster) -> None:
    """Of a ledger with damaged metadata and without a mark, of one that can't exist, and of something else."""
    async with metadata_of(cluster) as factory, await cluster.client() as client:
        damaged = await written(client, 5, 3, 3, 2)
        good = await written(client, 5, 3, 3, 2)
        with contextlib.closing(sqlite3.connect(cluster.metadata_uri.removeprefix("sqlite://"))) as store, store:
            store.execute("UPDATE ledgers SET metadata = x'00' WHERE key = (SELECT min(key) FROM ledgers)")
        unusable = {str(damaged.ledger_id.low), str(1 << 63), "by.hand"}
        for key in {*unusable, str(good.ledger_id.low)}:
            found = encode({"bookie-0": [(0, 3)], "bookie-1": [(1, 1)]}, 1)
            await factory.replication_metadata.write_record(RecordKind.CORRUPT_LEDGER, key, found, None)
        async with scrubbing(factory) as scrub:
            await until(lambda: scrub.statistics.passes)
            assert scrub.statistics.ledgers_unverified == 1
        assert (await marked(factory)).keys() == {good.ledger_id.low}
        assert unusable <= (await factory.replication_metadata.records(RecordKind.CORRUPT_LEDGER)).keys()


async def test_a_bug_in_the_scrub_of_one_ledger_keeps_it_from_no_other(
    cluster: ForkedCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with metadata_of(cluster) as factory, await cluster.client() as client:
        ledgers = [await written(client, 5, 3, 3, 2) for _ in range(3)]
        read = Scrub._read_ledger

        async def with_a_bug(self: Scrub, ledger_id: LedgerId, entry_id: int) -> None:
            if ledger_id == ledgers[1].ledger_id:
                raise ZeroDivisionError("planned")
            await read(self, ledger_id, entry_id)

        monkeypatch.setattr(Scrub, "_read_ledger", with_a_bug)
        async with scrubbing(factory) as scrub:
            await until(lambda: scrub.statistics.passes)
            assert (scrub.statistics.entries, scrub.statistics.ledgers_unverified) == (2 * 3 * 5, 1)


async def test_a_ledger_whose_metadata_name_no_digest_is_left_out_and_said(cluster: ForkedCluster) -> None:
    async with metadata_of(cluster) as factory, await cluster.client() as client:
        ledger = await client.create_ledger(3, 3, 2, password=PASSWORD, digest_type=DigestType.HMAC)
        await ledger.append(b"entry")
        await ledger.close()
        async with scrubbing(factory) as scrub:
            await until(lambda: scrub.statistics.passes)
            done = scrub.statistics
            assert (done.entries, done.corrupt, done.ledgers_unverified) == (3, 0, 0)
        record = await factory.ledger_manager.read(ledger.ledger_id)
        unknown = replace(record.metadata, password=None, digest_type=None, format_version=1)
        await factory.ledger_manager.write(ledger.ledger_id, unknown, record.version)
        async with scrubbing(factory, interval_seconds=0.0) as scrub:
            await until(lambda: scrub.statistics.passes)
            done = scrub.statistics
            assert (done.entries, done.corrupt, done.ledgers_unverified) == (0, 0, done.passes)
