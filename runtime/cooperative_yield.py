"""Runs long work on the event loop in slices, so that other tasks on the loop are not delayed.

A gateway shares its loop with all client streams, and with the entry port if a bookie hosts it. Responses that cover
thousands of ledgers are produced slice by slice; only one slice of such work runs at a time. After each slice other
tasks run, until the loop makes a turn in which they had nothing to do, or they have had several times the duration of
the slice. On an idle loop this costs one turn per slice; on a busy one the sliced work gets a fraction of the time.
Threads that read a store for it give up the interpreter sooner meanwhile.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from weakref import WeakKeyDictionary

from bookgate.runtime.clock import precise

_OTHERS_SHARE = 4
"""Time that other tasks get after a slice if they need it, as a multiple of the slice's duration."""

_IDLE_TURN_SECONDS = 0.0002
"""Maximum duration of a turn of the loop in which other tasks had nothing to do."""


_QUICK_SWITCH_SECONDS = 0.0005

_quick_switches = 0
_usual_switch_seconds = 0.0


_locks: WeakKeyDictionary[asyncio.AbstractEventLoop, asyncio.Lock] = WeakKeyDictionary()
"""One lock per event loop; sliced work takes turns on it."""


@contextmanager
def quick_thread_switches() -> Iterator[None]:
    """Context manager around work that keeps threads of a store busy for long.

    Within it a thread that waits for the interpreter gets it after half a millisecond, not five: each time that the
    event loop has waited for the network it waits for these threads as well. Switches cost, so this is not for always.
    """
    global _quick_switches, _usual_switch_seconds
    if not _quick_switches:
        _usual_switch_seconds = sys.getswitchinterval()
        sys.setswitchinterval(min(_usual_switch_seconds, _QUICK_SWITCH_SECONDS))
    _quick_switches += 1
    try:
        yield
    finally:
        _quick_switches -= 1
        if not _quick_switches:
            sys.setswitchinterval(_usual_switch_seconds)


@asynccontextmanager
async def giving_way(clock: Callable[[], float] = precise) -> AsyncIterator[None]:
    """Context manager around one slice: at most a millisecond of work, without an await."""
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
