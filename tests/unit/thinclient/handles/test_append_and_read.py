"""Writing and reading through real connections to fake bookies."""

import asyncio
import random
from array import array
from collections.abc import AsyncIterator, Iterator
from dataclasses import replace
from typing import Any

import pytest

from bookgate.ledger.entry import decode_header
from bookgate.ledger.errors import (
    BKException,
    IllegalOpException,
    IncorrectParameterException,
    LedgerClosedException,
    LedgerFencedException,
    NoSuchEntryException,
    NoSuchLedgerExistsOnMetadataServerException,
    NotEnoughBookiesException,
    ReadException,
    UnauthorizedAccessException,
)
from bookgate.ledger.ledger_id import LedgerId
from bookgate.ledger.metadata import DigestType, LedgerMetadata, LedgerState
from bookgate.ledger.unbounded import close_unbounded, create_unbounded
from bookgate.ledger.wire.messages import AddRequest, ReadRequest
from tests.unit.thinclient.fakes import fake_cluster
from tests.unit.thinclient.inside import window_of


@pytest.mark.asyncio
@pytest.mark.parametrize("digest_type", DigestType)
async def test_what_was_appended_is_read_back_in_order(digest_type: DigestType) -> None:
    async with fake_cluster() as cluster:
        client = cluster.client()
        payloads = [f"entry {i}".encode() for i in range(700)]
        ledger = await client.create_ledger(
            digest_type=digest_type, password=b"planted-secret", custom_metadata={"a": b"b"}
        )
        assert await asyncio.gather(*(ledger.append(payload) for payload in payloads)) == list(range(700))
        await ledger.close()
        assert (ledger.last_add_confirmed, ledger.length) == (699, sum(map(len, payloads)))
        stored = cluster.metadata.records[ledger.ledger_id].metadata
        assert (stored.state, stored.last_entry_id, stored.length) == (LedgerState.CLOSED, 699, ledger.length)
        assert stored.custom_metadata == {"a": b"b"}

        reader = await client.open_ledger(ledger.ledger_id, b"planted-secret")
        entries = [entry async for entry in reader.read(0, reader.last_add_confirmed)]
        assert [entry.payload for entry in entries] == payloads
        assert [entry.entry_id for entry in entries] == list(range(700))
        assert entries[-1].ledger_length == ledger.length


@pytest.mark.asyncio
async def test_every_bookie_of_the_write_set_gets_the_same_packet() -> None:
    async with fake_cluster(5) as cluster:
        ledger = await cluster.client().create_ledger(ensemble_size=4, write_quorum_size=2, ack_quorum_size=2)
        await ledger.append_all(b"%d" % i for i in range(8))
        await ledger.close()
        ensemble = cluster.ensemble(ledger.metadata)
        for entry_id in range(8):
            holders = [i for i, b in enumerate(ensemble) if entry_id in b.ledgers[ledger.ledger_id.low].entries]
            assert sorted(holders) == sorted({entry_id % 4, (entry_id + 1) % 4})
            packets = {ensemble[i].ledgers[ledger.ledger_id.low].entries[entry_id] for i in holders}
            assert len(packets) == 1


@pytest.mark.asyncio
async def test_append_all_takes_iterables_and_async_iterables_and_nothing() -> None:
    async def slowly() -> AsyncIterator[bytes]:
        for i in range(5):
            await asyncio.sleep(0)
            yield b"%d" % i

    async with fake_cluster() as cluster:
        ledger = await cluster.client().create_ledger()
        assert await ledger.append_all([]) == -1
        assert await ledger.append_all([b"a", b"b"]) == 1
        assert await ledger.append_all(slowly()) == 6
        assert ledger.last_add_confirmed == 6
        single = ledger.append_nowait(b"x")
        assert await ledger.append_all([]) == 7
        assert await single == 7


