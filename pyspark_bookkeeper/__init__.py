"""Spark loads every top-level module called `pyspark_*` and takes its `DefaultSource`: here the format `bookkeeper`."""

from bookgate.thinclient.spark.source import BookKeeperDataSource as DefaultSource

__all__ = ["DefaultSource"]
