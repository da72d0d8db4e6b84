"""The sink `bookkeeper`, for batch and streaming writes: what Spark calls. `spark.commit_protocol` is the protocol.

A task appends the rows of its partition, in order, to one ledger, which it creates at its first row: a task without
rows creates none. In a scope other than 0 the task draws the ledger's id, since nobody hands ids out there. It takes
Arrow batches as they come and keeps appends in flight while it prepares the next ones. If it fails, it deletes its
ledger; if it is killed, the next commit does.

Spark pickles writers from process to process, so they hold checked options only. The writer of a batch write is one
object in the driver's planning, in the tasks and at the commit; for a stream it is another one each time. So the tasks
of a stream learn from Spark's own job properties which query and batch they belong to, and report it to the driver.

Source: docs/spark.md#writing; PySpark's `sql/datasource.py`.
"""

from __future__ import annotations

import logging
import secrets
import uuid
from collections.abc import Iterator
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage

from bookgate.ledger.errors import BKException, WriteException
from bookgate.ledger.id_set import signed
from bookgate.ledger.ledger_id import LedgerId
from bookgate.thinclient.spark.commit_protocol import Write, attempt_metadata
from bookgate.thinclient.spark.options.write_options import WriteOptions
from bookgate.thinclient.spark.plain_errors import plain_errors
from bookgate.thinclient.spark.worker_client import clients
from bookgate.thinclient.spark.writing.commit import Committer, Lookups, Written, require_listing
from bookgate.thinclient.spark.writing.query_of_task import query_of_task
from bookgate.thinclient.spark.writing.rows import chunks

if TYPE_CHECKING:
    from bookgate.thinclient.blocking.client import BookKeeper, WriteHandle

_log = logging.getLogger(__name__)

lookups = Lookups()
"""Lookups of this process; Spark usually runs all commits of a query in one process."""


@dataclass(frozen=True)
class TaskMessage(WriterCommitMessage):
    """A task's message to the driver. `written` is None for a task without rows."""

    write: Write
    start: str
    written: Written | None


class _Sink:
    """The common part of both writers."""

    def __init__(self, options: WriteOptions, column: int) -> None:
        self._options = options
        self._column = column

    def _task(self, write: Write, start: str, batches: Iterator[pa.RecordBatch]) -> TaskMessage:
        context = TaskContext.get()
        task = ""
        if context is not None:
            task = f"{context.partitionId()}.{context.attemptNumber()}.{context.taskAttemptId()}"
        with clients.use(self._options.gateways, self._options.client_settings) as client:
            ledger = TaskLedger(client, self._options, attempt_metadata(write, task))
            return TaskMessage(write, start, ledger.write(chunks(batches, self._column)))

    def _commit(self, write: Write, start: str, messages: list[WriterCommitMessage | None]) -> None:
        told = [message for message in messages if isinstance(message, TaskMessage)]
        if len(told) != len(messages) or any(message.write != write for message in told):
            raise WriteException(f"{write} is to be committed, and not every task's message is one of it")
        written = [message.written for message in told if message.written is not None]
        with self._committer(write, start) as committer:
            committer.commit(write, written)

    def _abort(self, write: Write, start: str) -> None:
        with self._committer(write, start) as committer:
            committer.abort(write)

    def _check_rights(self, *, plans: bool, lists_all: bool) -> None:
        options = self._options
        with clients.use(options.gateways, options.client_settings, plans=plans, lists_all=lists_all) as client:
            require_listing(client, options.scope_id)

    @contextmanager
    def _committer(self, write: Write, start: str) -> Iterator[Committer]:
        """A commit is judged by all ledgers of the query, those of drivers with other credentials too. Only a batch
        write without `writeId` has an id that no other driver can have. The tasks closed their ledgers at any gateway,
        so the client catches up.
        """
        options, lists_all = self._options, write.query != start
        with clients.use(options.gateways, options.client_settings, lists_all=lists_all, catches_up=True) as client:
            yield Committer(client, start, lookups, options.scope_id)


