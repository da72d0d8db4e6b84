"""Tailing and last-confirmed reads through real connections to fake bookies."""

import asyncio
from collections.abc import AsyncIterator, Awaitable
from dataclasses import replace

import pytest

from bookgate import BookKeeper
from bookgate.ledger.entry import Entry, decode_header
from bookgate.ledger.errors import (
    BKException,
    ClientClosedException,
    DigestMatchException,
    IncorrectParameterException,
    LedgerClosedException,
    LedgerRecoveryException,
    NoSuchEntryException,
    NoSuchLedgerExistsException,
    NoSuchLedgerExistsOnMetadataServerException,
    UnauthorizedAccessException,
)
from bookgate.ledger.metadata import Fragment
from bookgate.ledger.wire.messages import (
    AddRequest,
    BatchReadRequest,
    BatchReadResponse,
    ReadRequest,
    ReadResponse,
    Request,
    Response,
    Status,
)
from bookgate.thinclient.handles.read_handle import ReadHandle
from bookgate.thinclient.handles.write_handle import WriteHandle
from tests.unit.thinclient.fakes import FakeCluster, fake_cluster
from tests.unit.thinclient.inside import pool_of
from tests.unit.virtual_time import until

pytestmark = pytest.mark.usefixtures("virtual_time")

QUICK = {
    "tail_failure_timeout_seconds": 0.3,
    "tail_poll_interval_seconds": 0.01,
    "read_timeout_seconds": 1.0,
    "long_poll_timeout_seconds": 0.3,
}


async def tailing(
    cluster: FakeCluster, ensemble: tuple[int, int, int] = (3, 3, 2), **settings: float | bool
) -> tuple[BookKeeper, WriteHandle, ReadHandle]:
    """A writer, and a reader of the same ledger by a client of its own."""
    ledger = await cluster.client().create_ledger(*ensemble)
    client = cluster.client(**{**QUICK, **settings})
    return client, ledger, await client.open_ledger(ledger.ledger_id)


async def ids(entries: AsyncIterator[Entry], count: int | None = None) -> list[int]:
    found = []
    async for entry in entries:
        assert entry.payload == b"%d" % entry.entry_id
        found.append(entry.entry_id)
        if len(found) == count:
            break
    return found


@pytest.mark.parametrize("options", [{}, {"parallel": True}, {"long_poll": False}])
@pytest.mark.parametrize("ensemble", [(3, 3, 2), (3, 2, 2), (1, 1, 1), (4, 2, 1)])
async def test_entries_come_as_they_are_confirmed_and_the_end_is_the_end(
    ensemble: tuple[int, int, int], options: dict[str, bool]
) -> None:
    async with fake_cluster(4) as cluster, asyncio.timeout(10):
        _, ledger, reader = await tailing(cluster, ensemble)
        seen = asyncio.create_task(ids(reader.tail(**options)))
        for i in range(60):
            await ledger.append(b"%d" % i)
            if i % 20 == 7:
                await asyncio.sleep(0.02)
        await ledger.close()
        assert await seen == list(range(60))
        await reader.close()


async def test_a_reader_far_behind_reads_in_batches_and_waits_only_at_the_end() -> None:
    async with fake_cluster() as cluster, asyncio.timeout(10):
        client, ledger, reader = await tailing(cluster, batch_read_entries=500)
        await ledger.append_all(b"%d" % i for i in range(5000))
        await ledger.close()
        batches = [batch async for batch in reader.tail_batches(10, max_entries=700)]
        assert [e.entry_id for batch in batches for e in batch] == list(range(10, 5000))
        asked: list[Request] = [request for bookie in cluster.bookies for request in bookie.requests]
        assert sum(isinstance(request, ReadRequest) for request in asked) < 10
        batches_asked = sum(isinstance(request, BatchReadRequest) for request in asked)
        assert 9 <= batches_asked < 30
        counted = client.metrics.values()
        assert (counted["READ_ENTRY"], counted["BATCH_READ"]) == (4990, batches_asked)


