"""Sessions of Spark for tests: the one place that says how they are set up, for drivers of their own as well."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pyspark
from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.streaming.readwriter import DataStreamWriter

from bookgate.thinclient.spark.session import require_spark

ROOT = Path(__file__).parents[2]
HERE = "local[2]"
SEPARATE = "local-cluster[2,1,1024]"
"""Executors as processes of their own."""

SPARK_HOME = {"SPARK_HOME": str(Path(pyspark.__file__).parent), "SPARK_SCALA_VERSION": "2.13"}
"""PySpark of pip brings all that local-cluster and spark-submit need; it only has to be told where it is."""

_SHORT_LIVED = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
"""They live for a test or two: compiling thoroughly costs JVMs more CPU than it saves."""

SETTINGS = {
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.extraJavaOptions": _SHORT_LIVED,
    "spark.executor.extraJavaOptions": _SHORT_LIVED,
    "spark.executor.memory": "512m",
    "spark.executorEnv.PYTHONPATH": str(ROOT),
    # Python workers of a busy machine take their time to start.
    "spark.python.authenticate.socketTimeout": "120s",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.sql.shuffle.partitions": "1",
    # Else a stream without news looks for them a hundred times a second.
    "spark.sql.streaming.pollingDelay": "100ms",
}


def environment() -> dict[str, str]:
    """Of a process that starts a Spark, or of this one."""
    paths = [str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
    pythons = dict.fromkeys(("PYSPARK_PYTHON", "PYSPARK_DRIVER_PYTHON"), sys.executable)
    return {**SPARK_HOME, **pythons, "PYTHONPATH": os.pathsep.join(paths)}


def start(master: str, more: Mapping[str, str] | None = None) -> SparkSession:
    """The session of this process, whose environment is that above."""
    require_spark()
    builder: Any = SparkSession.builder.master(master).appName("tests")
    for key, value in {**SETTINGS, **(more or {})}.items():
        builder = builder.config(key, value)
    made: SparkSession = builder.getOrCreate()
    made.sparkContext.setLogLevel("OFF")
    return made


_CONNECTS_TOO_LATE = "connect back"
"""Spark words it as `waiting for the Python worker to …`, or `Python worker failed to …`."""
_BEGINNING = ("Initializing", "Getting offsets")
"""What a query says of itself until its source has a worker."""


def started(writer: DataStreamWriter) -> StreamingQuery:
    """Starts a stream whose source has its Python worker, which a busy machine may take more than one start for.

    Spark gives that worker ten seconds, by no setting more, and ends the query then, before it has read anything.
    """
    while True:
        query = writer.start()
        while query.isActive and query.status["message"].startswith(_BEGINNING):
            time.sleep(0.02)
        error = None if query.isActive else query.exception()
        if error is None or _CONNECTS_TOO_LATE not in str(error):
            return query
