"""What the gateway's benchmarks run against: one ZooKeeper, and gateways as processes of their own beside it."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from collections import deque
from types import TracebackType
from typing import Any, Self

from kazoo.client import KazooClient

from benchmarks.load_process import rss_bytes
from benchmarks.metadata_sample import SAMPLE
from bookgate.bookie.standalone.local_zookeeper import LocalZooKeeper
from bookgate.gateway.stores.zookeeper.ledger_paths import CompositePaths
from bookgate.ledger.metadata_codec import encode

_NODES_A_TRANSACTION = 500
_TRANSACTIONS_UNDER_WAY = 8


class GatewayProcess:
    """`bookgate gateway` on a metadata URI."""

    def __init__(self, metadata_uri: str) -> None:
        command = [sys.executable, "-m", "bookgate", "gateway", "--metadata-uri", metadata_uri, "--port", "0", "--json"]
        self._process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError(f"the gateway has ended early, with code {self._process.wait()}")
        self.uri = "grpc://" + json.loads(line)["gateway"]

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def rss_bytes(self) -> int:
        return rss_bytes(self._process.pid)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._process.send_signal(signal.SIGTERM)
        try:
            self._process.wait(20)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        assert self._process.stdout is not None
        self._process.stdout.close()


def populate(zookeeper: LocalZooKeeper, root: str, count: int, first: int = 0) -> list[int]:
    """Creates the nodes of so many ledgers, from an id on, below a root that a gateway has made; their ids."""
    client = KazooClient(zookeeper.address, timeout=10)
    client.start()
    paths, data = CompositePaths(root), encode(SAMPLE)
    waiting: deque[Any] = deque()
    for start in range(first, first + count, _NODES_A_TRANSACTION):
        client.ensure_path(paths.path(start).rpartition("/")[0])
        transaction = client.transaction()
        for number in range(start, min(start + _NODES_A_TRANSACTION, first + count)):
            transaction.create(paths.path(number), data)
        waiting.append(transaction.commit_async())
        if len(waiting) >= _TRANSACTIONS_UNDER_WAY:
            _check(waiting.popleft().get())
    for result in waiting:
        _check(result.get())
    client.stop()
    client.close()
    return list(range(first, first + count))


def rewrite(zookeeper: LocalZooKeeper, root: str, ledger_id: int) -> float:
    """Changes a ledger behind the gateway's back, to its next version; the moment at which that began."""
    client = KazooClient(zookeeper.address, timeout=10)
    client.start()
    began = time.time()
    client.set(CompositePaths(root).path(ledger_id), encode(SAMPLE))
    client.stop()
    client.close()
    return began


def server_figure(zookeeper: LocalZooKeeper, name: str) -> int:
    """A figure of ZooKeeper's own monitoring."""
    for line in zookeeper.command("mntr", timeout_seconds=30).splitlines():
        key, _, value = line.partition("\t")
        if key == name:
            return int(float(value))
    raise RuntimeError(f"ZooKeeper reports no {name}")


def _check(results: list[Any]) -> None:
    for result in results:
        if isinstance(result, Exception):
            raise result
