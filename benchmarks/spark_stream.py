"""Streams and the sink, parts of `make bench-spark`; alone: `python -m benchmarks.spark_stream`.

*Latency* is from just before an append to the moment when the driver has the row in `foreachBatch`, at triggers of one
second, with an append every 50 ms; a trigger alone makes half a second of it at the median and one at the end. The peer
is Spark's own file source over a directory into which a file with the same line is moved as often.

*The sink* writes rows of 1 KiB of random bytes that Spark holds in memory, in two tasks, to one bookie with one copy;
the peer writes them as uncompressed Parquet.
"""

from __future__ import annotations

import random
import tempfile
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from statistics import quantiles
from typing import TYPE_CHECKING

from benchmarks.harness import QUICK, Row, compare, figures, report
from bookgate.bookie.standalone.cluster import StandaloneCluster
from bookgate.bookie.standalone.main_job.spark import local_spark
from bookgate.thinclient.blocking.client import BookKeeper
from bookgate.thinclient.spark.session import require_spark

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

APPEND_EVERY_SECONDS = 0.05
LATENCY_SECONDS = 8 if QUICK else 40
WARM_UP_SECONDS = 5 if QUICK else 10
ROW_BYTES = 1024
ROWS = 20_000 if QUICK else 400_000
ONE_COPY = {"ensembleSize": "1", "writeQuorum": "1", "ackQuorum": "1"}


def _latencies(stream: DataFrame, append: Callable[[bytes], object], directory: Path) -> list[float]:
    """Seconds from append to row of what is appended after the warm-up."""
    taken: list[float] = []
    begins = threading.Event()

    def take(frame: DataFrame, _batch: int) -> None:
        rows = frame.collect()
        now = time.time()
        begins.set()
        taken.extend(now - sent for row in rows if (sent := float(bytes(row[0]))) > counted_from)

    counted_from = float("inf")
    writer = stream.writeStream.foreachBatch(take).option("checkpointLocation", str(directory))
    query = writer.trigger(processingTime="1 second").start()
    try:
        began = time.time()
        while not begins.is_set() or time.time() < began + WARM_UP_SECONDS:
            append(b"%f" % time.time())
            time.sleep(APPEND_EVERY_SECONDS)
        counted_from = time.time()
        while time.time() < counted_from + LATENCY_SECONDS:
            append(b"%f" % time.time())
            time.sleep(APPEND_EVERY_SECONDS)
        time.sleep(3)
    finally:
        query.stop()
    return taken


def _of_ledgers(spark: SparkSession, gateways: str, directory: Path) -> list[float]:
    with BookKeeper.connect(gateways) as client, client.create_ledger(1, 1, 1) as ledger:
        reader = spark.readStream.format("bookkeeper").option("gateways", gateways)
        stream = reader.option("ledgerIds", str(ledger.ledger_id)).load().select("payload")
        return _latencies(stream, ledger.append, directory / "ledger-checkpoint")


def _of_files(spark: SparkSession, directory: Path) -> list[float]:
    waiting, watched = directory / "waiting", directory / "watched"
    waiting.mkdir()
    watched.mkdir()

    def append(line: bytes) -> None:
        file = waiting / f"{time.time_ns()}.txt"
        file.write_bytes(line + b"\n")
        file.rename(watched / file.name)

    stream = spark.readStream.text(str(watched)).selectExpr("cast(value as binary) value")
    return _latencies(stream, append, directory / "file-checkpoint")


def latency(cluster: StandaloneCluster, spark: SparkSession, directory: Path) -> list[Row]:
    """From append to row: median and 99th percentile."""
    ours, peer = _of_ledgers(spark, cluster.gateway_uri, directory), _of_files(spark, directory)
    cuts = [quantiles(taken, n=100, method="inclusive") for taken in (ours, peer)]
    return [
        figures(f"stream: append to row, {name}", "s", [cuts[0][at]], [cuts[1][at]], "file source", up=False)
        for name, at in (("median", 49), ("p99", 98))
    ]


def sink(cluster: StandaloneCluster, spark: SparkSession, directory: Path) -> list[Row]:
    """Payload written a second."""
    rng = random.Random(1)
    some = [(rng.randbytes(ROW_BYTES),) for _ in range(1000)]
    thousand = spark.createDataFrame(some, "payload binary").repartition(2)
    frame = thousand.crossJoin(spark.range(ROWS // 1000)).select("payload").coalesce(2).persist()
    assert frame.count() == ROWS
    megabytes = ROWS * ROW_BYTES / 1e6
    options = {"gateways": cluster.gateway_uri, "customMetadata.bench": "sink", **ONE_COPY}

    def ours() -> float:
        began = time.perf_counter()
        frame.write.format("bookkeeper").options(**options).mode("append").save()
        return megabytes / (time.perf_counter() - began)

    def parquet() -> float:
        began = time.perf_counter()
        target = str(directory / "sink.parquet")
        frame.write.option("compression", "none").mode("overwrite").parquet(target)
        return megabytes / (time.perf_counter() - began)

    try:
        return [compare(f"sink, rows of {ROW_BYTES} B", "MB/s", ours, parquet, "parquet")]
    finally:
        frame.unpersist()


def rows(cluster: StandaloneCluster, spark: SparkSession, directory: Path) -> list[Row]:
    """All of it."""
    return [*latency(cluster, spark, directory), *sink(cluster, spark, directory)]


def main() -> None:
    require_spark()
    with ExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="bookgate-bench-", dir="."))).absolute()
        cluster = stack.enter_context(StandaloneCluster(directory / "cluster", bookies=1))
        spark = stack.enter_context(local_spark(directory / "spark"))
        report("spark_stream", rows(cluster, spark, directory))


if __name__ == "__main__":
    main()
