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


@pytest.mark.asyncio
async def test_a_listener_is_told_nothing_that_was_read_before_it_was_added() -> None:
    reads = asyncio.Queue[asyncio.Future[Sequence[RegisteredBookie]]]()

    async def read() -> Sequence[RegisteredBookie]:
        answer: asyncio.Future[Sequence[RegisteredBookie]] = asyncio.get_running_loop().create_future()
        reads.put_nowait(answer)
        return await answer

    early, late = list[int](), asyncio.Queue[int]()
    listeners = BookieListeners(read)
    listeners.add(BookieSet.ALL, lambda bookies: early.append(len(bookies)))
    first = await reads.get()
    listeners.add(BookieSet.ALL, lambda bookies: late.put_nowait(len(bookies)))
    first.set_result([])
    (await reads.get()).set_result([BOOKIE])
    assert await asyncio.wait_for(late.get(), 30) == 1
    assert early == [0, 1]
    await listeners.close()
