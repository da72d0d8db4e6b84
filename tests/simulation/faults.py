"""Faults of a plan, done to a world, and undone: to processes, power, disks and the network.

A bookie that is down because of a fault comes back when the fault is over; one that ended by itself, as after a disk
error, is started again by whoever watches over it, as an init system does. What a bookie holds is looked at after each
start.
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from bookgate.bookie.membership.cookie import InvalidCookieException
from bookgate.bookie.system.files import StorageCorruptException
from bookgate.ledger.metadata_store import Versioned
from bookgate.ledger.replication_store import RecordKind
from tests.faults.memory_disk import nothing_survives
from tests.history import events
from tests.history.recorder import Recorder
from tests.history.violations import NoProgress
from tests.simulation.damage import Damage, contents, damage_a_file, damage_a_journal, kind_of
from tests.simulation.metadata import HOST as METADATA_HOST
from tests.simulation.metadata import MemoryMetadata, OtherStore
from tests.simulation.moments import collects, has_logs_to_merge, moves, next_to_store
from tests.simulation.plan import (
    BEGUN_ANEW,
    DAMAGED_FILE,
    DAMAGED_JOURNAL,
    DISABLED,
    DRAINED,
    KILLED_MOVING,
    FaultPlan,
    Plan,
)
from tests.simulation.simulated_bookie import SimulatedBookie
from tests.simulation.workload import VISITORS
from tests.simulation.world import World

KINDS = (
    "kill",
    "power-loss",
    "power-loss-of-all",
    "stop",
    "pause",
    "isolate",
    "mute",
    "stall",
    "reset",
    "refuse",
    "slow-disk",
    "full-disk",
    "failing-syncs",
    "failing-reads",
    "failing-opens",
    "store-cut",
    "add-bookie",
)
LINKS = (
    "link-cut",
    "link-to-cut",
    "link-from-cut",
    "link-to-stalls",
    "link-from-stalls",
    "link-resets",
    "link-breaks",
    "link-loses",
    "others-late",
)
"""What befalls the link between one client and one bookie: both ways, to the bookie, or from it. One that breaks is
cut, and what was connected or on its way is lost when it is mended; of one that loses, the next requests never come to
the bookie, and others do. The last one is about all the others: the client hears the one bookie only."""
ENCOUNTER_KINDS = (
    *LINKS,
    *LINKS,
    "kill",
    "power-loss",
    "power-loss",
    "power-loss-of-all",
    "pause",
    "isolate",
    "stall",
    "slow-disk",
    "failing-reads",
)
CRASH_OF_A_CLIENT = "crash-client"
"""One of an encounter, which the fault names: a recoverer dies in the middle."""
METADATA_LATE = "metadata-late"
"""What a client of an encounter asks of the metadata store comes late: it loses a race that it had won."""
STORE_KINDS = ("store-empty", "store-of-another", "store-older")
"""A bookie comes upon another store than its own: one with a cluster that was just made, that of another cluster which
has a copy of the bookie's cookie, or its own as it was before, as after a backup was put back. The last one shows no
sign of it, and lasts for less than the period that garbage collection waits."""
_WRONG_STORE_LASTS = 3.0
"""Times as long as other faults: until two collections have run."""
_OLDER_STORE_SECONDS = 2.5
LOSSY_KINDS = ("wipe", "corrupt", "flipped-reads")
LONG_PAUSES = ("pause-client", "pause-client", "long-pause")
CLOCK_SKEW = "clock-skew"
_FIRST_BOOKIE = "bookie-1"
RATES = {
    CLOCK_SKEW: 3600.0,
    "repeated-requests": 0.05,
    "fragments": 0.5,
    "slow-packets": 0.2,
    "failing-syncs": 0.003,
    "failing-writes": 0.001,
    "failing-reads": 0.01,
    "failing-opens": 0.01,
    "slow-disk": 30.0,
    "lost-metadata-calls": 0.1,
}
"""Small faults with the highest rate; of a slow disk how many times as long operations take, of clocks by how many
seconds they are wrong at most. Requests that are repeated come again later on the same connection, as from a client
that has not heard of the first one's answer."""

