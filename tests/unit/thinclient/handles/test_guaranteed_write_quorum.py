"""Ledgers with a guaranteed write quorum: what the application, readers, bookies and metadata see of it."""

import asyncio

import pytest

from bookgate import LedgerOptions, WriteHandle
from bookgate.ledger.errors import (
    IncorrectParameterException,
    LedgerRecoveryException,
    NotEnoughBookiesException,
    WriteException,
)
from bookgate.ledger.metadata import GUARANTEED_KEY
from bookgate.ledger.wire.messages import AddRequest
from bookgate.thinclient.handles.guaranteed_write_handle import GuaranteedWriteHandle
from bookgate.thinclient.handles.record_writer import RecordWriter
from tests.unit.thinclient.fakes import FakeBookie, FakeCluster, fake_cluster, payloads
from tests.unit.thinclient.inside import window_of
from tests.unit.virtual_time import until

pytestmark = pytest.mark.usefixtures("virtual_time")


def numbered(first: int, last: int) -> list[bytes]:
    return [b"%d" % number for number in range(first, last)]


async def guaranteed(cluster: FakeCluster, **settings: object) -> WriteHandle:
    return await cluster.client(**settings).create_ledger(password=b"planted-p", guaranteed_write_quorum=True)


async def closed(ledger: WriteHandle) -> None:
    """Within virtual time that is enough for every retry."""
    async with asyncio.timeout(120):
        await ledger.close()


def held_by(bookie: FakeBookie) -> set[int]:
    return set(bookie.ledgers[0].entries) if bookie.ledgers else set()


async def test_an_append_returns_at_ack_quorum_and_readers_see_it_at_write_quorum() -> None:
    async with fake_cluster(3) as cluster:
        ledger = await guaranteed(cluster)
        slow = cluster.ensemble(ledger.metadata)[2]
        slow.holding = True
        assert await ledger.append(b"0") == 0
        assert (ledger.last_add_confirmed, ledger.length) == (-1, 0)
        assert await ledger.append_all(numbered(1, 10)) == 9
        slow.let_go()
        await until(lambda: ledger.last_add_confirmed == 9)
        assert window_of(ledger).retained_entries == 0
        await ledger.append(b"10")
        sent = [request for request in slow.requests if isinstance(request, AddRequest)]
        assert ledger.metadata.custom_metadata == {GUARANTEED_KEY: b"true"}
        await closed(ledger)
        assert len(sent) == 11
        assert all(held_by(bookie) == set(range(11)) for bookie in cluster.bookies)
        reader = await cluster.client().open_ledger(ledger.ledger_id, b"planted-p")
        assert await payloads(reader) == numbered(0, 11)


async def test_close_waits_for_the_whole_write_set() -> None:
    async with fake_cluster(3) as cluster:
        ledger = await guaranteed(cluster)
        slow = cluster.ensemble(ledger.metadata)[0]
        slow.holding = True
        await ledger.append_all(numbered(0, 5))
        closing = asyncio.ensure_future(ledger.close())
        await asyncio.sleep(1)  # virtual
        assert not closing.done()
        assert not cluster.metadata.records[ledger.ledger_id].metadata.is_closed
        slow.let_go()
        await closing
        assert cluster.metadata.records[ledger.ledger_id].metadata.last_entry_id == 4


async def test_a_failed_bookie_is_replaced_from_the_first_entry_that_it_lacks() -> None:
    async with fake_cluster(4) as cluster:
        ledger = await guaranteed(cluster)
        await ledger.append_all(numbered(0, 5))
        await until(lambda: ledger.last_add_confirmed == 4)
        lost = cluster.ensemble(ledger.metadata)[1]
        lost.silent = True
        assert await ledger.append_all(numbered(5, 20)) == 19  # an ack quorum is left
        assert ledger.last_add_confirmed == 4
        await closed(ledger)
        first, second = ledger.metadata.fragments
        assert (second.first_entry_id, ledger.metadata.last_entry_id) == (5, 19)
        assert lost.bookie_id in first.ensemble
        assert lost.bookie_id not in second.ensemble
        for bookie_id in second.ensemble:
            assert held_by(cluster.bookie(bookie_id)) >= set(range(5, 20))


