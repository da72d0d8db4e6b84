"""Garbage collection of a whole bookie: ledgers that a client deletes, a real metadata store, runs asked for."""

from __future__ import annotations

import asyncio
import json
import sqlite3
import urllib.error
import urllib.request
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

import bookgate
from bookgate.bookie.server import BookieServer
from bookgate.ledger.errors import LedgerTrimmedException
from bookgate.thinclient.blocking.client import BookKeeper
from tests.integration.bookie.in_process import running_bookie, until

PAYLOAD = bytes(20_000)
ENTRIES = 40


def call(bookie: BookieServer, path: str, body: object = None, method: str = "GET") -> Any:
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(f"http://{bookie.addresses['http']}{path}", data=data, method=method)
    with urllib.request.urlopen(request, timeout=20) as response:
        return json.loads(response.read())


def text(bookie: BookieServer, path: str) -> str:
    with urllib.request.urlopen(f"http://{bookie.addresses['http']}{path}", timeout=20) as response:
        return str(response.read().decode())


async def http(bookie: BookieServer, path: str, body: object = None, method: str = "GET") -> Any:
    return await asyncio.to_thread(call, bookie, path, body, method)


def fill(uri: str, ledgers: int) -> list[int]:
    """Ledgers whose entries lie mixed in the entry logs."""
    with BookKeeper.connect(uri) as client:
        writers = [client.create_ledger(1, 1, 1) for _ in range(ledgers)]
        for _ in range(ENTRIES):
            for writer in writers:
                writer.append(PAYLOAD)
        for writer in writers:
            writer.close()
        return [writer.ledger_id.low for writer in writers]


def delete(uri: str, numbers: list[int]) -> None:
    with BookKeeper.connect(uri) as client:
        for number in numbers:
            client.delete_ledger(number)


def read_all(uri: str, number: int) -> int:
    with BookKeeper.connect(uri) as client, client.open_ledger(number) as reader:
        return sum(len(entry.payload) for entry in reader.read(0, ENTRIES - 1))


def log_bytes(root: Path) -> int:
    return sum(path.stat().st_size for path in (root / "ledgers/current").glob("*.log"))


async def run_forced(bookie: BookieServer, body: object = None) -> None:
    """Asks for a run that waits for no second one, and waits for the end of it."""
    body = {"forceLedgers": True} if body is None else body
    runs = bookie.garbage_collector.statistics.runs
    assert "riggered" in await http(bookie, "/api/v1/bookie/gc", body, "PUT")
    await until(lambda: bookie.garbage_collector.statistics.runs > runs)


@pytest.mark.asyncio
@pytest.mark.parametrize("kind", ["sorted", "db"])
async def test_the_space_of_deleted_ledgers_comes_back(tmp_path: Path, kind: str) -> None:
    settings = {"storage_type": kind, "entry_log_max_mb": 1, "flush_interval_seconds": 0.05}
    async with running_bookie(tmp_path, **settings, compaction_rate_entries_per_second=0) as bookie:
        uri = f"grpc://{bookie.addresses['gateway']}"
        numbers = await asyncio.to_thread(fill, uri, 6)
        await until(lambda: log_bytes(tmp_path) > 6 * ENTRIES * len(PAYLOAD))
        await run_forced(bookie)
        assert bookie.garbage_collector.statistics.deleted_ledgers == 0
        full = log_bytes(tmp_path)
        await asyncio.to_thread(delete, uri, numbers[1:])
        await run_forced(bookie)
        assert bookie.garbage_collector.statistics.deleted_ledgers == 5
        # The log that is being written stays as it is.
        assert log_bytes(tmp_path) < full / 2
        assert await asyncio.to_thread(read_all, uri, numbers[0]) == ENTRIES * len(PAYLOAD)
        details = await http(bookie, "/api/v1/bookie/gc_details")
        assert details[0]["majorCompactionCounter"] == 2
        assert details[0]["lastMajorCompactionTime"] > 0
        assert await http(bookie, "/api/v1/bookie/gc") == {"is_in_force_gc": "false"}
        metrics = await asyncio.to_thread(text, bookie, "/metrics")
        assert "bookie_gc_DELETED_LEDGER_TOTAL 5.0" in metrics
        assert "bookie_gc_ACTIVE_LEDGER_TOTAL 1.0" in metrics
    async with running_bookie(tmp_path, **settings) as bookie:
        uri = f"grpc://{bookie.addresses['gateway']}"
        assert await asyncio.to_thread(read_all, uri, numbers[0]) == ENTRIES * len(PAYLOAD)


@pytest.mark.asyncio
async def test_runs_come_by_themselves(tmp_path: Path) -> None:
    async with running_bookie(tmp_path, gc_wait_seconds=0.05) as bookie:
        uri = f"grpc://{bookie.addresses['gateway']}"
        numbers = await asyncio.to_thread(fill, uri, 2)
        await asyncio.to_thread(delete, uri, numbers[:1])
        await until(lambda: bookie.garbage_collector.statistics.deleted_ledgers == 1)
        assert await asyncio.to_thread(read_all, uri, numbers[1]) == ENTRIES * len(PAYLOAD)


