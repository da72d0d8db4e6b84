"""Which ledgers a bookie with empty directories may have held in an earlier life under its id.

A bookie that was wiped, or formatted, and comes back under its id has forgotten what it acknowledged and what it had
fenced. As a new one it would answer "no such ledger", and take adds of a writer that was fenced (R9, S8). Whatever
metadata name its id is therefore in limbo from its first start on; whoever is new in the cluster finds nothing.

Nothing is guessed: the start waits for the whole listing, which takes about 20 seconds for a million ledgers of the
embedded store, 40 of ZooKeeper or behind a gateway, or fails. What can't be read counts: damaged metadata may name the
bookie. Not its job: what limbo means (`storage.limbo`), how it ends
(`check`).
"""

from __future__ import annotations

import logging
from collections.abc import Sequence

from bookgate.ledger.errors import BKException, MetadataFormatException, NoSuchLedgerExistsOnMetadataServerException
from bookgate.ledger.ledger_id import LedgerId
from bookgate.ledger.metadata_store import LedgerManager, LedgerManagerFactory, LedgerRecord
from bookgate.runtime.logs import log_event

_log = logging.getLogger(__name__)

_READ_AT_ONCE = 1000


async def ledgers_of_a_former_life(metadata: LedgerManagerFactory, bookie_id: str) -> list[int]:
    """Lists the numbers of all ledgers, of every scope, of which any ensemble names the bookie.

    Reads the metadata of all ledgers there are, page by page.

    Raises:
        BKException: The store can't be read; nothing is known then.
    """
    await metadata.catch_up(None)
    manager = metadata.ledger_manager
    named = await _of_scope(manager, 0, bookie_id)
    async for scopes in manager.scopes():
        for scope_id in scopes:
            named += await _of_scope(manager, scope_id, bookie_id)
    return named


async def _of_scope(manager: LedgerManager, scope_id: int, bookie_id: str) -> list[int]:
    """As a listing with metadata tells, which costs a gateway least; it ends at the first damaged ledger."""
    named: list[int] = []
    try:
        async for page in manager.ledger_records(scope_id):
            named += [record.ledger_id.number for record in page if bookie_id in record.metadata.bookies]
    except MetadataFormatException as error:
        log_event(_log, "former_life_sought", logging.WARNING, error=error, note="what is damaged may name the bookie")
        return await _of_damaged_scope(manager, scope_id, bookie_id)
    return named


async def _of_damaged_scope(manager: LedgerManager, scope_id: int, bookie_id: str) -> list[int]:
    named: list[int] = []
    async for run in manager.ledger_ranges(scope_id):
        for start in range(0, len(run), _READ_AT_ONCE):
            page = [LedgerId(scope_id, each) for each in run[start : start + _READ_AT_ONCE]]
            named += _naming(bookie_id, page, await manager.read_many(page))
    return named


def _naming(bookie_id: str, page: Sequence[LedgerId], records: Sequence[LedgerRecord | BKException]) -> list[int]:
    named = []
    for ledger_id, record in zip(page, records, strict=True):
        if isinstance(record, LedgerRecord):
            if bookie_id in record.metadata.bookies:
                named.append(ledger_id.number)
        elif isinstance(record, MetadataFormatException):
            named.append(ledger_id.number)
        elif not isinstance(record, NoSuchLedgerExistsOnMetadataServerException):
            raise record
    return named
