"""Moments that a fault waits for: an add that only a journal holds, moves that are not durable yet, a collection's end.

Each comes within some seconds, or not at all.

Not its job: what befalls a bookie then (`faults`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable

from tests.history.events import BookieAnswered, Event
from tests.history.recorder import Recorder
from tests.simulation.damage import contents, has_flushed, kind_of
from tests.simulation.simulated_bookie import SimulatedBookie
from tests.simulation.world import World

_ADD_SECONDS = 5.0
_COLLECTION_SECONDS = 3.0
_LOOK_SECONDS = 0.05


async def next_to_store(recorder: Recorder, bookies: Callable[[], Iterable[SimulatedBookie]]) -> SimulatedBookie | None:
    """The first bookie that acknowledges an add and has flushed others before, as it does so."""
    stored: asyncio.Future[SimulatedBookie] = asyncio.get_running_loop().create_future()

    def hear(event: Event) -> None:
        if stored.done() or not isinstance(event, BookieAnswered) or not event.promises_an_entry:
            return
        bookie = next((each for each in bookies() if each.bookie_id == event.bookie), None)
        if bookie is not None and has_flushed(bookie):
            stored.set_result(bookie)

    recorder.listeners.append(hear)
    try:
        return await asyncio.wait_for(stored, _ADD_SECONDS)
    except TimeoutError:
        return None
    finally:
        recorder.listeners.remove(hear)


def has_logs_to_merge(bookie: SimulatedBookie) -> bool:
    """Whether a compaction moves what is in its logs, though nothing of it may be dead."""
    return bookie.config.use_target_entry_log_size_for_gc and any(kind_of(path) == "log" for path in contents(bookie))


async def moves(world: World, bookie: SimulatedBookie) -> bool:
    """Whether a compaction that an operator asks for has moved entries; then none of the moves is synced yet."""
    moved: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    bookie.disk.on_moves = lambda: None if moved.done() else moved.set_result(None)
    await _collect(world, bookie, moved, compacts=True)
    bookie.disk.on_moves = lambda: None
    return moved.done()


async def collects(world: World, bookie: SimulatedBookie) -> None:
    """Garbage collection, as an operator asks for it, without a compaction."""
    await _collect(world, bookie, asyncio.get_running_loop().create_future(), compacts=False)


async def _collect(world: World, bookie: SimulatedBookie, until: asyncio.Future[None], *, compacts: bool) -> None:
    """One run to its end, or until the future is done."""
    server = bookie.server
    if server is None or not bookie.serving:
        return
    collector, ends = server.garbage_collector, world.now + _COLLECTION_SECONDS
    runs = collector.statistics.runs
    collector.trigger(major=compacts, minor=compacts)
    while bookie.server is server and collector.statistics.runs == runs and world.now < ends and not until.done():
        await asyncio.wait([until], timeout=_LOOK_SECONDS)
