"""The source's tables: the columns and the reader of each.

The tables of jobs (`Table.is_for_jobs`) are loaded on first use, since other workers do not need them.
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
    """The definition of a table. `filtered` is the reader used if Spark hands filters over.

    A table that does not open ledgers does not get their password.
    """

    schema_of: Callable[[Options], pa.Schema]
    plain: _Reader
    filtered: _Reader | None = None
    opens_ledgers: bool = False

    def reader(self, options: Options, schema: pa.Schema) -> DataSourceReader:
        """A reader with checked options and the wanted columns."""
        # A reader's contents go to every task, and to the disks of executors.
        options = options if self.opens_ledgers else replace(options, password=b"")
        return self.filtered(options, schema) if options.pushdown and self.filtered else self.plain(options, schema)


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
    """The definition of a table."""
    if table is Table.COPIES:
        from bookgate.thinclient.spark.jobs.copies_table import COPIES_SCHEMA, CopiesReader

        return TableKind(lambda _: COPIES_SCHEMA, lambda options, _: CopiesReader(options), opens_ledgers=True)
    if table is Table.HELD_LEDGERS:
        from bookgate.thinclient.spark.jobs.held_ledgers_table import HELD_SCHEMA, HeldLedgersReader

        return TableKind(lambda _: HELD_SCHEMA, lambda options, _: HeldLedgersReader(options))
    return _KINDS[table]
