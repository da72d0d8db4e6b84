"""The data source `bookkeeper` for batch reads: what Spark calls, and nothing of how it is done.

Spark pickles the source and its reader from process to process: both hold checked options only. Whatever connects is
made inside `partitions` and `read`, which run in Python workers, on the driver's machine and on the executors.

`entries` is planned into tasks on the driver. `ledgers` and `bookies` are one task each that streams what the gateway
lists, page by page, so that a million ledgers need no memory to speak of.

Source: spark page, tables and traps.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, MutableMapping, Sequence
from typing import TYPE_CHECKING

import pyarrow as pa
from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    DataSourceStreamWriter,
    DataSourceWriter,
    Filter,
    InputPartition,
)
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import StructType

from ledger.bookie_info import BookieServiceInfo
from ledger.manager import BookieSet
from thinclient.spark import arrow
from thinclient.spark.entries import Losses, readable_slices, selected_records, slice_entries
from thinclient.spark.job_metrics import counted
from thinclient.spark.options import (
    OF_STREAMS,
    OF_WRITING,
    SPARKS_OWN,
    OptionError,
    Options,
    ReadMode,
    Table,
    parse_options,
    refuse,
)
from thinclient.spark.planning import PackedSlices, Slice, limits_of, packed, plan, unpacked
from thinclient.spark.pushdown import EVERYTHING, Bounds
from thinclient.spark.worker_client import clients
from thinclient.spark.write_options import parse_write_options

if TYPE_CHECKING:
    from thinclient.blocking import BookKeeper

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
        self._check_columns(schema)
        if self._checked.start_at_latest:
            raise OptionError(
                "option startingOffsets is 'latest', which is for streams; a batch read begins at earliest"
            )
        refuse((*OF_WRITING, *SPARKS_OWN), self.options, "is for writing; this is a read")
        refuse(OF_STREAMS, self.options, "is for streams; this is a batch read")
        return _READERS[self._checked.table, self._checked.pushdown](self._checked)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802
        from thinclient.spark.stream import EntriesStreamReader

        self._check_columns(schema)
        if self._checked.table is not Table.ENTRIES:
            raise OptionError(f"option table is {self._checked.table.value!r}: only 'entries' can be read as a stream")
        if self._checked.read_mode is not ReadMode.CONFIRMED:
            raise OptionError("option readMode is 'recover', which is for batch reads: a stream never takes ledgers")
        refuse((*OF_WRITING, *SPARKS_OWN), self.options, "is for writing; this is a read")
        refuse(("pushdown",), self.options, "is for batch reads; this is a stream")
        return EntriesStreamReader(self._checked)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        from thinclient.spark.sink import BatchSink, payload_column, refuse_overwrite

        refuse_overwrite(overwrite)
        return BatchSink(parse_write_options(self.options), payload_column(schema))

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:  # noqa: N802
        from thinclient.spark.sink import StreamSink, payload_column, refuse_overwrite

        refuse_overwrite(overwrite)
        refuse(("writeId",), self.options, "is for batch writes; a stream has the id of its query")
        return StreamSink(parse_write_options(self.options), payload_column(schema))

    def _check_columns(self, schema: StructType) -> None:
        if schema != self.schema():
            raise OptionError(
                f"the columns of table {self._checked.table.value!r} are fixed; leave schema(…) out and select() "
                f"the ones you want of {', '.join(self.schema().fieldNames())}"
            )


class EntriesPartition(InputPartition):
    """Slices that one task reads, in order, and where their bookies were when the scan was planned."""

    def __init__(self, slices: list[Slice], bookies: tuple[BookieServiceInfo, ...] = ()) -> None:
        super().__init__(None)
        self.slices = slices
        self.bookies = bookies

    def __getstate__(self) -> tuple[PackedSlices, tuple[BookieServiceInfo, ...]]:
        return packed(self.slices), self.bookies

    def __setstate__(self, state: tuple[PackedSlices, tuple[BookieServiceInfo, ...]]) -> None:
        self.__init__(unpacked(state[0]), state[1])  # type: ignore[misc]

    def __repr__(self) -> str:
        return f"EntriesPartition({len(self.slices)} slices, {sum(piece.entries for piece in self.slices)} entries)"


class EntriesReader(DataSourceReader):
    """One row an entry."""

    def __init__(self, options: Options) -> None:
        self._options = options
        self._bounds = EVERYTHING

    def partitions(self) -> list[InputPartition]:
        """A list, as Spark insists. It may be empty; Spark then calls `read` with a partition of its own."""
        with clients.use(self._options.gateways, self._options.client_settings) as client:
            return tasks_of(client, readable_slices(client, self._options, self._bounds), self._options)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return counted("entries", self._read(partition))

    def _read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        if not isinstance(partition, EntriesPartition):
            return
        losses = Losses()
        batches = arrow.EntryBatches(self._options.include_payload)
        with clients.use(self._options.gateways, self._options.client_settings) as client:
            client.tell_bookies(partition.bookies)
            for piece in partition.slices:
                for entries in slice_entries(client, piece, self._options, losses):
                    yield from batches.add(piece.ledger_id, entries)
        yield from batches.finish()
        losses.report()


def tasks_of(client: BookKeeper, slices: Sequence[Slice], options: Options) -> list[InputPartition]:
    """The slices as tasks, each with the addresses of its bookies."""
    tasks = plan(slices, limits_of(options))
    bookies = client.bookies(BookieSet.ALL) if tasks else ()
    infos = {bookie.bookie_id: bookie.info for bookie in bookies}
    return [EntriesPartition(task, _of_task(task, infos)) for task in tasks]


def _of_task(task: list[Slice], infos: Mapping[str, BookieServiceInfo]) -> tuple[BookieServiceInfo, ...]:
    """Those bookies that hold entries of a task."""
    shapes = {id(piece.shape): piece.shape for piece in task}
    named = {name for shape in shapes.values() for fragment in shape.fragments for name in fragment.ensemble}
    return tuple(infos[name] for name in sorted(named) if name in infos)


class LedgersReader(DataSourceReader):
    """One row a ledger."""

    def __init__(self, options: Options) -> None:
        self._options = options
        self._bounds = EVERYTHING

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return counted("ledgers", self._read())

    def _read(self) -> Iterator[pa.RecordBatch]:
        with clients.use(self._options.gateways, self._options.client_settings) as client:
            for records in selected_records(client, self._options, self._bounds):
                yield arrow.ledgers_batch(records)


class _Filtered(DataSourceReader):
    """With the option `pushdown`: a class that has `pushFilters`, upon which Spark insists on its own switch."""

    _bounds: Bounds

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:  # noqa: N802
        self._bounds = Bounds()
        return list(self._bounds.take(filters))


class FilteredEntriesReader(_Filtered, EntriesReader):
    """Entries of the ids that Spark's filters leave."""


class FilteredLedgersReader(_Filtered, LedgersReader):
    """Ledgers of the ids that Spark's filters leave."""


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


_READERS: Mapping[tuple[Table, bool], Callable[[Options], DataSourceReader]] = {
    (Table.ENTRIES, False): EntriesReader,
    (Table.ENTRIES, True): FilteredEntriesReader,
    (Table.LEDGERS, False): LedgersReader,
    (Table.LEDGERS, True): FilteredLedgersReader,
    (Table.BOOKIES, False): BookiesReader,
}
"""By table and whether filters are pushed."""