@pytest.mark.asyncio
@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("sizes", [(1, 1, 1), (3, 2, 2), (3, 3, 2)])
async def test_any_mixture_of_appends_has_ids_in_the_order_of_the_calls(sizes: tuple[int, int, int], seed: int) -> None:
    chance = random.Random(seed)
    async with fake_cluster() as cluster:
        client = cluster.client(max_in_flight_entries=chance.choice([3, 50, 10_000]))
        ledger = await client.create_ledger(*sizes, guaranteed_write_quorum=chance.choice([False, True]))
        expected: list[bytes] = []
        alone: list[tuple[int, asyncio.Future[int]]] = []
        for _ in range(12):
            payloads = [
                b"x" * chance.randrange(300) + b"%d" % chance.getrandbits(30) for _ in range(chance.randrange(200))
            ]
            first = len(expected)
            expected += payloads
            match chance.randrange(3):
                case 0:
                    assert await ledger.append_all(iter(payloads)) == len(expected) - 1
                case 1:
                    ids = await asyncio.gather(*map(ledger.append, payloads))
                    assert ids == list(range(first, len(expected)))
                case _:
                    alone += enumerate(map(ledger.append_nowait, payloads), first)
        await ledger.close()
        assert [future.result() for _, future in alone] == [entry_id for entry_id, _ in alone]
        reader = await client.open_ledger(ledger.ledger_id)
        found = [entry async for entry in reader.read(0, reader.last_add_confirmed)] if expected else []
        assert [entry.payload for entry in found] == expected


@pytest.mark.asyncio
async def test_what_came_before_an_iterable_failed_is_appended() -> None:
    def broken() -> Iterator[bytes]:
        yield from (b"0", b"1", b"2")
        raise ValueError("no more")

    async with fake_cluster() as cluster:
        ledger = await cluster.client().create_ledger()
        with pytest.raises(ValueError, match="no more"):
            await ledger.append_all(broken())
        with pytest.raises(IncorrectParameterException):
            await ledger.append_all([b"3", "4"])  # type: ignore[list-item]
        await ledger.close()
        assert ledger.last_add_confirmed == 3


@pytest.mark.asyncio
async def test_a_close_in_the_same_turn_takes_what_was_appended_before() -> None:
    async with fake_cluster() as cluster:
        ledger = await cluster.client().create_ledger()
        appended = ledger.append_nowait(b"x")
        closing = asyncio.ensure_future(ledger.close())
        await closing
        assert appended.result() == 0
        other = await cluster.client().create_ledger()
        appended = other.append_nowait(b"x")
        await other.close()
        assert appended.result() == 0


@pytest.mark.asyncio
async def test_a_writer_that_ends_before_the_turn_does_fails_what_was_appended() -> None:
    async with fake_cluster() as cluster:
        client = cluster.client()
        ledger = await client.create_ledger()
        await ledger.append(b"x")
        cancelled, appended = (ledger.append_nowait(b"y") for _ in range(2))
        cancelled.cancel()
        ledger._end(LedgerFencedException())
        with pytest.raises(LedgerFencedException):
            await appended
        assert window_of(ledger).entries == window_of(ledger).retained_entries == 0


@pytest.mark.asyncio
async def test_concurrent_bulk_appends_keep_their_entries_together() -> None:
    async with fake_cluster() as cluster:
        client = cluster.client(max_in_flight_entries=2)
        ledger = await client.create_ledger()
        runs = [[b"%d" % run] * 20 for run in range(3)]
        assert await asyncio.gather(*map(ledger.append_all, runs)) == [19, 39, 59]
        await ledger.close()
        reader = await client.open_ledger(ledger.ledger_id)
        assert [entry.payload async for entry in reader.read(0, 59)] == [b for run in runs for b in run]


@pytest.mark.asyncio
async def test_no_more_is_in_flight_than_configured() -> None:
    async with fake_cluster() as cluster:
        for bookie in cluster.bookies:
            bookie.holding = True
        ledger = await cluster.client(max_in_flight_entries=10).create_ledger()
        appending = asyncio.ensure_future(ledger.append_all([b"x"] * 25))
        for bookie in cluster.bookies:
            await bookie.until_requested(10)
        assert window_of(ledger).entries == 10
        assert all(len(bookie.held) == 10 for bookie in cluster.bookies)
        for bookie in cluster.bookies:
            bookie.let_go()
        assert await appending == 24


@pytest.mark.asyncio
async def test_a_slow_bookie_bounds_what_is_retained() -> None:
    """Two bookies acknowledge; the third keeps everything unanswered, so only so much runs ahead of it."""
    async with fake_cluster() as cluster:
        ledger = await cluster.client(max_in_flight_entries=10).create_ledger()
        slow = cluster.ensemble(ledger.metadata)[2]
        slow.holding = True
        appending = asyncio.ensure_future(ledger.append_all([b"x"] * 100))
        await slow.until_requested(20)
        assert (window_of(ledger).retained_entries, len(slow.held)) == (20, 20)
        slow.let_go()
        assert await appending == 99


