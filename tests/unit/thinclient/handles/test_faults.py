"""Bookies that die, keep silent, lie or refuse: every call ends with a result or a typed error (F12)."""

import asyncio
import gc
from collections.abc import Sequence
from contextlib import suppress

import pytest

from bookgate.ledger.entry import Entry
from bookgate.ledger.errors import (
    BKException,
    BookieHandleNotAvailableException,
    DigestMatchException,
    IllegalOpException,
    LedgerClosedException,
    LedgerFencedException,
    LedgerRecoveryException,
    MetadataVersionException,
    NoSuchLedgerExistsOnMetadataServerException,
    NotEnoughBookiesException,
    ReadException,
    TooManyRequestsException,
    UnauthorizedAccessException,
    UnknownOutcomeException,
)
from bookgate.ledger.ledger_id import LedgerId
from bookgate.ledger.metadata import LedgerMetadata, LedgerState
from bookgate.ledger.metadata_store import LedgerRecord
from bookgate.ledger.wire.messages import AddRequest, ReadRequest, ReadResponse, Request, Response, Status
from bookgate.thinclient.core.reading import RangeReader
from bookgate.thinclient.handles.read_handle import ReadHandle
from tests.unit.thinclient.fakes import fake_cluster, ledger_of, payloads
from tests.unit.thinclient.inside import window_of


@pytest.mark.asyncio
async def test_one_bookie_lost_while_writing_is_survived_and_everything_is_read_back() -> None:
    async with fake_cluster() as cluster:
        ledger = await ledger_of(cluster, 100)
        lost = cluster.ensemble(ledger.metadata)[0]
        await lost.stop()
        await ledger.append_all(b"%d" % i for i in range(100, 200))
        assert ledger.failed_bookies.keys() == {lost.bookie_id}
        await ledger.close()
        reader = await cluster.client().open_ledger(ledger.ledger_id, b"planted-p")
        assert await payloads(reader) == [b"%d" % i for i in range(200)]


@pytest.mark.asyncio
async def test_two_bookies_lost_end_the_ledger_and_recovery_keeps_what_was_acknowledged() -> None:
    async with fake_cluster() as cluster:
        ledger = await ledger_of(cluster, 50)
        for bookie in cluster.bookies[:2]:
            await bookie.stop()
        with pytest.raises(NotEnoughBookiesException, match="takes no more entries") as caught:
            await ledger.append_all(b"%d" % i for i in range(50, 60))
        for bookie in cluster.bookies[:2]:
            assert bookie.bookie_id in str(caught.value)
        with pytest.raises(NotEnoughBookiesException):
            await ledger.append(b"more")
        client = cluster.client()
        with pytest.raises(LedgerRecoveryException, match="stays IN_RECOVERY"):
            await client.open_ledger(ledger.ledger_id, b"planted-p", recovery=True)
        assert cluster.metadata.records[ledger.ledger_id].metadata.state is LedgerState.IN_RECOVERY
        for bookie in cluster.bookies[:2]:
            await bookie.start()
        reader = await client.open_ledger(ledger.ledger_id, b"planted-p", recovery=True)
        assert (await payloads(reader))[:50] == [b"%d" % i for i in range(50)]
        assert reader.is_closed


@pytest.mark.asyncio
async def test_a_ledger_that_lost_its_bookies_can_still_be_closed_at_what_was_acknowledged() -> None:
    async with fake_cluster() as cluster:
        ledger = await ledger_of(cluster, 5)
        for bookie in cluster.bookies[:2]:
            await bookie.stop()
        with pytest.raises(NotEnoughBookiesException):
            await ledger.append(b"x")
        await ledger.close()
        stored = cluster.metadata.records[ledger.ledger_id].metadata
        assert (stored.state, stored.last_entry_id, stored.length) == (LedgerState.CLOSED, 4, 5)


@pytest.mark.asyncio
async def test_every_append_that_waits_for_room_fails_with_the_ledger() -> None:
    async with fake_cluster() as cluster:
        for bookie in cluster.bookies:
            bookie.holding = True
        ledger = await cluster.client(max_in_flight_entries=2).create_ledger()
        appends = [asyncio.ensure_future(ledger.append(b"x")) for _ in range(10)]
        for bookie in cluster.bookies:
            await bookie.until_requested(2)
        for bookie in cluster.bookies:
            await bookie.stop()
        results = await asyncio.gather(*appends, return_exceptions=True)
        assert {type(result) for result in results} == {NotEnoughBookiesException}


