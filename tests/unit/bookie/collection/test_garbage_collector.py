"""Runs of garbage collection against a metadata store that fails, lags, lists partially or does not answer."""

from __future__ import annotations

import asyncio
import errno
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from bookgate.bookie.collection import ledger_collector
from bookgate.bookie.collection.garbage_collector import GarbageCollector
from bookgate.bookie.collection.options import GarbageCollectionConfig
from bookgate.bookie.collection.rules import CompactionKind, CompactionPolicy, CompactionRule, Trigger
from bookgate.bookie.collection.suspension import DeletionSuspendedException, LedgerSuspension
from bookgate.bookie.disks.directories import current
from bookgate.bookie.disks.rules import DirectoryUsage, DiskEvent, DiskEventKind
from bookgate.bookie.system.files import REAL_FILE_SYSTEM
from bookgate.ledger.bookie_info import BookieServiceInfo, Lease
from bookgate.ledger.errors import BKException, MetaStoreException, NoSuchLedgerExistsOnMetadataServerException
from bookgate.ledger.ledger_id import LedgerId, halves_of, scope_of
from bookgate.ledger.metadata import Fragment, LedgerMetadata, LedgerState
from bookgate.ledger.metadata_store import (
    LedgerManager,
    LedgerManagerFactory,
    LedgerMetadataListener,
    LedgerRecord,
    Membership,
    RegistrationManager,
    ServiceDiscovery,
    Versioned,
)
from tests.unit.bookie.storage.storage_support import OpenStorage, opened

HERE, ELSEWHERE = "here:3181", "elsewhere:3181"
NOW = Trigger(ledgers=True)
"""A run that neither waits for a second one nor minds how much goes."""
PAGE = 3
FAST = GarbageCollectionConfig(
    wait_seconds=3600,
    policy=CompactionPolicy(minor=CompactionRule(0.2, 3600), major=CompactionRule(0.8, 86400)),
    rate_entries=0,
    metadata_rate=0,
    metadata_timeout_seconds=30,
)


def metadata(*bookies: str, closed: bool = False) -> LedgerMetadata:
    ledger = LedgerMetadata(1, 1, 1, (Fragment(0, bookies or (HERE,)),))
    return replace(ledger, state=LedgerState.CLOSED, last_entry_id=9, length=100) if closed else ledger


class Ledgers(LedgerManager):
    """A dictionary of ledgers with places at which a test may break the listing."""

    def __init__(self, numbers: Sequence[int]) -> None:
        self.records = {number: metadata() for number in numbers}
        self.after_page: Callable[[int], Awaitable[None]] | None = None
        self.end_silently_after: int | None = None
        self.hidden: set[int] = set()
        self.read_error: BKException | None = None
        self.listings = 0

    async def create(self, ledger_id: LedgerId | None, metadata: LedgerMetadata) -> LedgerRecord:
        raise NotImplementedError

    async def read(self, ledger_id: LedgerId) -> LedgerRecord:
        if self.read_error is not None:
            raise self.read_error
        if ledger_id.number not in self.records:
            raise NoSuchLedgerExistsOnMetadataServerException(f"there is no ledger {ledger_id}")
        return LedgerRecord(ledger_id, self.records[ledger_id.number], 0)

    async def write(self, ledger_id: LedgerId, metadata: LedgerMetadata, expected_version: int) -> LedgerRecord:
        raise NotImplementedError

    async def remove(self, ledger_id: LedgerId, expected_version: int | None = None) -> None:
        raise NotImplementedError

    async def ledger_ranges(
        self, scope_id: int = 0, start_after: int | None = None, end_before: int | None = None
    ) -> AsyncIterator[Sequence[int]]:
        self.listings += 1
        after, pages = -1, 0
        if scope_id:
            numbers = [number for number in self.records if scope_of(number) == scope_id and number not in self.hidden]
            if numbers:
                yield [halves_of(number)[1] for number in sorted(numbers)]
            return
        unscoped = [number for number in self.records if scope_of(number) == 0]
        while page := sorted(number for number in unscoped if number > after and number not in self.hidden)[:PAGE]:
            if pages == self.end_silently_after:
                return
            yield page
            after = page[-1]
            pages += 1
            if self.after_page is not None:
                await self.after_page(pages)

    async def register_listener(self, ledger_id: LedgerId, listener: LedgerMetadataListener) -> None:
        raise NotImplementedError

    async def unregister_listener(self, ledger_id: LedgerId, listener: LedgerMetadataListener) -> None:
        raise NotImplementedError


