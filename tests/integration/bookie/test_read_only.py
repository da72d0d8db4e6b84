"""A bookie that runs out of disk, or is told to be read-only: what clients see of it, on every kind of metadata."""

from __future__ import annotations

import asyncio
import json
import urllib.error
import urllib.request
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from bookgate.bookie.config.bookie import load_config
from bookgate.bookie.disks.rules import DirectoryUsage
from bookgate.bookie.environment import SYSTEM_ENVIRONMENT, Environment
from bookgate.bookie.server import BookieFailedException, BookieServer
from bookgate.bookie.standalone.local_zookeeper import LocalZooKeeper
from bookgate.gateway.config import GatewayConfig
from bookgate.gateway.server import GatewayServer
from bookgate.gateway.stores.drivers import create_factory
from bookgate.gateway.stores.zookeeper.factory import ZooKeeperLedgerManagerFactory
from bookgate.ledger.metadata_store import BookieSet, LedgerManagerFactory
from bookgate.ledger.wire.messages import Request, Status
from tests.integration.bookie.entry_client import EntryClient, add, fence, read
from tests.integration.gateway.test_zookeeper import expire
from tests.stores import made

pytestmark = pytest.mark.asyncio

TOTAL = 1000
LEDGER = 5


class Disk:
    """A disk whose usage the test sets, in parts of 1000."""

    def __init__(self) -> None:
        self.used = 100
        self.gone = False

    def __call__(self, directory: Path) -> DirectoryUsage:
        if self.gone:
            raise OSError(5, "Input/output error", str(directory))
        return DirectoryUsage(TOTAL, TOTAL - self.used)


async def until(condition: Callable[[], Awaitable[bool]], what: str) -> None:
    """Waits for something that another task or process brings about."""
    for _ in range(600):
        if await condition():
            return
        await asyncio.sleep(0.05)
    raise AssertionError(f"not within 30 s: {what}")


class Running:
    """A bookie in this process."""

    def __init__(self, server: BookieServer, disk: Disk, view: LedgerManagerFactory) -> None:
        self.server = server
        self.disk = disk
        self._view = view

    async def listed(self) -> tuple[int, int]:
        """Writable and read-only bookies, as another client of the metadata sees them."""
        discovery = self._view.service_discovery
        return len(await discovery.bookies(BookieSet.WRITABLE)), len(await discovery.bookies(BookieSet.READ_ONLY))

    async def until_listed(self, writable: int, read_only: int) -> None:
        async def is_listed() -> bool:
            return await self.listed() == (writable, read_only)

        await until(is_listed, f"{writable} writable and {read_only} read-only bookies")

    async def status(self, request: Request) -> int:
        def ask() -> int:
            with EntryClient(self.server.addresses["bookie"] or "") as client:
                return client.status(request)

        return await asyncio.to_thread(ask)

    async def http(self, path: str, body: Any = None, method: str | None = None) -> tuple[int, Any]:
        def ask() -> tuple[int, Any]:
            data = None if body is None else json.dumps(body).encode()
            url = f"http://{self.server.addresses['http']}/api/v1/bookie/{path}"
            request = urllib.request.Request(url, data, method=method or ("GET" if data is None else "PUT"))
            try:
                with urllib.request.urlopen(request, timeout=20) as response:
                    return response.status, json.loads(response.read())
            except urllib.error.HTTPError as error:
                return error.code, error.read().decode()

        return await asyncio.to_thread(ask)

    async def metric(self, name: str) -> float:
        def ask() -> str:
            with urllib.request.urlopen(f"http://{self.server.addresses['http']}/metrics", timeout=20) as response:
                return str(response.read().decode())

        lines = (await asyncio.to_thread(ask)).splitlines()
        return sum(float(line.rpartition(" ")[2]) for line in lines if line.startswith(name))


async def _view_of(stack: AsyncExitStack, uri: str) -> LedgerManagerFactory:
    factory = create_factory(uri, GatewayConfig.load(None, {"metadata_uri": uri}))
    await factory.initialize()
    stack.push_async_callback(factory.close)
    return factory


@asynccontextmanager
async def running(root: Path, uri: str, view_uri: str | None = None, **settings: Any) -> AsyncIterator[Running]:
    ports: dict[str, Any] = {"port": 0, "gateway_port": 0, "http_port": 0}
    disk = settings.pop("disk", None) or Disk()
    doors = settings.pop("doors", SYSTEM_ENVIRONMENT)
    full = {"disk_usage_threshold": 0.95, "disk_usage_warn_threshold": 0.9, "min_usable_for_high_priority_writes_mb": 0}
    settings = {"disk_check_interval_seconds": 0.05, **full, **settings}
    config = load_config(metadata_uri=uri, data_dir=root / "data", host="127.0.0.1", **{**ports, **settings})
    server = BookieServer(config, disk, doors)
    async with AsyncExitStack() as stack:
        stack.push_async_callback(server.stop)
        await server.start()
        yield Running(server, disk, await _view_of(stack, view_uri or uri))


