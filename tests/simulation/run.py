"""One seed: its plan carried out in a world, the history judged.

`run_seed` is what everything else is made of: the command, the tests, the search for a smaller plan. It never raises
for what a run finds: a broken invariant, an error that the product let escape and a world that stands still are all
part of the outcome.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from bookgate.ledger.digest import digest_for
from bookgate.ledger.entry import Entry, decode_entry
from bookgate.ledger.errors import DigestMatchException
from bookgate.ledger.metadata import DigestType
from bookgate.ledger.metadata_store import LedgerRecord
from tests.faults.memory_disk import nothing_survives
from tests.history import events
from tests.history.contents import BAD_DIGEST, text_of
from tests.history.events import BookieAnswered, Event
from tests.history.recorder import Recorder
from tests.history.recording_client import PASSWORD, RecordingClient, metadata_seen
from tests.history.verdict import Verdict, check_history, watch
from tests.history.violations import AcknowledgedBeforeSync, FenceNotDurable
from tests.simulation.access import WorldAccess
from tests.simulation.faults import (
    CLOCK_SKEW,
    ENCOUNTER_KINDS,
    KINDS,
    LONG_PAUSES,
    LOSSY_KINDS,
    RATES,
    STORE_KINDS,
    Faults,
)
from tests.simulation.foreign_peer import ForeignPeer
from tests.simulation.loop import Process
from tests.simulation.metadata import MemoryMetadata
from tests.simulation.metadata_run import StoreRecorder
from tests.simulation.network import NetworkSettings
from tests.simulation.observer import Observed
from tests.simulation.outcome import Outcome
from tests.simulation.plan import STORE_FAULTS, VISITS, AutoRecoveryPlan, FaultPlan, Limits, Plan, make_plan
from tests.simulation.repair_bounds import RepairBounds, budgets_told, compromises_told, copies_told
from tests.simulation.repairs import RepairWatch
from tests.simulation.simulated_bookie import SimulatedBookie, StoredLedgerState
from tests.simulation.simulated_store import SimulatedStore
from tests.simulation.store_faults import StoreFaults
from tests.simulation.strangers import Strangers
from tests.simulation.tree_watch import TreeWatch
from tests.simulation.workload import Workload
from tests.simulation.world import ProcessEndedError, SimulatedClient, World, WorldSettings

LIMITS = Limits(
    fault_kinds=KINDS,
    lossy_kinds=LOSSY_KINDS,
    store_kinds=STORE_KINDS,
    long_pauses=LONG_PAUSES,
    rates=RATES,
    visit_kinds=(*VISITS, "intrude", "intrude"),
    visits=(2, 16),
    gateways=(0, 0, 0, 1, 2),
    bursts=(2, 24),
    burst_sizes=(3, 12, 60, 200, 200),
    damages=0.3,
    damaged_journals=0.15,
    killed_moving=0.1,
    encounters=0.5,
    encounter_kinds=ENCOUNTER_KINDS,
    auto_recovery=0.3,
    access=0.2,
)
SMALL_LIMITS = replace(
    LIMITS,
    duration=6.0,
    bookies=(3, 4),
    writers=(1, 2),
    visits=(1, 4),
    faults=(0, 3),
    bursts=(1, 6),
    burst_sizes=(3, 12),
    gateways=(0,) * 15 + (1,),
    encounters=0.3,
)
"""Many small worlds try more orders of few events than few large ones do, at the same cost."""
REPAIR_LIMITS = replace(SMALL_LIMITS, auto_recovery=1.0, gateways=(0,))
PEERS_LIMITS = replace(REPAIR_LIMITS, bookies=(4, 5), gateways=(1, 2), encounters=0.0, beside_a_peer=True, access=0.0)
_PATIENCE_SECONDS = 200.0
_LOOKS = 400
"""One answer in so many is followed by a look at what a loss of power would leave."""
_FIRST_LOOK = (50, 400)
"""After how many events the history so far is judged for the first time; single events are at once."""
_DIGEST = digest_for(DigestType.CRC32C, PASSWORD)
_BOOKIE: dict[str, Any] = {
    "journal_max_size_mb": 1,
    "journal_pre_alloc_size_mb": 1,
    "entry_log_max_mb": 1,
    "write_cache_mb": 1,
    "gc_wait_seconds": 3.0,
    "minor_compaction_interval_seconds": 6.0,
    "major_compaction_interval_seconds": 12.0,
}


_BESIDE_A_PEER = {"gc_over_replicated_wait_seconds": 2.0, "gc_mass_deletion_ledgers": 100}
"""More of each bookie where ZooKeeper's tree shows what is locked: it collects surplus copies."""
_REGISTERED_ON_SECONDS = 5.0
"""How long the death of a bookie goes unnoticed."""
_LOST_SECONDS = (1.0, 15.0)
_COLLECTED_SECONDS = 20.0
"""After so long a bookie has looked twice for surplus copies."""


