"""Small records in entries: when batches go, what is acknowledged, and reading them back."""

from __future__ import annotations

import asyncio

import pytest

from bookgate import Compression, IncorrectParameterException, LedgerClosedException, LedgerOptions
from bookgate.ledger.payload_codec import RecordPosition
from tests.unit.thinclient.fakes import fake_cluster


@pytest.mark.asyncio
@pytest.mark.parametrize("compression", list(Compression))
async def test_records_come_back_in_their_order(compression: Compression) -> None:
    records = [b"record %d" % number for number in range(500)]
    async with fake_cluster() as cluster:
        client = cluster.client()
        options = LedgerOptions(password=b"planted-p", custom_metadata={"app": b"a"})
        async with client.create_record_ledger(options, compression=compression, batch_bytes=1000) as writer:
            positions = await asyncio.gather(*map(writer.append, records))
        assert positions == sorted(positions)
        assert positions[0] == RecordPosition(0, 0)
        async with client.open_ledger(writer.ledger_id, b"planted-p") as reader:
            assert reader.metadata.custom_metadata["app"] == b"a"
            last = reader.last_add_confirmed
            assert 3 < last < 20
            found = [record async for record in reader.read_records(0, last)]
            assert [record.payload for record in found] == records
            assert [(record.entry_id, record.number) for record in found] == positions
            assert [record async for record in reader.tail_records(last)] == [r for r in found if r.entry_id == last]


@pytest.mark.asyncio
async def test_a_batch_goes_when_its_first_record_has_lingered() -> None:
    async with fake_cluster() as cluster:
        writer = await cluster.client().create_record_ledger(linger_seconds=0.001)
        assert await writer.append(b"alone") == (0, 0)
        first, second = writer.append_nowait(b"a"), writer.append_nowait(b"b")
        assert (await first, await second) == ((1, 0), (1, 1))
        await writer.close()


@pytest.mark.asyncio
async def test_flush_and_close_wait_for_what_was_gathered() -> None:
    async with fake_cluster() as cluster:
        writer = await cluster.client().create_record_ledger(linger_seconds=3600)
        waiting = writer.append_nowait(b"a")
        await writer.flush()
        assert waiting.result() == (0, 0)
        last = writer.append_nowait(b"b")
        await writer.close()
        assert last.result() == (1, 0)
        assert writer.handle.metadata.is_closed
        with pytest.raises(LedgerClosedException):
            await writer.append(b"c")


@pytest.mark.asyncio
async def test_flush_does_not_wait_for_what_is_appended_meanwhile() -> None:
    async with fake_cluster() as cluster:
        writer = await cluster.client().create_record_ledger(batch_bytes=1)
        futures: list[asyncio.Future[RecordPosition]] = []

        def append_one(_: object) -> None:
            """Each record is followed by the next one as soon as it is acknowledged."""
            if len(futures) < 300:
                futures.append(writer.append_nowait(b"x"))
                futures[-1].add_done_callback(append_one)

        append_one(None)
        append_one(None)
        await writer.flush()
        assert futures[0].done()
        assert futures[1].done()
        assert len(futures) < 300
        await writer.close()
        with pytest.raises(LedgerClosedException):
            await writer.append(b"x")


@pytest.mark.asyncio
async def test_records_of_an_entry_that_fails_fail() -> None:
    async with fake_cluster() as cluster:
        client = cluster.client(max_frame_size_bytes=2000)
        writer = await client.create_record_ledger()
        with pytest.raises(IncorrectParameterException, match="5"):
            await writer.append(b"x" * 5000)
        assert await writer.append(b"small") == (0, 0)
        with pytest.raises(IncorrectParameterException, match="record is bytes, not str"):
            await writer.append("text")  # type: ignore[arg-type]
        await writer.close()
        with pytest.raises(IncorrectParameterException, match="linger_seconds"):
            await client.create_record_ledger(linger_seconds=-1)


@pytest.mark.asyncio
async def test_a_plain_ledger_reads_as_a_record_an_entry() -> None:
    async with fake_cluster() as cluster:
        client = cluster.client()
        async with client.create_ledger() as ledger:
            await ledger.append_all([b"one", b"two"])
        async with client.open_ledger(ledger.ledger_id) as reader:
            assert [tuple(each) async for each in reader.read_records(0, 1)] == [(0, 0, b"one"), (1, 0, b"two")]
