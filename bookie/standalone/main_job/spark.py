"""The Spark side of the main job: its session on this machine, and the census as plain values."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING

from bookgate.bookie.standalone.main_job.report import Update
from bookgate.bookie.standalone.main_job.text import TextStatistics
from bookgate.ledger.ledger_id import LedgerId
from bookgate.thinclient.spark.session import spark_session, watched

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_TASKS_A_CORE = 4


@contextmanager
def local_spark(data_dir: Path, settings: Mapping[str, str] = MappingProxyType({})) -> Iterator[SparkSession]:
    """A session on all cores of this machine, stopped with its JVM at the end. What the JVM says goes to spark.log.

    `settings` are Spark's own, beside those that are made here.
    """
    data_dir.mkdir(parents=True, exist_ok=True)
    log = data_dir / "spark.log"
    with spark_session("bookgate main job", "local[*]", log, {**_settings(data_dir), **settings}) as session:
        yield session


def _settings(data_dir: Path) -> Mapping[str, str]:
    return {
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        # A short job: the JVM's second compiler would take more time than it saves.
        "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.local.dir": str(data_dir / "local"),
        "spark.sql.warehouse.dir": str(data_dir / "warehouse"),
        "spark.sql.shuffle.partitions": str(2 * (os.cpu_count() or 1)),
    }


def run_statistics(spark: SparkSession, options: Mapping[str, str], update: Update) -> dict[LedgerId, TextStatistics]:
    """The census of the ledgers that the options select, with the progress of Spark's tasks."""
    from bookgate.thinclient.spark.jobs.text_census import text_census

    tasks = _TASKS_A_CORE * spark.sparkContext.defaultParallelism
    statistics = text_census(spark, options, min_partitions=tasks)
    with watched(spark, update):
        rows = statistics.collect()
    return {
        LedgerId(row["scope_id"], row["ledger_id"]): TextStatistics(
            row["entries"], row["bytes"], row["distinct_words"], row["longest_line"]
        )
        for row in rows
    }
