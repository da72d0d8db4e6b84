"""A gateway with clients on a ZooKeeper with ledgers, for the scale benchmark: what each client and ledger costs.

The same measurement gives the constants at a small size and the check at a large one. Figures are of processes: CPU
from `/proc`, ZooKeeper's heap after a full collection by `jcmd`, its disk from a snapshot that a restart writes. The
clients run in processes of their own (`scale_clients`). Not its job: predictions (`scale_model`).
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from kazoo.client import KazooClient

from benchmarks.gateway_setting import GatewayProcess, populate, server_figure
from benchmarks.load_process import LoadProcess, call_all
from benchmarks.process_cpu import cpu_microseconds
from benchmarks.scale_passes import fill_embedded
from bookgate.bookie.standalone.cluster import make_cluster
from bookgate.bookie.standalone.local_zookeeper import LocalZooKeeper

_ROOT = "/scale/ledgers"
_FIRST = 1_000_000_000
"""Id of the first ledger that is there: those that clients create begin with 0."""
_DISCOVERIES, _READ, _ROUNDS = 2_000, 1_000, 3
_ROOM = {"BOOKGATE_GATEWAY_MAX_CONNECTIONS": "14000", "BOOKGATE_GATEWAY_MAX_STREAMS": "40000"}
"""Up to ten thousand clients with two streams each."""


@dataclass(frozen=True)
class Size:
    """Of one measurement."""

    clients: int
    ledgers: int
    listed_with_metadata: int
    creations: int
    idle_seconds: float
    subscriptions_each: int = 5
    processes: int = 2


@dataclass
class GatewayRun:
    """One gateway, its ZooKeeper and its clients; figures are kept by name."""

    zookeeper: LocalZooKeeper
    gateway: GatewayProcess
    loads: list[LoadProcess]
    size: Size
    figures: dict[str, float] = field(default_factory=dict)

    def connected(self) -> None:
        """All clients, each with the stream on which it watches the bookies."""
        size, before = self.size, self.gateway.rss_bytes
        with self._cpu("connect", size.clients):
            self._each("connect", clients=size.clients // len(self.loads))
        self.figures["client_bytes"] = (self.gateway.rss_bytes - before) / size.clients
        self.figures["gateway_base_bytes"] = before
        sessions = server_figure(self.zookeeper, "zk_num_alive_connections") - 1
        self.figures["store_sessions"] = sessions

    def idle(self) -> None:
        """Nothing is asked: pings of the streams, and clients that look for gateways."""
        began, before, store = time.monotonic(), self._gateway_cpu(), self._store_cpu()
        time.sleep(self.size.idle_seconds)
        seconds = time.monotonic() - began
        self.figures["idle_cpu"] = (self._gateway_cpu() - before) / seconds / self.size.clients
        self.figures["idle_store_cpu"] = (self._store_cpu() - store) / seconds / self.size.clients

    def called(self) -> None:
        """Discovery, creations and reads of what is cached, a call each."""
        with self._cpu("discovery", _DISCOVERIES):
            self._each("discover", calls=_DISCOVERIES // len(self.loads))
        packets = server_figure(self.zookeeper, "zk_packets_received")
        with self._cpu("create", self.size.creations):
            self._each("create", ledgers=self.size.creations // len(self.loads))
        packets = server_figure(self.zookeeper, "zk_packets_received") - packets
        self.figures["create_packets"] = packets / self.size.creations
        ids = list(range(_FIRST, _FIRST + _READ))
        self._each("read", ids=ids, rounds=1)
        with self._cpu("read", _READ * _ROUNDS * len(self.loads)):
            self._each("read", ids=ids, rounds=_ROUNDS)

    def listed(self) -> None:
        """By one client, before the others are there."""
        self.loads[0].call("connect", clients=1)
        for name, with_metadata, before in (
            ("list", False, None),
            ("record", True, _FIRST + self.size.listed_with_metadata),
        ):
            gateway, store = self._gateway_cpu(), self._store_cpu()
            walked = self.loads[0].call("walk", with_metadata=with_metadata, before=before)
            found = walked["count"]
            self.figures[f"{name}_cpu"] = (self._gateway_cpu() - gateway) / found
            self.figures[f"{name}_store_cpu"] = (self._store_cpu() - store) / found
            self.figures[f"{name}_seconds"] = walked["seconds"] / found

    def subscribed(self) -> None:
        """The first of each client, which opens its stream, and more; to distinct ledgers, a store watch each."""
        heap, watches = heap_bytes(self.zookeeper), server_figure(self.zookeeper, "zk_watch_count")
        each = self.size.subscriptions_each
        self._subscribe("subscribe", "stream_bytes", _FIRST + _READ, 1)
        self._subscribe("subscription", "subscription_bytes", _FIRST + _READ + self.size.clients, each - 1)
        self.figures["watches"] = server_figure(self.zookeeper, "zk_watch_count") - watches
        self.figures["watch_heap_bytes"] = (heap_bytes(self.zookeeper) - heap) / self.size.clients / each

    def _subscribe(self, name: str, memory: str, first: int, each: int) -> None:
        wanted, before = self.size.clients * each, self.gateway.rss_bytes
        share = wanted // len(self.loads)
        with self._cpu(name, wanted):
            for index, load in enumerate(self.loads):
                load.begin("subscribe", first=first + index * share, each=each)
            for load in self.loads:
                load.finish()
        self.figures[memory] = (self.gateway.rss_bytes - before) / wanted

    def _each(self, operation: str, **arguments: object) -> None:
        failed = sum(call_all(self.loads, operation, **arguments))
        self.figures["failed"] = self.figures.get("failed", 0) + failed

    @contextmanager
    def _cpu(self, name: str, count: int) -> Iterator[None]:
        """Microseconds of gateway and ZooKeeper for each of so many, and seconds for all of them."""
        gateway, store, began = self._gateway_cpu(), self._store_cpu(), time.monotonic()
        yield
        seconds = time.monotonic() - began
        self.figures[f"{name}_cpu"] = (self._gateway_cpu() - gateway) / count
        self.figures[f"{name}_store_cpu"] = (self._store_cpu() - store) / count
        self.figures[f"{name}_window"] = seconds

    def passed(self) -> None:
        """Garbage collection of a bookie, and the auditor's index, which read the store themselves."""
        with LoadProcess("benchmarks.scale_passes", self.zookeeper.metadata_uri(_ROOT)) as load:
            store = self._store_cpu()
            self.figures |= load.call("collect", first=_FIRST, ledgers=self.size.ledgers)
            self.figures["collect_store_cpu"] = (self._store_cpu() - store) / self.size.ledgers
            store = self._store_cpu()
            indexed = load.call("index", at_most=self.size.listed_with_metadata)
            self.figures["index_store_cpu"] = (self._store_cpu() - store) / indexed["read"]
            self.figures |= indexed

    def _gateway_cpu(self) -> float:
        return cpu_microseconds(self.gateway.pid)

    def _store_cpu(self) -> float:
        return _cpu_of_process(java_pid(self.zookeeper))


