"""Bookies that fail under a writer are replaced: what the application, the metadata and the bookies see of it."""

import asyncio
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from bookgate import WriteHandle
from bookgate.ledger.errors import (
    ClientClosedException,
    LedgerClosedException,
    LedgerFencedException,
    MetaStoreException,
    NotEnoughBookiesException,
    UnexpectedConditionException,
    UnknownOutcomeException,
    WriteException,
)
from bookgate.ledger.ledger_id import LedgerId
from bookgate.ledger.metadata import Fragment, LedgerMetadata, LedgerState
from bookgate.ledger.metadata_store import BookieSet, RegisteredBookie
from bookgate.ledger.wire.messages import AddRequest, Status
from tests.unit.thinclient.fakes import FakeCluster, fake_cluster, ledger_of, payloads
from tests.unit.thinclient.inside import window_of, writer_of
from tests.unit.virtual_time import until

pytestmark = pytest.mark.usefixtures("virtual_time")


def numbered(first: int, last: int) -> Iterator[bytes]:
    return (b"%d" % i for i in range(first, last))


def stored(cluster: FakeCluster, ledger: WriteHandle) -> LedgerMetadata:
    return cluster.metadata.records[ledger.ledger_id].metadata


async def changed(ledger: WriteHandle, fragments: int = 2) -> None:
    await until(lambda: len(ledger.metadata.fragments) >= fragments)


async def append_much(ledger: WriteHandle) -> None:
    """Appends until a failed bookie must have been noticed, also one that failed for complete entries only."""
    await asyncio.gather(*(ledger.append_nowait(payload) for payload in numbered(5, 100)))
    for _ in range(3):
        await ledger.append(b"x")


@pytest.mark.parametrize("delayed", [False, True])
async def test_a_lost_bookie_is_replaced_and_everything_is_read_back_over_the_fragments(delayed: bool) -> None:
    async with fake_cluster(5) as cluster:
        ledger = await ledger_of(cluster, 100, delay_ensemble_change=delayed)
        lost = cluster.ensemble(ledger.metadata)[:2]
        for bookie in lost:
            await bookie.stop()
        await ledger.append_all(numbered(100, 200))
        first, second = ledger.metadata.fragments
        assert second.first_entry_id == 100
        assert not {bookie.bookie_id for bookie in lost} & set(second.ensemble)
        assert len(set(second.ensemble)) == 3
        assert second.ensemble[2] == first.ensemble[2]
        assert not ledger.failed_bookies
        await ledger.close()
        assert stored(cluster, ledger).fragments == (first, second)
        for bookie in lost:
            await bookie.start()
        reader = await cluster.client().open_ledger(ledger.ledger_id, b"planted-p")
        assert await payloads(reader) == list(numbered(0, 200))
        for bookie_id in second.ensemble:
            assert set(range(100, 200)) <= set(cluster.bookie(bookie_id).ledgers[0].entries)


async def test_with_delay_a_failure_that_the_ack_quorum_survives_changes_nothing() -> None:
    async with fake_cluster(4) as cluster:
        ledger = await ledger_of(cluster, 10, delay_ensemble_change=True)
        await cluster.ensemble(ledger.metadata)[0].stop()
        await ledger.append_all(numbered(10, 50))
        assert len(ledger.metadata.fragments) == 1


async def test_a_read_only_bookie_is_replaced_at_once_though_changes_are_delayed() -> None:
    async with fake_cluster(4) as cluster:
        ledger = await ledger_of(cluster, 10, delay_ensemble_change=True)
        cluster.ensemble(ledger.metadata)[1].override = lambda request: Status.EREADONLY
        appends = [ledger.append_nowait(payload) for payload in numbered(10, 50)]
        await changed(ledger)
        assert await asyncio.gather(*appends) == list(range(10, 50))


async def test_the_packet_sent_to_the_new_bookie_is_the_same() -> None:
    async with fake_cluster(4) as cluster:
        ledger = await ledger_of(cluster, 3)
        broken, healthy, _ = cluster.ensemble(ledger.metadata)
        broken.override = lambda request: Status.EIO if isinstance(request, AddRequest) else None
        await asyncio.gather(*(ledger.append_nowait(payload) for payload in numbered(3, 40)))
        await ledger.append(b"end")
        new = cluster.ensemble(ledger.metadata)[0]
        ids = set(range(ledger.metadata.last_fragment.first_entry_id, 41))
        await until(lambda: set(new.ledgers[0].entries) == ids == ids & set(healthy.ledgers[0].entries))
        entries = new.ledgers[0].entries
        assert all(healthy.ledgers[0].entries[entry_id] == packet for entry_id, packet in entries.items())


