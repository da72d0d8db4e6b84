"""What every metadata store promises through `bookgate.ledger.replication_store`, whichever it is."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
import pytest_asyncio

from bookgate.bookie.standalone.local_zookeeper import LocalZooKeeper
from bookgate.gateway.stores.drivers import create_factory
from bookgate.gateway.stores.sqlite.factory import SqliteLedgerManagerFactory
from bookgate.gateway.stores.sqlite.store import ReplicationChange, Transaction
from bookgate.gateway.stores.zookeeper.factory import ZooKeeperLedgerManagerFactory
from bookgate.ledger.errors import (
    IllegalOpException,
    IncorrectParameterException,
    LockLostException,
    MetadataVersionException,
    NoSuchLedgerExistsOnMetadataServerException,
)
from bookgate.ledger.ledger_id import LedgerId
from bookgate.ledger.metadata_store import LedgerManagerFactory, LedgerRecord, Versioned
from bookgate.ledger.replication import PeriodicCheck, UnderreplicatedLedger
from bookgate.ledger.replication_store import (
    ANY_VERSION,
    DelayChanged,
    DrainsChanged,
    FeedBegan,
    LedgerLock,
    LedgersTouched,
    LockLost,
    Mark,
    MarksChanged,
    RecordKind,
    ReplicationMetadata,
    SwitchChanged,
    VoteState,
)
from tests.integration.gateway.conftest import some_metadata, unscoped
from tests.integration.gateway.test_zookeeper import expire

pytestmark = pytest.mark.asyncio

Stores = tuple[ReplicationMetadata, ReplicationMetadata]
Ender = Callable[[LedgerManagerFactory], Awaitable[None]]

SCOPED = [
    LedgerId(1, 0).number,
    LedgerId(1, 7).number,
    LedgerId(1, -1).number,
    LedgerId(2**63 - 1, 7).number,
    LedgerId(-1, 7).number,
    LedgerId(-1, -1).number,
]
EDGES = [0, 1, 123, 65535, 65536, 2**31 - 1, 2**31, 2**32, 2**48 - 1, 2**63 - 1]


@pytest_asyncio.fixture
async def stores(factories: tuple[LedgerManagerFactory, LedgerManagerFactory]) -> Stores:
    return factories[0].replication_metadata, factories[1].replication_metadata


async def end_claims_of(request: pytest.FixtureRequest, factory: LedgerManagerFactory) -> None:
    """Ends what a factory holds in the store without asking it, as a pause beyond its session or lease would."""
    if isinstance(factory, ZooKeeperLedgerManagerFactory):
        server: LocalZooKeeper = request.getfixturevalue("zookeeper")
        await expire(server, factory)
        return
    assert isinstance(factory, SqliteLedgerManagerFactory)

    def end_all(transaction: Transaction) -> None:
        transaction.execute("UPDATE replication_claims SET expires_at_ms = 0")
        transaction.replication_changed(ReplicationChange.CLAIMS)

    await factory.store.change(end_all)


@pytest.fixture
def end_claims(request: pytest.FixtureRequest) -> Ender:
    async def end(factory: LedgerManagerFactory) -> None:
        await end_claims_of(request, factory)

    return end


class Told:
    """A listener that can be waited on for an event that it was or will be told."""

    def __init__(self) -> None:
        self.events: list[Any] = []
        self._more = asyncio.Event()

    def __call__(self, event: Any) -> None:
        self.events.append(event)
        self._more.set()

    async def until(self, event: Any, after: int = 0) -> int:
        """Returns how many events there were when it had come."""
        async with asyncio.timeout(30):
            while event not in self.events[after:]:
                self._more.clear()
                await self._more.wait()
        return self.events.index(event, after) + 1

    def touched(self, after: int = 0) -> set[int]:
        """Ledgers that a feed has told of."""
        events = [event for event in self.events[after:] if isinstance(event, LedgersTouched)]
        return {ledger_id for event in events for ledger_id in event.ledger_ids}


async def lock_when_free(store: ReplicationMetadata, ledger_id: int) -> LedgerLock:
    """What ends in the store tells nobody who waits to take a lock: it is asked for until it is given."""
    async with asyncio.timeout(30):
        while True:
            if (lock := await store.try_lock(ledger_id, "next")) is not None:
                return lock
            await asyncio.sleep(0.01)


async def listed(store: ReplicationMetadata, **arguments: Any) -> list[Mark]:
    return [mark async for page in store.marks(**arguments) for mark in page]


async def listed_ids(store: ReplicationMetadata, **arguments: Any) -> list[int]:
    return [mark.value.ledger_id for mark in await listed(store, **arguments)]


class TestMarks:
    many = 10_000
    page = 1_000

    async def test_first_mark_has_its_content(self, stores: Stores) -> None:
        first, second = stores
        mark = await first.mark(7, ["a:1", "b:1"], 1_700_000_000_000)
        assert mark.value == UnderreplicatedLedger(7, ("a:1", "b:1"), 1_700_000_000_000)
        assert await second.read_mark(7) == mark
        assert await second.read_mark(8) is None
        assert await listed(second) == [mark]

    async def test_every_mark_raises_the_version(self, stores: Stores) -> None:
        first, second = stores
        mark = await first.mark(7, ["a:1"], 5)
        again = await second.mark(7, ["a:1"], 9)
        assert again == Versioned(UnderreplicatedLedger(7, ("a:1",), 5), again.version)
        more = await first.mark(7, ["c:1", "a:1"])
        assert more == Versioned(UnderreplicatedLedger(7, ("a:1", "c:1"), 5), more.version)
        assert 0 <= mark.version < again.version < more.version

    async def test_mark_made_again_survives_who_saw_the_former_one(self, stores: Stores) -> None:
        first, second = stores
        seen = await first.mark(7, ["a:1"])
        again = await second.mark(7, ["a:1"])
        assert not await first.delete_mark(7, seen.version)
        assert await second.read_mark(7) == again
        assert await first.delete_mark(7, again.version)
        assert await second.read_mark(7) is None
        assert await first.delete_mark(7, seen.version), "there is none any more"

    async def test_mark_made_anew_survives_who_saw_the_one_that_was_deleted(self, stores: Stores) -> None:
        first, second = stores
        for ledger_id in (7, SCOPED[0]):
            versions: list[int] = []
            for _ in range(4):
                await second.mark(ledger_id, ["b:1"])
                mark = await second.mark(ledger_id, ["b:1"])
                for seen in versions:
                    assert not await first.delete_mark(ledger_id, seen)
                assert await first.read_mark(ledger_id) == mark
                versions.append(mark.version)
                assert await second.delete_mark(ledger_id, mark.version)
            assert versions == sorted(set(versions))

    async def test_no_version_stands_for_any(self, stores: Stores) -> None:
        await stores[0].mark(7, [])
        assert not await stores[0].delete_mark(7, -1)
        assert await listed_ids(stores[0]) == [7]

    async def test_concurrent_marks_of_one_ledger_are_all_kept(self, stores: Stores) -> None:
        marks = [stores[n % 2].mark(7, [f"b:{n}"]) for n in range(20)]
        versions = {mark.version for mark in await asyncio.gather(*marks)}
        assert len(versions) == 20
        mark = await stores[0].read_mark(7)
        assert mark is not None
        assert set(mark.value.replicas) == {f"b:{n}" for n in range(20)}

    async def test_marks_and_deletions_against_each_other(self, stores: Stores) -> None:
        """Neighbours share directories, which come and go meanwhile."""

        async def come_and_go(store: ReplicationMetadata, ledger_id: int) -> None:
            for _ in range(10):
                mark = await store.mark(ledger_id, ["a:1"])
                assert await store.delete_mark(ledger_id, mark.version)
            await store.mark(ledger_id, ["a:1"])

        ids = [1, 2, 65536, 65537, 2**32, 2**48]
        await asyncio.gather(*(come_and_go(stores[n % 2], ledger_id) for n, ledger_id in enumerate(ids)))
        assert await listed_ids(stores[0]) == ids

    async def test_all_ids_are_listed_in_order_and_from_any_place(self, stores: Stores) -> None:
        first, second = stores
        for ledger_id in reversed(EDGES):
            await first.mark(ledger_id, ["a:1"])
        assert await listed_ids(second) == EDGES
        assert await listed_ids(second, page_size=3) == EDGES
        for number, start in enumerate(EDGES):
            assert await listed_ids(second, start_after=start) == EDGES[number + 1 :]
            assert await listed_ids(second, start_after=start - 1) == EDGES[number:]

    async def test_a_mark_of_a_scope_is_no_mark_of_scope_0(self, stores: Stores) -> None:
        """Neither by its lower half, nor by its scope (D1)."""
        first, second = stores
        scoped = LedgerId(9, 7).number
        mark = await first.mark(scoped, ["a:1"], 5)
        assert mark.value == UnderreplicatedLedger(scoped, ("a:1",), 5)
        assert await second.read_mark(scoped) == mark
        assert [await second.read_mark(number) for number in (7, 9, LedgerId(7, 9).number)] == [None] * 3
        await second.mark(7, ["b:1"])
        again = await first.mark(scoped, ["c:1"])
        assert again.value.replicas == ("a:1", "c:1")
        assert await listed_ids(first) == [7, scoped]
        assert not await second.delete_mark(scoped, mark.version)
        assert await second.delete_mark(scoped, again.version)
        assert await listed_ids(first) == [7]

    async def test_marks_of_all_scopes_are_listed_in_order_and_from_any_place(self, stores: Stores) -> None:
        first, second = stores
        numbers = [0, 7, 2**63 - 1, *SCOPED]
        for number in reversed(numbers):
            await first.mark(number, ["a:1"])
        assert await listed_ids(second) == numbers
        assert await listed_ids(second, page_size=2) == numbers
        for place, start in enumerate(numbers):
            assert await listed_ids(second, start_after=start) == numbers[place + 1 :]
        for mark in await listed(second):
            assert await first.delete_mark(mark.value.ledger_id, mark.version)
        assert await listed_ids(second) == []

    async def test_ids_that_no_mark_can_carry_are_refused(self, stores: Stores) -> None:
        refused = [stores[0].mark(number, []) for number in (-1, 2**63, 2**64 - 1, 2**128)]
        for call in (*refused, stores[0].try_lock(-1, "h")):
            with pytest.raises(IncorrectParameterException):
                await call

    @pytest.mark.long
    async def test_thousands_of_marks(self, stores: Stores) -> None:
        first, second = stores
        ids = [n * 7 for n in range(self.many)]
        for start in range(0, len(ids), 500):
            await asyncio.gather(*(first.mark(ledger_id, ["a:1"]) for ledger_id in ids[start : start + 500]))
        pages = [[mark.value.ledger_id for mark in page] async for page in second.marks(page_size=self.page)]
        assert [len(page) for page in pages] == [self.page] * 10
        assert [ledger_id for page in pages for ledger_id in page] == ids


class TestLocks:
    async def test_one_holder_at_a_time(self, stores: Stores) -> None:
        first, second = stores
        lock = await first.try_lock(7, "worker7.example.org")
        assert lock is not None
        assert lock.ledger_id == 7
        assert await first.try_lock(7, "worker7.example.org") is None
        assert await second.try_lock(7, "other") is None
        assert await second.lock_holders() == {7: "worker7.example.org"}
        assert await first.is_held(lock)
        assert not await second.is_held(lock)
        await first.release(lock)
        assert not await first.is_held(lock)
        assert await second.lock_holders() == {}
        assert await second.try_lock(7, "other") is not None

    async def test_a_lock_of_a_scope_is_no_lock_of_scope_0(
        self, stores: Stores, factories: tuple[LedgerManagerFactory, LedgerManagerFactory]
    ) -> None:
        first, second = stores
        ledger_id, manager = LedgerId(9, 7), factories[1].ledger_manager
        for each in (ledger_id, unscoped(7)):
            await manager.create(each, some_metadata())
        lock, other = await first.try_lock(ledger_id.number, "h"), await second.try_lock(7, "other")
        assert lock is not None
        assert other is not None
        assert await second.try_lock(ledger_id.number, "other") is None
        assert await second.lock_holders() == {7: "other", ledger_id.number: "h"}
        assert await first.is_held(lock)
        written = await first.write_ledger(lock, some_metadata(x=b"1"), 0)
        assert (written.ledger_id, written.version) == (ledger_id, 1)
        assert (await manager.read(ledger_id)).metadata.custom_metadata == {"x": b"1"}
        assert (await manager.read(unscoped(7))).version == 0
        await first.release(lock)
        assert await second.lock_holders() == {7: "other"}
        assert await second.try_lock(ledger_id.number, "other") is not None

    async def test_of_many_at_once_one_gets_it(self, stores: Stores) -> None:
        locks = await asyncio.gather(*(stores[n % 2].try_lock(7, f"h{n}") for n in range(20)))
        assert sum(lock is not None for lock in locks) == 1

    async def test_former_lock_releases_nothing(self, stores: Stores) -> None:
        first, second = stores
        former = await first.try_lock(7, "h")
        assert former is not None
        await first.release(former)
        present = await second.try_lock(7, "h")
        assert present is not None
        await first.release(former)
        await second.release(former)
        assert await second.is_held(present)
        await second.release(present)
        own = await first.try_lock(7, "h")
        assert own is not None
        assert own != former
        await first.release(former)
        assert await first.is_held(own)

    async def test_write_under_the_lock(
        self, stores: Stores, factories: tuple[LedgerManagerFactory, LedgerManagerFactory]
    ) -> None:
        first, second = stores
        manager = factories[1].ledger_manager
        await manager.create(unscoped(7), some_metadata())
        lock = await first.try_lock(7, "h")
        assert lock is not None
        written = await first.write_ledger(lock, some_metadata(x=b"1"), 0)
        assert written.version == 1
        assert (await manager.read(unscoped(7))).metadata.custom_metadata == {"x": b"1"}
        for version in (0, 2, -1, 2**40):
            with pytest.raises(MetadataVersionException):
                await first.write_ledger(lock, some_metadata(), version)
        with pytest.raises(LockLostException):
            await second.write_ledger(lock, some_metadata(), 1)
        await manager.remove(unscoped(7))
        with pytest.raises(NoSuchLedgerExistsOnMetadataServerException):
            await first.write_ledger(lock, some_metadata(), 1)
        await first.release(lock)
        with pytest.raises(LockLostException):
            await first.write_ledger(lock, some_metadata(), 1)

    async def test_a_ledger_is_told_from_one_that_was_created_later_with_its_id(
        self, stores: Stores, factories: tuple[LedgerManagerFactory, LedgerManagerFactory]
    ) -> None:
        """The version alone does not tell them apart, which is all that a write compares."""
        manager, other = factories[0].ledger_manager, factories[1].ledger_manager
        await manager.create(unscoped(7), some_metadata())
        lock = await stores[0].try_lock(7, "h")
        assert lock is not None
        former = await manager.read(unscoped(7))
        await other.remove(unscoped(7))
        await other.create(unscoped(7), some_metadata())
        await factories[0].catch_up(None)
        (listed,) = await manager.read_many([unscoped(7)])
        assert isinstance(listed, LedgerRecord)
        for current in (listed, await manager.read(unscoped(7))):
            assert current.version == former.version
            assert not current.is_of(former)
            assert current.is_of(await other.read(unscoped(7)))

    async def test_what_ended_has_no_effect(
        self, stores: Stores, factories: tuple[LedgerManagerFactory, LedgerManagerFactory], end_claims: Ender
    ) -> None:
        """Its holder is told, and neither writes nor releases what is another's by now."""
        first, second = stores
        await factories[1].ledger_manager.create(unscoped(7), some_metadata())
        told = Told()
        first.watch(told)
        lock = await first.try_lock(7, "paused")
        assert lock is not None
        await end_claims(factories[0])
        other = await lock_when_free(second, 7)
        with pytest.raises(LockLostException):
            await first.write_ledger(lock, some_metadata(x=b"1"), 0)
        await told.until(LockLost(lock))
        await first.release(lock)
        assert not await first.is_held(lock)
        assert await second.is_held(other)
        assert (await second.write_ledger(other, some_metadata(x=b"2"), 0)).version == 1
        await second.release(other)
        await lock_when_free(first, 7)  # where what a lost session left behind is cleared away it is not given yet

    async def test_closing_gives_locks_and_votes_back(
        self, metadata_uri: str, factories: tuple[LedgerManagerFactory, LedgerManagerFactory]
    ) -> None:
        third = create_factory(metadata_uri)
        await third.initialize()
        assert await third.replication_metadata.try_lock(7, "h") is not None
        await third.replication_metadata.stand_for_auditor("third:1", lambda state: None)
        await third.close()
        await lock_when_free(factories[0].replication_metadata, 7)
        assert await factories[0].replication_metadata.auditor() is None


