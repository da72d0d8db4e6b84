"""Turns of unary calls: principals take turns, and a turn is never lost."""

from __future__ import annotations

import asyncio
from typing import cast

import pytest

from bookgate.gateway.services.access import Guard
from bookgate.gateway.services.caller import OverLimitException
from bookgate.gateway.services.turns import Turns
from bookgate.runtime.security.access_control import AccessControl
from bookgate.runtime.security.principal import Kind, Principal

pytestmark = pytest.mark.asyncio

A, B = Principal(Kind.TOKEN, "a"), Principal(Kind.TOKEN, "b")


async def waiting(turns: Turns, *principals: Principal) -> list[asyncio.Task[None]]:
    tasks = [asyncio.ensure_future(turns.wait(each)) for each in principals]
    await asyncio.sleep(0)
    return tasks


async def test_principals_that_wait_take_turns() -> None:
    turns = Turns(under_way=1)
    assert turns.enter_at_once()
    assert not turns.enter_at_once()
    first, second, other = await waiting(turns, A, A, B)
    assert turns.waiting == 3
    for each in (first, other, second):
        turns.leave()
        await each
        assert not turns.enter_at_once(), "it is another's turn"
    turns.leave()
    assert turns.enter_at_once()


async def test_streams_and_refusals_wait_for_no_call_that_hangs() -> None:
    """A bookie whose registration is resumed would lose its lease behind calls that wait for the store."""
    turns = Turns(under_way=1)
    assert turns.enter_at_once()
    async with asyncio.timeout(5):
        await Guard(cast(AccessControl, None), turns).turn_to_begin(A)


async def test_one_that_waits_begins_in_each_pass_of_the_loop() -> None:
    turns, began = Turns(), []

    async def call(principal: Principal) -> None:
        if not turns.enter_at_once():
            await turns.wait(principal)
        began.append(principal)
        turns.leave()

    calls = [asyncio.ensure_future(call(A)) for _ in range(50)]
    await asyncio.sleep(0)
    at_once = len(began)
    assert 0 < at_once < 10
    calls.append(asyncio.ensure_future(call(B)))
    passes = 0
    while B not in began:
        passes += 1
        before = len(began)
        await asyncio.sleep(0)
        assert len(began) <= before + 1
    assert passes <= 5, "it waited for another's calls"
    await asyncio.gather(*calls)
    assert turns.waiting == 0


async def test_nobody_overtakes_those_that_wait() -> None:
    turns = Turns(under_way=1)
    assert turns.enter_at_once()
    (first,) = await waiting(turns, A)
    turns.leave()
    assert not turns.enter_at_once(), "one waits"
    await first


async def test_who_gives_up_leaves_the_turn_to_the_next() -> None:
    turns = Turns(under_way=1)
    assert turns.enter_at_once()
    waits, has_it, last = await waiting(turns, A, B, B)
    waits.cancel()
    turns.leave()
    has_it.cancel()
    await last
    for each in (waits, has_it):
        with pytest.raises(asyncio.CancelledError):
            await each
    turns.leave()
    assert turns.enter_at_once()
    assert turns.waiting == 0


async def test_a_principal_has_so_many_waiting() -> None:
    turns = Turns(under_way=1, waiting=1)
    assert turns.enter_at_once()
    (first,) = await waiting(turns, A)
    with pytest.raises(OverLimitException):
        await turns.wait(A)
    (other,) = await waiting(turns, B)
    for each in (first, other):
        turns.leave()
        await each