async def test_an_entry_is_not_told_before_it_is_known_to_be_confirmed() -> None:
    async with fake_cluster() as cluster, asyncio.timeout(10):
        _, ledger, reader = await tailing(cluster)
        entries = reader.tail()
        await ledger.append(b"0")
        first = asyncio.ensure_future(anext(entries))
        await until(lambda: any(bookie.parked_count for bookie in cluster.bookies))
        assert not first.done()
        assert reader.last_add_confirmed == -1
        await ledger.append(b"1")
        assert (await first).entry_id == 0
        assert reader.last_add_confirmed == 0
        await entries.aclose()


async def test_tailing_from_an_entry_still_to_come() -> None:
    async with fake_cluster() as cluster, asyncio.timeout(10):
        _, ledger, reader = await tailing(cluster)
        seen = asyncio.create_task(ids(reader.tail(5)))
        await ledger.append_all(b"%d" % i for i in range(9))
        await ledger.close()
        assert await seen == [5, 6, 7, 8]
        assert [e async for e in reader.tail(9)] == []
        with pytest.raises(IncorrectParameterException):
            await anext(reader.tail(-1))


async def test_another_client_recovers_the_ledger_under_the_reader() -> None:
    async with fake_cluster() as cluster, asyncio.timeout(10):
        _, ledger, reader = await tailing(cluster)
        for i in range(10):
            await ledger.append(b"%d" % i)
        entries = reader.tail()
        assert await ids(entries, 9) == list(range(9))
        rest = asyncio.create_task(ids(reader.tail(9)))
        await cluster.client().open_ledger(ledger.ledger_id, recovery=True)
        assert await rest == [9]


async def test_the_ledger_is_deleted_under_the_reader() -> None:
    async with fake_cluster() as cluster, asyncio.timeout(10):
        client, ledger, reader = await tailing(cluster)
        await ledger.append(b"0")
        waiting = asyncio.create_task(ids(reader.tail()))
        await until(lambda: any(bookie.parked_count for bookie in cluster.bookies))
        await client.delete_ledger(ledger.ledger_id)
        with pytest.raises(NoSuchLedgerExistsOnMetadataServerException, match=f"ledger {ledger.ledger_id} was deleted"):
            await waiting


@pytest.mark.parametrize("what", ["handle", "client"])
async def test_closing_ends_a_tailing_reader_and_leaves_nothing(what: str) -> None:
    async with fake_cluster() as cluster, asyncio.timeout(10):
        before = asyncio.all_tasks()
        client, ledger, reader = await tailing(cluster)
        await ledger.append(b"0")
        waiting = asyncio.create_task(ids(reader.tail()))
        await until(lambda: any(bookie.parked_count for bookie in cluster.bookies))
        await (reader.close() if what == "handle" else client.close())
        with pytest.raises(LedgerClosedException if what == "handle" else ClientClosedException):
            await waiting
        await reader.close()
        await client.close()
        await until(lambda: not any("thinclient" in str(task.get_coro()) for task in asyncio.all_tasks() - before))


async def test_a_cancelled_reader_leaves_nothing_and_the_handle_goes_on() -> None:
    async with fake_cluster() as cluster, asyncio.timeout(10):
        _, ledger, reader = await tailing(cluster)
        await ledger.append(b"0")
        waiting = asyncio.create_task(ids(reader.tail()))
        await until(lambda: any(bookie.parked_count for bookie in cluster.bookies))
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        await ledger.append(b"1")
        assert await ids(reader.tail(), 1) == [0]


