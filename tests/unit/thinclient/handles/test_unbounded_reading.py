"""What a reader of an unbounded ledger tells bookies and believes of them, over real connections to fake bookies."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from bookgate import BookKeeper
from bookgate.ledger.digest import digest_for
from bookgate.ledger.entry import encode_entry
from bookgate.ledger.errors import EntryNotConfirmedException, LedgerTrimmedException, NoSuchEntryException
from bookgate.ledger.metadata import DigestType, Fragment, LedgerMetadata
from bookgate.ledger.metadata_store import LedgerRecord
from bookgate.ledger.quorum import write_set
from bookgate.ledger.unbounded import begin_fragment, begin_term, create_unbounded, may_show, open_term, trim
from bookgate.ledger.wire.messages import BatchReadRequest, ReadRequest, ReadResponse, Request, Response, Status
from bookgate.thinclient.handles.read_handle import ReadHandle
from bookgate.thinclient.handles.write_handle import WriteHandle
from tests.unit.thinclient.fakes import FakeCluster, fake_cluster

FIRST_OF_THE_LAST = 5
DIGEST = DigestType.CRC32C


async def unbounded_record(cluster: FakeCluster, ledger: WriteHandle) -> LedgerRecord:
    """The ledger's entries, in the metadata of an unbounded one of which two fragments are on the same bookies."""
    record = cluster.metadata.records[ledger.ledger_id]
    metadata = begin_term(create_unbounded(replace(record.metadata, length=0, last_entry_id=-1)), 7)
    ensemble = metadata.last_fragment.ensemble
    changed = open_term(begin_fragment(metadata, Fragment(FIRST_OF_THE_LAST, ensemble[::-1]), 50))
    return replace(record, metadata=changed)


def reads(cluster: FakeCluster) -> list[ReadRequest]:
    return [each for bookie in cluster.bookies for each in bookie.requests if isinstance(each, ReadRequest)]


@pytest.mark.asyncio
async def test_bookies_are_told_the_end_of_the_complete_fragments_and_never_the_lac() -> None:
    """By another's LAC one that has left the ensemble would show what an earlier term has written (U4)."""
    async with fake_cluster() as cluster:
        client = cluster.client(batch_reads=True)
        ledger = await client.create_ledger()
        for number in range(9):
            await ledger.append(b"entry %d" % number)
        reader = client.open_record(await unbounded_record(cluster, ledger))
        assert await reader.try_read_last_confirmed() >= 7
        for bookie in cluster.bookies:
            bookie.requests.clear()
        assert [entry.entry_id async for entry in reader.read(6, 6)] == [6]
        assert [entry.entry_id async for entry in reader.read(5, 7)] == [5, 6, 7]
        singles = [each for each in reads(cluster) if each.entry_id >= 0]
        assert {each.entry_id for each in singles} == {5, 6, 7}
        assert {each.known_lac for each in singles} == {FIRST_OF_THE_LAST - 1}
        batches = [each for bookie in cluster.bookies for each in bookie.requests if isinstance(each, BatchReadRequest)]
        assert batches == [], "answers to batches tell no term"


@pytest.mark.asyncio
async def test_below_the_watermark_the_reader_is_told_what_there_is() -> None:
    async with fake_cluster() as cluster:
        client = cluster.client()
        ledger = await client.create_ledger()
        for number in range(9):
            await ledger.append(b"entry %d" % number)
        record = await unbounded_record(cluster, ledger)
        trimmed = replace(
            record.metadata,
            fragments=(replace(record.metadata.fragments[0], first_entry_id=3), *record.metadata.fragments[1:]),
        )
        reader = client.open_record(replace(record, metadata=trimmed))
        await reader.try_read_last_confirmed()
        assert reader.first_entry_id == 3
        for below, last in ((2, 2), (0, 7)):
            with pytest.raises(LedgerTrimmedException) as told:
                [entry async for entry in reader.read(below, last)]
            assert told.value.first_available == 3
        assert [entry.entry_id async for entry in reader.read(3, 7)] == [3, 4, 5, 6, 7]


