"""A long listing that several gateways share: ranges that are the whole, in order, a bounded number at once (M5)."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncGenerator, AsyncIterator, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bookgate.ledger.errors import MetaStoreException
from bookgate.ledger.id_set import signed, unsigned
from bookgate.ledger.ledger_id import LedgerId
from bookgate.thinclient.gateways.channel import GatewayChannel
from bookgate.thinclient.gateways.parallel_listing import IdRange, ListingSizes, in_parallel, ranges_of
from tests.unit.thinclient.fake_gateway import METADATA, FakeGateway, connected

WHOLE = IdRange(None, None)
SIZES = ListingSizes(alone=6, a_range=4, ranges_a_gateway=2)


async def paged(ids: Sequence[int], size: int) -> AsyncIterator[Sequence[int]]:
    for start in range(0, len(ids), size):
        yield ids[start : start + size]


def is_within(ledger_id: int, part: IdRange) -> bool:
    above = part.after is None or unsigned(ledger_id) > unsigned(part.after)
    return above and (part.before is None or unsigned(ledger_id) < unsigned(part.before))


any_id = st.one_of(st.integers(0, 40), st.integers(0, (1 << 64) - 1), st.sampled_from([(1 << 63) - 1, (1 << 64) - 1]))


@given(st.sets(any_id, max_size=60), st.sampled_from([0, 7]), st.integers(1, 9), st.integers(1, 9), any_id)
def test_every_id_is_in_one_range_also_one_that_comes_later(
    bits: set[int], scope_id: int, page: int, size: int, later: int
) -> None:
    if not scope_id:
        bits, later = {each >> 1 for each in bits}, later >> 1
    ids = [signed(each) for each in sorted(bits)]

    async def ranges() -> list[IdRange]:
        return [each async for each in ranges_of(paged(ids, page), WHOLE, scope_id, size)]

    found = asyncio.run(ranges())
    for ledger_id in (*ids, signed(later)):
        assert sum(is_within(ledger_id, part) for part in found) == 1
    assert all(sum(is_within(each, part) for each in ids) == size for part in found[:-1])


@pytest.mark.asyncio
async def test_pages_come_in_order_and_a_bounded_number_of_ranges_is_under_way() -> None:
    begun: list[int] = []

    async def listing_of(part: IdRange) -> AsyncIterator[int]:
        begun.append(part.after or 0)
        for page in range(3):
            await asyncio.sleep(0)
            yield (part.after or 0) * 10 + page

    async def ranges() -> AsyncGenerator[IdRange, None]:
        for number in range(9):
            yield IdRange(number, None)

    found = []
    async for page in in_parallel(ranges(), listing_of, 3):
        found.append(page)
        assert len(begun) <= page // 10 + 3
    assert found == [number * 10 + page for number in range(9) for page in range(3)]


@pytest.mark.asyncio
async def test_a_range_that_breaks_off_ends_all_of_them() -> None:
    async def listing_of(part: IdRange) -> AsyncIterator[int]:
        yield (part.after or 0) * 10
        if part.after == 3:
            raise MetaStoreException("no gateway")
        yield (part.after or 0) * 10 + 1

    async def ranges() -> AsyncGenerator[IdRange, None]:
        for number in range(9):
            yield IdRange(number, None)

    before = asyncio.all_tasks()
    pages = in_parallel(ranges(), listing_of, 3)
    assert [await anext(pages) for _ in range(7)] == [0, 1, 10, 11, 20, 21, 30]
    with pytest.raises(MetaStoreException, match="no gateway"):
        await anext(pages)
    assert asyncio.all_tasks() == before


async def fill(gateway: FakeGateway, count: int) -> None:
    for number in range(count):
        await gateway.store.create(LedgerId.unscoped(number * 3), METADATA)


@pytest.mark.asyncio
async def test_a_long_listing_is_shared_by_the_gateways() -> None:
    async with connected(2, sizes=SIZES) as (manager, gateways):
        await fill(gateways[0], 50)
        found = [record.ledger_id.low async for page in manager.ledger_records() for record in page]
        assert found == [number * 3 for number in range(50)]
        listings = [Counter(gateway.calls)["Iterate"] for gateway in gateways]
        # One alone, one of the ids, and twelve ranges, in turn.
        assert sum(listings) == 14
        assert min(listings) >= 5


@pytest.mark.asyncio
@pytest.mark.parametrize(("gateways", "ledgers"), [(1, 50), (2, 5)])
async def test_one_gateway_lists_alone_and_so_does_any_a_short_listing(gateways: int, ledgers: int) -> None:
    async with connected(gateways, sizes=SIZES) as (manager, fakes):
        await fill(fakes[0], ledgers)
        found = [record.ledger_id.low async for page in manager.ledger_records() for record in page]
        assert found == [number * 3 for number in range(ledgers)]
        assert sum(Counter(gateway.calls)["Iterate"] for gateway in fakes) == 1


@pytest.mark.asyncio
async def test_a_shared_listing_keeps_to_its_bounds_and_its_page_size() -> None:
    async with connected(2, sizes=SIZES) as (manager, gateways):
        await fill(gateways[0], 50)
        pages = [page async for page in manager.ledger_records(start_after=9, end_before=120, page_size=2)]
        assert [record.ledger_id.low for page in pages for record in page] == list(range(12, 120, 3))
        assert max(map(len, pages)) == 2


@pytest.mark.asyncio
async def test_ranges_that_break_off_go_on_at_the_other_gateway() -> None:
    async with connected(2, sizes=SIZES) as (manager, gateways):
        await fill(gateways[0], 50)
        gateways[0].break_after_pages = 1
        found = [record.ledger_id.low async for page in manager.ledger_records(page_size=2) for record in page]
        assert found == [number * 3 for number in range(50)]


@pytest.mark.asyncio
async def test_a_range_that_fails_is_an_error_and_never_a_gap() -> None:
    async with connected(2, timeout=0.3, sizes=SIZES) as (manager, gateways):
        await fill(gateways[0], 50)
        found: list[int] = []

        async def list_until_all_fail() -> None:
            async for page in manager.ledger_records(page_size=2):
                found.extend(record.ledger_id.low for record in page)
                for gateway in gateways if len(found) > 6 else ():  # the first six came from one listing
                    gateway.break_after_pages = 0

        with pytest.raises(MetaStoreException, match="no metadata gateway could list ledgers"):
            await list_until_all_fail()
        assert found == [number * 3 for number in range(len(found))]
        assert 6 < len(found) < 50


@pytest.mark.asyncio
async def test_who_stops_a_shared_listing_leaves_no_call() -> None:
    async with connected(2, sizes=SIZES) as (manager, gateways):
        await fill(gateways[0], 50)
        before = asyncio.all_tasks()
        pages = manager.ledger_records(page_size=2)
        for _ in range(6):
            await anext(pages)
        assert {task.get_name() for task in asyncio.all_tasks() - before} >= {"listing of a range"}
        await pages.aclose()  # type: ignore[attr-defined]
        assert "listing of a range" not in {task.get_name() for task in asyncio.all_tasks() - before}


@pytest.mark.asyncio
async def test_gateways_that_fail_as_a_listing_is_shared_do_not_end_it(monkeypatch: pytest.MonkeyPatch) -> None:
    ready = iter((2, 0, 0, 0))
    monkeypatch.setattr(GatewayChannel, "ready", property(lambda _: next(ready)))
    async with connected(2, sizes=SIZES) as (manager, gateways):
        await fill(gateways[0], 50)
        found = [record.ledger_id.low async for page in manager.ledger_records() for record in page]
        assert found == [number * 3 for number in range(50)]