class TestElection:
    async def test_oldest_vote_wins_and_the_next_follows(self, stores: Stores) -> None:
        first, second = stores
        assert await first.auditor() is None
        states = [Told(), Told(), Told()]
        one = await first.stand_for_auditor("b:1", states[0])
        await states[0].until(VoteState.ELECTED)
        two = await second.stand_for_auditor("b:2", states[1])
        three = await first.stand_for_auditor("b:3", states[2])
        await states[1].until(VoteState.WAITING)
        await states[2].until(VoteState.WAITING)
        assert await second.auditor() == "b:1"
        assert (one.state, two.state, three.state) == (VoteState.ELECTED, VoteState.WAITING, VoteState.WAITING)
        await two.withdraw()
        await one.withdraw()
        await states[2].until(VoteState.ELECTED)
        assert await second.auditor() == "b:3"
        assert states[0].events == [VoteState.ELECTED]
        assert states[1].events == [VoteState.WAITING]
        await three.withdraw()
        assert await second.auditor() is None

    async def test_lost_vote_is_told_and_the_next_candidate_acts(
        self, stores: Stores, factories: tuple[LedgerManagerFactory, LedgerManagerFactory], end_claims: Ender
    ) -> None:
        first, second = stores
        states = Told(), Told(), Told()
        vote = await first.stand_for_auditor("b:1", states[0])
        await states[0].until(VoteState.ELECTED)
        await end_claims(factories[0])
        await states[0].until(VoteState.LOST)
        assert vote.state is VoteState.LOST
        await second.stand_for_auditor("b:2", states[1])
        await states[1].until(VoteState.ELECTED)
        assert await first.auditor() == "b:2"
        await first.stand_for_auditor("b:1", states[2])
        await states[2].until(VoteState.WAITING)
        await vote.withdraw()
        assert states[0].events[-1] is VoteState.LOST


