"""What the interface does itself for stores that do not know better."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence

import pytest

from bookgate.ledger.errors import MetadataFormatException, NoSuchLedgerExistsOnMetadataServerException
from bookgate.ledger.ledger_id import LedgerId
from bookgate.ledger.metadata import LedgerMetadata
from bookgate.ledger.metadata_store import LedgerManager, LedgerRecord
from tests.unit.thinclient.fakes import InMemoryLedgerManager

METADATA = LedgerMetadata.new(["b:1"], 1, 1, password=b"")


class Listed(InMemoryLedgerManager):
    """Lists runs; of their ledgers those in `failing` can't be read."""

    def __init__(self, runs: Sequence[Sequence[int]], failing: dict[int, Exception]) -> None:
        super().__init__()
        self._runs, self._failing = runs, failing

    async def ledger_ranges(
        self, scope_id: int = 0, start_after: int | None = None, end_before: int | None = None
    ) -> AsyncIterator[Sequence[int]]:
        for run in self._runs:
            yield run

    async def read(self, ledger_id: LedgerId) -> LedgerRecord:
        if error := self._failing.get(ledger_id.low):
            raise error
        return LedgerRecord(ledger_id, METADATA, 0)


async def pages(manager: LedgerManager, size: int = 0) -> list[list[int]]:
    return [[record.ledger_id.low for record in page] async for page in manager.ledger_records(page_size=size)]


@pytest.mark.asyncio
async def test_records_of_a_listing_leave_out_what_is_gone() -> None:
    gone: dict[int, Exception] = {n: NoSuchLedgerExistsOnMetadataServerException("gone") for n in (2, 4, 5)}
    manager = Listed([[1, 2, 3], [4, 5], [6]], gone)
    assert await pages(manager) == [[1, 3], [6]]
    assert await pages(manager, 1) == [[1], [3], [6]]
    assert await pages(manager, 2) == [[1], [3], [6]]
    assert await pages(Listed([[1, 2, 3, 7]], {}), 3) == [[1, 2, 3], [7]]


@pytest.mark.asyncio
async def test_records_of_a_listing_end_with_the_error_of_one_that_can_not_be_read() -> None:
    with pytest.raises(MetadataFormatException, match="damaged"):
        await pages(Listed([[1, 2]], {2: MetadataFormatException("damaged")}))
