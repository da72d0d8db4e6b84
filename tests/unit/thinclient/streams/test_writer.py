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
