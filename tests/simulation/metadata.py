"""A metadata store for worlds that are not about metadata: always right, never stale, a round trip away.

It runs on a host of its own, which can be cut off: calls then fail as those to a store out of reach do. It can also
lose requests, and answers to what it has done, now and then. A bookie's
registration outlives its process by `session_seconds`.

Not its job: ZooKeeper's semantics and the gateway, which have simulations of their own behind the same interface.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from bookgate.gateway.config import GatewayConfig
from bookgate.ledger.bookie_info import BookieServiceInfo, Lease
from bookgate.ledger.errors import (
    BKException,
    BookieHandleNotAvailableException,
    LedgerExistException,
    MetadataVersionException,
    MetaStoreException,
    NoSuchLedgerExistsOnMetadataServerException,
)
from bookgate.ledger.id_set import unsigned
from bookgate.ledger.ledger_id import LedgerId
from bookgate.ledger.metadata import OWNER_KEY, LedgerMetadata
from bookgate.ledger.metadata_store import (
    BookieSet,
    BookiesListener,
    ClusterInfo,
    LedgerManager,
    LedgerManagerFactory,
    LedgerMetadataListener,
    LedgerRecord,
    RegisteredBookie,
    RegistrationManager,
    ServiceDiscovery,
    Versioned,
    require_same,
)
from bookgate.ledger.replication_store import ReplicationMetadata
from tests.simulation.loop import CURRENT, Process, WorldLoop
from tests.simulation.memory_replication import MemoryReplication, ReplicationState
from tests.simulation.network import Network

HOST = "metadata"
_GIVE_UP_AFTER = 5.0


class Metadata(Protocol):
    """What a world needs of a metadata store."""

    def factory(self, uri: str, config: GatewayConfig | None = None) -> LedgerManagerFactory:
        """For the process that calls; not yet initialized."""


BookieWatch = tuple[Process, BookieSet, BookiesListener]


@dataclass(slots=True)
class _Registration:
    info: BookieServiceInfo
    read_only: bool
    process: Process


@dataclass(frozen=True, slots=True)
class OtherStore:
    """What a host finds whose way to the metadata leads to another store, or to an older state of the right one."""

    instance_id: str
    ledgers: dict[LedgerId, LedgerRecord]
    cookies: dict[str, Versioned[bytes]]


class MemoryMetadata:
    """The store itself. `on_change` hears of every change of a ledger: its record before and after; `on_read` of every
    ledger that a process reads by itself.
    """

    def __init__(self, loop: WorldLoop, network: Network, session_seconds: float) -> None:
        self.loop = loop
        self._network = network
        self._session_seconds = session_seconds
        self.instance_id = "simulated"
        self.ledgers: dict[LedgerId, LedgerRecord] = {}
        self.cookies: dict[str, Versioned[bytes]] = {}
        self.registrations: dict[str, _Registration] = {}
        self._missing_since: dict[str, float] = {}
        self._registered_since: dict[str, float] = {}
        self.last_absences: dict[str, tuple[float, float]] = {}
        """Of bookies that are back: when they went and came."""
        """Bookies that were registered once, and are not now."""
        self.ledger_listeners: dict[LedgerId, list[tuple[Process, LedgerMetadataListener]]] = {}
        self.bookie_listeners: list[BookieWatch] = []
        self._told_at: dict[BookieWatch, float] = {}
        self._told_process_at: dict[Process, float] = {}
        self.next_ledger_id = 0
        self.creations = 0
        """Number of ledgers that were ever created: the incarnation of the last one."""
        self.elsewhere: dict[str, OtherStore] = {}
        """Hosts that have come upon another store. They read and write there, which is nobody's concern."""
        self.failing = 0.0
        """Share of requests, and of answers, that are lost."""
        self.on_change: list[Callable[[LedgerRecord | None, LedgerRecord | None], None]] = []
        self.names_owners = False
        """Whether ledgers have their owner in their metadata, as gateways with a policy put it there: the host."""
        self.on_read: list[Callable[[LedgerId], None]] = []
        self.replication = ReplicationState(self, session_seconds)
        network.host(HOST)

    def factory(self, uri: str, config: GatewayConfig | None = None) -> LedgerManagerFactory:
        return _Factory(self)

    async def request(self) -> None:
        """A request on its way to the store. Raises MetaStoreException."""
        await self._packet(CURRENT.get().host, HOST)

    async def answer(self) -> None:
        """Its answer on the way back: lost, though what was asked is done, it raises MetaStoreException."""
        await self._packet(HOST, CURRENT.get().host)

    async def _packet(self, source: str, target: str) -> None:
        give_up = self.loop.time() + _GIVE_UP_AFTER
        await asyncio.sleep(self._network.arrival() - self.loop.time())
        while not self._network.passes(source, target):
            if self.loop.time() > give_up:
                raise MetaStoreException("the metadata store is out of reach")
            await asyncio.sleep(0.1)
        if self.failing and self._network.rng.random() < self.failing:
            raise MetaStoreException(f"lost on its way from {source} to {target}")

    def hears(self, process: Process) -> bool:
        """Whether a process that lives and runs has a way to the store and back."""
        if not process.alive or process.paused:
            return False
        return self._network.passes(process.host, HOST) and self._network.passes(HOST, process.host)

    @property
    def seen(self) -> OtherStore | MemoryMetadata:
        """The store that whoever calls has come upon."""
        return self.sees(CURRENT.get())

    def sees(self, process: Process) -> OtherStore | MemoryMetadata:
        """The store that a process has come upon."""
        return self.elsewhere.get(process.host, self)

    def lead(self, host: str, store: OtherStore | None) -> None:
        """A host's way leads to another store, or (None) here again: to another connection in any case."""
        if store is None:
            self.elsewhere.pop(host, None)
        else:
            self.elsewhere[host] = store
        self.replication.break_feeds_of(host)

    @property
    def rng(self) -> random.Random:
        return self._network.rng

    def found(self, ledger_id: LedgerId) -> LedgerRecord:
        """Of the store that whoever calls has come upon. Raises NoSuchLedgerExistsOnMetadataServerException."""
        record = self.seen.ledgers.get(ledger_id)
        if record is None:
            raise NoSuchLedgerExistsOnMetadataServerException(f"there is no ledger {ledger_id}")
        return record

    def replace(self, ledger_id: LedgerId, metadata: LedgerMetadata, expected_version: int) -> LedgerRecord:
        """Raises also MetadataVersionException."""
        before = self.found(ledger_id)
        if before.version != expected_version:
            raise MetadataVersionException(f"ledger {ledger_id} is at version {before.version}, not {expected_version}")
        store, incarnation = self.seen, before.incarnation
        record = LedgerRecord(ledger_id, metadata, expected_version + 1, incarnation=incarnation)
        store.ledgers[ledger_id] = record
        if store is self:
            self.changed(ledger_id, before, record)
        return record

    def changed(self, ledger_id: LedgerId, before: LedgerRecord | None, after: LedgerRecord | None) -> None:
        for observe in self.on_change:
            observe(before, after)
        for process, listener in self.ledger_listeners.get(ledger_id, []):
            self.tell(process, listener, ledger_id, after)
        if after is None:
            self.ledger_listeners.pop(ledger_id, None)
        self.replication.ledger_changed(ledger_id.number)

    def tell(self, process: Process, listener: Callable[..., None], *what: object) -> None:
        """Calls back in a process, one way later."""
        self.loop.call_at_exact(self._network.arrival(), listener, *what, context=process.context)

    def tell_in_order(self, process: Process, listener: Callable[..., None], *what: object) -> None:
        """The same, never before what was told to the process like this earlier: as in a stream."""
        at = self._told_process_at[process] = max(self._network.arrival(), self._told_process_at.get(process, 0.0))
        self.loop.call_at_exact(at, listener, *what, context=process.context)

    def set_of(self, bookie_set: BookieSet) -> list[RegisteredBookie]:
        found: dict[str, RegisteredBookie] = {}
        for bookie_id, registration in self.registrations.items():
            read_only = registration.read_only
            if bookie_set is BookieSet.ALL or read_only is (bookie_set is BookieSet.READ_ONLY):
                found[bookie_id] = RegisteredBookie(registration.info, not read_only, read_only)
        if bookie_set is BookieSet.ALL:
            for bookie_id in self.cookies:
                found.setdefault(bookie_id, RegisteredBookie(BookieServiceInfo(bookie_id, ()), False, False))
        return [found[bookie_id] for bookie_id in sorted(found)]

    def register(self, info: BookieServiceInfo, read_only: bool, process: Process) -> None:
        holder = self.registrations.get(info.bookie_id)
        if holder is not None and holder.process is not process and holder.process.alive:
            raise LedgerExistException(f"another process is bookie {info.bookie_id}")
        if holder is None or holder.process is not process:
            process.on_end.append(lambda: self._session_ends_soon(info.bookie_id, process))
        if holder is None:
            self._registered_since[info.bookie_id] = self.loop.time()
        self.registrations[info.bookie_id] = _Registration(info, read_only, process)
        if (since := self._missing_since.pop(info.bookie_id, None)) is not None:
            self.last_absences[info.bookie_id] = since, self.loop.time()
        self.bookies_changed()

    def unregister(self, bookie_id: str) -> None:
        """Nothing, if it is not registered."""
        if self.registrations.pop(bookie_id, None) is not None:
            self._missing_since[bookie_id] = self.loop.time()
            self.bookies_changed()

    def missing_for(self, bookie_id: str) -> float:
        """For how many seconds a bookie has not been registered; 0 if it is, or never was."""
        now = self.loop.time()
        return now - self._missing_since.get(bookie_id, now)

    def registered_for(self, bookie_id: str) -> float:
        """For how many seconds a bookie has been registered without interruption; 0 if it is not."""
        if bookie_id not in self.registrations:
            return 0.0
        return self.loop.time() - self._registered_since[bookie_id]

    def _session_ends_soon(self, bookie_id: str, process: Process) -> None:
        def expire() -> None:
            registration = self.registrations.get(bookie_id)
            if registration is not None and registration.process is process:
                self.unregister(bookie_id)

        when = self.loop.time() + self._session_seconds
        self.loop.call_at_exact(when, expire, context=self.loop.outside.context)

    def bookies_changed(self) -> None:
        for watch in self.bookie_listeners:
            self.seed_addresses(watch)

    def seed_addresses(self, watch: BookieWatch) -> None:
        """Sets come in their order, as in a stream: a client goes by the one told last."""
        process, bookie_set, listener = watch
        at = self._told_at[watch] = max(self._network.arrival(), self._told_at.get(watch, 0.0))
        self.loop.call_at_exact(at, listener, self.set_of(bookie_set), context=process.context)


