"""One bookie under loads that were encoded beforehand: `make bench-bookie`.

The peer `limit` is a bare loop (`bare_bookie`) that gets the same frames from the same generator in the same run: for
adds it appends and syncs what it receives and answers, for reads it answers with as many bytes. Beside it stand the
Java bookie's recorded figures, taken with a client that encodes and decodes as it goes.

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
from pathlib import Path

from benchmarks.entry_load import (
    encoded_adds,
    encoded_batch_reads,
    encoded_reads,
    new_ledger_ids,
    requests_per_second,
)
from benchmarks.harness import PAIRS, QUICK, Row, beside_recorded, figures, report
from bookgate.bookie.standalone.cluster import StandaloneCluster
from bookgate.runtime.latency import LatencyHistogram

ADDS: tuple[tuple[int, int, int, int, float | None, float | None], ...] = (
    # payload bytes, entries, outstanding, ledgers, Java's adds/s, Java's p99 in ms
    (100, 60_000, 1000, 1, 51_600, 51),
    (1024, 40_000, 1000, 1, 31_500, 79),
    (65536, 1_500, 64, 1, 1_420, 181),
    (100, 60_000, 1000, 1000, None, None),
    (1024, 40_000, 1000, 1000, None, None),
    (65536, 1_500, 64, 1000, None, None),
    (100, 1_000, 1, 1, None, None),
    (1024, 1_000, 1, 1, 592, 16),
    (65536, 500, 1, 1, None, None),
)
NO_SYNC_ADDS = ((100, 60_000, 1000, 1), (1024, 40_000, 1000, 1), (65536, 1_500, 64, 1))

READ_ENTRIES = 20_000
BATCH = 100


class Bookie:
    """One bookie process with its directory."""

    def __init__(self, stack: ExitStack, directory: Path, name: str) -> None:
        self.directory = directory / name
        self._cluster = stack.enter_context(StandaloneCluster(self.directory, bookies=1))

    @property
    def port(self) -> int:
        return int(self._cluster.bookies[0].rpartition(":")[2])

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
def bare_bookie(directory: Path, option: str = "") -> Iterator[int]:
    """The port of the bare loop."""
    command = [sys.executable, "-m", "benchmarks.bare_bookie", str(directory), *([option] if option else [])]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        yield int(process.stdout.readline())
        process.communicate()


class Figures:
    """What several runs gave, ours and the limit's: requests a second, and latencies in milliseconds."""

    def __init__(self, name: str) -> None:
        self._name = name
        self.rates: list[float] = []
        self._limits: list[float] = []
        self._latencies: list[LatencyHistogram] = []
        self._limit_latencies: list[LatencyHistogram] = []

    def add(self, ours: tuple[float, LatencyHistogram], limit: tuple[float, LatencyHistogram], each: int = 1) -> None:
        """A pair of runs; a request is of `each` entries."""
        self.rates.append(ours[0] * each)
        self._limits.append(limit[0] * each)
        self._latencies.append(ours[1])
        self._limit_latencies.append(limit[1])

    def rows(self, unit: str, size: int, java_rate: float | None = None, java_p99: float | None = None) -> list[Row]:
        """Rate, megabytes of payload, p50 and p99."""
        name, rates = self._name, self.rates
        rows = [figures(name, unit, rates, self._limits, "limit")]
        if java_rate:
            rows.append(beside_recorded(name, unit, rates, java_rate))
        bytes_a_second = [[rate * size / 1e6 for rate in each] for each in (rates, self._limits)]
        rows.append(figures(f"{name}: MB/s", "MB/s", bytes_a_second[0], bytes_a_second[1], "limit"))
        for fraction in (0.5, 0.99):
            ours = [latencies.quantile(fraction) for latencies in self._latencies]
            limit = [latencies.quantile(fraction) for latencies in self._limit_latencies]
            tail = f"{name}: p{fraction * 100:.0f}"
            rows.append(figures(tail, "ms", ours, limit, "limit", up=False))
            if fraction == 0.99 and java_p99:
                rows.append(beside_recorded(tail, "ms", ours, java_p99, up=False))
        return rows


def _adds(bookie: Bookie, bare: int, name: str, load: tuple[int, int, int, int]) -> Figures:
    """Runs of ours and of the limit, alternately."""
    size, count, outstanding, ledgers = load
    entries = max(100, count // 4) if QUICK else count
    found = Figures(name)
    for number in range(PAIRS + 1):
        frames = encoded_adds(size, entries, ledgers)
        ours = requests_per_second(bookie.port, frames, outstanding)
        limit = requests_per_second(bare, frames, outstanding)
        if number:  # the first is the warm-up
            found.add(ours, limit)
    print(f"{name}: {max(found.rates):,.0f} adds/s", file=sys.stderr)
    return found


def _add_rows(bookie: Bookie, bare: int) -> list[Row]:
    rows = []
    for size, count, outstanding, ledgers, java_rate, java_p99 in ADDS:
        name = f"add, {size} B, {outstanding} outstanding, {ledgers} ledger{'s' * (ledgers > 1)}"
        found = _adds(bookie, bare, name, (size, count, outstanding, ledgers))
        rows += found.rows("adds/s", size, java_rate, java_p99)
    return rows


def _no_sync_rows(bookie: Bookie, bare: int) -> list[Row]:
    rows = []
    for load in NO_SYNC_ADDS:
        name = f"add without sync, {load[0]} B, {load[2]} outstanding"
        rows += _adds(bookie, bare, name, load).rows("adds/s", load[0])
    return rows


def _read_rows(bookie: Bookie, directory: Path) -> list[Row]:
    entries = READ_ENTRIES // 4 if QUICK else READ_ENTRIES
    [ledger_id] = new_ledger_ids(1)
    requests_per_second(bookie.port, encoded_adds(1024, entries, [ledger_id]), 1000)
    shuffled = random.Random(1).sample(range(entries), entries)
    loads: tuple[tuple[str, list[bytes], int, int, int, float], ...] = (
        ("sequential", encoded_reads(ledger_id, range(entries)), 1, 100, 1100, 26_000.0),
        ("random", encoded_reads(ledger_id, shuffled), 1, 100, 1100, 26_000.0),
        ("batches of 100", encoded_batch_reads(ledger_id, entries, BATCH), BATCH, 10, 108_600, 78_600.0),
    )
    rows = []
    for name, frames, each, outstanding, answer_size, java in loads:
        with bare_bookie(directory, str(answer_size)) as bare:
            for heat, prepare in (("hot", _nothing), ("cold", bookie.restart_cold)):
                row_name = f"read 1 KiB, {name}, {heat}, {outstanding} outstanding"
                found = _reads(row_name, bookie, bare, frames, each, outstanding, prepare)
                rows += found.rows("entries/s", 1024, java if heat == "hot" else None)
                print(f"{row_name}: {max(found.rates):,.0f}/s", file=sys.stderr)
    return rows


def _reads(
    name: str,
    bookie: Bookie,
    bare: int,
    frames: Sequence[bytes],
    each: int,
    outstanding: int,
    prepare: Callable[[], None],
) -> Figures:
    found = Figures(name)
    for number in range(PAIRS + 1):
        prepare()
        ours = requests_per_second(bookie.port, frames, outstanding)
        limit = requests_per_second(bare, frames, outstanding)
        if number:
            found.add(ours, limit, each)
    return found


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
