"""What will be tried in a run, as data drawn from a seed: writers, visitors, faults, and the rates of small faults.

A plan is all there is to choose, so a smaller plan is a smaller run: shrinking takes parts out of it by their names.
Rates are drawn in two stages: which kinds of small faults a run has at all, and how often each befalls a call.

Not its job: carrying any of it out (`workload`, `faults`).
"""

from __future__ import annotations

import random
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from bookgate.ledger.ledger_id import LedgerId

SIZES = ((3, 3, 2), (3, 3, 2), (3, 2, 2), (4, 3, 2), (2, 2, 2), (3, 3, 3), (5, 3, 2), (3, 2, 1), (1, 1, 1))
"""Ensemble size, write quorum, ack quorum; the usual ones more often."""

VISITS = ("read", "read", "read-unconfirmed", "tail", "tail-parallel", "tail-polling", "recover", "recover", "look")
"""What a visitor does to somebody else's ledger; deleting is drawn apart."""
DAMAGED_FILE = "damaged-file"
"""The kind of a fault: a file of a bookie is damaged while it is down."""
DAMAGED_JOURNAL = "damaged-journal"
"""The kind of a fault: a bookie goes down right after it has acknowledged an add, and its journal is damaged."""
KILLED_MOVING = "killed-moving"
"""The kind of a fault: a bookie is killed before what a compaction has moved is durable, and its host loses power when
the next process has collected."""
DRAINED = "drained"
"""The kind of a fault: somebody wants a bookie emptied, for good."""
BEGUN_ANEW = "begun-anew"
"""The kind of a fault: a bookie loses its data and its cookie, and comes back under its id."""
DISABLED = "auto-recovery-disabled"
"""The kind of a fault: somebody disables auto-recovery for the whole cluster."""
STORE_FAULTS = "store-faults"
"""The kind of a rate: gateways and ZooKeeper servers are killed, cut off, late, and lose answers and sessions."""
_STORE_FAULTS = 0.6
_PAUSED = 0.3
"""Share of runs with long pauses."""
_WRONG_STORES = 0.3
"""Share of runs in which bookies come upon other stores."""
_ALONE = 0.3
"""Share of runs with auto-recovery, in a plain store, in which one bookie alone repairs."""
_DISABLED, _DRAINED, _WIPED = 0.2, 0.2, 0.6
"""Shares of runs with auto-recovery in which it is disabled for a while, a bookie is to be emptied, and one is lost for
good, if nothing else loses data."""
_AWAY = 0.3
"""Share of them in which one is away for a short time."""
_BEGUN_ANEW = 0.3
"""Share of those that are lost for good, in a plain store, that come back under their id without their data."""
_MEETINGS = 0.6
"""Share of visits that come while the writer is at work."""
_SHORTEST_SECONDS = 0.1
"""About what a writer without pauses takes."""
_RACKS = {number: str(Path(__file__).with_name(f"racks-{number}.toml")) for number in (2, 3)}
"""Files that say which bookie is in which of so many racks."""


@dataclass(frozen=True, slots=True)
class WriterPlan:
    """One client that writes one ledger."""

    name: str
    at: float
    sizes: tuple[int, int, int]
    bursts: tuple[int, ...]
    """Appends under way together, burst after burst."""
    payload: int
    """Bytes of an entry, at most."""
    pause: float
    """Seconds between bursts."""
    end: str
    """close; leave: the ledger stays open; crash: the client is gone after half the bursts, without a word."""
    advanced: bool = False
    deferred_sync: bool = False
    guaranteed: bool = False
    """With a guaranteed write quorum."""
    ledger_id: LedgerId | None = None
    """One with a scope, of which the lower half is an id that ledgers without a scope get, too; or a large one."""


@dataclass(frozen=True, slots=True)
class VisitPlan:
    """Something done to the ledger of the writer `writer`, if there is one at that time."""

    name: str
    at: float
    what: str
    writer: str


@dataclass(frozen=True, slots=True)
class FaultPlan:
    """Something done to the bookie (or client) of number `target`; undone after `lasts` seconds where it can."""

    name: str
    at: float
    kind: str
    target: int
    lasts: float
    client: int = 0
    """Which client's link to that bookie, where it is about one."""


