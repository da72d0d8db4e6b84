"""Batch reads of entries, ledgers and bookies: the methods that Spark calls.

Spark pickles readers from process to process, so they hold checked options only. Connections are made inside
`partitions` and `read`, which run in Python workers, on the driver's machine and on the executors.

`entries` is planned into tasks on the driver. `ledgers` and `bookies` are one task each that streams the gateway's
listing page by page, so a million ledgers need little memory.

Source: docs/spark.md#tables.
"""

from __future__ import annotations

import gc
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, Filter, InputPartition

from bookgate.ledger.bookie_info import BookieServiceInfo
from bookgate.ledger.metadata_store import BookieSet
from bookgate.thinclient.spark import arrow
from bookgate.thinclient.spark.options.read_options import Options
from bookgate.thinclient.spark.plain_errors import plain_errors
from bookgate.thinclient.spark.reading.entries import readable_slices, selected_records
from bookgate.thinclient.spark.reading.planning import PackedSlices, Slice, limits_of, packed, plan, unpacked
from bookgate.thinclient.spark.reading.pushdown import EVERYTHING, Bounds
from bookgate.thinclient.spark.reading.slice_reads import Losses, task_entries
from bookgate.thinclient.spark.worker_client import clients
from bookgate.thinclient.spark.worker_metrics import counted

if TYPE_CHECKING:
    from bookgate.thinclient.blocking.client import BookKeeper


class EntriesPartition(InputPartition):
    """Slices that one task reads, in order, and the addresses of their bookies when the scan was planned."""

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
    """One row per entry."""

    def __init__(self, options: Options, schema: pa.Schema = arrow.ENTRIES_SCHEMA) -> None:
        self._options = options
        self._schema = schema
        self._bounds = EVERYTHING

    def __getstate__(self) -> dict[str, Any]:
        """What tasks get; the planning is done by the object that Spark made the tasks' copy of."""
        return {**self.__dict__, "_options": self._options.of_tasks()}

    @plain_errors
    def partitions(self) -> list[InputPartition]:
        """The tasks, as a list, which Spark requires. If it is empty, Spark calls `read` with a partition of its
        own.
        """
        with clients.plan(self._options.gateways, self._options.client_settings) as client, _no_collection():
            return tasks_of(client, readable_slices(client, self._options, self._bounds), self._options)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return counted("entries", self._read(partition))

    @plain_errors
    def _read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        if not isinstance(partition, EntriesPartition):
            return
        losses = Losses()
        batches = arrow.EntryBatches(self._options.include_payload, schema=self._schema)
        ledgers = {piece.ledger_id: piece.shape for piece in partition.slices} if self._needs_ledgers() else {}
        with clients.use(self._options.gateways, self._options.client_settings) as client:
            client.seed_addresses(partition.bookies)
            for ledger_id, entries in task_entries(client, partition.slices, self._options, losses):
                yield from batches.add(ledger_id, entries, ledgers.get(ledger_id))
        yield from batches.finish()
        losses.report()

    def _needs_ledgers(self) -> bool:
        return not set(arrow.LEDGER_COLUMNS).isdisjoint(self._schema.names)


@contextmanager
def _no_collection() -> Iterator[None]:
    """Suspends the garbage collector: a plan has no cycles, and the collector would traverse a million slices
    repeatedly.
    """
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


def tasks_of(
    client: BookKeeper,
    slices: Sequence[Slice],
    options: Options,
    cores: int | None = None,
    unfinished: Container[int] = (),
) -> list[InputPartition]:
    """The slices as tasks, each with the addresses of its bookies. `cores`: see `limits_of`; `unfinished`: `plan`."""
    tasks = plan(slices, limits_of(options, cores), unfinished)
    bookies = client.bookies(BookieSet.ALL) if tasks else ()
    infos = {bookie.bookie_id: bookie.info for bookie in bookies}
    return [EntriesPartition(task, _of_task(task, infos)) for task in tasks]


def _of_task(task: list[Slice], infos: Mapping[str, BookieServiceInfo]) -> tuple[BookieServiceInfo, ...]:
    """The bookies that hold entries of a task."""
    shapes = {id(piece.shape): piece.shape for piece in task}
    named = {name for shape in shapes.values() for fragment in shape.fragments for name in fragment.ensemble}
    return tuple(infos[name] for name in sorted(named) if name in infos)


class LedgersReader(DataSourceReader):
    """One row per ledger."""

    def __init__(self, options: Options, schema: pa.Schema = arrow.LEDGERS_SCHEMA) -> None:
        self._options = options
        self._bounds = EVERYTHING

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return counted("ledgers", self._read())

    @plain_errors
    def _read(self) -> Iterator[pa.RecordBatch]:
        with clients.use(self._options.gateways, self._options.client_settings, catches_up=True) as client:
            for records in selected_records(client, self._options, self._bounds):
                yield arrow.ledgers_batch(records)


class _Filtered(DataSourceReader):
    """For option `pushdown`: a separate class, since Spark demands its own setting as soon as a reader has
    `pushFilters`.

    Spark reuses the plan that it made with the filters pushed last for a frame. A later action on the frame without
    filters, or another use in the same query, is read through those filters too. A reader can't detect this.
    """

    _bounds: Bounds

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:  # noqa: N802
        self._bounds = Bounds()
        return list(self._bounds.take(filters))


class FilteredEntriesReader(_Filtered, EntriesReader):
    """Entries of the ids that Spark's filters leave."""


class FilteredLedgersReader(_Filtered, LedgersReader):
    """Ledgers of the ids that Spark's filters leave."""


class BookiesReader(DataSourceReader):
    """One row per bookie that is registered now or known by its cookie."""

    def __init__(self, options: Options, schema: pa.Schema = arrow.BOOKIES_SCHEMA) -> None:
        self._options = options

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return counted("bookies", self._read())

    @plain_errors
    def _read(self) -> Iterator[pa.RecordBatch]:
        with clients.use(self._options.gateways, self._options.client_settings) as client:
            bookies = client.bookies(BookieSet.ALL)
        if bookies:
            yield arrow.bookies_batch(bookies)