class Registrations(RegistrationManager):
    """Whose store it is. `on_asked` hears of each question before it is answered."""

    def __init__(self) -> None:
        self.cluster = "own"
        self.cookie: Versioned[bytes] | None = Versioned(b"cookie", 0)
        self.on_asked: Callable[[], None] = lambda: None

    async def cluster_instance_id(self) -> str:
        self.on_asked()
        return self.cluster

    async def read_cookie(self, bookie_id: str) -> Versioned[bytes] | None:
        return self.cookie

    async def register_bookie(self, info: BookieServiceInfo, *, read_only: bool) -> None:
        raise NotImplementedError

    async def unregister_bookie(self, bookie_id: str, lease: Lease | None = None) -> None:
        raise NotImplementedError

    async def is_registered(self, info: BookieServiceInfo, *, read_only: bool) -> bool:
        raise NotImplementedError

    async def write_cookie(self, bookie_id: str, cookie: bytes, expected_version: int | None) -> None:
        raise NotImplementedError

    async def remove_cookie(self, bookie_id: str, expected_version: int) -> None:
        raise NotImplementedError


class Store(LedgerManagerFactory):
    """A metadata store around `Ledgers`. `on_catch_up` is where it hears of what it lagged behind."""

    def __init__(self, ledgers: Ledgers) -> None:
        self.ledgers = ledgers
        self.on_catch_up: Callable[[], None] = lambda: None
        self.registrations = Registrations()

    async def initialize(self) -> None:
        return

    @property
    def ledger_manager(self) -> LedgerManager:
        return self.ledgers

    @property
    def service_discovery(self) -> ServiceDiscovery:
        raise NotImplementedError

    @property
    def registration_manager(self) -> RegistrationManager:
        return self.registrations

    @property
    def connected(self) -> bool:
        return True

    async def revision(self) -> int:
        return 0

    async def catch_up(self, revision: int | None) -> None:
        self.on_catch_up()

    async def close(self) -> None:
        return


class Fixture:
    """Ten ledgers here and in the metadata, and a collector that runs when told to."""

    def __init__(self, bookie: OpenStorage) -> None:
        self.bookie = bookie
        self.ledgers = Ledgers(range(10))
        self.store = Store(self.ledgers)
        self.now = 0.0
        for number in range(10):
            bookie.add(number, *range(10))
        bookie.storage.checkpoint()

    def collector(self, **changes: Any) -> GarbageCollector:
        own = Membership(HERE, "own")
        config = replace(FAST, **changes)
        return GarbageCollector(config, self.bookie.storage, self.store, own, clock=lambda: time.monotonic() + self.now)

    @property
    def bytes_of_logs(self) -> int:
        directories = self.bookie.storage.config.ledger_directories
        return sum(path.stat().st_size for each in directories for path in current(each).glob("*.log"))

    @property
    def held(self) -> list[int]:
        return list(self.bookie.storage.ledger_ids())


@pytest.fixture
def fixture(tmp_path: Path) -> Iterator[Fixture]:
    with opened(tmp_path, entry_log_max_bytes=3000) as bookie:
        yield Fixture(bookie)


@pytest.mark.asyncio
@pytest.mark.parametrize("verify", [False, True])
async def test_deleted_ledgers_go_and_their_space_comes_back(fixture: Fixture, verify: bool) -> None:
    collector = fixture.collector(verify_metadata=verify)
    await collector.collect(NOW)
    assert fixture.held == list(range(10))
    before = collector.statistics.entry_log_bytes
    for number in (0, 4, 5, 6, 9):
        del fixture.ledgers.records[number]
    await collector.collect(Trigger(force=True, ledgers=True))
    assert fixture.held == [1, 2, 3, 7, 8]
    statistics = collector.statistics
    assert (statistics.deleted_ledgers, statistics.active_ledgers) == (5, 5)
    assert statistics.entry_log_bytes < before
    assert statistics.major_compactions == 1
    ledger = fixture.bookie.ledger(7)
    assert len([fixture.bookie.storage.reader.read_entry(ledger, entry_id) for entry_id in range(10)]) == 10