class TestSwitches:
    async def test_switch(self, stores: Stores) -> None:
        first, second = stores
        assert await first.is_enabled()
        with pytest.raises(IllegalOpException):
            await first.set_enabled(True)
        await first.set_enabled(False)
        assert not await second.is_enabled()
        with pytest.raises(IllegalOpException):
            await second.set_enabled(False)
        await second.set_enabled(True)
        assert await first.is_enabled()

    async def test_delay(self, stores: Stores) -> None:
        first, second = stores
        assert await first.lost_bookie_delay() is None
        assert await first.set_lost_bookie_delay(30, only_if_absent=True) == 30
        assert await second.set_lost_bookie_delay(40, only_if_absent=True) == 30
        assert await second.set_lost_bookie_delay(0) == 0
        assert await first.lost_bookie_delay() == 0
        with pytest.raises(IncorrectParameterException):
            await first.set_lost_bookie_delay(-1)

    async def test_times_of_checks(self, stores: Stores) -> None:
        first, second = stores
        for number, check in enumerate(PeriodicCheck):
            assert await first.check_time(check) is None
            await first.set_check_time(check, 5)
            await second.set_check_time(check, 1_700_000_000_000 + number)
        for number, check in enumerate(PeriodicCheck):
            assert await first.check_time(check) == 1_700_000_000_000 + number

    async def test_records(self, stores: Stores) -> None:
        first, second = stores
        kind = RecordKind.UNRECOVERABLE_LEDGER
        assert await first.records(kind) == {}
        assert await first.write_record(kind, "7", b"why", None) == 0
        for version in (None, 1, 2**40):
            with pytest.raises(MetadataVersionException):
                await second.write_record(kind, "7", b"else", version)
        with pytest.raises(MetadataVersionException):
            await second.write_record(kind, "8", b"else", 0)
        assert await second.write_record(kind, "7", b"else", 0) == 1
        assert await second.write_record(kind, "9", b"new", ANY_VERSION) == 0
        assert await second.write_record(kind, "9", b"newer", ANY_VERSION) == 1
        assert await first.records(kind) == {"7": Versioned(b"else", 1), "9": Versioned(b"newer", 1)}
        assert await first.read_record(kind, "7") == Versioned(b"else", 1)
        assert await first.read_record(RecordKind.SETTING, "7") is None
        with pytest.raises(MetadataVersionException):
            await first.remove_record(kind, "7", 0)
        await first.remove_record(kind, "7", 1)
        await first.remove_record(kind, "9")
        await first.remove_record(kind, "9")
        assert await second.records(kind) == {}
        with pytest.raises(IncorrectParameterException):
            await first.write_record(kind, "a/b", b"", None)

    async def test_first_time_that_a_bookie_was_missed_stays(self, stores: Stores) -> None:
        first, second = stores
        times = await asyncio.gather(*(stores[n % 2].missed_since("b:1", 100 + n) for n in range(6)))
        assert len(set(times)) == 1
        assert await second.missed_since("b:1", 10**12) == times[0]
        await first.bookie_returned("b:1")
        assert await second.missed_since("b:1", 10**12) == 10**12


