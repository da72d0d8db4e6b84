"""How large a system for so many clients and ledgers must be: pure formulas over measured constants.

`docs/scale.md` explains it. Unless a name says otherwise, CPU is in microseconds, memory and disk in bytes, time in
seconds, and rates are a second. A *cell* is a cluster of its own: one metadata store, its gateways and its bookies. Not
its job: measuring the constants, and checking predictions (`scale`).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Self

MICRO = 1e-6
MIB = 1024 * 1024
PAGE_BYTES = 8192
"""Of an index file."""
LEAST_COPY_BYTES = 4096
"""What an entry counts at least in the budget of a repair."""


@dataclass(frozen=True)
class Constants:
    """Measured; the defaults are those of the page."""

    gateway_base_bytes: float = 84e6
    client_bytes: float = 44_000
    client_bookie_bytes: float = 1_100
    """For each registered bookie: what the client's stream has told it."""
    stream_bytes: float = 21_100
    """The stream that a client opens with its first subscription, and that subscription."""
    subscription_bytes: float = 2_020
    hello_cpu: float = 2_850
    ping_cpu: float = 92
    """A second, for a client with an open stream."""
    discovery_cpu: float = 1_400
    discovery_bookie_cpu: float = 10
    """For each registered bookie in an answer."""
    create_cpu: float = 1_250
    read_cpu: float = 667
    subscribe_cpu: float = 1_850
    subscription_cpu: float = 1_030
    list_cpu: float = 0.48
    record_cpu: float = 41
    list_seconds: float = 1.18e-6
    record_seconds: float = 120e-6

    ledger_heap_bytes: float = 450
    ledger_snapshot_bytes: float = 239
    watch_heap_bytes: float = 354
    store_start_seconds: float = 30e-6
    discovery_store_cpu: float = 390
    discovery_bookie_store_cpu: float = 2
    create_store_cpu: float = 360
    list_store_cpu: float = 0.6
    collect_store_cpu: float = 0.35
    index_store_cpu: float = 10
    create_packets: float = 0.42
    """Requests to ZooKeeper: creations at once share transactions."""
    ledger_file_bytes: float = 171
    """In an embedded store."""

    collect_cpu: float = 0.44
    collect_seconds: float = 1.3e-6
    index_cpu: float = 60
    index_seconds: float = 99e-6
    index_bytes: float = 120

    add_cpu: float = 22.6
    bookie_ledger_cpu: float = 984
    """For the first add of a ledger and its index, beside the adds."""
    bookie_read_cpu: float = 65
    entry_overhead_bytes: float = 40
    """In the journal and in the entry log."""
    sorted_ledger_bytes: float = 4_123
    db_ledger_bytes: float = 195
    """Their index; for `sorted` a file each."""
    bookie_base_bytes: float = 99e6

    repair_cpu: float = 7_400
    repair_seconds: float = 11_000e-6
    repair_calls: float = 11.2

    @classmethod
    def of(cls, measured: Mapping[str, float]) -> Self:
        """The measured ones, and of others the page's."""
        known = {each.name for each in fields(cls)}
        return replace(cls(), **{name: value for name, value in measured.items() if name in known})


@dataclass(frozen=True)
class Limits:
    """The defaults of settings that bound a part before its CPU does."""

    connections: int = 10_000
    """Of one gateway."""
    streams: int = 10_000
    subscriptions: int = 1_000_000
    discovery_period: float = 48.75
    """The mean between two looks of a client for gateways: 45 s, and 3.75 s of rest before."""
    collection_period: float = 600.0
    index_rate: float = 5_000.0
    """Ledgers a second that an auditor reads for a new index."""
    write_cache_bytes: float = 128.0 * MIB
    ledger_cache_bytes: float = 64.0 * MIB
    repair_bytes: float = 50.0 * MIB
    """A second, read and stored, of one worker."""
    busy: float = 0.5
    """The share of a core that is planned for."""


