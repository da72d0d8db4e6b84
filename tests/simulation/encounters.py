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

from tests.simulation.faults import CRASH_OF_A_CLIENT, METADATA_LATE
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
_ADVANCED, _DEFERRED, _DEFERRED_AND_TAKEN_OVER = 0.1, 0.1, 0.5
"""Shares of writers."""
_LARGEST_BURST = 60
_BURST_SECONDS = 0.01
"""About what a burst takes."""
_RECOVERY_SECONDS = (0.002, 0.01)
"""About when a recovery has told the store that it begins, and when it is through with its bookies."""


class Kind(Enum):
    """What an encounter is about."""

    HALF_IN_REACH = "a bookie hears the writer late, and a recoverer in parts"
    TAKEN_OVER = "a recoverer dies or loses while others read what it stores and another one comes"
    AGED = "entries that lie in the logs, some damaged, when the writer is gone and a recovery comes"
    ANY = "whatever comes together"


_KINDS = (Kind.HALF_IN_REACH, Kind.HALF_IN_REACH, Kind.TAKEN_OVER, Kind.AGED, Kind.ANY)
_ENDS: dict[Kind, tuple[str, ...]] = {
    Kind.TAKEN_OVER: ("close", "leave"),
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
    if kind is Kind.TAKEN_OVER:
        bookies = BOOKIES[0]  # each of them matters
    writer = _writer(rng, bookies, kind, limits)
    moment = _moment(rng, kind, writer)
    if kind is Kind.TAKEN_OVER:
        visits = tuple(_succession(rng, moment, writer))
    else:
        visits = tuple(_visit(rng, number, kind, moment, writer, limits) for number in range(rng.randint(1, 3)))
    faults = _faults(rng, moment, bookies, visits, writer, kind, limits)
    return bookies, writer, visits, tuple(sorted(faults, key=lambda fault: fault.at))


def _moment(rng: random.Random, kind: Kind, writer: WriterPlan) -> float:
    """While the writer is at work, when it ends, or after the next checkpoint."""
    bursts = len(writer.bursts) // (2 if writer.end == "crash" else 1)
    ends = writer.at + bursts * (writer.pause + _BURST_SECONDS)
    amid, later = writer.at + rng.uniform(0.1, 0.8) * (ends - writer.at), ends + rng.uniform(1.0, 3.0)
    if kind in (Kind.HALF_IN_REACH, Kind.TAKEN_OVER):
        return amid
    return later if kind is Kind.AGED else rng.choice((amid, ends, later))


def _writer(rng: random.Random, bookies: int, kind: Kind, limits: Limits) -> WriterPlan:
    """In a hurry, or steadily at work for longer than the time between two checkpoints."""
    burst = rng.choice([size for size in limits.burst_sizes if size <= _LARGEST_BURST])
    if kind is Kind.TAKEN_OVER:
        burst = _LARGEST_BURST  # more than a recovery reads at first
    deferred = rng.random() < (_DEFERRED_AND_TAKEN_OVER if kind is Kind.TAKEN_OVER else _DEFERRED)
    steady = rng.random() < 0.4 or (deferred and kind is Kind.TAKEN_OVER)
    bursts = rng.randint(15, 40) if steady else rng.randint(1, 8)
    return WriterPlan(
        "w0",
        at=rng.uniform(0, 0.2),
        sizes=rng.choice([sizes for sizes in SIZES if sizes[0] <= bookies and _fits(kind, sizes)]),
        bursts=tuple(rng.randint(1, burst) for _ in range(bursts)),
        payload=rng.choice((100, 1000, 5000)),
        pause=rng.uniform(0.02, 0.1) if steady else rng.choice((0.0, 0.0, 0.01)),
        end=rng.choice(_ENDS[kind]),
        advanced=not deferred and rng.random() < _ADVANCED,
        deferred_sync=deferred,
    )


def _succession(rng: random.Random, moment: float, writer: WriterPlan) -> Iterator[VisitPlan]:
    """A recoverer, another one that comes soon after it, and somebody who reads what that one stores."""
    readers = ("read", "read", "tail-polling", "tail")
    second = moment + rng.choice((0.005, 0.02, 0.3)) * rng.random()
    yield VisitPlan("v0", moment, "recover", writer.name)
    yield VisitPlan("v1", second, "recover", writer.name)
    yield VisitPlan("v2", second + 0.005 + rng.choice((0.02, 0.1)) * rng.random(), rng.choice(readers), writer.name)


def _fits(kind: Kind, sizes: tuple[int, int, int]) -> bool:
    """One bookie that was not fenced matters most where one "no such entry" ends a recovery."""
    _, write_quorum, ack_quorum = sizes
    if kind is Kind.TAKEN_OVER:
        return ack_quorum > 1 and sizes[0] == BOOKIES[0]
    return kind is not Kind.HALF_IN_REACH or 1 < ack_quorum == write_quorum


def _visit(rng: random.Random, number: int, kind: Kind, moment: float, writer: WriterPlan, limits: Limits) -> VisitPlan:
    """What the first one is about follows from the kind."""
    recovers = (number == 0 and kind is not Kind.ANY) or rng.random() < _RECOVER
    what = "recover" if recovers else rng.choice(limits.visit_kinds)
    return VisitPlan(f"v{number}", moment + rng.choice((0.0, 0.005, 0.1, 1.0)) * rng.random(), what, writer.name)


def _faults(
    rng: random.Random,
    moment: float,
    bookies: int,
    visits: tuple[VisitPlan, ...],
    writer: WriterPlan,
    kind: Kind,
    limits: Limits,
) -> Iterator[FaultPlan]:
    """What costs data befalls one bookie at most."""
    sore = rng.randrange(bookies)
    if kind is Kind.HALF_IN_REACH:
        yield from _half_in_reach(rng, moment, sore, len(visits))
    elif kind is Kind.TAKEN_OVER:
        others = _closed_by_the_writer if writer.deferred_sync else _taken_over
        yield from others(rng, moment - writer.pause, sore, bookies, visits)
    losses = [each for each in limits.lossy_kinds if kind is not Kind.AGED or each in _COPIES_THAT_STAY]
    if losses and (kind is Kind.AGED or rng.random() < _DAMAGED):
        yield FaultPlan("f-loss", max(0.0, moment - 0.3 * rng.random()), rng.choice(losses), sore, 0.0)
    for number in range(rng.randint(1, 4) if limits.encounter_kinds else 0):
        target = sore if rng.random() < _SORE else rng.randrange(bookies)
        yield _fault(rng, f"f{number}", moment, target, rng.choice((0, 1, rng.randint(0, len(visits)))), limits)


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


def _taken_over(
    rng: random.Random, last_burst: float, sore: int, bookies: int, visits: tuple[VisitPlan, ...]
) -> Iterator[FaultPlan]:
    """The writer's last entries come to one bookie only, which one recoverer does not reach. The other one does, and
    is on its way to the end when it dies or is overtaken."""
    for bookie in range(bookies):
        if bookie != sore:
            late = last_burst - 0.02 * rng.random()
            yield FaultPlan(f"f-late-{bookie}", max(0.0, late), "link-to-cut", bookie, 3.0, 0)
    first, second, _ = visits
    apart = rng.choice(("link-cut", "link-to-cut", "link-from-cut"))
    yield FaultPlan("f-apart", max(0.0, first.at - 0.01), apart, sore, 2.0, 1)
    yield _late_in_store(rng, first, 1, 0.5)
    if rng.random() < 0.5:
        yield FaultPlan("f-dies", second.at + 0.005 + 0.1 * rng.random(), CRASH_OF_A_CLIENT, sore, 0.0, 2)
    if rng.random() < 0.7:
        yield _late_in_store(rng, second, 2, 2.0)


def _closed_by_the_writer(
    rng: random.Random, last_burst: float, sore: int, bookies: int, visits: tuple[VisitPlan, ...]
) -> Iterator[FaultPlan]:
    """With deferred sync a writer that loses a bookie closes where it forced last, unless it hears of the fence first:
    far below what a recovery finds, which is on its way to the end meanwhile."""
    first, second, reader = visits
    yield _late_in_store(rng, first, 1, 3.0)
    yield _late_in_store(rng, second, 2, 3.0)
    yield FaultPlan("f-unheard", first.at, "others-late", sore, 1.0, 0)
    yield FaultPlan("f-silent", first.at, "link-from-stalls", sore, 1.0, 0)
    yield FaultPlan("f-lost", reader.at + 0.05 * rng.random(), "link-resets", sore, 0.2, 0)


def _late_in_store(rng: random.Random, visit: VisitPlan, client: int, longest: float) -> FaultPlan:
    """From when a recovery has begun, so that the ledger is closed late."""
    at = visit.at + rng.uniform(*_RECOVERY_SECONDS)
    return FaultPlan(f"f-store-{client}", at, METADATA_LATE, 0, longest * rng.random(), client)