class BatchSink(_Sink, DataSourceArrowWriter):
    """`df.write.format("bookkeeper")`."""

    def __init__(self, options: WriteOptions, column: int) -> None:
        super().__init__(options, column)
        self._start = str(uuid.uuid4())
        self._write = Write(options.write_id or self._start)

    def check_rights(self) -> None:
        """Finds out before any task whether the policy would let the commit see what it needs.

        Raises UnauthorizedAccessException.
        """
        self._check_rights(plans=True, lists_all=self._write.query != self._start)

    @plain_errors
    def write(self, iterator: Iterator[pa.RecordBatch]) -> TaskMessage:
        """Writes the rows of a task. Runs in the task."""
        return self._task(self._write, self._start, iterator)

    @plain_errors
    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        """Commits the write. Runs on the driver when all tasks have succeeded."""
        self._commit(self._write, self._start, messages)

    @plain_errors
    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        """Aborts the write. Runs on the driver when the job or the commit has failed."""
        self._abort(self._write, self._start)


class StreamSink(_Sink, DataSourceStreamArrowWriter):
    """`df.writeStream.format("bookkeeper")`."""

    def check_rights(self) -> None:
        """As that of a batch write. Spark asks with each batch, so gateways that are away for a moment are waited for.

        Raises UnauthorizedAccessException.
        """
        self._check_rights(plans=False, lists_all=True)

    @plain_errors
    def write(self, iterator: Iterator[pa.RecordBatch]) -> TaskMessage:
        """Writes the rows of a task. Runs in the task."""
        query, batch, run = query_of_task()
        return self._task(Write(query, batch), run, iterator)

    @plain_errors
    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        """Commits the batch. Runs on the driver when all tasks have succeeded."""
        for message in messages:
            if isinstance(message, TaskMessage):
                self._commit(Write(message.write.query, batchId), message.start, messages)
                return

    @plain_errors
    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        """Aborts the batch. Runs on the driver when it has failed. Without a task's message the write is unknown; see
        `Committer`.
        """
        for message in messages:
            if isinstance(message, TaskMessage):
                self._abort(Write(message.write.query, batchId), message.start)
                return


# Tasks


class TaskLedger:
    """The ledger of one attempt of a task."""

    def __init__(self, client: BookKeeper, options: WriteOptions, metadata: dict[str, bytes]) -> None:
        self._client = client
        self._options = options
        self._metadata = metadata

    def write(self, payloads: Iterator[list[bytes]]) -> Written | None:
        """Appends everything and closes the ledger; None without a payload. Deletes the ledger when that fails."""
        first = next(payloads, None)
        if first is None:
            return None
        ledger = self._create()
        try:
            entries = self._append(ledger, first, payloads)
            ledger.close()
        except BaseException:
            with suppress(BKException):
                self._client.delete_ledger(ledger.ledger_id)
            raise
        return Written(ledger.ledger_id, entries)

    def _create(self) -> WriteHandle:
        options = self._options
        return self._client.create_ledger(
            options.ensemble_size,
            options.write_quorum_size,
            options.ack_quorum_size,
            options.digest_type,
            options.password,
            {**options.custom_metadata, **self._metadata},
            ledger_id=None if options.scope_id == 0 else LedgerId(options.scope_id, signed(secrets.randbits(64))),
        )

    @staticmethod
    def _append(ledger: WriteHandle, first: list[bytes], payloads: Iterator[list[bytes]]) -> int:
        pending: Future[int] = ledger.append_all_future(first)
        entries = len(first)
        for chunk in payloads:
            following = ledger.append_all_future(chunk)
            entries += len(chunk)
            pending.result()
            pending = following
        last = pending.result()
        if last != entries - 1:
            raise WriteException(f"ledger {ledger.ledger_id} ends at entry {last} after {entries} appends")
        return entries
