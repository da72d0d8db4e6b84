"""Many seeds on several processes, and what came of them together."""

from __future__ import annotations

import gc
import logging
import multiprocessing
import signal
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from dataclasses import dataclass, field
from functools import partial
from itertools import islice

from tests.simulation.kinds import WorldKind, run_one
from tests.simulation.outcome import Outcome

_AHEAD = 4
"""Seeds handed out for each process."""
_MOST_GARBAGE = 50_000
"""Objects left over from worlds, which are full of cycles, before they are collected."""


@dataclass
class Summary:
    """Of all seeds so far."""

    seeds: int = 0
    operations: int = 0
    simulated_seconds: float = 0.0
    core_seconds: float = 0.0
    looked: Counter[str] = field(default_factory=Counter)
    faults: Counter[str] = field(default_factory=Counter)
    failed: list[Outcome] = field(default_factory=list)

    def add(self, outcome: Outcome) -> None:
        self.seeds += 1
        self.operations += outcome.operations
        self.simulated_seconds += outcome.simulated_seconds
        self.core_seconds += outcome.core_seconds
        self.looked.update(outcome.looked)
        self.faults.update(outcome.faults)
        if outcome.failed:
            self.failed.append(outcome)


def _begin_process() -> None:
    logging.getLogger().addHandler(logging.NullHandler())
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent ends the pool
    gc.disable()
    gc.freeze()


def _run_one(kind: WorldKind, seed: int) -> Outcome:
    """In a process of the pool: what is large stays there."""
    outcome = run_one(kind, seed)
    outcome.history, outcome.transcript = [], ""
    if gc.get_count()[0] > _MOST_GARBAGE:
        gc.collect()
        gc.freeze()  # what is left are caches
    return outcome


def outcomes(seeds: Iterable[int], jobs: int, kind: WorldKind = WorldKind.LARGE) -> Iterator[Outcome]:
    """As they come, with a bounded number handed out."""
    left, context = iter(seeds), multiprocessing.get_context("forkserver")
    with ProcessPoolExecutor(jobs, mp_context=context, initializer=_begin_process) as pool:
        begin = partial(pool.submit, partial(_run_one, kind))
        try:
            yield from _as_they_come(begin, {begin(seed) for seed in islice(left, jobs * _AHEAD)}, left)
        finally:
            pool.shutdown(wait=False, cancel_futures=True)


def _as_they_come(
    begin: Callable[[int], Future[Outcome]], running: set[Future[Outcome]], left: Iterator[int]
) -> Iterator[Outcome]:
    while running:
        done, running = wait(running, return_when=FIRST_COMPLETED)
        running |= {begin(seed) for seed in islice(left, len(done))}
        for future in done:
            yield future.result()
