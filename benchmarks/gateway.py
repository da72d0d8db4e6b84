"""The metadata gateway under load, beside kazoo clients that use the same ZooKeeper directly: `make bench-gateway`.

Clients run in processes of their own (`thin_load`, `kazoo_load`), two of each where many clients are meant, and the
gateway in another; all of them and ZooKeeper share the machine's cores, so what is measured is the whole chain. Rows
that build up state (subscriptions, sessions, the listing of a large tree) are measured once or in fewer pairs.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import quantiles

from benchmarks.gateway_setting import GatewayProcess, populate, rewrite, server_figure
from benchmarks.harness import PAIRS, QUICK, Row, compare, compare_once, figures, report
from benchmarks.load_process import LoadProcess, call_all
from benchmarks.process_cpu import cpu_microseconds
from bookgate.bookie.standalone.local_zookeeper import LocalZooKeeper
from bookgate.gateway.stores.drivers import ensure_cluster

_SECONDS = 1.5 if QUICK else 3.0
_PROCESSES = 2
_CLIENTS = 50
_CLOSED = 1_000 if QUICK else 4_000
_LISTED = 50_000 if QUICK else 1_000_000
_LISTED_WITH_METADATA = 20_000 if QUICK else 50_000
_STREAMS, _EACH, _WATCHED = (40, 250, 2_000) if QUICK else (200, 500, 20_000)
_FAN_OUT = 1_000 if QUICK else 5_000
_STREAMS_A_CONNECTION = 50
_CONNECTIONS = 200 if QUICK else 1_000
_MIB = 1024 * 1024


@dataclass(frozen=True)
class Setting:
    """A ZooKeeper and one gateway on a ledgers root of its own."""

    zookeeper: LocalZooKeeper
    root: str
    gateway: GatewayProcess

    @contextmanager
    def loads(self, processes: int = 1) -> Iterator[tuple[list[LoadProcess], list[LoadProcess]]]:
        """Processes of thin clients, and of kazoo clients."""
        with ExitStack() as stack:
            thin = [LoadProcess("benchmarks.thin_load", self.gateway.uri) for _ in range(processes)]
            thick = [LoadProcess("benchmarks.kazoo_load", self.zookeeper.address, self.root) for _ in range(processes)]
            for process in thin + thick:
                stack.enter_context(process)
            yield thin, thick


@contextmanager
def _setting(zookeeper: LocalZooKeeper, name: str) -> Iterator[Setting]:
    root = f"/{name}/ledgers"
    uri = zookeeper.metadata_uri(root)
    asyncio.run(ensure_cluster(uri))
    with GatewayProcess(uri) as gateway:
        yield Setting(zookeeper, root, gateway)


def _rate(processes: Sequence[LoadProcess], operation: str, **arguments: object) -> Callable[[], float]:
    """How many a second over all processes, by an operation that says so after `_SECONDS`."""

    def measure() -> float:
        return float(sum(call_all(processes, operation, seconds=_SECONDS, **arguments)))

    return measure


def creation(zookeeper: LocalZooKeeper) -> list[Row]:
    with _setting(zookeeper, "creation") as setting, setting.loads(_PROCESSES) as (thin, thick):
        return [
            compare(
                f"create, {_CLIENTS * _PROCESSES} clients at once, one by one",
                "ledgers/s",
                _rate(thin, "create", clients=_CLIENTS),
                _rate(thick, "create", clients=_CLIENTS),
                "kazoo",
            ),
            compare(
                f"create, {4 * _PROCESSES} clients at once, 100 a call",
                "ledgers/s",
                _rate(thin, "create_bulk", clients=4, batch=100),
                _rate(thick, "create_bulk", clients=4, batch=100),
                "kazoo",
            ),
        ]


@dataclass(frozen=True)
class Closings:
    """Ledgers closed a second, and the CPU of clients and gateway for each, in microseconds."""

    rate: float
    cpu: float


def closing(zookeeper: LocalZooKeeper) -> list[Row]:
    with _setting(zookeeper, "closing") as setting, setting.loads(_PROCESSES) as (thin, thick):
        _closings(thin, setting.gateway.pid), _closings(thick)
        pairs = [(_closings(thin, setting.gateway.pid), _closings(thick)) for _ in range(PAIRS)]
    name = f"close, {_CLIENTS * _PROCESSES} clients at once, one by one"
    return [
        figures(name, "ledgers/s", [ours.rate for ours, _ in pairs], [peer.rate for _, peer in pairs], "kazoo"),
        figures(
            f"{name}: CPU of clients and gateway",
            "µs",
            [ours.cpu for ours, _ in pairs],
            [peer.cpu for _, peer in pairs],
            "kazoo",
            up=False,
        ),
    ]


def _closings(clients: Sequence[LoadProcess], *servers: int) -> Closings:
    call_all(clients, "make_open", count=_CLOSED)
    before = sum(map(cpu_microseconds, servers))
    took = call_all(clients, "close_open", clients=_CLIENTS)
    cpu = sum(map(cpu_microseconds, servers)) - before + 1e6 * sum(each["cpu"] for each in took)
    return Closings(sum(_CLOSED / each["seconds"] for each in took), cpu / (_CLOSED * len(clients)))


def reads(zookeeper: LocalZooKeeper) -> list[Row]:
    with _setting(zookeeper, "reads") as setting, setting.loads() as (thin, thick):
        ids = populate(zookeeper, setting.root, 10_000)
        thin[0].call("read_all", ids=ids)
        rows = [
            compare(
                f"read, 1,000 a call, of 10,000 ledgers recently read{what}",
                "ledgers/s",
                _rate(thin, operation, ids=ids, batch=1000, clients=2),
                _rate(thick, operation, ids=ids, batch=1000, clients=2),
                "kazoo",
            )
            for operation, what in (("read_bulk", ""), ("read_bulk_undecoded", ", left encoded by the client"))
        ]
        for clients in (1, 16):
            for name, index in (("p50", 49), ("p99", 98)):
                rows.append(
                    compare(
                        f"read one ledger, {clients} at once, {name}",
                        "ms",
                        lambda clients=clients, index=index: _percentile(thin[0], ids, clients, index),  # type: ignore[misc]
                        lambda clients=clients, index=index: _percentile(thick[0], ids, clients, index),  # type: ignore[misc]
                        "kazoo",
                        higher_is_better=False,
                    )
                )
    return rows


def _percentile(process: LoadProcess, ids: list[int], clients: int, index: int) -> float:
    """Milliseconds."""
    took: list[float] = process.call("read_single", ids=ids, seconds=_SECONDS / 4, clients=clients)
    return 1000 * quantiles(took, n=100)[index]


def listing(zookeeper: LocalZooKeeper) -> list[Row]:
    with _setting(zookeeper, "listing") as setting:
        began = time.monotonic()
        populate(zookeeper, setting.root, _LISTED)
        print(f"{_LISTED:,} ledgers populated in {time.monotonic() - began:.0f} s", file=sys.stderr)
        with setting.loads() as (thin, thick):
            before = setting.gateway.rss_bytes
            rows = [
                compare_once(
                    f"list {_LISTED:,} ledgers, the first time",
                    "ids/s",
                    lambda: _walked(thin[0], _LISTED),
                    lambda: _walked(thick[0], _LISTED),
                    "kazoo",
                ),
                compare(
                    f"list {_LISTED:,} ledgers",
                    "ids/s",
                    lambda: _walked(thin[0], _LISTED),
                    lambda: _walked(thick[0], _LISTED),
                    "kazoo",
                ),
                compare(
                    f"list {_LISTED_WITH_METADATA:,} ledgers with their metadata",
                    "ledgers/s",
                    lambda: _walked(thin[0], _LISTED_WITH_METADATA, with_metadata=True),
                    lambda: _walked(thick[0], _LISTED_WITH_METADATA, with_metadata=True),
                    "kazoo",
                    pairs=3,
                ),
            ]
            grown = (setting.gateway.rss_bytes - before) / _MIB
        with setting.loads() as (_, fresh_thick):
            fresh_thick[0].call("open", clients=1)
            idle = fresh_thick[0].rss_bytes
            walked = fresh_thick[0].call("walk")["rss"]
            rows.append(
                compare_once(
                    "memory gained by all these listings (gateway beside a walking client)",
                    "MiB",
                    lambda: grown,
                    lambda: (walked - idle) / _MIB,
                    "kazoo",
                    higher_is_better=False,
                )
            )
    return rows


def _walked(process: LoadProcess, count: int, *, with_metadata: bool = False) -> float:
    result = process.call("walk", with_metadata=with_metadata, before=count if with_metadata else None)
    if result["count"] != count:
        raise RuntimeError(f"a listing of {count} ledgers had {result['count']}")
    return float(count / result["seconds"])


def watching(zookeeper: LocalZooKeeper) -> list[Row]:
    """Rows of subscriptions; `_FAN_OUT` subscribers of one ledger share 100 connections."""
    with _setting(zookeeper, "watching") as setting:
        ids = populate(zookeeper, setting.root, _WATCHED)
        subscriptions = _STREAMS * _EACH
        with setting.loads() as (thin, thick):
            thin[0].call("open", clients=_STREAMS)
            thick[0].call("open", clients=_STREAMS)
            idle, idle_thick = setting.gateway.rss_bytes, thick[0].rss_bytes
            took = thin[0].call("subscribe", ids=ids, streams=_STREAMS, each=_EACH)
            watches = server_figure(zookeeper, "zk_watch_count")
            grown = setting.gateway.rss_bytes - idle
            took_thick = thick[0].call("subscribe", ids=ids, streams=_STREAMS, each=_EACH)
            watches_thick = server_figure(zookeeper, "zk_watch_count") - watches
            grown_thick = thick[0].rss_bytes - idle_thick
        what = f"{subscriptions:,} subscriptions on {_STREAMS} streams to {_WATCHED:,} ledgers"
        lower = {"peer_name": "kazoo", "higher_is_better": False}
        return [
            compare_once(f"{what}: store watches", "watches", lambda: watches, lambda: watches_thick, **lower),  # type: ignore[arg-type]
            compare_once(
                f"{what}: memory a subscription",
                "bytes",
                lambda: grown / subscriptions,
                lambda: grown_thick / subscriptions,
                **lower,  # type: ignore[arg-type]
            ),
            compare_once(
                f"{what}: until all are told",
                "s",
                lambda: float(took),
                lambda: float(took_thick),
                **lower,  # type: ignore[arg-type]
            ),
        ]


def fan_out(zookeeper: LocalZooKeeper) -> list[Row]:
    """Every subscriber has a stream of its own here: no two of one client could watch the same ledger."""
    with _setting(zookeeper, "fan-out") as setting, setting.loads() as (thin, thick):
        populate(zookeeper, setting.root, 2)
        connections = _FAN_OUT // _STREAMS_A_CONNECTION
        thin[0].call("watch", ledger_id=0, connections=connections, each=_STREAMS_A_CONNECTION)
        thick[0].call("subscribe", ids=[1], streams=connections, each=_STREAMS_A_CONNECTION)
        return [
            compare(
                f"one change told to {_FAN_OUT:,} subscribers on {connections} connections",
                "s",
                _told(setting, thin[0], 0),
                _told(setting, thick[0], 1),
                "kazoo",
                higher_is_better=False,
            )
        ]


def _told(setting: Setting, process: LoadProcess, ledger_id: int) -> Callable[[], float]:
    """Seconds from a change to the moment at which the last subscriber has it."""
    versions = itertools.count(1)

    def measure() -> float:
        process.begin("hear", version=next(versions), count=_FAN_OUT)
        began = rewrite(setting.zookeeper, setting.root, ledger_id)
        return float(process.finish()) - began

    return measure


def sessions(zookeeper: LocalZooKeeper) -> list[Row]:
    with _setting(zookeeper, "sessions") as setting, setting.loads() as (thin, thick):
        idle = server_figure(zookeeper, "zk_num_alive_connections") - 1
        thin[0].call("open", clients=_CONNECTIONS)
        ours = server_figure(zookeeper, "zk_num_alive_connections") - idle
        thick[0].call("open", clients=_CONNECTIONS)
        peer = server_figure(zookeeper, "zk_num_alive_connections") - ours - idle
        return [
            compare_once(
                f"ZooKeeper connections of {_CONNECTIONS:,} clients, one gateway",
                "connections",
                lambda: ours,
                lambda: peer,
                "kazoo",
                higher_is_better=False,
            )
        ]


PARTS: dict[str, Callable[[LocalZooKeeper], list[Row]]] = {
    "creation": creation,
    "closing": closing,
    "reads": reads,
    "watching": watching,
    "fan-out": fan_out,
    "sessions": sessions,
    "listing": listing,
}


def main() -> None:
    """`PART=reads,listing` measures those only and writes no results."""
    chosen = [name for name in os.environ.get("PART", "").split(",") if name]
    rows: list[Row] = []
    with tempfile.TemporaryDirectory(prefix="bookgate-bench-", dir=".") as directory:
        for name in chosen or PARTS:
            with LocalZooKeeper(Path(directory) / name, heap_mib=512 if QUICK else 4096) as zookeeper:
                part = PARTS[name](zookeeper)
            rows += part
            for row in part:
                print(f"{row.name}: {row.ours:,.2f} {row.unit}, {row.peer_name} {row.peer:,.2f}", file=sys.stderr)
    report("gateway", rows, whole=not chosen)


if __name__ == "__main__":
    main()
