"""The whole system: thin client, gateways and bookies as processes, and what happens when some of them are killed."""

from __future__ import annotations

import asyncio
import logging

import pytest

from bookgate import BookKeeper, ReadHandle
from bookgate.bookie.standalone.cluster import StandaloneCluster
from bookgate.ledger.bookie_info import BOOKIE_RPC, GATEWAY_GRPC, HTTP
from bookgate.ledger.errors import LedgerFencedException, LedgerRecoveryException, NotEnoughBookiesException
from bookgate.ledger.metadata import LedgerState
from bookgate.ledger.metadata_store import BookieSet
from tests.integration.cluster import restart


def payload(entry_id: int) -> bytes:
    return b"%d:" % entry_id + bytes([entry_id % 251]) * (entry_id % 400)


async def assert_holds(reader: ReadHandle, at_least: int) -> None:
    """Every entry up to the end, which lies at `at_least` or above, is the one that was written."""
    assert reader.last_add_confirmed >= at_least
    expected = 0
    async for entry in reader.read(0, reader.last_add_confirmed):
        assert (entry.entry_id, entry.payload) == (expected, payload(expected))
        expected += 1
    assert expected == reader.last_add_confirmed + 1


@pytest.mark.asyncio
async def test_a_killed_bookie_during_ingest_loses_no_acknowledged_entry(own_cluster: StandaloneCluster) -> None:
    """E 3, Qw 3, Qa 2: the ledger goes on with two, and the recovered ledger has everything acknowledged."""
    acknowledged = -1
    async with await BookKeeper.connect(own_cluster.gateway_uri) as bookkeeper:
        ledger = await bookkeeper.create_ledger(password=b"planted-secret")
        for entry_id in range(3000):
            if entry_id == 1000:
                own_cluster.processes[1].kill()
            future = ledger.append_nowait(payload(entry_id))
            if entry_id % 100 == 0:
                acknowledged = await future
        acknowledged = max(acknowledged, ledger.last_add_confirmed)
        assert acknowledged >= 2900
        # The writer is gone without closing: whoever reads takes the ledger from it.
        reader = await bookkeeper.open_ledger(ledger.ledger_id, b"planted-secret", recovery=True)
        assert reader.metadata.state is LedgerState.CLOSED
        await assert_holds(reader, acknowledged)
        with pytest.raises(LedgerFencedException):
            await ledger.append(b"too late")


@pytest.mark.long
@pytest.mark.asyncio
async def test_two_killed_bookies_stop_the_ledger_and_it_is_recovered_when_one_is_back(
    own_cluster: StandaloneCluster,
) -> None:
    async with await BookKeeper.connect(own_cluster.gateway_uri) as bookkeeper:
        ledger = await bookkeeper.create_ledger()
        await ledger.append_all(payload(entry_id) for entry_id in range(500))
        for process in own_cluster.processes[1:]:
            process.kill()
        with pytest.raises(NotEnoughBookiesException, match=r"bookie-[23]"):
            await ledger.append_all(payload(entry_id) for entry_id in range(500, 3000))
        acknowledged = ledger.last_add_confirmed
        assert acknowledged >= 499
        with pytest.raises(LedgerRecoveryException):
            await bookkeeper.open_ledger(ledger.ledger_id, recovery=True)
        restart(own_cluster.processes[1])
        reader = await bookkeeper.open_ledger(ledger.ledger_id, recovery=True)
        await assert_holds(reader, acknowledged)


@pytest.mark.long
@pytest.mark.asyncio
async def test_all_bookies_killed_and_restarted_have_every_acknowledged_entry(own_cluster: StandaloneCluster) -> None:
    async with await BookKeeper.connect(own_cluster.gateway_uri) as bookkeeper:
        ledger = await bookkeeper.create_ledger()
        last = await ledger.append_all(payload(entry_id) for entry_id in range(2000))
    for process in own_cluster.processes:
        process.kill()
    for process in own_cluster.processes:
        restart(process)
    async with await BookKeeper.connect(own_cluster.gateway_uri) as bookkeeper:
        reader = await bookkeeper.open_ledger(ledger.ledger_id, recovery=True)
        await assert_holds(reader, last)


