"""The source's tables by name in SQL: temporary views `entries`, `ledgers` and `bookies` of a session.

Spark's Python sources have no catalog of their own. A view costs nothing until it is queried, and filters on ids reach
the source: the session's setting for that is switched on.

Source: docs/spark.md#sql.
"""

from __future__ import annotations

from collections.abc import Mapping

from pyspark.sql import SparkSession

from bookgate.thinclient.spark.options.read_options import Table, ledger_options, parse_options

FILTERS_TO_SOURCES = "spark.sql.python.filterPushdown.enabled"


def create_views(spark: SparkSession, options: Mapping[str, str]) -> list[str]:
    """Makes the views, over what the options of table `entries` select.

    Returns:
        Their names.

    Raises:
        OptionError: An option can't be used.
    """
    checked = parse_options(options)
    spark.conf.set(FILTERS_TO_SOURCES, True)
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
