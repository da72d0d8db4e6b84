"""Reads the records of a stream: as a batch between two places, or as they come.

An offset is the ledger and the entry from which on nothing was read, so a batch is a range of entries, which is the
same whenever it is read. A batch that begins in the middle of an entry leaves the records before out. For a set of
streams (`streamPartitions`) an offset is a list of these, by the streams' numbers.

The driver finds the places and the last confirmed entry. A task may ask bookies that have not heard of it yet: it
waits, and never takes for missing what the driver knows to be there.

Source: docs/spark.md#streams-of-records; PySpark's `sql/datasource.py`. Not its job: writing.
"""

from __future__ import annotations

import time
from array import array
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxRows, SupportsTriggerAvailableNow

from bookgate.ledger.errors import IllegalOpException, ReadException
from bookgate.ledger.ledger_id import LedgerId
from bookgate.ledger.payload_codec import RecordPosition
from bookgate.ledger.stream_entry import StreamRecord, records_of_entry
from bookgate.thinclient.spark.arrow import nearest_us, payload_array
from bookgate.thinclient.spark.offsets import Backlog, OffsetError, lag
from bookgate.thinclient.spark.options.read_options import OptionError, PayloadAs
from bookgate.thinclient.spark.plain_errors import plain_errors
from bookgate.thinclient.spark.records.opened_stream import opened_stream
from bookgate.thinclient.spark.records.record_options import RecordOptions
from bookgate.thinclient.spark.streaming.admission import admit, still_passed_over
from bookgate.thinclient.spark.worker_client import clients
from bookgate.thinclient.spark.worker_metrics import counted
from bookgate.thinclient.streams.places import Start

if TYPE_CHECKING:
    from bookgate.thinclient.blocking.client import BookKeeper, Stream

RECORDS_SCHEMA = pa.schema(
    [
        pa.field("entry_id", pa.int64(), nullable=False),
        pa.field("record", pa.int32(), nullable=False),
        pa.field("append_time", pa.timestamp("us", tz="UTC"), nullable=False),
        pa.field("payload", pa.binary(), nullable=False),
    ]
)
"""All columns, as they are without options that change them."""
_STREAM_PARTITION = pa.field("stream_partition", pa.int32(), nullable=False)
"""Of a set of streams: the number of the record's."""
_Offset = dict[str, Any]
_KEYS = {"ledger", "entry", "record"}
"""What the offset of a stream has."""
_BATCH_RECORDS = 16 * 1024
_BATCH_BYTES = 16 * 1024 * 1024
_PAUSE_SECONDS = 0.1


def records_schema(options: RecordOptions) -> pa.Schema:
    """All columns of a read with these options."""
    kind = pa.string() if options.payload_as is PayloadAs.STRING else pa.binary()
    index = RECORDS_SCHEMA.get_field_index("payload")
    schema = RECORDS_SCHEMA.set(index, pa.field("payload", kind, nullable=not options.include_payload))
    return schema if options.partitions is None else schema.append(_STREAM_PARTITION)


class EntriesOfStream(InputPartition):
    """A range of entries, which one task reads."""

    def __init__(self, part: int, ledger: str, first: RecordPosition, end: int) -> None:
        """`part`: the number of the stream; `ledger`: the qualified name; `end`: the entry behind the last."""
        super().__init__((part, ledger, tuple(first), end))
        self.part = part
        self.ledger = ledger
        self.first = first
        self.end = end


def _opened(client: BookKeeper, options: RecordOptions) -> list[Stream]:
    return [opened_stream(client, options, name) for name in options.streams]


def _tasks(part: int, stream: Stream, first: RecordPosition, end: int, most: int) -> list[InputPartition]:
    ledger = stream.ledger_id.qualified_name
    tasks: list[InputPartition] = []
    start = first
    while start.entry_id < end:
        stop = min(end, start.entry_id + most)
        tasks.append(EntriesOfStream(part, ledger, start, stop))
        start = RecordPosition(stop, 0)
    return tasks


def _end_of(stream: Stream, options: RecordOptions) -> int:
    """The entry behind the last one to read."""
    latest = stream.position_of(Start.LATEST).entry_id
    if options.end is Start.LATEST:
        return latest
    end = stream.position_of(options.end)
    if end.number:
        raise OptionError("option endingOffsets names a record; a read ends between entries: give an entry or a time")
    return min(end.entry_id, latest)


