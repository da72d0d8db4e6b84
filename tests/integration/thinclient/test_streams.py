"""Streams on real bookies: written, read from anywhere, by cursors, taken over, trimmed, deleted."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from bookgate import BookKeeper, LedgerOptions
from bookgate.bookie.standalone.cluster import StandaloneCluster
from bookgate.ledger.errors import (
    CursorMovedException,
    IllegalOpException,
    IncorrectParameterException,
    LedgerClosedException,
    LedgerExistException,
    LedgerTrimmedException,
    MetaStoreException,
    NoSuchLedgerExistsOnMetadataServerException,
    TermSupersededException,
    UnauthorizedAccessException,
    UnknownOutcomeException,
)
from bookgate.ledger.ledger_id import LedgerId
from bookgate.ledger.metadata import LedgerMetadata
from bookgate.ledger.metadata_store import LedgerRecord
from bookgate.ledger.payload_codec import RecordPosition
from bookgate.ledger.streams import cursor_record_id, stream_record_id
from bookgate.streams import Retention, Start, Stream, StreamReader, Streams, open_stream
from bookgate.thinclient.core.streams.appends import StreamAppends
from bookgate.thinclient.gateways.ledger_manager import RpcLedgerManager
from bookgate.thinclient.handles.read_handle import ReadHandle
from bookgate.thinclient.handles.unbounded.write_handle import UnboundedWriteHandle
from bookgate.thinclient.streams import stream as stream_module
from bookgate.thinclient.streams.writer import begin_term
from tests.integration.bookie.in_process import until
from tests.integration.cluster import own_cluster, standalone_cluster

__all__ = ["own_cluster", "standalone_cluster"]

PATIENCE_SECONDS = 250

Call = Callable[[], Awaitable[None]]


def texts(name: str, count: int, first: int = 0) -> list[bytes]:
    return [b"%s %d" % (name.encode(), number) for number in range(first, first + count)]


async def taken(reader: StreamReader, count: int) -> list[bytes]:
    """The next records, so many."""
    found: list[bytes] = []
    if count:
        async with asyncio.timeout(PATIENCE_SECONDS):
            async for record in reader.records():
                found.append(record.payload)
                if len(found) == count:
                    break
    return found


async def everything(stream: Stream, start: Start = Start.EARLIEST) -> list[bytes]:
    """All that is confirmed when it is called; the last records of a writer that is open may be missing."""
    async with await stream.reader(start, follow=False) as reader:
        return [record.payload async for record in reader.records()]


@pytest.mark.asyncio
async def test_records_are_read_in_order_across_writers(standalone_cluster: StandaloneCluster) -> None:
    async with await BookKeeper.connect(standalone_cluster.gateway_uri) as client:
        stream = await open_stream(client, "orders", b"secret")
        wrote: list[bytes] = []
        async with await stream.reader() as reader:
            for term in range(1, 4):
                async with await stream.writer(batch_bytes=64) as writer:
                    assert writer.term == term
                    records = texts(f"term-{term}", 30)
                    position = await writer.append_all(records)
                    assert position is not None
                    wrote += records
                assert await taken(reader, 30) == records
        assert await everything(await Streams(client).open("orders", b"secret")) == wrote


@pytest.mark.asyncio
async def test_a_writer_that_is_cancelled_as_it_begins_waits_for_no_bookie(
    own_cluster: StandaloneCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    handles: list[UnboundedWriteHandle] = []

    async def begin_without_bookies(handle: UnboundedWriteHandle, reader: ReadHandle, size: int) -> StreamAppends:
        handles.append(handle)
        for process in own_cluster.processes[:2]:
            process.kill()
        return await begin_term(handle, reader, size)

    monkeypatch.setattr(stream_module, "begin_term", begin_without_bookies)
    async with await BookKeeper.connect(own_cluster.gateway_uri) as client:
        stream = await open_stream(client, "cancelled")
        call = asyncio.create_task(stream.writer())
        await until(lambda: handles and handles[0].pending_adds)
        call.cancel()
        async with asyncio.timeout(20):
            with pytest.raises(asyncio.CancelledError):
                await call
        assert handles[0].pending_adds == 0
        with pytest.raises(LedgerClosedException):
            await handles[0].append(b"too late")


@pytest.mark.asyncio
async def test_a_stream_of_which_the_record_alone_is_still_seen_is_told_as_deleted(
    standalone_cluster: StandaloneCluster,
) -> None:
    """As a gateway may show it for a moment after a deletion by way of another one."""
    async with await BookKeeper.connect(standalone_cluster.gateway_uri) as client:
        stream = await open_stream(client, "half-deleted")
        assert await client.delete_ledger(stream.ledger_id)
        for use in (stream.state, stream.reader, stream.writer):
            with pytest.raises(NoSuchLedgerExistsOnMetadataServerException, match="no stream 'half-deleted'"):
                await use()
        assert await Streams(client).delete("half-deleted")
        with pytest.raises(NoSuchLedgerExistsOnMetadataServerException, match="no stream 'half-deleted'"):
            await stream.cursors()


@pytest.mark.asyncio
async def test_a_writer_ends_when_another_begins(standalone_cluster: StandaloneCluster) -> None:
    async with await BookKeeper.connect(standalone_cluster.gateway_uri) as client:
        stream = await open_stream(client, "fought-for")
        first = await stream.writer()
        await first.append(b"one", producer="p", sequence=1)
        second = await stream.writer()
        with pytest.raises(TermSupersededException):
            await first.append(b"two", producer="p", sequence=2)
        with pytest.raises(TermSupersededException):
            await first.append(b"three")
        assert second.last_sequence("p") == 1
        assert await second.append(b"one", producer="p", sequence=1) is None
        assert await second.append(b"two", producer="p", sequence=2)
        await first.close()
        await second.close()
        assert await everything(stream) == [b"one", b"two"]


@pytest.mark.asyncio
async def test_a_producer_that_repeats_appends_once_across_take_overs(standalone_cluster: StandaloneCluster) -> None:
    """Each writer is left behind in the middle, and the producers begin a little before where they were."""
    async with await BookKeeper.connect(standalone_cluster.gateway_uri) as client:
        stream = await open_stream(client, "exactly-once")
        numbers = {"a": 0, "b": 0}
        for _ in range(6):
            writer = await stream.writer(batch_bytes=40)
            for name in numbers:
                begin = max(0, numbers[name] - 5)
                await writer.append_all(texts(name, 20, begin), producer=name, first_sequence=begin)
                numbers[name] = begin + 20
            await writer.close()
        expected = sorted(texts("a", numbers["a"]) + texts("b", numbers["b"]))
        assert sorted(await everything(stream)) == expected


@pytest.mark.asyncio
async def test_cursors_go_on_where_they_committed(standalone_cluster: StandaloneCluster) -> None:
    async with await BookKeeper.connect(standalone_cluster.gateway_uri) as client:
        stream = await open_stream(client, "with-cursors")
        async with await stream.writer(batch_bytes=100) as writer:
            await writer.append_all(texts("r", 50))
        async with await stream.reader(cursor="billing") as reader:
            assert await taken(reader, 7) == texts("r", 7)
            await reader.commit()
            assert await taken(reader, 3) == texts("r", 3, 7)
        async with await stream.reader(cursor="billing") as reader, await stream.reader(cursor="billing") as other:
            assert await taken(reader, 5) == texts("r", 5, 7)
            await reader.commit()
            await taken(other, 2)
            with pytest.raises(CursorMovedException):
                await other.commit()
        cursor = (await stream.cursors())[0]
        assert cursor.name == "billing"
        # A repair of the record, for instance, is no move of the cursor.
        await client.update_custom_metadata(cursor_record_id("with-cursors", "billing"), {"else": b"changed"})
        await cursor.commit(RecordPosition(cursor.position.entry_id + 1, 0))
        with pytest.raises(IncorrectParameterException, match="reset"):
            await cursor.commit(RecordPosition(0, 0))
        await cursor.reset(RecordPosition(0, 0))
        async with await stream.reader(cursor="billing") as reader:
            assert await taken(reader, 1) == texts("r", 1)
        with pytest.raises(IllegalOpException):
            async with await stream.reader() as reader:
                await reader.commit()
        assert await stream.delete_cursor("billing")
        assert not await stream.delete_cursor("billing")
        assert await stream.cursors() == []


@pytest.mark.asyncio
async def test_reading_from_a_time_and_from_the_end(standalone_cluster: StandaloneCluster) -> None:
    async with await BookKeeper.connect(standalone_cluster.gateway_uri) as client:
        stream = await open_stream(client, "by-time")
        for term in range(4):
            async with await stream.writer(batch_bytes=30) as writer:
                await writer.append_all(texts(f"t{term}", 25))
        async with await stream.reader(follow=False) as reader:
            records = [record async for record in reader.records()]
        for record in (records[0], records[31], records[-1]):
            since = datetime.fromtimestamp(record.append_time_ms / 1000, UTC)
            async with await stream.reader(since, follow=False) as reader:
                found = [each async for each in reader.records()]
            assert found == [each for each in records if each.append_time_ms >= record.append_time_ms]
        async with await stream.reader(datetime(2100, 1, 1, tzinfo=UTC), follow=False) as reader:
            assert [each async for each in reader.records()] == []
        with pytest.raises(IncorrectParameterException, match="time zone"):
            await stream.position_of(datetime(2020, 1, 1))
        async with await stream.reader(Start.LATEST) as tail, await stream.writer() as writer:
            await writer.append(b"news")
            assert await taken(tail, 1) == [b"news"]


@pytest.mark.asyncio
async def test_how_far_cursors_are_behind_is_told_while_there_are_a_writer_and_the_stream(
    standalone_cluster: StandaloneCluster,
) -> None:
    async with (
        await BookKeeper.connect(standalone_cluster.gateway_uri) as client,
        await BookKeeper.connect(standalone_cluster.gateway_uri) as elsewhere,
    ):
        stream, lags = await Streams(client).create("behind"), client.metrics.cursor_lags
        namesake = await Streams(client, scope_id=7).create("behind")
        await stream.cursor("c")
        async with await stream.writer(retention_interval_seconds=0.05) as writer:
            await writer.append(b"x")
            await until(lambda: lags.get(stream.ledger_id, 0) > 0)
            await (await Streams(elsewhere).open("behind")).apply_retention()
            assert not elsewhere.metrics.cursor_lags, "nobody would measure it again there"
            async with await namesake.writer():
                assert lags.keys() == {stream.ledger_id, namesake.ledger_id}
            assert lags.keys() == {stream.ledger_id}
            await Streams(client).delete("behind")
            await until(lambda: not lags)
        async with await namesake.writer():
            pass
        assert not lags


@pytest.mark.asyncio
async def test_retention_by_size_waits_for_cursors(standalone_cluster: StandaloneCluster) -> None:
    """The retention reaches complete fragments only, and never what a cursor has not committed."""
    async with await BookKeeper.connect(standalone_cluster.gateway_uri) as client:
        stream = await Streams(client).create("kept", retention=Retention(max_bytes=2000), max_fragment_entries=5)
        slow = await stream.cursor("slow")
        async with await stream.writer(batch_bytes=100) as writer:
            await writer.append_all(texts("first", 200))
        async with await stream.writer(batch_bytes=100) as writer:
            await writer.append_all(texts("second", 200))
            assert await stream.apply_retention() == 0
            assert client.metrics.gauges["STREAM_CURSOR_LAG_SECONDS"]() > 0
            async with await stream.reader(cursor="slow") as reader:
                await taken(reader, 200)
                await reader.commit()
            first = await stream.apply_retention()
            await slow.refresh()
            assert 0 < first <= slow.position.entry_id
            with pytest.raises(LedgerTrimmedException) as trimmed:
                async with await stream.reader(RecordPosition(0, 0)) as reader:
                    await taken(reader, 1)
            assert trimmed.value.first_available == first
            await stream.delete_cursor("slow")
            assert await stream.apply_retention() > first
        state = await stream.state()
        assert state.first_entry_id > first
        assert state.bytes >= 2000
        # A writer that begins now still knows the producers: the last snapshot is never deleted.
        await stream.set_retention(Retention(max_bytes=1))
        async with await stream.writer() as writer:
            await writer.append(b"after", producer="p", sequence=9)
            await stream.apply_retention()
        async with await stream.writer() as writer:
            assert writer.last_sequence("p") == 9


@pytest.mark.asyncio
async def test_state_tells_lags(standalone_cluster: StandaloneCluster) -> None:
    async with await BookKeeper.connect(standalone_cluster.gateway_uri) as client:
        stream = await open_stream(client, "looked-at")
        empty = await stream.state()
        assert (empty.last_entry_id, empty.bytes, empty.last_append_ms, empty.cursors) == (-1, 0, None, ())
        await stream.cursor("behind")
        await stream.cursor("up-to-date", Start.LATEST)
        async with await stream.writer(batch_bytes=100) as writer:
            await writer.append_all(texts("x", 100))
        up_to_date = await stream.cursor("up-to-date")
        await up_to_date.commit(await stream.position_of(Start.LATEST))
        state = await stream.state()
        behind, ahead = state.cursors
        assert (behind.name, ahead.name) == ("behind", "up-to-date")
        assert behind.lag_entries == state.last_entry_id + 1
        assert behind.lag_bytes == state.bytes > 0
        assert (ahead.lag_entries, ahead.lag_bytes) == (0, 0)
        assert state.term == 1
        assert state.last_append_ms is not None


@pytest.mark.asyncio
async def test_the_directory(standalone_cluster: StandaloneCluster) -> None:
    async with await BookKeeper.connect(standalone_cluster.gateway_uri) as client:
        streams = Streams(client, scope_id=77)
        await streams.create("one", LedgerOptions(password=b"right"))
        two = await streams.create("two")
        async with two.writer() as writer, two.writer() as later:
            await later.append(b"old")
        with pytest.raises(LedgerExistException, match="'one'"):
            await streams.create("one")
        with pytest.raises(UnauthorizedAccessException):
            await (await streams.open("one", b"wrong")).writer()
        await two.cursor("c")
        assert sorted([name async for page in streams.names() for name in page]) == ["one", "two"]
        assert await streams.delete("two")
        assert not await streams.delete("two")
        with pytest.raises(NoSuchLedgerExistsOnMetadataServerException, match="'two'"):
            await streams.open("two")
        again = await streams.create("two")
        assert await again.cursors() == []
        # Nothing of the deleted one shuts its writer out.
        async with again.writer() as writer:
            await writer.append(b"new")
        assert await everything(again) == [b"new"]
        with pytest.raises(IllegalOpException, match="again"):
            await two.cursors()
        assert [page async for page in client.list_ledgers(77)]
        for bad in ("", "x" * 256, "line\nbreak"):
            with pytest.raises(IncorrectParameterException, match="name"):
                await streams.create(bad)


@pytest.mark.asyncio
async def test_a_cursor_of_a_deleted_stream_counts_as_none(tmp_path: Path) -> None:
    """A cursor that a deletion missed: the next stream of this name does not begin in the middle."""
    with StandaloneCluster(tmp_path / "cluster", bookies=3) as cluster:
        async with await BookKeeper.connect(cluster.gateway_uri) as client:
            streams = Streams(client)
            old = await streams.create("s")
            cursor = await old.cursor("c")
            await cursor.commit(RecordPosition(5, 0))
            await client.delete_ledger(stream_record_id("s"))
            new = await streams.create("s")
            assert await new.cursors() == []
            assert (await new.cursor("c")).position == (0, 0)


def paused(client: BookKeeper, monkeypatch: pytest.MonkeyPatch, record_id: LedgerId) -> tuple[Call, Call]:
    """The client's next removal of this record waits. Returns what waits until it does, and what lets it go on."""
    reached, going_on, real = asyncio.Event(), asyncio.Event(), client.delete_ledger

    async def delete(ledger_id: LedgerId, expected_version: int | None = None) -> bool:
        if ledger_id == record_id and not reached.is_set():
            reached.set()
            await going_on.wait()
        return await real(ledger_id, expected_version)

    async def go_on() -> None:
        going_on.set()

    async def wait() -> None:
        async with asyncio.timeout(PATIENCE_SECONDS):
            await reached.wait()

    monkeypatch.setattr(client, "delete_ledger", delete)
    return wait, go_on


