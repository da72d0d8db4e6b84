"""Pages of listings ask ZooKeeper for about what they may have, whatever sizes come."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

import pytest

from bookgate.gateway.stores.listed_ledgers import PAGE_BYTES, read_pages
from bookgate.gateway.stores.zookeeper.ledger_listing import READ_TOGETHER, ListedSizes, RequestedLedgers
from bookgate.gateway.stores.zookeeper.ledger_manager import ZooKeeperLedgerManager
from bookgate.gateway.stores.zookeeper.ledger_paths import paths_of
from bookgate.ledger.errors import MetaStoreException
from bookgate.ledger.ledger_id import LedgerId
from bookgate.ledger.metadata_store import RawLedgerRecord

pytestmark = pytest.mark.asyncio

MIB = 1 << 20
CONTENT = memoryview(bytes(MIB))


class Session:
    """Gives each ledger as many bytes as the test says, and counts what it is asked for."""

    def __init__(self, size_of: Callable[[int], int]) -> None:
        self._size_of = size_of
        self.requests: list[int] = []
        """The bytes of each response."""
        self.now = self.most = 0
        """Bytes of the responses under way."""

    async def get_many(self, paths: Sequence[str]) -> list[Any]:
        sizes = [self._size_of(int("".join(path.removeprefix("/l/").replace("/L", "").split("/")))) for path in paths]
        self.requests.append(sum(sizes))
        self.now += sum(sizes)
        self.most = max(self.most, self.now)
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        self.now -= sum(sizes)
        return [(CONTENT[:size], SimpleNamespace(version=0, ctime=0)) for size in sizes]


class Listings:
    def __init__(self, size_of: Callable[[int], int]) -> None:
        self.session = Session(size_of)
        session: Any = self.session
        self._manager = ZooKeeperLedgerManager(session, paths_of("hierarchical", "/l"), None)  # type: ignore[arg-type]

    async def list(self, numbers: range) -> tuple[int, int]:
        """The number of pages, and the bytes of the largest."""
        found: list[int] = []
        sizes: list[int] = []
        async for page in read_pages(self._manager, 0, numbers):
            found += [each.number for each in page]
            sizes.append(sum(len(each.outcome.data) for each in page if isinstance(each.outcome, RawLedgerRecord)))
        assert found == list(numbers)
        return len(sizes), max(sizes)


def large_from(first: int) -> Callable[[int], int]:
    return lambda number: MIB if number >= first else 300


async def test_large_ledgers_behind_small_ones_fill_no_page() -> None:
    listings = Listings(large_from(400))
    _, largest = await listings.list(range(600))
    assert largest <= PAGE_BYTES + MIB
    assert sum(listings.session.requests) <= 2 * 200 * MIB + 400 * 300, "none is read more than twice"
    del listings.session.requests[:]
    for first in (0, 400):
        await listings.list(range(first, 600))
        assert max(listings.session.requests) <= PAGE_BYTES + MIB, "where large ledgers are is known by now"


async def test_a_listing_of_small_ledgers_does_not_unlearn_where_large_ones_are() -> None:
    listings = Listings(large_from(400))
    await listings.list(range(600))
    del listings.session.requests[:]
    for number in range(400, 600):
        await listings.list(range(400))
        await listings.list(range(number, number + 1))
        await listings.list(range(390, 420))
    assert max(listings.session.requests) <= PAGE_BYTES + MIB


async def test_many_listings_at_once_are_bounded_together() -> None:
    listings = Listings(large_from(400))
    await asyncio.gather(*(listings.list(range(600)) for _ in range(40)))
    assert listings.session.most <= 200 * MIB


@pytest.mark.parametrize("large", [0, 5])
async def test_small_ledgers_are_read_a_hundred_at_a_time(large: int) -> None:
    listings = Listings(lambda number: 100_000 if number % 2000 < large else 300)
    await listings.list(range(10_000))
    before = len(listings.session.requests)
    pages, _ = await listings.list(range(10_000))
    assert len(listings.session.requests) - before <= 4 * pages + large


async def test_a_ledger_that_is_not_large_any_more_is_read_with_others() -> None:
    sizes = dict.fromkeys(range(800), 300) | dict.fromkeys(range(100, 110), MIB)
    listings = Listings(sizes.__getitem__)
    await listings.list(range(800))
    sizes.update(dict.fromkeys(sizes, 300))
    await listings.list(range(800))
    del listings.session.requests[:]
    await listings.list(range(800))
    assert len(listings.session.requests) == 8


async def test_who_waits_behind_others_for_long_is_told_that_the_store_does_not_answer() -> None:
    requested = RequestedLedgers(10, patience_seconds=0.01)
    async with requested.place(lambda: 10) as count:
        assert count == 10
        with pytest.raises(MetaStoreException):
            async with requested.place(lambda: 1):
                pass
    async with requested.place(lambda: 10) as count:
        assert count == 10


async def test_who_leaves_while_it_waits_takes_no_place() -> None:
    requested = RequestedLedgers(10)

    async def ask(count: int) -> None:
        async with requested.place(lambda: count):
            await asyncio.sleep(0)

    async with requested.place(lambda: 10):
        waiting = [asyncio.ensure_future(ask(count)) for count in (10, 5, 5)]
        await asyncio.sleep(0)
        for each in waiting[:2]:
            each.cancel()
        await asyncio.gather(*waiting[:2], return_exceptions=True)
        assert not waiting[2].done()
    async with asyncio.timeout(5):
        await waiting[2]
        await ask(10)


async def test_many_reads_of_ledgers_that_are_gone_do_not_end_listings() -> None:
    """Each halves what a ledger is expected to have."""
    sizes = ListedSizes()
    wanted = [LedgerId.unscoped(number) for number in range(READ_TOGETHER)]
    for _ in range(2_000):
        sizes.saw(wanted, [0] * len(wanted))
    assert sizes.fitting(wanted, MIB) == READ_TOGETHER