@pytest.mark.asyncio
async def test_a_ledger_of_many_writers_side_by_side(standalone_cluster: StandaloneCluster) -> None:
    async with await BookKeeper.connect(standalone_cluster.gateway_uri) as bookkeeper:

        async def write_and_read(count: int) -> int:
            async with await bookkeeper.create_ledger(custom_metadata={"count": b"%d" % count}) as ledger:
                await ledger.append_all(payload(entry_id) for entry_id in range(count))
            reader = await bookkeeper.open_ledger(ledger.ledger_id)
            await assert_holds(reader, count - 1)
            return ledger.ledger_id.low

        ids = await asyncio.gather(*(write_and_read(count) for count in range(0, 400, 20)))
        assert len(set(ids)) == 20
        listed = {record.ledger_id.low async for page in bookkeeper.list_ledgers() for record in page}
        assert set(ids) <= listed


@pytest.mark.long
@pytest.mark.asyncio
async def test_thousands_of_ledgers_are_created_at_once(standalone_cluster: StandaloneCluster) -> None:
    async with await BookKeeper.connect(standalone_cluster.gateway_uri) as bookkeeper, asyncio.timeout(120):
        handles = await asyncio.gather(*(bookkeeper.create_ledger() for _ in range(3000)))
        assert len({handle.ledger_id for handle in handles}) == 3000
        await asyncio.gather(*(bookkeeper.delete_ledger(handle.ledger_id) for handle in handles))


@pytest.mark.asyncio
async def test_a_pause_of_the_application_costs_no_answer(
    standalone_cluster: StandaloneCluster, caplog: pytest.LogCaptureFixture
) -> None:
    """The interpreter is held, as a long garbage collection holds it: no thread of Python runs meanwhile."""
    caplog.set_level(logging.INFO, logger="bookgate.thinclient.gateways")
    async with await BookKeeper.connect(standalone_cluster.gateway_uri) as bookkeeper, asyncio.timeout(120):
        for _ in range(3):
            calls = [asyncio.create_task(bookkeeper.service_discovery.cluster_info()) for _ in range(300)]
            await asyncio.wait(calls, return_when=asyncio.FIRST_COMPLETED)
            sum(range(60_000_000))
            await asyncio.gather(*calls)
    assert [record for record in caplog.records if "UNAVAILABLE" in record.getMessage()] == []


@pytest.mark.asyncio
async def test_a_gateway_that_is_killed_is_left(own_cluster: StandaloneCluster) -> None:
    async with await BookKeeper.connect(own_cluster.gateway_uri) as bookkeeper:
        ids = [(await bookkeeper.create_ledger(ensemble_size=1, write_quorum_size=1, ack_quorum_size=1)).ledger_id]
        own_cluster.processes[0].kill()
        for _ in range(10):
            assert (await bookkeeper.read_record(ids[0])).ledger_id == ids[0]
        assert [record.ledger_id async for page in bookkeeper.list_ledgers() for record in page] == ids


@pytest.mark.asyncio
async def test_bookies_tell_of_all_their_endpoints(own_cluster: StandaloneCluster) -> None:
    async with await BookKeeper.connect(own_cluster.gateway_uri) as bookkeeper:
        bookies = await bookkeeper.bookies(BookieSet.WRITABLE)
        assert [bookie.bookie_id for bookie in bookies] == ["bookie-1", "bookie-2", "bookie-3"]
        for protocol, addresses in (
            (BOOKIE_RPC, own_cluster.bookies),
            (GATEWAY_GRPC, own_cluster.gateways),
            (HTTP, own_cluster.http),
        ):
            endpoints = [bookie.info.endpoint(protocol) for bookie in bookies]
            assert [endpoint.address for endpoint in endpoints if endpoint] == addresses
        assert (await bookkeeper.service_discovery.cluster_info()).instance_id


@pytest.mark.asyncio
async def test_a_stopped_bookie_leaves_the_writable_ones(own_cluster: StandaloneCluster) -> None:
    async with await BookKeeper.connect(own_cluster.gateway_uri) as bookkeeper:
        gone = own_cluster.processes[2]
        gone.terminate()
        gone.wait()
        assert [bookie.bookie_id for bookie in await bookkeeper.bookies(BookieSet.WRITABLE)] == ["bookie-1", "bookie-2"]
        assert len(await bookkeeper.bookies(BookieSet.ALL)) == 3
        with pytest.raises(NotEnoughBookiesException, match="bookie-1"):
            await bookkeeper.create_ledger()