class TestChanges:
    async def test_what_is_known_is_told_first(self, stores: Stores) -> None:
        await stores[0].set_lost_bookie_delay(3)
        await stores[0].set_enabled(False)
        for _ in range(2):
            told = Told()
            stores[1].watch(told)
            for event in (MarksChanged(), SwitchChanged(False), DelayChanged(3)):
                await told.until(event)

    async def test_changes_made_elsewhere_are_told(self, stores: Stores) -> None:
        first, second = stores
        told = Told()
        end = second.watch(told)
        seen = max([await told.until(each) for each in (MarksChanged(), SwitchChanged(True), DelayChanged(None))])
        await first.set_enabled(False)
        seen = await told.until(SwitchChanged(False), seen)
        await first.set_enabled(True)
        seen = await told.until(SwitchChanged(True), seen)
        for seconds in (5, 5, 0):
            await first.set_lost_bookie_delay(seconds)
            seen = await told.until(DelayChanged(seconds), seen)
        for ledger_id in (1, 2, 2**40, LedgerId(1, 1).number, LedgerId(1, 2).number):
            seen = len(told.events)
            await first.mark(ledger_id, ["a:1"])
            await told.until(MarksChanged(), seen)
        end()
        count = len(told.events)
        await first.set_enabled(False)
        other = Told()
        second.watch(other)
        await other.until(SwitchChanged(False))
        assert len(told.events) == count

    async def test_bookies_to_be_emptied_are_told(self, stores: Stores) -> None:
        first, second = stores
        told = Told()
        second.watch(told)
        for event in (MarksChanged(), SwitchChanged(True), DelayChanged(None)):
            await told.until(event)
        for name in ("a:1", "b:1"):
            seen = len(told.events)
            await first.write_record(RecordKind.DRAINING_BOOKIE, name, b"{}", None)
            await told.until(DrainsChanged(), seen)
        seen = len(told.events)
        await first.remove_record(RecordKind.DRAINING_BOOKIE, "a:1")
        await told.until(DrainsChanged(), seen)
        assert set(await second.records(RecordKind.DRAINING_BOOKIE)) == {"b:1"}

    async def test_changes_are_told_over_the_end_of_a_connection(
        self, stores: Stores, factories: tuple[LedgerManagerFactory, LedgerManagerFactory], end_claims: Ender
    ) -> None:
        first, second = stores
        told: Told = Told()
        second.watch(told)
        await told.until(SwitchChanged(True))
        await end_claims(factories[1])
        await first.set_enabled(False)
        await told.until(SwitchChanged(False))
        seen = len(told.events)
        await first.mark(1, [])
        await told.until(MarksChanged(), seen)


