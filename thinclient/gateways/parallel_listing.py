"""A long listing with metadata, from several gateways at once.

A gateway lists ids some fifty times as fast as ledgers with their metadata, since one interpreter makes its responses.
So the ids go ahead: they divide what is left of a listing into ranges, each range is a listing of its own, and the
channel gives each to the next gateway in turn. Pages come out in the order of the ids. A bounded number of ranges is
listed or waits to be taken, so memory does not depend on the number of ledgers.

The ranges together are the ids that were asked for, each in one range, whether a ledger had it when the ids were listed
or not. So a ledger that exists all the time is listed once, as by a single listing (M5).

Not its job: a single listing, with its repeats (`streams`); whether several are worth it (`ledger_manager`).

Source: docs/protocol/gateway.md#shared-listings.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from typing import Generic, NamedTuple, TypeVar

from bookgate.ledger.id_set import signed, unsigned

Page = TypeVar("Page")

_LAST_UNSIGNED = (1 << 64) - 1
_LAST_OF_SCOPE_0 = (1 << 63) - 1


@dataclass(frozen=True, slots=True)
class ListingSizes:
    """When a listing is divided, and into what."""

    alone: int = 20_000
    """Ledgers that one gateway lists before others help: a short listing needs no second one of its ids."""
    a_range: int = 5_000
    """Ledgers of a range when the ids are listed."""
    ranges_a_gateway: int = 2
    """Ranges in progress for each gateway: one is listed while another is taken."""
    most_gateways: int = 4
    """Gateways that are kept busy at once; a client takes what two or three list."""


DEFAULT_SIZES = ListingSizes()


class IdRange(NamedTuple):
    """The ids that come after `after` and before `before` in a listing; None: no limit."""

    after: int | None
    before: int | None


async def ranges_of(
    ids: AsyncIterator[Sequence[int]], whole: IdRange, scope_id: int, size: int
) -> AsyncGenerator[IdRange, None]:
    """Consecutive ranges that together are the whole.

    Args:
        ids: The ids of the whole in the order of a listing, in pages.
        whole: What is to be listed.
        scope_id: The scope of the ledgers.
        size: How many of the ids a range has; the last one has the rest, and those that come later.
    """
    after, counted = whole.after, 0
    async for page in ids:
        for last in page[size - counted - 1 :: size]:
            before = _next(last, scope_id)
            if before is not None:
                yield IdRange(after, before)
                after = last
        counted = (counted + len(page)) % size
    yield IdRange(after, whole.before)


def _next(ledger_id: int, scope_id: int) -> int | None:
    """The id after this one in the order of a listing, if there is one."""
    if unsigned(ledger_id) == (_LAST_UNSIGNED if scope_id else _LAST_OF_SCOPE_0):
        return None
    return signed(unsigned(ledger_id) + 1)


async def in_parallel(
    ranges: AsyncGenerator[IdRange, None], listing_of: Callable[[IdRange], AsyncIterator[Page]], at_once: int
) -> AsyncGenerator[Page, None]:
    """The pages of all ranges, in their order.

    Args:
        ranges: What to list, made as it is needed.
        listing_of: Lists a range.
        at_once: Most ranges that are listed, or listed and not taken yet.

    Raises:
        Exception: What the listing of a range raises, after the pages of the ranges before it.
    """
    assert at_once > 0, "without a range in progress the listing would seem to end"
    listings: deque[_Listing[Page]] = deque()
    try:
        async with aclosing(ranges):
            while True:
                while len(listings) < at_once and (found := await anext(ranges, None)) is not None:
                    listings.append(_Listing(listing_of(found)))
                if not listings:
                    return
                while (page := await listings[0].next()) is not None:
                    yield page
                listings.popleft()
    finally:
        for listing in listings:
            await listing.cancel()


class _Listing(Generic[Page]):
    """The pages of one range, received ahead of who takes them."""

    def __init__(self, pages: AsyncIterator[Page]) -> None:
        self._ready: asyncio.Queue[Page | None] = asyncio.Queue()
        self._task = asyncio.create_task(self._receive(pages), name="listing of a range")

    async def _receive(self, pages: AsyncIterator[Page]) -> None:
        try:
            async for page in pages:
                self._ready.put_nowait(page)
        finally:
            self._ready.put_nowait(None)

    async def next(self) -> Page | None:
        """The next page; None after the last one. Raises what the listing raised."""
        page = await self._ready.get()
        if page is None:
            await self._task
        return page

    async def cancel(self) -> None:
        """Ends the listing; what it raised is dropped."""
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)