@dataclass(frozen=True, slots=True)
class RatePlan:
    """A small fault that befalls one call in `1 / rate`."""

    name: str
    kind: str
    rate: float


@dataclass(frozen=True, slots=True)
class AutoRecoveryPlan:
    """Settings of the auto-recovery that runs in every bookie, or in one."""

    delay: int
    """Seconds that a bookie may be missed."""
    grace: float
    """Seconds that a ledger which is written keeps its writer although a member is lost."""
    audit_interval: float
    """Seconds."""
    check_interval: float
    """Seconds from the end of a check of replicas to the next one."""
    scrub_rate: float
    """Mebibytes a second that the scrub reads; 0: there is none."""
    scrub_interval: float
    """Seconds from the end of its pass to the next one."""
    racks: int = 0
    """Bookies are in so many racks, and everybody's placement policy is about them; 0: about nothing."""
    placement_interval: float = 0.0
    """Seconds from the end of a check of placement to the next one; 0: there is none."""
    budget: float = 50.0
    """Mebibytes a second that a worker reads and stores, and all together at each bookie; 0: without bound."""
    last_copies: float = 1.0
    """The same of entries with one copy left, besides."""
    alone: bool = False
    """It runs in the first bookie alone, and in those that take its place: what one worker forgets no other one does.
    """

    @property
    def client(self) -> dict[str, object]:
        """Settings of everybody who chooses bookies."""
        return {"placement_policy": "rackaware", "rack_mapping": _RACKS[self.racks]} if self.racks else {}

    @property
    def settings(self) -> dict[str, object]:
        """As a bookie's."""
        return {
            "client": self.client,
            "placement_check_interval_seconds": self.placement_interval,
            "replication_rate_mb_per_second": self.budget,
            "replication_rate_per_bookie_mb_per_second": self.budget,
            "replication_last_copies_rate_mb_per_second": self.last_copies,
            "auto_recovery": not self.alone,
            "lost_bookie_recovery_delay_seconds": self.delay,
            "open_ledger_recovery_grace_seconds": self.grace,
            "audit_interval_seconds": self.audit_interval,
            "replica_check_interval_seconds": self.check_interval,
            "scrub_rate_mb_per_second": self.scrub_rate,
            "scrub_interval_seconds": self.scrub_interval,
        }


@dataclass(frozen=True, slots=True)
class Limits:
    """What plans may be made of: they differ between a simulation and real processes."""

    duration: float = 20.0
    bookies: tuple[int, int] = (3, 6)
    writers: tuple[int, int] = (1, 4)
    visits: tuple[int, int] = (2, 12)
    faults: tuple[int, int] = (0, 8)
    bursts: tuple[int, int] = (2, 12)
    """How many of them a writer has."""
    burst_sizes: tuple[int, ...] = (3, 12, 60)
    """Appends under way together, at most; a writer keeps to one of these."""
    fault_kinds: tuple[str, ...] = ()
    lossy_kinds: tuple[str, ...] = ()
    """Kinds that cost a bookie its data: one of them a run, since ack quorum - 1 bookies may be lost."""
    store_kinds: tuple[str, ...] = ()
    """Other stores than its own that a bookie may come upon."""
    long_pauses: tuple[str, ...] = ()
    """Kinds of pauses that outlast sessions, leases and deadlines."""
    rates: Mapping[str, float] = field(default_factory=dict)
    """Kinds of small faults with the highest rate of each."""
    visit_kinds: tuple[str, ...] = VISITS
    deletes: bool = True
    gateways: tuple[int, ...] = (0,)
    """How many gateways a run may have, each as often as it stands here."""
    damages: float = 0.0
    """Share of runs, of those that lose no data otherwise, in which a file of one bookie is damaged."""
    damaged_journals: float = 0.0
    """Share of runs, of those that lose no data otherwise, in which the journal of one bookie is damaged."""
    killed_moving: float = 0.0
    """Share of runs in which a bookie is killed in a compaction, and its host loses power after the next one."""
    encounters: float = 0.0
    """Share of runs that are encounters (`encounters`)."""
    encounter_kinds: tuple[str, ...] = ()
    """What may befall these, each as often as it stands here."""
    auto_recovery: float = 0.0
    """Share of runs, of those without gateways, in which bookies repair ledgers."""
    access: float = 0.0
    """Share of runs in which bookies and gateways have a policy, and strangers ask bookies for what it denies."""
    beside_a_peer: bool = False
    """Bookies repair ledgers with gateways too: over ZooKeeper's tree, where a process of BookKeeper's does the same.
    """


