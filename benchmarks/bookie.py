"""One bookie under loads that were encoded beforehand: `make bench-bookie`.

The peer `limit` is a bare loop (`bare_bookie`) that gets the same frames from the same generator in the same run: for
adds it appends and syncs what it receives and answers, for reads it answers with as many bytes. Each rate has the CPU
an operation beside it, of all threads of the process, checkpoints included.

`cold` reads follow a restart of the bookie, with the files dropped from the page cache.
"""

from __future__ import annotations

import os
import random
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from benchmarks.entry_load import (
    encoded_adds,
    encoded_batch_reads,
    encoded_reads,
    new_ledger_ids,
    requests_per_second,
)
from benchmarks.harness import PAIRS, QUICK, Row, figures, report
from benchmarks.process_cpu import cpu_microseconds
from bookgate.bookie.standalone.cluster import StandaloneCluster
from bookgate.runtime.latency import LatencyHistogram

ADDS = (
    # payload bytes, entries, outstanding, ledgers
    (100, 60_000, 1000, 1),
    (1024, 40_000, 1000, 1),
    (65536, 1_500, 64, 1),
    (100, 60_000, 1000, 1000),
    (1024, 40_000, 1000, 1000),
    (65536, 1_500, 64, 1000),
    (100, 1_000, 1, 1),
    (1024, 1_000, 1, 1),
    (65536, 500, 1, 1),
)
NO_SYNC_ADDS = ((100, 60_000, 1000, 1), (1024, 40_000, 1000, 1), (65536, 1_500, 64, 1))

READ_ENTRIES = 20_000
BATCH = 100


@dataclass(frozen=True)
class Server:
    """A process that takes the load."""

    port: int
    pid: int


class Bookie:
    """One bookie process with its directory."""

    def __init__(self, stack: ExitStack, directory: Path, name: str) -> None:
        self.directory = directory / name
        self._cluster = stack.enter_context(StandaloneCluster(self.directory, bookies=1))

    @property
    def server(self) -> Server:
        """Its present process."""
        process = self._cluster.processes[0].process
        assert process is not None
        return Server(int(self._cluster.bookies[0].rpartition(":")[2]), process.pid)

    def restart_cold(self) -> None:
        """Stops the bookie, which flushes everything, and lets the kernel forget its files."""
        self._cluster.stop()
        for path in self.directory.rglob("*"):
            if path.is_file():
                with path.open("rb") as file:
                    os.fsync(file.fileno())
                    os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        self._cluster.start()


@contextmanager
def bare_bookie(directory: Path, option: str = "") -> Iterator[Server]:
    """The bare loop."""
    command = [sys.executable, "-m", "benchmarks.bare_bookie", str(directory), *([option] if option else [])]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        yield Server(int(process.stdout.readline()), process.pid)
        process.communicate()


class Run(NamedTuple):
    """Requests a second, their latencies in milliseconds, and the server's CPU a request in microseconds."""

    rate: float
    latencies: LatencyHistogram
    cpu: float


def _run(server: Server, frames: Sequence[bytes], outstanding: int) -> Run:
    before = cpu_microseconds(server.pid)
    rate, latencies = requests_per_second(server.port, frames, outstanding)
    return Run(rate, latencies, (cpu_microseconds(server.pid) - before) / len(frames))


class Figures:
    """What several runs gave, ours and the limit's; a request is of `each` entries."""

    def __init__(self, name: str, each: int = 1) -> None:
        self._name = name
        self._each = each
        self._ours: list[Run] = []
        self._limit: list[Run] = []

    def add(self, ours: Run, limit: Run) -> None:
        """A pair of runs."""
        self._ours.append(ours)
        self._limit.append(limit)

    @property
    def best(self) -> float:
        """The highest rate of ours, in entries a second."""
        return max(run.rate for run in self._ours) * self._each

    def rows(self, unit: str, size: int) -> list[Row]:
        """Rate, CPU an entry, megabytes of payload, p50 and p99."""
        return [
            self._row("", unit, lambda run: run.rate * self._each),
            self._row(": CPU of the process", "µs an entry", lambda run: run.cpu / self._each, up=False),
            self._row(": MB/s", "MB/s", lambda run: run.rate * self._each * size / 1e6),
            self._row(": p50", "ms", lambda run: run.latencies.quantile(0.5), up=False),
            self._row(": p99", "ms", lambda run: run.latencies.quantile(0.99), up=False),
        ]

    def _row(self, tail: str, unit: str, figure: Callable[[Run], float], *, up: bool = True) -> Row:
        return figures(
            self._name + tail, unit, list(map(figure, self._ours)), list(map(figure, self._limit)), "limit", up=up
        )


