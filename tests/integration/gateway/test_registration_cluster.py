"""A cluster in which only gateways know ZooKeeper: `bookgate gateway` processes and bookies on `grpc://`."""

from __future__ import annotations

import asyncio
import json
import os
import re
import subprocess
import sys
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path

import pytest
import pytest_asyncio

from bookgate import BookKeeper
from bookgate.bookie.standalone.cluster import BookieProcess
from bookgate.bookie.standalone.local_zookeeper import LocalZooKeeper
from bookgate.ledger.metadata_store import BookieSet
from bookgate.thinclient.gateways.factory import RpcLedgerManagerFactory
from tests.stores import made as made_in

pytestmark = pytest.mark.asyncio

ROOT = Path(__file__).parents[3]
PAYLOADS = [b"entry %d" % number for number in range(300)]


@dataclass
class GatewayProcess:
    process: subprocess.Popen[bytes]
    address: str

    @classmethod
    def start(cls, metadata_uri: str) -> GatewayProcess:
        command = [sys.executable, "-m", "bookgate", "gateway", "--metadata-uri", metadata_uri, "--port", "0", "--json"]
        environment = {**os.environ, "PYTHONPATH": str(ROOT)}
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, env=environment)
        assert process.stdout is not None
        return cls(process, json.loads(process.stdout.readline())["gateway"])

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()
        assert self.process.stdout is not None
        self.process.stdout.close()


@dataclass
class Cluster:
    zookeeper: LocalZooKeeper
    gateways: list[GatewayProcess]
    bookies: list[BookieProcess]

    @property
    def uri(self) -> str:
        return "grpc://" + ",".join(gateway.address for gateway in self.gateways)

    def sessions(self) -> int:
        """Connections to ZooKeeper that have a session."""
        connections = self.zookeeper.command("cons").splitlines()
        return len([line for line in connections if re.search(r"sid=0x", line)])


@pytest_asyncio.fixture
async def cluster(own_zookeeper: LocalZooKeeper, tmp_path: Path) -> AsyncIterator[Cluster]:
    async with AsyncExitStack() as stack:
        gateways = []
        for _ in range(2):
            gateway = await asyncio.to_thread(GatewayProcess.start, made_in(own_zookeeper.metadata_uri()))
            stack.callback(gateway.kill)
            gateways.append(gateway)
        made = Cluster(own_zookeeper, gateways, [])
        for number in range(3):
            bookie_id, data_dir = f"b-{number}", tmp_path / f"b-{number}"
            arguments = ["--metadata-uri", made.uri, "--data-dir", str(data_dir), "--bookie-id", bookie_id, "--json"]
            arguments += ["--host", "127.0.0.1", "--port", "0", "--http-port", "0", "--stop-with-parent"]
            bookie = BookieProcess(bookie_id, data_dir, arguments)
            stack.callback(bookie.kill)
            bookie.start()
            made.bookies.append(bookie)
        for bookie in made.bookies:
            await asyncio.to_thread(bookie.wait_until_serving)
        yield made


@pytest.mark.long
async def test_only_gateways_have_sessions_and_bookies_come_and_go_through_them(cluster: Cluster) -> None:
    assert cluster.sessions() == len(cluster.gateways)
    assert [bookie.addresses["gateway"] for bookie in cluster.bookies] == [None] * 3
    async with await BookKeeper.connect(cluster.uri) as client:
        ledger = await client.create_ledger(password=b"planted-p")
        await ledger.append_all(PAYLOADS)
        await ledger.close()

        told: asyncio.Queue[list[str]] = asyncio.Queue()
        stop = await client.service_discovery.watch_bookies(
            BookieSet.WRITABLE, lambda bookies: told.put_nowait([each.bookie_id for each in bookies])
        )
        assert await told.get() == ["b-0", "b-1", "b-2"]

        # A gateway dies: its store session stays for a while, and its bookies are elsewhere before it ends.
        cluster.gateways[0].kill()
        assert (await client.read_record(ledger.ledger_id)).metadata.is_closed
        await asyncio.to_thread(wait_for_sessions, cluster, 1)
        assert [each.bookie_id for each in await client.bookies(BookieSet.WRITABLE)] == ["b-0", "b-1", "b-2"]
        assert all(told.get_nowait() == ["b-0", "b-1", "b-2"] for _ in range(told.qsize()))

        # A bookie dies: it leaves discovery with its lease.
        cluster.bookies[2].kill()
        async with asyncio.timeout(30):
            while await told.get() != ["b-0", "b-1"]:
                continue
        stop()
        reader = await client.open_ledger(ledger.ledger_id, b"planted-p")
        assert [entry.payload async for entry in reader.read(0, reader.last_add_confirmed)] == PAYLOADS

        # It comes back with its cookie.
        cluster.bookies[2].start()
        await asyncio.to_thread(cluster.bookies[2].wait_until_serving)
        async with asyncio.timeout(30):
            while await told_again(client) != ["b-0", "b-1", "b-2"]:
                continue
    assert cluster.sessions() == 1


async def told_again(client: BookKeeper) -> list[str]:
    return [each.bookie_id for each in await client.bookies(BookieSet.WRITABLE)]


def wait_for_sessions(cluster: Cluster, count: int) -> None:
    """Until ZooKeeper has given the session of a killed gateway up."""
    while f"zk_global_sessions\t{count}\n" not in cluster.zookeeper.command("mntr"):
        time.sleep(0.1)


async def test_cookies_tie_directories_to_the_cluster(cluster: Cluster) -> None:
    factory = RpcLedgerManagerFactory(cluster.uri)
    await factory.initialize()
    cookie = await factory.registration_manager.read_cookie("b-1")
    assert cookie is not None
    assert b"b-1" in cookie.value
    instance_id = await factory.registration_manager.cluster_instance_id()
    assert instance_id.encode() in cookie.value
    await factory.close()