async def opened(cluster: FakeCluster) -> tuple[ReadHandle, LedgerRecord]:
    """A reader of nine entries in two fragments, and what the store has of the ledger."""
    client = cluster.client(read_timeout_seconds=1.0, tail_poll_interval_seconds=0.01)
    ledger = await client.create_ledger()
    for number in range(9):
        await ledger.append(b"entry %d" % number)
    record = await unbounded_record(cluster, ledger)
    record = cluster.metadata.records[ledger.ledger_id] = replace(record, version=record.version + 1)
    reader = await client.open_ledger(ledger.ledger_id)
    assert await reader.try_read_last_confirmed() == 7
    return reader, record


def denying(status: Status, count: int) -> Callable[[Request], Status | None]:
    """The first reads of entry 7 are answered with this status."""
    left = [count]

    def override(request: Request) -> Status | None:
        if not isinstance(request, ReadRequest) or request.entry_id != 7 or not left[0]:
            return None
        left[0] -= 1
        return status

    return override


@pytest.mark.asyncio
async def test_what_no_bookie_knows_to_be_confirmed_is_waited_for() -> None:
    """The LAC of all of them may lag behind that of the entry's own writer."""
    async with fake_cluster() as cluster:
        reader, _ = await opened(cluster)
        for bookie in cluster.bookies:
            bookie.override = denying(Status.ENOTCONFIRMED, 3)
        assert [entry.entry_id async for entry in reader.read(7, 7)] == [7]
        for bookie in cluster.bookies:
            bookie.override = denying(Status.ENOTCONFIRMED, -1)
        with pytest.raises(EntryNotConfirmedException):
            [entry async for entry in reader.read(7, 7)]


@pytest.mark.asyncio
async def test_what_all_bookies_lack_may_be_trimmed_and_is_lost_only_if_the_metadata_say_no_more() -> None:
    async with fake_cluster() as cluster:
        reader, record = await opened(cluster)
        for bookie in cluster.bookies:
            bookie.override = denying(Status.ENOENTRY, -1)
        with pytest.raises(NoSuchEntryException):
            [entry async for entry in reader.read(7, 7)]
        begun = begin_fragment(record.metadata, Fragment(9, record.metadata.last_fragment.ensemble), 80)
        cluster.metadata.records[record.ledger_id] = replace(
            record, metadata=trim(begun, 8), version=record.version + 1
        )
        with pytest.raises(LedgerTrimmedException) as told:
            [entry async for entry in reader.read(7, 7)]
        assert told.value.first_available == 8


@pytest.mark.asyncio
async def test_the_end_never_moves_back() -> None:
    """A bookie may know less than another one has told."""
    async with fake_cluster() as cluster:
        reader, _ = await opened(cluster)
        for bookie in cluster.bookies:
            for ledger in bookie.ledgers.values():
                del ledger.entries[8], ledger.entries[7]
        assert await reader.try_read_last_confirmed() == 7
        assert reader.last_add_confirmed == 7


@pytest.mark.asyncio
async def test_a_long_poll_takes_an_entry_from_its_write_set_only() -> None:
    """A take-over writes it there alone, and deletes only what is above its end: others may hold what was before."""
    async with fake_cluster() as cluster:
        client = cluster.client()
        ledger = await client.create_ledger(ensemble_size=3, write_quorum_size=2, ack_quorum_size=2)
        for number in range(9):
            await ledger.append(b"entry %d" % number)
        record = await unbounded_record(cluster, ledger)
        members = cluster.ensemble(record.metadata)
        number, write = record.ledger_id.number, write_set(FIRST_OF_THE_LAST, 3, 2)
        for index, bookie in enumerate(members):
            value = b"new" if index in write else b"old"
            packet = encode_entry(digest_for(DIGEST, b""), number, FIRST_OF_THE_LAST, 4, 60, value)
            bookie.ledgers[number].entries[FIRST_OF_THE_LAST] = packet
        for index, bookie in enumerate(members):
            for other in members:
                other.silent = other is not bookie
            reader = client.open_record(record)
            found = await reader.read_last_confirmed_and_entry(FIRST_OF_THE_LAST, parallel=True)
            assert found.last_add_confirmed >= FIRST_OF_THE_LAST
            assert (found.entry and found.entry.payload) == (b"new" if index in write else None)


