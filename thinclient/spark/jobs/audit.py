"""The audit: every entry on every replica that should hold it, as a table.

`audit` gives one row for each bookie of each fragment of each ledger, with how many copies were looked at, how many are
good and what is wrong with the rest, and one more for what is wrong with a ledger itself. Nothing is changed, fenced
or recovered: ledgers that are being written are looked at up to their last add confirmed. Ledgers are opened by the
password that their metadata keep; the option `password` is for those that keep none.

What a copy can be and when it is reported: `copies`. Source: spark page, jobs; operations page, section 1.2.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import TYPE_CHECKING

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.datasource import DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from ledger.errors import BKException, NoSuchLedgerExistsOnMetadataServerException
from ledger.manager import LedgerRecord
from thinclient.spark.entries import readable_snapshot, selected_records
from thinclient.spark.jobs.copies import CopyReader, CopyReport, Fault, ledger_report
from thinclient.spark.jobs.job_source import JobDataSource
from thinclient.spark.options import Options
from thinclient.spark.planning import Shapes, Slice, by_fragment, limits_of, plan, wanted_part
from thinclient.spark.session import register_once
from thinclient.spark.worker_client import clients

if TYPE_CHECKING:
    from thinclient.blocking import BookKeeper

_FORMAT = "bookkeeper-copies"
_OPENED_AT_ONCE = 16
_RANGE = pa.struct(
    [
        ("fault", pa.string()),
        ("first_entry_id", pa.int64()),
        ("last_entry_id", pa.int64()),
        ("detail", pa.string()),
    ]
)
_SCHEMA = pa.schema(
    [
        pa.field("scope_id", pa.int64(), nullable=False),
        pa.field("ledger_id", pa.int64(), nullable=False),
        pa.field("fragment", pa.int64()),
        pa.field("bookie_id", pa.string()),
        pa.field("copies", pa.int64(), nullable=False),
        pa.field("good", pa.int64(), nullable=False),
        pa.field("missing", pa.int64(), nullable=False),
        pa.field("corrupt", pa.int64(), nullable=False),
        pa.field("wrong_length", pa.int64(), nullable=False),
        pa.field("unreachable", pa.int64(), nullable=False),
        pa.field("ranges", pa.list_(pa.field("element", _RANGE)), nullable=False),
    ]
)
_KEY = ("scope_id", "ledger_id", "fragment", "bookie_id")
_COUNTS = ("copies", "good", "missing", "corrupt", "wrong_length", "unreachable")
FAULTS = ("missing", "corrupt", "wrong_length", "unreachable")
"""Columns that count copies which are not known to be good. `unreachable` is no damage yet: the bookie is away."""


def audit(spark: SparkSession, options: Mapping[str, str]) -> DataFrame:
    """One row a (ledger, fragment, bookie), and for a ledger as a whole where something is wrong with it.

    `options` are those of table `entries` that select ledgers and entries, and say how to reach them.
    """
    register_once(spark, CopiesDataSource)
    parts = spark.read.format(_FORMAT).options(**options).load()
    # Tasks that share a fragment report a part each.
    summed = (F.sum(name).alias(name) for name in _COUNTS)
    ranges = F.array_sort(F.flatten(F.collect_list("ranges")), _by_first_entry).alias("ranges")
    return parts.groupBy(*_KEY).agg(*summed, ranges)


def _by_first_entry(left: F.Column, right: F.Column) -> F.Column:  # type: ignore[name-defined]
    return (left["first_entry_id"] - right["first_entry_id"]).cast("int")


class CopiesDataSource(JobDataSource):
    """The audit's tasks, as a source of its own: planned where tables are, and read on the executors."""

    @classmethod
    def name(cls) -> str:
        return _FORMAT

    @property
    def arrow_schema(self) -> pa.Schema:
        return _SCHEMA

    def reader(self, schema: StructType) -> DataSourceReader:
        return CopiesReader(self._checked)


