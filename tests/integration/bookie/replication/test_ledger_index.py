"""The auditor's index over real stores: an audit reads the ledgers of the lost bookie, all of them, and no others."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Iterable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from bookgate.bookie.replication import ledger_pages
from bookgate.bookie.replication.audits.auditor import Auditor, AuditorOptions
from bookgate.bookie.replication.audits.index_keeper import IndexKeeper, IndexOptions, IndexStatistics
from bookgate.bookie.standalone.local_zookeeper import LocalZooKeeper
from bookgate.gateway.server import GatewayServer
from bookgate.gateway.stores.drivers import create_factory
from bookgate.gateway.stores.sqlite.factory import SqliteLedgerManagerFactory
from bookgate.gateway.stores.sqlite.replication import SqliteReplicationMetadata
from bookgate.gateway.stores.sqlite.store import Transaction
from bookgate.gateway.stores.zookeeper.factory import ZooKeeperLedgerManagerFactory
from bookgate.ledger.bookie_info import BookieServiceInfo
from bookgate.ledger.errors import BKException, MetaStoreException
from bookgate.ledger.ledger_id import LedgerId
from bookgate.ledger.metadata import Fragment, LedgerMetadata
from bookgate.ledger.metadata_store import LedgerManagerFactory, LedgerRecord
from bookgate.ledger.replication_store import (
    LedgerFeed,
    LedgerFeedEvent,
    LedgerFeedListener,
    LedgersTouched,
    RecordKind,
)
from tests.integration.bookie.replication.test_auditor_metrics import register
from tests.integration.bookie.replication.test_replica_check import marked, until
from tests.integration.gateway.test_zookeeper import expire
from tests.stores import made

pytestmark = pytest.mark.asyncio

LOST, OTHERS = "lost:1", ("a:1", "b:1", "c:1")
QUICK = IndexOptions(batch_seconds=0.01)
NEVER = 3600


@pytest.fixture(params=["sqlite", "zookeeper", "gateway"])
def uri(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """The store; the auditor's way to it may lead over a gateway."""
    if request.param != "zookeeper":
        return made(f"sqlite://{tmp_path}/metadata.db")
    server: LocalZooKeeper = request.getfixturevalue("zookeeper")
    return made(server.metadata_uri(f"/{tmp_path.name}/ledgers"))


@contextlib.asynccontextmanager
async def opened(uri: str) -> AsyncIterator[LedgerManagerFactory]:
    factory = create_factory(uri)
    await factory.initialize()
    try:
        yield factory
    finally:
        await factory.close()


@pytest_asyncio.fixture
async def behind(uri: str) -> AsyncIterator[LedgerManagerFactory]:
    """The auditor's own, or its gateway's, connection to the store."""
    async with opened(uri) as factory:
        yield factory


@pytest_asyncio.fixture
async def here(behind: LedgerManagerFactory, request: pytest.FixtureRequest) -> AsyncIterator[LedgerManagerFactory]:
    """The auditor's way to the store."""
    if "gateway" not in request.node.callspec.id:
        yield behind
        return
    gateway = GatewayServer(behind)
    async with opened(f"grpc://127.0.0.1:{await gateway.start()}") as factory:
        yield factory
    await gateway.stop(0)


@pytest_asyncio.fixture
async def clients(uri: str) -> AsyncIterator[LedgerManagerFactory]:
    """Whose ledgers they are; four bookies of the cluster, one of them gone."""
    async with opened(uri) as factory:
        for bookie_id in (*OTHERS, LOST):
            await factory.registration_manager.write_cookie(bookie_id, b"", None)
        for bookie_id in OTHERS:
            await factory.registration_manager.register_bookie(BookieServiceInfo(bookie_id, ()), read_only=False)
        yield factory


def metadata(*fragments: Sequence[str]) -> LedgerMetadata:
    new = LedgerMetadata.new(fragments[0], 3, 2)
    return replace(new, fragments=tuple(Fragment(10 * n, tuple(each)) for n, each in enumerate(fragments)))


