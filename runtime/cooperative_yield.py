"""Long work on the event loop in slices that others don't notice.

A gateway shares its loop with the streams of everybody, and with the entry port where a bookie hosts it. What answers
for thousands of ledgers is done a slice at a time, one slice of all such work together. After each the others get
their turns: until a turn of the loop passes in which they had nothing to do, or they have had several times as long as
the slice took. On an idle loop that costs one turn a slice; on a busy one such work goes on at a fraction of the speed.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from weakref import WeakKeyDictionary

_OTHERS_SHARE = 4
"""Times as long as a slice that the others get where they want it."""

_IDLE_TURN_SECONDS = 0.0002
"""A turn of the loop that took no longer had nothing else to do."""


_locks: WeakKeyDictionary[asyncio.AbstractEventLoop, asyncio.Lock] = WeakKeyDictionary()
"""One an event loop: whoever does such work there takes turns."""


@asynccontextmanager
async def giving_way(clock: Callable[[], float] = time.perf_counter) -> AsyncIterator[None]:
    """Around a slice: a millisecond's work at most, without a pause in it."""
    async with _locks.setdefault(asyncio.get_running_loop(), asyncio.Lock()):
        begun = clock()
        yield
        await _others_turns(clock() - begun, clock)


async def _others_turns(took: float, clock: Callable[[], float]) -> None:
    until = clock() + _OTHERS_SHARE * took
    while True:
        begun = clock()
        await asyncio.sleep(0)
        if clock() - begun < _IDLE_TURN_SECONDS or clock() >= until:
            return
