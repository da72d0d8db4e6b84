"""Cursors in a store that is read and takes no change."""

from __future__ import annotations

import tracemalloc
from typing import Any

import pytest

from bookgate.ledger.errors import LedgerExistException, UnknownOutcomeException
from bookgate.ledger.ledger_id import LedgerId
from bookgate.ledger.metadata_store import LedgerRecord
from bookgate.ledger.payload_codec import RecordPosition
from bookgate.ledger.streams import CURSOR_KEY, CommittedCursor
from bookgate.thinclient.streams.cursor import Cursor, record_of, store_cursor

RECORD_ID = LedgerId(9, 9)


class ReadOnly:
    """It has the cursor of an earlier stream; the response to each write is lost."""

    def __init__(self, most_writes: int = 100) -> None:
        self._most_writes = most_writes
        former = CommittedCursor("orders", "former", "billing", RecordPosition(3, 0), 1, "t")
        self.record = LedgerRecord(RECORD_ID, record_of("bookie-1", {CURSOR_KEY: former.encoded()}), 4)
        self.writes = 0
        self.written = self.record.metadata

    async def create(self, _id: LedgerId, _metadata: Any) -> LedgerRecord:
        raise LedgerExistException("there is one")

    async def read(self, _id: LedgerId) -> LedgerRecord:
        return self.record

    async def write_to(self, _record: LedgerRecord, metadata: Any) -> LedgerRecord:
        self.writes += 1
        self.written = metadata
        if self.writes > self._most_writes:
            raise AssertionError("it is tried for ever")
        raise UnknownOutcomeException("its response was lost")


@pytest.mark.asyncio
async def test_a_cursor_is_given_up_where_the_metadata_take_no_change() -> None:
    store: Any = ReadOnly()
    wanted = CommittedCursor("orders", "present", "billing", RecordPosition(0, 0), 1, "u")

    async def still_there() -> None:
        return

    with pytest.raises(UnknownOutcomeException):
        await store_cursor(store, RECORD_ID, "bookie-1", wanted, still_there, 3)
    assert store.writes == 3


@pytest.mark.asyncio
async def test_commits_that_may_not_have_happened_are_not_kept_without_end() -> None:
    store: Any = ReadOnly(10_000)
    cursor = Cursor(store, store.record, CommittedCursor.of(store.record.metadata.custom_metadata))

    async def commit(positions: range) -> None:
        for entry_id in positions:
            with pytest.raises(UnknownOutcomeException):
                await cursor.commit(RecordPosition(entry_id, 0))

    await commit(range(4, 1500))
    tracemalloc.start()
    try:
        await commit(range(1500, 3000))
        held, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert held < 600_000
    # The last one was carried out after all: no other consumer was there.
    store.record = LedgerRecord(RECORD_ID, store.written, 5)
    await commit(range(3000, 3001))
    assert store.writes == 3000 - 4 + 1
