"""The record in which a worker tells how far it is: when it is written, and when it goes."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest
import pytest_asyncio

from bookgate.bookie.replication.repairs import progress_record
from bookgate.bookie.replication.repairs.progress_record import ProgressRecord
from bookgate.gateway.stores.drivers import create_factory
from bookgate.ledger.replication_progress import WorkerProgress, encode
from bookgate.ledger.replication_store import RecordKind, ReplicationMetadata
from bookgate.runtime.clock import now_ms
from tests.integration.gateway.recovery_told import told_by_a_worker
from tests.stores import made

pytestmark = pytest.mark.asyncio

KIND = RecordKind.PROGRESS


@pytest_asyncio.fixture
async def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[ReplicationMetadata]:
    monkeypatch.setattr(progress_record, "_WRITTEN_SECONDS", 0.001)
    factory = create_factory(made(f"sqlite://{tmp_path}/metadata.db"))
    await factory.initialize()
    yield factory.replication_metadata
    await factory.close()


class Told:
    """What a worker has to tell."""

    def __init__(self) -> None:
        self.now: WorkerProgress | None = None
        self._asked = asyncio.Event()

    def __call__(self) -> WorkerProgress | None:
        self._asked.set()
        return self.now

    async def heard(self, now: WorkerProgress | None) -> None:
        """Returns when that was told, and what followed of it is done: it is asked for again."""
        self.now = now
        for _ in range(2):
            self._asked.clear()
            await self._asked.wait()


async def test_what_has_changed_is_written_and_what_has_not_is_renewed(store: ReplicationMetadata) -> None:
    told, at_ms = Told(), now_ms()
    record = ProgressRecord(store, "here", told)
    record.start()
    await told.heard(None)
    assert await store.records(KIND) == {}

    async def version_after(now: WorkerProgress) -> int:
        await told.heard(now)
        (found,) = (await store.records(KIND)).values()
        assert found.value == encode(now) or found.version == before
        return found.version

    before = 0
    first = told_by_a_worker(at_ms)
    before = await version_after(first)
    assert first.endangered is not None
    listed_again = replace(first.endangered, listed_ms=at_ms + 29_999)
    assert await version_after(replace(first, time_ms=at_ms + 29_999, endangered=listed_again)) == before
    renewed = await version_after(replace(first, time_ms=at_ms + 30_000))
    assert renewed > before
    before = renewed
    assert await version_after(replace(first, time_ms=at_ms + 30_001, bytes=first.bytes + 1)) > renewed
    await told.heard(None)
    assert await store.records(KIND) == {}
    await told.heard(first)
    assert list(await store.records(KIND)) == ["worker.here"]
    await record.stop()
    assert await store.records(KIND) == {}


async def test_the_records_of_processes_that_are_long_gone_go(store: ReplicationMetadata) -> None:
    at_ms = now_ms()
    for name, age_ms in (("gone", 1_300_000), ("recent", 1_000_000)):
        await store.write_record(KIND, f"worker.{name}", encode(told_by_a_worker(at_ms - age_ms)), None)
    later = {"time_ms": at_ms - 1_000_000, "of a later version": []}
    others = {
        "scrub": b"{}",
        "worker.damaged": b"\xff",
        "worker.timeless": b"{}",
        "worker.later-version": json.dumps(later).encode(),
        "worker.gone-later-version": json.dumps({**later, "time_ms": at_ms - 1_300_000}).encode(),
    }
    for name, content in others.items():
        await store.write_record(KIND, name, content, None)
    told = Told()
    record = ProgressRecord(store, "here", told)
    record.start()
    await told.heard(told_by_a_worker(at_ms))
    left = {"worker.recent", "scrub", "worker.later-version"}
    assert set(await store.records(KIND)) == {*left, "worker.here"}
    await record.stop()
    assert set(await store.records(KIND)) == left