@pytest.mark.asyncio
async def test_what_a_listing_has_is_remembered_as_fenced_and_what_it_lacks_is_not(fixture: Fixture) -> None:
    """A fence alone makes a ledger known here, of an id that may be another's yet."""
    storage = fixture.bookie.storage
    for number in (20, 21):
        fixture.bookie.fence(number)
    fixture.ledgers.records[20] = fixture.ledgers.records[0]
    await fixture.collector().collect(Trigger())
    storage.delete_ledgers([20, 21])
    assert [storage.was_fenced_and_deleted(LedgerId.unscoped(number)) for number in (20, 21)] == [True, False]


@pytest.mark.asyncio
async def test_a_ledger_created_during_the_listing_stays(fixture: Fixture) -> None:
    """Its metadata is there before its entries; the listing is past its place when it comes."""

    async def create(pages: int) -> None:
        number = 100 + pages
        if pages == 3:
            number = 2**40
        fixture.ledgers.records[number] = metadata()
        fixture.bookie.add(number, 0)

    del fixture.ledgers.records[3]
    fixture.ledgers.after_page = create
    await fixture.collector(verify_metadata=False).collect(NOW)
    assert 3 not in fixture.held
    assert set(fixture.ledgers.records) == set(fixture.held)


def fail(error: BaseException, at_page: int) -> Callable[[int], Awaitable[None]]:
    async def after_page(pages: int) -> None:
        if pages == at_page:
            raise error

    return after_page


@pytest.mark.asyncio
@pytest.mark.parametrize("verify", [False, True])
@pytest.mark.parametrize("at_page", [1, 2, 3])
@pytest.mark.parametrize("error", [MetaStoreException("gone"), RuntimeError("broken driver"), OSError("socket")])
async def test_a_listing_that_fails_collects_nothing(
    fixture: Fixture, verify: bool, at_page: int, error: Exception
) -> None:
    """Not even what it passed before it failed."""
    del fixture.ledgers.records[0]
    fixture.ledgers.after_page = fail(error, at_page)
    collector = fixture.collector(verify_metadata=verify)
    await collector.collect(Trigger(force=True, ledgers=True))
    assert fixture.held == list(range(10))
    assert collector.statistics.failed_listings == 1
    fixture.ledgers.after_page = None
    await collector.collect(NOW)
    assert fixture.held == list(range(1, 10))


@pytest.mark.asyncio
async def test_a_listing_that_ends_early_without_an_error_collects_no_ledger_of_the_metadata(fixture: Fixture) -> None:
    del fixture.ledgers.records[8]
    fixture.ledgers.end_silently_after = 1
    collector = fixture.collector()
    await collector.collect(NOW)
    assert fixture.held == [0, 1, 2, 3, 4, 5, 6, 7, 9]
    assert collector.statistics.kept_candidates == 6


@pytest.mark.asyncio
async def test_a_listing_with_holes_collects_no_ledger_of_the_metadata(fixture: Fixture) -> None:
    fixture.ledgers.hidden = {2, 3, 9}
    await fixture.collector().collect(NOW)
    assert fixture.held == list(range(10))


@pytest.mark.asyncio
@pytest.mark.parametrize("verify", [False, True])
async def test_a_listing_out_of_order_collects_nothing(fixture: Fixture, verify: bool) -> None:
    async def ranges(*_: object) -> AsyncIterator[Sequence[int]]:
        yield [5, 6]
        yield [3, 4]

    fixture.ledgers.ledger_ranges = ranges  # type: ignore[method-assign,assignment]
    collector = fixture.collector(verify_metadata=verify)
    await collector.collect(NOW)
    assert fixture.held == list(range(10))
    assert collector.statistics.failed_listings == 1


@pytest.mark.asyncio
async def test_metadata_that_can_not_be_read_keeps_the_ledger(fixture: Fixture) -> None:
    fixture.ledgers.records.clear()
    fixture.ledgers.read_error = MetaStoreException("out of reach")
    collector = fixture.collector()
    await collector.collect(NOW)
    assert fixture.held == list(range(10))
    assert collector.statistics.kept_candidates == 10
    fixture.ledgers.read_error = None
    await collector.collect(NOW)
    assert fixture.held == []