async def test_without_a_replacement_the_ledger_goes_on_and_close_waits_until_the_bookie_is_back() -> None:
    async with fake_cluster(3) as cluster:
        ledger = await guaranteed(cluster, failed_bookie_interval_seconds=5.0)
        lost = cluster.ensemble(ledger.metadata)[2]
        await lost.stop()
        assert await ledger.append_all(numbered(0, 10)) == 9
        assert ledger.last_add_confirmed == -1
        closing = asyncio.ensure_future(ledger.close())
        await asyncio.sleep(30)
        assert not closing.done()
        assert ledger.failed_bookies.keys() == {lost.bookie_id}
        await lost.start()
        await closing
        assert held_by(lost) == set(range(10))
        assert ledger.metadata.last_entry_id == 9


async def test_a_bookie_that_holds_what_another_lacks_is_not_replaced_before_that_has_it() -> None:
    """G3: b0 and b1 have the entry, b2 does not; b2 and b0 fail, and there are two bookies to replace them."""
    async with fake_cluster(5) as cluster:
        ledger = await guaranteed(cluster, add_timeout_seconds=1.0)
        pinned, _, lacking = cluster.ensemble(ledger.metadata)
        lacking.silent = True
        await ledger.append(b"0")
        pinned.silent = True
        await ledger.append_all(numbered(1, 3))
        await closed(ledger)
        history = [fragment.ensemble for fragment in ledger.metadata.fragments]
        assert pinned.bookie_id not in history[-1]
        assert lacking.bookie_id not in history[-1]
        for entry_id in range(3):
            ensemble = ledger.metadata.fragment_at(entry_id).ensemble
            assert all(entry_id in held_by(cluster.bookie(bookie_id)) for bookie_id in ensemble), entry_id


async def test_a_bookie_that_holds_one_entry_and_lacks_another_is_written_to_again() -> None:
    """Two such: G3 forbids to replace either, though there are bookies that could take their places."""
    async with fake_cluster(5) as cluster:
        ledger = await guaranteed(cluster, add_timeout_seconds=1.0)
        first, _, last = cluster.ensemble(ledger.metadata)
        last.silent = True
        await ledger.append(b"0")
        last.silent, first.silent = False, True
        await ledger.append(b"1")
        first.silent = False
        await closed(ledger)
        assert held_by(first) == held_by(last) == {0, 1}
        assert [fragment.first_entry_id for fragment in ledger.metadata.fragments] == [0]


async def test_a_bookie_that_is_gone_with_what_enough_others_hold_is_replaced() -> None:
    """It lacks an entry, so the LAC waits for it, and holds the next one, which is on its whole write set."""
    async with fake_cluster(4) as cluster:
        ledger = await guaranteed(cluster, add_timeout_seconds=1.0)
        gone = cluster.ensemble(ledger.metadata)[2]
        gone.silent = True
        await ledger.append(b"0")
        gone.silent = False
        await ledger.append(b"1")
        await until(lambda: held_by(gone) == {1})
        await gone.stop()
        await closed(ledger)
        (fragment,) = ledger.metadata.fragments
        assert gone.bookie_id not in fragment.ensemble
        for bookie_id in fragment.ensemble:
            assert held_by(cluster.bookie(bookie_id)) == {0, 1}


async def test_appends_wait_when_too_much_is_not_replicated() -> None:
    async with fake_cluster(3) as cluster:
        ledger = await guaranteed(cluster, max_in_flight_entries=10)
        slow = cluster.ensemble(ledger.metadata)[1]
        slow.holding = True
        appends = asyncio.ensure_future(ledger.append_all(numbered(0, 100)))
        await asyncio.sleep(1)
        assert window_of(ledger).retained_entries == 20
        slow.let_go()
        assert await appends == 99
        await closed(ledger)
        assert window_of(ledger).retained_entries == 0


async def test_a_writer_that_has_ended_does_not_cut_off_what_it_acknowledged() -> None:
    async with fake_cluster(3) as cluster:
        ledger = await guaranteed(cluster, require_replacement=True)
        lost = cluster.ensemble(ledger.metadata)[0]
        lost.silent = True
        await ledger.append_all(numbered(0, 4))
        await until(lambda: bool(ledger.failed_bookies))
        with pytest.raises(NotEnoughBookiesException):
            await closed(ledger)
        lost.silent = False
        reader = await cluster.client().open_ledger(ledger.ledger_id, b"planted-p", recovery=True)
        assert reader.metadata.last_entry_id == 3
        assert all(held_by(bookie) == set(range(4)) for bookie in cluster.bookies)


