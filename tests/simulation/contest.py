"""Clients that fight for one unbounded ledger in a world with faults: what such worlds have in common.

A world begins, clients live in it while faults of its plan befall bookies and links, then all is healed, and one client
more must be able to do everything. Bookies keep what they have acknowledged.

Not its job: what clients do, and what must hold (`unbounded_run`, `streams_run`).
"""

from __future__ import annotations

import asyncio
import random
from abc import ABC, abstractmethod
from collections.abc import Callable, Coroutine, Iterable
from typing import Any, TypeVar

from bookgate import BookKeeper
from tests.history.recorder import Recorder
from tests.history.verdict import Verdict
from tests.history.violations import NoProgress
from tests.simulation.faults import KINDS, LINKS, LONG_PAUSES, RATES, Faults
from tests.simulation.metadata import MemoryMetadata
from tests.simulation.outcome import Outcome
from tests.simulation.plan import Limits, Plan
from tests.simulation.simulated_bookie import SimulatedBookie
from tests.simulation.unbounded_rules import UnboundedRules
from tests.simulation.world import ProcessEndedError, SimulatedClient, World, WorldSettings

T = TypeVar("T")
Work = Callable[[BookKeeper, random.Random], Coroutine[Any, Any, T]]

LIMITS = Limits(
    duration=12.0,
    bookies=(3, 6),
    writers=(2, 3),
    visits=(1, 3),
    faults=(0, 6),
    fault_kinds=(*(kind for kind in KINDS if kind != "store-cut"), *LINKS, *LINKS),
    long_pauses=LONG_PAUSES,
    rates={kind: rate for kind, rate in RATES.items() if kind != "repeated-requests"},
    deletes=False,
)
GC_WAIT_SECONDS = 3.0
PATIENCE_SECONDS = 200.0
_BOOKIE = {
    "journal_max_size_mb": 1,
    "journal_pre_alloc_size_mb": 1,
    "entry_log_max_mb": 1,
    "write_cache_mb": 1,
    "gc_wait_seconds": GC_WAIT_SECONDS,
}
CLIENT = {
    "read_timeout_seconds": 1.0,
    "add_timeout_seconds": 1.0,
    "failed_bookie_interval_seconds": 1.0,
    "ensemble_change_timeout_seconds": 6.0,
    "speculative_read_timeout_seconds": 0.3,
}


class Contest(ABC):
    """One run. `rules` hears of every change of the metadata."""

    rules: UnboundedRules

    def __init__(self, plan: Plan, name: str, transcript: bool, on_line: Callable[[str], None] | None) -> None:
        self.plan = plan
        self.world = World(plan.seed, WorldSettings(), transcript=transcript)
        self.world.transcript.on_line = on_line
        self._recorder = Recorder(lambda: self.world.now)
        self.faults = Faults(self.world, plan, self._recorder, self._started, _BOOKIE)
        self.rng = self.world.random(name)
        self.under_way: list[asyncio.Task[None]] = []
        """What ends with the lives of the clients."""

    @abstractmethod
    async def begin(self) -> None:
        """Makes what clients fight for."""

    @abstractmethod
    def lives(self) -> Iterable[Coroutine[Any, Any, None]]:
        """The clients, while there are faults; see `live`."""

    @abstractmethod
    async def conclude(self, client: BookKeeper, rng: random.Random) -> None:
        """What must go when all is healed."""

    def outcome(self) -> Outcome:
        """Runs. Never raises for what a run finds."""
        outcome = Outcome(self.plan.seed)
        outcome.conclude(self._run)
        outcome.transcript = self.world.transcript.text()
        outcome.faults = self.faults.counts
        outcome.looked.update(self.rules.looked)
        outcome.simulated_seconds = self.world.now
        return outcome

    def _run(self) -> Verdict:
        self.world.run(self._main())
        return Verdict()

    def _started(self, bookie: SimulatedBookie) -> None:
        return

    async def _main(self) -> None:
        world, plan = self.world, self.plan
        assert isinstance(world.metadata, MemoryMetadata)
        world.metadata.on_change.append(self.rules.changed)
        await world.start_bookies(plan.bookies, **_BOOKIE)
        await self.begin()
        self.faults.set_rates()
        watch = asyncio.ensure_future(self.faults.watch_over())
        befallen = [asyncio.ensure_future(self.faults.befall(fault)) for fault in plan.faults]
        try:
            async with asyncio.timeout(plan.duration + PATIENCE_SECONDS):
                await asyncio.gather(*self.lives())
        except TimeoutError:
            raise NoProgress("a client has not ended, long after its time") from None
        under_way = (*befallen, *self.under_way, watch)
        for each in under_way:
            each.cancel()
        for result in await asyncio.gather(*under_way, return_exceptions=True):
            if isinstance(result, Exception):
                raise result
        await self.faults.heal()
        try:
            async with asyncio.timeout(PATIENCE_SECONDS):
                await self.once("healer", self.conclude)
        except TimeoutError:
            raise NoProgress("nobody can take the ledger over, write to it and read it") from None

    async def once(self, name: str, work: Work[T]) -> T:
        """What a client of this name does, to its end."""
        client: SimulatedClient = self.world.client(name, **CLIENT)
        return await client.run(work(client.bookkeeper, self.world.random(client.name)))

    async def live(self, name: str, work: Work[None]) -> None:
        """A client does its work until the faults are over; one that is killed is followed by another of its name."""
        until = self.world.now + self.plan.duration
        while self.world.now < until:
            client = self.world.client(name, **CLIENT)
            try:
                await client.run(self._until(until, work(client.bookkeeper, self.world.random(f"{name} {until}"))))
            except ProcessEndedError:
                await asyncio.sleep(0.5)
                continue
            return

    async def _until(self, until: float, work: Coroutine[Any, Any, None]) -> None:
        try:
            async with asyncio.timeout_at(until):
                await work
        except TimeoutError:
            return
