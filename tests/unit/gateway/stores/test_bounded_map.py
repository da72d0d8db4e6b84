"""Calls in parallel: all results, bounded, and the first failure ends it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from contextlib import aclosing
from typing import Any
from weakref import WeakSet

import pytest

from bookgate.gateway.stores.bounded_map import map_unordered

pytestmark = pytest.mark.asyncio


class Calls:
    def __init__(self) -> None:
        self.running = 0
        self.most = 0
        self.begun = 0

    async def __call__(self, item: int) -> int:
        self.begun += 1
        self.running += 1
        self.most = max(self.most, self.running)
        try:
            for _ in range(item % 3):
                await asyncio.sleep(0)
            if item == 13:
                raise ZeroDivisionError
            return item
        finally:
            self.running -= 1


@pytest.mark.parametrize("count", [0, 1, 4, 5, 100])
async def test_every_item_once_and_never_too_many(count: int) -> None:
    calls = Calls()
    items = [number * 14 for number in range(count)]
    assert sorted([result async for result in map_unordered(calls, items, 4)]) == items
    assert calls.most <= 4


async def test_first_failure_ends_it() -> None:
    calls = Calls()
    with pytest.raises(ZeroDivisionError):
        async for _ in map_unordered(calls, range(1000), 4):
            pass
    assert calls.running == 0
    assert calls.begun < 30


async def test_consumer_that_leaves_ends_it() -> None:
    calls = Calls()
    results: Any = map_unordered(calls, range(14, 1000), 4)
    async with aclosing(results):
        await anext(results)
    assert calls.running == 0
    assert calls.begun < 30


async def test_slow_consumer_holds_up_the_calls() -> None:
    calls = Calls()
    results: Any = map_unordered(calls, range(14, 1000), 4)
    async with aclosing(results):
        await anext(results)
        for _ in range(200):
            await asyncio.sleep(0)
        assert calls.begun <= 1 + 3 * 4


class Sized:
    def __init__(self, item: int, size: int) -> None:
        self.item = item
        self.size = size


class SizedCalls(Calls):
    """Results of the given sizes, of which it knows those that somebody still has."""

    def __init__(self, size_of: Callable[[int], int]) -> None:
        super().__init__()
        self.alive = WeakSet[Sized]()
        self._size_of = size_of

    async def sized(self, item: int) -> Sized:
        await self(item)
        result = Sized(item, self._size_of(item))
        self.alive.add(result)
        return result

    @property
    def held(self) -> int:
        return sum(result.size for result in self.alive)

    def map(self, items: Iterable[int]) -> Any:
        return map_unordered(self.sized, items, 64, lambda result: result.size, 1000)


@pytest.mark.parametrize(
    "size_of",
    [
        pytest.param(lambda item: 400, id="large"),
        pytest.param(lambda item: 1 if item < 200 else 400, id="large-after-small"),
        pytest.param(lambda item: 400 if item % 7 == 0 else 1, id="large-among-small"),
        pytest.param(lambda item: 400 if item < 200 else 1, id="small-after-large"),
    ],
)
async def test_slow_consumer_holds_up_the_calls_by_the_size_of_results(size_of: Callable[[int], int]) -> None:
    calls = SizedCalls(size_of)
    items = range(14, 500)
    found = []
    async with aclosing(calls.map(items)) as results:
        async for result in results:
            found.append(result.item)
            del result
            if len(found) % 10 == 1:
                for _ in range(20):
                    await asyncio.sleep(0)
                assert calls.held <= 1000
    assert sorted(found) == list(items)
    assert calls.begun <= len(items) + 2 * 64, "each worker repeats a call only where results become larger"


async def test_a_single_result_above_the_bound_passes() -> None:
    calls = SizedCalls(lambda item: 5000)
    async with aclosing(calls.map(range(14, 200))) as results:
        await anext(results)
        for _ in range(20):
            await asyncio.sleep(0)
        assert calls.held <= 5000
        assert len([result.item async for result in results]) == 185


async def test_small_results_are_asked_for_side_by_side() -> None:
    calls = SizedCalls(lambda item: 5)
    async with aclosing(calls.map(range(14, 1000))) as results:
        async for _ in results:
            pass
    assert (calls.most, calls.begun) == (64, 986)


@pytest.mark.parametrize(("count", "tasks"), [(0, 0), (3, 3), (100, 4)])
async def test_no_more_tasks_than_items(count: int, tasks: int) -> None:
    loop = asyncio.get_running_loop()
    begun: list[asyncio.Task[Any]] = []

    def make(loop: asyncio.AbstractEventLoop, coro: Any, **more: Any) -> asyncio.Task[Any]:
        begun.append(asyncio.Task(coro, loop=loop, **more))
        return begun[-1]

    loop.set_task_factory(make)
    try:
        assert len([result async for result in map_unordered(Calls(), range(14, 14 + count), 4)]) == count
    finally:
        loop.set_task_factory(None)
    assert len(begun) == tasks
