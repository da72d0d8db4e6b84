"""Word statistics of ledgers that hold text, one line per entry: entries, bytes, distinct words and longest line per
ledger.

A word is a run of bytes other than ASCII whitespace (space, tab, newline, vertical tab, form feed, carriage return), as
in Python's `bytes.split()`: no encoding is assumed, so any payload can be counted, and any reader that works on bytes
gets the same result. For this Spark sees payloads as ISO-8859-1 text, in which every byte is one character.

Everything runs as DataFrame operations in one scan: each line becomes one row per word, the first of which carries the
line's own figures; words are made distinct by grouping, first within a task, then over all.
"""

from __future__ import annotations

from collections.abc import Mapping

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812

COLUMNS = ("scope_id", "ledger_id", "name", "entries", "bytes", "distinct_words", "longest_line")
_KEY = ("scope_id", "ledger_id")
_WHITESPACE = r"[ \t\n\x0B\f\r]+"


def text_census(spark: SparkSession, options: Mapping[str, str], min_partitions: int | None = None) -> DataFrame:
    """One row per ledger with COLUMNS, unordered; includes ledgers without entries."""
    ledgers = spark.read.format("bookkeeper").options(**options).option("table", "ledgers").load()
    reader = spark.read.format("bookkeeper").options(**options)
    if min_partitions is not None:
        reader = reader.option("minPartitions", min_partitions)
    counted = _by_ledger(_by_word(reader.load()))
    named = ledgers.select(*_KEY, F.decode(F.col("custom_metadata")["name"], "UTF-8").alias("name"))
    return named.join(counted, list(_KEY), "left").select(
        *_KEY, "name", *(F.coalesce(F.col(column), F.lit(0)).alias(column) for column in COLUMNS[3:])
    )


def _by_word(entries: DataFrame) -> DataFrame:
    """One row per ledger and word; the figures of a line are in the row of the line's first word."""
    size = F.octet_length("payload")
    words = F.array_distinct(F.split(F.decode("payload", "ISO-8859-1"), _WHITESPACE))
    lines = entries.select(*_KEY, size.cast("bigint").alias("size"), F.posexplode(words).alias("position", "word"))
    first = F.col("position") == 0
    return lines.groupBy(*_KEY, "word").agg(
        F.count(F.when(first, True)).alias("entries"),
        F.sum(_where(first, F.col("size"))).alias("bytes"),
        F.max("size").alias("longest_line"),
    )


def _by_ledger(words: DataFrame) -> DataFrame:
    return words.groupBy(*_KEY).agg(
        F.sum("entries").alias("entries"),
        F.sum("bytes").alias("bytes"),
        F.count(F.when(F.col("word") != "", True)).alias("distinct_words"),
        F.max("longest_line").alias("longest_line"),
    )


def _where(condition: Column, value: Column) -> Column:
    return F.when(condition, value).otherwise(0)