@pytest.mark.asyncio
async def test_a_cancelled_append_that_waited_gives_its_room_back() -> None:
    async with fake_cluster() as cluster:
        for bookie in cluster.bookies:
            bookie.holding = True
        ledger = await cluster.client(max_in_flight_entries=1).create_ledger()
        first, second, third = (asyncio.ensure_future(ledger.append(b"x")) for _ in range(3))
        for bookie in cluster.bookies:
            await bookie.until_requested(1)
        second.cancel()
        for bookie in cluster.bookies:
            bookie.let_go()
        assert await first == 0
        assert await third == 1
        assert window_of(ledger).entries == 0


@pytest.mark.asyncio
async def test_close_ends_when_the_last_append_that_got_room_is_cancelled() -> None:
    async with fake_cluster() as cluster:
        for bookie in cluster.bookies:
            bookie.holding = True
        ledger = await cluster.client(max_in_flight_entries=1).create_ledger()
        first = ledger.append_nowait(b"x")
        second = asyncio.ensure_future(ledger.append(b"x"))
        # Its room is handed out in the same turn in which the first one is acknowledged.
        first.add_done_callback(lambda _: second.cancel())
        closing = asyncio.ensure_future(ledger.close())
        for bookie in cluster.bookies:
            await bookie.until_requested(1)
            bookie.let_go()
        async with asyncio.timeout(10):
            await closing
        assert second.cancelled()
        assert ledger.metadata.last_entry_id == 0


@pytest.mark.asyncio
async def test_the_error_of_a_lost_ledger_does_not_grow_with_every_append() -> None:
    async with fake_cluster() as cluster:
        ledger = await ledger_of(cluster, 1)
        await cluster.client().open_ledger(ledger.ledger_id, b"planted-p", recovery=True)
        frames = []
        for _ in range(5):
            with pytest.raises(LedgerFencedException) as raised:
                await ledger.append(b"x")
            frames.append(len(raised.traceback))
        assert max(frames[1:]) == frames[1]


@pytest.mark.asyncio
async def test_recovery_fences_the_writer() -> None:
    async with fake_cluster() as cluster:
        ledger = await ledger_of(cluster, 10)
        reader = await cluster.client().open_ledger(ledger.ledger_id, b"planted-p", recovery=True)
        assert await payloads(reader) == [b"%d" % i for i in range(10)]
        assert (reader.is_closed, reader.length) == (True, 10)
        with pytest.raises(LedgerFencedException, match="EFENCED"):
            await ledger.append(b"late")
        with pytest.raises(LedgerFencedException):
            await ledger.close()
        with pytest.raises(LedgerFencedException):
            await ledger.append_all([b"later"])


@pytest.mark.asyncio
async def test_recovered_entries_are_rebuilt_and_stored_on_the_whole_write_set() -> None:
    async with fake_cluster() as cluster:
        ledger = await ledger_of(cluster, 3)
        number = ledger.ledger_id.low
        for bookie in cluster.ensemble(ledger.metadata)[1:2]:
            del bookie.ledgers[number].entries[2]
        await cluster.client().open_ledger(ledger.ledger_id, b"planted-p", recovery=True)
        assert all(2 in bookie.ledgers[number].entries for bookie in cluster.bookies)
        again = [r for b in cluster.bookies for r in b.requests if isinstance(r, AddRequest) and r.recovery]
        assert again
        assert all(request.priority == 100 for request in again)


@pytest.mark.asyncio
async def test_concurrent_recoveries_agree() -> None:
    async with fake_cluster() as cluster:
        ledger = await ledger_of(cluster, 30)
        opened = [cluster.client().open_ledger(ledger.ledger_id, b"planted-p", recovery=True) for _ in range(3)]
        readers = await asyncio.gather(*opened)
        assert {(reader.last_add_confirmed, reader.length) for reader in readers} == {(29, 50)}


@pytest.mark.asyncio
async def test_close_meets_what_others_did() -> None:
    async with fake_cluster() as cluster:
        same, other, recovering = [await ledger_of(cluster, 2) for _ in range(3)]
        change = cluster.metadata.change
        change(same.ledger_id, state=LedgerState.CLOSED, last_entry_id=1, length=2)
        change(other.ledger_id, state=LedgerState.CLOSED, last_entry_id=0, length=1)
        change(recovering.ledger_id, state=LedgerState.IN_RECOVERY)
        await same.close()
        with pytest.raises(MetadataVersionException, match="closed by another client at entry 0"):
            await other.close()
        await recovering.close()
        assert cluster.metadata.records[recovering.ledger_id].metadata.last_entry_id == 1