class CopiesPartition(InputPartition):
    """Slices of fragments that one task looks at, with whether their ledger is open; and what planning has found."""

    def __init__(self, slices: list[tuple[Slice, bool]], found: list[CopyReport]) -> None:
        super().__init__(None)
        self.slices = slices
        self.found = found


class CopiesReader(DataSourceReader):
    """See CopiesDataSource."""

    def __init__(self, options: Options) -> None:
        self._options = options

    def partitions(self) -> list[InputPartition]:
        found: list[CopyReport] = []
        slices: list[Slice] = []
        unfinished: list[LedgerRecord] = []
        shapes = Shapes()
        with clients.use(self._options.gateways, self._options.client_settings) as client:
            # Of a million ledgers no more is kept than their slices, which have in common what ledgers have.
            for record in (record for page in selected_records(client, self._options) for record in page):
                if record.metadata.is_closed:
                    found += _without_entries(record)
                    slices += self._fragments(shapes, record)
                else:
                    unfinished.append(record)
            with ThreadPoolExecutor(_OPENED_AT_ONCE) as pool:
                for readable in pool.map(lambda record: self._readable(client, record, found), unfinished):
                    slices += self._fragments(shapes, readable) if readable else ()
        open_ids = {record.ledger_id for record in unfinished}
        tasks: list[InputPartition] = [
            CopiesPartition([(piece, piece.ledger_id in open_ids) for piece in task], [])
            for task in plan(slices, limits_of(self._options))
        ]
        return [*tasks, CopiesPartition([], found)] if found else tasks

    def _fragments(self, shapes: Shapes, record: LedgerRecord) -> Iterable[Slice]:
        """What the options leave of a readable ledger, cut where a new ensemble begins."""
        piece = wanted_part(shapes.slice_of(record), self._options)
        return () if piece is None else by_fragment(piece)

    def _readable(self, client: BookKeeper, record: LedgerRecord, found: list[CopyReport]) -> LedgerRecord | None:
        """An open ledger as far as it may be read now; None for one that is gone or whose end nobody knows."""
        stored = record.metadata.password
        options = self._options if stored is None else replace(self._options, password=stored)
        try:
            return readable_snapshot(client, record, options)
        except NoSuchLedgerExistsOnMetadataServerException:
            return None
        except BKException as error:
            found.append(ledger_report(record, Fault.UNREACHABLE, f"its last add confirmed is not known: {error}"))
            return None

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        if not isinstance(partition, CopiesPartition):
            return
        if partition.found:
            yield _batch(partition.found)
        with clients.use(self._options.gateways, self._options.client_settings) as client:
            reader = CopyReader(client, self._options.password)
            for piece, is_open in partition.slices:
                if reports := reader.check(piece, is_open=is_open):
                    yield _batch(reports)


def _without_entries(record: LedgerRecord) -> Iterator[CopyReport]:
    """What a closed ledger without entries can have wrong."""
    metadata = record.metadata
    if metadata.last_entry_id < 0 and metadata.length != 0:
        yield ledger_report(record, Fault.WRONG_LENGTH, f"the metadata say {metadata.length} bytes and no entries")


def _batch(reports: list[CopyReport]) -> pa.RecordBatch:
    return pa.RecordBatch.from_pylist([_row(report) for report in reports], schema=_SCHEMA)


def _row(report: CopyReport) -> dict[str, object]:
    return {
        "scope_id": report.record.ledger_id.scope_id,
        "ledger_id": report.record.ledger_id.ledger_id,
        "fragment": None if report.fragment is None else report.fragment.first_entry_id,
        "bookie_id": report.bookie_id,
        "copies": report.copies,
        "good": report.good,
        "missing": report.counts[Fault.MISSING],
        "corrupt": report.counts[Fault.CORRUPT],
        "wrong_length": report.counts[Fault.WRONG_LENGTH],
        "unreachable": report.counts[Fault.UNREACHABLE],
        "ranges": [{**found._asdict(), "fault": found.fault.value} for found in report.ranges],
    }
