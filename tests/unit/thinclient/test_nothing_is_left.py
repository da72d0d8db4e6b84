"""A client closed in the middle of everything it can do: whoever waits hears of it, and nothing is left behind."""

from __future__ import annotations

import asyncio
import gc
import weakref
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import asynccontextmanager
from importlib import metadata
from typing import Any, cast

import pytest

from bookgate import BookKeeper, ClientConfig, WriteHandle
from bookgate.ledger.errors import ClientClosedException, LedgerClosedException
from bookgate.ledger.metadata_store import LedgerManagerFactory
from bookgate.thinclient.bookies.wire import Wire
from bookgate.thinclient.config import TlsMode
from bookgate.thinclient.gateways.factory import RpcLedgerManagerFactory
from bookgate.thinclient.gateways.uri import ClientTlsFiles
from bookgate.thinclient.handles.base_write_handle import BaseWriteHandle
from bookgate.thinclient.handles.read_handle import ReadHandle
from tests.unit.thinclient.bookies.secure_bookie import SecureBookie
from tests.unit.thinclient.bookies.test_secure_connections import Certificates, cluster_of, new_certificates
from tests.unit.thinclient.fake_gateway import fake_gateways
from tests.unit.thinclient.fakes import FakeCluster, fake_cluster

PASSWORD = b"planted-p"

ENDS = (ClientClosedException, LedgerClosedException)
"""The latter for appends that waited for room when their handle was closed."""


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return new_certificates(tmp_path_factory.mktemp("tls"))


@asynccontextmanager
async def secure_cluster(certificates: Certificates) -> AsyncIterator[tuple[FakeCluster, Callable[..., BookKeeper]]]:
    """Bookies with TLS and a token, gateways, and clients of them with everything switched on."""
    bookies = [SecureBookie(certificates.server(), native=True, token=b"secret") for _ in range(5)]
    async with cluster_of(*bookies) as cluster, fake_gateways() as (uri, _):

        def client(**settings: Any) -> BookKeeper:
            config = ClientConfig(
                bookie_tls=TlsMode.NATIVE,
                bookie_tls_ca=certificates.ca,
                auth_provider="bookgate-token",
                auth_token="secret",
                explicit_lac_interval_seconds=60,
                add_quorum_timeout_seconds=60,
                failed_bookie_interval_seconds=60,
                weight_by_free_space=True,
                bookie_health_check=True,
                placement_policy="rackaware",
                max_in_flight_entries=20,
                long_poll_timeout_seconds=60,
                num_channels_per_bookie=2,
                **settings,
            )
            factory = RpcLedgerManagerFactory(uri, 10, tls=ClientTlsFiles())
            made = BookKeeper(factory.ledger_manager, cluster.discovery, config)
            made._factory = factory
            return made

        yield cluster, client


async def first_of(stream: AsyncGenerator[Any, None]) -> None:
    """Takes all there is, then waits; what ends the wait is the result."""
    async for _ in stream:
        pass


async def busy(cluster: FakeCluster, client: BookKeeper) -> list[asyncio.Future[Any]]:
    """A client in the middle of everything: what waits."""
    written = await client.create_ledger(password=PASSWORD)
    await written.append_all([b"x" * 100] * 50)
    closed = await client.create_ledger(password=PASSWORD)
    await closed.append_all([b"x"] * 500)
    await closed.close()
    waiting: list[Any] = [tail(client, written, long_poll) for long_poll in (True, False)]
    waiting.append(first_of(client.watch_ledger(written.ledger_id)))
    reader = await client.open_ledger(closed.ledger_id, PASSWORD)
    half_read = reader.read_batches(0, 499, 10)
    await anext(half_read)
    advanced = await client.create_advanced_ledger(password=PASSWORD)
    waiting += [advanced.append(entry_id, b"later") for entry_id in (3, 7)]
    if client.config.wire_protocol == "v3":
        deferred = await client.create_ledger(deferred_sync=True)
        await deferred.append(b"x")
        await deferred.force()
    tasks = [asyncio.ensure_future(each) for each in waiting]
    await until_parked(cluster, client)
    changing = await client.create_ledger(password=PASSWORD)
    lost = cluster.ensemble(changing.metadata)[0]
    for bookie in cluster.bookies:
        bookie.silent = True
    await lost.stop()
    tasks += [asyncio.ensure_future(changing.append(b"x")) for _ in range(50)]  # some wait for room
    tasks.append(asyncio.ensure_future(client.open_ledger(written.ledger_id, PASSWORD, recovery=True)))
    if client.config.wire_protocol == "v3":
        tasks.append(asyncio.ensure_future(written.force()))
    await asyncio.sleep(0)
    tasks.append(asyncio.ensure_future(changing.close()))
    tasks.append(asyncio.ensure_future(anext(reader.read(0, 499))))
    await asyncio.sleep(0)
    return tasks


