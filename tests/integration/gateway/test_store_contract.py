"""What every metadata store promises through `bookgate.ledger.metadata_store`, whichever it is."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path

import pytest

from bookgate.gateway.stores.drivers import create_factory
from bookgate.ledger.bookie_info import BOOKIE_RPC, BookieServiceInfo, Endpoint
from bookgate.ledger.errors import (
    BKException,
    BookieHandleNotAvailableException,
    LedgerExistException,
    MetadataVersionException,
    NoSuchLedgerExistsOnMetadataServerException,
)
from bookgate.ledger.ledger_id import LedgerId
from bookgate.ledger.metadata_codec import decode
from bookgate.ledger.metadata_store import BookieSet, CreateRequest, LedgerManagerFactory, LedgerRecord, RawLedgerRecord
from tests.integration.gateway.conftest import ALL_STORES, Recorder, all_ids, some_metadata, unscoped, unused_store
from tests.stores import made

Factories = tuple[LedgerManagerFactory, LedgerManagerFactory]

pytestmark = pytest.mark.asyncio

EDGES = [0, 1, 9_999, 10_000, 99_999_999, 100_000_000, 2**31 - 2, 2**31 - 1, 2**31, 10**10, 2**63 - 1]


@pytest.fixture(params=ALL_STORES)
def empty_uri(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """Also of a store that Bookgate finds by its entry points only."""
    return unused_store(request, tmp_path)


class TestLedgers:
    async def test_created_ledger_reads_back_at_version_0(self, factories: Factories) -> None:
        first, second = factories
        created = await first.ledger_manager.create(None, some_metadata(app=b"x"))
        assert created.version == 0
        found = await second.ledger_manager.read(created.ledger_id)
        assert (found.metadata, found.version) == (created.metadata, 0)

    async def test_missing_ledger_is_named(self, factories: Factories) -> None:
        manager = factories[0].ledger_manager
        for call in (
            manager.read(unscoped(7)),
            manager.write(unscoped(7), some_metadata(), 0),
            manager.remove(unscoped(7)),
            manager.remove(unscoped(7), 0),
        ):
            with pytest.raises(NoSuchLedgerExistsOnMetadataServerException, match="7"):
                await call

    async def test_given_id_is_taken_once(self, factories: Factories) -> None:
        await factories[0].ledger_manager.create(unscoped(5), some_metadata())
        with pytest.raises(LedgerExistException, match="5"):
            await factories[1].ledger_manager.create(unscoped(5), some_metadata())

    async def test_repeated_create_with_its_token_finds_its_own_ledger(self, factories: Factories) -> None:
        metadata = replace(some_metadata(), creator_token=77)
        manager = factories[0].ledger_manager
        await manager.create(unscoped(5), metadata)
        assert (await factories[1].ledger_manager.create(unscoped(5), metadata)).version == 0
        with pytest.raises(LedgerExistException):
            await manager.create(unscoped(5), replace(metadata, creator_token=78))
        await manager.write(unscoped(5), metadata.begin_recovery(), 0)
        with pytest.raises(LedgerExistException):
            await manager.create(unscoped(5), metadata)

    async def test_write_replaces_only_the_expected_version(self, factories: Factories) -> None:
        first, second = factories
        ledger_id = (await first.ledger_manager.create(None, some_metadata())).ledger_id
        closed = some_metadata().close(9, 900)
        assert (await first.ledger_manager.write(ledger_id, closed, 0)).version == 1
        for version in (0, 2, -1, 2**40):
            with pytest.raises(MetadataVersionException):
                await second.ledger_manager.write(ledger_id, some_metadata(), version)
        found = await second.ledger_manager.read(ledger_id)
        assert (found.metadata.last_entry_id, found.version) == (9, 1)

    async def test_each_record_tells_which_creation_it_is_of(self, factories: Factories) -> None:
        first, second = (factory.ledger_manager for factory in factories)
        created = await first.create(unscoped(5), some_metadata())
        (many,) = await first.create_many([CreateRequest(unscoped(6), some_metadata())])
        assert isinstance(many, LedgerRecord)
        for record in (created, many):
            found = await second.read(record.ledger_id)
            assert found.incarnation == record.incarnation is not None
            written = await second.write_to(found, some_metadata().close(9, 900))
            assert (written.version, written.incarnation) == (1, record.incarnation)
            with pytest.raises(MetadataVersionException):
                await first.write_to(record, some_metadata().close(8, 800))

    @pytest.mark.parametrize("changed", [False, True])
    async def test_a_former_ledgers_record_changes_no_other_one(self, factories: Factories, changed: bool) -> None:
        """`changed`: the other one has had a change, so that the versions differ."""
        first, second = (factory.ledger_manager for factory in factories)
        former = await first.create(unscoped(5), some_metadata())
        await second.read(unscoped(5))
        await first.remove(unscoped(5))
        other = await first.create(unscoped(5), some_metadata(other=b""))
        if changed:
            other = await first.write_to(other, some_metadata(other=b"changed"))
        for manager in (first, second):
            with pytest.raises(NoSuchLedgerExistsOnMetadataServerException, match="another one was created"):
                await manager.write_to(former, some_metadata().close(9, 900))
            with pytest.raises(NoSuchLedgerExistsOnMetadataServerException, match="another one was created"):
                await manager.remove_record(former)
        found = await first.read(unscoped(5))
        assert (found.version, found.metadata.custom_metadata) == (other.version, other.metadata.custom_metadata)
        await second.remove_record(found)
        for change in (second.remove_record(found), second.write_to(found, some_metadata())):
            with pytest.raises(NoSuchLedgerExistsOnMetadataServerException):
                await change

    async def test_of_concurrent_writes_one_wins(self, factories: Factories) -> None:
        ledger_id = (await factories[0].ledger_manager.create(None, some_metadata())).ledger_id
        writes = [factories[n % 2].ledger_manager.write(ledger_id, some_metadata(), 0) for n in range(10)]
        results = await asyncio.gather(*writes, return_exceptions=True)
        lost = [result for result in results if isinstance(result, MetadataVersionException)]
        assert len(lost) == 9
        assert (await factories[0].ledger_manager.read(ledger_id)).version == 1

    async def test_remove_checks_the_version(self, factories: Factories) -> None:
        manager = factories[0].ledger_manager
        ledger_id = (await manager.create(None, some_metadata())).ledger_id
        for version in (1, -1):
            with pytest.raises(MetadataVersionException):
                await manager.remove(ledger_id, version)
        await manager.remove(ledger_id, 0)
        with pytest.raises(NoSuchLedgerExistsOnMetadataServerException):
            await manager.read(ledger_id)

    async def test_generated_ids_of_two_factories_are_distinct(self, factories: Factories) -> None:
        creates = [factories[n % 2].ledger_manager.create(None, some_metadata()) for n in range(40)]
        ids = {record.ledger_id for record in await asyncio.gather(*creates)}
        assert len(ids) == 40

    async def test_generated_id_passes_over_one_that_is_taken(self, factories: Factories) -> None:
        manager = factories[0].ledger_manager
        last = (await manager.create(None, some_metadata())).ledger_id.low
        for number in range(last + 1, last + 4):
            await manager.create(unscoped(number), some_metadata())
        assert (await manager.create(None, some_metadata())).ledger_id.low > last + 3

    async def test_generated_id_of_a_removed_ledger_is_not_given_again(self, factories: Factories) -> None:
        given = set()
        for number in range(4):
            manager = factories[number % 2].ledger_manager
            ledger_id = (await manager.create(None, some_metadata())).ledger_id
            await manager.remove(ledger_id)
            given.add(ledger_id)
        assert len(given) == 4

    async def test_metadata_format_version_is_kept(self, factories: Factories) -> None:
        manager = factories[0].ledger_manager
        for version in (2, 3):
            metadata = replace(some_metadata(), format_version=version)
            ledger_id = (await manager.create(None, metadata)).ledger_id
            assert (await manager.read(ledger_id)).metadata.format_version == version


class TestManyLedgers:
    async def test_each_stands_for_itself(self, factories: Factories) -> None:
        first, second = factories
        await first.ledger_manager.create(unscoped(2**40), some_metadata())
        requests = [CreateRequest(None, some_metadata(n=str(n).encode())) for n in range(300)]
        requests.insert(5, CreateRequest(unscoped(2**40), some_metadata()))
        requests.insert(9, CreateRequest(unscoped(2**40 + 1), some_metadata()))
        results = await second.ledger_manager.create_many(requests)
        assert isinstance(results[5], LedgerExistException)
        records = [record for record in results if isinstance(record, LedgerRecord)]
        assert len({record.ledger_id for record in records}) == 301
        assert records[8].ledger_id == unscoped(2**40 + 1)
        assert await all_ids(first) == sorted({record.ledger_id.low for record in records} | {2**40})
        wanted = [record.ledger_id for record in records]
        wanted.insert(7, unscoped(2**41))
        found = await first.ledger_manager.read_many(wanted)
        assert isinstance(found[7], NoSuchLedgerExistsOnMetadataServerException)
        del found[7]
        assert found == records

    async def test_listed_ones_are_given_as_they_are_stored(self, factories: Factories) -> None:
        first, second = factories
        created = await first.ledger_manager.create_many(
            [CreateRequest(unscoped(3 * n), some_metadata()) for n in range(600)]
        )
        changed = created[2]
        assert isinstance(changed, LedgerRecord)
        await first.ledger_manager.write(changed.ledger_id, changed.metadata.close(-1, 0), 0)
        wanted = [unscoped(n) for n in (0, 1, *range(3, 1800, 3))]
        records = await second.ledger_manager.read_many(wanted)
        listed = await second.ledger_manager.read_listed(wanted, 1 << 30)
        assert isinstance(listed[1], NoSuchLedgerExistsOnMetadataServerException)
        del records[1], listed[1]
        assert [
            (found.ledger_id, decode(found.data), found.version, found.created_ms)
            for found in listed
            if isinstance(found, RawLedgerRecord)
        ] == [
            (record.ledger_id, record.metadata, record.version, record.created_ms)
            for record in records
            if isinstance(record, LedgerRecord)
        ]
        assert len(listed) == 600
        assert await second.ledger_manager.read_listed([], 1000) == []

    async def test_as_many_listed_ones_are_given_as_their_bytes_allow(self, factories: Factories) -> None:
        first, second = factories
        small, large = some_metadata(), replace(some_metadata(), custom_metadata={"k": b"v" * 50_000})
        sizes = [large if n % 5 == 3 else small for n in range(30)]
        await first.ledger_manager.create_many([CreateRequest(unscoped(n), each) for n, each in enumerate(sizes)])
        await first.ledger_manager.remove(unscoped(0))
        wanted, found = [unscoped(n) for n in range(30)], list[RawLedgerRecord | BKException]()
        while len(found) < 30:
            page = await second.ledger_manager.read_listed(wanted[len(found) :], 60_000)
            sizes_read = [len(each.data) for each in page if isinstance(each, RawLedgerRecord)]
            # A store that does not know the sizes before it reads may go over, by few ledgers.
            assert sum(sizes_read) < 60_000 + 9 * 51_000
            found += page
        assert isinstance(found[0], NoSuchLedgerExistsOnMetadataServerException)
        assert [each.ledger_id for each in found if isinstance(each, RawLedgerRecord)] == wanted[1:]
        one = await second.ledger_manager.read_listed(wanted[3:], 1)
        assert 1 <= len(one) <= 16

    async def test_none_are_none(self, factories: Factories) -> None:
        assert await factories[0].ledger_manager.create_many([]) == []
        assert await factories[0].ledger_manager.read_many([]) == []

    async def test_created_ones_are_told_and_versioned_like_others(self, factories: Factories) -> None:
        first, second = factories
        (record,) = await first.ledger_manager.create_many([CreateRequest(None, some_metadata())])
        assert isinstance(record, LedgerRecord)
        told = Recorder()
        await second.ledger_manager.register_listener(record.ledger_id, told)
        await told.until_version(0)
        assert (await second.ledger_manager.write(record.ledger_id, some_metadata(), 0)).version == 1
        await told.until_version(1)

    async def test_single_and_many_creations_of_two_factories_at_once_are_distinct(self, factories: Factories) -> None:
        single = [factories[n % 2].ledger_manager.create(None, some_metadata()) for n in range(60)]
        many = [
            factories[n % 2].ledger_manager.create_many([CreateRequest(None, some_metadata())] * 40) for n in range(4)
        ]
        created, batches = await asyncio.gather(asyncio.gather(*single), asyncio.gather(*many))
        records = [*created, *(record for batch in batches for record in batch if isinstance(record, LedgerRecord))]
        assert len({record.ledger_id for record in records}) == len(records) == 220


class TestListing:
    async def test_all_ledgers_in_ascending_order(self, factories: Factories) -> None:
        for number in reversed(EDGES):
            await factories[0].ledger_manager.create(unscoped(number), some_metadata())
        assert await all_ids(factories[1]) == EDGES

    async def test_bounds_are_exclusive(self, factories: Factories) -> None:
        for number in EDGES:
            await factories[0].ledger_manager.create(unscoped(number), some_metadata())
        for after in (None, -1, 0, 5, 9_999, 2**31 - 1, 2**63 - 1):
            for before in (None, 0, 1, 10_000, 2**31 - 1, 2**63 - 1):
                expected = [i for i in EDGES if (after is None or i > after) and (before is None or i < before)]
                assert await all_ids(factories[0], start_after=after, end_before=before) == expected

    async def test_no_ledgers_is_an_empty_listing(self, factories: Factories) -> None:
        assert await all_ids(factories[0]) == []

    async def test_removed_ledgers_are_not_listed(self, factories: Factories) -> None:
        for number in (3, 2**40):
            await factories[0].ledger_manager.create(unscoped(number), some_metadata())
            await factories[0].ledger_manager.remove(unscoped(number))
        assert await all_ids(factories[1]) == []

    async def test_ledgers_made_and_removed_meanwhile_do_not_disturb(self, factories: Factories) -> None:
        first, second = factories
        stay = [number * 10_000 for number in range(1, 6)]
        for number in stay:
            await first.ledger_manager.create(unscoped(number), some_metadata())
        seen: list[int] = []
        async for run in first.ledger_manager.ledger_ranges():
            seen += run
            other = unscoped(run[-1] + 5)
            await second.ledger_manager.create(other, some_metadata())
            await second.ledger_manager.remove(other)
        assert [number for number in seen if number in stay] == stay
        assert seen == sorted(set(seen))

    async def test_records_come_in_pages(self, factories: Factories) -> None:
        first, second = factories
        for number in EDGES:
            await first.ledger_manager.create(unscoped(number), some_metadata(n=str(number).encode()))
        for page_size in (0, 1, 4):
            pages = [page async for page in second.ledger_manager.ledger_records(0, 0, EDGES[-1], page_size)]
            assert [record.ledger_id.low for page in pages for record in page] == EDGES[1:-1]
            assert all(record.metadata.custom_metadata["n"] == b"%d" % record.ledger_id.low for record in pages[0])
            assert all(0 < len(page) <= (page_size or len(EDGES)) for page in pages)

    async def test_ledgers_removed_meanwhile_do_not_end_a_listing_of_records(self, factories: Factories) -> None:
        first, second = factories
        for number in range(5):
            await first.ledger_manager.create(unscoped(number), some_metadata())
        seen: list[int] = []
        async for page in first.ledger_manager.ledger_records(page_size=1):
            seen += [record.ledger_id.low for record in page]
            if page[0].ledger_id == unscoped(0):
                for number in (1, 3):
                    await second.ledger_manager.remove(unscoped(number))
        # Who reads ahead may have read them before.
        assert [number for number in seen if number not in (1, 3)] == [0, 2, 4]
        assert seen == sorted(set(seen))


class TestListeners:
    async def test_changes_of_another_process_arrive(self, factories: Factories) -> None:
        first, second = factories
        ledger_id = (await first.ledger_manager.create(None, some_metadata())).ledger_id
        told = Recorder()
        await second.ledger_manager.register_listener(ledger_id, told)
        await told.until_version(0)
        await first.ledger_manager.write(ledger_id, some_metadata(), 0)
        await told.until_version(1)
        await first.ledger_manager.remove(ledger_id)
        await told.until_version(None)
        assert told.versions == [0, 1, None]

    async def test_own_changes_arrive(self, factories: Factories) -> None:
        manager = factories[0].ledger_manager
        ledger_id = (await manager.create(None, some_metadata())).ledger_id
        told = Recorder()
        await manager.register_listener(ledger_id, told)
        await told.until_version(0)
        await manager.write(ledger_id, some_metadata(), 0)
        await told.until_version(1)

    async def test_missing_ledger_is_told_as_gone(self, factories: Factories) -> None:
        told = Recorder()
        await factories[0].ledger_manager.register_listener(unscoped(9), told)
        await told.until_version(None)
        assert told.versions == [None]

    async def test_many_changes_end_with_the_newest(self, factories: Factories) -> None:
        first, second = factories
        ledger_id = (await first.ledger_manager.create(None, some_metadata())).ledger_id
        told = Recorder()
        await second.ledger_manager.register_listener(ledger_id, told)
        for version in range(30):
            await first.ledger_manager.write(ledger_id, some_metadata(), version)
        await told.until_version(30)
        versions = [version for version in told.versions if version is not None]
        assert versions == sorted(set(versions))

    async def test_listener_taken_away_hears_nothing_more(self, factories: Factories) -> None:
        first, second = factories
        ledger_id = (await first.ledger_manager.create(None, some_metadata())).ledger_id
        gone, stays = Recorder(), Recorder()
        for told in (gone, stays):
            await second.ledger_manager.register_listener(ledger_id, told)
            await told.until_version(0)
        await second.ledger_manager.unregister_listener(ledger_id, gone)
        await first.ledger_manager.write(ledger_id, some_metadata(), 0)
        await stays.until_version(1)
        assert gone.versions == [0]


class TestBookies:
    async def test_registration_is_seen_until_taken_back(self, factories: Factories) -> None:
        first, second = factories
        told = Recorder()
        await second.service_discovery.watch_bookies(BookieSet.WRITABLE, told)
        await told.until(lambda bookies: bookies == ())
        info = BookieServiceInfo("b-1", (Endpoint("bookie", "h", 1, BOOKIE_RPC),), {"k": "v"})
        await first.registration_manager.register_bookie(info, read_only=False)
        (bookie,) = await told.until(len)
        assert (bookie.info, bookie.writable, bookie.read_only) == (info, True, False)
        assert await second.service_discovery.bookie_service_info("b-1") == bookie
        await first.registration_manager.unregister_bookie("b-1")
        await told.until(lambda bookies: bookies == ())
        with pytest.raises(BookieHandleNotAvailableException, match="b-1"):
            await second.service_discovery.bookie_service_info("b-1")

    async def test_close_takes_registrations_back(self, factories: Factories, metadata_uri: str) -> None:
        told = Recorder()
        await factories[0].service_discovery.watch_bookies(BookieSet.WRITABLE, told)
        third = create_factory(metadata_uri)
        await third.initialize()
        await third.registration_manager.register_bookie(BookieServiceInfo.legacy("h:1"), read_only=False)
        await told.until(len)
        await third.close()
        await told.until(lambda bookies: bookies == ())

    async def test_bookie_moves_between_the_lists(self, factories: Factories) -> None:
        first, second = factories
        info = BookieServiceInfo.legacy("h:1")
        writable, read_only = Recorder(), Recorder()
        await second.service_discovery.watch_bookies(BookieSet.WRITABLE, writable)
        await second.service_discovery.watch_bookies(BookieSet.READ_ONLY, read_only)
        await first.registration_manager.register_bookie(info, read_only=False)
        await writable.until(len)
        await first.registration_manager.register_bookie(info, read_only=True)
        await read_only.until(len)
        await writable.until(lambda bookies: bookies == ())
        await first.registration_manager.register_bookie(info, read_only=False)
        await writable.until(len)
        await read_only.until(lambda bookies: bookies == ())

    async def test_bookies_known_by_cookie_only(self, factories: Factories) -> None:
        first, second = factories
        await first.registration_manager.write_cookie("h:2", b"c", None)
        await first.registration_manager.register_bookie(BookieServiceInfo.legacy("h:1"), read_only=False)
        found = await second.service_discovery.bookies(BookieSet.ALL)
        assert [(b.bookie_id, b.writable, b.read_only) for b in found] == [("h:1", True, False), ("h:2", False, False)]
        assert [b.bookie_id for b in await second.service_discovery.bookies(BookieSet.WRITABLE)] == ["h:1"]

    async def test_watch_that_was_ended_is_silent(self, factories: Factories) -> None:
        first, second = factories
        ended, stays = Recorder(), Recorder()
        end = await second.service_discovery.watch_bookies(BookieSet.ALL, ended)
        await second.service_discovery.watch_bookies(BookieSet.ALL, stays)
        await ended.until(lambda bookies: bookies == ())
        end()
        await first.registration_manager.write_cookie("h:2", b"c", None)
        await stays.until(len)
        assert ended.told == [()]

    async def test_cookie_versions(self, factories: Factories) -> None:
        first, second = (factory.registration_manager for factory in factories)
        assert await first.read_cookie("h:1") is None
        for version in (0, 3, -1):
            with pytest.raises(MetadataVersionException):
                await first.write_cookie("h:1", b"x", version)
        await first.write_cookie("h:1", b"one", None)
        with pytest.raises(MetadataVersionException):
            await second.write_cookie("h:1", b"x", None)
        await second.write_cookie("h:1", b"two", 0)
        cookie = await first.read_cookie("h:1")
        assert cookie is not None
        assert (cookie.value, cookie.version) == (b"two", 1)
        for version in (0, -1):
            with pytest.raises(MetadataVersionException):
                await first.remove_cookie("h:1", version)
        await first.remove_cookie("h:1", 1)
        assert await second.read_cookie("h:1") is None


class TestCluster:
    async def test_factories_see_one_cluster(self, factories: Factories) -> None:
        infos = [await factory.service_discovery.cluster_info() for factory in factories]
        assert infos[0] == infos[1]
        assert len(infos[0].instance_id) == 36
        assert await factories[0].registration_manager.cluster_instance_id() == infos[0].instance_id
        assert all(factory.connected for factory in factories)

    async def test_revision_grows_with_every_change(self, factories: Factories) -> None:
        first, second = factories
        seen = [await first.revision()]
        for _ in range(3):
            await first.ledger_manager.create(None, some_metadata())
            seen.append(await first.revision())
        assert seen == sorted(set(seen))
        await second.catch_up(seen[-1])
        assert await second.revision() >= seen[-1]

    async def test_nothing_is_older_than_a_catch_up_with_everything(self, factories: Factories) -> None:
        """Whoever asks has seen nothing of these changes."""
        first, second = factories
        record = await first.ledger_manager.create(None, some_metadata())
        changed = await first.ledger_manager.write(record.ledger_id, some_metadata(n=b"1"), 0)
        before = await first.revision()
        await second.catch_up(None)
        assert await second.revision() >= before
        assert await second.ledger_manager.read(record.ledger_id) == changed

    async def test_many_factories_may_initialise_at_once(self, metadata_uri: str) -> None:
        made = [create_factory(metadata_uri) for _ in range(6)]
        await asyncio.gather(*(factory.initialize() for factory in made))
        ids = {(await factory.service_discovery.cluster_info()).instance_id for factory in made}
        assert len(ids) == 1
        for factory in made:
            await factory.close()


@pytest.mark.parametrize("scope", [1, -1, 2**63 - 1])
async def test_embedded_store_keeps_scopes_apart(tmp_path: object, scope: int) -> None:
    factory = create_factory(made(f"sqlite://{tmp_path}/m.db"))
    await factory.initialize()
    manager = factory.ledger_manager
    for number in (3, -4):
        await manager.create(LedgerId(scope, number), some_metadata())
    await manager.create(unscoped(3), replace(some_metadata(), custom_metadata={"a": b"b"}))
    assert await all_ids(factory) == [3]
    assert await all_ids(factory, scope_id=scope) == [3, -4]
    assert (await manager.read(unscoped(3))).metadata.custom_metadata == {"a": b"b"}
    assert (await manager.read(LedgerId(scope, 3))).metadata.custom_metadata == {}
    await factory.close()