_CLOCK_JUMPS = (0, 1, 2)
"""How often a clock that is wrong is set while the plan runs."""
_JUMP_SECONDS = 100_000.0
"""More than a day, to either side."""
_OF_INDEXES = 20.0
"""So many times as often a sync of an index file fails."""
_FLIPPED_READS = (0.05, 0.5)
_BYTES_OF_A_BAD_DISK = 500
"""To one bit that is turned over."""
_LOST_AT_ONCE = (1, 1, 2, 5)
"""Requests on a link that loses some."""
_RESETS_EVERY_SECONDS = 0.003
_ACCEPTED = 0.6
"""Share of damaged bookies that are started with their loss accepted, if need be; the others are given up."""
_REFUSALS = (StorageCorruptException, InvalidCookieException)
"""What a start says of the bookie's own files."""
_WATCH_SECONDS = 1.0
_HEALING_SECONDS = 120.0
_SETTLING_SECONDS = 4.0


def client_hosts(plan: Plan) -> list[str]:
    """Of every client of the safety phase, also of those that are not there yet."""
    return [part.name for part in plan.writers] + [f"r{number}" for number in range(VISITORS)]


class Faults:
    """`look` records what a bookie holds; it is called when one serves again."""

    def __init__(
        self,
        world: World,
        plan: Plan,
        recorder: Recorder,
        start: Callable[[SimulatedBookie], None],
        settings: Mapping[str, Any] | None = None,
    ) -> None:
        """`settings` of `BookieConfig` that bookies which are added have."""
        self._world = world
        self._settings = plan.auto_recovery_settings if settings is None else settings
        self._plan = plan
        self._recorder = recorder
        self._started = start
        self._rng = world.random("faults")
        self._down: Counter[str] = Counter()
        """Bookies that stay down, by how many faults want it."""
        self._gone: set[str] = set()
        """Bookies that were wiped: others have taken their places."""
        self._hurt: dict[str, bool] = {}
        """Bookies of which a file was damaged, and whether the loss is to be accepted."""
        self._to_replace = 0
        """How many others are still to take the places of bookies that were given up."""
        self._flipping: dict[str, float] = {}
        """Share of their reads that come back wrong."""
        self._saw_older: set[str] = set()
        """Bookies that came upon an older state of the store."""
        self._losing: Counter[tuple[str, str]] = Counter()
        """Links, by client and bookie, that lose the next requests: how many."""
        self._starting: dict[str, asyncio.Lock] = {}
        self.counts: Counter[str] = Counter()

    @property
    def bookies(self) -> list[SimulatedBookie]:
        return [bookie for bookie in self._world.bookies.values() if bookie.name not in self._gone]

    def set_rates(self) -> None:
        for rate in self._plan.rates:
            self.counts[f"rate of {rate.kind}"] += 1
            if rate.kind == CLOCK_SKEW:
                self._set_clocks(rate.rate)
            elif rate.kind == "lost-metadata-calls":
                self._lose_metadata_calls(rate.rate)
            for bookie in self.bookies:
                self._set_disk_rate(bookie, rate.kind, rate.rate)

    def _lose_metadata_calls(self, rate: float) -> None:
        """Where a plain store is: gateways have faults of their own."""
        if isinstance(self._world.metadata, MemoryMetadata):
            self._world.metadata.failing = rate

    def _set_clocks(self, seconds: float) -> None:
        """Every host has a time of day of its own, which may jump, as when somebody sets it."""
        jumps = self._world.random("clock jumps")
        loop = asyncio.get_running_loop()
        for host in (*self._world.network.hosts, *client_hosts(self._plan)):
            self._world.loop.clocks_ahead[host] = self._rng.uniform(-seconds, seconds)
            for _ in range(jumps.choice(_CLOCK_JUMPS)):
                by = jumps.uniform(-_JUMP_SECONDS, _JUMP_SECONDS)
                loop.call_later(jumps.uniform(0.0, self._plan.duration), self._jump, host, by)

    def _jump(self, host: str, seconds: float) -> None:
        self._world.loop.clocks_ahead[host] += seconds
        self.counts["clock jump"] += 1

    def _set_disk_rate(self, bookie: SimulatedBookie, kind: str, rate: float) -> None:
        faults = bookie.disk.faults
        match kind:
            case "failing-syncs":
                faults.failing_syncs, faults.failing_index_syncs = rate, _OF_INDEXES * rate
            case "failing-writes":
                faults.failing_writes = rate
            case "failing-reads":
                faults.failing_reads = rate
            case "failing-opens":
                faults.failing_opens = rate
            case "slow-disk":
                faults.slowness = max(1.0, rate)

    async def befall(self, fault: FaultPlan) -> None:
        """Comes, lasts, and goes."""
        if fault.kind == DAMAGED_FILE:
            await self._damage_file(fault)
            return
        await asyncio.sleep(fault.at)
        if fault.kind == DAMAGED_JOURNAL:
            await self._damage_journal(fault)
            return
        if fault.kind == "pause-client":
            await self._pause_client(fault)
            return
        if fault.kind == CRASH_OF_A_CLIENT:
            self._crash_client(fault)
            return
        if fault.kind == METADATA_LATE:
            await self._delay_metadata(fault)
            return
        if fault.kind == DISABLED:
            await self._disable_auto_recovery(fault)
            return
        if fault.kind in STORE_KINDS:
            await self._wrong_store(fault)
            return
        if fault.kind == KILLED_MOVING:
            await self._kill_moving(fault)
            return
        bookies = self.bookies
        bookie = bookies[fault.target % len(bookies)]
        self.counts[fault.kind] += 1
        if fault.kind in LINKS:
            await self._trouble_link(fault, bookie)
            return
        self._recorder.add(events.Fault(self._recorder.now, fault.kind, bookie.bookie_id, f"{fault.lasts:.2f} s"))
        if fault.kind in ("kill", "power-loss", "power-loss-of-all", "stop"):
            await self._take_down(fault, bookies if fault.kind == "power-loss-of-all" else [bookie])
        elif fault.kind in ("wipe", "corrupt", "flipped-reads"):
            await self._damage(fault.kind, bookie)
        elif fault.kind == BEGUN_ANEW:
            await self._begin_anew(bookie, fault.lasts)
        elif fault.kind == "add-bookie":
            await self._add_bookie()
        elif fault.kind == DRAINED:
            self._drain(bookie)
        else:
            undo = self._begin(fault, bookie)
            await asyncio.sleep(fault.lasts)
            undo()

    async def _wrong_store(self, fault: FaultPlan) -> None:
        store = self._world.metadata
        if not isinstance(store, MemoryMetadata):
            return
        bookie = self.bookies[fault.target % len(self.bookies)]
        if not bookie.joined:
            # It would join whatever cluster it is shown first, and belong there.
            return
        seconds = fault.lasts * _WRONG_STORE_LASTS
        match fault.kind:
            case "store-older":
                wrong = OtherStore(store.instance_id, dict(store.ledgers), dict(store.cookies))
                await asyncio.sleep(self._rng.uniform(1.0, 6.0))
                seconds = min(seconds, _OLDER_STORE_SECONDS)
                if bookie.name in self._saw_older:
                    # Two passes of garbage collection might see one each, and nothing else in between.
                    return
                self._saw_older.add(bookie.name)
            case "store-of-another":
                ledgers = {ledger_id: record for ledger_id, record in store.ledgers.items() if ledger_id.low % 2}
                wrong = OtherStore("another", ledgers, dict(store.cookies))
            case _:
                wrong = OtherStore("just made", {}, {})
        if bookie.name in self._gone or not bookie.joined or bookie.accept_loss:
            return
        self.counts[fault.kind] += 1
        self._recorder.add(events.Fault(self._recorder.now, fault.kind, bookie.bookie_id, f"{seconds:.2f} s"))
        store.lead(bookie.name, wrong)
        await asyncio.sleep(seconds)
        if store.elsewhere.get(bookie.name) is wrong:
            store.lead(bookie.name, None)

    async def _disable_auto_recovery(self, fault: FaultPlan) -> None:
        store = self._world.metadata
        if not isinstance(store, MemoryMetadata):
            return
        self.counts[fault.kind] += 1
        self._recorder.add(events.Fault(self._recorder.now, fault.kind, "the cluster", f"{fault.lasts:.2f} s"))
        store.replication.switch(False)
        await asyncio.sleep(fault.lasts)
        store.replication.switch(True)

    def _drain(self, bookie: SimulatedBookie) -> None:
        store = self._world.metadata
        if isinstance(store, MemoryMetadata):
            store.replication.records[RecordKind.DRAINING_BOOKIE, bookie.bookie_id] = Versioned(b"", 0)
            self._to_replace += 1

    async def _pause_client(self, fault: FaultPlan) -> None:
        """One that is there at that time."""
        clients = [client for client in self._world.clients.values() if client.process.alive]
        if not clients:
            return
        client = clients[fault.target % len(clients)]
        self.counts[fault.kind] += 1
        self._recorder.add(events.Fault(self._recorder.now, fault.kind, client.name, f"{fault.lasts:.2f} s"))
        client.pause()
        await asyncio.sleep(fault.lasts)
        client.resume()

    def _client_host(self, fault: FaultPlan) -> str:
        hosts = client_hosts(self._plan)
        return hosts[fault.client % len(hosts)]

    async def _delay_metadata(self, fault: FaultPlan) -> None:
        client = self._client_host(fault)
        self.counts[fault.kind] += 1
        self._recorder.add(events.Fault(self._recorder.now, fault.kind, client, f"{fault.lasts:.3f} s"))
        mend = self._cut([(client, METADATA_HOST)])
        await asyncio.sleep(fault.lasts)
        mend()

    def _crash_client(self, fault: FaultPlan) -> None:
        """If it is there at that time."""
        client = self._world.clients.get(self._client_host(fault))
        if client is None or not client.process.alive:
            return
        self.counts[fault.kind] += 1
        self._recorder.add(events.Fault(self._recorder.now, fault.kind, client.name))
        client.kill()

    async def _trouble_link(self, fault: FaultPlan, bookie: SimulatedBookie) -> None:
        network = self._world.network
        client = self._client_host(fault)
        self._recorder.add(events.Fault(self._recorder.now, fault.kind, client, f"{bookie.name}, {fault.lasts:.3f} s"))
        to, back = (client, bookie.name), (bookie.name, client)
        if fault.kind == "link-resets":
            ends = self._world.now + fault.lasts
            while self._world.now <= ends:
                network.reset(*to)
                await asyncio.sleep(self._rng.expovariate(1 / _RESETS_EVERY_SECONDS))
            return
        if fault.kind == "others-late":
            for other in self.bookies:
                if other is not bookie:
                    network.stall(other.name, client, fault.lasts)
            return
        if fault.kind.endswith("stalls"):
            network.stall(*(to if fault.kind == "link-to-stalls" else back), fault.lasts)
            return
        if fault.kind == "link-loses":
            self._losing[to] = self._rng.choice(_LOST_AT_ONCE)
            return
        mend = self._cut({"link-to-cut": [to], "link-from-cut": [back]}.get(fault.kind, [to, back]))
        await asyncio.sleep(fault.lasts)
        if fault.kind == "link-breaks":
            network.reset(*to)
        mend()

    def loses(self, bookie: SimulatedBookie, client: str) -> bool:
        """Whether a request of that client, which is about to come to the bookie, does not."""
        if not self._losing[client, bookie.name]:
            return False
        self._losing[client, bookie.name] -= 1
        self.counts["request lost"] += 1
        return True

    def _begin(self, fault: FaultPlan, bookie: SimulatedBookie) -> Callable[[], None]:
        """What lasts; returns what ends it."""
        network, disk = self._world.network, bookie.disk
        others = [name for name in network.hosts if name != bookie.name]
        match fault.kind:
            case "pause" | "long-pause":
                bookie.pause()
                return bookie.resume
            case "isolate":
                return self._cut(
                    [(bookie.name, other) for other in others] + [(other, bookie.name) for other in others]
                )
            case "mute":
                return self._cut([(bookie.name, other) for other in others])
            case "store-cut":
                stores = [name for name in others if name == METADATA_HOST or name.startswith("gateway")]
                return self._cut([(bookie.name, name) for name in stores] + [(name, bookie.name) for name in stores])
            case "stall":
                for other in others:
                    network.stall(bookie.name, other, fault.lasts)
            case "reset":
                for other in others:
                    network.reset(bookie.name, other)
            case "refuse":
                network.refuse(bookie.name)
                return lambda: network.refuse(bookie.name, False)
            case "slow-disk":
                before, disk.faults.slowness = disk.faults.slowness, 100.0
                return lambda: setattr(disk.faults, "slowness", before)
            case "full-disk":
                disk.media.capacity = 0
                return lambda: setattr(disk.media, "capacity", None)
            case "failing-syncs":
                before, disk.faults.failing_syncs = disk.faults.failing_syncs, 0.5
                return lambda: setattr(disk.faults, "failing_syncs", before)
            case "failing-reads":
                before, disk.faults.failing_reads = disk.faults.failing_reads, 0.3
                return lambda: setattr(disk.faults, "failing_reads", before)
            case "failing-opens":
                before, disk.faults.failing_opens = disk.faults.failing_opens, 0.3
                return lambda: setattr(disk.faults, "failing_opens", before)
        return lambda: None

    def _cut(self, ways: list[tuple[str, str]]) -> Callable[[], None]:
        network = self._world.network
        for source, target in ways:
            network.cut(source, target)

        def mend() -> None:
            for source, target in ways:
                network.mend(source, target)

        return mend

    async def _take_down(self, fault: FaultPlan, bookies: list[SimulatedBookie]) -> None:
        for bookie in bookies:
            self._down[bookie.name] += 1
            if fault.kind == "kill":
                bookie.kill()
            elif fault.kind == "stop":
                await asyncio.wait([asyncio.ensure_future(bookie.stop())], timeout=fault.lasts)
            else:
                if fault.kind == "power-loss-of-all":
                    kind, now = events.POWER_LOSS, self._recorder.now
                    self._recorder.add(events.Fault(now, kind, bookie.bookie_id, "with all others"))
                bookie.power_off()
        await asyncio.sleep(fault.lasts)
        for bookie in bookies:
            self._down[bookie.name] -= 1
            await self._start(bookie)

    async def _damage(self, kind: str, bookie: SimulatedBookie) -> None:
        if kind == "wipe":
            if isinstance(self._world.metadata, MemoryMetadata):
                # In a store that does not know it, it would be a new bookie, and rightly start.
                self._world.metadata.lead(bookie.name, None)
            bookie.wipe()
            self._gone.add(bookie.name)
            # It must notice, and stay out; another one is put in its place.
            await asyncio.shield(asyncio.ensure_future(self._start_wiped(bookie)))
            await self._add_bookie()
        elif kind == "flipped-reads":
            share = self._flipping[bookie.name] = self._rng.choice(_FLIPPED_READS)
            bookie.disk.faults.flipped_reads = share
        else:
            self._turn_bits(bookie)

    async def _begin_anew(self, bookie: SimulatedBookie, seconds: float) -> None:
        """Somebody gives it empty disks and deletes its cookie, with the same id as before."""
        store = self._world.metadata
        if not isinstance(store, MemoryMetadata):
            return
        self._down[bookie.name] += 1
        # It would join whatever cluster it is shown.
        store.lead(bookie.name, None)
        bookie.wipe()
        store.cookies.pop(bookie.bookie_id, None)
        await asyncio.sleep(seconds)
        self._down[bookie.name] -= 1
        await self._start(bookie)

    async def _damage_file(self, fault: FaultPlan) -> None:
        """Takes a bookie down, in one way or another, damages a file of it, and starts it again."""
        rng = self._world.random("damage")
        before = fault.at * rng.random()
        await asyncio.sleep(before)
        bookies = self.bookies
        bookie = bookies[fault.target % len(bookies)]
        old = contents(bookie)
        await asyncio.sleep(fault.at - before)
        if bookie.name in self._gone:
            return
        self._down[bookie.name] += 1
        end = rng.choice(("kill", "power-loss", "stop"))
        if end == "stop":
            await asyncio.wait([asyncio.ensure_future(bookie.stop())], timeout=2.0)
        bookie.power_off() if end == "power-loss" else bookie.kill()
        await self._come_back_damaged(fault, bookie, damage_a_file(bookie, old, rng), end, rng)

    async def _damage_journal(self, fault: FaultPlan) -> None:
        """Of the bookie that acknowledges the next add, which is in its journal only; it has flushed others before."""
        old = {bookie.bookie_id: contents(bookie) for bookie in self.bookies}
        bookie = await next_to_store(self._recorder, lambda: self.bookies)
        if bookie is None or bookie.name in self._gone or bookie.bookie_id not in old:
            return
        rng = self._world.random("damage")
        self._down[bookie.name] += 1
        end = rng.choice(("kill", "power-loss"))
        bookie.power_off() if end == "power-loss" else bookie.kill()
        damage = damage_a_journal(bookie, old[bookie.bookie_id], rng)
        await self._come_back_damaged(fault, bookie, damage, end, rng)

    async def _come_back_damaged(
        self, fault: FaultPlan, bookie: SimulatedBookie, damage: Damage | None, end: str, rng: random.Random
    ) -> None:
        self._recorder.add(events.Fault(self._recorder.now, DAMAGED_FILE, bookie.bookie_id, f"{end}, {damage}"))
        if damage is not None:
            self.counts[f"{DAMAGED_FILE}: {kind_of(damage.path)} {damage.way}"] += 1
            self._hurt[bookie.name] = rng.random() < _ACCEPTED
            if not damage.told:
                self._refused(bookie)
        await asyncio.sleep(fault.lasts)
        self._down[bookie.name] -= 1
        await self._start(bookie)

    async def _kill_moving(self, fault: FaultPlan) -> None:
        """What the killed process had written of its moves is in memory only, and shows them to the next one."""
        bookies = [bookie for bookie in self.bookies if has_logs_to_merge(bookie)]
        if not bookies:
            return
        bookie = bookies[fault.target % len(bookies)]
        # After a restart each log is complete.
        bookie.kill()
        await self._start(bookie)
        if not await moves(self._world, bookie):
            return
        self.counts[KILLED_MOVING] += 1
        self._recorder.add(events.Fault(self._recorder.now, KILLED_MOVING, bookie.bookie_id))
        bookie.kill()
        await self._start(bookie)
        await collects(self._world, bookie)
        if bookie.running:
            now, kind = self._recorder.now, events.POWER_LOSS
            self._recorder.add(events.Fault(now, kind, bookie.bookie_id, "it has collected"))
            bookie.power_off(nothing_survives)
            await self._start(bookie)

    def _refused(self, bookie: SimulatedBookie) -> None:
        """A damaged bookie does not start, or should not as if nothing had happened: whoever runs it decides."""
        accepts, self._hurt[bookie.name] = self._hurt[bookie.name], False
        if accepts:
            # Whoever accepts a loss has seen to it that the metadata are the cluster's present ones.
            if isinstance(self._world.metadata, MemoryMetadata):
                self._world.metadata.lead(bookie.name, None)
            bookie.accept_loss = True
        else:
            self._gone.add(bookie.name)
            self._to_replace += 1

    async def _start_wiped(self, bookie: SimulatedBookie) -> None:
        if await bookie.start():
            self._recorder.add(events.BookieStarted(self._recorder.now, bookie.bookie_id))
        bookie.kill()

    def _turn_bits(self, bookie: SimulatedBookie) -> None:
        """Some bits of what its entry logs hold, or many."""
        media = bookie.disk.media
        logs = [path for path in media.files(Path("/")) if path.suffix == ".log"]
        for path in sorted(logs):
            size = len(media.content(path))
            for _ in range(self._rng.choice((self._rng.randint(1, 4), size // _BYTES_OF_A_BAD_DISK))):
                if size > 1024:
                    bookie.disk.corrupt(path, self._rng.randrange(1024, size), self._rng.randrange(8))

    async def _add_bookie(self) -> None:
        name = f"bookie-{len(self._world.bookies) + 1}"
        first = self._plan.first_bookie_settings if _FIRST_BOOKIE in self._gone else {}
        await self._start(self._world.bookie(name, **{**self._settings, **first}))

    async def _replace_what_was_given_up(self) -> None:
        while self._to_replace:
            self._to_replace -= 1
            await self._add_bookie()

    async def _start(self, bookie: SimulatedBookie) -> None:
        """Starts it unless a fault wants it down. It may not come up. A start that has begun is not broken off."""
        await asyncio.shield(asyncio.ensure_future(self._start_at_last(bookie)))

    async def _start_at_last(self, bookie: SimulatedBookie) -> None:
        async with self._starting.setdefault(bookie.name, asyncio.Lock()):
            if bookie.running or bookie.name in self._gone or self._down[bookie.name]:
                return
            # The journal's records have no checksum: what replay reads has to be true.
            bookie.disk.faults.flipped_reads = 0.0
            if not await bookie.start():
                if bookie.name in self._hurt and isinstance(bookie.failure, _REFUSALS):
                    self.counts[f"{DAMAGED_FILE}: refused"] += 1
                    self._refused(bookie)
                return
            self._recorder.add(events.BookieStarted(self._recorder.now, bookie.bookie_id))
            self._started(bookie)
            bookie.disk.faults.flipped_reads = self._flipping.get(bookie.name, 0.0)

    async def watch_over(self) -> None:
        """Starts again what ended by itself, for as long as it runs."""
        while True:
            await asyncio.sleep(_WATCH_SECONDS)
            for bookie in self.bookies:
                if not bookie.running:
                    await self._start(bookie)
            await self._replace_what_was_given_up()

    async def heal(self) -> None:
        """Everything works again. Raises NoProgress when a bookie does not come up."""
        world = self._world
        world.network.heal()
        self._losing.clear()
        self._lose_metadata_calls(0.0)
        if isinstance(world.metadata, MemoryMetadata):
            for host in list(world.metadata.elsewhere):
                world.metadata.lead(host, None)
            world.metadata.replication.feed_gaps = 0.0
        self._down.clear()
        while len(self.bookies) - self.counts[DRAINED] < self._plan.bookies:
            # The end of the safety phase came between a bookie's loss, or its end, and its replacement.
            await self._add_bookie()
        self._to_replace = 0
        bookies = self.bookies
        for client in world.clients.values():
            if client.process.alive and client.process.paused:
                client.resume()
        for bookie in bookies:
            faults = bookie.disk.faults
            faults.failing_index_syncs = 0.0
            faults.slowness, faults.failing_syncs, faults.failing_writes, faults.failing_reads = 1.0, 0.0, 0.0, 0.0
            faults.flipped_reads = faults.failing_opens = 0.0
            self._flipping.clear()
            bookie.disk.media.capacity = None
            bookie.resume()
        if self._hurt or self.counts[BEGUN_ANEW]:
            # What such a bookie lacks it may never be able to take again: an intruder's key may have come first.
            await self._add_bookie()
        await self._until_all_serve()
        await asyncio.sleep(_SETTLING_SECONDS)
        # A stop that was under way may have come to its end meanwhile.
        await self._until_all_serve()

    def _is_found(self, bookie: SimulatedBookie) -> bool:
        """Whether it serves, and clients learn of it, and of the mode it is in."""
        store, server = self._world.metadata, bookie.server
        if not bookie.serving or server is None or not isinstance(store, MemoryMetadata):
            return bookie.serving
        found = store.registrations.get(bookie.bookie_id)
        return found is not None and found.process is bookie.process and found.read_only is server._mode.read_only

    async def _until_all_serve(self) -> None:
        """Starts what is down; also until those who registered themselves in a wrong store have noticed it."""
        world = self._world
        ends = world.now + _HEALING_SECONDS
        while not all(self._is_found(bookie) for bookie in self.bookies):
            if world.now > ends:
                down = [f"{bookie.name} ({bookie.failure})" for bookie in self.bookies if not self._is_found(bookie)]
                raise NoProgress(f"bookies do not come up though nothing ails them: {', '.join(down)}")
            for bookie in self.bookies:
                await self._start(bookie)
            await self._replace_what_was_given_up()
            await asyncio.sleep(0.1)
