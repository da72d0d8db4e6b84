"""The data source `bookkeeper`: what Spark asks of it for reads, streams and writes.

Spark pickles the source from process to process: it holds checked options only, and hands them to the reader or writer
that is asked for. Which reader a table has stands in `tables`.

Source: docs/spark.md#tables.
"""

from __future__ import annotations

from collections.abc import MutableMapping

from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    DataSourceStreamWriter,
    DataSourceWriter,
)
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import StructType

from bookgate.thinclient.spark.options.read_options import (
    OF_STREAMS,
    OF_WRITING,
    SPARKS_OWN,
    OptionError,
    ReadMode,
    Table,
    parse_options,
    refuse,
)
from bookgate.thinclient.spark.options.write_options import parse_write_options
from bookgate.thinclient.spark.tables import kind_of


class BookKeeperDataSource(DataSource):
    """`spark.read.format("bookkeeper")`. Raises OptionError for options it can't use."""

    def __init__(self, options: MutableMapping[str, str]) -> None:
        super().__init__(options)
        self._checked = parse_options(dict(options.items()))

    @classmethod
    def name(cls) -> str:
        return "bookkeeper"

    def schema(self) -> StructType:
        return from_arrow_schema(kind_of(self._checked.table).schema)

    def reader(self, schema: StructType) -> DataSourceReader:
        self._check_columns(schema)
        if self._checked.start_at_latest:
            raise OptionError(
                "option startingOffsets is 'latest', which is for streams; a batch read begins at earliest"
            )
        refuse((*OF_WRITING, *SPARKS_OWN), self.options, "is for writing; this is a read")
        refuse(OF_STREAMS, self.options, "is for streams; this is a batch read")
        return kind_of(self._checked.table).reader(self._checked)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802
        from bookgate.thinclient.spark.streaming.stream import EntriesStreamReader

        self._check_columns(schema)
        if self._checked.table is not Table.ENTRIES:
            raise OptionError(f"option table is {self._checked.table.value!r}: only 'entries' can be read as a stream")
        if self._checked.read_mode is not ReadMode.CONFIRMED:
            raise OptionError("option readMode is 'recover', which is for batch reads: a stream never takes ledgers")
        refuse((*OF_WRITING, *SPARKS_OWN), self.options, "is for writing; this is a read")
        refuse(("pushdown",), self.options, "is for batch reads; this is a stream")
        return EntriesStreamReader(self._checked)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        from bookgate.thinclient.spark.writing.sink import BatchSink, payload_column, refuse_overwrite

        refuse_overwrite(overwrite)
        return BatchSink(parse_write_options(self.options), payload_column(schema))

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:  # noqa: N802
        from bookgate.thinclient.spark.writing.sink import StreamSink, payload_column, refuse_overwrite

        refuse_overwrite(overwrite)
        refuse(("writeId",), self.options, "is for batch writes; a stream has the id of its query")
        return StreamSink(parse_write_options(self.options), payload_column(schema))

    def _check_columns(self, schema: StructType) -> None:
        if schema != self.schema():
            raise OptionError(
                f"the columns of table {self._checked.table.value!r} are fixed; leave schema(…) out and select() "
                f"the ones you want of {', '.join(self.schema().fieldNames())}"
            )
