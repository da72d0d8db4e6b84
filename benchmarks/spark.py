"""Scans of ledgers through Spark beside Parquet and text files of the same bytes: `make bench-spark`.

A driver with two cores (`local[2]`), a cluster of one bookie on the same machine, and everything in the page cache. A
scan is a sum over all columns, done by Spark, so that every value gets as far as a row. Ours and the peers run in turn.
Text is a line an entry, random bytes in base64 of the same size; Parquet is uncompressed, with the columns that ours
has. Rates are of the wall clock; since the bookie, the Python workers and the JVM share the cores, the CPU-seconds of
each stand beside them, by which a scan can be compared where the storage is another machine.

Planning is `partitions()` of a process of its own over 1,000,000 ledgers of a metadata store that is filled directly.
"""

from __future__ import annotations

import asyncio
import base64
import os
import random
import sqlite3
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from benchmarks import spark_stream
from benchmarks.gateway_setting import GatewayProcess
from benchmarks.harness import PAIRS, QUICK, Row, compare_once, figures, report
from benchmarks.load_process import LoadProcess, rss_bytes, serve
from bookgate.bookie.standalone.cluster import StandaloneCluster
from bookgate.bookie.standalone.main_job.spark import local_spark
from bookgate.gateway.stores.drivers import ensure_cluster
from bookgate.gateway.stores.sqlite.change_feed import ledger_key
from bookgate.ledger.ledger_id import LedgerId
from bookgate.ledger.metadata import LedgerMetadata
from bookgate.ledger.metadata_codec import encode
from bookgate.thinclient.blocking.client import BookKeeper
from bookgate.thinclient.spark.options.read_options import parse_options
from bookgate.thinclient.spark.reading.batch import EntriesReader
from bookgate.thinclient.spark.session import require_spark

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

ONE = 1, 1, 1
SIZES = ((100, 2_000_000), (1024, 500_000), (65536, 8_000))
"""Payload bytes and entries."""
PLANNED_LEDGERS = 1_000_000
_SPARK = {"spark.driver.memory": "4g"}
"""Spark's Parquet reader takes thousands of rows at a time: with the ordinary 1 GiB it dies of rows of 64 KiB."""
_TICKS = os.sysconf("SC_CLK_TCK")
_DISTINCT = 4096
"""Different payloads; more would only make writing them slow."""


class Scan(NamedTuple):
    """One scan: seconds of the wall clock, and CPU-seconds by kind of process."""

    seconds: float
    cpu: Mapping[str, float]


