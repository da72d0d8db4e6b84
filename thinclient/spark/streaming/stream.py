"""Streaming reads: what Spark calls on the driver; tasks read as those of a batch do.

Spark keeps one reader for the life of a query, in a Python process of its own, and calls it for each trigger:
`latestOffset` (the end of the batch), `reportLatestOffset` (the end of what is available), `partitions`, and finally
`commit`. Copies of it are pickled to the tasks, so it connects on first use. Ledgers keep what was read for as long as
they exist: there is nothing to free at a commit, and after a restart the checkpoint's offsets are the whole state. They
also say whose ledgers they are of: another cluster or scope is refused, and a `startingTimestamp` is the checkpoint's.

`latestOffset` has the parameters of Spark 4.2: without them Spark would silently ignore every limit.

Source: docs/spark.md#streaming; PySpark's `sql/datasource.py`.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)

from bookgate.thinclient.spark.arrow import ENTRIES_SCHEMA
from bookgate.thinclient.spark.offsets import (
    NOTHING,
    End,
    Origin,
    Range,
    StreamOffset,
    advance,
    backlogs,
    behind_latest,
    earliest,
    latest,
    ranges,
    trimmed,
    with_basis,
    without,
)
from bookgate.thinclient.spark.options.read_options import OptionError, Options
from bookgate.thinclient.spark.plain_errors import plain_errors
from bookgate.thinclient.spark.reading.batch import EntriesReader, tasks_of
from bookgate.thinclient.spark.streaming.admission import admit, still_passed_over
from bookgate.thinclient.spark.streaming.available import Available
from bookgate.thinclient.spark.worker_client import clients

if TYPE_CHECKING:
    from bookgate.thinclient.blocking.client import BookKeeper


class EntriesStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """One row per entry, as entries are confirmed."""

    def __init__(self, options: Options, schema: pa.Schema = ENTRIES_SCHEMA) -> None:
        self._options = options
        self._entries = EntriesReader(options, schema)
        self._available = Available(options)
        self._target: dict[int, End] | None = None
        self._ends: dict[int, End] = {}
        self._planned: StreamOffset | None = None
        self._passed_over: dict[int, int] = {}
        self._cluster: str | None = None

    def __getstate__(self) -> dict[str, Any]:
        """Tasks need the options only."""
        return {"_options": self._options.of_tasks(), "_entries": self._entries}

    @plain_errors
    def initialOffset(self) -> dict[str, Any]:  # noqa: N802
        """Where a query without a checkpoint begins."""
        if not self._options.start_at_latest:
            return earliest(self._options.starting_offsets).to_json()
        with clients.plan(self._options.gateways, self._options.client_settings) as client:
            ends, _ = self._available.look(client, NOTHING)
        return latest(ends).to_json()

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        """Spark knows one limit only; where both are set `latestOffset` adds that of bytes."""
        if self._options.max_entries_per_trigger is not None:
            return ReadMaxRows(self._options.max_entries_per_trigger)
        if self._options.max_bytes_per_trigger is not None:
            return ReadMaxBytes(self._options.max_bytes_per_trigger)
        return ReadAllAvailable()

    @plain_errors
    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        """From now on only entries available now are read."""
        with clients.plan(self._options.gateways, self._options.client_settings) as client:
            self._target, _ = self._available.look(client, NOTHING)

    @plain_errors
    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802
        """The end of the next batch; `start` unchanged when there is nothing to read."""
        began = StreamOffset.from_json(start)
        with clients.plan(self._options.gateways, self._options.client_settings) as client:
            began = offset = self._continued(client, began)
            ends, gone = self._available.look(client, began)
        if gone:
            self._available.lose([Range(each, began.next_entries.get(each, 0), None) for each in gone])
            offset = without(began, gone)
        ends = ends if self._target is None else _up_to(ends, self._target)
        self._available.lose_trimmed(trimmed(offset, ends))
        grants = admit(backlogs(offset, ends), *self._limits(limit), self._passed_over)
        self._passed_over = still_passed_over(self._passed_over, grants)
        end = advance(offset, ends, grants)
        self._ends, self._planned = ends, end
        return start if end is offset else with_basis(offset, end, ends, os.cpu_count() or 1).to_json()

    def _continued(self, client: BookKeeper, offset: StreamOffset) -> StreamOffset:
        """The offset with its origin, whose time counts from now on. Raises OptionError if the origin is another one
        than that of the options.
        """
        origin = self._origin(client, offset)
        if origin.since_ms != self._options.starting_timestamp_ms:
            self._options = replace(self._options, starting_timestamp_ms=origin.since_ms)
            self._available = Available(self._options)
            if self._target is not None:
                self._target, _ = self._available.look(client, NOTHING)
        return replace(offset, origin=origin)

    def _origin(self, client: BookKeeper, offset: StreamOffset) -> Origin:
        """That of the offset, if it has one. Raises OptionError."""
        if self._cluster is None:
            self._cluster = client.service_discovery.cluster_info().instance_id
        here = Origin(self._cluster, self._options.scope_id, self._options.starting_timestamp_ms)
        found = here if offset.origin is None else offset.origin
        if (found.cluster, found.scope_id) != (here.cluster, here.scope_id):
            raise OptionError(
                f"the query's checkpoint is of scope {found.scope_id} of the cluster {found.cluster}, and its options "
                f"name scope {here.scope_id} of the cluster {here.cluster}, where ledger ids mean other ledgers: give "
                "the query a new checkpoint"
            )
        return found

    def _limits(self, limit: ReadLimit) -> tuple[int | None, int | None]:
        """Limits of entries and bytes. Trigger.Once asks for everything, whatever the options say."""
        if isinstance(limit, ReadAllAvailable):
            return None, None
        if isinstance(limit, ReadMaxRows):
            return limit.max_rows, self._options.max_bytes_per_trigger
        if isinstance(limit, ReadMaxBytes):
            return self._options.max_entries_per_trigger, limit.max_bytes
        raise OptionError(
            f"the source knows no limit such as {limit!r}: set maxEntriesPerTrigger or maxBytesPerTrigger"
        )

    @plain_errors
    def reportLatestOffset(self) -> dict[str, Any] | None:  # noqa: N802
        """For the query's progress: where everything ends now, and how far the stream is behind."""
        if self._planned is None:
            return None
        left = backlogs(self._planned, self._ends)
        end = advance(self._planned, self._ends, admit(left, None, None))
        return {**end.to_json(), "metrics": behind_latest(self._planned, self._ends)}

    @plain_errors
    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        """The tasks between two offsets; after a restart this may be a batch begun before it."""
        stop = StreamOffset.from_json(end)
        found, basis = ranges(StreamOffset.from_json(start), stop), stop.basis
        with clients.plan(self._options.gateways, self._options.client_settings) as client:
            self._origin(client, stop)
            slices = self._available.slices(client, found, {} if basis is None else basis.sizes)
            unfinished = {piece.ledger_id for piece in found if piece.last is not None}
            return tasks_of(client, slices, self._options, None if basis is None else basis.cores, unfinished)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The entries of a task, as record batches. Runs in the task."""
        return self._entries.read(partition)

    def commit(self, end: dict[str, Any]) -> None:
        """Nothing to free."""

    def stop(self) -> None:
        """Nothing to end: the process's client is kept for the next query."""


def _up_to(ends: dict[int, End], target: dict[int, End]) -> dict[int, End]:
    """The target's ends for ledgers that still exist, without what was trimmed since. A ledger that was open then is
    not done now.
    """
    return {each: replace(target[each], first_entry_id=ends[each].first_entry_id) for each in ends if each in target}
