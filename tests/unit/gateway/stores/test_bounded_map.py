"""Calls in parallel: all results, bounded, and the first failure ends it."""

from __future__ import annotations

import asyncio
from contextlib import aclosing
from typing import Any

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
