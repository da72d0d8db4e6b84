"""Runs seeds, one after the other, until a checker reports: in the tree that it is started in, mutated or not.

Prints one JSON object: how many seeds that took, which invariant broke (null: none did), and the simulated time.
"""

from __future__ import annotations

import json
import logging
import os
import sys
import time
import traceback
from dataclasses import asdict, dataclass

from tests.history.violations import InvariantViolated
from tests.simulation.mutations.table import METADATA


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
    run = _metadata_seed if world == METADATA else _data_seed
    found, began = Found(), time.monotonic()
    while found.seeds < most and found.invariant is None and time.monotonic() - began < seconds:
        seed = first + found.seeds
        found.seeds += 1
        found.invariant, found.problem, simulated = run(seed)
        found.simulated_seconds += simulated
    found.core_seconds = time.process_time()
    return found


def _data_seed(seed: int) -> tuple[str | None, str, float]:
    from tests.simulation.run import run_seed

    outcome = run_seed(seed)
    return outcome.invariant, outcome.problem or "", outcome.simulated_seconds


def _metadata_seed(seed: int) -> tuple[str | None, str, float]:
    from tests.simulation.metadata_run import run_metadata_seed

    try:
        outcome, world = run_metadata_seed(seed)
    except InvariantViolated as violation:
        return violation.id, str(violation), 0.0
    except Exception as error:
        return "error", "".join(traceback.format_exception(error)), 0.0
    for broken in outcome.verdict.violations[:1]:
        return broken.id, str(broken), world.now
    return None, "", world.now


if __name__ == "__main__":
    logging.getLogger().addHandler(logging.NullHandler())
    sys.stdout.flush()
    # What the product prints is not the answer.
    answer = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    _world, _first, _most, _seconds = sys.argv[1:]
    print(json.dumps(asdict(probe(_world, int(_first), int(_most), float(_seconds)))), file=answer, flush=True)