def run_seed(
    seed: int,
    plan: Plan | None = None,
    *,
    limits: Limits = LIMITS,
    transcript: bool = False,
    on_line: Callable[[str], None] | None = None,
) -> Outcome:
    """Runs a seed's plan, or a smaller one; with `transcript` every line is kept and told to `on_line`."""
    plan = plan or make_plan(seed, limits)
    run = _Run(plan, transcript, on_line)
    outcome = Outcome(seed, plan)
    outcome.conclude(run.run)
    outcome.history = run.recorder.history
    outcome.transcript = run.world.transcript.text()
    outcome.faults = run.faults.counts + run.disk_faults() + run.store_faults()
    outcome.looked.update(run.looked)
    outcome.operations = sum(isinstance(event, _OPERATIONS) for event in run.recorder.history)
    outcome.simulated_seconds = run.world.now
    return outcome


_OPERATIONS = (
    events.AppendAsked,
    events.ReadDone,
    events.RecoveryAsked,
    events.Forced,
    events.LacRead,
    events.CloseAsked,
)


class _Run:
    """A world with its workload, its faults and its watchers."""

    def __init__(self, plan: Plan, transcript: bool, on_line: Callable[[str], None] | None) -> None:
        self._plan = plan
        self.world = World(plan.seed, _settings(plan), transcript=transcript)
        self.world.transcript.on_line = on_line
        self.recorder = Recorder(lambda: self.world.now)
        self.recorder.listeners.append(self._tell)
        self.watch = watch(self.recorder, self.world.fail, self.world.random("watch").randrange(*_FIRST_LOOK))
        self.faults = Faults(self.world, plan, self.recorder, self._started)
        self.looked: Counter[str] = Counter()
        self._damaged: set[str] = set()
        """Bookies that have lost data."""
        self._unasked: set[str] = set()
        """Bookies of which a file was damaged since they were last asked for what they had acknowledged."""
        self._deleted: set[str] = set()
        """Ledgers that somebody asked to delete: a bookie may have collected one before it answers a late add."""
        self._rng = self.world.random("looks")
        self._store_faults: StoreFaults | None = None
        self._repeated = next((rate.rate for rate in plan.rates if rate.kind == "repeated-requests"), 0.0)
        self._repairs: RepairWatch | TreeWatch | None = None
        self._peer: ForeignPeer | None = None
        self._fences: set[tuple[str, str]] | None = set() if plan.guarded else None
        self._strangers: Strangers | None = None
        if plan.guarded:
            self.world.access = WorldAccess()
            self._strangers = Strangers(self.world, self.world.access, self.recorder)
        self._watch_bookies()

    def run(self) -> Verdict:
        with copies_told(self._copies), budgets_told(self._asked), compromises_told(self._compromised):
            self.world.run(self._main())
        return check_history(self.recorder.history, self.watch.rules)

    def disk_faults(self) -> Counter[str]:
        counts: Counter[str] = Counter()
        for bookie in self.world.bookies.values():
            counts.update(bookie.disk.counts)
        return counts

    def store_faults(self) -> Counter[str]:
        counts = Counter() if self._store_faults is None else self._store_faults.counts
        if self._peer is not None:
            counts = counts + Counter({f"peer: {what}": count for what, count in self._peer.counts.items()})
        return counts

    async def _main(self) -> None:
        world, plan = self.world, self._plan
        await self._start_store()
        beside = {} if self._peer is None else _BESIDE_A_PEER
        settings = {**_BOOKIE, **plan.auto_recovery_settings, **beside}
        for bookie in await world.start_bookies(plan.bookies, plan.first_bookie_settings, **settings):
            self.recorder.add(events.BookieStarted(self.recorder.now, bookie.bookie_id))
            self._began(bookie)
        self.faults.set_rates()
        workload = Workload(
            plan, self._connect, self._crash, self.recorder, world.random("workload"), _PATIENCE_SECONDS
        )
        watch = asyncio.ensure_future(self.faults.watch_over())
        befallen = [asyncio.ensure_future(self.faults.befall(fault)) for fault in plan.faults]
        if self._strangers is not None:
            befallen.append(asyncio.ensure_future(self._strangers.run(plan.duration)))
        if self._store_faults is not None:
            befallen.append(asyncio.ensure_future(self._store_faults.run(world.now + plan.duration)))
        peer = None if self._peer is None else asyncio.ensure_future(self._peer.run(plan.duration))
        await workload.endanger()
        for fault in befallen:
            fault.cancel()
        watch.cancel()
        await asyncio.gather(watch, *befallen, return_exceptions=True)
        for fault in befallen:
            if not fault.cancelled() and (error := fault.exception()) is not None:
                raise error
        if self._store_faults is not None:
            await self._store_faults.heal()
        self._repeated = 0.0
        await self.faults.heal()
        await workload.prove_progress()
        if peer is not None:
            await self._lose_one_for_a_while()
            await peer
        if self._repairs is not None:
            await self._repairs.prove_repaired()
            self.looked += self._repairs.looked
            if isinstance(self._repairs, RepairWatch):
                self.looked += self._repairs.bounds.looked
        for bookie in self.faults.bookies:
            self._look_at(bookie)

    async def _lose_one_for_a_while(self) -> None:
        """Once all ledgers are closed: others get what it holds, and when it is back it holds what nobody asks for."""
        assert self._plan.auto_recovery is not None, "there is a peer"
        rng = self.world.random("outage")
        lasts = self._plan.auto_recovery.delay + _REGISTERED_ON_SECONDS + rng.uniform(*_LOST_SECONDS)
        await self.faults.befall(FaultPlan("outage", 0.0, "kill", rng.randrange(len(self.faults.bookies)), lasts))
        await asyncio.sleep(_COLLECTED_SECONDS)

    async def _start_store(self) -> None:
        plan, world = self._plan, self.world
        if not plan.gateways:
            assert isinstance(world.metadata, MemoryMetadata)
            world.metadata.on_change.append(self._metadata_changed)
            world.metadata.names_owners = plan.guarded
            if plan.auto_recovery is not None:
                self._repairs = self._watch_repairs(world.metadata, plan.auto_recovery)
            return
        store = SimulatedStore(world, gateways=plan.gateways)
        store.access = None if world.access is None else world.access.control()
        store.on_change.append(StoreRecorder(self.recorder, store.ensemble).changed)
        world.metadata = store
        if plan.auto_recovery is not None:
            self._peer = ForeignPeer(world, store)
            self._repairs = TreeWatch(world, store, self.recorder, self._peer, self._damaged)
        await store.start()
        if any(rate.kind == STORE_FAULTS for rate in plan.rates):
            clients = [f"bookie-{number}" for number in range(1, plan.bookies + 1)]
            self._store_faults = StoreFaults(world, store, self.recorder, clients)

    def _watch_repairs(self, store: MemoryMetadata, settings: AutoRecoveryPlan) -> RepairWatch:
        return RepairWatch(
            self.world,
            store,
            self.recorder,
            self._damaged,
            RepairBounds(self.world, settings),
            settings.delay,
            settings.grace,
            clocks_are_right=all(rate.kind != CLOCK_SKEW for rate in self._plan.rates),
            scrubs=settings.scrub_rate >= 1.0,
        )

    def _copies(self, process: Process, entries: Sequence[Entry]) -> None:
        if isinstance(self._repairs, RepairWatch):
            self._repairs.bounds.copies(process, entries)

    def _asked(self, process: Process) -> None:
        if isinstance(self._repairs, RepairWatch):
            self._repairs.bounds.asked(process)

    def _compromised(self) -> None:
        if isinstance(self._repairs, RepairWatch):
            self._repairs.bounds.compromised()

    # Clients

    async def _connect(self, name: str) -> RecordingClient:
        simulated = self.world.client(name, **self._plan.client_settings)
        client = RecordingClient(name, simulated.bookkeeper, self.recorder)
        client.run = partial(self._in_client, simulated)
        return client

    async def _in_client(self, simulated: SimulatedClient, work: Any) -> None:
        with contextlib.suppress(ProcessEndedError):
            await simulated.run(work)

    async def _crash(self, client: RecordingClient) -> None:
        self.world.clients[client.name].kill()

    # Watching

    def _tell(self, event: Event) -> None:
        if isinstance(event, events.Fault) and event.kind in events.LOSES_DATA:
            self._damaged.add(event.target)
            if event.kind == events.DAMAGED_FILE:
                self._unasked.add(event.target)
        elif isinstance(event, events.DeleteAsked):
            self._deleted.add(event.ledger)
        if self.world.transcript.keeps and not isinstance(event, events.BookieHolds):
            who = getattr(event, "client", None) or getattr(event, "bookie", None) or "world"
            self.world.note(who, str(event)[11:])

    def _metadata_changed(self, before: LedgerRecord | None, after: LedgerRecord | None) -> None:
        now = self.recorder.now
        if after is not None:
            self.recorder.add(metadata_seen(now, events.STORE, after))
        elif before is not None:
            self.recorder.add(events.MetadataRemoved(now, events.STORE, str(before.ledger_id.number)))

    def _watch_bookies(self) -> None:
        """Every connection that a bookie takes is observed."""
        loop = self.world.loop
        create_server = loop.create_server

        async def create_observed_server(factory: Any, *args: Any, **kwargs: Any) -> Any:
            host, port = kwargs["sock"].getsockname() if "sock" in kwargs else ("", 0)
            bookie = self.world.bookies.get(host)
            if bookie is None or f"{host}:{port}" != bookie.bookie_id:
                return await create_server(factory, *args, **kwargs)

            def observed() -> Observed:
                answered, loses = partial(self._answered, bookie), partial(self.faults.loses, bookie)
                recorder = self.recorder
                return Observed(factory(), bookie.bookie_id, recorder, answered, self._repeats, loses, self._fences)

            return await create_server(observed, *args, **kwargs)

        setattr(loop, "create_server", create_observed_server)  # noqa: B010 (a method)

    def _repeats(self) -> float | None:
        """After how many seconds a request that has just come is to come again; None: not at all."""
        if not self._repeated or self._rng.random() >= self._repeated:
            return None
        self.faults.counts["request repeated"] += 1
        return self._rng.choice((0.0, 0.01, 1.0)) * self._rng.random()

    def _began(self, bookie: SimulatedBookie) -> None:
        self._watch_collection(bookie)
        if isinstance(self._repairs, TreeWatch):
            self._repairs.started(bookie)

    def _started(self, bookie: SimulatedBookie) -> None:
        self._began(bookie)
        self._look_at(bookie)
        if bookie.bookie_id in self._unasked:
            self._unasked.remove(bookie.bookie_id)
            self._ask_for_all(bookie)

    def _ask_for_all(self, bookie: SimulatedBookie) -> None:
        """What it says of each entry that it had acknowledged, now that a file of it was damaged (S8).

        Few worlds have a client that asks for what lay in that file and nowhere else. Later it need not know all: it
        may have found out that a ledger ends before an entry that it has lost.
        """
        entries = sorted(
            {
                (int(event.ledger), event.entry_id)
                for event in self.recorder.history
                if isinstance(event, BookieAnswered) and event.bookie == bookie.bookie_id and event.promises_an_entry
            }
        )
        try:
            answers = bookie.answers(entries)
        except OSError:
            return  # another start would fail, as on a full disk, which denies nothing
        for (ledger, entry_id), status in zip(entries, answers, strict=True):
            now, arrived = self.recorder.now, len(self.recorder.history)
            name = bookie.bookie_id
            self.recorder.add(BookieAnswered(now, name, str(ledger), entry_id, "read", status.name, arrived))

    def _watch_collection(self, bookie: SimulatedBookie) -> None:
        server = bookie.server
        if server is None:
            return
        before = server.bridge.ledgers_deleted

        def deleted(numbers: Any) -> None:
            for number in numbers:
                surplus = isinstance(self._repairs, TreeWatch) and self._repairs.collected(bookie.bookie_id, number)
                event = events.SurplusCollected if surplus else events.LedgerCollected
                self.recorder.add(event(self.recorder.now, bookie.bookie_id, str(number)))
            before(numbers)

        setattr(server.bridge, "ledgers_deleted", deleted)  # noqa: B010 (a method)

    def _look_at(self, bookie: SimulatedBookie) -> None:
        """Records what it holds; of a damaged one nothing is demanded."""
        if bookie.bookie_id in self._damaged:
            return
        held = tuple(_stored_ledger(number, state) for number, state in sorted(bookie.stored().items()))
        self.recorder.add(events.BookieHolds(self.recorder.now, bookie.bookie_id, held))

    def _answered(self, bookie: SimulatedBookie, answer: BookieAnswered) -> None:
        """Now and then: what the bookie has just promised must be what a loss of power leaves (S5, S6)."""
        excused = bookie.bookie_id in self._damaged or answer.ledger in self._deleted
        if self._rng.random() * _LOOKS >= 1 or excused:
            return
        if answer.operation == "fencing-read" and answer.status in ("EOK", "ENOENTRY", "ENOLEDGER"):
            self.looked["S6"] += 1
            state = bookie.stored(nothing_survives, only=_about(answer)).get(int(answer.ledger))
            if state is None or not state.fenced:
                self.world.fail(FenceNotDurable("a loss of power now would lose the fence", answer))
        elif answer.promises_an_entry:
            self.looked["S5"] += 1
            state = bookie.stored(nothing_survives, only=_about(answer)).get(int(answer.ledger))
            if state is None or answer.entry_id not in state.entries:
                self.world.fail(AcknowledgedBeforeSync("a loss of power now would lose the entry", answer))


def _settings(plan: Plan) -> WorldSettings:
    network = NetworkSettings()
    for rate in plan.rates:
        if rate.kind == "fragments":
            network = replace(network, fragments=rate.rate)
        elif rate.kind == "slow-packets":
            network = replace(network, slow_share=rate.rate, slow=0.5)
    return WorldSettings(network=network)


def _about(answer: BookieAnswered) -> tuple[int, int]:
    return int(answer.ledger), answer.entry_id


def _stored_ledger(number: int, state: StoredLedgerState) -> events.RawLedgerRecord:
    return events.RawLedgerRecord(str(number), state.fenced, tuple(_contents(number, state)), state.limbo)


def _contents(number: int, state: StoredLedgerState) -> Iterator[tuple[int, str]]:
    for entry_id, packet in sorted(state.entries.items()):
        try:
            entry = decode_entry(_DIGEST, packet, number, entry_id)
        except DigestMatchException as error:
            yield entry_id, f"{BAD_DIGEST}{error}"
        else:
            yield entry_id, text_of(entry.payload)