async def test_a_bookie_dies_and_another_hangs_under_the_reader() -> None:
    async with fake_cluster(3) as cluster, asyncio.timeout(10):
        _, ledger, reader = await tailing(
            cluster, (3, 3, 1), first_speculative_lac_timeout_seconds=0.05, speculative_read_timeout_seconds=0.05
        )
        seen = asyncio.create_task(ids(reader.tail(), 40))
        for i in range(41):
            await ledger.append(b"%d" % i)
            if i == 10:
                await cluster.ensemble(ledger.metadata)[0].stop()
            if i == 20:
                cluster.ensemble(ledger.metadata)[1].silent = True
            await asyncio.sleep(0.002)
        assert await seen == list(range(40))


async def test_bookies_that_all_fail_are_put_up_with_for_a_while() -> None:
    async with fake_cluster() as cluster, asyncio.timeout(10):
        _, ledger, reader = await tailing(cluster)
        await ledger.append(b"0")
        await ledger.append(b"1")
        entries = reader.tail()
        assert (await anext(entries)).entry_id == 0
        for bookie in cluster.bookies:
            bookie.override = lambda request: Status.EIO
        waiting = asyncio.ensure_future(anext(entries))
        await asyncio.sleep(0.1)
        assert not waiting.done()
        for bookie in cluster.bookies:
            bookie.override = lambda request: None
        await ledger.append(b"2")
        assert (await waiting).entry_id == 1
        for bookie in cluster.bookies:
            bookie.override = lambda request: Status.EIO
        with pytest.raises(BKException, match="EIO"):
            await anext(entries)


async def test_a_client_that_is_refused_is_told_at_once() -> None:
    async with fake_cluster() as cluster, asyncio.timeout(10):
        _, ledger, reader = await tailing(cluster, tail_failure_timeout_seconds=100)
        await ledger.append(b"0")
        for bookie in cluster.bookies:
            bookie.override = lambda request: Status.EUA
        with pytest.raises(UnauthorizedAccessException):
            await anext(reader.tail())


@pytest.mark.parametrize("how", ["no long polls", "bad request", "v2"])
async def test_bookies_without_long_polls_are_tailed_by_looking(how: str) -> None:
    async with fake_cluster() as cluster, asyncio.timeout(10):
        settings = {"wire_protocol": "v2"} if how == "v2" else {}
        for bookie in cluster.bookies:
            bookie.long_polls = how != "no long polls"
            if how == "bad request":
                bookie.override = lambda r: Status.EBADREQ if getattr(r, "previous_lac", None) is not None else None
        _, ledger, reader = await tailing(cluster, **settings)  # type: ignore[arg-type]
        seen = asyncio.create_task(ids(reader.tail()))
        for i in range(20):
            await ledger.append(b"%d" % i)
            await asyncio.sleep(0.005)
        await ledger.close()
        assert await seen == list(range(20))
        polls = sum(getattr(r, "previous_lac", None) is not None for b in cluster.bookies for r in b.requests)
        assert polls < 200


async def test_a_ledger_that_nobody_has_written_yet_is_not_polled_in_a_loop() -> None:
    async with fake_cluster() as cluster, asyncio.timeout(10):
        _, ledger, reader = await tailing(cluster, tail_poll_interval_seconds=0.05)
        seen = asyncio.create_task(ids(reader.tail(), 1))
        await asyncio.sleep(0.3)
        assert sum(len(bookie.requests) for bookie in cluster.bookies) < 40
        await ledger.append(b"0")
        await ledger.append(b"1")
        assert await seen == [0]


async def test_the_ensemble_changes_under_the_reader() -> None:
    async with fake_cluster(5) as cluster, asyncio.timeout(10):
        _, ledger, reader = await tailing(cluster)
        seen = asyncio.create_task(ids(reader.tail()))
        for i in range(60):
            await ledger.append(b"%d" % i)
            if i in (15, 35):
                await cluster.ensemble(ledger.metadata)[i % 3].stop()
        await until(lambda: len(reader.metadata.fragments) == 3)
        await ledger.close()
        assert await seen == list(range(60))