def tail(client: BookKeeper, ledger: WriteHandle, long_poll: bool) -> Any:
    async def follow() -> None:
        reader = await client.open_ledger(ledger.ledger_id, PASSWORD)
        await first_of(reader.tail(long_poll=long_poll))

    return follow()


async def until_parked(cluster: FakeCluster, client: BookKeeper) -> None:
    """A long poll waits at a bookie; v2 has none."""
    async with asyncio.timeout(10):
        while client.config.wire_protocol == "v3" and not any(bookie.parked_count for bookie in cluster.bookies):  # noqa: ASYNC110
            await asyncio.sleep(0.001)


def timers() -> list[Any]:
    """What is scheduled on the event loop on behalf of the client."""
    scheduled = asyncio.get_running_loop()._scheduled  # type: ignore[attr-defined]
    return [timer for timer in scheduled if not timer.cancelled() and "thinclient/" in repr(timer)]


def tasks() -> list[str]:
    """Tasks of the client and of its calls; the gateway in this process has its own."""
    described = [repr(task) for task in asyncio.all_tasks()]
    ours = [each for each in described if "/thinclient/" in each or "grpc/aio/_call" in each]
    return [each for each in ours if "tests/" not in each]


def wires_and_handles() -> list[Wire | BaseWriteHandle | ReadHandle]:
    """Those there are in this process."""
    return [each for each in gc.get_objects() if isinstance(each, Wire | BaseWriteHandle | ReadHandle)]


_GRPC = tuple(map(int, metadata.version("grpcio").split(".")[:2]))


@pytest.mark.skipif(_GRPC < (1, 83), reason="older versions of gRPC keep what its cancelled calls hold")
@pytest.mark.asyncio
@pytest.mark.parametrize("protocol", ["v3", "v2"])
async def test_a_client_closed_in_the_middle_of_everything(certificates: Certificates, protocol: str) -> None:
    async with secure_cluster(certificates) as (cluster, client_of):
        warm = client_of(wire_protocol=protocol)  # what gRPC keeps for good is there after the first
        await warm.create_ledger(password=PASSWORD)
        await warm.close()
        others = {id(each): each for each in wires_and_handles()}  # of clients that the process keeps, as Spark's are
        client = client_of(wire_protocol=protocol)
        waiting = await busy(cluster, client)
        assert not [each for each in waiting if each.done()]
        async with asyncio.timeout(10):
            await client.close()
            outcomes = await asyncio.gather(*waiting, return_exceptions=True)
        assert [each for each in outcomes if not isinstance(each, ENDS)] == []
        assert timers() == []
        things = [weakref.ref(each) for each in wires_and_handles() if id(each) not in others]
        assert len(things) >= 8
        del client, waiting, outcomes
        for bookie in cluster.bookies:
            bookie.parked_reads.clear()
        left = ["not looked yet"]
        deadline = asyncio.get_running_loop().time() + 30
        while left and asyncio.get_running_loop().time() < deadline:
            gc.collect()  # generators that nobody ended, and what gRPC's calls hold
            await asyncio.sleep(0.01)
            # The bookies see the end of every connection to them.
            still_open = [bookie.bookie_id for bookie in cluster.bookies if bookie.writers]
            left = [*still_open, *tasks(), *(type(thing()).__name__ for thing in things if thing() is not None)]
        assert left == []


class Gateways:
    """Connections to gateways that take a while to close."""

    def __init__(self) -> None:
        self.closing, self.may_close, self.closed = asyncio.Event(), asyncio.Event(), False

    async def close(self) -> None:
        self.closing.set()
        await self.may_close.wait()
        self.closed = True


@pytest.mark.asyncio
async def test_a_close_whose_caller_gives_up_goes_on_and_the_next_caller_waits_for_it() -> None:
    async with fake_cluster(1) as cluster:
        client, gateways = cluster.client(), Gateways()
        client._factory = cast("LedgerManagerFactory", gateways)
        first = asyncio.create_task(client.close())
        await gateways.closing.wait()
        first.cancel()
        with pytest.raises(asyncio.CancelledError):
            await first
        second = asyncio.create_task(client.close())
        await asyncio.sleep(0)
        assert not second.done()
        gateways.may_close.set()
        await second
        assert gateways.closed
