"""Finds the ledgers that a bookie with empty directories may have held earlier, under the same id.

A bookie that was wiped or formatted and returns under its id has forgotten its acknowledged entries and its fences. As
a new bookie it would answer "no such ledger", and accept adds of a fenced writer (R9, S8). Every ledger whose metadata
name the id is therefore in limbo from the first start on. A ledger whose metadata no longer name the id may have been
held, too: its entries were moved to other bookies when the earlier bookie of this id was decommissioned, and nothing
records that. Such a ledger, unless it is open, is listed as closed before (`storage.closed_before`), and the bookie
accepts nothing from its writers.

The start waits for the complete listing, and fails if the listing fails. It takes about 20 seconds for a million
ledgers in the embedded store, and 40 in ZooKeeper or behind a gateway; a log line every ten seconds reports progress.
Damaged metadata may name the bookie, so their ledgers are in limbo as well. Not its job: what limbo means
(`storage.limbo`), how it ends (`check`).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence

from bookgate.ledger.errors import BKException, MetadataFormatException, NoSuchLedgerExistsOnMetadataServerException
from bookgate.ledger.ledger_id import LedgerId
from bookgate.ledger.ledger_numbers import LedgerNumbers
from bookgate.ledger.metadata import LedgerMetadata, LedgerState
from bookgate.ledger.metadata_store import LedgerManager, LedgerManagerFactory, LedgerRecord
from bookgate.runtime.logs import log_event

_log = logging.getLogger(__name__)

_READ_AT_ONCE = 1000
_TOLD_EVERY_SECONDS = 10.0


class FormerLife:
    """The result of the listing for one bookie id: numbers of ledgers of every scope."""

    def __init__(self, bookie_id: str) -> None:
        self.naming = LedgerNumbers()
        """Ledgers with an ensemble that names the id, and ledgers with damaged metadata."""
        self.closed = LedgerNumbers()
        """Other ledgers that have no writer any more: closed ones, and bounded ones in recovery."""
        self._bookie_id = bookie_id
        self._looked_at = 0
        self._began = self._told_at = asyncio.get_running_loop().time()

    def saw(self, number: int, metadata: LedgerMetadata) -> None:
        """Adds a ledger to the result."""
        if self._bookie_id in metadata.bookies:
            self.naming.add(number)
        elif metadata.is_closed or (metadata.state is LedgerState.IN_RECOVERY and not metadata.is_unbounded):
            self.closed.add(number)
        self._looked_at += 1

    def tell(self) -> None:
        """Logs the progress of the listing, at most every ten seconds. Called after each page."""
        now = asyncio.get_running_loop().time()
        if now - self._told_at < _TOLD_EVERY_SECONDS:
            return
        self._told_at = now
        log_event(
            _log,
            "former_life_sought",
            bookie=self._bookie_id,
            ledgers=self._looked_at,
            naming_it=len(self.naming),
            seconds=round(now - self._began),
            note="the first start of a bookie reads the metadata of all ledgers before it serves",
        )


async def find_former_life(metadata: LedgerManagerFactory, bookie_id: str) -> FormerLife:
    """Reads the metadata of all ledgers of every scope, page by page.

    Raises:
        BKException: The store can't be read; nothing is known then.
    """
    await metadata.catch_up(None)
    manager, found = metadata.ledger_manager, FormerLife(bookie_id)
    manager.demand_complete_listings()
    await _look_through(manager, 0, found)
    async for scopes in manager.scopes():
        for scope_id in scopes:
            await _look_through(manager, scope_id, found)
    return found


async def _look_through(manager: LedgerManager, scope_id: int, found: FormerLife) -> None:
    """Lists ledgers with their metadata, which costs a gateway least. Such a listing fails at a damaged ledger, and
    then each ledger is read by its id.
    """
    try:
        async for page in manager.ledger_records(scope_id):
            for record in page:
                found.saw(record.ledger_id.number, record.metadata)
            found.tell()
    except MetadataFormatException as error:
        log_event(_log, "former_life_sought", logging.WARNING, error=error, note="what is damaged may name the bookie")
        await _look_through_one_by_one(manager, scope_id, found)


async def _look_through_one_by_one(manager: LedgerManager, scope_id: int, found: FormerLife) -> None:
    async for run in manager.ledger_ranges(scope_id):
        for start in range(0, len(run), _READ_AT_ONCE):
            page = [LedgerId(scope_id, each) for each in run[start : start + _READ_AT_ONCE]]
            _take(page, await manager.read_many(page), found)
            found.tell()


def _take(page: Sequence[LedgerId], records: Sequence[LedgerRecord | BKException], found: FormerLife) -> None:
    for ledger_id, record in zip(page, records, strict=True):
        if isinstance(record, LedgerRecord):
            found.saw(ledger_id.number, record.metadata)
        elif isinstance(record, MetadataFormatException):
            found.naming.add(ledger_id.number)
        elif not isinstance(record, NoSuchLedgerExistsOnMetadataServerException):
            raise record
