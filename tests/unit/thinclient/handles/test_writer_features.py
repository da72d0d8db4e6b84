"""Advanced ledgers, deferred sync and force, explicit LAC, quorum timeout, quarantine, striping."""

import asyncio

import pytest

from bookgate.ledger.digest import digest_for
from bookgate.ledger.entry import decode_entry, decode_lac
from bookgate.ledger.errors import (
    AddEntryQuorumTimeoutException,
    BKException,
    BookieHandleNotAvailableException,
    DuplicateEntryIdException,
    IncorrectParameterException,
    LedgerClosedException,
    NotEnoughBookiesException,
    TimeoutException,
    WriteException,
)
from bookgate.ledger.metadata import DigestType
from bookgate.ledger.wire.messages import AddRequest, ForceLedgerRequest, Request, Status, WriteLacRequest
from bookgate.thinclient.bookies.connection import BookieConnection
from bookgate.thinclient.core.explicit_lac import ExplicitLacRule
from bookgate.thinclient.placement.quarantine import BookieHealth
from tests.unit.thinclient.fakes import FakeBookie, fake_cluster, payloads
from tests.unit.thinclient.inside import pool_of, window_of, writer_of
from tests.unit.virtual_time import until

pytestmark = pytest.mark.usefixtures("virtual_time")


# Advanced ledgers


async def test_ids_in_any_order_are_acknowledged_in_theirs() -> None:
    async with fake_cluster() as cluster:
        ledger = await cluster.client().create_advanced_ledger(password=b"planted-p", ledger_id=77)
        acknowledged: list[int] = []
        appends = {}
        for entry_id in (2, 4, 1, 3):
            appends[entry_id] = ledger.append_nowait(entry_id, b"%d" % entry_id)
            appends[entry_id].add_done_callback(lambda done: acknowledged.append(done.result()))
        for bookie in cluster.bookies:
            await bookie.until_requested(4, AddRequest)
        assert ledger.last_add_confirmed == -1
        assert await ledger.append(0, b"0") == 0
        await until(lambda: len(acknowledged) == len(appends))
        assert acknowledged == [1, 2, 3, 4]
        for used in (0, 3):
            with pytest.raises(DuplicateEntryIdException, match=f"entry {used} of ledger 77"):
                await ledger.append(used, b"again")
        with pytest.raises(IncorrectParameterException):
            ledger.append_nowait(-1, b"x")
        await ledger.close()
        reader = await cluster.client().open_ledger(77, b"planted-p")
        assert await payloads(reader) == [b"%d" % i for i in range(5)]
        assert reader.length == 5


async def test_close_ends_an_advanced_ledger_before_the_first_missing_entry() -> None:
    async with fake_cluster() as cluster:
        ledger = await cluster.client().create_advanced_ledger()
        first, third = ledger.append_nowait(0, b"first"), ledger.append_nowait(2, b"third")
        await ledger.close()
        assert await first == 0
        with pytest.raises(LedgerClosedException, match="missing"):
            await third
        assert (ledger.metadata.last_entry_id, ledger.metadata.length) == (0, 5)


async def test_the_missing_entry_finds_room_though_those_that_wait_for_it_have_taken_all() -> None:
    async with fake_cluster() as cluster:
        ledger = await cluster.client(max_in_flight_entries=3).create_advanced_ledger()
        appends = [asyncio.ensure_future(ledger.append(entry_id, b"x")) for entry_id in range(9, -1, -1)]
        async with asyncio.timeout(10):
            assert await asyncio.gather(*appends) == list(range(9, -1, -1))
        assert window_of(ledger).entries == 0


async def test_of_two_appends_of_one_id_that_wait_for_room_one_fails_and_nobody_else() -> None:
    async with fake_cluster() as cluster:
        ledger = await cluster.client(max_in_flight_entries=1).create_advanced_ledger()
        waiting = [ledger.append_nowait(1, b"x"), *(asyncio.ensure_future(ledger.append(i, b"x")) for i in (2, 2, 3))]
        await asyncio.sleep(0)
        await ledger.append(0, b"x")
        results = await asyncio.gather(*waiting, return_exceptions=True)
        assert [type(result) for result in results] == [int, int, DuplicateEntryIdException, int]
        assert window_of(ledger).entries == 0


async def test_an_advanced_ledger_changes_its_ensemble_and_sends_again_what_waits_for_lower_ids() -> None:
    async with fake_cluster(4) as cluster:
        ledger = await cluster.client().create_advanced_ledger(password=b"planted-p")
        for entry_id in range(5):
            await ledger.append(entry_id, b"%d" % entry_id)
        early = [ledger.append_nowait(entry_id, b"%d" % entry_id) for entry_id in range(6, 20)]
        for bookie in cluster.ensemble(ledger.metadata):
            await bookie.until_requested(19, AddRequest)
        await cluster.ensemble(ledger.metadata)[0].stop()
        await ledger.append(5, b"5")
        await asyncio.gather(*early)
        await ledger.append(20, b"20")
        await until(lambda: len(ledger.metadata.fragments) == 2)
        await ledger.close()
        reader = await cluster.client().open_ledger(ledger.ledger_id, b"planted-p")
        assert await payloads(reader) == [b"%d" % i for i in range(21)]


