"""The data source `bookkeeper` for batch reads: what Spark calls, and nothing of how it is done.

Spark pickles the source and its reader from process to process: both hold checked options only. Whatever connects is
made inside `partitions` and `read`, which run in Python workers, on the driver's machine and on the executors.

`entries` is planned into tasks on the driver. `ledgers` and `bookies` are one task each that streams what the gateway
lists, page by page, so that a million ledgers need no memory to speak of.

Source: spark page, tables and traps.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, MutableMapping

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import StructType

from ledger.manager import BookieSet
from thinclient.spark import arrow
from thinclient.spark.entries import Losses, readable_slices, selected_records, slice_entries
from thinclient.spark.job_metrics import counted
from thinclient.spark.options import OptionError, Options, Table, parse_options
from thinclient.spark.planning import Slice, limits_of, plan
from thinclient.spark.worker_client import clients

_log = logging.getLogger(__name__)

_SCHEMAS = {
    Table.ENTRIES: arrow.ENTRIES_SCHEMA,
    Table.LEDGERS: arrow.LEDGERS_SCHEMA,
    Table.BOOKIES: arrow.BOOKIES_SCHEMA,
}


class BookKeeperDataSource(DataSource):
    """`spark.read.format("bookkeeper")`. Raises OptionError for options it can't use."""

    def __init__(self, options: MutableMapping[str, str]) -> None:
        super().__init__(options)
        self._checked = parse_options(dict(options.items()))

    @classmethod
    def name(cls) -> str:
        return "bookkeeper"

    def schema(self) -> StructType:
        return from_arrow_schema(_SCHEMAS[self._checked.table])

    def reader(self, schema: StructType) -> DataSourceReader:
        if schema != self.schema():
            raise OptionError(
                f"the columns of table {self._checked.table.value!r} are fixed; leave schema(…) out and select() "
                f"the ones you want of {', '.join(self.schema().fieldNames())}"
            )
        if self._checked.start_at_latest:
            raise OptionError(
                "option startingOffsets is 'latest', which is for streams; a batch read begins at earliest"
            )
        return _READERS[self._checked.table](self._checked)


class EntriesPartition(InputPartition):
    """Slices that one task reads, in order."""

    def __init__(self, slices: list[Slice]) -> None:
        super().__init__(None)
        self.slices = slices

    def __repr__(self) -> str:
        return f"EntriesPartition({len(self.slices)} slices, {sum(piece.entries for piece in self.slices)} entries)"


class EntriesReader(DataSourceReader):
    """One row an entry."""

    def __init__(self, options: Options) -> None:
        self._options = options

    def partitions(self) -> list[InputPartition]:
        """A list, as Spark insists. It may be empty; Spark then calls `read` with a partition of its own."""
        with clients.use(self._options.gateways, self._options.client_settings) as client:
            slices = readable_slices(client, self._options)
        return [EntriesPartition(task) for task in plan(slices, limits_of(self._options))]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return counted("entries", self._read(partition))

    def _read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        if not isinstance(partition, EntriesPartition):
            return
        losses = Losses()
        batches = arrow.EntryBatches(self._options.include_payload)
        with clients.use(self._options.gateways, self._options.client_settings) as client:
            for piece in partition.slices:
                for entries in slice_entries(client, piece, self._options, losses):
                    yield from batches.add(piece.record.ledger_id, entries)
        yield from batches.finish()
        if losses.entries:
            _log.warning("%d entries were lost and skipped (failOnDataLoss is false)", losses.entries)


class LedgersReader(DataSourceReader):
    """One row a ledger."""

    def __init__(self, options: Options) -> None:
        self._options = options

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return counted("ledgers", self._read())

    def _read(self) -> Iterator[pa.RecordBatch]:
        with clients.use(self._options.gateways, self._options.client_settings) as client:
            for records in selected_records(client, self._options):
                yield arrow.ledgers_batch(records)


class BookiesReader(DataSourceReader):
    """One row a bookie, registered now or known by its cookie."""

    def __init__(self, options: Options) -> None:
        self._options = options

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return counted("bookies", self._read())

    def _read(self) -> Iterator[pa.RecordBatch]:
        with clients.use(self._options.gateways, self._options.client_settings) as client:
            bookies = client.bookies(BookieSet.ALL)
        if bookies:
            yield arrow.bookies_batch(bookies)


_READERS: Mapping[Table, Callable[[Options], DataSourceReader]] = {
    Table.ENTRIES: EntriesReader,
    Table.LEDGERS: LedgersReader,
    Table.BOOKIES: BookiesReader,
}