@dataclass(frozen=True, slots=True)
class Plan:
    """See the module."""

    seed: int
    bookies: int
    duration: float
    writers: tuple[WriterPlan, ...]
    visits: tuple[VisitPlan, ...]
    faults: tuple[FaultPlan, ...]
    rates: tuple[RatePlan, ...]
    gateways: int = 0
    """Metadata gateways over a simulated ZooKeeper; 0: a plain store that never lags."""
    auto_recovery: AutoRecoveryPlan | None = None
    guarded: bool = False
    """Bookies and gateways have a policy, and strangers ask bookies for what it denies."""

    @property
    def auto_recovery_settings(self) -> dict[str, object]:
        """Of each bookie; the first one has others (`first_bookie_settings`)."""
        return {} if self.auto_recovery is None else self.auto_recovery.settings

    @property
    def first_bookie_settings(self) -> dict[str, object]:
        """Those in which the first bookie, and who takes its place, differs from the others."""
        return {} if self.auto_recovery is None else {"auto_recovery": True}

    @property
    def client_settings(self) -> dict[str, object]:
        """Of each client."""
        return {} if self.auto_recovery is None else self.auto_recovery.client

    @property
    def names(self) -> list[str]:
        """Of every part that can be taken out."""
        parts: list[WriterPlan | VisitPlan | FaultPlan | RatePlan] = [*self.rates, *self.faults, *self.visits]
        return [part.name for part in (*parts, *self.writers)]

    def without(self, names: Collection[str]) -> Plan:
        """The same without these parts."""
        return replace(
            self,
            writers=tuple(part for part in self.writers if part.name not in names),
            visits=tuple(part for part in self.visits if part.name not in names),
            faults=tuple(part for part in self.faults if part.name not in names),
            rates=tuple(part for part in self.rates if part.name not in names),
        )

    def keeping(self, names: Collection[str]) -> Plan:
        return self.without(set(self.names) - set(names))

    def __str__(self) -> str:
        parts = (*self.writers, *self.visits, *self.faults, *self.rates)
        lines = [f"seed {self.seed}: {self.bookies} bookies, {self.gateways} gateways, {self.duration:g} s"]
        if self.auto_recovery is not None:
            lines.append(str(self.auto_recovery))
        if self.guarded:
            lines.append("under a policy, with strangers")
        return "\n  ".join([*lines, *map(str, parts)])


_SCOPED = 0.6
"""Of the worlds that may have scopes; a third of all, about."""
_SCOPED_REPAIRS = 0.5
"""Of those with auto-recovery, some of which have large ids instead."""
_SCOPES = (0, 1, -1, 1 << 40, 7, -(1 << 63))


_GUARANTEED = 0.2
"""Share of writers with a guaranteed write quorum, of those that can have one."""
_LARGE_IDS = 0.3
"""Of the worlds with auto-recovery, whose marks and locks have the ids in their names."""
_LARGE_BASES = (0x7FFF_FFFF, 1 << 31, 9_999_999_000)
"""The last number of 31 bits, and such as every ledger manager can have."""
_LARGEST_BASES = (1 << 32, 1 << 40, (1 << 63) - 1000)
"""Such as a plain store has besides."""


def make_plan(seed: int, limits: Limits) -> Plan:
    plan = _with_damaged_journal(_with_damage(_make_plan(seed, limits), limits), limits)
    plan = _with_scopes(_with_auto_recovery(_with_kill_in_compaction(plan, limits), limits))
    plan = _with_guarantees(_with_large_ids(plan), limits)
    # From a stream of its own, as all that came later.
    return replace(plan, guarded=random.Random(f"access {seed}").random() < limits.access)


