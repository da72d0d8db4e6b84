"""A page of ListScopes ends in time, however slow the store is, and the pages together are the whole list."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from types import SimpleNamespace
from typing import Any, cast

import pytest

from bookgate.gateway.services.iterate import Listing
from bookgate.protos.bookkeeper.gateway.v1.ledger_metadata_service_pb2 import ListScopesRequest

_RUNS = [[1, 2], [5], [7, 9], [-4], [-1]]


class _SlowStore:
    """Takes a second and a half for each run of scopes."""

    async def scopes(self, start_after: int) -> AsyncIterator[Sequence[int]]:
        begun = start_after == 0
        for run in _RUNS:
            if begun:
                await asyncio.sleep(1.5)
                yield run
            begun = begun or run[-1] == start_after


@pytest.mark.asyncio
async def test_a_page_of_a_slow_store_ends_with_what_it_has(virtual_time: None) -> None:
    factory = SimpleNamespace(ledger_manager=_SlowStore())
    listing = Listing(cast(Any, factory), cast(Any, None), 1)
    request, pages, loop = ListScopesRequest(), [], asyncio.get_running_loop()
    while True:
        began = loop.time()
        page = await listing.scopes(request)
        assert loop.time() - began < 5
        pages.append(list(page.scope_ids))
        if page.end:
            break
        request.start_after = page.last_scope_id
    assert [scope for page in pages for scope in page] == [scope for run in _RUNS for scope in run]
    assert len(pages) > 1