@pytest.mark.asyncio
async def test_a_store_that_lags_catches_up_before_it_lists(fixture: Fixture) -> None:
    """This replica of the store has not heard of two ledgers yet when the run begins."""
    late = {number: fixture.ledgers.records.pop(number) for number in (3, 4)}
    fixture.store.on_catch_up = lambda: fixture.ledgers.records.update(late)
    await fixture.collector(verify_metadata=False).collect(NOW)
    assert fixture.held == list(range(10))


@pytest.mark.asyncio
async def test_a_store_that_can_not_catch_up_collects_nothing(fixture: Fixture) -> None:
    def out_of_reach() -> None:
        raise MetaStoreException("no quorum")

    fixture.ledgers.records.clear()
    fixture.store.on_catch_up = out_of_reach
    await fixture.collector(verify_metadata=False).collect(NOW)
    assert fixture.held == list(range(10))
    assert fixture.ledgers.listings == 0


@pytest.mark.asyncio
async def test_a_listing_that_does_not_answer_collects_nothing(fixture: Fixture) -> None:
    async def hang(pages: int) -> None:
        if pages == 2:
            await asyncio.Event().wait()

    fixture.ledgers.records.pop(0)
    fixture.ledgers.after_page = hang
    collector = fixture.collector(verify_metadata=False, metadata_timeout_seconds=0.05)
    await collector.collect(NOW)
    assert fixture.held == list(range(10))
    assert collector.statistics.failed_listings == 1


@pytest.mark.asyncio
async def test_ledgers_that_only_other_bookies_hold_stay(fixture: Fixture) -> None:
    """A copy may be on its way here at this moment, and nothing here would know."""
    fixture.ledgers.records[1] = metadata(ELSEWHERE, closed=True)
    fixture.ledgers.records[2] = metadata(ELSEWHERE)
    await fixture.collector().collect(Trigger(force=True, ledgers=True))
    assert fixture.held == list(range(10))


@pytest.mark.asyncio
async def test_a_run_begins_when_asked_and_a_stop_ends_it(fixture: Fixture) -> None:
    collector = fixture.collector()
    started = asyncio.Event()

    async def hang(pages: int) -> None:
        started.set()
        await asyncio.Event().wait()

    fixture.ledgers.records.clear()
    fixture.ledgers.records[0] = metadata()
    fixture.ledgers.after_page = hang
    collector.start()
    assert not collector.is_in_force_gc
    threading.Thread(target=collector.trigger).start()
    await asyncio.wait_for(started.wait(), 30)
    assert collector.is_in_force_gc
    assert collector.details().force_compacting
    await collector.stop()
    assert fixture.held == list(range(10))
    assert not collector.is_in_force_gc


@pytest.mark.asyncio
async def test_a_full_disk_suspends_compaction_until_it_has_room(fixture: Fixture) -> None:
    collector = fixture.collector()
    usage = DirectoryUsage(100, 1)

    def tell(kind: DiskEventKind, directory: str = "/a") -> tuple[bool, bool]:
        collector.on_disk_event(DiskEvent(kind, Path(directory), usage))
        return collector.is_suspended(CompactionKind.MAJOR), collector.is_suspended(CompactionKind.MINOR)

    assert tell(DiskEventKind.DISK_ALMOST_FULL) == (True, False)
    assert tell(DiskEventKind.DISK_FULL) == (True, True)
    assert tell(DiskEventKind.DISK_FULL, "/b") == (True, True)
    assert tell(DiskEventKind.DISK_JUST_WRITABLE, "/b") == (True, True)
    assert tell(DiskEventKind.DISK_WRITABLE, "/b") == (True, True)
    assert tell(DiskEventKind.DISK_JUST_WRITABLE) == (True, False)
    collector.suspend_compaction(minor=True)
    assert tell(DiskEventKind.DISK_WRITABLE) == (False, True)
    collector.resume_compaction(minor=True)
    assert not collector.is_suspended(CompactionKind.MINOR)


