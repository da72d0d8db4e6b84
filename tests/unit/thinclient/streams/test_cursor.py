"""Cursors whose record a store that takes no change has already."""

from __future__ import annotations

from typing import Any

import pytest

from bookgate.ledger.errors import LedgerExistException, UnknownOutcomeException
from bookgate.ledger.ledger_id import LedgerId
from bookgate.ledger.metadata_store import LedgerRecord
from bookgate.ledger.payload_codec import RecordPosition
from bookgate.ledger.streams import CURSOR_KEY, CommittedCursor
from bookgate.thinclient.streams.cursor import record_of, store_cursor

RECORD_ID = LedgerId(9, 9)


class ReadOnly:
    """It has the cursor of an earlier stream; the response to each write is lost."""

    def __init__(self) -> None:
        former = CommittedCursor("orders", "former", "billing", RecordPosition(3, 0), 1, "t")
        self.record = LedgerRecord(RECORD_ID, record_of("bookie-1", {CURSOR_KEY: former.encoded()}), 4)
        self.writes = 0

    async def create(self, _id: LedgerId, _metadata: Any) -> LedgerRecord:
        raise LedgerExistException("there is one")

    async def read(self, _id: LedgerId) -> LedgerRecord:
        return self.record

    async def write_to(self, _record: LedgerRecord, _metadata: Any) -> LedgerRecord:
        self.writes += 1
        if self.writes > 100:
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