def _cpu_of_process(pid: int) -> float:
    """Microseconds, those of threads that have ended as well: a Java server ends some all the time."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) * 1e6 / os.sysconf("SC_CLK_TCK")


def java_pid(zookeeper: LocalZooKeeper) -> int:
    process = zookeeper._process
    assert process is not None
    return process.pid


def heap_bytes(zookeeper: LocalZooKeeper) -> float:
    """What is used of a ZooKeeper's heap after a full collection."""
    pid = str(java_pid(zookeeper))
    subprocess.run(["jcmd", pid, "GC.run"], check=True, capture_output=True)
    told = subprocess.run(["jcmd", pid, "GC.heap_info"], check=True, capture_output=True, text=True).stdout
    kib = [
        line.split(" used ")[1].split("K")[0]
        for line in told.splitlines()
        if " used " in line and "total" in line and "pace" not in line
    ]
    return sum(map(int, kib)) * 1024.0


def _snapshot_bytes(zookeeper: LocalZooKeeper) -> float:
    newest = max((zookeeper.data_dir / "data" / "version-2").glob("snapshot.*"), key=lambda path: path.stat().st_mtime)
    return float(newest.stat().st_size)


def _restarted(zookeeper: LocalZooKeeper) -> float:
    """Seconds until it serves again."""
    zookeeper.stop()
    began = time.monotonic()
    zookeeper.start(timeout_seconds=600)
    return time.monotonic() - began


