"""Usage: ledgers, entries and bytes by bookie, state, custom metadata, age and copies, from the metadata alone.

For a ledger that is not closed the metadata contain only the entries of its finished fragments, and no bytes: such
ledgers are counted in `unfinished`, and their figures are what is known. A bookie's bytes are its share of each
ledger's bytes in proportion to entries, since bytes per fragment are not recorded.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from functools import reduce

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812

COLUMNS = ("dimension", "value", "ledgers", "unfinished", "entries", "bytes", "stored_bytes")
"""`entries` and `bytes` count each entry once, `stored_bytes` counts all copies. By bookie, they count what it
stores.
"""

_AMOUNTS = COLUMNS[4:]
_HOUR_MS = 3_600_000
_DAY_MS = 24 * _HOUR_MS
AGES = (
    ("under an hour", _HOUR_MS),
    ("under a day", _DAY_MS),
    ("under 7 days", 7 * _DAY_MS),
    ("under 30 days", 30 * _DAY_MS),
    ("under a year", 365 * _DAY_MS),
)
_OLDER, _NO_AGE = "a year and more", "not known"


def usage(spark: SparkSession, options: Mapping[str, str], now_ms: int | None = None) -> DataFrame:
    """Sums up ledgers along several dimensions; a ledger counts once in each value that it has.

    Args:
        spark: The session.
        options: Those of table `ledgers`.
        now_ms: Milliseconds since 1970 from which ages count; None: now.

    Returns:
        COLUMNS, one row per value of each dimension: `bookie`, `state`, `custom metadata` (its keys), `age`, `copies`
        (how many each entry should have: the write quorum).
    """
    ledgers = _measured(spark.read.format("bookkeeper").options(**options).option("table", "ledgers").load())
    age = _age(F.lit(int(time.time() * 1000) if now_ms is None else now_ms))
    shares = F.concat(
        F.array(
            _share("state", F.col("state")),
            _share("age", age),
            _share("copies", F.col("write_quorum_size").cast("string")),
        ),
        F.transform(F.map_keys("custom_metadata"), lambda key: _share("custom metadata", key)),
        F.flatten(F.transform("fragments", _shares_of_bookies)),
    )
    by_ledger = ledgers.select("scope_id", "ledger_id", "unfinished", F.explode(shares).alias("share"))
    # A bookie has a share in each fragment of a ledger, so its shares are summed up first.
    once = by_ledger.groupBy("scope_id", "ledger_id", "unfinished", "share.dimension", "share.value").agg(
        *(F.sum(f"share.{name}").alias(name) for name in _AMOUNTS)
    )
    return once.groupBy("dimension", "value").agg(
        F.count("*").alias("ledgers"),
        F.sum("unfinished").alias("unfinished"),
        *(F.sum(name).cast("bigint").alias(name) for name in _AMOUNTS),
    )


def _measured(ledgers: DataFrame) -> DataFrame:
    """Ledgers with `entries`, `bytes` and `stored_bytes`, as far as they are known."""
    last_fragment = F.element_at("fragments", -1)["first_entry_id"]
    size = F.coalesce(F.col("length"), F.lit(0))
    return ledgers.select(
        "*",
        (F.col("write_quorum_size") / F.col("ensemble_size")).alias("held_share"),
        (F.col("state") != "CLOSED").cast("bigint").alias("unfinished"),
        F.coalesce(F.col("last_entry_id") + 1, last_fragment).alias("entries"),
        size.alias("bytes"),
        (size * F.col("write_quorum_size")).alias("stored_bytes"),
    )


def _share(dimension: str, value: Column, entries: Column | None = None, size: Column | None = None) -> Column:
    """A ledger's contribution to one value of a dimension; without `entries` and `size`, the whole ledger."""
    return F.struct(
        F.lit(dimension).alias("dimension"),
        value.alias("value"),
        (F.col("entries") if entries is None else entries).cast("double").alias("entries"),
        (F.col("bytes") if size is None else size).cast("double").alias("bytes"),
        (F.col("stored_bytes") if size is None else size).cast("double").alias("stored_bytes"),
    )


def _shares_of_bookies(fragment: Column, number: Column) -> Column:
    next_fragment = F.try_element_at("fragments", number + 2)  # counted from 1
    end = F.coalesce(next_fragment["first_entry_id"], F.col("entries"))
    held = (end - fragment["first_entry_id"]) * F.col("held_share")
    size = F.when(F.col("entries") > 0, held / F.col("entries")).otherwise(0) * F.col("bytes")
    return F.transform(fragment["ensemble"], lambda bookie: _share("bookie", bookie, held, size))


def _age(now_ms: Column) -> Column:
    old = now_ms - F.unix_millis("creation_time")
    named = reduce(lambda text, age: text.when(old < age[1], age[0]), AGES, F.when(old.isNull(), _NO_AGE))
    return named.otherwise(_OLDER)
