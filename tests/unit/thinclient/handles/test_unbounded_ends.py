"""How the writer of an unbounded ledger, and that of a stream in it, end: by an error of the application, too."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from bookgate import LedgerOptions
from bookgate.ledger.bookie_info import FEATURES_PROPERTY, LEDGER_TERM
from bookgate.ledger.errors import (
    IncorrectParameterException,
    LedgerClosedException,
    MetaStoreException,
    NoSuchLedgerExistsOnMetadataServerException,
)
from bookgate.ledger.metadata import LedgerState
from bookgate.thinclient.client import BookKeeper
from bookgate.thinclient.core.streams.appends import StreamAppends
from bookgate.thinclient.core.streams.producers import ProducerTable
from bookgate.thinclient.handles.unbounded.write_handle import UnboundedWriteHandle
from bookgate.thinclient.streams.writer import StreamWriter
from tests.unit.thinclient.fakes import FakeCluster, fake_cluster

pytestmark = pytest.mark.usefixtures("virtual_time")


def client_of(cluster: FakeCluster) -> BookKeeper:
    """Of bookies that honour terms."""
    cluster.discovery.properties = {FEATURES_PROPERTY: LEDGER_TERM}
    return cluster.client(add_timeout_seconds=1)


async def unbounded(client: BookKeeper) -> UnboundedWriteHandle:
    options = LedgerOptions(3, 3, 2, password=b"planted-p")
    return await client.create_unbounded_ledger(options, max_fragment_seconds=60.0)


def stream_writer(handle: UnboundedWriteHandle) -> StreamWriter:
    return StreamWriter("s", handle, StreamAppends(ProducerTable(), 0, 1, 100_000), 60.0)


async def test_a_limit_without_sense_is_refused_before_anything_is_done() -> None:
    """A take-over would have shut the writer out by then, and a timer of no length spins."""
    async with fake_cluster(3) as cluster:
        client = client_of(cluster)
        handle = await unbounded(client)
        before = dict(cluster.metadata.records)
        with pytest.raises(IncorrectParameterException, match="max_fragment_seconds"):
            await client.create_unbounded_ledger(LedgerOptions(3, 3, 2), max_fragment_seconds=0)
        with pytest.raises(IncorrectParameterException, match="max_fragment_seconds"):
            await client.take_over(handle.ledger_id, b"planted-p", max_fragment_seconds=-1)
        assert cluster.metadata.records == before
        await handle.append(b"a")


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("timed_out", [False, True])
async def test_an_error_of_the_application_does_not_wait_for_bookies_that_are_gone(
    stream: bool, timed_out: bool
) -> None:
    async with fake_cluster(3) as cluster:
        client = client_of(cluster)
        handle = await unbounded(client)

        async def application() -> None:
            async with asyncio.timeout(30), stream_writer(handle) if stream else handle as writer:
                await writer.append(b"a")
                for bookie in cluster.ensemble(handle.metadata)[1:]:
                    await bookie.stop()
                waiting = asyncio.ensure_future(writer.append(b"b"))
                waiters.append(waiting)
                if timed_out:
                    await waiting
                await asyncio.sleep(0)
                raise ValueError("of the application")

        waiters: list[asyncio.Future[Any]] = []
        async with asyncio.timeout(60):
            with pytest.raises(TimeoutError if timed_out else ValueError):
                await application()
        (waiting,) = waiters
        if not timed_out:
            with pytest.raises(LedgerClosedException, match="released"):
                await waiting
        with pytest.raises(LedgerClosedException, match="released"):
            await handle.append(b"c")
        assert handle not in client._context.active_handles
        assert cluster.metadata.records[handle.ledger_id].metadata.state is LedgerState.OPEN


@pytest.mark.parametrize("stream", [False, True])
async def test_an_error_of_the_application_waits_for_a_bookie_that_is_slow(stream: bool) -> None:
    async with fake_cluster(3) as cluster:
        handle = await unbounded(client_of(cluster))
        waiters: list[asyncio.Future[Any]] = []

        async def application() -> None:
            async with stream_writer(handle) if stream else handle as writer:
                for bookie in cluster.bookies:
                    bookie.holding = True
                    asyncio.get_running_loop().call_later(0.5, bookie.let_go)
                waiters.append(asyncio.ensure_future(writer.append(b"a")))
                await asyncio.sleep(0)
                raise ValueError("of the application")

        with pytest.raises(ValueError, match="of the application"):
            await application()
        await waiters[0]
        assert handle.last_add_confirmed == 0


@pytest.mark.parametrize("stream", [False, True])
async def test_an_end_after_an_error_is_bounded_though_the_caller_stops_waiting(stream: bool) -> None:
    async with fake_cluster(3) as cluster:
        client = client_of(cluster)
        handle = await unbounded(client)
        waiters: list[asyncio.Future[Any]] = []

        async def application() -> None:
            async with stream_writer(handle) if stream else handle as writer:
                await writer.append(b"a")
                for bookie in cluster.ensemble(handle.metadata)[1:]:
                    await bookie.stop()
                waiters.append(asyncio.ensure_future(writer.append(b"b")))
                await asyncio.sleep(0)
                raise ValueError("of the application")

        running = asyncio.ensure_future(application())
        await asyncio.sleep(0.5)
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
        async with asyncio.timeout(60):
            with pytest.raises(LedgerClosedException, match="released"):
                await waiters[0]
        assert handle not in client._context.active_handles


async def test_a_release_during_a_close_that_fails_releases_the_handle() -> None:
    async with fake_cluster(3) as cluster:
        client = client_of(cluster)
        writer = await unbounded(client)
        await writer.append(b"a")
        begun, answered = asyncio.Event(), asyncio.Event()

        async def unreachable(*_: object) -> None:
            begun.set()
            await answered.wait()
            raise MetaStoreException("the metadata store is out of reach")

        cluster.metadata.write = unreachable  # type: ignore[assignment, method-assign]
        closing = asyncio.ensure_future(writer.close())
        await begun.wait()
        releases = [asyncio.ensure_future(writer.release()) for _ in range(2)]
        await asyncio.sleep(0)
        answered.set()
        await asyncio.gather(*releases)
        with pytest.raises(MetaStoreException):
            await closing
        assert writer not in client._context.active_handles
        assert writer._fragment_timer is not None
        assert writer._fragment_timer.cancelled()
        with pytest.raises(LedgerClosedException, match="released"):
            await writer.append(b"b")


async def test_a_close_after_a_release_says_that_the_ledger_is_open() -> None:
    async with fake_cluster(3) as cluster:
        writer = await unbounded(client_of(cluster))
        async with writer:
            await writer.append(b"a")
        for _ in range(2):
            with pytest.raises(LedgerClosedException, match="released"):
                await writer.close()
        assert cluster.metadata.records[writer.ledger_id].metadata.state is LedgerState.OPEN


async def test_a_close_is_repeated_and_a_release_after_it_changes_nothing() -> None:
    async with fake_cluster(3) as cluster:
        writer = await unbounded(client_of(cluster))
        await writer.append(b"a")
        for end in (writer.close, writer.release, writer.close):
            await end()
        assert cluster.metadata.records[writer.ledger_id].metadata.state is LedgerState.CLOSED


async def test_a_close_that_can_not_succeed_any_more_ends_the_handle() -> None:
    async with fake_cluster(3) as cluster:
        client = client_of(cluster)
        writer = await unbounded(client)
        await writer.append(b"a")
        await cluster.metadata.remove(writer.ledger_id)
        for _ in range(2):
            with pytest.raises(NoSuchLedgerExistsOnMetadataServerException):
                await writer.close()
        assert writer not in client._context.active_handles
        assert writer._fragment_timer is not None
        assert writer._fragment_timer.cancelled()
