"""Sets of bookies are told on, whatever a read of them met."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest

from bookgate.gateway.stores.bookie_listeners import BookieListeners
from bookgate.ledger.bookie_info import BookieServiceInfo
from bookgate.ledger.errors import MetaStoreException
from bookgate.ledger.metadata_store import BookieSet, RegisteredBookie

BOOKIE = RegisteredBookie(BookieServiceInfo("b-1"), True, False)


@pytest.mark.asyncio
@pytest.mark.parametrize("error", [MetaStoreException("away"), UnicodeDecodeError("utf-8", b"\xff", 0, 1, "no text")])
async def test_a_read_that_fails_is_tried_again(error: Exception) -> None:
    errors, told = [error, error], asyncio.Event()

    async def read() -> Sequence[RegisteredBookie]:
        if errors:
            raise errors.pop()
        return [BOOKIE]

    listeners = BookieListeners(read, retry_delay_seconds=0)
    listeners.add(BookieSet.ALL, lambda bookies: told.set())
    await asyncio.wait_for(told.wait(), 30)
    await listeners.close()