@pytest.mark.asyncio
async def test_an_entry_larger_than_the_in_flight_bytes_passes_alone() -> None:
    async with fake_cluster() as cluster:
        ledger = await cluster.client(max_in_flight_bytes=10).create_ledger()
        assert await ledger.append_all([b"x" * 100, b"y" * 100, b"z"]) == 2


@pytest.mark.asyncio
async def test_an_entry_over_the_size_limit_is_refused_before_anything_is_sent() -> None:
    async with fake_cluster() as cluster:
        ledger = await cluster.client(max_frame_size_bytes=2048).create_ledger()
        largest = 2048 - 500 - 32 - 4
        assert await ledger.append(b"x" * largest) == 0
        for attempt in (ledger.append, ledger.append_nowait):
            with pytest.raises(IncorrectParameterException, match=f"at most {largest} bytes"):
                await attempt(b"x" * (largest + 1))
        with pytest.raises(IncorrectParameterException):
            await ledger.append_all([b"x" * (largest + 1)])
        assert await ledger.append(b"next") == 1
        assert all(len([r for r in b.requests if isinstance(r, AddRequest)]) == 2 for b in cluster.bookies)


@pytest.mark.asyncio
@pytest.mark.parametrize("payload", ["text", 5, None, [b"x"]])
async def test_what_is_no_payload_is_refused_and_the_ledger_goes_on(payload: Any) -> None:
    async with fake_cluster() as cluster:
        ledger = await cluster.client().create_ledger()
        for append in (ledger.append(payload), ledger.append_all([payload])):
            with pytest.raises(IncorrectParameterException, match=type(payload).__name__):
                await append
        with pytest.raises(IncorrectParameterException):
            ledger.append_nowait(payload)
        async with asyncio.timeout(10):
            assert await ledger.append(b"x") == 0
            await ledger.close()


@pytest.mark.asyncio
async def test_lengths_count_bytes_whatever_the_view() -> None:
    async with fake_cluster() as cluster:
        ledger = await cluster.client().create_ledger()
        payload = memoryview(array("i", range(10)))
        await ledger.append(payload)
        assert ledger.length == payload.nbytes > len(payload)


@pytest.mark.asyncio
async def test_packets_carry_the_lac_and_the_running_length() -> None:
    async with fake_cluster() as cluster:
        ledger = await cluster.client().create_ledger()
        for payload in (b"a", b"bb", b"ccc"):
            await ledger.append(payload)
        entries = cluster.bookies[0].ledgers[ledger.ledger_id.low].entries
        headers = [decode_header(entries[i]) for i in range(3)]
        assert [(h.last_add_confirmed, h.length) for h in headers] == [(-1, 1), (0, 3), (1, 6)]


@pytest.mark.asyncio
async def test_appends_after_close_fail_and_close_waits_for_outstanding_ones() -> None:
    async with fake_cluster() as cluster:
        for bookie in cluster.bookies:
            bookie.holding = True
        ledger = await cluster.client().create_ledger()
        outstanding = [ledger.append_nowait(b"x") for _ in range(3)]
        closing = asyncio.ensure_future(ledger.close())
        for bookie in cluster.bookies:
            await bookie.until_requested(3)
        with pytest.raises(LedgerClosedException):
            await ledger.append(b"late")
        assert not closing.done()
        for bookie in cluster.bookies:
            bookie.let_go()
        await closing
        assert await asyncio.gather(*outstanding) == [0, 1, 2]
        assert cluster.metadata.records[ledger.ledger_id].metadata.last_entry_id == 2
        await ledger.close()


@pytest.mark.asyncio
async def test_nothing_of_a_scoped_ledger_is_sent_to_a_bookie_that_does_not_understand_it() -> None:
    """It would take (scope, id) for (0, id). The bookies here have no features, as those of an older version."""
    async with fake_cluster() as cluster:
        client = cluster.client()
        ledger = await client.create_ledger(ledger_id=7)
        scoped = LedgerId(5, 7)
        with pytest.raises(NotEnoughBookiesException, match=r"3 other bookies do not understand .* Upgrade them"):
            await client.create_ledger(ledger_id=scoped)
        await cluster.metadata.create(scoped, ledger.metadata)
        with pytest.raises(BKException, match="does not understand ledgers with a scope"):
            await client.open_ledger(scoped)
        assert not any(bookie.requests for bookie in cluster.bookies)


