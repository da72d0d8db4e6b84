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
from collections.abc import Iterator, Sequence

from tests.simulation.plan import SIZES, FaultPlan, Limits, VisitPlan, WriterPlan

DURATION = 8.0
"""Seconds of the safety phase, at most."""
BOOKIES = (3, 4)
_ENDS = ("close", "leave", "leave", "crash", "crash")
_RECOVER = 0.7
"""Share of visits that are recoveries."""
_HALF_IN_REACH = 0.5
_DAMAGED = 0.3
"""Shares of these."""
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
    half_in_reach = rng.random() < _HALF_IN_REACH
    writer = _writer(rng, bookies, ("close", "leave") if half_in_reach else _ENDS, limits)
    bursts = len(writer.bursts) // (2 if writer.end == "crash" else 1)
    ends = writer.at + bursts * (writer.pause + _BURST_SECONDS)
    moment = writer.at + rng.uniform(0.1, 0.8) * (ends - writer.at)
    if not half_in_reach:
        moment = rng.choice((moment, ends, ends + rng.uniform(1.0, 3.0)))
    visits = tuple(_visit(rng, f"v{number}", moment, writer, limits) for number in range(rng.randint(1, 3)))
    faults = _faults(rng, moment, bookies, len(visits), half_in_reach, limits)
    return bookies, writer, visits, tuple(sorted(faults, key=lambda fault: fault.at))


def _writer(rng: random.Random, bookies: int, ends: Sequence[str], limits: Limits) -> WriterPlan:
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
        end=rng.choice(ends),
        advanced=kind < 0.1,
        deferred_sync=0.1 <= kind < 0.2,
    )


def _visit(rng: random.Random, name: str, moment: float, writer: WriterPlan, limits: Limits) -> VisitPlan:
    what = "recover" if rng.random() < _RECOVER else rng.choice(limits.visit_kinds)
    return VisitPlan(name, moment + rng.choice((0.0, 0.005, 0.1, 1.0)) * rng.random(), what, writer.name)


def _faults(
    rng: random.Random, moment: float, bookies: int, visits: int, half_in_reach: bool, limits: Limits
) -> Iterator[FaultPlan]:
    """What costs data befalls one bookie at most."""
    sore = rng.randrange(bookies)
    if half_in_reach:
        yield from _half_in_reach(rng, moment, sore, visits)
    if limits.lossy_kinds and rng.random() < _DAMAGED:
        kind = rng.choice(limits.lossy_kinds)
        yield FaultPlan("f-loss", max(0.0, moment - 0.3 * rng.random()), kind, sore, 0.0)
    for number in range(rng.randint(1, 4) if limits.encounter_kinds else 0):
        target = sore if rng.random() < _SORE else rng.randrange(bookies)
        yield _fault(rng, f"f{number}", moment, target, rng.choice((0, 1, rng.randint(0, visits))), limits)


def _fault(rng: random.Random, name: str, moment: float, target: int, client: int, limits: Limits) -> FaultPlan:
    at = max(0.0, moment + rng.choice((0.01, 0.01, 0.2, 1.0)) * rng.uniform(-1, 1))
    lasts = rng.choice((0.003, 0.03, 0.3, 1.0, 3.0))
    return FaultPlan(name, at, rng.choice(limits.encounter_kinds), target, lasts, client)


def _half_in_reach(rng: random.Random, moment: float, sore: int, visits: int) -> Iterator[FaultPlan]:
    """A bookie hears the writer late, and a visitor in parts, or the other way round."""
    late = rng.choice(("link-to-stalls", "link-to-stalls", "link-from-stalls", "link-to-cut", "link-cut"))
    parts = rng.choice(("link-loses", "link-loses", "link-loses", "link-resets", "link-breaks"))
    clients = [0, rng.randint(1, visits)]
    if rng.random() < 0.2:
        clients.reverse()
    before = max(0.0, moment - 0.05 * rng.random())
    yield FaultPlan("f-late", before, late, sore, rng.choice((0.5, 2.0, 4.0)), clients[0])
    now = max(0.0, moment - 0.01 * rng.random())
    yield FaultPlan("f-parts", now, parts, sore, rng.choice((0.005, 0.02, 0.1)), clients[1])
    if rng.random() < 0.7:
        yield FaultPlan("f-others", now, "others-late", sore, rng.choice((0.02, 0.1, 0.3)), clients[1])
