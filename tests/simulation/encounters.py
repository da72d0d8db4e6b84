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
from collections.abc import Iterator
from enum import Enum

from tests.simulation.plan import SIZES, FaultPlan, Limits, VisitPlan, WriterPlan

DURATION = 8.0
"""Seconds of the safety phase, at most."""
BOOKIES = (3, 4)
_RECOVER = 0.7
"""Share of visits that are recoveries."""
_DAMAGED = 0.3
"""Share of encounters of any kind in which a bookie loses data."""
_SORE = 0.7
"""Share of faults that befall the bookie which has most of them."""
_LARGEST_BURST = 60
_BURST_SECONDS = 0.01
"""About what a burst takes."""


class Kind(Enum):
    """What an encounter is about."""

    HALF_IN_REACH = "a bookie hears the writer late, and a recoverer in parts"
    AGED = "entries that lie in the logs, some damaged, when the writer is gone and a recovery comes"
    ANY = "whatever comes together"


_KINDS = (Kind.HALF_IN_REACH, Kind.HALF_IN_REACH, Kind.AGED, Kind.ANY)
_ENDS: dict[Kind, tuple[str, ...]] = {
    Kind.HALF_IN_REACH: ("close", "leave"),
    Kind.AGED: ("leave", "crash"),
    Kind.ANY: ("close", "leave", "leave", "crash", "crash"),
}
_COPIES_THAT_STAY = ("corrupt", "flipped-reads")
"""Kinds of losing data by which what a bookie holds turns bad."""


def encounter(
    rng: random.Random, limits: Limits
) -> tuple[int, WriterPlan, tuple[VisitPlan, ...], tuple[FaultPlan, ...]]:
    """Number of bookies, the writer, its visits and the faults."""
    bookies, kind = rng.randint(*BOOKIES), rng.choice(_KINDS)
    writer = _writer(rng, bookies, kind, limits)
    moment = _moment(rng, kind, writer)
    visits = tuple(_visit(rng, number, kind, moment, writer, limits) for number in range(rng.randint(1, 3)))
    faults = _faults(rng, moment, bookies, len(visits), kind, limits)
    return bookies, writer, visits, tuple(sorted(faults, key=lambda fault: fault.at))


def _moment(rng: random.Random, kind: Kind, writer: WriterPlan) -> float:
    """While the writer is at work, when it ends, or after the next checkpoint."""
    bursts = len(writer.bursts) // (2 if writer.end == "crash" else 1)
    ends = writer.at + bursts * (writer.pause + _BURST_SECONDS)
    amid, later = writer.at + rng.uniform(0.1, 0.8) * (ends - writer.at), ends + rng.uniform(1.0, 3.0)
    if kind is Kind.HALF_IN_REACH:
        return amid
    return later if kind is Kind.AGED else rng.choice((amid, ends, later))


def _writer(rng: random.Random, bookies: int, kind: Kind, limits: Limits) -> WriterPlan:
    """In a hurry, or steadily at work for longer than the time between two checkpoints."""
    burst = rng.choice([size for size in limits.burst_sizes if size <= _LARGEST_BURST])
    steady = rng.random() < 0.4
    bursts = rng.randint(15, 40) if steady else rng.randint(1, 8)
    special = rng.random()
    return WriterPlan(
        "w0",
        at=rng.uniform(0, 0.2),
        sizes=rng.choice([sizes for sizes in SIZES if sizes[0] <= bookies and _fits(kind, sizes)]),
        bursts=tuple(rng.randint(1, burst) for _ in range(bursts)),
        payload=rng.choice((100, 1000, 5000)),
        pause=rng.uniform(0.02, 0.1) if steady else rng.choice((0.0, 0.0, 0.01)),
        end=rng.choice(_ENDS[kind]),
        advanced=special < 0.1,
        deferred_sync=0.1 <= special < 0.2,
    )


def _fits(kind: Kind, sizes: tuple[int, int, int]) -> bool:
    """One bookie that was not fenced matters most where one "no such entry" ends a recovery."""
    _, write_quorum, ack_quorum = sizes
    return kind is not Kind.HALF_IN_REACH or 1 < ack_quorum == write_quorum


def _visit(rng: random.Random, number: int, kind: Kind, moment: float, writer: WriterPlan, limits: Limits) -> VisitPlan:
    """What the first one is about follows from the kind."""
    recovers = (number == 0 and kind is not Kind.ANY) or rng.random() < _RECOVER
    what = "recover" if recovers else rng.choice(limits.visit_kinds)
    return VisitPlan(f"v{number}", moment + rng.choice((0.0, 0.005, 0.1, 1.0)) * rng.random(), what, writer.name)


def _faults(
    rng: random.Random, moment: float, bookies: int, visits: int, kind: Kind, limits: Limits
) -> Iterator[FaultPlan]:
    """What costs data befalls one bookie at most."""
    sore = rng.randrange(bookies)
    if kind is Kind.HALF_IN_REACH:
        yield from _half_in_reach(rng, moment, sore, visits)
    losses = [each for each in limits.lossy_kinds if kind is not Kind.AGED or each in _COPIES_THAT_STAY]
    if losses and (kind is Kind.AGED or rng.random() < _DAMAGED):
        yield FaultPlan("f-loss", max(0.0, moment - 0.3 * rng.random()), rng.choice(losses), sore, 0.0)
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
    clients = [0, rng.choice((1, 1, rng.randint(1, visits)))]
    if rng.random() < 0.2:
        clients.reverse()
    before = max(0.0, moment - 0.05 * rng.random())
    yield FaultPlan("f-late", before, late, sore, rng.choice((0.5, 2.0, 4.0)), clients[0])
    now = max(0.0, moment - 0.01 * rng.random())
    yield FaultPlan("f-parts", now, parts, sore, rng.choice((0.005, 0.02, 0.1)), clients[1])
    if rng.random() < 0.7:
        yield FaultPlan("f-others", now, "others-late", sore, rng.choice((0.02, 0.1, 0.3)), clients[1])
