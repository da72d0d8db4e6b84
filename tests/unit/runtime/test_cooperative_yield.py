"""Slices of long work let others on the loop have their turns in between."""

from __future__ import annotations

import asyncio

import pytest

from bookgate.runtime.cooperative_yield import giving_way

pytestmark = pytest.mark.asyncio


class Clock:
    """Goes on as it is told."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


async def test_others_who_are_busy_get_several_times_as_long_as_a_slice() -> None:
    clock, turns, done = Clock(), 0, False

    async def busy() -> None:
        nonlocal turns
        while not done:
            clock.now += 0.001
            turns += 1
            await asyncio.sleep(0)

    other = asyncio.ensure_future(busy())
    async with giving_way(clock):
        clock.now += 0.002
    done = True
    await other
    assert turns >= 8


async def test_on_an_idle_loop_work_goes_on_at_once() -> None:
    clock, turns = Clock(), 0

    async def idle() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    other = asyncio.ensure_future(idle())
    async with giving_way(clock):
        clock.now += 0.002
    other.cancel()
    assert turns == 1


async def test_one_slice_at_a_time_whoever_asks() -> None:
    inside = 0

    async def work() -> None:
        nonlocal inside
        for _ in range(5):
            async with giving_way():
                inside += 1
                assert inside == 1
                inside -= 1

    await asyncio.gather(*(work() for _ in range(5)))