async def test_nothing_is_acknowledged_while_a_change_runs() -> None:
    async with fake_cluster(5) as cluster:
        ledger = await ledger_of(cluster, 1)
        slow, failing, third = cluster.ensemble(ledger.metadata)
        slow.holding = True
        before_write, gate = cluster.metadata.write, asyncio.Event()

        async def write(ledger_id: LedgerId, metadata: LedgerMetadata, version: int) -> object:
            await gate.wait()
            return await before_write(ledger_id, metadata, version)

        cluster.metadata.write = write  # type: ignore[method-assign,assignment]
        failing.override = lambda request: Status.EIO
        append = ledger.append_nowait(b"1")
        await third.until_requested(2, AddRequest)
        await until(lambda: bool(ledger.failed_bookies))
        slow.let_go()
        await slow.until_requested(2, AddRequest)
        # Two of three have it now; the change has not ended.
        await until(lambda: not window_of(ledger).retained_entries)
        assert not append.done()
        gate.set()
        assert await append == 1
        assert [fragment.first_entry_id for fragment in ledger.metadata.fragments] == [0, 1]


async def test_a_replacement_that_fails_too_is_replaced_in_the_same_fragment() -> None:
    async with fake_cluster(6) as cluster:
        ledger = await ledger_of(cluster, 5)
        spare = [b for b in cluster.bookies if b not in cluster.ensemble(ledger.metadata)]
        for bookie in spare[:2]:
            await bookie.stop()
        for bookie in cluster.ensemble(ledger.metadata)[:2]:
            await bookie.stop()
        assert await ledger.append(b"x") == 5
        await ledger.close()
        assert [fragment.first_entry_id for fragment in stored(cluster, ledger).fragments] == [0, 5]


async def test_not_enough_bookies_name_what_each_answered_and_the_ledger_can_be_recovered() -> None:
    async with fake_cluster(4) as cluster:
        ledger = await ledger_of(cluster, 5)
        for bookie in cluster.bookies:
            bookie.override = lambda request: Status.EIO if isinstance(request, AddRequest) else None
        with pytest.raises(NotEnoughBookiesException) as caught:
            await ledger.append(b"x")
        assert caught.value.code == -6
        assert caught.value.ledger_id == ledger.ledger_id
        assert all(isinstance(error, WriteException) for error in caught.value.bookies.values())
        for bookie in cluster.bookies:
            bookie.override = lambda request: None
        reader = await cluster.client().open_ledger(ledger.ledger_id, b"planted-p", recovery=True)
        assert (await payloads(reader))[:5] == list(numbered(0, 5))


async def test_without_a_bookie_to_take_its_place_a_failed_one_ends_the_ledger_if_replacement_is_required() -> None:
    async with fake_cluster(3) as cluster:
        ledger = await ledger_of(cluster, 5, require_replacement=True)
        await cluster.bookies[0].stop()
        with pytest.raises(NotEnoughBookiesException, match="none to replace"):
            await append_much(ledger)
        await ledger.close()


async def test_a_bookie_that_comes_back_is_written_to_again() -> None:
    async with fake_cluster(3) as cluster:
        ledger = await ledger_of(cluster, 5, failed_bookie_interval_seconds=0.05)
        lost = cluster.bookies[0]
        await lost.stop()
        await ledger.append_all(numbered(5, 10))
        assert ledger.failed_bookies.keys() == {lost.bookie_id}
        await lost.start()
        count = len(lost.requests)
        async with asyncio.timeout(10):
            while len(lost.requests) == count:
                await ledger.append(b"x")
                await asyncio.sleep(0.01)
        assert not ledger.failed_bookies


async def test_a_bookie_that_joins_later_takes_the_place_of_the_lost_one() -> None:
    async with fake_cluster(4) as cluster:
        newcomer = cluster.discovery.registered.pop()
        ledger = await ledger_of(cluster, 5, failed_bookie_interval_seconds=0.05)
        await cluster.bookies[0].stop()
        await ledger.append_all(numbered(5, 10))
        cluster.discovery.registered.append(newcomer)
        await changed(ledger)
        await ledger.append_all(numbered(10, 20))
        assert newcomer.bookie_id in ledger.metadata.last_fragment.ensemble
        await ledger.close()
        reader = await cluster.client().open_ledger(ledger.ledger_id, b"planted-p")
        assert await payloads(reader) == list(numbered(0, 20))