def _stored(zookeeper: LocalZooKeeper, ledgers: int) -> dict[str, float]:
    """Fills a root that is there; heap, snapshot and restart a ledger."""
    bare, empty = _restarted(zookeeper), heap_bytes(zookeeper)
    began = time.monotonic()
    populate(zookeeper, _ROOT, ledgers, _FIRST)
    filled = time.monotonic() - began
    # The first start keeps the last 500 transactions, of 500 ledgers each, in memory; the second reads a snapshot.
    _restarted(zookeeper)
    return {
        "store_start_seconds": (_restarted(zookeeper) - bare) / ledgers,
        "ledger_heap_bytes": (heap_bytes(zookeeper) - empty) / ledgers,
        "ledger_snapshot_bytes": _snapshot_bytes(zookeeper) / ledgers,
        "store_fill_seconds": filled,
    }


def _register(zookeeper: LocalZooKeeper, bookies: int) -> KazooClient:
    """Bookies in discovery that are not there, for as long as the session lives."""
    client = KazooClient(zookeeper.address, timeout=60)
    client.start()
    for number in range(bookies):
        client.create(f"{_ROOT}/available/192.0.2.{number}:3181", b"", ephemeral=True, makepath=True)
    return client


def gateway_figures(size: Size, heap_mib: int, bookies: int, *, only_calls: bool = False) -> Mapping[str, float]:
    """All figures of one size, each a client, a ledger or a call; or those of calls alone."""
    os.environ.update(_ROOM)
    with ExitStack() as stack:
        directory = stack.enter_context(tempfile.TemporaryDirectory(prefix="bookgate-bench-", dir="."))
        zookeeper = stack.enter_context(LocalZooKeeper(Path(directory), tick_time_ms=2000, heap_mib=heap_mib))
        uri = zookeeper.metadata_uri(_ROOT)
        make_cluster(uri)
        figures = _stored(zookeeper, size.ledgers)
        _tell(f"{size.ledgers:,} ledgers in {figures['store_fill_seconds']:.0f} s")
        stack.callback(_register(zookeeper, bookies).stop)
        gateway = stack.enter_context(GatewayProcess(uri))
        loads = [
            stack.enter_context(LoadProcess("benchmarks.scale_clients", gateway.uri)) for _ in range(size.processes)
        ]
        run = GatewayRun(zookeeper, gateway, loads, size, figures)
        steps = (run.listed, run.passed, run.connected, run.idle, run.called, run.subscribed)
        for step in (run.connected, run.called) if only_calls else steps:
            step()
            run.figures["passed_over"] = sum(load.call("passed_over") for load in loads)
            _tell(f"{step.__name__}: {run.figures['passed_over']:.0f} gateways passed over so far")
        return run.figures


def embedded_figures(ledgers: int, indexed: int) -> Mapping[str, float]:
    """The embedded store: its file, a listing through a gateway, and the passes; each a ledger."""
    with ExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="bookgate-bench-", dir="."))).resolve()
        uri = f"sqlite://{directory}/metadata.sqlite"
        make_cluster(uri)
        fill_embedded(directory / "metadata.sqlite", ledgers)
        _tell(f"{ledgers:,} ledgers in an embedded store")
        gateway = stack.enter_context(GatewayProcess(uri))
        load = stack.enter_context(LoadProcess("benchmarks.scale_clients", gateway.uri))
        passes = stack.enter_context(LoadProcess("benchmarks.scale_passes", uri))
        load.call("connect", clients=1)
        before = cpu_microseconds(gateway.pid)
        walked = load.call("walk", with_metadata=False, before=None)
        cpu = cpu_microseconds(gateway.pid) - before
        recorded = load.call("walk", with_metadata=True, before=indexed)
        return {
            "ledger_file_bytes": (directory / "metadata.sqlite").stat().st_size / ledgers,
            "list_cpu": cpu / walked["count"],
            "list_seconds": walked["seconds"] / walked["count"],
            "record_seconds": recorded["seconds"] / recorded["count"],
            **passes.call("collect", first=0, ledgers=ledgers),
            **passes.call("index", at_most=indexed),
        }


def _tell(what: str) -> None:
    print(what, file=sys.stderr, flush=True)