@pytest.mark.asyncio
async def test_a_metadata_store_that_can_not_be_read_keeps_every_ledger(tmp_path: Path) -> None:
    async with running_bookie(tmp_path) as bookie:
        uri = f"grpc://{bookie.addresses['gateway']}"
        numbers = await asyncio.to_thread(fill, uri, 3)
        await asyncio.to_thread(delete, uri, numbers[:1])
        database = sqlite3.connect(tmp_path / "metadata.db", isolation_level=None)
        try:
            database.execute("ALTER TABLE ledgers RENAME TO hidden")
            await run_forced(bookie)
            statistics = bookie.garbage_collector.statistics
            assert (statistics.failed_listings, statistics.deleted_ledgers) == (1, 0)
            database.execute("ALTER TABLE hidden RENAME TO ledgers")
        finally:
            database.close()
        assert await asyncio.to_thread(read_all, uri, numbers[2]) == ENTRIES * len(PAYLOAD)
        await run_forced(bookie)
        assert statistics.deleted_ledgers == 1


@pytest.mark.asyncio
async def test_compaction_is_suspended_and_resumed_over_http(tmp_path: Path) -> None:
    path = "/api/v1/bookie/gc/suspend_compaction"
    async with running_bookie(tmp_path) as bookie:
        assert await http(bookie, path) == {"isMajorGcSuspended": "false", "isMinorGcSuspended": "false"}
        await http(bookie, path, {"suspendMajor": True}, "PUT")
        assert await http(bookie, path) == {"isMajorGcSuspended": "true", "isMinorGcSuspended": "false"}
        await run_forced(bookie)
        details = await http(bookie, "/api/v1/bookie/gc_details")
        assert (details[0]["majorCompactionCounter"], details[0]["minorCompactionCounter"]) == (0, 1)
        await run_forced(bookie, {"forceMajor": True, "forceMinor": False})
        assert (await http(bookie, "/api/v1/bookie/gc_details"))[0]["majorCompactionCounter"] == 1
        await http(bookie, "/api/v1/bookie/gc/resume_compaction", {"resumeMajor": True}, "PUT")
        assert await http(bookie, path) == {"isMajorGcSuspended": "false", "isMinorGcSuspended": "false"}
        await refused(lambda: http(bookie, path, {}, "PUT"), 400)
        await refused(lambda: http(bookie, path, {"suspendMajor": "yes"}, "PUT"), 400)
        await refused(lambda: http(bookie, "/api/v1/bookie/gc", [1], "PUT"), 400)
        await refused(lambda: http(bookie, "/api/v1/bookie/gc", {}, "POST"), 405)


@pytest.mark.asyncio
@pytest.mark.parametrize(("interval", "count"), [(-1, 0), (0.000001, 1)])
async def test_the_index_is_compacted_when_due(tmp_path: Path, interval: float, count: int) -> None:
    settings = {"storage_type": "db", "entry_location_compaction_interval_seconds": interval}
    async with running_bookie(tmp_path, **settings) as bookie:
        await run_forced(bookie)
        details = (await http(bookie, "/api/v1/bookie/gc_details"))[0]
        assert details["entryLocationCompactionCounter"] == count
        assert (details["lastEntryLocationCompactionTime"] > 0) == (count > 0)


async def refused(request: Callable[[], Awaitable[object]], status: int) -> None:
    with pytest.raises(urllib.error.HTTPError) as error:
        await request()
    assert error.value.code == status


@pytest.mark.asyncio
@pytest.mark.parametrize("kind", ["sorted", "db"])
async def test_the_space_of_trimmed_entries_comes_back(tmp_path: Path, kind: str) -> None:
    """A reader that began before is told where to go on, and everything above is there."""
    settings = {"storage_type": kind, "entry_log_max_mb": 1, "flush_interval_seconds": 0.05}
    async with (
        running_bookie(tmp_path, **settings, compaction_rate_entries_per_second=0) as bookie,
        await bookgate.BookKeeper.connect(f"grpc://{bookie.addresses['gateway']}") as client,
    ):
        writer = await client.create_unbounded_ledger(bookgate.LedgerOptions(1), max_fragment_entries=ENTRIES)
        last = await writer.append_all([PAYLOAD] * (6 * ENTRIES + 1))
        reader = await client.open_ledger(writer.ledger_id)
        await until(lambda: log_bytes(tmp_path) > 6 * ENTRIES * len(PAYLOAD))
        await run_forced(bookie)
        full = log_bytes(tmp_path)
        first = await writer.trim(5 * ENTRIES)
        assert first == 5 * ENTRIES
        await run_forced(bookie)
        assert bookie.garbage_collector.statistics.trimmed_ledgers == 1
        await until(lambda: log_bytes(tmp_path) < full / 2)
        with pytest.raises(LedgerTrimmedException) as trimmed:
            [entry async for entry in reader.read(0, ENTRIES)]
        assert trimmed.value.first_available == first
        await writer.release()
        again = await client.open_ledger(writer.ledger_id)
        found = [entry.entry_id async for entry in again.read(first, again.last_add_confirmed)]
        assert found == list(range(first, last + 1))
        assert "bookie_gc_TRIMMED_LEDGERS" in await asyncio.to_thread(text, bookie, "/metrics")
