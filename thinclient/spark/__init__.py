"""Spark tables over ledgers (`spark.read.format("bookkeeper")`).

Needs PySpark, which a cluster provides, and the extra `spark`; `pip install 'bookgate[spark-local]'` installs both.
Spark finds the source by itself if this distribution is installed; `register` is for sessions that do not look for
modules.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["register"]


def register(spark: SparkSession) -> None:
    """Makes the format `bookkeeper` known to a session."""
    from bookgate.thinclient.spark.source import BookKeeperDataSource

    spark.dataSource.register(BookKeeperDataSource)