async def test_a_bookie_that_another_client_has_put_in_twice_ends_the_writer_at_a_change() -> None:
    async with fake_cluster(5) as cluster:
        ledger = await ledger_of(cluster, 5)
        first, second, third = ledger.metadata.last_fragment.ensemble
        await cluster.bookie(second).stop()
        cluster.metadata.change(ledger.ledger_id, fragments=(Fragment(0, (first, second, first)),))
        with pytest.raises(UnexpectedConditionException, match="a bookie has joined that was there"):
            await append_much(ledger)
        assert third not in stored(cluster, ledger).last_fragment.ensemble


@pytest.mark.parametrize(
    ("changes", "error"),
    [
        ({"state": LedgerState.IN_RECOVERY}, LedgerFencedException),
        ({"state": LedgerState.CLOSED, "last_entry_id": 4, "length": 5}, LedgerClosedException),
    ],
)
async def test_a_change_that_finds_another_client_ends_the_writer(
    changes: dict[str, object], error: type[Exception]
) -> None:
    async with fake_cluster(4) as cluster:
        ledger = await ledger_of(cluster, 5)
        cluster.metadata.change(ledger.ledger_id, **changes)
        await cluster.ensemble(ledger.metadata)[0].stop()
        with pytest.raises(error):
            await append_much(ledger)
        assert len(stored(cluster, ledger).fragments) == 1
        assert stored(cluster, ledger).state is changes["state"]


async def test_a_change_stands_though_other_metadata_changed_and_though_its_answer_was_lost() -> None:
    async with fake_cluster(4) as cluster:
        ledger = await ledger_of(cluster, 5)
        cluster.metadata.change(ledger.ledger_id, custom_metadata={"by": b"another"})
        lost: list[object] = []
        write = cluster.metadata.write

        async def write_and_lose(ledger_id: LedgerId, metadata: LedgerMetadata, version: int) -> object:
            record = await write(ledger_id, metadata, version)
            if lost:
                return record
            lost.append(record)
            raise UnknownOutcomeException("the answer was lost")

        cluster.metadata.write = write_and_lose  # type: ignore[method-assign,assignment]
        await cluster.ensemble(ledger.metadata)[0].stop()
        await ledger.append_all(numbered(5, 50))
        await ledger.append(b"x")
        assert len(lost) == 1
        assert len(stored(cluster, ledger).fragments) == 2
        assert stored(cluster, ledger).custom_metadata == {"by": b"another"}


async def test_appends_wait_while_the_metadata_is_out_of_reach_and_end_within_the_bound() -> None:
    async with fake_cluster(4) as cluster:
        ledger = await ledger_of(cluster, 5, ensemble_change_timeout_seconds=0.5)
        reachable = False

        def unreachable(*_: object) -> None:
            if not reachable:
                raise MetaStoreException("no gateway answers")

        cluster.metadata.before_write = unreachable
        await cluster.ensemble(ledger.metadata)[0].stop()
        with pytest.raises(MetaStoreException, match=r"within 0\.5 s \(no gateway answers\)"):
            await append_much(ledger)
        reachable = True
        await ledger.close()
        assert stored(cluster, ledger).last_entry_id >= 4


async def test_a_metadata_store_that_comes_back_in_time_is_not_noticed() -> None:
    async with fake_cluster(4) as cluster:
        ledger = await ledger_of(cluster, 5)
        attempts: list[object] = []

        def unreachable_twice(*_: object) -> None:
            attempts.append(1)
            if len(attempts) <= 2:
                raise MetaStoreException("no gateway answers")

        cluster.metadata.before_write = unreachable_twice
        await cluster.ensemble(ledger.metadata)[0].stop()
        await ledger.append_all(numbered(5, 50))
        await changed(ledger)
        assert len(attempts) == 3


async def test_no_more_changes_than_are_allowed() -> None:
    async with fake_cluster(6) as cluster:
        ledger = await ledger_of(cluster, 5, max_ensemble_changes=1)
        await cluster.ensemble(ledger.metadata)[0].stop()
        await append_much(ledger)
        await changed(ledger)
        await cluster.ensemble(ledger.metadata)[0].stop()
        with pytest.raises(WriteException, match="the most that is allowed"):
            await append_much(ledger)