def sqlite(root: Path) -> str:
    return made(f"sqlite://{root}/metadata.db")


@asynccontextmanager
async def on_store(kind: str, root: Path, zookeeper: LocalZooKeeper) -> AsyncIterator[Running]:
    if kind == "zookeeper":
        uri = made(zookeeper.metadata_uri(f"/{root.name}"))
        async with running(root, uri) as bookie:
            yield bookie
        return
    if kind == "sqlite":
        async with running(root, sqlite(root)) as bookie:
            yield bookie
        return
    async with AsyncExitStack() as stack:
        factory = await _view_of(stack, sqlite(root))
        gateway = GatewayServer(factory, "127.0.0.1", 0)
        port = await gateway.start()
        stack.push_async_callback(gateway.stop, 0)
        async with running(root, f"grpc://127.0.0.1:{port}", sqlite(root)) as bookie:
            yield bookie


@pytest.mark.parametrize("kind", ["sqlite", "zookeeper", "grpc"])
async def test_a_full_disk_makes_the_bookie_read_only_until_there_is_room(
    kind: str, tmp_path: Path, zookeeper: LocalZooKeeper
) -> None:
    async with on_store(kind, tmp_path, zookeeper) as bookie:
        assert await bookie.listed() == (1, 0)
        assert await bookie.status(add(LEDGER, 0)) == Status.EOK
        assert await bookie.metric("bookie_SERVER_STATUS ") == 1

        bookie.disk.used = 960
        await bookie.until_listed(0, 1)
        assert await bookie.metric("bookie_SERVER_STATUS ") == 0
        assert await bookie.status(add(LEDGER, 1)) == Status.EREADONLY
        assert await bookie.status(read(LEDGER, 0)) == Status.EOK
        assert await bookie.status(add(LEDGER, 1)._replace(priority=100)) == Status.EOK
        assert await bookie.status(read(LEDGER, 1)) == Status.EOK
        assert await bookie.status(fence(LEDGER, 1)) == Status.EOK

        bookie.disk.used = 950
        await bookie.until_listed(1, 0)
        assert await bookie.status(add(LEDGER + 1, 0)) == Status.EOK
        assert await bookie.status(add(LEDGER, 2)) == Status.EFENCED


async def test_recovery_is_refused_when_even_its_minimum_is_not_left(tmp_path: Path) -> None:
    async with running(tmp_path, sqlite(tmp_path), min_usable_for_high_priority_writes_mb=1) as bookie:
        bookie.disk.used = 990
        await bookie.until_listed(0, 1)
        assert (await bookie.http("state"))[1] == {
            "running": True,
            "readOnly": True,
            "shuttingDown": False,
            "availableForHighPriorityWrites": False,
            "registered": True,
        }
        assert await bookie.status(add(LEDGER, 0)._replace(priority=100)) == Status.EREADONLY


async def test_the_operators_switch(tmp_path: Path) -> None:
    async with running(tmp_path, sqlite(tmp_path)) as bookie:
        assert await bookie.http("state/readonly") == (200, {"readOnly": False})
        assert await bookie.http("state/readonly", {"readOnly": True}) == (200, {"readOnly": True})
        # The answer comes when it is registered.
        assert await bookie.listed() == (0, 1)
        assert await bookie.status(add(LEDGER, 0)) == Status.EREADONLY
        assert (await bookie.http("state"))[1]["readOnly"] is True
        assert await bookie.http("state/readonly", {"readOnly": False}) == (200, {"readOnly": False})
        assert await bookie.listed() == (1, 0)
        assert await bookie.status(add(LEDGER, 0)) == Status.EOK
        # Of a ledger that is written to already, an add takes another way through the bookie.
        assert await bookie.status(add(LEDGER, 1)) == Status.EOK
        await bookie.http("state/readonly", {"readOnly": True})
        assert await bookie.status(add(LEDGER, 2)) == Status.EREADONLY


@pytest.mark.parametrize("body", [{}, {"readOnly": "yes"}, [], 1])
async def test_a_switch_that_says_nothing_changes_nothing(tmp_path: Path, body: Any) -> None:
    async with running(tmp_path, sqlite(tmp_path)) as bookie:
        assert (await bookie.http("state/readonly", body))[0] == 400
        assert (await bookie.http("state/readonly", {"readOnly": True}, "POST"))[0] == 405
        assert await bookie.http("state/readonly") == (200, {"readOnly": False})


