"""Many seeds on several processes, and what came of them together."""

from __future__ import annotations

import logging
import multiprocessing
from collections import Counter
from collections.abc import Iterable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from dataclasses import dataclass, field
from itertools import islice

from tests.simulation.run import Outcome, run_seed

_AHEAD = 4
"""Seeds handed out for each process."""


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


def _run_one(seed: int) -> Outcome:
    """In a process of the pool: what is large stays there."""
    logging.getLogger().addHandler(logging.NullHandler())
    outcome = run_seed(seed)
    outcome.history, outcome.transcript = [], ""
    return outcome


def outcomes(seeds: Iterable[int], jobs: int) -> Iterator[Outcome]:
    """As they come, with a bounded number handed out."""
    left = iter(seeds)
    with ProcessPoolExecutor(jobs, mp_context=multiprocessing.get_context("forkserver")) as pool:
        running: set[Future[Outcome]] = {pool.submit(_run_one, seed) for seed in islice(left, jobs * _AHEAD)}
        while running:
            done, running = wait(running, return_when=FIRST_COMPLETED)
            running |= {pool.submit(_run_one, seed) for seed in islice(left, len(done))}
            for future in done:
                yield future.result()
