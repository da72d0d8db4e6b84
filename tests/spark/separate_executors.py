"""A driver whose executors are processes of their own: `local-cluster[2,1,1024]`. Run as a program, by tests.

Arguments: the gateways, and JSON, a list of `[name, options]`. Prints a line of JSON for each: the name, the number of
rows, the sum of the entry ids, the payload bytes and how many executors had rows; or the name and the error.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pyspark
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, Row, SparkSession

from tests.spark.jvm import SHORT_LIVED
from thinclient.spark.session import require_spark

CPUS_AND_MEMORY = "local-cluster[2,1,1024]"


def session() -> SparkSession:
    """PySpark of pip brings all that local-cluster needs; it only has to be told where it is."""
    require_spark()
    os.environ["SPARK_HOME"] = str(Path(pyspark.__file__).parent)
    os.environ["SPARK_SCALA_VERSION"] = "2.13"
    os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    builder: Any = SparkSession.builder.master(CPUS_AND_MEMORY).appName("separate executors")
    settings = {
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.extraJavaOptions": SHORT_LIVED,
        "spark.executor.extraJavaOptions": SHORT_LIVED,
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.executor.memory": "512m",
        "spark.executorEnv.PYTHONPATH": os.environ["PYTHONPATH"],
        "spark.sql.shuffle.partitions": "2",
        "spark.worker.ui.retainedExecutors": "1",
    }
    for key, value in settings.items():
        builder = builder.config(key, value)
    made: SparkSession = builder.getOrCreate()
    return made


def _sums(rows: Iterable[Row]) -> Iterator[tuple[int, int, int, int]]:
    """Rows, entry ids, payload bytes, and the Python daemon that reads here, of which each executor has one."""
    count = ids = size = 0
    for row in rows:
        count, ids, size = count + 1, ids + row.entry_id, size + len(row.payload or b"")
    yield count, ids, size, os.getppid()


def summary(frame: DataFrame) -> dict[str, object]:
    """Of a table of entries."""
    parts = [part for part in frame.rdd.mapPartitions(_sums).collect() if part[0]]
    rows, ids, size = (sum(part[column] for part in parts) for column in range(3))
    return {"rows": rows, "ids": ids, "bytes": size, "executors": len({part[3] for part in parts})}


def main() -> None:
    gateways, reads = sys.argv[1], json.loads(sys.argv[2])
    spark = session()
    try:
        for name, options in reads:
            frame = spark.read.format("bookkeeper").options(gateways=gateways, **options).load()
            try:
                result: dict[str, object] = summary(frame)
            except PySparkException as error:
                result = {"error": str(error)}
            print(json.dumps({"name": name, **result}), flush=True)
    finally:
        spark.stop()


if __name__ == "__main__":
    main()