async def test_releasing_a_bookie_whose_disk_is_full_leaves_it_read_only(tmp_path: Path) -> None:
    async with running(tmp_path, sqlite(tmp_path)) as bookie:
        bookie.disk.used = 960
        await bookie.until_listed(0, 1)
        await bookie.http("state/readonly", {"readOnly": True})
        assert await bookie.http("state/readonly", {"readOnly": False}) == (200, {"readOnly": True})
        bookie.disk.used = 100
        await bookie.until_listed(1, 0)


async def test_forced_read_only_registers_so_and_stays_so(tmp_path: Path) -> None:
    async with running(tmp_path, sqlite(tmp_path), force_read_only=True) as bookie:
        assert await bookie.listed() == (0, 1)
        assert await bookie.status(add(LEDGER, 0)) == Status.EREADONLY
        code, message = await bookie.http("state/readonly", {"readOnly": False})
        assert code == 400
        assert "force_read_only" in message


async def test_a_bookie_whose_disk_is_full_at_the_start_registers_read_only(tmp_path: Path) -> None:
    disk = Disk()
    disk.used = 960
    async with running(tmp_path, sqlite(tmp_path), disk=disk) as bookie:
        assert await bookie.listed() == (0, 1)
        disk.used = 100
        await bookie.until_listed(1, 0)


async def test_the_operators_hold_outlives_a_restart_where_the_status_is_persisted(tmp_path: Path) -> None:
    settings: dict[str, Any] = {"persist_bookie_status": True, "bookie_id": "stays"}
    async with running(tmp_path, sqlite(tmp_path), **settings) as bookie:
        assert (await bookie.http("state/readonly", {"readOnly": True}))[0] == 200
    status = tmp_path / "data" / "ledgers" / "current" / "BOOKIE_STATUS"
    version, mode, updated_ms, manual = status.read_text().strip().split(",")
    assert (version, mode, manual) == ("1", "READ_ONLY", "true")
    assert updated_ms.isdigit()
    async with running(tmp_path, sqlite(tmp_path), **settings) as bookie:
        assert await bookie.listed() == (0, 1)
        await bookie.http("state/readonly", {"readOnly": False})
    assert status.read_text().startswith("1,READ_WRITE,")
    async with running(tmp_path, sqlite(tmp_path), **settings) as bookie:
        assert await bookie.listed() == (1, 0)


async def test_a_bookie_that_may_not_be_read_only_stops(tmp_path: Path) -> None:
    async with running(tmp_path, sqlite(tmp_path), read_only_mode_enabled=False) as bookie:
        bookie.disk.used = 960
        with pytest.raises(BookieFailedException, match="read_only_mode_enabled"):
            await asyncio.wait_for(bookie.server.run_until_stopped(), 30)


async def test_a_disk_that_fails_stops_the_bookie(tmp_path: Path) -> None:
    async with running(tmp_path, sqlite(tmp_path)) as bookie:
        bookie.disk.gone = True
        with pytest.raises(BookieFailedException, match="Input/output error"):
            await asyncio.wait_for(bookie.server.run_until_stopped(), 30)


async def test_dirty_tells_of_a_running_bookie(tmp_path: Path) -> None:
    dirty = tmp_path / "data" / "ledgers" / "current" / "DIRTY"
    async with running(tmp_path, sqlite(tmp_path)) as bookie:
        assert dirty.read_bytes() == b""
        await bookie.status(add(LEDGER, 0))
    assert not dirty.exists()


async def test_a_new_session_registers_the_bookie_in_the_mode_it_is_in(
    tmp_path: Path, zookeeper: LocalZooKeeper
) -> None:
    factories: list[LedgerManagerFactory] = []

    def remembered(uri: str, settings: GatewayConfig) -> LedgerManagerFactory:
        factories.append(create_factory(uri, settings))
        return factories[-1]

    doors = Environment(metadata=remembered)
    async with running(tmp_path, made(zookeeper.metadata_uri(f"/{tmp_path.name}")), doors=doors) as bookie:
        factory = factories[0]
        assert isinstance(factory, ZooKeeperLedgerManagerFactory)
        bookie.disk.used = 960
        await bookie.until_listed(0, 1)
        ended = factory.session.session_id
        await expire(zookeeper, factory)

        async def is_new() -> bool:
            return factory.session.session_id != ended

        await until(is_new, "a new session")
        await bookie.until_listed(0, 1)
        bookie.disk.used = 100
        await bookie.until_listed(1, 0)
