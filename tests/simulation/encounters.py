"""Small plans in which everything happens in the same moment: one writer, who visits it, and what fails just then.

What recoveries, fences and checkpoints have to stand is rare in a large world, whose faults mostly meet nobody: a
bookie that is out of reach for one client only, or in one direction only; a recoverer that takes over from one that was
cut off; a loss of power a moment after a checkpoint; a copy that is damaged when a recovery looks for it. Here visits
and faults are drawn close to one moment: while the writer has much under way, when it ends, or after its entries went
to the logs. Most faults befall the same bookie, or somebody's link to it.

Not its job: the kinds of faults (`faults`), which `Limits.encounter_kinds` names.
"""

from __future__ import annotations

import random
from collections.abc import Collection

from tests.simulation.plan import SIZES, FaultPlan, Limits, VisitPlan, WriterPlan

DURATION = 8.0
"""Seconds of the safety phase, at most."""
BOOKIES = (3, 4)
_RECOVER = 0.7
"""Share of visits that are recoveries."""
_SORE = 0.7
"""Share of faults that befall the bookie which has most of them."""
_LARGEST_BURST = 60
_BURST_SECONDS = 0.01
"""About what a burst takes."""


def encounter(
    rng: random.Random, limits: Limits
) -> tuple[int, WriterPlan, tuple[VisitPlan, ...], tuple[FaultPlan, ...]]:
    """Number of bookies, the writer, its visits and the faults."""
    bookies = rng.randint(*BOOKIES)
    writer = _writer(rng, bookies, limits)
    ends = writer.at + len(writer.bursts) * (writer.pause + _BURST_SECONDS)
    moment = rng.choice((rng.uniform(writer.at, ends), ends, ends + rng.uniform(1.0, 3.0)))
    visits = tuple(_visit(rng, f"v{number}", moment, writer, limits) for number in range(rng.randint(1, 3)))
    return bookies, writer, visits, _faults(rng, moment, bookies, len(visits), limits)


def _writer(rng: random.Random, bookies: int, limits: Limits) -> WriterPlan:
    """In a hurry, or steadily at work for longer than the time between two checkpoints."""
    burst = rng.choice([size for size in limits.burst_sizes if size <= _LARGEST_BURST])
    steady = rng.random() < 0.4
    bursts = rng.randint(15, 40) if steady else rng.randint(1, 8)
    kind = rng.random()
    return WriterPlan(
        "w0",
        at=rng.uniform(0, 0.2),
        sizes=rng.choice([sizes for sizes in SIZES if sizes[0] <= bookies]),
        bursts=tuple(rng.randint(1, burst) for _ in range(bursts)),
        payload=rng.choice((100, 1000, 5000)),
        pause=rng.uniform(0.02, 0.1) if steady else rng.choice((0.0, 0.0, 0.01)),
        end=rng.choice(("close", "leave", "leave", "crash", "crash")),
        advanced=kind < 0.1,
        deferred_sync=0.1 <= kind < 0.2,
    )


def _visit(rng: random.Random, name: str, moment: float, writer: WriterPlan, limits: Limits) -> VisitPlan:
    what = "recover" if rng.random() < _RECOVER else rng.choice(limits.visit_kinds)
    return VisitPlan(name, moment + rng.choice((0.0, 0.005, 0.1, 1.0)) * rng.random(), what, writer.name)


def _faults(rng: random.Random, moment: float, bookies: int, visits: int, limits: Limits) -> tuple[FaultPlan, ...]:
    """What costs data befalls one bookie at most."""
    sore, faults, spared = rng.randrange(bookies), list[FaultPlan](), False
    kinds: Collection[str] = limits.encounter_kinds
    for number in range(rng.randint(1, 6) if kinds else 0):
        kind = rng.choice([kind for kind in kinds if not (spared and kind in limits.lossy_kinds)])
        spared = spared or kind in limits.lossy_kinds
        faults.append(
            FaultPlan(
                f"f{number}",
                max(0.0, moment + rng.choice((0.01, 0.01, 0.2, 1.0)) * rng.uniform(-1, 1)),
                kind,
                sore if rng.random() < _SORE else rng.randrange(bookies),
                rng.choice((0.003, 0.03, 0.3, 1.0, 3.0)),
                client=rng.choice((0, 1, rng.randint(0, visits))),
            )
        )
    return tuple(sorted(faults, key=lambda fault: fault.at))
