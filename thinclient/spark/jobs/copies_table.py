"""The table `copies`, used by the job `audit`: one row per bookie of each slice that a task examines.

Planned like the table `entries`, and read by `copies`. Good copies have a row too, with the number of copies examined.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import TYPE_CHECKING

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, InputPartition

from bookgate.ledger.errors import BKException, NoSuchLedgerExistsOnMetadataServerException, UnauthorizedAccessException
from bookgate.ledger.ledger_id import LedgerId
from bookgate.ledger.metadata_store import LedgerRecord
from bookgate.thinclient.spark.jobs.copies import (
    CopyReader,
    CopyReport,
    Fault,
    ledger_report,
    password_for,
    unauthorized_report,
)
from bookgate.thinclient.spark.options.read_options import Options
from bookgate.thinclient.spark.reading.entries import readable_snapshot, selected_records
from bookgate.thinclient.spark.reading.planning import (
    PackedSlices,
    Slice,
    TemplateTable,
    by_fragment,
    has_readable_end,
    limits_of,
    packed,
    plan,
    unpacked,
    wanted_part,
)
from bookgate.thinclient.spark.worker_client import clients

if TYPE_CHECKING:
    from bookgate.thinclient.blocking.client import BookKeeper

_OPENED_AT_ONCE = 16
_RANGE = pa.struct(
    [
        ("fault", pa.string()),
        ("first_entry_id", pa.int64()),
        ("last_entry_id", pa.int64()),
        ("detail", pa.string()),
    ]
)
COPIES_SCHEMA = pa.schema(
    [
        pa.field("scope_id", pa.int64(), nullable=False),
        pa.field("ledger_id", pa.int64(), nullable=False),
        pa.field("fragment", pa.int64()),
        pa.field("bookie_id", pa.string()),
        pa.field("copies", pa.int64(), nullable=False),
        pa.field("good", pa.int64(), nullable=False),
        *(pa.field(fault.column, pa.int64(), nullable=False) for fault in Fault),
        pa.field("ranges", pa.list_(pa.field("element", _RANGE)), nullable=False),
    ]
)


class CopiesPartition(InputPartition):
    """Slices of fragments that one task examines, which of their ledgers are open, and what planning has found."""

    def __init__(
        self, slices: list[Slice], open_ids: frozenset[LedgerId] = frozenset(), found: Sequence[CopyReport] = ()
    ) -> None:
        super().__init__(None)
        self.slices = slices
        self.open_ids = open_ids
        self.found = found

    def __getstate__(self) -> tuple[PackedSlices, frozenset[LedgerId], Sequence[CopyReport]]:
        return packed(self.slices), self.open_ids, self.found

    def __setstate__(self, state: tuple[PackedSlices, frozenset[LedgerId], Sequence[CopyReport]]) -> None:
        self.__init__(unpacked(state[0]), *state[1:])  # type: ignore[misc]


class CopiesReader(DataSourceReader):
    """One row per bookie of a slice."""

    def __init__(self, options: Options) -> None:
        self._options = options

    def partitions(self) -> list[InputPartition]:
        found: list[CopyReport] = []
        slices: list[Slice] = []
        unfinished: list[LedgerRecord] = []
        shapes = TemplateTable()
        with clients.plan(self._options.gateways, self._options.client_settings) as client:
            # For a million ledgers only their slices are kept, and these share what ledgers have in common.
            for record in (record for page in selected_records(client, self._options) for record in page):
                if not has_readable_end(record, self._options):
                    continue
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
            CopiesPartition(task, frozenset(open_ids.intersection(piece.ledger_id for piece in task)))
            for task in plan(slices, limits_of(self._options))
        ]
        return [*tasks, CopiesPartition([], found=found)] if found else tasks

    def _fragments(self, shapes: TemplateTable, record: LedgerRecord) -> Iterable[Slice]:
        """The part of a readable ledger that the options select, cut where a new ensemble begins."""
        piece = wanted_part(shapes.slice_of(record), self._options)
        return () if piece is None else by_fragment(piece)

    def _readable(self, client: BookKeeper, record: LedgerRecord, found: list[CopyReport]) -> LedgerRecord | None:
        """An open ledger as far as it may be read now; None if it was deleted or its end is unknown."""
        options = replace(self._options, password=password_for(record, self._options.password))
        try:
            return readable_snapshot(client, record, options)
        except NoSuchLedgerExistsOnMetadataServerException:
            return None
        except UnauthorizedAccessException as error:
            found.append(unauthorized_report(record, error))
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
            reader = CopyReader(client, self._options.password, self._options.num_retries)
            for piece in partition.slices:
                if reports := reader.check(piece, is_open=piece.ledger_id in partition.open_ids):
                    yield _batch(reports)


def _without_entries(record: LedgerRecord) -> Iterator[CopyReport]:
    """The possible faults of a closed ledger without entries."""
    metadata = record.metadata
    if metadata.last_entry_id < 0 and metadata.length != 0:
        yield ledger_report(record, Fault.WRONG_LENGTH, f"the metadata say {metadata.length} bytes and no entries")


def _batch(reports: Sequence[CopyReport]) -> pa.RecordBatch:
    return pa.RecordBatch.from_pylist([_row(report) for report in reports], schema=COPIES_SCHEMA)


def _row(report: CopyReport) -> dict[str, object]:
    return {
        "scope_id": report.record.ledger_id.scope_id,
        "ledger_id": report.record.ledger_id.low,
        "fragment": None if report.fragment is None else report.fragment.first_entry_id,
        "bookie_id": report.bookie_id,
        "copies": report.copies,
        "good": report.good,
        **{fault.column: report.counts[fault] for fault in Fault},
        "ranges": [{**found._asdict(), "fault": found.fault.value} for found in report.ranges],
    }