async def test_a_client_closed_during_a_change_fails_what_waits_and_leaves_no_task() -> None:
    before = asyncio.all_tasks()
    async with fake_cluster(4) as cluster:
        ledger = await ledger_of(cluster, 5)

        async def never(*_: object) -> object:
            return await asyncio.get_running_loop().create_future()

        cluster.metadata.write = never  # type: ignore[method-assign,assignment]
        for bookie in cluster.ensemble(ledger.metadata):
            await bookie.stop()
        append = ledger.append_nowait(b"x")
        await until(lambda: bool(ledger.failed_bookies))
        await cluster.clients[0].close()
        with pytest.raises(ClientClosedException):
            await append
    await asyncio.sleep(0)
    assert asyncio.all_tasks() == before


async def test_room_is_kept_and_given_back_over_changes() -> None:
    async with fake_cluster(5) as cluster:
        ledger = await ledger_of(cluster, 5, max_in_flight_entries=8)
        for _ in range(2):
            await cluster.ensemble(ledger.metadata)[0].stop()
            await asyncio.gather(*(ledger.append(b"x") for _ in range(100)))
        assert ledger.last_add_confirmed == 204
        await ledger.close()
        window = window_of(ledger)
        await until(lambda: not window.retained_entries)
        assert (window.entries, window.bytes, window.retained_bytes) == (0, 0, 0)


async def test_recovery_replaces_a_dead_member_and_stores_the_fragment_when_it_closes() -> None:
    async with fake_cluster(4) as cluster:
        ledger = await cluster.client().create_ledger(ack_quorum_size=3, password=b"planted-p")
        await ledger.append_all(numbered(0, 20))
        lost = cluster.ensemble(ledger.metadata)[1]
        await lost.stop()
        reader = await cluster.client().open_ledger(ledger.ledger_id, b"planted-p", recovery=True)
        assert await payloads(reader) == list(numbered(0, 20))
        fragment = stored(cluster, ledger).last_fragment
        assert lost.bookie_id not in fragment.ensemble
        for bookie_id in fragment.ensemble:
            assert set(range(fragment.first_entry_id, 20)) <= set(cluster.bookie(bookie_id).ledgers[0].entries)


async def test_a_bookie_that_fails_while_another_is_looked_for_is_dealt_with() -> None:
    async with fake_cluster(3) as cluster:
        ledger = await ledger_of(cluster, 5, failed_bookie_interval_seconds=0.01)
        first, second, _ = cluster.ensemble(ledger.metadata)
        asked, go_on = asyncio.Event(), asyncio.Event()
        bookies = cluster.discovery.bookies

        async def slow(bookie_set: BookieSet) -> Sequence[RegisteredBookie]:
            if ledger._changer._retry is None and ledger.failed_bookies and not writer_of(ledger).changing:
                asked.set()
                await go_on.wait()
            return await bookies(bookie_set)

        cluster.discovery.bookies = slow  # type: ignore[method-assign]
        await first.stop()
        await append_much(ledger)
        async with asyncio.timeout(10):
            await asked.wait()
        second.holding = True
        append = ledger.append_nowait(b"x")
        await second.until_requested(1)
        await second.stop()
        await until(lambda: writer_of(ledger).changing)
        go_on.set()
        with pytest.raises(NotEnoughBookiesException):
            async with asyncio.timeout(10):
                await append


async def test_recovery_ends_though_the_placement_policy_is_broken() -> None:
    async with fake_cluster(4) as cluster:
        ledger = await ledger_of(cluster, 5)
        await cluster.ensemble(ledger.metadata)[1].stop()

        async def broken(*_: object) -> str:
            raise ZeroDivisionError

        client = cluster.client()
        client._context.placement.replace_bookie = broken  # type: ignore[method-assign,assignment]
        async with asyncio.timeout(10):
            reader = await client.open_ledger(ledger.ledger_id, b"planted-p", recovery=True)
        assert await payloads(reader) == list(numbered(0, 5))


async def test_a_writer_goes_on_with_the_racks_it_knows_though_their_file_is_no_mapping_any_more(
    tmp_path: Path,
) -> None:
    file = tmp_path / "racks.toml"
    file.write_text('[racks]\n"127.0.0.1" = "/r1"\n')
    async with fake_cluster(4) as cluster:
        ledger = await ledger_of(cluster, 5, rack_mapping=file, placement_policy="rackaware")
        (tmp_path / "new").write_text('[[racks]]\n"127.0.0.1" = "/r1"\n')
        (tmp_path / "new").rename(file)
        lost = cluster.ensemble(ledger.metadata)[0]
        await lost.stop()
        await append_much(ledger)
        await until(lambda: lost.bookie_id not in stored(cluster, ledger).last_fragment.ensemble)
        await ledger.append(b"x")
