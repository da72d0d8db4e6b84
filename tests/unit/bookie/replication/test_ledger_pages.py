"""What an auditor is told of: ledgers of all scopes that exist and can be read."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from typing import cast

import pytest

from bookgate.bookie.replication.ledger_pages import number_pages
from bookgate.ledger.ledger_id import LedgerId
from bookgate.ledger.metadata_store import LedgerManager


class _Scopes:
    """A store whose listings answer when as many as are to be asked for together have been asked for."""

    def __init__(self, together: int) -> None:
        self._asked = 0
        self._together = together
        self._is_asked = asyncio.Event()

    async def scopes(self, start_after: int = 0) -> AsyncIterator[Sequence[int]]:
        for first in range(1, 65, 40):
            yield [scope for scope in range(first, min(65, first + 40)) if scope > start_after]

    async def ledger_ranges(self, scope_id: int = 0, start_after: int | None = None) -> AsyncIterator[Sequence[int]]:
        if scope_id == 0:
            return
        self._asked += 1
        if self._asked >= self._together:
            self._is_asked.set()
        await self._is_asked.wait()
        yield [0, scope_id]
        if scope_id % 2:
            yield [-2, -1]


@pytest.mark.asyncio
async def test_scopes_are_listed_many_together_and_in_order() -> None:
    store = cast(LedgerManager, _Scopes(32))
    async with asyncio.timeout(30):
        found = [number async for page in number_pages(store) for number in page]
    expected = [LedgerId(scope, low) for scope in range(1, 65) for low in (0, scope, *((-2, -1) if scope % 2 else ()))]
    assert found == [each.number for each in expected]
    assert found == sorted(found)


class _EmptiedScope:
    """A scope whose last ledger is deleted while the scopes are listed."""

    async def scopes(self, start_after: int = 0) -> AsyncIterator[Sequence[int]]:
        yield [scope for scope in (7, 8) if scope > start_after]

    async def ledger_ranges(self, scope_id: int = 0, start_after: int | None = None) -> AsyncIterator[Sequence[int]]:
        if scope_id == 8:
            yield [1]


@pytest.mark.asyncio
async def test_a_scope_that_was_emptied_meanwhile_holds_up_no_listing() -> None:
    found = [number async for page in number_pages(cast(LedgerManager, _EmptiedScope())) for number in page]
    assert found == [LedgerId(8, 1).number]
