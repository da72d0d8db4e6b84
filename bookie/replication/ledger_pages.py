"""Lists the ledgers of all scopes, and reads their metadata, for an auditor: deleted ones are left out, damaged ones
reported. Ledgers are identified by their numbers: those of scope 0 come first, the others scope by scope."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable, Sequence

from bookgate.ledger.errors import MetadataFormatException, NoSuchLedgerExistsOnMetadataServerException
from bookgate.ledger.ledger_id import MAX_UNSCOPED, LedgerId, halves_of, number_of, scope_of
from bookgate.ledger.metadata_store import LedgerManager, LedgerManagerFactory, LedgerRecord, Membership
from bookgate.ledger.number_array import NumberArray

READ_AT_ONCE = 500
"""Maximum number of ledgers in a page."""
_SCOPES_AT_ONCE = 32
"""Scopes whose listings are begun concurrently: each may need a call to a gateway, and may have a single ledger."""


async def see_all_ledgers(factory: LedgerManagerFactory, membership: Membership | None) -> None:
    """Ensures that a listing that begins now is of this cluster and contains every existing ledger.

    A later listing fails if the gateways' policy would leave ledgers out.

    Raises:
        BKException: The store is that of another cluster, or unreachable.
    """
    factory.ledger_manager.demand_complete_listings()
    if membership is not None:
        await factory.registration_manager.verify(membership)
    await factory.catch_up(None)


async def read_page(
    manager: LedgerManager, numbers: Iterable[int], unreadable: Callable[[LedgerId, MetadataFormatException], None]
) -> list[LedgerRecord]:
    """The records of the ledgers that exist and can be read; `unreadable` is called for damaged ones.

    Raises:
        BKException: Any other failure of the store.
    """
    ids = [LedgerId.of_number(number) for number in numbers]
    page: list[LedgerRecord] = []
    for ledger_id, record in zip(ids, await manager.read_many(ids), strict=True):
        if isinstance(record, LedgerRecord):
            page.append(record)
        elif isinstance(record, MetadataFormatException):
            unreadable(ledger_id, record)
        elif not isinstance(record, NoSuchLedgerExistsOnMetadataServerException):
            raise record
    return page


async def all_pages(
    manager: LedgerManager, unreadable: Callable[[LedgerId, MetadataFormatException], None]
) -> AsyncIterator[list[LedgerRecord]]:
    """Yields all ledgers in order, in pages. Raises as `read_page`."""
    async for numbers in number_pages(manager):
        yield await read_page(manager, numbers, unreadable)


async def number_pages(manager: LedgerManager, start_after: int | None = None) -> AsyncIterator[Sequence[int]]:
    """Yields the numbers of all ledgers above `start_after`, ascending, in pages of at most `READ_AT_ONCE`.

    Raises:
        BKException: The listing can't be completed.
    """
    after = -1 if start_after is None else start_after
    if after <= MAX_UNSCOPED:
        async for run in manager.ledger_ranges(0, start_after=start_after):
            for start in range(0, len(run), READ_AT_ONCE):
                yield run[start : start + READ_AT_ONCE]
    page: list[int] = []
    # With random ids each ledger has its own scope; so scopes share pages.
    async for run in _scoped_runs(manager, after):
        page += run
        while len(page) >= READ_AT_ONCE:
            yield page[:READ_AT_ONCE]
            page = page[READ_AT_ONCE:]
    if page:
        yield page


async def all_numbers(manager: LedgerManager) -> NumberArray:
    """The numbers of all ledgers, ascending, for callers that process them slowly. Raises as `number_pages`."""
    found = NumberArray()
    async for page in number_pages(manager):
        found.extend(page)
    return found


async def _scoped_runs(manager: LedgerManager, after: int) -> AsyncIterator[list[int]]:
    begun = scope_of(after)
    if begun:
        async for lows in manager.ledger_ranges(begun, start_after=halves_of(after)[1]):
            yield [number_of(begun, low) for low in lows]
    async for scopes in manager.scopes(begun):
        for start in range(0, len(scopes), _SCOPES_AT_ONCE):
            together = scopes[start : start + _SCOPES_AT_ONCE]
            first_runs = await asyncio.gather(*(_first_run(manager, scope_id) for scope_id in together))
            for scope_id, (first, others) in zip(together, first_runs, strict=True):
                yield [number_of(scope_id, low) for low in first]
                async for lows in others:
                    yield [number_of(scope_id, low) for low in lows]


async def _first_run(manager: LedgerManager, scope_id: int) -> tuple[Sequence[int], AsyncIterator[Sequence[int]]]:
    """The first ids of a scope, and the listing that continues with the others."""
    runs = aiter(manager.ledger_ranges(scope_id))
    # CPython's `anext` fails with a SystemError where its default is a tuple.
    return await anext(runs, []), runs
