"""Drivers of Spark to be killed, and tasks that fail: a program for tests.

The argument is JSON: `master`, and `jobs`, each with `job`, its name, and what it takes. The job `copy` streams ledgers
into ledgers, or into a stream, and prints a line for each batch until it is killed, or has all (`available_now`). The
job `write` writes `rows` rows in `tasks` tasks, of which one meets with a `fault` in its first attempt, and prints
`done`.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from pyspark import TaskContext
from pyspark.sql import SparkSession
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.streaming.listener import StreamingQueryListener

from bookgate.thinclient.spark.session import job_errors
from tests.spark.sessions import start, started

FAULTY_PARTITION = 1
FAULT_AT = 700


class Progress(StreamingQueryListener):
    """Prints each batch that is done."""

    def onQueryStarted(self, event: Any) -> None:
        pass

    def onQueryProgress(self, event: Any) -> None:
        print(json.dumps({"batch": event.progress.batchId, "rows": event.progress.numInputRows}), flush=True)

    def onQueryIdle(self, event: Any) -> None:
        pass

    def onQueryTerminated(self, event: Any) -> None:
        pass


def copy(spark: SparkSession, source: dict[str, str], sink: dict[str, str], checkpoint: str, now: bool) -> None:
    spark.streams.addListener(Progress())
    frame = spark.readStream.format("bookkeeper").options(**source).load()
    lines = F.concat_ws(" ", "ledger_id", "entry_id", F.col("payload").cast("string")).alias("payload")
    if "stream" in sink:
        frame = frame.coalesce(1)
    writer = frame.select(lines).writeStream.format("bookkeeper").options(**sink)
    writer = writer.option("checkpointLocation", checkpoint)
    writer = writer.trigger(availableNow=True) if now else writer.trigger(processingTime="100 milliseconds")
    started(writer).awaitTermination()


def executor() -> int:
    """The process id of the JVM above this Python worker and its daemon."""
    stat = Path(f"/proc/{os.getppid()}/stat").read_text()
    return int(stat.rpartition(")")[2].split()[1])


def _raise() -> None:
    raise RuntimeError("planned")


FAULTS: dict[str, Callable[[], None]] = {
    "raise": _raise,
    "kill worker": lambda: os.kill(os.getpid(), signal.SIGKILL),
    "kill executor": lambda: os.kill(executor(), signal.SIGKILL),
}


def write(spark: SparkSession, sink: dict[str, str], rows: int, tasks: int, fault: str, always: bool) -> None:
    def meet(number: int) -> str:
        context = TaskContext.get()
        assert context is not None
        faulty = context.partitionId() == FAULTY_PARTITION and (always or context.attemptNumber() == 0)
        if faulty and number % (rows // tasks) == FAULT_AT:
            FAULTS[fault]()
        return f"row {number}"

    frame = spark.range(0, rows, 1, tasks).select(F.udf(meet, "string")("id").alias("payload"))
    try:
        frame.write.format("bookkeeper").options(**sink).mode("append").save()
    except job_errors():
        print("failed", flush=True)
    else:
        print("done", flush=True)


def main() -> None:
    order = json.loads(sys.argv[1])
    spark = start(order.pop("master"))
    spark.sparkContext.setLogLevel("ERROR")
    jobs: dict[str, Callable[..., None]] = {"copy": copy, "write": write}
    for job in order["jobs"]:
        jobs[job.pop("job")](spark, **job)
    spark.stop()


if __name__ == "__main__":
    main()
