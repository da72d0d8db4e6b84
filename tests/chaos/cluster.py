"""A cluster of real processes to be ill-treated: ZooKeeper, bookies that each host a gateway, disks of their own.

Clients reach the gateways and the bookies through proxies in this process, which cut connections; so gateways keep
their addresses over restarts. Where this user may mount file systems each bookie has a small one, which can be filled.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Self

from bookgate import BookKeeper
from bookgate.bookie.standalone.local_zookeeper import LocalZooKeeper
from bookgate.ledger.metadata_store import BookieSet
from bookgate.thinclient.config import load_config
from bookgate.thinclient.gateways.factory import RpcLedgerManagerFactory
from tests.integration.bookie.forked_bookie import ForkedBookie
from tests.integration.cutting_proxy import CuttingConnector, CuttingProxy
from tests.stores import made

_DISK_MIB = 96
_SETTINGS: dict[str, Any] = {
    "flush_interval_seconds": 0.7,
    "journal_max_size_mb": 1,
    "journal_pre_alloc_size_mb": 1,
    "entry_log_max_mb": 1,
    "write_cache_mb": 4,
    "gc_wait_seconds": 3.0,
    "minor_compaction_interval_seconds": 6.0,
    "major_compaction_interval_seconds": 12.0,
    "disk_check_interval_seconds": 0.3,
    "min_usable_for_high_priority_writes_mb": 1,
    "min_usable_for_entry_log_mb": 1,
    "min_usable_for_index_mb": 1,
}
_CLIENT: dict[str, Any] = {
    "add_timeout_seconds": 1.5,
    "read_timeout_seconds": 1.5,
    "connect_timeout_seconds": 1.5,
    "metadata_timeout_seconds": 6.0,
}
_LEAST_CUT, _MOST_CUT = 100, 30_000
_HEALING_SECONDS = 60.0


class ChaosBookie:
    """One bookie process over all its lives."""

    def __init__(self, root: Path, name: str, metadata_uri: str) -> None:
        self.name = name
        self._disk = root / name / "disk"
        self._disk.mkdir(parents=True)
        self.own_disk = _mount(self._disk)
        places = {"data_dir": str(self._disk / "bookie"), "metadata_uri": metadata_uri}
        self._process = ForkedBookie(root / name, bookie_id=name, **places, **_SETTINGS)
        self.running = False
        self._stopped = False
        self.gateway: CuttingProxy | None = None
        self.cutting = False

    def start(self) -> None:
        """Blocking. Raises AssertionError with the bookie's last words when it does not start."""
        self._process.start()
        self._process.wait_until_serving()
        self.running = True

    def aim_gateway(self) -> None:
        """The gateway is where this life of the bookie has it."""
        assert self.gateway is not None
        host, _, port = self._process.addresses["gateway"].rpartition(":")
        self.gateway.target = (host, int(port))

    def kill(self) -> None:
        self.running = self._stopped = False
        self._process.kill()

    @property
    def has_died(self) -> bool:
        return self.running and self._process.has_ended

    def suspend(self) -> None:
        os.kill(self._process.pid, signal.SIGSTOP)
        self._stopped = True

    def resume(self) -> None:
        if self._stopped:
            os.kill(self._process.pid, signal.SIGCONT)
            self._stopped = False

    def fill(self) -> None:
        """Takes all the room that its disk has left."""
        with contextlib.suppress(OSError), (self._disk / "filler").open("wb", buffering=0) as filler:
            while True:
                filler.write(bytes(1 << 20))

    def empty(self) -> None:
        (self._disk / "filler").unlink(missing_ok=True)

    def close(self) -> None:
        if self.running:
            self.kill()
        if self.own_disk:
            subprocess.run(["umount", "-l", str(self._disk)], check=False)


def _mount(disk: Path) -> bool:
    mount = ["mount", "-t", "tmpfs", "-o", f"size={_DISK_MIB}m", "none", str(disk)]
    try:
        return subprocess.run(mount, capture_output=True, check=False).returncode == 0
    except FileNotFoundError:
        return False