@plain_errors
def _read(options: RecordOptions, schema: pa.Schema, partition: InputPartition) -> Iterator[pa.RecordBatch]:
    if not isinstance(partition, EntriesOfStream):
        return
    last = partition.end - 1
    with (
        clients.use(options.gateways, options.client_settings) as client,
        client.open_ledger(LedgerId.parse(partition.ledger), options.password) as handle,
    ):
        deadline = time.monotonic() + client.config.tail_failure_timeout_seconds
        while handle.last_add_confirmed < last and handle.read_last_confirmed() < last:
            if time.monotonic() > deadline:
                raise ReadException(
                    f"the bookies of stream {options.streams[partition.part]!r} confirm entry "
                    f"{handle.last_add_confirmed} only, and the driver has seen entry {last}: try again"
                )
            time.sleep(_PAUSE_SECONDS)
        records: list[StreamRecord] = []
        size = 0
        for entry in handle.read(partition.first.entry_id, last):
            skipped = partition.first.number if entry.entry_id == partition.first.entry_id else 0
            records += records_of_entry(entry.entry_id, entry.payload, skipped)
            size += len(entry.payload)
            if len(records) >= _BATCH_RECORDS or size >= _BATCH_BYTES:
                yield _batch(records, partition.part, schema, options.include_payload)
                records, size = [], 0
        if records:
            yield _batch(records, partition.part, schema, options.include_payload)


def _batch(records: Sequence[StreamRecord], part: int, schema: pa.Schema, include_payload: bool) -> pa.RecordBatch:
    columns = [_column(records, part, field, include_payload) for field in schema]
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def _column(records: Sequence[StreamRecord], part: int, field: pa.Field, include_payload: bool) -> pa.Array:
    match field.name:
        case "entry_id":
            return pa.array([each.entry_id for each in records], field.type)
        case "record":
            return pa.array([each.number for each in records], field.type)
        case "append_time":
            return pa.array([nearest_us(each.append_time_ms) for each in records], pa.int64()).cast(field.type)
        case "payload" if not include_payload:
            return pa.nulls(len(records), field.type)
        case "payload":
            payloads = [each.payload for each in records]
            return payload_array(payloads, array("i", map(len, payloads)), field.type)
        case "stream_partition":
            return pa.repeat(pa.scalar(part, field.type), len(records))
        case unknown:
            raise ValueError(f"a stream has no column {unknown}")