@pytest.mark.asyncio
@pytest.mark.parametrize(
    ("status", "error"), [(Status.EUA, UnauthorizedAccessException), (Status.EFENCED, LedgerFencedException)]
)
async def test_one_bookie_that_says_no_ends_the_ledger(status: Status, error: type[Exception]) -> None:
    async with fake_cluster() as cluster:
        ledger = await cluster.client().create_ledger()
        cluster.ensemble(ledger.metadata)[1].override = lambda request: status
        cluster.ensemble(ledger.metadata)[0].holding = True
        with pytest.raises(error, match=cluster.ensemble(ledger.metadata)[1].bookie_id):
            await ledger.append(b"x")


@pytest.mark.asyncio
async def test_reads_fail_over_from_dead_missing_damaged_and_silent_replicas() -> None:
    async with fake_cluster() as cluster:
        ledger = await ledger_of(cluster, 40)
        await ledger.close()
        expected = [b"%d" % i for i in range(40)]
        number = ledger.ledger_id.low
        first = cluster.ensemble(ledger.metadata)[number % 3]

        def damage(response: Response) -> Response:
            if not isinstance(response, ReadResponse) or not response.body:
                return response
            return response._replace(body=response.body[:-1] + b"\xff")

        kept, first.ledgers[number].entries = first.ledgers[number].entries, {}
        assert await payloads(await cluster.client().open_ledger(ledger.ledger_id, b"planted-p")) == expected
        first.ledgers[number].entries, first.tamper = kept, damage
        assert await payloads(await cluster.client().open_ledger(ledger.ledger_id, b"planted-p")) == expected
        first.tamper, first.silent = lambda response: response, True
        client = cluster.client(read_timeout_seconds=0.05)
        assert await payloads(await client.open_ledger(ledger.ledger_id, b"planted-p")) == expected
        await first.stop()
        assert await payloads(await cluster.client().open_ledger(ledger.ledger_id, b"planted-p")) == expected


async def single(reader: ReadHandle, entry_id: int) -> bytes:
    (entry,) = [entry async for entry in reader.read(entry_id, entry_id)]
    return entry.payload


@pytest.mark.asyncio
async def test_a_read_of_one_entry_is_one_request_and_fails_over_as_ranges_do() -> None:
    async with fake_cluster() as cluster:
        ledger = await ledger_of(cluster, 4)
        await ledger.close()
        number = ledger.ledger_id.low
        first = cluster.ensemble(ledger.metadata)[number % 3]

        def reads() -> int:
            return sum(isinstance(request, ReadRequest) for bookie in cluster.bookies for request in bookie.requests)

        reader = await cluster.client().open_ledger(ledger.ledger_id, b"planted-p")
        assert [await single(reader, entry_id) for entry_id in (2, 0, 2)] == [b"2", b"0", b"2"]
        assert reads() == 3
        kept, first.ledgers[number].entries = first.ledgers[number].entries, {}
        assert await single(reader, 1) == b"1"
        first.ledgers[number].entries = kept
        first.tamper = lambda response: (
            response._replace(body=response.body[:-1] + b"\xff")
            if isinstance(response, ReadResponse) and response.body
            else response
        )
        assert await single(reader, 3) == b"3"
        first.tamper, first.silent = lambda response: response, True
        impatient = await cluster.client(speculative_read_timeout_seconds=0.05).open_ledger(
            ledger.ledger_id, b"planted-p"
        )
        assert await single(impatient, 0) == b"0"
        await first.stop()
        assert await single(await cluster.client().open_ledger(ledger.ledger_id, b"planted-p"), 3) == b"3"


@pytest.mark.asyncio
async def test_an_entry_that_nobody_can_serve_fails_with_the_reason_after_what_stands_before_it() -> None:
    async with fake_cluster() as cluster:
        ledger = await ledger_of(cluster, 10)
        await ledger.close()
        for bookie in cluster.bookies:
            bookie.tamper = lambda r: (
                r._replace(body=b"short") if isinstance(r, ReadResponse) and r.entry_id == 7 else r
            )
        reader = await cluster.client(batch_reads=False).open_ledger(ledger.ledger_id, b"planted-p")
        entries = reader.read(0, 9)
        assert [(await anext(entries)).entry_id for _ in range(7)] == list(range(7))
        with pytest.raises(DigestMatchException, match="entry 7 can't be read from any of"):
            await anext(entries)


