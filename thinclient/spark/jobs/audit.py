"""The audit: every entry on every replica that should hold it, as a table.

`audit` returns one row for each bookie of each fragment of each ledger, with the number of copies examined, the number
of good ones and the faults of the others, and one more row for faults of a ledger itself. Nothing is changed, fenced or
recovered: open ledgers are examined up to their last add confirmed. Ledgers are opened with the password in their
metadata; the option `password` is for those whose metadata has none.

Not its job: the kinds of faults and when they are reported (`copies`), requesting repairs (`marking`). Source:
docs/spark.md#jobs.
"""

from __future__ import annotations

from collections.abc import Mapping

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812

from bookgate.thinclient.spark.jobs.copies import Fault
from bookgate.thinclient.spark.options.read_options import Table

_KEY = ("scope_id", "ledger_id", "fragment", "bookie_id")
FAULTS = tuple(fault.column for fault in Fault)
"""Columns that count copies which are not known to be good; `unauthorized` counts ledgers that were not examined at
all.

Of `unreachable` or `busy` copies nothing is known: they are not damage.
"""


def audit(spark: SparkSession, options: Mapping[str, str]) -> DataFrame:
    """One row per (ledger, fragment, bookie), and one per ledger with a fault of its own."""
    parts = spark.read.format("bookkeeper").options(**options).option("table", Table.COPIES.value).load()
    # Tasks that share a fragment each report a part of it.
    summed = (F.sum(name).alias(name) for name in ("copies", "good", *FAULTS))
    ranges = F.array_sort(F.flatten(F.collect_list("ranges")), _by_first_entry).alias("ranges")
    return parts.groupBy(*_KEY).agg(*summed, ranges)


def _by_first_entry(left: F.Column, right: F.Column) -> F.Column:  # type: ignore[name-defined]
    # Of the difference the sign alone: it may be too great for the number that a comparison returns.
    return F.signum(left["first_entry_id"] - right["first_entry_id"]).cast("int")