async def test_an_entry_that_no_bookie_can_take_ends_those_that_wait_for_it() -> None:
    async with fake_cluster(3) as cluster:
        client = cluster.client(failed_bookie_interval_seconds=600)
        ledger = await client.create_advanced_ledger(write_quorum_size=2, ack_quorum_size=1, password=b"planted-p")
        ensemble = cluster.ensemble(ledger.metadata)
        await ensemble[0].stop()
        await ensemble[1].stop()
        waiting = [ledger.append_nowait(entry_id, b"x") for entry_id in (1, 2)]
        await until(lambda: len(ledger.failed_bookies) == 2 and not writer_of(ledger).changing)
        with pytest.raises(NotEnoughBookiesException):
            await ledger.append(0, b"x")
        async with asyncio.timeout(10):
            outcomes = await asyncio.gather(*waiting, return_exceptions=True)
            assert [type(outcome) for outcome in outcomes] == [NotEnoughBookiesException] * 2
            await ledger.close()


# Deferred sync


async def test_with_deferred_sync_the_lac_waits_for_force() -> None:
    async with fake_cluster() as cluster:
        ledger = await cluster.client().create_ledger(deferred_sync=True, password=b"planted-p")
        assert await ledger.append_all([b"0", b"1", b"2"]) == 2
        assert (ledger.last_add_confirmed, ledger.length) == (-1, 0)
        assert all(
            request.write_flags == 1 for b in cluster.bookies for request in b.requests if type(request) is AddRequest
        )
        await ledger.force()
        assert (ledger.last_add_confirmed, ledger.length) == (2, 3)
        for bookie in cluster.bookies:
            assert sum(isinstance(request, ForceLedgerRequest) for request in bookie.requests) == 1
        await ledger.append(b"3")
        assert ledger.last_add_confirmed == 2
        packet = cluster.ensemble(ledger.metadata)[0].ledgers[0].entries[3]
        assert decode_entry(digest_for(DigestType.CRC32C, b"planted-p"), packet, 0, 3).last_add_confirmed == 2
        await ledger.close()
        assert (ledger.metadata.last_entry_id, ledger.metadata.length) == (3, 4)


async def test_a_force_that_a_bookie_refuses_moves_nothing_and_close_says_so() -> None:
    async with fake_cluster() as cluster:
        ledger = await cluster.client().create_ledger(deferred_sync=True)
        await ledger.force()
        await ledger.append(b"0")
        await ledger.force()
        await ledger.append(b"1")
        cluster.bookies[1].override = lambda request: Status.EIO if isinstance(request, ForceLedgerRequest) else None
        with pytest.raises(WriteException, match="EIO to the force"):
            await ledger.force()
        assert ledger.last_add_confirmed == 0
        for _ in range(2):
            with pytest.raises(WriteException):
                await ledger.close()
        assert not cluster.metadata.records[ledger.ledger_id].metadata.is_closed
        await ledger.close(force=False)
        assert (ledger.metadata.last_entry_id, ledger.metadata.length) == (0, 1)


async def test_a_bookie_that_fails_ends_a_ledger_with_deferred_sync() -> None:
    async with fake_cluster(4) as cluster:
        ledger = await cluster.client().create_ledger(deferred_sync=True)
        await ledger.append(b"0")
        await ledger.force()
        await cluster.ensemble(ledger.metadata)[0].stop()
        with pytest.raises(WriteException, match="can't be replaced") as caught:
            await asyncio.gather(*(ledger.append_nowait(b"x") for _ in range(10)), ledger.append(b"x"))
        assert caught.value.code == -12
        await ledger.close()
        assert ledger.metadata.last_entry_id == 0
        assert len(ledger.metadata.fragments) == 1


# Explicit LAC


def test_the_rule_of_the_explicit_lac() -> None:
    rule = ExplicitLacRule()
    assert rule.due(-1, -1) is None
    assert rule.due(0, -1) == 0
    assert rule.due(0, -1) is None
    # Entries have carried 8 since; 9 goes out when nothing more came in an interval.
    assert rule.due(9, 8) is None
    assert rule.due(9, 8) == 9
    assert rule.due(9, 8) is None
    assert rule.has_said_all(9)
    assert not rule.has_said_all(10), "its confirmation is to be said"


async def test_a_writer_that_pauses_tells_its_last_entry_once() -> None:
    async with fake_cluster() as cluster:
        ledger = await cluster.client().create_ledger(password=b"planted-p")
        for pause, last in ((1, 1), (2, 3)):
            await ledger.append_all([b"0", b"1"])
            for bookie in cluster.bookies:
                async with asyncio.timeout(10):
                    await bookie.until_requested(pause, WriteLacRequest)
                requests = [request for request in bookie.requests if isinstance(request, WriteLacRequest)]
                assert len(requests) == pause
                assert (
                    decode_lac(digest_for(DigestType.CRC32C, b"planted-p"), requests[-1].body, 0)
                    == requests[-1].lac
                    == last
                )