@pytest.mark.asyncio
async def test_create_says_what_is_wrong() -> None:
    async with fake_cluster(2) as cluster:
        client = cluster.client()
        with pytest.raises(NotEnoughBookiesException, match="there are 2: 127"):
            await client.create_ledger()
        with pytest.raises(IncorrectParameterException, match="ack quorum 3"):
            await client.create_ledger(2, 2, 3)


@pytest.mark.asyncio
async def test_open_says_what_is_wrong_before_any_bookie_is_asked() -> None:
    async with fake_cluster() as cluster:
        client = cluster.client()
        ledger = await client.create_ledger(password=b"planted-right")
        for recovery in (True, False):
            with pytest.raises(UnauthorizedAccessException, match=f"ledger {ledger.ledger_id} "):
                await client.open_ledger(ledger.ledger_id, b"wrong", recovery=recovery)
        with pytest.raises(NoSuchLedgerExistsOnMetadataServerException):
            await client.open_ledger(4711)
        with pytest.raises(IncorrectParameterException):
            await client.open_ledger(-1)
        assert not any(bookie.requests for bookie in cluster.bookies)


@pytest.mark.asyncio
async def test_ranges_are_checked() -> None:
    async with fake_cluster() as cluster:
        client = cluster.client()
        async with await client.create_ledger() as ledger:
            await ledger.append_all([b"x"] * 5)
        reader = await client.open_ledger(ledger.ledger_id)
        for first, last in ((-1, 0), (3, 1)):
            with pytest.raises(IncorrectParameterException):
                await anext(reader.read(first, last))
        with pytest.raises(ReadException, match="last confirmed entry known here is 4"):
            await anext(reader.read(0, 5))
        assert [entry async for entry in reader.read(0, -1)] == []
        assert [entry.entry_id async for entry in reader.read(2, 3)] == [2, 3]


@pytest.mark.asyncio
async def test_read_batches_are_full_and_in_order() -> None:
    async with fake_cluster() as cluster:
        client = cluster.client(read_ahead_entries=64)
        async with await client.create_ledger() as ledger:
            await ledger.append_all(b"%d" % i for i in range(1050))
        reader = client.open_record(cluster.metadata.records[ledger.ledger_id])
        batches = [batch async for batch in reader.read_batches(0, 1049, max_entries=500)]
        assert [len(batch) for batch in batches] == [500, 500, 50]
        assert [e.payload for batch in batches for e in batch] == [b"%d" % i for i in range(1050)]


@pytest.mark.asyncio
@pytest.mark.parametrize("batch_reads", [True, False])
async def test_columns_are_the_entries_in_order(batch_reads: bool) -> None:
    async with fake_cluster() as cluster:
        client = cluster.client(read_ahead_entries=64, batch_reads=batch_reads)
        async with await client.create_ledger() as ledger:
            await ledger.append_all(b"%d" % i for i in range(1050))
        reader = client.open_record(cluster.metadata.records[ledger.ledger_id])
        runs = [run async for run in reader.read_columns(3, 1049, max_entries=40)]
        assert all(0 < len(run) <= 40 for run in runs)
        assert [tuple(entry) for run in runs for entry in run] == [tuple(entry) async for entry in reader.read(3, 1049)]
        assert [run async for run in reader.read_columns(3, 2)] == []
        with pytest.raises(ReadException, match="last confirmed entry known here is 1049"):
            await anext(reader.read_columns(0, 1050))
        for bookie in cluster.bookies:
            bookie.ledgers[ledger.ledger_id.low].entries.pop(700, None)
        found: list[int] = []

        async def read_all() -> None:
            async for run in reader.read_columns(0, 1049):
                found.extend(entry.entry_id for entry in run)

        with pytest.raises(NoSuchEntryException, match="entry 700"):
            await read_all()
        assert found == list(range(700))


@pytest.mark.asyncio
async def test_a_full_write_set_is_read_from_one_replica() -> None:
    async with fake_cluster() as cluster:
        client = cluster.client(batch_reads=False)
        async with await client.create_ledger() as ledger:
            await ledger.append_all([b"x"] * 100)
        reader = await client.open_ledger(ledger.ledger_id)
        assert len([entry async for entry in reader.read(0, 99)]) == 100
        reads = [sum(isinstance(r, ReadRequest) for r in bookie.requests) for bookie in cluster.bookies]
        assert sorted(reads) == [0, 0, 100]