class MemoryLedgers(LedgerManager):
    def __init__(self, store: MemoryMetadata) -> None:
        self._store = store

    async def create(self, ledger_id: LedgerId | None, metadata: LedgerMetadata) -> LedgerRecord:
        store = self._store
        await store.request()
        if ledger_id is None:
            store.next_ledger_id += 1
            ledger_id = LedgerId.unscoped(store.next_ledger_id)
        if ledger_id in store.ledgers:
            raise LedgerExistException(f"ledger {ledger_id} exists")
        if store.names_owners:
            owner = f"token:{CURRENT.get().host}".encode()
            metadata = replace(metadata, custom_metadata={**metadata.custom_metadata, OWNER_KEY: owner})
        store.creations += 1
        record = store.ledgers[ledger_id] = LedgerRecord(ledger_id, metadata, 0, incarnation=store.creations)
        store.changed(ledger_id, None, record)
        await store.answer()
        return record

    async def read(self, ledger_id: LedgerId) -> LedgerRecord:
        await self._store.request()
        for hear in self._store.on_read:
            hear(ledger_id)
        record = self._store.found(ledger_id)
        await self._store.answer()
        return record

    async def write(self, ledger_id: LedgerId, metadata: LedgerMetadata, expected_version: int) -> LedgerRecord:
        await self._store.request()
        try:
            record = self._store.replace(ledger_id, metadata, expected_version)
        except MetadataVersionException:
            await self._store.answer()
            raise
        await self._store.answer()
        return record

    async def write_to(self, record: LedgerRecord, metadata: LedgerMetadata) -> LedgerRecord:
        await self._store.request()
        try:
            require_same(record, self._store.found(record.ledger_id))
            written = self._store.replace(record.ledger_id, metadata, record.version)
        except BKException:
            await self._store.answer()
            raise
        await self._store.answer()
        return written

    async def remove(self, ledger_id: LedgerId, expected_version: int | None = None) -> None:
        store = self._store
        await store.request()
        before = self._store.found(ledger_id)
        if expected_version is not None and before.version != expected_version:
            await store.answer()
            raise MetadataVersionException(f"ledger {ledger_id} is at version {before.version}, not {expected_version}")
        del store.ledgers[ledger_id]
        store.changed(ledger_id, before, None)
        await store.answer()

    async def remove_record(self, record: LedgerRecord) -> None:
        store = self._store
        await store.request()
        try:
            before = store.found(record.ledger_id)
            require_same(record, before)
            if before.version != record.version:
                raise MetadataVersionException(f"ledger {record.ledger_id} is at version {before.version}")
        except BKException:
            await store.answer()
            raise
        del store.ledgers[record.ledger_id]
        store.changed(record.ledger_id, before, None)
        await store.answer()

    async def ledger_ranges(
        self, scope_id: int = 0, start_after: int | None = None, end_before: int | None = None
    ) -> AsyncIterator[Sequence[int]]:
        after = -1 if start_after is None else unsigned(start_after)
        before = 1 << 64 if end_before is None else unsigned(end_before)
        while True:
            await self._store.request()
            ids = sorted(
                (
                    ledger_id.low
                    for ledger_id in self._store.seen.ledgers
                    if ledger_id.scope_id == scope_id and after < unsigned(ledger_id.low) < before
                ),
                key=unsigned,
            )[:10]
            await self._store.answer()
            if not ids:
                return
            yield ids
            after = unsigned(ids[-1])

    async def scopes(self, start_after: int = 0) -> AsyncIterator[Sequence[int]]:
        await self._store.request()
        found = {ledger_id.scope_id for ledger_id in self._store.seen.ledgers if ledger_id.scope_id}
        await self._store.answer()
        if above := sorted((each for each in found if unsigned(each) > unsigned(start_after)), key=unsigned):
            yield above

    async def register_listener(self, ledger_id: LedgerId, listener: LedgerMetadataListener) -> None:
        process = CURRENT.get()
        self._store.ledger_listeners.setdefault(ledger_id, []).append((process, listener))
        self._store.tell(process, listener, ledger_id, self._store.ledgers.get(ledger_id))

    async def unregister_listener(self, ledger_id: LedgerId, listener: LedgerMetadataListener) -> None:
        listeners = self._store.ledger_listeners.get(ledger_id, [])
        listeners[:] = [other for other in listeners if other[1] != listener]


