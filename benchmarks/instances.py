"""Several bookies of a host beside one: `make bench-instances`.

The same load, from the same two load processes, goes to one bookie and to the two instances of a supervisor, in turn.
CPU an add is that of all bookie processes (with the supervisor) and, apart from it, that of the load, for both share
the machine's cores with each other. What the instances share is the machine's as well: processors, the page cache, and
one disk for both journals and entry logs; with one disk each, `--directories` names them. Without sync the disk is
not waited for, and the processors are what is left to share.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from benchmarks.entry_load import encoded_adds, requests_per_second
from benchmarks.harness import PAIRS, QUICK, Row, figures, report
from benchmarks.load_process import LoadProcess, call_all, serve
from benchmarks.process_cpu import cpu_microseconds
from bookgate.bookie.standalone.cluster import BookieProcess, StandaloneCluster, make_cluster

INSTANCES = 2
LOADS = (
    # payload bytes, entries of each load process, outstanding of each
    (100, 120_000, 500),
    (1024, 80_000, 500),
    (65536, 3_000, 32),
)
NO_SYNC_LOADS = LOADS[:2]


class AddLoad:
    """In a load process: adds of one ledger, encoded before they are measured."""

    def __init__(self, number: int) -> None:
        self._next_ledger = number * 1_000_000
        self._frames: list[bytes] = []

    def prepare(self, size: int, count: int) -> None:
        self._next_ledger += 1
        self._frames = encoded_adds(size, count, [self._next_ledger])

    def run(self, ports: list[int], outstanding: int, number: int) -> float:
        """The p99 of the adds' latency in milliseconds; which port is its own follows from the number."""
        _, latencies = requests_per_second(ports[number % len(ports)], self._frames, outstanding)
        return latencies.quantile(0.99)


@dataclass(frozen=True)
class Host:
    """One bookie, or several instances: their ports, and all their processes."""

    ports: list[int]
    pids: list[int]


class Run(NamedTuple):
    """Adds a second of all; CPU of bookies and of the load in microseconds an add; cores they kept busy; p99 in ms."""

    rate: float
    bookies: float
    load: float
    bookie_cores: float
    load_cores: float
    p99: float


def _port(address: str) -> int:
    return int(address.rpartition(":")[2])


@contextmanager
def one_bookie(directory: Path) -> Iterator[Host]:
    with StandaloneCluster(directory, bookies=1) as cluster:
        process = cluster.processes[0].process
        assert process is not None
        yield Host([_port(cluster.bookies[0])], [process.pid])


@contextmanager
def supervised(directory: Path, disks: Sequence[Path]) -> Iterator[Host]:
    uri = f"sqlite://{directory.absolute()}/metadata.sqlite"
    directory.mkdir()
    make_cluster(uri)
    dealt = ",".join(str(disk.absolute()) for disk in disks)
    host = BookieProcess(
        "host",
        directory,
        [
            *("start", "--json", "--stop-with-parent", f"--instances={INSTANCES}", "--bookie-id=host"),
            *(f"--metadata-uri={uri}", f"--data-dir={directory.absolute()}", "--host=127.0.0.1"),
            *("--port=0", "--gateway-port=0", "--http-port=0"),
            *([f"--set=journal_directories={dealt}", f"--set=ledger_directories={dealt}"] if dealt else []),
        ],
    )
    host.start()
    try:
        host.wait_until_serving()
        with urllib.request.urlopen(f"http://{host.addresses['http']}/api/v1/instances", timeout=30) as answer:
            instances = json.loads(answer.read())
        assert host.process is not None
        pids = [host.process.pid, *(each["pid"] for each in instances)]
        yield Host([_port(each["bookie"]) for each in instances], pids)
    finally:
        host.terminate()
        host.wait()


def _run(host: Host, loads: Sequence[LoadProcess], size: int, count: int, outstanding: int) -> Run:
    call_all(loads, "prepare", size=size, count=count)
    pids = [load.pid for load in loads]
    bookies, load = _cpu(host.pids), _cpu(pids)
    began = time.perf_counter()
    for number, each in enumerate(loads):
        each.begin("run", ports=host.ports, outstanding=outstanding, number=number)
    p99 = max(each.finish() for each in loads)
    seconds = time.perf_counter() - began
    bookies, load = _cpu(host.pids) - bookies, _cpu(pids) - load
    adds = count * len(loads)
    return Run(adds / seconds, bookies / adds, load / adds, bookies / seconds / 1e6, load / seconds / 1e6, p99)


def _cpu(pids: Sequence[int]) -> float:
    return sum(map(cpu_microseconds, pids))


def _rows(name: str, several: Sequence[Run], one: Sequence[Run]) -> list[Row]:
    def row(tail: str, unit: str, figure: Callable[[Run], float], *, up: bool = True) -> Row:
        return figures(name + tail, unit, [*map(figure, several)], [*map(figure, one)], "one bookie", up=up)

    return [
        row("", "adds/s", lambda run: run.rate),
        row(": CPU of the bookies", "µs an add", lambda run: run.bookies, up=False),
        row(": CPU of the load", "µs an add", lambda run: run.load, up=False),
        row(": busy by bookies", "cores", lambda run: run.bookie_cores),
        row(": busy by the load", "cores", lambda run: run.load_cores),
        row(": p99", "ms", lambda run: run.p99, up=False),
    ]


def _temporary(disk: Path) -> tempfile.TemporaryDirectory[str]:
    return tempfile.TemporaryDirectory(prefix="bookgate-bench-", dir=disk)


def _measured(disks: Sequence[Path], what: str, measured: Sequence[tuple[int, int, int]]) -> list[Row]:
    rows = []
    with ExitStack() as stack:
        directory = Path(stack.enter_context(_temporary(Path("."))))
        one = stack.enter_context(one_bookie(directory / "one"))
        own = [Path(stack.enter_context(_temporary(disk))) for disk in disks]
        several = stack.enter_context(supervised(directory / "several", own))
        loads = [
            stack.enter_context(LoadProcess("benchmarks.instances", "--load", str(number + 1)))
            for number in range(INSTANCES)
        ]
        for size, count, outstanding in measured:
            entries = max(100, count // 4) if QUICK else count
            pairs = [
                (_run(several, loads, size, entries, outstanding), _run(one, loads, size, entries, outstanding))
                for _ in range(PAIRS + 1)
            ][1:]  # the first is the warm-up
            name = f"{what}, {size} B, {INSTANCES} × {outstanding} outstanding"
            rows += _rows(name, [ours for ours, _ in pairs], [peer for _, peer in pairs])
            print(f"{name}: {max(ours.rate for ours, _ in pairs):,.0f} adds/s", file=sys.stderr)
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description="Several bookies of a host beside one.")
    parser.add_argument("--directories", type=Path, nargs="*", default=[], help="one on each disk")
    parser.add_argument("--load", type=int, help=argparse.SUPPRESS)
    chosen = parser.parse_args()
    if chosen.load is not None:
        serve(AddLoad(chosen.load))
    else:
        rows = _measured(chosen.directories, "add", LOADS)
        os.environ["BOOKGATE_BOOKIE_JOURNAL_SYNC_DATA"] = "false"
        report("instances", rows + _measured(chosen.directories, "add without sync", NO_SYNC_LOADS))


if __name__ == "__main__":
    main()
