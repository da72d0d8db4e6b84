"""Reads the ledgers of a listing in pages that are bounded by the bytes of their metadata.

A ledger's metadata may have up to a mebibyte, so limiting the number of ledgers is not enough.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from typing import NamedTuple

from bookgate.ledger.errors import BKException, MetaStoreException
from bookgate.ledger.ledger_id import ids_in_scope
from bookgate.ledger.metadata_store import LedgerManager, RawLedgerRecord

PAGE_BYTES = 256 * 1024
"""Maximum metadata bytes of one page; a single ledger may have more."""

_MOST_A_PAGE = 400
"""Each page is asked for and taken in one turn of the event loop."""

Outcome = RawLedgerRecord | BKException


class Listed(NamedTuple):
    """A listed ledger and the result of reading it: it may have been deleted since, or be damaged."""

    number: int
    outcome: Outcome


async def read_pages(
    manager: LedgerManager, scope_id: int, numbers: Sequence[int], page_bytes: int = PAGE_BYTES
) -> AsyncGenerator[list[Listed], None]:
    """The ledgers in the order of `numbers`, which are ascending. Raises MetaStoreException if one can't be read."""
    start = 0
    while start < len(numbers):
        wanted = ids_in_scope(scope_id, numbers[start : start + _MOST_A_PAGE])
        outcomes = await manager.read_listed(wanted, page_bytes)
        for outcome in outcomes:
            if isinstance(outcome, MetaStoreException):
                raise outcome
        yield list(map(Listed, numbers[start : start + len(outcomes)], outcomes))
        start += len(outcomes)
