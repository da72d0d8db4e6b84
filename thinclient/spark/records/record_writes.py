"""Writes rows as records of streams, each row once: what Spark calls for writes with option `stream`.

A task appends the rows of its partition to the stream of its partition: all to one stream, or partition P to the stream
`NAME-P`. It takes the stream over, so whatever is left of an earlier attempt of the task can append nothing more. It
appends as a producer that is named after the query, or the batch write, and the partition. The sequence numbers begin
with the number of the query's batch. What an earlier attempt has appended is read, and left out (T7).

There is no commit: a record can be read as soon as it is acknowledged. A batch that failed is appended to its end when
Spark repeats it; a batch write that failed stays as it is, and `writeId` makes a repeated one go on there.

Source: docs/spark.md#writing-to-streams; PySpark's `sql/datasource.py`. Not its job: ledgers as the sink's target
(`spark.writing`).
"""

from __future__ import annotations

import logging
import uuid
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage

from bookgate.ledger.errors import IllegalOpException, WriteException
from bookgate.ledger.stream_entry import decode_stream_entry
from bookgate.runtime.logs import log_event
from bookgate.thinclient.core.streams.earlier_records import EarlierRecords, record_digest
from bookgate.thinclient.spark.options.read_options import OptionError
from bookgate.thinclient.spark.plain_errors import plain_errors
from bookgate.thinclient.spark.records.opened_stream import opened_stream
from bookgate.thinclient.spark.records.record_options import RecordWriteOptions
from bookgate.thinclient.spark.worker_client import clients
from bookgate.thinclient.spark.writing.query_of_task import query_of_task
from bookgate.thinclient.spark.writing.rows import chunks

if TYPE_CHECKING:
    from bookgate.thinclient.blocking.client import BookKeeper, Stream, StreamWriter

_log = logging.getLogger(__name__)

_BATCH_BITS = 32
"""Of a sequence number: the record's index in its batch; the batch's number is above."""
_READ_BACK = 100
"""Entries that are read at once in search of what an earlier attempt has appended."""


@dataclass(frozen=True)
class Appended(WriterCommitMessage):
    """A task's message to the driver: records that it appended, and that were there already."""

    stream: str | None
    records: int
    found: int


def check_streams(options: RecordWriteOptions, *, each_batch: bool = False) -> None:
    """Finds missing streams before any task does. `each_batch`: Spark asks with each batch of a query, which gateways
    that are away for a moment must not end.

    Raises NoSuchLedgerExistsOnMetadataServerException.
    """
    with clients.use(options.gateways, options.client_settings, plans=not each_batch, catches_up=True) as client:
        for name in options.streams:
            opened_stream(client, options, name)


class _Records:
    """The common part of both writers."""

    def __init__(self, options: RecordWriteOptions, column: int) -> None:
        self._options = options
        self._column = column

    def _append(self, source: str, batch: int, batches: Iterator[pa.RecordBatch]) -> Appended:
        rows = chunks(batches, self._column)
        first = next(rows, None)
        if first is None:
            return Appended(None, 0, 0)
        context = TaskContext.get()
        partition = 0 if context is None else context.partitionId()
        options, names = self._options, self._options.streams
        if partition >= len(names):
            raise OptionError(
                f"the frame has more partitions than the sink has streams, which are {len(names)}: coalesce or "
                "repartition it (by a key, whose records stay in order then), or set streamPartitions"
            )
        with clients.use(options.gateways, options.client_settings) as client:
            stream = opened_stream(client, options, names[partition])
            with stream.writer(linger_seconds=0.05) as writer:
                task = _TaskRecords(client, options, stream, writer, f"spark.{source}.{partition}", batch)
                appended, found = task.append(first, rows)
        return Appended(stream.name, appended, found)


