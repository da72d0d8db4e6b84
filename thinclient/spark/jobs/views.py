"""The source's tables by name in SQL: temporary views `entries`, `ledgers` and `bookies` of a session.

Spark's Python sources have no catalog of their own. A view costs nothing until it is queried. `query_views` runs one
query over new views, and hands its filters on ids to the source where that is safe. Spark keeps one set of filters per
table, so it is never safe if the query reads a table twice.

Source: docs/spark.md#sql.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from pyspark.sql import DataFrame, SparkSession

from bookgate.thinclient.spark.options.read_options import Table, ledger_options, parse_options

FILTERS_TO_SOURCES = "spark.sql.python.filterPushdown.enabled"


def create_views(spark: SparkSession, options: Mapping[str, str]) -> list[str]:
    """Creates the views over what the options of table `entries` select.

    Args:
        spark: The session that gets the views.
        options: Of table `entries`.

    Returns:
        The names of the views.

    Raises:
        OptionError: An option can't be used.
    """
    checked = parse_options(options)
    of_bookies = {name: value for name, value in options.items() if name.lower().startswith(("gateways", "client."))}
    given = {
        Table.ENTRIES: {"includeLedgerMetadata": "true", **options},
        Table.LEDGERS: {name: value for name, value in ledger_options(options).items() if name.lower() != "password"},
        Table.BOOKIES: {**of_bookies, "gateways": checked.gateways},
    }
    for table, of_table in given.items():
        frame = spark.read.format("bookkeeper").options(**of_table).option("table", table.value).load()
        frame.createOrReplaceTempView(table.value)
    return [table.value for table in given]


def query_views(spark: SparkSession, query: str, options: Mapping[str, str]) -> DataFrame:
    """Runs a query over new views. The result must be evaluated only once.

    The views and the setting belong to the session, so it can run one query at a time: no other thread may call this,
    or query the source in that session, until the result is evaluated. Threads need sessions of their own.

    Args:
        spark: The session.
        query: The query, in Spark's SQL.
        options: Of table `entries`. If they contain `pushdown`, it decides whether filters reach the source.

    Returns:
        The query's frame, not evaluated yet.

    Raises:
        OptionError: An option can't be used.
    """
    create_views(spark, options)
    if any(name.lower() == "pushdown" for name in options):
        return spark.sql(query)
    setting = spark.conf.get(FILTERS_TO_SOURCES) or "false"
    # With the setting on, Spark has the source plan its whole read while it optimizes, without the query's filters.
    spark.conf.set(FILTERS_TO_SOURCES, False)
    try:
        found = spark.sql(query)  # which carries out a command, such as INSERT: it must not come a second time
        read = list(_tables_read(spark, found))
    finally:
        spark.conf.set(FILTERS_TO_SOURCES, setting)
    if not read or len(read) != len(set(read)):
        return found
    spark.conf.set(FILTERS_TO_SOURCES, True)
    create_views(spark, {**options, "pushdown": "true"})
    return spark.sql(query)


def _tables_read(spark: SparkSession, frame: DataFrame) -> Iterator[int]:
    """Identities of the source's tables that a query reads, one for each time it reads them."""
    jvm: Any = spark._jvm
    optimized = frame._jdf.queryExecution().optimizedPlan()
    for plan in (optimized, *_items(optimized.subqueriesAll())):
        for leaf in _items(plan.collectLeaves()):
            if leaf.nodeName() == "DataSourceV2ScanRelation":
                yield jvm.System.identityHashCode(leaf.relation().table())


def _items(seq: Any) -> list[Any]:
    """The elements of a Scala sequence."""
    return [seq.apply(n) for n in range(seq.size())]