ON_LOST = metadata(("a:1", LOST, "b:1"))
ELSEWHERE = metadata(OTHERS)


async def written(factory: LedgerManagerFactory, numbers: Iterable[int], content: LedgerMetadata) -> list[LedgerRecord]:
    create = factory.ledger_manager.create
    return list(await asyncio.gather(*(create(LedgerId.unscoped(number), content) for number in numbers)))


@dataclass
class Reads:
    """What was read of the store since the last `clear`."""

    ids: list[int] = field(default_factory=list)
    listings: int = 0

    def clear(self) -> None:
        self.ids.clear()
        self.listings = 0


@pytest.fixture
def reads(here: LedgerManagerFactory, monkeypatch: pytest.MonkeyPatch) -> Reads:
    seen, manager = Reads(), here.ledger_manager
    read_many, ledger_ranges = manager.read_many, manager.ledger_ranges

    async def counted(ledger_ids: Sequence[LedgerId]) -> list[LedgerRecord | BKException]:
        seen.ids += [each.number for each in ledger_ids]
        return await read_many(ledger_ids)

    def listed(*arguments: Any, **named: Any) -> Any:
        seen.listings += 1
        return ledger_ranges(*arguments, **named)

    monkeypatch.setattr(manager, "read_many", counted)
    monkeypatch.setattr(manager, "ledger_ranges", listed)
    return seen


@contextlib.asynccontextmanager
async def in_office(factory: LedgerManagerFactory, index: IndexOptions = QUICK) -> AsyncIterator[Auditor]:
    auditor = Auditor(factory, "here", AuditorOptions(lost_bookie_delay_seconds=NEVER, index=index))
    await auditor.start()
    try:
        yield auditor
    finally:
        await auditor.stop()


@contextlib.asynccontextmanager
async def kept(factory: LedgerManagerFactory, options: IndexOptions = QUICK) -> AsyncIterator[IndexKeeper]:
    """An index without an auditor, when it is complete."""
    statistics = IndexStatistics()
    keeper = IndexKeeper(factory, None, options, statistics)
    keeper.start()
    try:
        await until(lambda: statistics.ledgers is not None)
        yield keeper
    finally:
        keeper.stop()
        await keeper.ended()


async def named(keeper: IndexKeeper, bookie_id: str = LOST) -> list[int]:
    found = await keeper.naming([bookie_id])
    assert found is not None
    return list(found.ledgers)


async def test_a_lost_bookie_costs_reads_of_its_own_ledgers_only(
    here: LedgerManagerFactory, clients: LedgerManagerFactory, reads: Reads
) -> None:
    await written(clients, range(30), ELSEWHERE)
    await written(clients, range(30, 40), ON_LOST)
    moved = (await written(clients, [40], ON_LOST))[0]
    joined = (await written(clients, [41], ELSEWHERE))[0]
    async with in_office(here) as auditor:
        await until(lambda: auditor.statistics.index.ledgers == 42)
        reads.clear()
        await clients.ledger_manager.write(moved.ledger_id, ELSEWHERE, moved.version)
        earlier = metadata((LOST, "b:1", "c:1"), OTHERS)
        await clients.ledger_manager.write(joined.ledger_id, earlier, joined.version)
        await written(clients, [42, 2**31, 2**40], ON_LOST)
        await clients.ledger_manager.remove(LedgerId.unscoped(35))
        own = {*range(30, 35), *range(36, 40), 41, 42, 2**31, 2**40}
        changed = {35, 40, 41, 42, 2**31, 2**40}
        await clients.replication_metadata.set_lost_bookie_delay(0)
        await until(lambda: auditor.statistics.audits)
        assert auditor.statistics.audits_by_index == 1
        assert set(reads.ids) <= changed
        assert reads.listings == 0
        assert auditor.statistics.ledgers_audited == len(own)
        assert await marked(clients) == dict.fromkeys(own, (LOST,))


