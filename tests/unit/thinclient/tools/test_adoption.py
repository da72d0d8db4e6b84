"""Adopting a ledger: the digest type with which its beginning is read."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import cast

import pytest

from bookgate.ledger.entry import Entry
from bookgate.ledger.errors import DigestMatchException, IllegalOpException
from bookgate.ledger.ledger_id import LedgerId
from bookgate.ledger.metadata import DigestType
from bookgate.ledger.metadata_store import LedgerRecord
from bookgate.thinclient.client import BookKeeper
from bookgate.thinclient.tools.adoption import _digest_of

pytestmark = pytest.mark.usefixtures("virtual_time")

LEDGER = LedgerId.unscoped(7)


class Holder:
    """A client of a ledger whose entry 0 no digest type with a checksum fits; without one it is `entry`."""

    def __init__(self, entry: Entry) -> None:
        self._entry = entry

    @asynccontextmanager
    async def open_record(self, record: LedgerRecord, password: bytes) -> AsyncIterator[Holder]:
        self._type = record.metadata.digest_type
        yield self

    async def read_unconfirmed(self, first: int, last: int) -> AsyncIterator[Entry]:
        if self._type is not DigestType.DUMMY:
            raise DigestMatchException("wrong checksum")
        yield self._entry


async def digest_of(entry: Entry) -> DigestType:
    return await _digest_of(cast(BookKeeper, Holder(entry)), LEDGER, ["a"], b"")


async def test_a_first_entry_without_a_checksum_is_read_as_one() -> None:
    assert await digest_of(Entry(7, 0, -1, 4, b"text")) is DigestType.DUMMY


async def test_a_damaged_first_entry_is_not_taken_for_one_without_a_checksum() -> None:
    """Its own checksum would be shown as the first bytes of each payload, damaged or not."""
    with pytest.raises(IllegalOpException, match="has not the length that it tells"):
        await digest_of(Entry(7, 0, -1, 4, b"\x12\x34\x56\x78tixt"))
