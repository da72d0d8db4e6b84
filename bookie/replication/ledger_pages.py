"""Reads the metadata of many ledgers for an auditor: deleted ones are left out, damaged ones reported.

Unbounded ledgers are left out as well: auto-recovery has no rules for them (their writer keeps every fragment but the
last fully replicated, and copies would need its term). docs/protocol/unbounded-ledgers.md#metadata."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterable

from bookgate.ledger.errors import MetadataFormatException, NoSuchLedgerExistsOnMetadataServerException
from bookgate.ledger.ledger_id import LedgerId
from bookgate.ledger.metadata_store import LedgerManager, LedgerManagerFactory, LedgerRecord, Membership

READ_AT_ONCE = 500
"""Ledgers of a page."""


async def see_all_ledgers(factory: LedgerManagerFactory, membership: Membership | None) -> None:
    """Makes sure that a listing that begins now is this cluster's and lacks no ledger that exists already.

    A later listing fails where the gateways' policy would leave ledgers out.

    Raises:
        BKException: It is the store of another cluster, or out of reach.
    """
    factory.ledger_manager.demand_complete_listings()
    if membership is not None:
        await factory.registration_manager.verify(membership)
    await factory.catch_up(None)


async def read_page(
    manager: LedgerManager, numbers: Iterable[int], unreadable: Callable[[LedgerId, MetadataFormatException], None]
) -> list[LedgerRecord]:
    """The records of those ledgers of scope 0 that exist, are ordinary and can be read; `unreadable` is told of damaged
    ones.

    Raises:
        BKException: Any other failure of the store.
    """
    ids = [LedgerId.unscoped(number) for number in numbers]
    page: list[LedgerRecord] = []
    for ledger_id, record in zip(ids, await manager.read_many(ids), strict=True):
        if isinstance(record, LedgerRecord):
            page += [] if record.metadata.is_unbounded else [record]
        elif isinstance(record, MetadataFormatException):
            unreadable(ledger_id, record)
        elif not isinstance(record, NoSuchLedgerExistsOnMetadataServerException):
            raise record
    return page


async def all_pages(
    manager: LedgerManager, unreadable: Callable[[LedgerId, MetadataFormatException], None]
) -> AsyncIterator[list[LedgerRecord]]:
    """Lists all ledgers of scope 0 in order, in such pages. Raises what `read_page` raises."""
    async for run in manager.ledger_ranges(0):
        for start in range(0, len(run), READ_AT_ONCE):
            yield await read_page(manager, run[start : start + READ_AT_ONCE], unreadable)