def after_removal(
    client: BookKeeper,
    monkeypatch: pytest.MonkeyPatch,
    record_id: LedgerId,
    then: Callable[[int | None], Awaitable[object]],
) -> None:
    """Once the client has removed this record, and before it knows, something else happens."""
    real = client.ledger_manager.remove

    async def remove(ledger_id: LedgerId, expected_version: int | None = None) -> None:
        await real(ledger_id, expected_version)
        if ledger_id == record_id:
            monkeypatch.setattr(client.ledger_manager, "remove", real)
            await then(expected_version)

    monkeypatch.setattr(client.ledger_manager, "remove", remove)


@pytest.mark.asyncio
async def test_a_deletion_that_comes_late_leaves_a_stream_that_was_made_anew(
    standalone_cluster: StandaloneCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with await BookKeeper.connect(standalone_cluster.gateway_uri) as client:
        streams = Streams(client)
        await streams.create("made-anew")
        wait, go_on = paused(client, monkeypatch, stream_record_id("made-anew"))
        late = asyncio.create_task(streams.delete("made-anew"))
        await wait()
        assert await streams.delete("made-anew")
        anew = await streams.create("made-anew")
        await go_on()
        assert not await late
        assert (await streams.open("made-anew")).ledger_id == anew.ledger_id


@pytest.mark.asyncio
async def test_a_deletion_that_comes_late_leaves_a_cursor_that_was_made_anew(
    standalone_cluster: StandaloneCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with await BookKeeper.connect(standalone_cluster.gateway_uri) as client:
        streams = Streams(client)
        await (await streams.create("anew-too")).cursor("c")
        wait, go_on = paused(client, monkeypatch, cursor_record_id("anew-too", "c"))
        late = asyncio.create_task(streams.delete("anew-too"))
        await wait()
        assert await streams.delete("anew-too")
        anew = await streams.create("anew-too")
        await anew.cursor("c")
        await go_on()
        await late
        assert [cursor.name for cursor in await anew.cursors()] == ["c"]


@pytest.mark.asyncio
async def test_a_removal_that_is_repeated_leaves_a_stream_that_was_made_anew(
    standalone_cluster: StandaloneCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a client repeats it whose first answer was lost; meanwhile somebody has made the stream anew."""
    async with await BookKeeper.connect(standalone_cluster.gateway_uri) as client:
        streams, record_id = Streams(client), stream_record_id("repeated")
        await streams.create("repeated")

        async def repeat(version: int | None) -> None:
            await streams.create("repeated")
            await client.ledger_manager.remove(record_id, version)

        after_removal(client, monkeypatch, record_id, repeat)
        await streams.delete("repeated")
        await streams.open("repeated")


@pytest.mark.asyncio
async def test_a_removal_that_is_repeated_leaves_a_cursor_that_was_made_anew(
    standalone_cluster: StandaloneCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As above; a cursor that was never moved is at its first version."""
    async with await BookKeeper.connect(standalone_cluster.gateway_uri) as client:
        streams, record_id = Streams(client), cursor_record_id("repeated-too", "c")
        await (await streams.create("repeated-too")).cursor("c")

        async def repeat(version: int | None) -> None:
            await streams.delete("repeated-too")
            await (await streams.create("repeated-too")).cursor("c")
            await client.ledger_manager.remove(record_id, version)

        after_removal(client, monkeypatch, record_id, repeat)
        assert not await streams.delete("repeated-too")
        anew = await streams.open("repeated-too")
        assert [cursor.name for cursor in await anew.cursors()] == ["c"]


@pytest.mark.asyncio
async def test_a_write_before_a_removal_is_not_repeated_over_a_stream_that_was_made_anew(
    standalone_cluster: StandaloneCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its answer was lost with its gateway, and another gateway does not know that it was carried out."""
    uri = standalone_cluster.gateway_uri
    async with await BookKeeper.connect(uri) as client, await BookKeeper.connect(uri) as second:
        others, record_id, anew = Streams(second), stream_record_id("written-once"), list[Stream]()
        await others.create("written-once")
        assert isinstance(client.ledger_manager, RpcLedgerManager)
        gateways = client.ledger_manager._gateways
        real = gateways.call

        async def call(what: str, invoke: Any, **options: Any) -> Any:
            answer = await real(what, invoke, **options)
            if what.startswith("write") and str(record_id) in what and not anew:
                await others.delete("written-once")
                anew.append(await others.create("written-once"))
                raise UnknownOutcomeException("its answer was lost")
            return answer

        monkeypatch.setattr(gateways, "call", call)
        assert not await Streams(client).delete("written-once")
        assert (await others.open("written-once")).ledger_id == anew[0].ledger_id
        await second.read_record(anew[0].ledger_id)


@pytest.mark.asyncio
async def test_a_cursor_that_is_made_anew_during_its_deletion_keeps_its_name(
    standalone_cluster: StandaloneCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever makes it finds the name still there, and retention goes by the names."""
    async with await BookKeeper.connect(standalone_cluster.gateway_uri) as client:
        stream = await open_stream(client, "cursor-anew")
        await stream.cursor("c")
        again = await Streams(client).open("cursor-anew")
        record_id = cursor_record_id("cursor-anew", "c")
        after_removal(client, monkeypatch, record_id, lambda version: again.cursor("c"))
        assert await stream.delete_cursor("c")
        assert [cursor.name for cursor in await stream.cursors()] == ["c"]


@pytest.mark.asyncio
async def test_a_deleted_stream_changes_no_cursor_of_the_one_made_anew(standalone_cluster: StandaloneCluster) -> None:
    async with await BookKeeper.connect(standalone_cluster.gateway_uri) as client:
        streams = Streams(client)
        old = await open_stream(client, "old-cursors")
        of_old = await old.cursor("kept")
        await streams.delete("old-cursors")
        anew = await streams.create("old-cursors")
        kept = await anew.cursor("kept")
        with pytest.raises(IllegalOpException, match="again"):
            await old.delete_cursor("kept")
        with pytest.raises(IllegalOpException, match="again"):
            await old.cursor("other", RecordPosition(5, 0))
        with pytest.raises(NoSuchLedgerExistsOnMetadataServerException):
            await client.read_record(cursor_record_id("old-cursors", "other"))
        for _ in range(2):
            with pytest.raises(NoSuchLedgerExistsOnMetadataServerException, match="deleted with stream"):
                await of_old.commit(RecordPosition(1000, 0))
        assert await kept.refresh() == (0, 0)


@pytest.mark.asyncio
async def test_a_cursor_is_not_stored_over_one_of_a_later_stream(
    standalone_cluster: StandaloneCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The stream is deleted, and another one made with this cursor, in the moment of its creation."""
    async with await BookKeeper.connect(standalone_cluster.gateway_uri) as client:
        streams, made = Streams(client), list[Stream]()
        old = await streams.create("later-cursor")
        real = client.ledger_manager.create

        async def create(ledger_id: LedgerId | None, metadata: LedgerMetadata) -> LedgerRecord:
            monkeypatch.setattr(client.ledger_manager, "create", real)
            await streams.delete("later-cursor")
            made.append(await streams.create("later-cursor"))
            await made[0].cursor("c")
            return await real(ledger_id, metadata)

        monkeypatch.setattr(client.ledger_manager, "create", create)
        with pytest.raises(IllegalOpException, match="again"):
            await old.cursor("c", RecordPosition(5, 0))
        assert [cursor.position for cursor in await made[0].cursors()] == [(0, 0)]


@pytest.mark.asyncio
async def test_a_commit_does_not_move_a_cursor_that_was_made_anew(
    standalone_cluster: StandaloneCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both are at the same version, at the same position, and of the same time."""
    monkeypatch.setattr("bookgate.thinclient.streams.stream.now_ms", lambda: 1)
    async with await BookKeeper.connect(standalone_cluster.gateway_uri) as client:
        stream = await open_stream(client, "committed-late")
        deleted = await stream.cursor("c")
        await stream.delete_cursor("c")
        anew = await stream.cursor("c")
        with pytest.raises(CursorMovedException):
            await deleted.commit(RecordPosition(1000, 0))
        assert await anew.refresh() == (0, 0)


@pytest.mark.asyncio
async def test_a_change_of_a_cursor_that_was_carried_out_may_be_repeated(
    standalone_cluster: StandaloneCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its caller knows only that its answer was lost, and what it does next is of a later time."""
    times = count(1)
    monkeypatch.setattr("bookgate.thinclient.streams.cursor.now_ms", lambda: next(times))
    async with await BookKeeper.connect(standalone_cluster.gateway_uri) as client:
        stream = await open_stream(client, "repeated-commits")
        cursor, other = await stream.cursor("c"), await stream.cursor("c")
        real = client.ledger_manager.write_to

        async def write_to(record: LedgerRecord, metadata: LedgerMetadata) -> LedgerRecord:
            monkeypatch.setattr(client.ledger_manager, "write_to", real)
            await real(record, metadata)
            raise MetaStoreException("the metadata are out of reach")

        async def without_answer(change: Awaitable[None]) -> None:
            monkeypatch.setattr(client.ledger_manager, "write_to", write_to)
            with pytest.raises(MetaStoreException):
                await change

        async def stands_at(entry_id: int) -> None:
            assert (await other.refresh(), cursor.position) == ((entry_id, 0), (entry_id, 0))

        await without_answer(cursor.commit(RecordPosition(7, 0)))
        await cursor.commit(RecordPosition(7, 0))
        await stands_at(7)
        await without_answer(cursor.commit(RecordPosition(8, 0)))
        await cursor.commit(RecordPosition(9, 0))
        await stands_at(9)
        await without_answer(cursor.reset(RecordPosition(5, 0)))
        await cursor.reset(RecordPosition(5, 0))
        await stands_at(5)
        # What was committed stays committed (T6), though this consumer did not know of it.
        await without_answer(cursor.commit(RecordPosition(7, 0)))
        with pytest.raises(IncorrectParameterException):
            await cursor.commit(RecordPosition(6, 0))
        await stands_at(7)
        # Another consumer's commit is another one's, to the same position too.
        await without_answer(other.commit(RecordPosition(8, 0)))
        with pytest.raises(CursorMovedException):
            await cursor.commit(RecordPosition(8, 0))


@pytest.mark.asyncio
async def test_a_cursor_that_is_deleted_in_the_moment_of_its_creation_is_created(
    standalone_cluster: StandaloneCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was there, so its creation is refused; and then it is not."""
    async with await BookKeeper.connect(standalone_cluster.gateway_uri) as client:
        stream = await open_stream(client, "deleted-cursor")
        other = await open_stream(client, "deleted-cursor")
        real = client.ledger_manager.create

        async def create(ledger_id: LedgerId | None, metadata: LedgerMetadata) -> LedgerRecord:
            monkeypatch.setattr(client.ledger_manager, "create", real)
            await other.cursor("c")
            try:
                return await real(ledger_id, metadata)
            finally:
                await other.delete_cursor("c")

        monkeypatch.setattr(client.ledger_manager, "create", create)
        assert (await stream.cursor("c", RecordPosition(5, 0))).position == (5, 0)
        assert [cursor.name for cursor in await other.cursors()] == ["c"]