@pytest.mark.asyncio
async def test_open_without_recovery_leaves_the_writer_alone_and_sees_what_is_confirmed() -> None:
    async with fake_cluster() as cluster:
        client = cluster.client()
        ledger = await client.create_ledger()
        for i in range(5):
            await ledger.append(b"%d" % i)
        reader = await client.open_ledger(ledger.ledger_id)
        assert reader.last_add_confirmed == 3
        await ledger.append(b"5")
        assert await reader.read_last_confirmed() == 4
        await ledger.close()
        assert (reader.last_add_confirmed, reader.is_closed) == (5, True)
        await reader.close()
        assert not any(cluster.metadata.listeners.values())


@pytest.mark.asyncio
@pytest.mark.parametrize("protocol", ["v3", "v2"])
async def test_reading_what_nobody_acknowledged_confirms_nothing(protocol: str) -> None:
    """P10: a response of v2 has no LAC of its own."""
    async with fake_cluster(3) as cluster:
        ledger = await cluster.client().create_ledger(3, 3, 2, password=b"planted-p")
        first, *others = cluster.ensemble(ledger.metadata)
        for bookie in others:
            bookie.silent = True
        under_way = ledger.append_nowait(b"on one bookie")
        await first.until_requested(1, AddRequest)
        for bookie in others:
            bookie.silent = False
        reader = await cluster.client(wire_protocol=protocol).open_ledger(ledger.ledger_id, b"planted-p")
        assert [entry.payload async for entry in reader.read_unconfirmed(0, 0)] == [b"on one bookie"]
        assert reader.last_add_confirmed == -1
        under_way.cancel()


@pytest.mark.asyncio
async def test_ids_that_are_no_addresses_are_resolved_and_deletion_is_idempotent() -> None:
    async with fake_cluster(names=["alpha", "beta", "gamma"]) as cluster:
        client = cluster.client()
        async with await client.create_ledger() as ledger:
            await ledger.append(b"x")
        assert sorted(cluster.discovery.lookups) == ["alpha", "beta", "gamma"]
        await client.delete_ledger(ledger.ledger_id)
        await client.delete_ledger(ledger.ledger_id)
        with pytest.raises(NoSuchLedgerExistsOnMetadataServerException):
            await client.read_record(ledger.ledger_id)


@pytest.mark.asyncio
async def test_an_empty_open_ledger_can_be_taken_up_and_one_with_entries_can_not() -> None:
    async with fake_cluster() as cluster:
        client = cluster.client()
        empty = await client.create_ledger(password=b"planted-p", ledger_id=LedgerId.unscoped(77))
        again = await client.reopen_empty_ledger(empty.ledger_id, b"planted-p")
        await again.append(b"x")
        with pytest.raises(IllegalOpException, match="another writer has taken it up"):
            await client.reopen_empty_ledger(empty.ledger_id, b"planted-p")
        await again.close()
        written = await client.create_ledger()
        await written.append(b"x")
        with pytest.raises(IllegalOpException, match="it has entries already"):
            await client.reopen_empty_ledger(written.ledger_id)
        with pytest.raises(IllegalOpException, match="it is CLOSED"):
            await client.reopen_empty_ledger(empty.ledger_id, b"planted-p")


@pytest.mark.asyncio
async def test_an_unbounded_ledger_is_not_opened_as_an_ordinary_one() -> None:
    async with fake_cluster() as cluster:
        client = cluster.client()
        members = [bookie.bookie_id for bookie in cluster.bookies]
        metadata = create_unbounded(LedgerMetadata.new(members, 3, 2))
        record = await cluster.metadata.create(LedgerId.unscoped(7), metadata)
        for call in (client.open_ledger(7, recovery=True), client.reopen_empty_ledger(7)):
            with pytest.raises(IllegalOpException, match="ledger 7 is unbounded"):
                await call
        closed = replace(record, metadata=close_unbounded(metadata, 4, 40))
        assert await client.last_adds_confirmed([record, closed]) == [-1, 4]
        assert (await cluster.metadata.read(record.ledger_id)).metadata == metadata