class BatchRecords(_Records, DataSourceArrowWriter):
    """`df.write.format("bookkeeper").option("stream", …)`."""

    def __init__(self, options: RecordWriteOptions, column: int) -> None:
        super().__init__(options, column)
        self._write = options.write_id or str(uuid.uuid4())

    @plain_errors
    def write(self, iterator: Iterator[pa.RecordBatch]) -> Appended:
        """Appends the rows of a task. Runs in the task."""
        return self._append(self._write, 0, iterator)

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        """Nothing to do: what was acknowledged is there."""

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        """Nothing to do: a stream takes nothing back."""


class StreamRecords(_Records, DataSourceStreamArrowWriter):
    """`df.writeStream.format("bookkeeper").option("stream", …)`."""

    @plain_errors
    def write(self, iterator: Iterator[pa.RecordBatch]) -> Appended:
        """Appends the rows of a task. Runs in the task."""
        query, batch, _ = query_of_task()
        return self._append(query, batch, iterator)

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        """Nothing to do: what was acknowledged is there."""

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        """Nothing to do: Spark repeats the batch, which goes on where this attempt ended."""


class _TaskRecords:
    """One attempt of a task, as the stream's writer."""

    def __init__(
        self,
        client: BookKeeper,
        options: RecordWriteOptions,
        stream: Stream,
        writer: StreamWriter,
        producer: str,
        batch: int,
    ) -> None:
        self._client = client
        self._options = options
        self._stream = stream
        self._writer = writer
        self._producer = producer
        self._first = batch << _BATCH_BITS
        self._end = (batch + 1) << _BATCH_BITS

    def append(self, first: list[bytes], rows: Iterator[list[bytes]]) -> tuple[int, int]:
        """Appends the rows that the stream has not. Returns how many were appended, and how many were there."""
        last = self._writer.last_sequence(self._producer)
        if last is not None and last >= self._end:
            raise IllegalOpException(
                f"stream {self._stream.name!r} has batch {last >> _BATCH_BITS} of this query, and this is batch "
                f"{self._first >> _BATCH_BITS}: its checkpoint is an older copy; give the query a new one"
            )
        following = self._first if last is None else max(self._first, last + 1)
        earlier = self._earlier(following - 1)
        found = earlier.total()
        following = self._append_new(first, earlier, following)
        for chunk in rows:
            following = self._append_new(chunk, earlier, following)
        if left := earlier.total():
            # They can't be taken back. To fail would stop the query for good.
            log_event(_log, "sink_rows_changed", logging.WARNING, stream=self._stream.name, records=left)
        return following - self._first - found, found - left

    def _append_new(self, rows: Sequence[bytes], earlier: Counter[bytes], following: int) -> int:
        """Returns the sequence number that follows."""
        new = [row for row in rows if not _taken(earlier, row)] if earlier else rows
        if following + len(new) > self._end:
            raise WriteException(f"a partition of a batch has at most {1 << _BATCH_BITS} rows: repartition the frame")
        if new:
            self._writer.append_all(new, producer=self._producer, first_sequence=following)
        return following + len(new)

    def _earlier(self, last: int) -> Counter[bytes]:
        """Digests of the records that earlier attempts have appended."""
        search = EarlierRecords(self._producer, self._first, last)
        if search.is_complete:
            return Counter()
        with self._client.open_ledger(self._stream.ledger_id, self._options.password) as handle:
            end = handle.read_last_confirmed()
            while end >= handle.first_entry_id and not search.is_complete:
                start = max(handle.first_entry_id, end - _READ_BACK + 1)
                for entry in reversed(list(handle.read(start, end))):
                    if not search.is_complete:
                        search.take(decode_stream_entry(entry.payload))
                end = start - 1
        return search.found()


def _taken(earlier: Counter[bytes], row: bytes) -> bool:
    """Whether the row is one of those; it is none of them any more then. Once there are none, no row is hashed."""
    digest = record_digest(row)
    count = earlier.pop(digest, 0)
    if count > 1:
        earlier[digest] = count - 1
    return count > 0