def _adds(bookie: Bookie, bare: Server, name: str, load: tuple[int, int, int, int]) -> Figures:
    """Runs of ours and of the limit, alternately."""
    size, count, outstanding, ledgers = load
    entries = max(100, count // 4) if QUICK else count
    found = Figures(name)
    for number in range(PAIRS + 1):
        frames = encoded_adds(size, entries, ledgers)
        ours, limit = _run(bookie.server, frames, outstanding), _run(bare, frames, outstanding)
        if number:  # the first is the warm-up
            found.add(ours, limit)
    print(f"{name}: {found.best:,.0f} adds/s", file=sys.stderr)
    return found


def _add_rows(bookie: Bookie, bare: Server) -> list[Row]:
    rows = []
    for load in ADDS:
        size, _, outstanding, ledgers = load
        name = f"add, {size} B, {outstanding} outstanding, {ledgers} ledger{'s' * (ledgers > 1)}"
        rows += _adds(bookie, bare, name, load).rows("adds/s", size)
    return rows


def _no_sync_rows(bookie: Bookie, bare: Server) -> list[Row]:
    rows = []
    for load in NO_SYNC_ADDS:
        name = f"add without sync, {load[0]} B, {load[2]} outstanding"
        rows += _adds(bookie, bare, name, load).rows("adds/s", load[0])
    return rows


def _read_rows(bookie: Bookie, directory: Path) -> list[Row]:
    entries = READ_ENTRIES // 4 if QUICK else READ_ENTRIES
    [ledger_id] = new_ledger_ids(1)
    requests_per_second(bookie.server.port, encoded_adds(1024, entries, [ledger_id]), 1000)
    shuffled = random.Random(1).sample(range(entries), entries)
    loads: tuple[tuple[str, list[bytes], int, int, int], ...] = (
        ("sequential", encoded_reads(ledger_id, range(entries)), 1, 100, 1100),
        ("random", encoded_reads(ledger_id, shuffled), 1, 100, 1100),
        ("batches of 100", encoded_batch_reads(ledger_id, entries, BATCH), BATCH, 10, 108_600),
    )
    rows = []
    for name, frames, each, outstanding, answer_size in loads:
        with bare_bookie(directory, str(answer_size)) as bare:
            for heat, prepare in (("hot", _nothing), ("cold", bookie.restart_cold)):
                found = Figures(f"read 1 KiB, {name}, {heat}, {outstanding} outstanding", each)
                for number in range(PAIRS + 1):
                    prepare()
                    ours, limit = _run(bookie.server, frames, outstanding), _run(bare, frames, outstanding)
                    if number:
                        found.add(ours, limit)
                rows += found.rows("entries/s", 1024)
                print(f"read 1 KiB, {name}, {heat}: {found.best:,.0f}/s", file=sys.stderr)
    return rows


def _nothing() -> None:
    return


def main() -> None:
    with ExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="bookgate-bench-", dir=".")))
        bookie = Bookie(stack, directory, "synced")
        rows = _add_rows(bookie, stack.enter_context(bare_bookie(directory)))
        rows += _read_rows(bookie, directory)
        os.environ["BOOKGATE_BOOKIE_JOURNAL_SYNC_DATA"] = "false"
        unsynced = Bookie(stack, directory, "unsynced")
        rows += _no_sync_rows(unsynced, stack.enter_context(bare_bookie(directory, "nosync")))
    report("bookie", rows)


if __name__ == "__main__":
    main()