class ChaosCluster:
    """Use it as an async context manager. Blocking work runs in threads."""

    def __init__(self, root: Path, bookies: int, seed: int) -> None:
        self._rng = random.Random(f"cuts {seed}")
        # A short tick bounds sessions to two seconds, so that a killed bookie can come back soon.
        self.zookeeper = LocalZooKeeper(root / "zookeeper", tick_time_ms=100)
        self._root = root
        self._size = bookies
        self.bookies: list[ChaosBookie] = []
        self.cutting = False
        self._connectors: list[CuttingConnector] = []

    async def __aenter__(self) -> Self:
        try:
            await asyncio.to_thread(self.zookeeper.start)
            uri = made(self.zookeeper.metadata_uri("/chaos/ledgers"))
            self.bookies = [ChaosBookie(self._root, f"bookie-{n}", uri) for n in range(self._size)]
            # The first brings the cluster's nodes into being.
            await asyncio.to_thread(self.bookies[0].start)
            await asyncio.gather(*(asyncio.to_thread(bookie.start) for bookie in self.bookies[1:]))
            for bookie in self.bookies:
                bookie.gateway = CuttingProxy("127.0.0.1", 0, self._gateway_limit)
                await bookie.gateway.__aenter__()
                bookie.aim_gateway()
        except BaseException:
            await self.__aexit__()
            raise
        return self

    async def __aexit__(self, *_: object) -> None:
        for connector in self._connectors:
            await connector.__aexit__()
        for bookie in self.bookies:
            if bookie.gateway is not None:
                await bookie.gateway.__aexit__()
            await asyncio.to_thread(bookie.close)
        await asyncio.to_thread(self.zookeeper.kill)

    def _gateway_limit(self) -> int | None:
        return self._rng.randint(_LEAST_CUT, _MOST_CUT) if self.cutting else None

    @property
    def cuts(self) -> int:
        gateways = sum(bookie.gateway.cuts for bookie in self.bookies if bookie.gateway is not None)
        return gateways + sum(connector.cuts for connector in self._connectors)

    async def client(self) -> BookKeeper:
        """A thin client behind proxies of its own. Raises MetaStoreException while no gateway answers."""
        config = load_config(**_CLIENT)
        connector = CuttingConnector(self._rng, _LEAST_CUT, _MOST_CUT)
        connector.cutting = self.cutting
        self._connectors.append(connector)
        gateways = ",".join(f"127.0.0.1:{bookie.gateway.port}" for bookie in self.bookies if bookie.gateway is not None)
        factory = RpcLedgerManagerFactory(f"grpc://{gateways}", config.metadata_timeout_seconds)
        client = BookKeeper(factory.ledger_manager, factory.service_discovery, config, connector=connector)
        client._factory = factory  # it is the client's own, as with `connect`, which takes no connector
        return client

    def cut(self, on: bool) -> None:
        """Whether connections of clients, present ones too, are cut after some bytes."""
        self.cutting = on
        for connector in self._connectors:
            connector.cutting = on
            if on:
                connector.cut_all()
        if on:
            for bookie in self.bookies:
                if bookie.gateway is not None:
                    bookie.gateway.cut_all()

    async def revive(self, bookie: ChaosBookie) -> None:
        if bookie.running:
            return
        await asyncio.to_thread(bookie.start)
        bookie.aim_gateway()

    async def heal(self) -> None:
        """Everything runs, and every bookie can be written. Raises TimeoutError when that does not come about."""
        self.cut(False)
        async with asyncio.timeout(_HEALING_SECONDS):
            await asyncio.to_thread(self.zookeeper.start)
            self.zookeeper.resume()
            for bookie in self.bookies:
                bookie.resume()
                bookie.empty()
            await asyncio.gather(*(self.revive(bookie) for bookie in self.bookies))
            client = await self.client()
            try:
                await self._until_all_writable(client)
            finally:
                await client.close()

    async def _until_all_writable(self, client: BookKeeper) -> None:
        complete = asyncio.Event()

        def look(bookies: object) -> None:
            if isinstance(bookies, list | tuple) and len(bookies) == self._size:
                complete.set()

        stop = await client.service_discovery.watch_bookies(BookieSet.WRITABLE, look)
        try:
            await complete.wait()
        finally:
            stop()

    def died(self) -> Iterator[str]:
        """Bookies that ended by themselves."""
        return (bookie.name for bookie in self.bookies if bookie.has_died)