async def test_waiting_for_an_entry() -> None:
    async with fake_cluster() as cluster, asyncio.timeout(10):
        _, ledger, reader = await tailing(cluster)
        with pytest.raises(NoSuchLedgerExistsException):
            await reader.read_last_confirmed_and_entry(0)
        await ledger.append(b"0")
        lac, entry = await reader.read_last_confirmed_and_entry(0, timeout=0.05)
        assert (lac, entry) == (-1, None)
        waiting = asyncio.create_task(reader.read_last_confirmed_and_entry(0, parallel=True))
        await until(lambda: all(bookie.parked_count for bookie in cluster.bookies))
        await ledger.append(b"1")
        lac, entry = await waiting
        assert (lac, entry and entry.payload) == (0, b"0")
        await ledger.close()
        await until(lambda: reader.is_closed)
        assert (await reader.read_last_confirmed_and_entry(1))[0] == 1
        assert await reader.read_last_confirmed_and_entry(2) == (1, None)


async def test_last_entries() -> None:
    async with fake_cluster() as cluster, asyncio.timeout(10):
        _, ledger, reader = await tailing(cluster)
        with pytest.raises(NoSuchEntryException):
            await reader.read_last_entry()
        assert await reader.try_read_last_confirmed() == -1
        await ledger.append_all([b"0"])
        await ledger.append_all([b"1"])
        await ledger.append_all([b"2"])
        for bookie in cluster.bookies:
            await bookie.until_requested(3, AddRequest)
        assert await reader.try_read_last_confirmed() == 1
        assert (await reader.read_last_entry()).payload == b"1"
        assert await ids(reader.read_unconfirmed(0, 2)) == [0, 1, 2]
        with pytest.raises(NoSuchEntryException):
            await ids(reader.read_unconfirmed(0, 3))
        for bookie in cluster.bookies:
            bookie.override = lambda request: Status.EIO
        with pytest.raises(LedgerRecoveryException, match="no bookie answered"):
            await reader.try_read_last_confirmed()


async def test_a_range_whose_bookies_were_replaced_is_read_by_newer_metadata() -> None:
    """The bookie named by the metadata at hand has lost the entries; meanwhile another one has got them."""
    async with fake_cluster(2) as cluster, asyncio.timeout(10):
        ledger = await cluster.client().create_ledger(1, 1, 1)
        await ledger.append_all(b"%d" % i for i in range(10))
        await ledger.close()
        reader = await cluster.client().open_ledger(ledger.ledger_id)
        old = cluster.ensemble(ledger.metadata)[0]
        new = next(bookie for bookie in cluster.bookies if bookie is not old)
        new.ledgers = dict(old.ledgers)
        old.ledgers = {}
        moved = replace(ledger.metadata.last_fragment, ensemble=(new.bookie_id,))
        cluster.metadata.change(ledger.ledger_id, fragments=(moved,))
        assert await ids(reader.read(0, 9)) == list(range(10))


async def _gone(wait: Awaitable[object]) -> None:
    with pytest.raises(NoSuchLedgerExistsOnMetadataServerException):
        await wait


async def test_a_closed_ledger_that_was_deleted_says_so() -> None:
    async with fake_cluster() as cluster, asyncio.timeout(10):
        client, ledger, _ = await tailing(cluster)
        await ledger.append_all([b"0"])
        await ledger.close()
        reader = await client.open_ledger(ledger.ledger_id)
        await client.delete_ledger(ledger.ledger_id)
        for bookie in cluster.bookies:
            bookie.ledgers = {}
        await _gone(ids(reader.read(0, 0)))