def _with_guarantees(plan: Plan, limits: Limits) -> Plan:
    """From a stream of its own. BookKeeper's recovery, which may run beside, knows nothing of the guarantee."""
    rng = random.Random(f"guarantees {plan.seed}")
    if limits.beside_a_peer:
        return plan
    writers = tuple(
        replace(writer, guaranteed=rng.random() < _GUARANTEED and not writer.advanced and not writer.deferred_sync)
        for writer in plan.writers
    )
    return replace(plan, writers=writers)


def _with_large_ids(plan: Plan) -> Plan:
    """From a stream of its own. All writers of such a world choose the ids of their ledgers."""
    rng = random.Random(f"large ids {plan.seed}")
    if plan.auto_recovery is None or rng.random() >= _LARGE_IDS:
        return plan
    base = rng.choice(_LARGE_BASES if plan.gateways else _LARGE_BASES + _LARGEST_BASES)
    writers = (replace(each, ledger_id=LedgerId.unscoped(base + number)) for number, each in enumerate(plan.writers))
    return replace(plan, writers=tuple(writers))


def _with_auto_recovery(plan: Plan, limits: Limits) -> Plan:
    """From a stream of its own, as damage is."""
    rng = random.Random(f"auto-recovery {plan.seed}")
    if (plan.gateways and not limits.beside_a_peer) or rng.random() >= limits.auto_recovery:
        return plan
    racks, budgets = random.Random(f"racks {plan.seed}"), random.Random(f"budgets {plan.seed}")
    settings = AutoRecoveryPlan(
        delay=rng.choice((0, 1, 3, 10)),
        grace=rng.choice((0.0, 0.5, 2.0, 10.0)),
        audit_interval=rng.choice((5.0, 30.0, 86400.0)),
        check_interval=random.Random(f"check {plan.seed}").choice((0.0, 1.0, 5.0, 604800.0)),
        scrub_rate=random.Random(f"scrub {plan.seed}").choice((0.0, 0.01, 1.0, 1.0)),
        scrub_interval=random.Random(f"scrub interval {plan.seed}").choice((1.0, 5.0)),
        racks=0 if plan.gateways else racks.choice((0, 0, 2, 3)),
        placement_interval=racks.choice((0.0, 2.0, 10.0)),
        budget=0.0 if plan.gateways else budgets.choice((0.0, 50.0, 0.25, 1.0)),
        last_copies=budgets.choice((0.0, 0.1, 1.0)),
        alone=not plan.gateways and random.Random(f"alone {plan.seed}").random() < _ALONE,
    )
    faults = list(plan.faults)
    if rng.random() < _DISABLED:
        at, lasts = rng.uniform(0.05, 0.8) * plan.duration, rng.choice((0.05, 0.5, 10.0)) * plan.duration
        faults.append(FaultPlan("f-switch", at, DISABLED, 0, lasts))
    if rng.random() < _DRAINED:
        at = rng.uniform(0.05, 0.8) * plan.duration
        faults.append(FaultPlan("f-drain", at, DRAINED, rng.randrange(plan.bookies), 0.0))
    anew = random.Random(f"begun anew {plan.seed}")
    if rng.random() < _WIPED and not _loses_data(faults, limits):
        at, target = rng.uniform(0.2, 0.8) * plan.duration, rng.randrange(plan.bookies)
        if not plan.gateways and anew.random() < _BEGUN_ANEW:
            faults.append(FaultPlan("f-loss", at, BEGUN_ANEW, target, anew.choice((0.0, 0.5, 4.0, 12.0))))
        else:
            faults.append(FaultPlan("f-loss", at, "wipe", target, 0.0))
    if rng.random() < _AWAY:
        at, lasts = rng.uniform(0.1, 0.5) * plan.duration, rng.choice((0.5, 4.0, 8.0))
        faults.append(FaultPlan("f-away", at, "kill", rng.randrange(plan.bookies), lasts))
    faults.sort(key=lambda fault: fault.at)
    return replace(plan, faults=tuple(faults), auto_recovery=settings)