def being_taken_over(cluster: FakeCluster, record: LedgerRecord) -> LedgerRecord:
    """The next take-over has begun, and the store has it."""
    taken = replace(record, metadata=begin_term(record.metadata, 8), version=record.version + 1)
    cluster.metadata.records[record.ledger_id] = taken
    return taken


@pytest.mark.asyncio
async def test_what_a_take_over_shows_that_goes_on_is_read() -> None:
    """It may have died: nobody repeats it, and what was confirmed is readable still."""
    async with fake_cluster() as cluster:
        reader, record = await opened(cluster)
        being_taken_over(cluster, record)
        await reader.read_last_confirmed()
        assert [entry.entry_id async for entry in reader.read(7, 7)] == [7]
        assert [entry.entry_id async for entry in reader.read(3, 7)] == [3, 4, 5, 6, 7]


@pytest.mark.asyncio
@pytest.mark.parametrize("first", [7, 6, 3])
async def test_what_was_read_when_a_take_over_ended_is_read_again_with_the_metadata_that_it_left(first: int) -> None:
    """A bookie that it replaced in memory and that has joined again holds what an earlier term has left (U4)."""
    async with fake_cluster() as cluster:
        _, record = await opened(cluster)
        taken = being_taken_over(cluster, record)
        number = record.ledger_id.number
        left: list[LedgerRecord] = []

        async def catch_up() -> None:
            cluster.metadata.records[record.ledger_id] = left[-1]

        def end_the_take_over(response: Response) -> Response:
            if isinstance(response, ReadResponse) and response.entry_id == 7 and not left:
                left.append(replace(taken, metadata=open_term(taken.metadata), version=taken.version + 1))
                for bookie in cluster.bookies:
                    bookie.ledgers[number].entries[7] = encode_entry(digest_for(DIGEST, b""), number, 7, 6, 99, b"new")
            return response

        for bookie in cluster.bookies:
            bookie.tamper = end_the_take_over
        async with BookKeeper(cluster.metadata, cluster.discovery, catch_up=catch_up) as client:
            reader = client.open_record(taken)
            assert await reader.try_read_last_confirmed() == 7
            found = [entry async for entry in reader.read(first, 7)]
        assert [entry.entry_id for entry in found] == list(range(first, 8))
        assert found[-1].payload == b"new"
        assert reader.record == left[-1]


@pytest.mark.asyncio
async def test_during_a_take_over_a_long_poll_tells_the_lac_alone() -> None:
    """Whether the take-over still went on when the bookie answered, it does not tell."""
    async with fake_cluster() as cluster:
        _, record = await opened(cluster)
        client = cluster.client()
        found = await client.open_record(record).read_last_confirmed_and_entry(FIRST_OF_THE_LAST)
        assert found.entry is not None
        taken = being_taken_over(cluster, record)
        found = await client.open_record(taken).read_last_confirmed_and_entry(FIRST_OF_THE_LAST)
        assert (found.last_add_confirmed, found.entry) == (7, None)


@pytest.mark.parametrize(
    ("entry_id", "bookie_term", "shown"), [(4, 9, True), (5, 1, True), (5, None, True), (5, 2, False)]
)
def test_in_the_last_fragment_no_bookie_of_a_later_term_is_believed(
    entry_id: int, bookie_term: int | None, shown: bool
) -> None:
    metadata = begin_term(create_unbounded(LedgerMetadata.new(("a", "b", "c"), 3, 2)), 7)
    metadata = open_term(begin_fragment(metadata, Fragment(5, ("d", "e", "f")), 0))
    assert may_show(metadata, entry_id, bookie_term) == shown
    assert may_show(LedgerMetadata.new(("a", "b", "c"), 3, 2), entry_id, bookie_term)