def _cpu_seconds(pid: int) -> float:
    """User and system time of a process and of its children that have ended; 0 for one that is gone."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0.0
    return sum(map(int, fields[11:15])) / _TICKS


def _descendants(pid: int) -> Iterator[int]:
    children: dict[int, list[int]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                parent = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
            except OSError:
                continue
            children.setdefault(parent, []).append(int(entry.name))
    waiting = [pid]
    while waiting:
        found = children.get(waiting.pop(), [])
        yield from found
        waiting += found


class Meter:
    """CPU-seconds of the bookie, the JVM and the Python workers below it."""

    def __init__(self, cluster: StandaloneCluster, spark: SparkSession) -> None:
        self._bookies = [process.process.pid for process in cluster.processes if process.process is not None]
        jvm: Any = spark.sparkContext._jvm
        self._jvm = int(jvm.java.lang.ProcessHandle.current().pid())

    def read(self) -> dict[str, float]:
        return {
            "bookie": sum(map(_cpu_seconds, self._bookies)),
            "JVM": _cpu_seconds(self._jvm),
            "Python": sum(map(_cpu_seconds, _descendants(self._jvm))),
        }

    def scan(self, frame: DataFrame, expected_rows: int) -> Scan:
        before, began = self.read(), time.perf_counter()
        rows = _consume(frame)
        seconds, after = time.perf_counter() - began, self.read()
        assert rows == expected_rows, f"{rows} rows of {expected_rows}"
        return Scan(seconds, {kind: after[kind] - before[kind] for kind in after})


def _consume(frame: DataFrame) -> int:
    from pyspark.sql import functions as F  # noqa: N812

    sums = [F.sum(F.octet_length(name) if kind in ("binary", "string") else F.col(name)) for name, kind in frame.dtypes]
    first = frame.agg(F.count("*"), *sums).first()
    assert first is not None
    return int(first[0])


def _payloads(size: int, count: int) -> Iterator[bytes]:
    rng = random.Random(size)
    some = [rng.randbytes(size) for _ in range(min(_DISTINCT, count, max(16, 64 * 1024 * 1024 // size)))]
    for number in range(count):
        yield some[number % len(some)]


class Sources(NamedTuple):
    """The same entries three times."""

    ledgers: Callable[[], DataFrame]
    parquet: Callable[[], DataFrame]
    text: Callable[[], DataFrame]


@contextmanager
def _written(
    size: int, count: int, cluster: StandaloneCluster, spark: SparkSession, directory: Path
) -> Iterator[Sources]:
    """Two ledgers, one a core, as everything else stands in several files."""
    uri = cluster.gateway_uri
    with BookKeeper.connect(uri) as client:
        ledger_ids = []
        for _ in range(2):
            with client.create_ledger(*ONE) as handle:
                handle.append_all(_payloads(size, count // 2))
            ledger_ids.append(handle.ledger_id.low)
        reader = (
            spark.read.format("bookkeeper").option("gateways", uri).option("ledgerIds", ",".join(map(str, ledger_ids)))
        )
        parquet, text = str(directory / f"parquet-{size}"), directory / f"text-{size}"
        reader.load().write.option("compression", "none").parquet(parquet)
        text.mkdir()
        for part in range(2):
            with (text / f"part-{part}").open("wb") as file:
                for payload in _payloads(size, count // 2):
                    file.write(base64.b64encode(payload)[:size] + b"\n")
        yield Sources(reader.load, lambda: spark.read.parquet(parquet), lambda: spark.read.text(str(text)))
        for ledger_id in ledger_ids:
            client.delete_ledger(ledger_id)


def _scans(cluster: StandaloneCluster, spark: SparkSession, directory: Path) -> list[Row]:
    rows = []
    meter = Meter(cluster, spark)
    for size, entries in SIZES:
        count = entries // 20 if QUICK else entries
        with _written(size, count, cluster, spark, directory) as sources:
            taken: list[tuple[Scan, Scan, Scan]] = []
            for _ in range(PAIRS + 1):
                ours, parquet, text = (meter.scan(source(), count) for source in sources)
                taken.append((ours, parquet, text))
            rows += _rows_of(f"{size} B", size, count, taken[1:])
    return rows


def _rows_of(name: str, size: int, count: int, taken: list[tuple[Scan, Scan, Scan]]) -> list[Row]:
    ours, parquet, text = (list(scans) for scans in zip(*taken, strict=True))

    def rates(scans: list[Scan]) -> list[float]:
        return [count / scan.seconds / _cores() for scan in scans]

    def costs(scans: list[Scan], *kinds: str) -> list[float]:
        return [sum(scan.cpu[kind] for kind in kinds) / count * 1e6 for scan in scans]

    megabytes = [rate * size / 1e6 for rate in rates(ours)]
    spark_only = "JVM", "Python"
    return [
        figures(f"scan {name}", "rows/s a core", rates(ours), rates(parquet), "parquet"),
        figures(f"scan {name}", "rows/s a core", rates(ours), rates(text), "text"),
        figures(f"scan {name}", "MB/s a core", megabytes, [r * size / 1e6 for r in rates(parquet)], "parquet"),
        figures(
            f"scan {name}: CPU of Spark",
            "µs a row",
            costs(ours, *spark_only),
            costs(parquet, *spark_only),
            "parquet",
            up=False,
        ),
        figures(
            f"scan {name}: CPU of the workers",
            "µs a row",
            costs(ours, "Python"),
            costs(ours, "JVM"),
            "its JVM",
            up=False,
        ),
        figures(
            f"scan {name}: CPU of the bookie",
            "µs a row",
            costs(ours, "bookie"),
            costs(ours, *spark_only),
            "Spark",
            up=False,
        ),
    ]


def _cores() -> int:
    return os.cpu_count() or 1


def _many_small(cluster: StandaloneCluster, spark: SparkSession) -> Row:
    """Ledgers of ten entries, beside the same entries in one ledger."""
    ledgers = 300 if QUICK else 10_000
    uri = cluster.gateway_uri
    with BookKeeper.connect(uri) as client:
        for _ in range(ledgers):
            with client.create_ledger(*ONE, custom_metadata={"bench": b"small"}) as handle:
                handle.append_all([b"x" * 100] * 10)
        with client.create_ledger(*ONE, custom_metadata={"bench": b"one"}) as handle:
            handle.append_all(b"x" * 100 for _ in range(10 * ledgers))
    reader = spark.read.format("bookkeeper").option("gateways", uri)

    def rate(kind: str) -> float:
        began = time.perf_counter()
        assert _consume(reader.option("customMetadata.bench", kind).load()) == 10 * ledgers
        return ledgers / (time.perf_counter() - began)

    rate("small")
    return compare_once(
        f"{ledgers:,} ledgers of ten entries", "ledgers/s", lambda: rate("small"), lambda: rate("one"), "one ledger"
    )


# Planning


def fill(path: Path, ledgers: int) -> None:
    """A metadata store with closed ledgers, as if they had been created one by one."""
    asyncio.run(ensure_cluster(f"sqlite://{path.absolute()}"))
    ensembles = [[f"10.0.0.{1 + (first + index) % 9}:3181" for index in range(3)] for first in range(9)]

    def rows() -> Iterator[tuple[bytes, int, int, bytes]]:
        templates = [LedgerMetadata.new(ensemble, 3, 2, custom_metadata={"app": b"orders"}) for ensemble in ensembles]
        encoded = [encode(templates[n % 9].close(n % 1000, 100 * (1 + n % 1000))) for n in range(9000)]
        for number in range(ledgers):
            yield ledger_key(LedgerId.unscoped(number)), 1, 1, encoded[number % 9000]

    connection = sqlite3.connect(path)
    connection.executemany("INSERT INTO ledgers (key, version, created_revision, metadata) VALUES (?, ?, ?, ?)", rows())
    connection.commit()
    connection.close()


class Planner:
    """What a planning worker of Spark does, in a process of its own."""

    def plan(self, gateways: str) -> dict[str, float]:
        before, began, began_cpu = rss_bytes("self"), time.perf_counter(), time.process_time()
        tasks = EntriesReader(parse_options({"gateways": gateways})).partitions()
        seconds, cpu = time.perf_counter() - began, time.process_time() - began_cpu
        return {"tasks": len(tasks), "seconds": seconds, "cpu": cpu, "bytes": rss_bytes("self") - before}


def _planning(directory: Path) -> list[Row]:
    ledgers = PLANNED_LEDGERS // 50 if QUICK else PLANNED_LEDGERS
    store = directory / "planning.sqlite"
    fill(store, ledgers)
    name = f"planning of {ledgers:,} ledgers"
    with GatewayProcess(f"sqlite://{store.absolute()}") as gateway:
        before = _cpu_seconds(gateway.pid)
        with LoadProcess("benchmarks.spark", "planner") as planner:
            taken = planner.call("plan", gateways=gateway.uri)
        of_gateway = _cpu_seconds(gateway.pid) - before
    reach = 30 * ledgers / PLANNED_LEDGERS
    return [
        figures(name, "s", [taken["seconds"]], [reach], "reach", up=False),
        figures(f"{name}: CPU of the planner", "s", [taken["cpu"]], [of_gateway], "the gateway", up=False),
        figures(f"{name}: memory", "MB", [taken["bytes"] / 1e6], [2**30 / 1e6], "reach", up=False),
    ]


def main() -> None:
    if sys.argv[1:] == ["planner"]:
        serve(Planner())
        return
    require_spark()
    with ExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="bookgate-bench-", dir="."))).absolute()
        rows = _planning(directory)
        cluster = stack.enter_context(StandaloneCluster(directory / "cluster", bookies=1))
        spark = stack.enter_context(local_spark(directory / "spark", _SPARK))
        rows += _scans(cluster, spark, directory)
        rows.append(_many_small(cluster, spark))
        rows += spark_stream.rows(cluster, spark, directory)
    report("spark", rows)


if __name__ == "__main__":
    main()
