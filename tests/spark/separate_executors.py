"""A driver whose executors are processes of their own: `local-cluster[2,1,1024]`. Run as a program, by tests.

Arguments: the gateways, and JSON, a list of `[name, options]`. Prints a line of JSON for each: the name, the number of
rows, the sum of the entry ids, the payload bytes and how many executors had rows; or the name and the error.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterable, Iterator

from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, Row

from tests.spark.sessions import SEPARATE, start


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
    spark = start(SEPARATE)
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
