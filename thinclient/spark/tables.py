"""Which tables the source has: of each its columns, and who reads it.

The tables of jobs (`Table.is_for_jobs`) are loaded on first use: the workers of everybody else have no use for them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader

from bookgate.thinclient.spark import arrow
from bookgate.thinclient.spark.options.read_options import Options, PayloadAs, Table
from bookgate.thinclient.spark.reading import batch

_Reader = Callable[[Options, pa.Schema], DataSourceReader]


@dataclass(frozen=True, slots=True)
class TableKind:
    """What a table is. `filtered` reads it where Spark hands filters over.

    One that does not open ledgers has no use for their password.
    """

    schema_of: Callable[[Options], pa.Schema]
    plain: _Reader
    filtered: _Reader | None = None
    opens_ledgers: bool = False

    def reader(self, options: Options, schema: pa.Schema) -> DataSourceReader:
        """Made of checked options and the columns that are wanted."""
        # What a reader holds goes to every task, and to the disks of executors.
        options = options if self.opens_ledgers else replace(options, password=b"")
        takes_filters = bool(options.pushdown)
        return self.filtered(options, schema) if takes_filters and self.filtered else self.plain(options, schema)


def _entries_schema(options: Options) -> pa.Schema:
    return arrow.entries_schema(
        payload_as_text=options.payload_as is PayloadAs.STRING, with_ledger_columns=options.include_ledger_metadata
    )


_KINDS = {
    Table.ENTRIES: TableKind(_entries_schema, batch.EntriesReader, batch.FilteredEntriesReader, opens_ledgers=True),
    Table.LEDGERS: TableKind(lambda _: arrow.LEDGERS_SCHEMA, batch.LedgersReader, batch.FilteredLedgersReader),
    Table.BOOKIES: TableKind(lambda _: arrow.BOOKIES_SCHEMA, batch.BookiesReader),
}


def kind_of(table: Table) -> TableKind:
    """Of any table."""
    if table is Table.COPIES:
        from bookgate.thinclient.spark.jobs.copies_table import COPIES_SCHEMA, CopiesReader

        return TableKind(lambda _: COPIES_SCHEMA, lambda options, _: CopiesReader(options), opens_ledgers=True)
    if table is Table.HELD_LEDGERS:
        from bookgate.thinclient.spark.jobs.held_ledgers_table import HELD_SCHEMA, HeldLedgersReader

        return TableKind(lambda _: HELD_SCHEMA, lambda options, _: HeldLedgersReader(options))
    return _KINDS[table]