@pytest.mark.asyncio
async def test_a_full_disk_begins_a_run_where_that_is_wanted(fixture: Fixture) -> None:
    collector = fixture.collector(force_when_no_space=True)
    full = DiskEvent(DiskEventKind.DISK_FULL, Path("/a"), DirectoryUsage(100, 1))
    collector.on_disk_event(full)
    assert collector.is_in_force_gc
    assert not collector.is_suspended(CompactionKind.MAJOR)
    collector.on_disk_event(replace(full, kind=DiskEventKind.DISK_WRITABLE))
    assert not collector.is_in_force_gc


@pytest.mark.asyncio
async def test_another_clusters_metadata_collect_nothing(fixture: Fixture) -> None:
    fixture.ledgers.records.clear()
    fixture.store.registrations.cluster = "other"
    collector = fixture.collector()
    for _ in range(3):
        await collector.collect(NOW)
        fixture.now += FAST.wait_seconds
    assert fixture.held == list(range(10))
    assert fixture.ledgers.listings == 0
    assert collector.statistics.failed_listings == 3


@pytest.mark.asyncio
async def test_a_store_that_does_not_know_the_bookie_collects_nothing(fixture: Fixture) -> None:
    """A backup from before the bookie joined: it is of the same cluster."""
    fixture.ledgers.records.clear()
    fixture.store.registrations.cookie = None
    await fixture.collector().collect(NOW)
    assert fixture.held == list(range(10))


@pytest.mark.asyncio
async def test_a_cluster_that_changes_between_listing_and_deletion_collects_nothing(fixture: Fixture) -> None:
    registrations, asked = fixture.store.registrations, []

    def change() -> None:
        asked.append(1)
        if len(asked) == 2:
            registrations.cluster = "other"

    fixture.ledgers.records.clear()
    registrations.on_asked = change
    await fixture.collector().collect(NOW)
    assert fixture.held == list(range(10))
    assert fixture.ledgers.listings == 1


@pytest.mark.asyncio
async def test_a_ledger_goes_when_two_runs_a_period_apart_miss_it(fixture: Fixture) -> None:
    collector = fixture.collector()
    hidden = {number: fixture.ledgers.records.pop(number) for number in (2, 3)}
    await collector.collect(Trigger())
    assert fixture.held == list(range(10))
    fixture.now += FAST.wait_seconds - 1
    await collector.collect(Trigger(force=True))
    assert fixture.held == list(range(10)), "a run that was asked for does not shorten the wait"
    fixture.ledgers.records[3] = hidden[3]
    fixture.now += 1
    await collector.collect(Trigger())
    assert fixture.held == [0, 1, 3, 4, 5, 6, 7, 8, 9]


@pytest.mark.asyncio
async def test_a_ledger_that_was_back_in_between_waits_anew(fixture: Fixture) -> None:
    collector = fixture.collector()
    record = fixture.ledgers.records.pop(2)
    await collector.collect(Trigger())
    fixture.ledgers.records[2] = record
    fixture.now += 1
    await collector.collect(Trigger())
    del fixture.ledgers.records[2]
    fixture.now += FAST.wait_seconds
    await collector.collect(Trigger())
    assert fixture.held == list(range(10))


@pytest.mark.asyncio
async def test_a_run_that_would_take_most_ledgers_stops_until_it_is_forced(fixture: Fixture) -> None:
    collector = fixture.collector(mass_deletion_ledgers=2)
    for number in range(6):
        del fixture.ledgers.records[number]
    for _ in range(3):
        await collector.collect(Trigger(force=True))
        fixture.now += FAST.wait_seconds
    assert fixture.held == list(range(10))
    assert collector.statistics.held_back_ledgers == 6
    await collector.collect(NOW)
    assert fixture.held == [6, 7, 8, 9]
    assert collector.statistics.held_back_ledgers == 0


@pytest.mark.asyncio
@pytest.mark.parametrize("flushed", [False, True])
async def test_a_ledger_made_anew_after_its_metadata_were_read_keeps_its_entries(
    fixture: Fixture, flushed: bool
) -> None:
    """The same id, between the answer that there is no such ledger and its deletion."""
    registrations = fixture.store.registrations

    def create_anew() -> None:
        if fixture.ledgers.listings:
            fixture.ledgers.records[3] = metadata()
            fixture.bookie.add(3, 20)
            if flushed:
                fixture.bookie.storage.checkpoint()

    for number in (3, 4):
        del fixture.ledgers.records[number]
    registrations.on_asked = create_anew
    await fixture.collector().collect(NOW)
    assert fixture.held == [0, 1, 2, 3, 5, 6, 7, 8, 9]
    assert fixture.bookie.storage.reader.read_entry(fixture.bookie.ledger(3), 20)