class TestLedgerFeed:
    async def test_every_change_is_told_before_a_feed_has_caught_up(
        self, factories: tuple[LedgerManagerFactory, LedgerManagerFactory]
    ) -> None:
        manager, store = factories[0].ledger_manager, factories[1].replication_metadata
        ids = [0, 123, 2**31 - 2, 2**31 - 1, 2**31, 2**63 - 1]
        old = await manager.create(unscoped(5), some_metadata())
        told = Told()
        feed = store.watch_ledgers(told)
        assert feed is not None
        await told.until(FeedBegan())
        assert told.events[0] == FeedBegan()
        records = [await manager.create(unscoped(number), some_metadata()) for number in ids]
        await feed.catch_up()
        assert told.touched() >= set(ids)
        seen = len(told.events)
        await manager.write(old.ledger_id, old.metadata, old.version)
        await feed.catch_up()
        assert told.touched(seen) == {5}
        seen = len(told.events)
        await manager.write(old.ledger_id, old.metadata, old.version + 1)
        for record in records:
            await manager.remove(record.ledger_id)
        await feed.catch_up()
        assert told.touched(seen) == {5, *ids}
        feed.close()

    async def test_ledgers_of_scopes_are_told_by_their_whole_ids(
        self, factories: tuple[LedgerManagerFactory, LedgerManagerFactory]
    ) -> None:
        manager, told = factories[0].ledger_manager, Told()
        feed = factories[1].replication_metadata.watch_ledgers(told)
        assert feed is not None
        await told.until(FeedBegan())
        ids = [unscoped(7), LedgerId(9, 7), LedgerId(-1, -1), LedgerId(9, -7)]
        for ledger_id in ids:
            await manager.create(ledger_id, some_metadata())
        await feed.catch_up()
        assert told.touched() == {ledger_id.number for ledger_id in ids}
        seen = len(told.events)
        await manager.remove(LedgerId(9, 7))
        await feed.catch_up()
        assert told.touched(seen) == {LedgerId(9, 7).number}
        feed.close()

    async def test_a_repair_is_told_too(
        self, stores: Stores, factories: tuple[LedgerManagerFactory, LedgerManagerFactory]
    ) -> None:
        record = await factories[0].ledger_manager.create(unscoped(7), some_metadata())
        told = Told()
        feed = stores[1].watch_ledgers(told)
        assert feed is not None
        await told.until(FeedBegan())
        lock = await stores[0].try_lock(7, "host")
        assert lock is not None
        await stores[0].write_ledger(lock, record.metadata, record.version)
        await feed.catch_up()
        assert 7 in told.touched()
        feed.close()

    async def test_what_is_no_ledger_is_not_told(
        self, stores: Stores, factories: tuple[LedgerManagerFactory, LedgerManagerFactory]
    ) -> None:
        told = Told()
        feed = stores[1].watch_ledgers(told)
        assert feed is not None
        await told.until(FeedBegan())
        await stores[0].mark(9, ["a:1"])
        await stores[0].write_record(RecordKind.DRAINING_BOOKIE, "a:1", b"{}", None)
        await factories[0].registration_manager.write_cookie("a:1", b"", None)
        await feed.catch_up()
        assert told.events == [FeedBegan()]
        feed.close()

    async def test_each_listener_has_a_feed_of_its_own(
        self, factories: tuple[LedgerManagerFactory, LedgerManagerFactory]
    ) -> None:
        manager, store = factories[0].ledger_manager, factories[1].replication_metadata
        first, second, third = Told(), Told(), Told()
        feeds = [store.watch_ledgers(first), store.watch_ledgers(second)]
        for told in (first, second):
            await told.until(FeedBegan())
        for feed in feeds:
            assert feed is not None
            feed.close()
        again = store.watch_ledgers(third)
        assert again is not None
        await third.until(FeedBegan())
        await manager.create(unscoped(8), some_metadata())
        await again.catch_up()
        assert 8 in third.touched()
        assert first.events == second.events == [FeedBegan()]
        again.close()