async def test_protocol_v2_has_no_explicit_lac() -> None:
    async with fake_cluster() as cluster:
        ledger = await cluster.client(wire_protocol="v2", explicit_lac_interval_seconds=0.001).create_ledger()
        for _ in range(20):
            await ledger.append(b"0")
            await asyncio.sleep(0.001)
        assert not any(
            isinstance(request, WriteLacRequest) for bookie in cluster.bookies for request in bookie.requests
        )


# Quorum timeout


async def test_an_entry_that_no_quorum_takes_in_time_ends_the_ledger() -> None:
    async with fake_cluster() as cluster:
        ledger = await cluster.client(add_quorum_timeout_seconds=0.05).create_ledger()
        await ledger.append(b"0")
        for bookie in cluster.bookies[:2]:
            bookie.holding = True
        with pytest.raises(AddEntryQuorumTimeoutException, match="entry 1 was acknowledged by 1 bookies") as caught:
            await ledger.append(b"1")
        assert caught.value.code == -21
        await ledger.close()
        assert ledger.metadata.last_entry_id == 0


async def test_entries_that_are_acknowledged_in_time_end_nothing() -> None:
    async with fake_cluster() as cluster:
        ledger = await cluster.client(add_quorum_timeout_seconds=0.1).create_ledger()
        loop = asyncio.get_running_loop()
        end = loop.time() + 0.4
        while loop.time() < end:
            await ledger.append(b"x")
        await ledger.close()


# Choosing bookies


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def test_quarantine_counts_unexpected_errors_within_the_interval() -> None:
    clock, put = Clock(), list[str]()
    health = BookieHealth(clock, threshold=3, interval=60, quarantine_time=100, on_quarantine=put.append)

    def errors(count: int, error: BKException) -> None:
        for _ in range(count):
            health.on_error("b", error)

    errors(100, BookieHandleNotAvailableException("down"))
    errors(3, TimeoutException("late"))
    assert health.quarantined() == frozenset()
    clock.now = 60
    errors(3, TimeoutException("late"))
    assert health.quarantined() == frozenset()
    errors(1, WriteException("EIO"))
    assert health.quarantined() == {"b"}
    assert put == ["b"]
    clock.now = 161
    assert health.quarantined() == frozenset()
    errors(3, TimeoutException("late"))
    assert health.quarantined() == frozenset()


def test_quarantine_is_off_unless_asked_for() -> None:
    health = BookieHealth(Clock(), enabled=False, threshold=0)
    health.on_error("b", TimeoutException("late"))
    assert health.quarantined() == frozenset()


def refuse_adds(request: Request) -> Status | None:
    return Status.EIO if isinstance(request, AddRequest) else None


async def test_a_bookie_that_failed_often_is_not_chosen_while_there_are_others() -> None:
    async with fake_cluster(4) as cluster:
        client = cluster.client(bookie_health_check=True, bookie_error_threshold=2)
        ledger = await client.create_ledger()
        bad = cluster.ensemble(ledger.metadata)[0]
        bad.override = refuse_adds
        await asyncio.gather(*(ledger.append_nowait(b"x") for _ in range(10)))
        for _ in range(20):
            other = await client.create_ledger()
            assert bad.bookie_id not in other.metadata.last_fragment.ensemble
        assert bad.bookie_id in (await client.create_ledger(4, 3, 2)).metadata.last_fragment.ensemble


async def test_opportunistic_striping_takes_what_there_is_down_to_the_write_quorum() -> None:
    async with fake_cluster(3) as cluster:
        client = cluster.client(opportunistic_striping=True)
        assert (await client.create_ledger(5, 2, 2)).metadata.ensemble_size == 3
        with pytest.raises(NotEnoughBookiesException):
            await client.create_ledger(5, 4, 2)
        with pytest.raises(NotEnoughBookiesException):
            await cluster.client().create_ledger(5, 2, 2)


async def test_a_bookie_restarted_before_the_force_may_have_lost_entries() -> None:
    async with fake_cluster() as cluster:
        ledger = await cluster.client().create_ledger(deferred_sync=True, password=b"planted-p")
        await ledger.append(b"forced")
        await ledger.force()
        bookie = cluster.ensemble(ledger.metadata)[0]
        connection = pool_of(cluster.clients[0]).connection(bookie.bookie_id)
        await restart(bookie, connection)
        await ledger.append(b"forced too")  # nothing was unforced when the connection was lost
        await ledger.force()
        await ledger.append(b"lost")
        await restart(bookie, connection)
        with pytest.raises(WriteException, match=r"connection to bookie .* was lost"):
            await ledger.force()
        with pytest.raises(WriteException):
            await ledger.append(b"x")
        await ledger.close(force=False)
        assert ledger.metadata.last_entry_id == 1


async def restart(bookie: FakeBookie, connection: BookieConnection) -> None:
    await bookie.stop()
    await until(lambda: not connection.connected)
    await bookie.start()
