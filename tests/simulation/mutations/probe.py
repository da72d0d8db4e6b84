"""Runs seeds, one after the other, until a checker reports: in the tree that it is started in, mutated or not.

Prints one JSON object: how many seeds that took, which invariant broke (null: none did), and the simulated time.
"""

from __future__ import annotations

import json
import logging
import os
import sys
import time
from dataclasses import asdict, dataclass

from tests.simulation.kinds import WorldKind, run_one
from tests.simulation.mutations.mutation import DATA


@dataclass
class Found:
    """What the seeds came to."""

    seeds: int = 0
    invariant: str | None = None
    problem: str = ""
    simulated_seconds: float = 0.0
    core_seconds: float = 0.0


def probe(world: str, first: int, most: int, seconds: float) -> Found:
    """At most so many seeds, and no more of them after so many seconds."""
    kind = WorldKind.LARGE if world == DATA else WorldKind(world)
    found, began = Found(), time.monotonic()
    while found.seeds < most and found.invariant is None and time.monotonic() - began < seconds:
        outcome = run_one(kind, first + found.seeds)
        found.seeds += 1
        found.invariant, found.problem = outcome.invariant, outcome.problem or ""
        found.simulated_seconds += outcome.simulated_seconds
    found.core_seconds = time.process_time()
    return found


if __name__ == "__main__":
    logging.getLogger().addHandler(logging.NullHandler())
    sys.stdout.flush()
    # What the product prints is not the answer.
    answer = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    _world, _first, _most, _seconds = sys.argv[1:]
    print(json.dumps(asdict(probe(_world, int(_first), int(_most), float(_seconds)))), file=answer, flush=True)
