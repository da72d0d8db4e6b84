"""Which tables the source has: of each its columns, and who reads it.

The tables of jobs (`Table.is_for_jobs`) are loaded on first use: the workers of everybody else have no use for them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader

from bookgate.thinclient.spark import arrow
from bookgate.thinclient.spark.options.read_options import Options, Table
from bookgate.thinclient.spark.reading import batch

_Reader = Callable[[Options], DataSourceReader]


@dataclass(frozen=True, slots=True)
class TableKind:
    """What a table is. `filtered` reads it with the option `pushdown`, where it can."""

    schema: pa.Schema
    plain: _Reader
    filtered: _Reader | None = None

    def reader(self, options: Options) -> DataSourceReader:
        """Made of checked options only."""
        return self.filtered(options) if options.pushdown and self.filtered else self.plain(options)


_KINDS = {
    Table.ENTRIES: TableKind(arrow.ENTRIES_SCHEMA, batch.EntriesReader, batch.FilteredEntriesReader),
    Table.LEDGERS: TableKind(arrow.LEDGERS_SCHEMA, batch.LedgersReader, batch.FilteredLedgersReader),
    Table.BOOKIES: TableKind(arrow.BOOKIES_SCHEMA, batch.BookiesReader),
}


def kind_of(table: Table) -> TableKind:
    """Of any table."""
    if table is Table.COPIES:
        from bookgate.thinclient.spark.jobs.copies_table import COPIES_SCHEMA, CopiesReader

        return TableKind(COPIES_SCHEMA, CopiesReader)
    if table is Table.HELD_LEDGERS:
        from bookgate.thinclient.spark.jobs.held_ledgers_table import HELD_SCHEMA, HeldLedgersReader

        return TableKind(HELD_SCHEMA, HeldLedgersReader)
    return _KINDS[table]
