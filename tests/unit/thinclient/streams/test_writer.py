"""The writer of a stream beside a handle whose appends the test answers."""

from __future__ import annotations

import asyncio

import pytest

from bookgate.ledger.errors import LedgerClosedException, TermSupersededException
from bookgate.ledger.stream_entry import decode_stream_entry
from bookgate.thinclient.core.streams.appends import StreamAppends
from bookgate.thinclient.core.streams.producers import ProducerTable
from bookgate.thinclient.streams.writer import StreamWriter


class Handle:
    """Appends that wait for the test."""

    term = 1
    last_add_confirmed = -1

    def __init__(self) -> None:
        self.appends: list[tuple[bytes, asyncio.Future[int]]] = []
        self.released = False

    async def append(self, payload: bytes) -> int:
        future: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self.appends.append((payload, future))
        return await future

    async def release(self) -> None:
        self.released = True


def opened(batch_bytes: int = 1) -> tuple[StreamWriter, Handle]:
    handle = Handle()
    appends = StreamAppends(ProducerTable(), 0, batch_bytes, 100_000)
    return StreamWriter("s", handle, appends, 60.0), handle  # type: ignore[arg-type]


async def turns() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


@pytest.mark.asyncio
async def test_records_share_an_entry_and_are_acknowledged_with_it() -> None:
    writer, handle = opened(batch_bytes=1 << 20)
    waiting = [asyncio.create_task(writer.append(b"%d" % number)) for number in range(3)]
    await turns()
    assert handle.appends == []
    flushed = asyncio.create_task(writer.flush())
    await turns()
    ((payload, future),) = handle.appends
    assert decode_stream_entry(payload).records == (b"0", b"1", b"2")
    assert not any(each.done() for each in waiting)
    future.set_result(7)
    assert await asyncio.gather(*waiting) == [(7, 0), (7, 1), (7, 2)]
    await flushed
    await writer.close()
    assert handle.released
    with pytest.raises(LedgerClosedException):
        await writer.append(b"late")


@pytest.mark.asyncio
async def test_a_duplicate_waits_for_its_first_copy() -> None:
    writer, handle = opened()
    first = asyncio.create_task(writer.append(b"x", producer="p", sequence=1))
    await turns()
    second = asyncio.create_task(writer.append(b"x", producer="p", sequence=1))
    await turns()
    assert not second.done()
    handle.appends[0][1].set_result(3)
    assert (await first, await second) == ((3, 0), None)
    await writer.close()


@pytest.mark.asyncio
async def test_a_duplicate_of_a_record_whose_caller_gave_up_waits_too() -> None:
    writer, handle = opened()
    given_up = asyncio.create_task(writer.append(b"x", producer="p", sequence=1))
    await turns()
    given_up.cancel()
    await turns()
    assert given_up.cancelled()
    second = asyncio.create_task(writer.append(b"x", producer="p", sequence=1))
    await turns()
    assert not second.done()
    handle.appends[0][1].set_exception(TermSupersededException("another writer"))
    with pytest.raises(TermSupersededException):
        await second
    await writer.close()


@pytest.mark.asyncio
async def test_a_flush_waits_for_what_was_appended_before_it_only() -> None:
    writer, handle = opened()
    before = asyncio.create_task(writer.append(b"before"))
    flushed = asyncio.create_task(writer.flush())
    several = asyncio.create_task(writer.append_all([b"a", b"b"]))
    await turns()
    after = asyncio.create_task(writer.append(b"after"))
    await turns()
    handle.appends[0][1].set_result(0)
    await turns()
    assert flushed.done()
    assert not several.done()
    for number in (1, 2):
        handle.appends[number][1].set_result(number)
    await turns()
    assert several.done()
    assert several.result() == (2, 0)
    assert not after.done()
    handle.appends[3][1].set_result(3)
    assert (await before, await after) == ((0, 0), (3, 0))
    await writer.close()


@pytest.mark.asyncio
async def test_many_records_go_on_beside_any_number_of_other_producers() -> None:
    """More entries of others are always under way than one call may have ahead of it."""
    writer, handle = opened()
    others = [asyncio.create_task(writer.append(b"o")) for _ in range(200)]
    await turns()
    several = asyncio.create_task(writer.append_all([b"a", b"b", b"c"]))
    for entry_id in range(1000):
        await turns()
        if several.done():
            break
        others.append(asyncio.create_task(writer.append(b"o")))
        handle.appends[entry_id][1].set_result(entry_id)
    assert several.done()
    assert several.result() is not None
    await turns()
    for _, future in handle.appends:
        if not future.done():
            future.set_result(1000)
    await asyncio.gather(*others)
    await writer.close()


@pytest.mark.asyncio
async def test_one_call_has_so_many_entries_under_way_and_no_more() -> None:
    writer, handle = opened()
    several = asyncio.create_task(writer.append_all([b"x"] * 200))
    await turns()
    assert len(handle.appends) == 64
    handle.appends[0][1].set_result(0)
    await turns()
    assert len(handle.appends) == 65
    for entry_id in range(1, 200):
        handle.appends[entry_id][1].set_result(entry_id)
        await turns()
    assert await several == (199, 0)
    await writer.close()


@pytest.mark.asyncio
async def test_a_close_that_was_cancelled_goes_on_and_is_shared() -> None:
    writer, handle = opened()
    stopped: list[None] = []
    writer.on_close(lambda: stopped.append(None))
    record = asyncio.create_task(writer.append(b"x"))
    await turns()
    given_up = asyncio.create_task(writer.close())
    await turns()
    given_up.cancel()
    again = asyncio.create_task(writer.close())
    await turns()
    assert given_up.cancelled()
    assert not again.done()
    assert not handle.released
    with pytest.raises(LedgerClosedException):
        await writer.append(b"late")
    handle.appends[0][1].set_result(0)
    await again
    assert await record == (0, 0)
    assert handle.released
    assert stopped == [None]


@pytest.mark.asyncio
async def test_a_writer_whose_entry_failed_takes_nothing_more() -> None:
    """Its table has the lost record; were the record repeated here, it would count as a duplicate and be lost."""
    writer, handle = opened()
    waiting = [asyncio.create_task(writer.append(b"x", producer="p", sequence=number)) for number in range(2)]
    await turns()
    handle.appends[0][1].set_exception(TermSupersededException("another writer"))
    await turns()
    with pytest.raises(TermSupersededException):
        await waiting[0]
    for sequence in (0, 5):
        refused = asyncio.create_task(writer.append(b"x", producer="p", sequence=sequence))
        await turns()
        assert refused.done()
        with pytest.raises(TermSupersededException):
            await refused
    handle.appends[1][1].set_exception(TermSupersededException("another writer"))
    with pytest.raises(TermSupersededException):
        await waiting[1]
    await writer.close()
    assert handle.released


@pytest.mark.asyncio
async def test_records_of_a_batch_not_yet_sent_fail_with_the_writer() -> None:
    writer, handle = opened(batch_bytes=100)
    full = asyncio.create_task(writer.append(b"x" * 100))
    await turns()
    waits = asyncio.create_task(writer.append(b"y"))
    await turns()
    handle.appends[0][1].set_exception(TermSupersededException("another writer"))
    for each in (full, waits):
        with pytest.raises(TermSupersededException):
            await each
    await writer.close()
    assert len(handle.appends) == 1