def _with_scopes(plan: Plan) -> Plan:
    """From a stream of its own. Two of three writers of such a world have a ledger with a scope."""
    repaired = plan.auto_recovery is not None
    rng = random.Random(f"{'repaired scopes' if repaired else 'scopes'} {plan.seed}")
    if plan.gateways or rng.random() >= (_SCOPED_REPAIRS if repaired else _SCOPED):
        return plan
    writers = tuple(
        replace(writer, ledger_id=LedgerId(scope, number)) if (scope := rng.choice(_SCOPES)) else writer
        for number, writer in enumerate(plan.writers, 1)
    )
    return replace(plan, writers=writers)


def _with_damage(plan: Plan, limits: Limits) -> Plan:
    """From a stream of its own: the rest of a plan does not depend on it. What costs data befalls one bookie."""
    rng = random.Random(f"damage {plan.seed}")
    if rng.random() >= limits.damages or _loses_data(plan.faults, limits):
        return plan
    visit = rng.choice(plan.visits).at if plan.visits else plan.duration / 2
    at = max(0.1, visit - rng.choice((0.05, 0.5, 3.0)) * rng.random())
    target, lasts = rng.randrange(plan.bookies), rng.choice((0.01, 0.1, 1.0)) * rng.random()
    return _with_fault(plan, FaultPlan("f-file", at, DAMAGED_FILE, target, lasts))


def _with_damaged_journal(plan: Plan, limits: Limits) -> Plan:
    """From a stream of its own. While a writer is at work: what only the journal holds must be there to lose."""
    rng = random.Random(f"damaged journal {plan.seed}")
    if rng.random() >= limits.damaged_journals or not plan.writers or _loses_data(plan.faults, limits):
        return plan
    at = _moment_of(rng.choice(plan.writers), rng)
    lasts = rng.choice((0.01, 0.1, 1.0)) * rng.random()
    return _with_fault(plan, FaultPlan("f-journal", at, DAMAGED_JOURNAL, 0, lasts))


def _with_kill_in_compaction(plan: Plan, limits: Limits) -> Plan:
    """From a stream of its own."""
    rng = random.Random(f"kill in compaction {plan.seed}")
    if rng.random() >= limits.killed_moving:
        return plan
    at = rng.uniform(0.3, 0.7) * plan.duration
    return _with_fault(plan, FaultPlan("f-moves", at, KILLED_MOVING, rng.randrange(plan.bookies), 0.0))


def _loses_data(faults: Iterable[FaultPlan], limits: Limits) -> bool:
    return any(fault.kind in (*limits.lossy_kinds, DAMAGED_FILE, DAMAGED_JOURNAL) for fault in faults)


def _with_fault(plan: Plan, fault: FaultPlan) -> Plan:
    return replace(plan, faults=tuple(sorted((*plan.faults, fault), key=lambda each: each.at)))


def _moment_of(writer: WriterPlan, rng: random.Random) -> float:
    """One at which it is at work."""
    return writer.at + rng.uniform(0, 1) * max(_SHORTEST_SECONDS, writer.pause * len(writer.bursts))


def _make_plan(seed: int, limits: Limits) -> Plan:
    rng = random.Random(f"plan {seed}")
    if rng.random() < limits.encounters:
        return _encounter(seed, rng, limits)
    bookies = rng.randint(*limits.bookies)
    writers = tuple(_writer(rng, f"w{n}", bookies, limits) for n in range(rng.randint(*limits.writers)))
    visits = tuple(_visit(rng, f"v{n}", writers, limits) for n in range(rng.randint(*limits.visits)))
    faults, rates = _faults(rng, bookies, limits), _rates(rng, limits)
    gateways = rng.choice(limits.gateways)
    if gateways and rng.random() < _STORE_FAULTS:
        rates = (*rates, RatePlan("r-store", STORE_FAULTS, 1.0))
    faults = (*faults, *_long_pauses(rng, limits))
    if not gateways:
        faults = (*faults, *_wrong_stores(rng, bookies, limits))
    return Plan(seed, bookies, limits.duration, writers, visits, faults, rates, gateways)


