"""Unbounded ledgers on real bookies: written, taken over, read across terms and fragments, trimmed, closed."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from bookgate import BookKeeper, ClientConfig, LedgerOptions
from bookgate.bookie.standalone.cluster import StandaloneCluster
from bookgate.ledger.errors import (
    IllegalOpException,
    IncorrectParameterException,
    LedgerClosedException,
    LedgerTrimmedException,
    MetaStoreException,
    TermSupersededException,
)
from bookgate.ledger.metadata import LedgerState
from bookgate.ledger.unbounded import deleted_before, terms_of
from bookgate.thinclient.handles.read_handle import ReadHandle
from bookgate.thinclient.handles.unbounded.write_handle import UnboundedWriteHandle
from tests.integration.cluster import own_cluster, standalone_cluster

__all__ = ["own_cluster", "standalone_cluster"]

PATIENCE_SECONDS = 250
IMPATIENT = ClientConfig(read_timeout_seconds=2.0, add_timeout_seconds=2.0, failed_bookie_interval_seconds=0.5)


@pytest.fixture
def five_bookies(tmp_path: Path) -> Iterator[StandaloneCluster]:
    with StandaloneCluster(tmp_path / "cluster", bookies=5) as cluster:
        yield cluster


def texts(term: int, count: int) -> list[bytes]:
    return [b"term %d entry %d" % (term, number) for number in range(count)]


async def payloads(reader: ReadHandle, first: int = 0) -> list[bytes]:
    last = await reader.read_last_confirmed()
    return [entry.payload async for entry in reader.read(first, last)]


@pytest.mark.asyncio
async def test_any_client_writes_on_after_another(standalone_cluster: StandaloneCluster) -> None:
    """Three terms; what was acknowledged is read in order, and the truncate entries between are passed over."""
    uri = standalone_cluster.gateway_uri
    async with await BookKeeper.connect(uri) as first, await BookKeeper.connect(uri) as second:
        writer = await first.create_unbounded_ledger(LedgerOptions(password=b"planted-secret"))
        assert (writer.term, await writer.append_all(texts(0, 50))) == (0, 49)
        wrote = texts(0, 50)
        for term, client in ((1, second), (2, first)):
            taken = await client.take_over(writer.ledger_id, b"planted-secret")
            assert taken.term == term
            assert await taken.append_all(texts(term, 20)) == 49 + 21 * term
            wrote += texts(term, 20)
            with pytest.raises(TermSupersededException):
                await writer.append(b"too late")
            writer = taken
        reader = await second.open_ledger(writer.ledger_id, b"planted-secret")
        async with asyncio.timeout(PATIENCE_SECONDS):
            found: list[bytes] = []
            async for entry in reader.tail():
                found.append(entry.payload)
                if len(found) == len(wrote):
                    break
        assert found == wrote
        await writer.close()
        with pytest.raises(LedgerClosedException):
            await first.take_over(writer.ledger_id, b"planted-secret")
        assert [entry.payload async for entry in (await reopened(first, writer)).tail()] == wrote
        assert (await (await reopened(first, writer)).read_last_entry()).payload == wrote[-1]


async def reopened(client: BookKeeper, writer: UnboundedWriteHandle) -> ReadHandle:
    return await client.open_ledger(writer.ledger_id, b"planted-secret")


@pytest.mark.asyncio
@pytest.mark.parametrize("release", [False, True])
async def test_a_handle_whose_close_failed_can_be_closed_or_released(
    standalone_cluster: StandaloneCluster, monkeypatch: pytest.MonkeyPatch, release: bool
) -> None:
    async with await BookKeeper.connect(standalone_cluster.gateway_uri) as client:
        writer = await client.create_unbounded_ledger(max_fragment_seconds=60.0)
        await writer.append(b"x")

        async def unreachable(*_: object) -> None:
            raise MetaStoreException("the metadata store is out of reach")

        with monkeypatch.context() as outage:
            outage.setattr(client.ledger_manager, "write_to", unreachable)
            with pytest.raises(MetaStoreException):
                await writer.close()
        with pytest.raises(LedgerClosedException):
            await writer.append(b"late")
        await (writer.release() if release else writer.close())
        assert writer not in client._context.active_handles
        assert writer._fragment_timer is not None
        assert writer._fragment_timer.cancelled()
        state = (await client.read_record(writer.ledger_id)).metadata.state
        assert state is (LedgerState.OPEN if release else LedgerState.CLOSED)


@pytest.mark.asyncio
async def test_two_clients_that_race_for_a_term_have_one_winner(standalone_cluster: StandaloneCluster) -> None:
    async with await BookKeeper.connect(standalone_cluster.gateway_uri) as client:
        writer = await client.create_unbounded_ledger()
        await writer.append_all(texts(0, 10))
        raced = await asyncio.gather(*[client.take_over(writer.ledger_id) for _ in range(3)], return_exceptions=True)
        won = [each for each in raced if isinstance(each, UnboundedWriteHandle)]
        assert len(won) == 1, raced
        assert all(isinstance(each, TermSupersededException) for each in raced if each not in won)
        await won[0].append(b"after")
        await won[0].release()


@pytest.mark.asyncio
async def test_fragments_end_at_their_size_and_are_trimmed(five_bookies: StandaloneCluster) -> None:
    """On five bookies, so that fragments differ; the reader below the watermark is told what there is."""
    async with await BookKeeper.connect(five_bookies.gateway_uri) as client:
        writer = await client.create_unbounded_ledger(max_fragment_entries=10)
        await writer.append_all(texts(0, 55))
        assert await writer.trim(34) == 34
        await writer.append(b"one more")
        async with asyncio.timeout(PATIENCE_SECONDS):
            reader = await client.open_ledger(writer.ledger_id)
            assert reader.first_entry_id == 34
            found = []
            async for entry in reader.tail(34):
                found.append(entry.payload)
                if entry.entry_id == 55:
                    break
        assert found == [*texts(0, 55)[34:], b"one more"]
        with pytest.raises(LedgerTrimmedException) as trimmed:
            [entry async for entry in reader.read(33, 40)]
        assert trimmed.value.first_available == 34
        with pytest.raises(LedgerTrimmedException):
            [entry async for entry in reader.tail(0)]
        # The last fragment is the writer's.
        assert deleted_before((await client.trim_ledger(writer.ledger_id, 1000)).metadata) <= 50
        await writer.close()
        record = await client.trim_ledger(writer.ledger_id, 1000)
        assert (record.metadata.state, deleted_before(record.metadata)) == (LedgerState.CLOSED, 56)


@pytest.mark.asyncio
async def test_bookies_die_while_it_is_written_and_taken_over(five_bookies: StandaloneCluster) -> None:
    """One during a term, one before a take-over: all that was acknowledged is read."""
    uri = five_bookies.gateway_uri
    async with await BookKeeper.connect(uri, IMPATIENT) as client:
        writer = await client.create_unbounded_ledger()
        acknowledged: list[bytes] = []

        async def write(handle: UnboundedWriteHandle, batch: Sequence[bytes]) -> None:
            for payload in batch:
                await handle.append(payload)
                acknowledged.append(payload)

        await write(writer, texts(0, 20))
        kill(five_bookies, writer.metadata.last_fragment.ensemble[1])
        await write(writer, texts(10, 20))
        async with asyncio.timeout(PATIENCE_SECONDS):
            while len(writer.metadata.fragments) < 2:
                await writer.append(b"waiting for the change")
                acknowledged.append(b"waiting for the change")
        kill(five_bookies, writer.metadata.last_fragment.ensemble[0])
        async with asyncio.timeout(PATIENCE_SECONDS):
            taken = await client.take_over(writer.ledger_id)
        await write(taken, texts(1, 20))
        await taken.close()
        reader = await client.open_ledger(writer.ledger_id)
        assert await payloads(reader) == acknowledged
        assert terms_of(reader.metadata).term == 1


def kill(cluster: StandaloneCluster, bookie_id: str) -> None:
    (process,) = (each.process for each in cluster.processes if each.bookie_id == bookie_id)
    assert process is not None
    process.kill()


@pytest.mark.asyncio
async def test_what_is_not_for_unbounded_ledgers_says_so(standalone_cluster: StandaloneCluster) -> None:
    uri = standalone_cluster.gateway_uri
    async with await BookKeeper.connect(uri) as client:
        async with await client.create_unbounded_ledger() as writer:
            await writer.append(b"entry")
            with pytest.raises(IncorrectParameterException, match="1 to"):
                await writer.append(b"")
        with pytest.raises(LedgerClosedException, match="released"):
            await writer.append(b"more")
        with pytest.raises(IllegalOpException, match="taken over"):
            await client.open_ledger(writer.ledger_id, recovery=True)
        async with await client.create_ledger() as ordinary:
            await ordinary.append(b"entry")
        with pytest.raises(IncorrectParameterException, match="not unbounded"):
            await client.take_over(ordinary.ledger_id)
        with pytest.raises(IncorrectParameterException, match="deferred"):
            await client.create_unbounded_ledger(LedgerOptions(deferred_sync=True))
        with pytest.raises(IllegalOpException, match="can't be read"):
            (await client.open_ledger(writer.ledger_id)).read_unconfirmed_batches(0, 1)
    async with await BookKeeper.connect(uri, ClientConfig(wire_protocol="v2")) as client:
        with pytest.raises(IllegalOpException, match="v3"):
            await client.create_unbounded_ledger()