@pytest.mark.asyncio
@pytest.mark.parametrize("listed_from", [1, 100], ids=["listed", "asked for one by one"])
async def test_scopes_are_collected_by_themselves(
    fixture: Fixture, monkeypatch: pytest.MonkeyPatch, listed_from: int
) -> None:
    """One id in four scopes; what is gone in one stays in the others."""
    monkeypatch.setattr("bookgate.bookie.collection.ledger_collector._LISTED_FROM", listed_from)
    collector = fixture.collector()
    scoped = [LedgerId(scope, 3).number for scope in (1, 2, -1)]
    for number in scoped:
        fixture.bookie.add(number, *range(3))
        fixture.ledgers.records[number] = metadata()
    before = fixture.bookie.storage.ledger_ids().tolist()
    await collector.collect(NOW)
    assert fixture.bookie.storage.scoped_ledgers() == sorted(scoped)
    del fixture.ledgers.records[scoped[1]]
    await collector.collect(NOW)
    assert fixture.bookie.storage.scoped_ledgers() == [scoped[0], scoped[2]]
    assert fixture.bookie.storage.ledger_ids().tolist() == before
    fixture.ledgers.read_error = MetaStoreException("away")
    fixture.ledgers.records.clear()
    fixture.ledgers.after_page = None
    await collector.collect(NOW)
    assert fixture.bookie.storage.scoped_ledgers() == [scoped[0], scoped[2]]


@pytest.mark.asyncio
async def test_a_suspension_ends_the_run_under_way(fixture: Fixture, monkeypatch: pytest.MonkeyPatch) -> None:
    """An operator suspends deletion to save ledgers that a run is about to reach."""
    monkeypatch.setattr(ledger_collector, "_DELETE_AT_ONCE", 1)
    collector, asked = fixture.collector(), []

    def suspend() -> None:
        asked.append(1)
        if len(asked) == 4:  # for the listing, and before each deletion
            collector.suspend_ledgers()

    fixture.ledgers.records.clear()
    fixture.store.registrations.on_asked = suspend
    await collector.collect(NOW)
    assert fixture.held == list(range(2, 10))
    await collector.collect(NOW)
    assert fixture.held == list(range(2, 10))
    collector.resume_ledgers()
    await collector.collect(NOW)
    assert fixture.held == []


def test_a_suspension_waits_for_the_deletion_under_way(tmp_path: Path) -> None:
    """What the operator looks at afterwards stays."""
    current(tmp_path).mkdir()
    suspension, suspended = LedgerSuspension(REAL_FILE_SYSTEM, [tmp_path]), threading.Event()

    def suspend() -> None:
        suspension.suspend()
        suspended.set()

    thread = threading.Thread(target=suspend)

    def delete() -> bool:
        thread.start()
        return suspended.wait(0.1)

    assert not suspension.unless_suspended(delete), "it had returned during the deletion"
    thread.join()
    with pytest.raises(DeletionSuspendedException):
        suspension.unless_suspended(delete)


@pytest.mark.asyncio
async def test_a_deletion_without_room_does_not_keep_the_logs_that_are_empty_already(
    fixture: Fixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They make the room that the deletion needs."""
    collector = fixture.collector()
    fixture.bookie.storage.delete_ledgers([0, 1, 2, 3, 4, 5, 6, 7, 8])
    del fixture.ledgers.records[9]
    fixture.bookie.add(20, 0)
    fixture.ledgers.records[20] = metadata()

    def refuse(numbers: object) -> None:
        raise OSError(errno.ENOSPC, "no room left")

    with monkeypatch.context() as patch:
        patch.setattr(fixture.bookie.storage.stores[0].index, "forget", refuse)
        before = fixture.bytes_of_logs
        with pytest.raises(OSError, match="no room left"):
            await collector.collect(NOW)
        assert fixture.bytes_of_logs < before / 2
    await collector.collect(NOW)
    assert fixture.held == [20]