@pytest.mark.parametrize("by_index", [True, False], ids=["by the index", "by a listing"])
async def test_ledgers_of_scopes_are_marked_by_their_whole_ids(
    here: LedgerManagerFactory, clients: LedgerManagerFactory, monkeypatch: pytest.MonkeyPatch, by_index: bool
) -> None:
    """Those that exist when the auditor comes into office, and those that are created or moved since."""
    if not by_index:
        monkeypatch.setattr(here.replication_metadata, "watch_ledgers", lambda _listener: None)
    create = clients.ledger_manager.create
    await written(clients, range(4), ELSEWHERE)
    for low in range(4):
        await create(LedgerId(9, low), ON_LOST if low < 2 else ELSEWHERE)
    moved = await create(LedgerId(-9, -1), ON_LOST)
    async with in_office(here) as auditor:
        if by_index:
            await until(lambda: auditor.statistics.index.ledgers == 9)
        await clients.ledger_manager.write(moved.ledger_id, ELSEWHERE, moved.version)
        created = await create(LedgerId(-9, 3), ON_LOST)
        await clients.replication_metadata.set_lost_bookie_delay(0)
        await until(lambda: auditor.statistics.audits)
        assert auditor.statistics.audits_by_index == by_index
        numbers = [LedgerId(9, 0).number, LedgerId(9, 1).number, created.ledger_id.number]
        assert await marked(clients) == dict.fromkeys(numbers, (LOST,))


async def test_a_bookie_that_only_ledgers_know_is_missed_and_lost(
    here: LedgerManagerFactory, clients: LedgerManagerFactory
) -> None:
    """Somebody has deleted its cookie before its ledgers were moved."""
    await clients.registration_manager.remove_cookie(LOST, 0)
    await written(clients, range(5), ELSEWHERE)
    await written(clients, range(5, 8), ON_LOST)
    async with in_office(here) as auditor:
        await until(lambda: auditor.statistics.index.ledgers == 8)
        await clients.replication_metadata.set_lost_bookie_delay(0)
        await until(lambda: auditor.statistics.audits)
        assert await marked(clients) == dict.fromkeys(range(5, 8), (LOST,))


