"""The bound on what is under way."""

import asyncio

import pytest

from bookgate.ledger.errors import LedgerFencedException
from bookgate.thinclient.handles.in_flight_window import InFlightWindow


@pytest.mark.asyncio
async def test_room_is_handed_out_in_the_order_of_asking() -> None:
    window = InFlightWindow(max_entries=1, max_bytes=100)
    assert window.try_enter(10)
    order = []

    async def enter(name: str) -> None:
        await window.wait_to_enter(10)
        order.append(name)

    tasks = [asyncio.ensure_future(enter(name)) for name in "abc"]
    await asyncio.sleep(0)
    assert not window.try_enter(1)
    for _ in range(3):
        window.leave(1, 10)
        window.release(10)
        await asyncio.sleep(0)
    await asyncio.gather(*tasks)
    assert order == ["a", "b", "c"]
    assert (window.entries, window.bytes) == (1, 10)


@pytest.mark.asyncio
async def test_nobody_enters_between_the_grant_of_room_and_the_turn_of_who_has_it() -> None:
    window = InFlightWindow(max_entries=2, max_bytes=100)
    window.enter(10)
    window.enter(10)
    order = []

    async def enter(name: str) -> None:
        await window.wait_to_enter(10)
        order.append(name)

    first = asyncio.ensure_future(enter("first"))
    await asyncio.sleep(0)
    second = asyncio.ensure_future(enter("second"))  # runs before what the answers below wake
    window.leave(2, 20)
    window.release(20, 2)
    await asyncio.wait_for(asyncio.gather(first, second), 5)
    assert order == ["first", "second"]
    assert (window.entries, window.retained_entries) == (2, 2)


@pytest.mark.asyncio
async def test_who_waits_for_anothers_turn_gets_it_though_that_one_is_cancelled() -> None:
    window = InFlightWindow(max_entries=2, max_bytes=100)
    window.enter(10)
    window.enter(10)
    first = asyncio.ensure_future(window.wait_to_enter(10))
    await asyncio.sleep(0)
    second = asyncio.ensure_future(window.wait_to_enter(10))
    window.leave(2, 20)
    window.release(20, 2)
    first.cancel()
    await asyncio.wait_for(asyncio.gather(first, second, return_exceptions=True), 5)
    assert first.cancelled()
    assert (window.entries, window.retained_entries) == (1, 1)
    assert window.try_enter(10)


@pytest.mark.asyncio
async def test_bytes_bound_and_one_large_entry_passes_alone() -> None:
    window = InFlightWindow(max_entries=100, max_bytes=50)
    assert window.try_enter(500)
    assert not window.try_enter(1)
    window.leave(1, 500)
    window.release(500)
    assert window.try_enter(30)
    assert not window.try_enter(30)


@pytest.mark.asyncio
async def test_retained_entries_bound_at_twice_the_limits() -> None:
    window = InFlightWindow(max_entries=2, max_bytes=1000)
    for _ in range(4):
        assert window.try_enter(1)
        window.leave(1, 1)
    assert not window.try_enter(1)
    window.release(1)
    assert window.try_enter(1)


@pytest.mark.asyncio
async def test_failure_ends_waiting_and_cancelling_gives_room_back() -> None:
    window = InFlightWindow(max_entries=1, max_bytes=100)
    window.enter(1)
    failed = asyncio.ensure_future(window.wait_to_enter(1))
    await asyncio.sleep(0)
    window.fail(LedgerFencedException("gone"))
    with pytest.raises(LedgerFencedException):
        await failed
    late = asyncio.ensure_future(window.wait_to_enter(1))
    await asyncio.sleep(0)
    window.leave(1, 1)
    window.release(1)
    late.cancel()
    await asyncio.gather(late, return_exceptions=True)
    assert (window.entries, window.retained_entries) == (0, 0)