@pytest.mark.asyncio
@pytest.mark.parametrize("batch_reads", [True, False])
async def test_whoever_wants_to_hears_of_each_answer_to_a_read(batch_reads: bool) -> None:
    async with fake_cluster() as cluster:
        ledger = await ledger_of(cluster, 10)
        await ledger.close()
        client = cluster.client(batch_reads=batch_reads)
        heard: list[tuple[str, int, BKException | None]] = []

        def hear(bookie_id: str, size: int, seconds: float, error: BKException | None) -> None:
            assert 0 <= seconds < 30
            heard.append((bookie_id, size, error))

        client.metrics.on_read_answer = hear
        reader = await client.open_ledger(ledger.ledger_id, b"planted-p")
        await payloads(reader)
        assert sum(size for _, size, _ in heard) == 10
        assert {error for _, _, error in heard} == {None}
        (busy,) = (each for each in cluster.bookies if each.bookie_id == heard[0][0])
        busy.override = lambda _request: Status.ETOOMANYREQUESTS
        heard.clear()
        await payloads(reader)
        refused = [(bookie_id, size) for bookie_id, size, error in heard if isinstance(error, TooManyRequestsException)]
        assert {*refused} == {(busy.bookie_id, 0)}
        assert busy.bookie_id not in {bookie_id for bookie_id, size, _ in heard if size}