class RecordsReader(DataSourceReader):
    """One row per record, between two places."""

    def __init__(self, options: RecordOptions, schema: pa.Schema = RECORDS_SCHEMA) -> None:
        self._options = options
        self._schema = schema

    @plain_errors
    def partitions(self) -> list[InputPartition]:
        """The tasks."""
        options = self._options
        with clients.plan(options.gateways, options.client_settings) as client:
            return [
                task
                for part, stream in enumerate(_opened(client, options))
                for task in _tasks(
                    part,
                    stream,
                    stream.position_of(options.start),
                    _end_of(stream, options),
                    options.max_entries_per_partition,
                )
            ]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The records of a task. Runs in the task."""
        return counted("records", _read(self._options, self._schema, partition))


class RecordsStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """One row per record, as records are confirmed. An offset is {"ledger": …, "entry": …, "record": …}, and that of a
    set of streams {"parts": [such an offset, …]}.
    """

    def __init__(self, options: RecordOptions, schema: pa.Schema = RECORDS_SCHEMA) -> None:
        self._options = options
        self._schema = schema
        self._target: list[int] | None = None
        self._latest: list[int] = []
        self._planned: list[_Offset] | None = None
        self._passed_over: dict[int, int] = {}

    def __getstate__(self) -> dict[str, Any]:
        """Tasks need the options and the columns only."""
        return {"_options": self._options, "_schema": self._schema}

    @plain_errors
    def initialOffset(self) -> dict[str, Any]:  # noqa: N802
        """Where a query without a checkpoint begins."""
        with clients.plan(self._options.gateways, self._options.client_settings) as client:
            streams = _opened(client, self._options)
            places = [stream.position_of(self._options.start) for stream in streams]
        return self._joined(
            [
                {"ledger": stream.ledger_id.qualified_name, "entry": entry_id, "record": number}
                for stream, (entry_id, number) in zip(streams, places, strict=True)
            ]
        )

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        """`maxEntriesPerTrigger`, of entries of all streams."""
        most = self._options.max_entries_per_trigger
        return ReadAllAvailable() if most is None else ReadMaxRows(most)

    @plain_errors
    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        """The end of the query: what is confirmed now."""
        self._target = self._look(None)

    @plain_errors
    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802
        """The end of the next batch; `start` when there is nothing to read."""
        if not isinstance(limit, ReadMaxRows | ReadAllAvailable):
            raise OptionError(f"a stream knows no limit such as {limit!r}: set maxEntriesPerTrigger")
        starts = self._parts(start)
        now = self._look(starts)
        self._latest = now if self._target is None else self._target
        behind = enumerate(_behind(starts, self._latest))
        waiting = {part: Backlog(entries, 0) for part, entries in behind if entries}
        most = limit.max_rows if isinstance(limit, ReadMaxRows) else None
        grants = admit(waiting, most, None, self._passed_over)
        self._passed_over = still_passed_over(self._passed_over, grants)
        self._planned = [
            {**each, "entry": each["entry"] + grants[part], "record": 0} if grants.get(part) else each
            for part, each in enumerate(starts)
        ]
        return self._joined(self._planned)

    @plain_errors
    def reportLatestOffset(self) -> dict[str, Any] | None:  # noqa: N802
        """For the query's progress: where the streams end now, and how far the query is behind."""
        if self._planned is None:
            return None
        ends = self._joined([{"entry": each, "record": 0} for each in self._latest])
        return {**ends, "metrics": lag(_behind(self._planned, self._latest))}

    @plain_errors
    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        """The tasks between two offsets; after a restart this may be a batch begun before it."""
        most = self._options.max_entries_per_partition
        ranges = zip(self._parts(start), self._parts(end), strict=True)
        with clients.plan(self._options.gateways, self._options.client_settings) as client:
            streams = _opened(client, self._options)
            return [
                task
                for part, (stream, (first, last)) in enumerate(zip(streams, ranges, strict=True))
                for task in _tasks(
                    part, _same(stream, first), RecordPosition(first["entry"], first["record"]), last["entry"], most
                )
            ]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The records of a task. Runs in the task."""
        return counted("records", _read(self._options, self._schema, partition))

    def commit(self, end: dict[str, Any]) -> None:
        """Nothing to free: the checkpoint is the query's cursor."""

    def stop(self) -> None:
        """Nothing to end: the process's client is kept for the next query."""

    def _look(self, starts: Sequence[_Offset] | None) -> list[int]:
        """The entry behind the last confirmed one of each stream. Raises IllegalOpException if one is not that of its
        start.
        """
        with clients.plan(self._options.gateways, self._options.client_settings) as client:
            streams = _opened(client, self._options)
            if starts is not None:
                streams = [_same(stream, start) for stream, start in zip(streams, starts, strict=True)]
            return [stream.position_of(Start.LATEST).entry_id for stream in streams]

    def _joined(self, parts: Sequence[_Offset]) -> _Offset:
        """Offsets of the streams as that of the query."""
        return parts[0] if self._options.partitions is None else {"parts": parts}

    def _parts(self, offset: _Offset) -> list[_Offset]:
        """The reverse of `_joined`. Raises OptionError if the checkpoint has another number of streams, and OffsetError
        if it is none of streams.
        """
        parts: list[_Offset] = offset.get("parts", [offset])
        if not all(each.keys() >= _KEYS for each in parts):
            raise OffsetError(
                "the query's checkpoint is none of a read with option stream: give the query a new checkpoint, or the "
                "options that it began with"
            )
        named = len(self._options.streams)
        if len(parts) != named:
            raise OptionError(
                f"the query's checkpoint is of {len(parts)} streams, and its options name {named}: "
                "keep streamPartitions for all starts of a query, or give it a new checkpoint"
            )
        return parts


def _behind(offsets: Sequence[_Offset], ends: Sequence[int]) -> list[int]:
    """The entries of each stream between its offset and its end."""
    return [max(0, end - offset["entry"]) for offset, end in zip(offsets, ends, strict=True)]


def _same(stream: Stream, offset: dict[str, Any]) -> Stream:
    """The stream, if it is the one of the offset. Raises IllegalOpException."""
    if stream.ledger_id.qualified_name != offset["ledger"]:
        raise IllegalOpException(
            f"stream {stream.name!r} was deleted and created again since the query began: give it a new checkpoint"
        )
    return stream