def _encounter(seed: int, rng: random.Random, limits: Limits) -> Plan:
    from tests.simulation.encounters import DURATION, encounter

    bookies, writer, visits, faults = encounter(rng, limits)
    rates = _rates(rng, limits) if rng.random() < 0.5 else ()
    return Plan(seed, bookies, min(DURATION, limits.duration), (writer,), visits, faults, rates)


def _writer(rng: random.Random, name: str, bookies: int, limits: Limits) -> WriterPlan:
    sizes = rng.choice([sizes for sizes in SIZES if sizes[0] <= bookies])
    burst = rng.choice(limits.burst_sizes)
    bursts = tuple(rng.randint(1, burst) for _ in range(rng.randint(*limits.bursts)))
    kind = rng.random()
    spread = limits.duration * 0.6 / len(bursts)
    return WriterPlan(
        name,
        at=rng.uniform(0, limits.duration * 0.3),
        sizes=sizes,
        bursts=bursts,
        payload=rng.choice((20, 100, 1000, 5000)),
        pause=rng.choice((0.0, 0.01, spread, spread, spread)),
        end=rng.choice(("close", "close", "leave", "crash")),
        advanced=kind < 0.15,
        deferred_sync=0.15 <= kind < 0.3,
    )


def _visit(rng: random.Random, name: str, writers: tuple[WriterPlan, ...], limits: Limits) -> VisitPlan:
    what = rng.choice(limits.visit_kinds)
    if limits.deletes and rng.random() < 0.05:
        what = "delete"
    writer = rng.choice(writers)
    at = rng.uniform(0.05, 0.9) * limits.duration
    if rng.random() < _MEETINGS:
        at = _moment_of(writer, rng)
    return VisitPlan(name, at, what, writer.name)


def _faults(rng: random.Random, bookies: int, limits: Limits) -> tuple[FaultPlan, ...]:
    """A run has some kinds only; what costs data befalls one bookie, if any."""
    if not limits.fault_kinds:
        return ()
    kinds = rng.sample(limits.fault_kinds, rng.randint(1, len(limits.fault_kinds)))
    faults = [
        FaultPlan(
            f"f{number}",
            rng.uniform(0.05, 0.85) * limits.duration,
            rng.choice(kinds),
            rng.randrange(bookies),
            rng.choice((0.01, 0.05, 0.2)) * limits.duration,
        )
        for number in range(rng.randint(*limits.faults))
    ]
    if limits.lossy_kinds and rng.random() < 0.3:
        kind = rng.choice(limits.lossy_kinds)
        victim = rng.randrange(bookies)
        faults.append(FaultPlan("f-loss", rng.uniform(0.2, 0.8) * limits.duration, kind, victim, 0.0))
    return tuple(sorted(faults, key=lambda fault: fault.at))


def _long_pauses(rng: random.Random, limits: Limits) -> tuple[FaultPlan, ...]:
    """In a part of the runs."""
    if not limits.long_pauses or rng.random() >= _PAUSED:
        return ()
    return tuple(
        FaultPlan(
            f"p{number}",
            rng.uniform(0.05, 0.6) * limits.duration,
            rng.choice(limits.long_pauses),
            rng.randrange(100),
            rng.choice((0.25, 0.4, 0.6)) * limits.duration,
        )
        for number in range(rng.randint(1, 3))
    )


def _wrong_stores(rng: random.Random, bookies: int, limits: Limits) -> tuple[FaultPlan, ...]:
    """In a part of the runs."""
    if not limits.store_kinds or rng.random() >= _WRONG_STORES:
        return ()
    return tuple(
        FaultPlan(
            f"s{number}",
            rng.uniform(0.05, 0.6) * limits.duration,
            rng.choice(limits.store_kinds),
            rng.randrange(bookies),
            rng.choice((0.05, 0.2)) * limits.duration,
        )
        for number in range(rng.randint(1, 3))
    )


def _rates(rng: random.Random, limits: Limits) -> tuple[RatePlan, ...]:
    return tuple(
        RatePlan(f"r-{kind}", kind, highest * rng.choice((0.05, 0.3, 1.0)))
        for kind, highest in sorted(limits.rates.items())
        if rng.random() < 0.25
    )