async def test_an_entry_that_comes_along_without_its_lac_is_not_delivered() -> None:
    """What a bookie must not do: hand out an entry above the LAC that it tells (P10)."""
    async with fake_cluster(1) as cluster, asyncio.timeout(10):
        _, ledger, reader = await tailing(cluster, (1, 1, 1))
        await ledger.append(b"0")
        bookie = cluster.bookies[0]
        body = bookie.ledgers[ledger.ledger_id.low].entries[0]
        asked = 0

        def hasty(response: Response) -> Response:
            nonlocal asked
            if isinstance(response, ReadResponse) and response.entry_id == -1:
                asked += 1
                return response._replace(entry_id=0, body=body, max_lac=-1)
            return response

        bookie.tamper = hasty
        waiting = asyncio.create_task(ids(reader.tail(), 1))
        await until(lambda: asked > 3)
        assert not waiting.done()
        assert await reader.read_last_confirmed_and_entry(0, timeout=0.05) == (-1, None)
        bookie.tamper = lambda response: response
        await ledger.append(b"1")
        assert await waiting == [0]


async def test_the_end_cuts_a_long_wait_short_and_a_new_fragment_tells_a_lac() -> None:
    async with fake_cluster() as cluster, asyncio.timeout(10):
        _, ledger, reader = await tailing(
            cluster, long_poll_timeout_seconds=60, first_speculative_lac_timeout_seconds=0
        )
        await ledger.append(b"0")
        await ledger.append(b"1")
        seen = asyncio.create_task(ids(reader.tail(), 2))
        await until(lambda: any(bookie.parked_count for bookie in cluster.bookies))
        assert reader.last_add_confirmed == 0
        cluster.metadata.change(
            ledger.ledger_id,
            fragments=(*reader.metadata.fragments, Fragment(2, reader.metadata.last_fragment.ensemble[::-1])),
        )
        assert await seen == [0, 1]
        assert reader.last_add_confirmed == 1
        rest = asyncio.create_task(ids(reader.tail(2)))
        await until(lambda: sum(bookie.parked_count for bookie in cluster.bookies) > 1)
        await cluster.client().open_ledger(ledger.ledger_id, recovery=True)
        assert await rest == []


async def test_a_damaged_entry_in_a_batch_comes_from_another_bookie_or_fails_after_what_stands_before_it() -> None:
    def damages_7(response: Response) -> Response:
        if isinstance(response, BatchReadResponse):
            bodies = map(bytes, response.bodies)
            spoiled = [b[:-1] + b"?" if decode_header(b).entry_id == 7 else b for b in bodies]
            return response._replace(bodies=tuple(spoiled))
        return response

    async with fake_cluster() as cluster, asyncio.timeout(10):
        client, ledger, _ = await tailing(cluster)
        await ledger.append_all(b"%d" % i for i in range(20))
        await ledger.close()
        for bookie in cluster.bookies[:2]:
            bookie.tamper = damages_7
        reader = await client.open_ledger(ledger.ledger_id)
        assert await ids(reader.read(0, 19)) == list(range(20))
        cluster.bookies[2].tamper = damages_7
        entries = reader.read(0, 19)
        assert await ids(entries, 7) == list(range(7))
        with pytest.raises(DigestMatchException, match="entry 7 can't be read from any of"):
            await anext(entries)
        assert client.metrics.values()["READ_ENTRY_DM"] >= 3


async def test_old_bookies_are_read_from_one_by_one_and_asked_for_batches_once() -> None:
    async with fake_cluster() as cluster, asyncio.timeout(10):
        client, ledger, _ = await tailing(cluster)
        await ledger.append_all(b"%d" % i for i in range(300))
        await ledger.close()
        for bookie in cluster.bookies:
            bookie.batches = False
        reader = await client.open_ledger(ledger.ledger_id)
        lost = []
        for _ in range(2):
            assert await ids(reader.read(0, 299)) == list(range(300))
            lost.append([pool_of(client).losses(bookie.bookie_id) for bookie in cluster.bookies])
        assert all(lost[0]), "each was asked for batches"
        assert lost[1] == lost[0], "and not again"
        assert not any(isinstance(request, BatchReadRequest) for b in cluster.bookies for request in b.requests)
