"""Deleting streams and cursors while the metadata can be read and answers to changes are lost."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from bookgate.ledger.bookie_info import FEATURES_PROPERTY, LEDGER_SCOPE, LEDGER_TERM
from bookgate.ledger.errors import UnknownOutcomeException
from bookgate.ledger.ledger_id import LedgerId
from bookgate.ledger.metadata import LedgerMetadata
from bookgate.ledger.metadata_store import LedgerRecord
from bookgate.ledger.payload_codec import RecordPosition
from bookgate.ledger.streams import cursor_record_id, stream_record_id
from bookgate.streams import Stream, Streams
from bookgate.thinclient.gateways.retry_policy import DEFAULT_RETRIES
from tests.unit.thinclient.fakes import FakeCluster, fake_cluster

pytestmark = pytest.mark.usefixtures("virtual_time")

_TOO_MANY = 50


class LostWrites:
    """Answers to so many writes of the metadata are lost; the first of them that are `done` are carried out."""

    def __init__(self, cluster: FakeCluster, lost: int, done: int = 0) -> None:
        self.count, self._lost, self._done = 0, lost, done
        self._write = cluster.metadata.write
        cluster.metadata.write = self.write  # type: ignore[method-assign]

    async def write(self, ledger_id: LedgerId, metadata: LedgerMetadata, expected_version: int) -> LedgerRecord:
        self.count += 1
        assert self.count < _TOO_MANY, "it writes for ever"
        await asyncio.sleep(0)
        if self.count > self._lost or self.count <= self._done:
            record = await self._write(ledger_id, metadata, expected_version)
        if self.count <= self._lost:
            raise UnknownOutcomeException("the answer was lost")
        return record


@asynccontextmanager
async def a_stream() -> AsyncIterator[tuple[FakeCluster, Streams, Stream]]:
    """Stream `s` with cursor `c`."""
    async with fake_cluster(3) as cluster:
        cluster.discovery.properties = {FEATURES_PROPERTY: f"{LEDGER_SCOPE}, {LEDGER_TERM}"}
        streams = Streams(cluster.client())
        stream = await streams.create("s")
        await stream.cursor("c", RecordPosition(0, 0))
        yield cluster, streams, stream


async def delete(what: str, streams: Streams, stream: Stream) -> bool:
    return await (streams.delete("s") if what == "stream" else stream.delete_cursor("c"))


@pytest.mark.parametrize("what", ["stream", "cursor"])
async def test_a_deletion_fails_where_the_metadata_can_be_read_and_not_changed(what: str) -> None:
    async with a_stream() as (cluster, streams, stream):
        before, writes = dict(cluster.metadata.records), LostWrites(cluster, _TOO_MANY)
        with pytest.raises(UnknownOutcomeException):
            await delete(what, streams, stream)
        assert writes.count == DEFAULT_RETRIES.metadata_unknown_outcomes
        assert cluster.metadata.records == before


@pytest.mark.parametrize("what", ["stream", "cursor"])
@pytest.mark.parametrize("done", [0, 2])
async def test_a_deletion_goes_on_after_answers_that_were_lost(what: str, done: int) -> None:
    async with a_stream() as (cluster, streams, stream):
        LostWrites(cluster, 2, done)
        assert await delete(what, streams, stream)
        assert cursor_record_id("s", "c") not in cluster.metadata.records
        assert (stream_record_id("s") in cluster.metadata.records) == (what == "cursor")