@pytest.mark.asyncio
async def test_a_late_answer_after_a_speculative_read_tells_nothing_of_its_bookie(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with fake_cluster() as cluster:
        ledger = await ledger_of(cluster, 3)
        await ledger.close()
        client = cluster.client(batch_reads=False, speculative_read_timeout_seconds=0.05)
        told: list[str] = []
        client.metrics.on_read_answer = lambda bookie_id, _size, _seconds, _error: told.append(bookie_id)
        reader = await client.open_ledger(ledger.ledger_id, b"planted-p")
        ensemble = cluster.ensemble(ledger.metadata)
        slow = ensemble[ledger.ledger_id.number % len(ensemble)]
        slow.holding = True
        came = asyncio.Event()
        on_entries = RangeReader.on_entries

        def seen(self: RangeReader, bookie_id: str, entries: Sequence[Entry], now: float = 0.0) -> None:
            on_entries(self, bookie_id, entries, now)
            if bookie_id == slow.bookie_id:
                came.set()

        monkeypatch.setattr(RangeReader, "on_entries", seen)
        entries = reader.read(0, 2)
        await anext(entries)
        slow.let_go()
        async with asyncio.timeout(10):
            await came.wait()
        assert told
        assert slow.bookie_id not in told


@pytest.mark.asyncio
async def test_recovery_survives_one_dead_bookie_and_read_only_ones_do_not_end_a_ledger() -> None:
    async with fake_cluster() as cluster:
        ledger = await ledger_of(cluster, 10)
        await cluster.ensemble(ledger.metadata)[1].stop()
        reader = await cluster.client().open_ledger(ledger.ledger_id, b"planted-p", recovery=True)
        assert len(await payloads(reader)) == 10

        def read_only(request: Request) -> Status | None:
            return Status.EREADONLY if isinstance(request, AddRequest) else None

        await cluster.ensemble(ledger.metadata)[1].start()
        second = await cluster.client().create_ledger()
        cluster.ensemble(second.metadata)[0].override = read_only
        assert await second.append(b"x") == 0


@pytest.mark.asyncio
async def test_fencing_reads_are_sent_to_all_and_reads_forward_fence_too() -> None:
    async with fake_cluster() as cluster:
        ledger = await ledger_of(cluster, 3)
        await cluster.client().open_ledger(ledger.ledger_id, b"planted-p", recovery=True)
        for bookie in cluster.bookies:
            reads = [request for request in bookie.requests if isinstance(request, ReadRequest)]
            assert reads[0].entry_id == -1
            assert all(request.fence and request.master_key for request in reads)


@pytest.mark.asyncio
async def test_close_gives_up_when_its_outcome_is_lost_again_and_again() -> None:
    async with fake_cluster() as cluster:
        ledger = await ledger_of(cluster, 1)
        writes: list[LedgerId] = []

        def lose(ledger_id: LedgerId, metadata: LedgerMetadata) -> None:
            writes.append(ledger_id)
            raise UnknownOutcomeException("lost")

        cluster.metadata.before_write = lose
        with pytest.raises(UnknownOutcomeException):
            await ledger.close()
        assert len(writes) == 3


@pytest.mark.asyncio
async def test_a_close_that_fails_once_its_callers_are_cancelled_reports_no_forgotten_error() -> None:
    reports: list[dict[str, object]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _loop, context: reports.append(context))

    async def close_and_be_cancelled() -> None:
        async with fake_cluster() as cluster:
            ledger = await ledger_of(cluster, 1)
            asked, answered = asyncio.Event(), asyncio.Event()

            async def refuse(*_arguments: object) -> LedgerRecord:
                asked.set()
                await answered.wait()
                raise LedgerClosedException("by another client")

            cluster.metadata.write = refuse  # type: ignore[assignment,method-assign]
            closing = asyncio.ensure_future(ledger.close())
            await asked.wait()
            closing.cancel()
            with pytest.raises(asyncio.CancelledError):
                await closing
            answered.set()
            await asyncio.sleep(0)

    await close_and_be_cancelled()
    gc.collect()
    assert reports == []


@pytest.mark.asyncio
async def test_the_context_manager_keeps_the_bodys_own_error() -> None:
    async with fake_cluster() as cluster:
        ledger = await cluster.client().create_ledger()

        async def use() -> None:
            async with ledger:
                await ledger.append(b"x")
                raise ZeroDivisionError

        with pytest.raises(ZeroDivisionError):
            await use()
        with pytest.raises(LedgerClosedException):
            await ledger.append(b"y")


@pytest.mark.asyncio
async def test_a_ledger_deleted_while_ledgers_are_listed_is_left_out() -> None:
    async with fake_cluster(3) as cluster:
        client = cluster.client()
        for _ in range(3):
            await client.create_ledger()
        listed = []
        async for page in client.list_ledgers():
            listed += [record.ledger_id.low for record in page]
            with suppress(NoSuchLedgerExistsOnMetadataServerException):
                await cluster.metadata.remove(LedgerId.unscoped(1))
        assert listed == [0, 2]


@pytest.mark.asyncio
async def test_deferred_sync_is_refused_before_a_ledger_of_v2_is_created() -> None:
    async with fake_cluster(3) as cluster:
        client = cluster.client(wire_protocol="v2")
        for create in (client.create_ledger, client.create_advanced_ledger):
            with pytest.raises(IllegalOpException, match="deferred sync"):
                await create(deferred_sync=True)
        assert not cluster.metadata.records


@pytest.mark.asyncio
async def test_errors_say_which_ledger_and_what_each_bookie_answered() -> None:
    async with fake_cluster(3) as cluster:
        ledger = await ledger_of(cluster, 5)
        await ledger.close()
        left = await cluster.client().create_ledger(password=b"planted-p")
        await left.append(b"x")
        client = cluster.client(batch_reads=False)
        reader = await client.open_ledger(ledger.ledger_id, b"planted-p")
        first, second, third = cluster.ensemble(ledger.metadata)
        await first.stop()
        for bookie in (second, third):
            bookie.override = lambda request: Status.EIO
        with pytest.raises(ReadException) as unreadable:
            await payloads(reader)
        with pytest.raises(ReadException) as untold:
            await client.open_ledger(left.ledger_id, b"planted-p")
        with pytest.raises(LedgerRecoveryException) as unrecovered:
            await client.open_ledger(left.ledger_id, b"planted-p", recovery=True)
        everyone = {bookie.bookie_id for bookie in (first, second, third)}
        assert unreadable.value.ledger_id == ledger.ledger_id
        assert {untold.value.ledger_id, unrecovered.value.ledger_id} == {left.ledger_id}
        assert (unreadable.value.first_entry_id, unrecovered.value.first_entry_id) == (0, 0)
        assert set(unreadable.value.bookies) == everyone
        for error in (unreadable.value, untold.value, unrecovered.value):
            assert set(error.bookies) <= everyone
            assert isinstance(error.bookies[second.bookie_id], ReadException)
            assert isinstance(error.bookies[first.bookie_id], BookieHandleNotAvailableException)