async def test_recovery_waits_for_the_whole_write_set_and_says_why_it_fails() -> None:
    async with fake_cluster(3) as cluster:
        ledger = await guaranteed(cluster)
        lost = cluster.ensemble(ledger.metadata)[0]
        lost.silent = True
        await ledger.append_all(numbered(0, 4))
        client = cluster.client(read_timeout_seconds=1.0, add_timeout_seconds=1.0)
        with pytest.raises(LedgerRecoveryException, match="3 of 3 bookies") as caught:
            await client.open_ledger(ledger.ledger_id, b"planted-p", recovery=True)
        assert "IN_RECOVERY" in str(caught.value)
        lost.silent = False
        reader = await client.open_ledger(ledger.ledger_id, b"planted-p", recovery=True)
        assert await payloads(reader) == numbered(0, 4)
        assert all(held_by(bookie) == set(range(4)) for bookie in cluster.bookies)


async def test_a_ledger_that_another_handle_writes_keeps_its_guarantee() -> None:
    async with fake_cluster(3) as cluster:
        created = await guaranteed(cluster)
        client = cluster.client()
        ledger = await client.reopen_empty_ledger(created.ledger_id, b"planted-p")
        assert isinstance(ledger, GuaranteedWriteHandle)
        await ledger.append(b"0")
        await closed(ledger)


async def test_what_does_not_go_with_it_is_said_before_a_ledger_is_created() -> None:
    async with fake_cluster(3) as cluster:
        for wrong in ({"guaranteed_write_quorum": True}, {"custom_metadata": {GUARANTEED_KEY: b"true"}}):
            with pytest.raises(IncorrectParameterException, match="guaranteed_write_quorum"):
                LedgerOptions(deferred_sync=True, **wrong)
        with pytest.raises(IncorrectParameterException, match="entry ids of your own"):
            await cluster.client().create_advanced_ledger(guaranteed_write_quorum=True)
        assert not cluster.metadata.records


async def test_force_does_not_move_the_lac() -> None:
    async with fake_cluster(3) as cluster:
        ledger = await guaranteed(cluster)
        slow = cluster.ensemble(ledger.metadata)[2]
        await ledger.append(b"0")
        await until(lambda: ledger.last_add_confirmed == 0)
        slow.holding = True
        await ledger.append(b"1")
        forcing = asyncio.ensure_future(ledger.force())
        await asyncio.sleep(0.1)
        assert ledger.last_add_confirmed == 0
        slow.let_go()
        await forcing
        await closed(ledger)


@pytest.mark.parametrize("records", [False, True])
@pytest.mark.parametrize("timed_out", [False, True])
async def test_an_error_of_the_application_does_not_wait_for_a_bookie_that_is_gone(
    records: bool, timed_out: bool
) -> None:
    async with fake_cluster(3) as cluster:
        client = cluster.client(add_timeout_seconds=1, max_in_flight_entries=2)
        options = LedgerOptions(3, 3, 2, password=b"planted-p", guaranteed_write_quorum=True)
        opening = (
            client.create_record_ledger(options, batch_bytes=1) if records else client.create_ledger(options=options)
        )

        async def application() -> None:
            async with asyncio.timeout(30), opening as ledger:
                await ledger.append(b"a")
                handle = ledger.handle if isinstance(ledger, RecordWriter) else ledger
                handles.append(handle)
                await cluster.ensemble(handle.metadata)[2].stop()
                await ledger.append(b"b")
                if timed_out:
                    while True:  # until so much waits for the third bookie that appends wait
                        await ledger.append(b"c")
                raise ValueError("of the application")

        handles: list[WriteHandle] = []
        async with asyncio.timeout(60):
            with pytest.raises(TimeoutError if timed_out else ValueError):
                await application()
        (handle,) = handles
        assert not cluster.metadata.records[handle.ledger_id].metadata.is_closed
        with pytest.raises(WriteException, match="not closed after an error"):
            await handle.append(b"d")
        with pytest.raises(WriteException, match="not closed after an error"):
            await handle.close()


async def test_an_error_of_the_application_waits_for_the_bookie_in_the_place_of_a_lost_one() -> None:
    async with fake_cluster(4) as cluster:

        async def application(ledger: WriteHandle) -> None:
            async with ledger:
                await ledger.append(b"a")
                cluster.ensemble(ledger.metadata)[2].silent = True
                await ledger.append(b"b")
                raise ValueError("of the application")

        ledger = await cluster.client().create_ledger(3, 3, 2, password=b"planted-p", guaranteed_write_quorum=True)
        with pytest.raises(ValueError, match="of the application"):
            await application(ledger)
        stored = cluster.metadata.records[ledger.ledger_id].metadata
        assert stored.last_entry_id == 1
        assert all(1 in held_by(bookie) for bookie in cluster.ensemble(stored))
