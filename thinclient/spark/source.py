"""The data source `bookkeeper`: Spark's entry point for reads, streams and writes.

Spark pickles the source from process to process, so it holds checked options only, and passes them to the reader or
writer that is requested. `tables` maps each table to its reader.

Source: docs/spark.md#tables.
"""

from __future__ import annotations

import logging
import warnings
from collections.abc import MutableMapping

import pyarrow as pa
from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    DataSourceStreamWriter,
    DataSourceWriter,
)
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import StringType, StructField, StructType

from bookgate.runtime.settings import nearest_key
from bookgate.thinclient.spark.arrow import FORMER_NAMES, LEDGER_COLUMNS
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
from bookgate.thinclient.spark.plain_errors import plain_errors
from bookgate.thinclient.spark.records.record_options import (
    names_stream,
    parse_record_options,
    parse_record_write_options,
)
from bookgate.thinclient.spark.records.record_reads import RecordsReader, RecordsStreamReader, records_schema
from bookgate.thinclient.spark.tables import kind_of

_log = logging.getLogger(__name__)

_ENTRIES = "table 'entries'"


class BookKeeperDataSource(DataSource):
    """`spark.read.format("bookkeeper")`. Raises OptionError for options it can't use."""

    @plain_errors
    def __init__(self, options: MutableMapping[str, str]) -> None:
        super().__init__(options)
        self._of_stream = names_stream(options)
        if not self._of_stream:
            self._checked = parse_options(dict(options.items()))

    @classmethod
    def name(cls) -> str:
        return "bookkeeper"

    @plain_errors
    def schema(self) -> StructType:
        return from_arrow_schema(self._all_columns())

    @plain_errors
    def reader(self, schema: StructType) -> DataSourceReader:
        if self._of_stream:
            refuse(("maxEntriesPerTrigger",), self.options, "is for streaming reads; this is a batch read")
            return RecordsReader(parse_record_options(self.options), self._columns(schema))
        columns = self._columns(schema)
        if self._checked.start_at_latest:
            raise OptionError(
                "option startingOffsets is 'latest', which is for streams; a batch read begins at earliest"
            )
        refuse((*OF_WRITING, *SPARKS_OWN), self.options, "is for writing; this is a read")
        refuse(OF_STREAMS, self.options, "is for streams; this is a batch read")
        return kind_of(self._checked.table).reader(self._checked, columns)

    @plain_errors
    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802
        if self._of_stream:
            refuse(("endingOffsets",), self.options, "is for batch reads; this is a streaming read")
            return RecordsStreamReader(parse_record_options(self.options), self._columns(schema))
        from bookgate.thinclient.spark.streaming.stream import EntriesStreamReader

        columns = self._columns(schema)
        if self._checked.table is not Table.ENTRIES:
            raise OptionError(f"option table is {self._checked.table.value!r}: only 'entries' can be read as a stream")
        if self._checked.read_mode is not ReadMode.CONFIRMED:
            raise OptionError("option readMode is 'recover', which is for batch reads: a stream never takes ledgers")
        refuse((*OF_WRITING, *SPARKS_OWN), self.options, "is for writing; this is a read")
        refuse(("pushdown",), self.options, "is for batch reads; this is a stream")
        return EntriesStreamReader(self._checked, columns)

    @plain_errors
    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        from bookgate.thinclient.spark.records.record_writes import BatchRecords, check_streams
        from bookgate.thinclient.spark.writing.rows import payload_column, refuse_overwrite
        from bookgate.thinclient.spark.writing.sink import BatchSink

        refuse_overwrite(overwrite)
        if not self._of_stream:
            sink = BatchSink(parse_write_options(self.options), payload_column(schema))
            sink.check_rights()
            return sink
        options = parse_record_write_options(self.options)
        check_streams(options)
        return BatchRecords(options, payload_column(schema))

    @plain_errors
    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:  # noqa: N802
        from bookgate.thinclient.spark.records.record_writes import StreamRecords, check_streams
        from bookgate.thinclient.spark.writing.rows import payload_column, refuse_overwrite
        from bookgate.thinclient.spark.writing.sink import StreamSink

        refuse_overwrite(overwrite)
        refuse(("writeId",), self.options, "is for batch writes; a stream has the id of its query")
        if not self._of_stream:
            sink = StreamSink(parse_write_options(self.options), payload_column(schema))
            sink.check_rights()
            return sink
        options = parse_record_write_options(self.options)
        check_streams(options, each_batch=True)
        return StreamRecords(options, payload_column(schema))

    def _all_columns(self) -> pa.Schema:
        if self._of_stream:
            return records_schema(parse_record_options(self.options))
        return kind_of(self._checked.table).schema_of(self._checked)

    def _columns(self, wanted: StructType) -> pa.Schema:
        """The columns that a read returns: those in schema(…), else all of the table's.

        Spark does not tell Python sources which columns a query needs. Columns that a given schema leaves out are not
        read, including the payload.
        """
        schema = self._all_columns()
        if wanted == from_arrow_schema(schema):
            return schema
        if self._of_stream:
            return pa.schema([_column(field, schema, "a stream") for field in wanted.fields])
        if self._checked.table is not Table.ENTRIES:
            raise OptionError(
                f"the columns of table {self._checked.table.value!r} are fixed; leave schema(…) out and select() "
                f"the ones you want of {', '.join(schema.names)}"
            )
        return pa.schema([_column(field, schema, _ENTRIES) for field in wanted.fields])


def _column(wanted: StructField, schema: pa.Schema, owner: str) -> pa.Field:
    """The column of the owner, table `entries` or a stream, that a field of schema(…) names."""
    of_entries = owner == _ENTRIES
    name = FORMER_NAMES.get(wanted.name, wanted.name) if of_entries else wanted.name
    if name not in schema.names:
        meant = nearest_key(wanted.name, schema.names)
        more = "; includeLedgerMetadata=true adds it" if of_entries and name in LEDGER_COLUMNS else ""
        hint = f", did you mean {meant}?" if meant else f"; there are {', '.join(schema.names)}"
        raise OptionError(f"{owner} has no column {wanted.name!r}{more or hint}")
    field = schema.field(name)
    kind, given = from_arrow_schema(pa.schema([field]))[0].dataType, wanted.dataType
    if given != kind:
        more = "; payloadAs=string makes it text" if name == "payload" and isinstance(given, StringType) else ""
        raise OptionError(
            f"column {wanted.name!r} of {owner} is {kind.simpleString()}, not {given.simpleString()}{more}"
        )
    if name != wanted.name:
        message = (
            f"column {wanted.name!r} of table 'entries' is called {name!r} now; the next release lacks the old name"
        )
        warnings.warn(message, DeprecationWarning, stacklevel=2)
        _log.warning("%s", message)
    return field.with_name(wanted.name).with_nullable(wanted.nullable or field.nullable)