@dataclass(frozen=True)
class Workload:
    """What one system, or one cell of it, must do."""

    clients: float
    ledgers: float
    bookies: float
    creations: float = 0.0
    """Ledgers a second that are created, and as many deleted."""
    metadata_reads: float = 0.0
    subscriptions_each: float = 0.0
    adds: float = 0.0
    reads: float = 0.0
    entry_bytes: float = 1024.0
    entries_each: float = 0.0
    """Entries of a ledger."""
    copies: int = 3
    disk_bytes: float = 8e12
    """Of one bookie, for entry logs; a quarter stays free."""

    def cell(self, cells: int) -> Workload:
        """One of so many equal cells; what holds for each client, ledger or bookie stays."""
        shared = ("clients", "ledgers", "bookies", "creations", "metadata_reads", "adds", "reads")
        return replace(self, **{name: getattr(self, name) / cells for name in shared})


@dataclass(frozen=True)
class Model:
    """The formulas; each is a method."""

    constants: Constants = field(default_factory=Constants)
    limits: Limits = field(default_factory=Limits)

    # --- gateways ---------------------------------------------------------------------------------------------------

    def discovery_cpu(self, bookies: float) -> float:
        return self.constants.discovery_cpu + bookies * self.constants.discovery_bookie_cpu

    def connect_cpu(self, bookies: float) -> float:
        """A client that connects: it learns of the cluster, looks for gateways, and opens its stream."""
        return self.constants.hello_cpu + self.discovery_cpu(bookies)

    def idle_cpu(self, bookies: float) -> float:
        """Microseconds a second for a connected client that asks nothing."""
        return self.constants.ping_cpu + self.discovery_cpu(bookies) / self.limits.discovery_period

    def gateway_cores(self, load: Workload) -> float:
        """Of all gateways together."""
        idle = load.clients * self.idle_cpu(load.bookies)
        calls = load.creations * self.constants.create_cpu + load.metadata_reads * self.constants.read_cpu
        return (idle + calls) * MICRO

    def gateways(self, load: Workload) -> int:
        """Processes: by CPU, connections, streams and subscriptions, whatever needs most."""
        limits, streams = self.limits, 2 if load.subscriptions_each else 1
        return math.ceil(
            max(
                self.gateway_cores(load) / limits.busy,
                load.clients / limits.connections,
                load.clients * streams / limits.streams,
                load.clients * load.subscriptions_each / limits.subscriptions,
            )
        )

    def gateway_bytes(self, clients: float, subscriptions_each: float, bookies: float) -> float:
        """Memory of one process with so many clients, without its cache."""
        constants = self.constants
        each = constants.client_bytes + bookies * constants.client_bookie_bytes
        if subscriptions_each:
            each += constants.stream_bytes + (subscriptions_each - 1) * constants.subscription_bytes
        return constants.gateway_base_bytes + clients * each

    def reconnection_seconds(self, load: Workload, gateways: int) -> float:
        """Until the clients of a lost gateway are connected to the others, which do nothing else meanwhile."""
        lost = load.clients / gateways
        first = self.constants.subscribe_cpu if load.subscriptions_each else 0.0
        more = max(load.subscriptions_each - 1, 0) * self.constants.subscription_cpu
        return lost * (self.connect_cpu(load.bookies) + first + more) * MICRO / max(gateways - 1, 1)

    # --- metadata store ---------------------------------------------------------------------------------------------

    def store_heap_bytes(self, load: Workload) -> float:
        watches = min(load.clients * load.subscriptions_each, load.ledgers)
        return load.ledgers * self.constants.ledger_heap_bytes + watches * self.constants.watch_heap_bytes

    def snapshot_bytes(self, load: Workload) -> float:
        return load.ledgers * self.constants.ledger_snapshot_bytes

    def store_start_seconds(self, load: Workload) -> float:
        return load.ledgers * self.constants.store_start_seconds

    def discovery_store_cpu(self, bookies: float) -> float:
        return self.constants.discovery_store_cpu + bookies * self.constants.discovery_bookie_store_cpu

    def store_cores(self, load: Workload) -> float:
        """Looks for gateways, creations and deletions, and the collections of all bookies."""
        looks = load.clients / self.limits.discovery_period * self.discovery_store_cpu(load.bookies)
        changes = 2 * load.creations * self.constants.create_store_cpu
        return (looks + changes) * MICRO + self.collection_store_cores(load)

    def collection_store_cores(self, load: Workload) -> float:
        """A bookie lists all ledgers of the store for every collection."""
        pass_cpu = load.ledgers * self.constants.collect_store_cpu * MICRO
        return load.bookies * pass_cpu / self.limits.collection_period

    def embedded_bytes(self, ledgers: float) -> float:
        return ledgers * self.constants.ledger_file_bytes

    # --- passes over all ledgers ------------------------------------------------------------------------------------

    def listing_seconds(self, ledgers: float) -> float:
        return ledgers * self.constants.list_seconds

    def record_listing_seconds(self, ledgers: float) -> float:
        return ledgers * self.constants.record_seconds

    def collection_seconds(self, ledgers: float) -> float:
        """The comparison with the store, of one bookie that has the store for itself."""
        return ledgers * self.constants.collect_seconds

    def index_seconds(self, ledgers: float) -> float:
        """Until a new auditor has read all ledgers; audits list the whole store until then."""
        return max(ledgers / self.limits.index_rate, ledgers * self.constants.index_seconds)

    def index_bytes(self, ledgers: float) -> float:
        return ledgers * self.constants.index_bytes

    # --- bookies ----------------------------------------------------------------------------------------------------

    def bookie_cores(self, load: Workload) -> float:
        """Of all bookies together: adds, reads, and their collections."""
        add = load.adds * self.constants.add_cpu + load.creations * self.constants.bookie_ledger_cpu
        read = load.reads * self.constants.bookie_read_cpu
        collections = load.bookies * load.ledgers * self.constants.collect_cpu / self.limits.collection_period
        return (add * load.copies + read + collections) * MICRO

    def bookie_bytes(self, ledgers: float, entries: float) -> float:
        """Memory of a bookie with so many ledgers in work and so many entries of 1 KiB added: caches fill, and end."""
        written = min(entries * (1024 + self.constants.entry_overhead_bytes), self.limits.write_cache_bytes)
        return self.constants.bookie_base_bytes + written + min(ledgers * PAGE_BYTES, self.limits.ledger_cache_bytes)

    def ledgers_of_a_bookie(self, load: Workload) -> float:
        return load.ledgers * load.copies / load.bookies

    def ledger_bytes(self, load: Workload, *, db: bool) -> float:
        """Of one copy of a ledger on disk: its entries and its index."""
        entries = load.entries_each * (load.entry_bytes + self.constants.entry_overhead_bytes)
        return entries + (self.constants.db_ledger_bytes if db else self.constants.sorted_ledger_bytes)

    def disk_bytes_of_a_bookie(self, load: Workload, *, db: bool) -> float:
        return self.ledgers_of_a_bookie(load) * self.ledger_bytes(load, db=db)

    def journal_bytes(self, load: Workload) -> float:
        """A second, of one bookie."""
        return load.adds * load.copies / load.bookies * (load.entry_bytes + self.constants.entry_overhead_bytes)

    def bookies(self, load: Workload, *, db: bool = True) -> int:
        """By CPU, by disk, and one more than a ledger has copies, so that a lost one can be replaced."""
        stored = load.ledgers * load.copies * self.ledger_bytes(load, db=db)
        by_disk = stored / (load.disk_bytes * 0.75)
        return math.ceil(max(self.bookie_cores(load) / self.limits.busy, by_disk, load.copies + 1))

    # --- repair -----------------------------------------------------------------------------------------------------

    def repair_seconds(self, load: Workload) -> float:
        """Of one lost bookie, by the workers of all others: what their budgets allow, or what the ledgers cost."""
        ledgers, workers = self.ledgers_of_a_bookie(load), max(load.bookies - 1, 1)
        by_budget = ledgers * load.entries_each * max(load.entry_bytes, LEAST_COPY_BYTES) * 2 / self.limits.repair_bytes
        return max(by_budget, ledgers * self.constants.repair_seconds) / workers

    def repair_cpu_seconds(self, load: Workload) -> float:
        """Of all workers together, for ledgers of few entries."""
        return self.ledgers_of_a_bookie(load) * self.constants.repair_cpu * MICRO

    def repair_store_calls(self, load: Workload) -> float:
        return self.ledgers_of_a_bookie(load) * self.constants.repair_calls


EXAMPLE = Workload(
    clients=1e6,
    ledgers=1e9,
    bookies=500,
    creations=400,
    metadata_reads=2_000,
    subscriptions_each=2,
    adds=100_000,
    reads=50_000,
    entries_each=250,
)
"""The worked example of the page: ledgers are kept for a month, and hold a quarter of a megabyte each."""
CELLS = 100