class _Discovery(ServiceDiscovery):
    def __init__(self, store: MemoryMetadata) -> None:
        self._store = store

    async def bookies(self, bookie_set: BookieSet) -> Sequence[RegisteredBookie]:
        await self._store.request()
        found = self._store.set_of(bookie_set)
        await self._store.answer()
        return found

    async def bookie_service_info(self, bookie_id: str) -> RegisteredBookie:
        for bookie in await self.bookies(BookieSet.ALL):
            if bookie.bookie_id == bookie_id and (bookie.writable or bookie.read_only):
                return bookie
        raise BookieHandleNotAvailableException(f"bookie {bookie_id} is not registered")

    async def watch_bookies(self, bookie_set: BookieSet, listener: BookiesListener) -> Callable[[], None]:
        store, watch = self._store, (CURRENT.get(), bookie_set, listener)
        await store.request()
        store.bookie_listeners.append(watch)
        store.seed_addresses(watch)

        def end() -> None:
            if watch in store.bookie_listeners:
                store.bookie_listeners.remove(watch)

        return end

    async def cluster_info(self) -> ClusterInfo:
        return ClusterInfo(self._store.instance_id, "MemoryMetadata")


class _Registrations(RegistrationManager):
    def __init__(self, store: MemoryMetadata) -> None:
        self._store = store

    async def cluster_instance_id(self) -> str:
        await self._store.request()
        return self._store.seen.instance_id

    async def register_bookie(self, info: BookieServiceInfo, *, read_only: bool) -> None:
        await self.check_membership(info.bookie_id)
        await self._store.request()
        if self._store.seen is self._store:
            self._store.register(info, read_only, CURRENT.get())
        await self._store.answer()

    async def unregister_bookie(self, bookie_id: str, lease: Lease | None = None) -> None:
        await self._store.request()
        self._store.unregister(bookie_id)
        await self._store.answer()

    async def is_registered(self, info: BookieServiceInfo, *, read_only: bool) -> bool:
        await self._store.request()
        held = self._store.registrations.get(info.bookie_id)
        await self._store.answer()
        return held is not None and held == _Registration(info, read_only, CURRENT.get())

    async def read_cookie(self, bookie_id: str) -> Versioned[bytes] | None:
        await self._store.request()
        return self._store.seen.cookies.get(bookie_id)

    async def write_cookie(self, bookie_id: str, cookie: bytes, expected_version: int | None) -> None:
        await self._store.request()
        self._check_version(bookie_id, expected_version)
        self._store.seen.cookies[bookie_id] = Versioned(cookie, 0 if expected_version is None else expected_version + 1)
        await self._store.answer()

    async def remove_cookie(self, bookie_id: str, expected_version: int) -> None:
        await self._store.request()
        self._check_version(bookie_id, expected_version)
        del self._store.cookies[bookie_id]
        await self._store.answer()

    def _check_version(self, bookie_id: str, expected: int | None) -> None:
        stored = self._store.seen.cookies.get(bookie_id)
        if (stored.version if stored else None) != expected:
            raise MetadataVersionException(f"the cookie of {bookie_id} is not at version {expected}")


class _Factory(LedgerManagerFactory):
    def __init__(self, store: MemoryMetadata) -> None:
        self._store = store
        self._ledgers = MemoryLedgers(store)
        self._discovery = _Discovery(store)
        self._registrations = _Registrations(store)
        self._replication: MemoryReplication | None = None

    async def initialize(self) -> None:
        await self._store.request()
        await self._store.answer()

    @property
    def ledger_manager(self) -> LedgerManager:
        return self._ledgers

    @property
    def service_discovery(self) -> ServiceDiscovery:
        return self._discovery

    @property
    def registration_manager(self) -> RegistrationManager:
        return self._registrations

    @property
    def replication_metadata(self) -> ReplicationMetadata:
        if self._replication is None:
            self._replication = self._store.replication.client()
        return self._replication

    @property
    def connected(self) -> bool:
        return True

    async def revision(self) -> int:
        return 0

    async def close(self) -> None:
        if self._replication is not None:
            await self._replication.close()