async def test_without_an_index_such_a_bookie_is_known_by_a_listing(
    here: LedgerManagerFactory, clients: LedgerManagerFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    await clients.registration_manager.remove_cookie(LOST, 0)
    await written(clients, range(5), ON_LOST)
    monkeypatch.setattr(here.replication_metadata, "watch_ledgers", lambda _listener: None)
    auditor = Auditor(here, "here", AuditorOptions(lost_bookie_delay_seconds=NEVER, names_seconds=0.1))
    await auditor.start()
    try:
        await until(lambda: auditor.statistics.roll and auditor.statistics.roll.missed)
        await clients.replication_metadata.set_lost_bookie_delay(0)
        await until(lambda: auditor.statistics.audits)
        assert await marked(clients) == dict.fromkeys(range(5), (LOST,))
    finally:
        await auditor.stop()


async def test_a_bookie_that_is_to_be_emptied_is_audited_at_once(
    here: LedgerManagerFactory, clients: LedgerManagerFactory
) -> None:
    """Without waiting for the next call of the roll."""
    on_it = metadata(("b:1", "c:1", "a:1"))
    await written(clients, range(3), on_it)
    options = AuditorOptions(lost_bookie_delay_seconds=NEVER, roll_call_seconds=NEVER, index=QUICK)
    auditor = Auditor(here, "here", options)
    await auditor.start()
    await until(lambda: auditor.statistics.roll and auditor.statistics.index.ledgers == 3)
    await clients.replication_metadata.write_record(RecordKind.DRAINING_BOOKIE, "c:1", b"{}", None)
    await until(lambda: auditor.statistics.audits)
    assert await marked(clients) == dict.fromkeys(range(3), ("c:1",))
    await auditor.stop()


async def test_without_an_index_an_audit_lists_all_ledgers(
    here: LedgerManagerFactory, clients: LedgerManagerFactory, reads: Reads, monkeypatch: pytest.MonkeyPatch
) -> None:
    await written(clients, range(5), ELSEWHERE)
    await written(clients, range(5, 8), ON_LOST)
    monkeypatch.setattr(here.replication_metadata, "watch_ledgers", lambda _listener: None)
    async with in_office(here) as auditor:
        await clients.replication_metadata.set_lost_bookie_delay(0)
        await until(lambda: auditor.statistics.audits)
        assert auditor.statistics.audits_by_index == 0
        assert auditor.statistics.index.ledgers is None
        assert sorted(reads.ids) == list(range(8))
        assert await marked(clients) == dict.fromkeys(range(5, 8), (LOST,))


async def test_an_audit_that_fails_is_begun_again_until_all_marks_are_stored(
    here: LedgerManagerFactory, clients: LedgerManagerFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """AR6. Nothing else happens that would make anybody think of the bookie again."""
    await written(clients, range(40), ON_LOST)
    mark, marked_so_far = here.replication_metadata.mark, 0

    async def failing(ledger_id: int, replicas: Sequence[str], ctime_ms: int | None = None) -> None:
        nonlocal marked_so_far
        marked_so_far += 1
        if marked_so_far == 20:
            raise MetaStoreException("out of reach")
        await mark(ledger_id, replicas, ctime_ms)

    monkeypatch.setattr(here.replication_metadata, "mark", failing)
    async with in_office(here) as auditor:
        await clients.replication_metadata.set_lost_bookie_delay(0)
        await until(lambda: auditor.statistics.audits)
        assert auditor.statistics.audits_failed == 1
        assert await marked(clients) == dict.fromkeys(range(40), (LOST,))


async def test_an_index_that_is_not_complete_answers_nothing(
    here: LedgerManagerFactory, clients: LedgerManagerFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    await written(clients, range(5), ON_LOST)
    read_many, going_on = here.ledger_manager.read_many, asyncio.Event()
    asked = asyncio.Event()

    async def held_up(ledger_ids: Sequence[LedgerId]) -> list[LedgerRecord | BKException]:
        asked.set()
        await going_on.wait()
        return await read_many(ledger_ids)

    monkeypatch.setattr(here.ledger_manager, "read_many", held_up)
    statistics = IndexStatistics()
    keeper = IndexKeeper(here, None, QUICK, statistics)
    keeper.start()
    await asked.wait()
    async with asyncio.timeout(10):
        assert await keeper.naming([LOST]) is None
    going_on.set()
    await until(lambda: statistics.ledgers == 5)
    assert await named(keeper) == [0, 1, 2, 3, 4]
    keeper.stop()
    await keeper.ended()
    assert await keeper.naming([LOST]) is None
    assert statistics.ledgers is None


async def test_all_ledgers_are_read_at_a_bounded_rate(
    here: LedgerManagerFactory, clients: LedgerManagerFactory
) -> None:
    await written(clients, range(30), ELSEWHERE)
    began = asyncio.get_running_loop().time()
    async with kept(here, replace(QUICK, read_ledgers_a_second=40)):
        assert asyncio.get_running_loop().time() - began >= 30 / 40


@pytest.mark.parametrize("when", ["reading all", "reading what is due"])
async def test_a_change_during_a_reading_is_read_again(
    here: LedgerManagerFactory, clients: LedgerManagerFactory, monkeypatch: pytest.MonkeyPatch, when: str
) -> None:
    """The store has answered already when the ledger changes: what was read is old when it is put."""
    changing, watched = (await written(clients, [1, 2], ELSEWHERE))[:2]
    read_many, before = here.ledger_manager.read_many, asyncio.Event()
    feed = here.replication_metadata.watch_ledgers(lambda _event: None)
    assert feed is not None

    async def overtaken(ledger_ids: Sequence[LedgerId]) -> list[LedgerRecord | BKException]:
        found = await read_many(ledger_ids)
        if changing.ledger_id in ledger_ids and before.is_set():
            before.clear()
            await clients.ledger_manager.write(changing.ledger_id, ON_LOST, changing.version)
            await feed.catch_up()
        return found

    monkeypatch.setattr(here.ledger_manager, "read_many", overtaken)
    if when == "reading all":
        before.set()
    async with kept(here) as keeper:
        if when != "reading all":
            before.set()
            version, changing = changing.version, replace(changing, version=changing.version + 1)
            await clients.ledger_manager.write(changing.ledger_id, ELSEWHERE, version)
        await until(lambda: not before.is_set())
        assert await named(keeper) == [1]
        assert await named(keeper, "c:1") == [2]
        assert watched.version == 0
    feed.close()


async def test_a_ledger_that_changes_before_it_is_read_first_is_read_once(
    here: LedgerManagerFactory, clients: LedgerManagerFactory, reads: Reads, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The feed has told of it when its page is read."""
    changing = (await written(clients, range(1, 5), ELSEWHERE))[2]
    monkeypatch.setattr(ledger_pages, "READ_AT_ONCE", 2)
    read_many, feed = here.ledger_manager.read_many, here.replication_metadata.watch_ledgers(lambda _event: None)
    assert feed is not None

    async def overtaken(ledger_ids: Sequence[LedgerId]) -> list[LedgerRecord | BKException]:
        found = await read_many(ledger_ids)
        if changing.ledger_id not in ledger_ids and not reads.ids.count(changing.ledger_id.low):
            await clients.ledger_manager.write(changing.ledger_id, ON_LOST, changing.version)
            await feed.catch_up()
        return found

    monkeypatch.setattr(here.ledger_manager, "read_many", overtaken)
    async with kept(here) as keeper:
        assert await named(keeper) == [3]
        assert reads.ids == [1, 2, 3, 4]
    feed.close()


async def test_a_ledger_that_changes_again_and_again_is_read_once(
    here: LedgerManagerFactory, clients: LedgerManagerFactory, reads: Reads
) -> None:
    record = (await written(clients, [7], ON_LOST))[0]
    async with kept(here, replace(QUICK, batch_seconds=NEVER)) as keeper:
        assert await named(keeper) == [7]
        reads.clear()
        for content in (ELSEWHERE, ON_LOST, ELSEWHERE):
            record = await clients.ledger_manager.write(record.ledger_id, content, record.version)
        assert await named(keeper) == []
        assert await named(keeper, "c:1") == [7]
        assert reads.ids == [7]


async def test_what_could_not_be_read_stays_due(
    here: LedgerManagerFactory, clients: LedgerManagerFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    read_many = here.ledger_manager.read_many
    fails = False

    async def failing(ledger_ids: Sequence[LedgerId]) -> list[LedgerRecord | BKException]:
        if fails:
            raise MetaStoreException("out of reach")
        return await read_many(ledger_ids)

    monkeypatch.setattr(here.ledger_manager, "read_many", failing)
    async with kept(here) as keeper:
        fails = True
        await written(clients, [7], ON_LOST)
        with pytest.raises(MetaStoreException):
            await keeper.naming([LOST])
        fails = False
        assert await named(keeper) == [7]


async def test_after_a_gap_all_ledgers_are_read_again(
    here: LedgerManagerFactory,
    behind: LedgerManagerFactory,
    clients: LedgerManagerFactory,
    request: pytest.FixtureRequest,
) -> None:
    """What was removed and made meanwhile, nobody tells. A batch that is waited for holds nothing up."""
    records = await written(clients, range(4), ON_LOST)
    statistics = IndexStatistics()
    keeper = IndexKeeper(here, None, replace(QUICK, batch_seconds=NEVER), statistics)
    keeper.start()
    await until(lambda: statistics.ledgers == 4)
    await clients.ledger_manager.write(records[1].ledger_id, ON_LOST, records[1].version)
    assert await named(keeper) == [0, 1, 2, 3]
    if isinstance(behind, ZooKeeperLedgerManagerFactory):
        server: LocalZooKeeper = request.getfixturevalue("zookeeper")
        await expire(server, behind)
    else:
        replication = behind.replication_metadata
        assert isinstance(replication, SqliteReplicationMetadata)
        replication.ledgers_changed(None)
    await clients.ledger_manager.remove(records[0].ledger_id)
    await until(lambda: statistics.readings == 2)
    assert await named(keeper) == [1, 2, 3]
    keeper.stop()
    await keeper.ended()


class DeafTo:
    """A feed that tells nothing of some ledgers."""

    def __init__(self, factory: LedgerManagerFactory, *numbers: int) -> None:
        self._watch = factory.replication_metadata.watch_ledgers
        self._numbers = numbers

    def __call__(self, listener: LedgerFeedListener) -> LedgerFeed | None:
        def hear(event: LedgerFeedEvent) -> None:
            if isinstance(event, LedgersTouched):
                event = LedgersTouched([each for each in event.ledger_ids if each not in self._numbers])
            listener(event)

        return self._watch(hear)


async def test_a_comparison_finds_what_the_feed_has_not_told_and_mends_it(
    here: LedgerManagerFactory, clients: LedgerManagerFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second, third = await written(clients, [1, 2, 3], ELSEWHERE)
    deaf = DeafTo(here, 1, 2, 4)
    monkeypatch.setattr(here.replication_metadata, "watch_ledgers", deaf)
    statistics = IndexStatistics()
    keeper = IndexKeeper(here, None, replace(QUICK, verify_seconds=0.5), statistics)
    keeper.start()
    await until(lambda: statistics.ledgers == 3)
    await clients.ledger_manager.write(first.ledger_id, ON_LOST, first.version)
    await clients.ledger_manager.remove(second.ledger_id)
    await clients.ledger_manager.write(third.ledger_id, ON_LOST, third.version)
    await written(clients, [4], ON_LOST)
    await until(lambda: statistics.differences >= 3)
    assert await named(keeper) == [1, 3, 4]
    assert await named(keeper, "c:1") == []
    assert statistics.differences == 3, "that of which the feed has told is none"
    keeper.stop()
    await keeper.ended()


async def test_a_comparison_finds_nothing_while_ledgers_come_and_go(
    here: LedgerManagerFactory, clients: LedgerManagerFactory
) -> None:
    await written(clients, range(1000, 1500), ELSEWHERE)
    statistics = IndexStatistics()
    options = replace(QUICK, verify_seconds=0.01, verify_ledgers_a_second=1e6)
    keeper = IndexKeeper(here, None, options, statistics)
    keeper.start()
    await until(lambda: statistics.ledgers == 500)
    for number in range(60):
        record = (await written(clients, [number], ON_LOST))[0]
        await clients.ledger_manager.write(record.ledger_id, ELSEWHERE, record.version)
        if number % 3:
            await clients.ledger_manager.remove(record.ledger_id)
    assert await named(keeper) == []
    assert statistics.differences == 0
    assert len(await named(keeper, "c:1")) == 520
    keeper.stop()
    await keeper.ended()


async def test_damaged_metadata_are_said_at_each_audit(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    uri = made(f"sqlite://{tmp_path}/metadata.db")
    async with opened(uri) as here, opened(uri) as clients:
        await register(clients, *OTHERS)
        await clients.registration_manager.write_cookie(LOST, b"", None)
        await written(clients, [1, 2], ON_LOST)
        assert isinstance(clients, SqliteLedgerManagerFactory)

        def damage(transaction: Transaction) -> None:
            transaction.execute("UPDATE ledgers SET metadata = x'00' WHERE key = (SELECT MIN(key) FROM ledgers)")

        await clients.store.change(damage)
        async with in_office(here) as auditor:
            await until(lambda: auditor.statistics.index.ledgers == 2)
            for audits in (1, 2):
                await clients.replication_metadata.set_lost_bookie_delay(0)
                await until(lambda audits=audits: auditor.statistics.audits >= audits)  # type: ignore[misc]
            assert auditor.statistics.audits_by_index == auditor.statistics.audits
            assert auditor.statistics.ledgers_unreadable == auditor.statistics.audits
            assert await marked(clients) == {2: (LOST,)}
    assert "ledger_not_audited" in caplog.text
