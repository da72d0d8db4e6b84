"""The journal, which makes requests durable before they are acknowledged.

One thread owns the current file. It takes everything queued, appends it with one padding record at the end, syncs the
file once, and only then reports those requests as `stored`, in the order of their arrival. A batch is in one file; the
next file is begun between batches. An acknowledgement is therefore never sent before the file that holds its record is
synced, including when the file changes (S5, F1).

A record with a deferred sync is acknowledged once it is written, before the sync: it survives a kill, but a loss of
power may take it back until a later `force` of its ledger is acknowledged, which follows the sync of everything queued
before.

With a group wait, a flush begins when its oldest request has waited that long, or when enough bytes or records are
queued; without, as soon as the thread is free, with everything queued during the previous flush.

Queueing never blocks; `is_full` says when to stop, `capacity_available` when to continue.

`synced_mark` is the end of what is synced; it advances after the sync and before the completions are reported.

A process always begins a new file and never appends to one of an earlier process. `release_preallocation` truncates the
space allocated ahead: on a disk short of space, the flush of journaled entries may need it.

A write that finds no space stalls the journal, if `not_stored` says to try again: that event takes the completions of
everything queued, which are never acknowledged; nothing more is accepted; the records themselves stay, in order, so
that anything accepted later follows them (a repeated fence follows the first one). `retry` tries again, and
`space_restored` is reported once everything queued is durable. What the failed write left in the file is truncated. A
start that finds no space for the first file is such a stall as well, with nothing queued.

Any other error ends the thread: it is reported as `failed`, nothing more is acknowledged, and a sync is never repeated,
since the kernel may have dropped the pages that it failed to write. This includes a sync that finds no space.

Not its job: the file itself (`file`), the contents of records (`format`), replay, deciding which files may be deleted
(`checkpoint`).
"""

from __future__ import annotations

import errno
import logging
from collections.abc import Sequence
from pathlib import Path

from bookgate.bookie.journal import format as fmt
from bookgate.bookie.journal.file import JournalFile, list_journals
from bookgate.bookie.journal.format import LogMark
from bookgate.bookie.journal.options import JournalOptions
from bookgate.bookie.statistics import JournalStatistics
from bookgate.bookie.storage_events import Completion, Retry, StorageEvents
from bookgate.bookie.system.files import FileSystem, StorageStoppedException, is_no_space
from bookgate.bookie.system.threads import REAL_THREADS, RunningThread, Threads
from bookgate.runtime.logs import log_event

_log = logging.getLogger(__name__)

_BUSY = float("inf")
_BATCHES_AHEAD = 3
_FORCE_BYTES = 256
"""Bytes that a request without a record counts in the queue, so that such requests are bounded as well."""


class Journal:
    """The journal of one directory. `append` and `force` from any thread; events come from the journal thread."""

    def __init__(
        self,
        files: FileSystem,
        directory: Path,
        options: JournalOptions,
        events: StorageEvents,
        threads: Threads = REAL_THREADS,
    ) -> None:
        self._files = files
        self._threads = threads
        self._monotonic = threads.monotonic
        self._directory = directory
        self._options = options
        self._events = events
        self._lock = threads.lock()
        self._ready = threads.condition(self._lock)
        self._wake_at: float = _BUSY
        """Queued bytes at which the thread wants to be woken."""
        self._accepting = False
        self._closing = False
        self.statistics = JournalStatistics()
        self._oldest = 0.0
        self._taken_bytes = 0
        self._out_of_space = False
        self._retry = False
        self._release = False
        self._payloads: list[bytes] = []
        self._completions: list[Completion] = []
        self._deferred: list[Completion] = []
        """Completions of records that are acknowledged before their sync."""
        self._queued_bytes = 0
        self._taken_at = 0.0
        self._thread: RunningThread | None = None
        self._file: JournalFile | None = None
        self.synced_mark = fmt.NO_MARK

    def open(self, replayed: LogMark = fmt.NO_MARK) -> None:
        """Begins a new file after the existing ones, and starts the thread.

        Without space for the file the journal begins stalled, unless the directory has no journal file yet: then it
        fails. Otherwise the bookie would run without a journal file, and its next start would take the journal for
        lost.

        Args:
            replayed: The end of the existing files.

        Raises:
            OSError: A file can't be created.
        """
        self.synced_mark = replayed
        existing = list_journals(self._files, self._directory)
        try:
            self._begin(existing)
            self._accepting = True
        except OSError as error:
            if is_no_space(error) and not existing:
                reason = f"{error.strerror}: a bookie does not begin without its first journal file; make room for it"
                raise OSError(error.errno, reason, str(self._directory)) from error
            if not is_no_space(error) or self._events.not_stored((), error) is Retry.NEVER:
                raise
            self._out_of_space = True
            log_event(
                _log,
                "journal_without_space",
                logging.ERROR,
                directory=self._directory,
                error=error,
                note="not even for the first file of this start",
            )
        self._thread = self._threads.start(self._run, "journal")

    def _begin(self, existing: list[int]) -> None:
        journal_id = existing[-1] + 1 if existing else int(self._threads.wall_clock() * 1000) + 1
        self._file = JournalFile(self._files, self._directory, journal_id, self._options)
        self.synced_mark = LogMark(journal_id, self._file.position)

    def append(self, payload: bytes, completion: Completion | None, before_sync: bool = False) -> None:
        """Queues a record.

        Args:
            payload: The record.
            completion: `stored` is called once the record, and everything queued before it, is durable; may be None.
            before_sync: Call `stored` as soon as the record is written, before the sync.

        Raises:
            StorageStoppedException: The journal is not running.
        """
        with self._lock:
            if not self._accepting:
                raise self._stopped()
            self._payloads.append(payload)
            self._queued_bytes += len(payload)
            if completion is not None:
                (self._deferred if before_sync else self._completions).append(completion)
            if self._queued_bytes >= self._wake_at:
                self._ready.notify()

    def append_run(self, payloads: Sequence[bytes], completion: Completion) -> None:
        """Queues records, one after the other; `completion` is `stored` once all are durable. Raises like `append`."""
        size = sum(map(len, payloads))
        with self._lock:
            if not self._accepting:
                raise self._stopped()
            self._payloads += payloads
            self._completions.append(completion)
            self._queued_bytes += size
            if self._queued_bytes >= self._wake_at:
                self._ready.notify()

    def force(self, completion: Completion) -> None:
        """Calls `stored` of `completion` once everything queued before is durable. Raises like `append`."""
        with self._lock:
            if not self._accepting:
                raise self._stopped()
            self._completions.append(completion)
            self._queued_bytes += _FORCE_BYTES
            if self._queued_bytes >= self._wake_at:
                self._ready.notify()

    @property
    def is_full(self) -> bool:
        """Whether the queue has reached its limit; `capacity_available` follows once the queue was taken."""
        return self._queued_bytes >= self._options.queue_limit_bytes

    @property
    def queued(self) -> tuple[int, int, int]:
        """Queued records, queued bytes, and the number of bytes at which `is_full` becomes true."""
        return len(self._payloads), self._queued_bytes, self._options.queue_limit_bytes

    @property
    def last_file_of_queued(self) -> int:
        """No file with a higher id gets a record that is queued, or about to be. Each batch ahead may begin a file: the
        one being written, the one that takes the queue, and the one after it.
        """
        return self.synced_mark.journal_id + _BATCHES_AHEAD

    @property
    def is_sound(self) -> bool:
        """Whether the journal thread runs."""
        return self._thread is not None and self._thread.is_alive()

    @property
    def out_of_space(self) -> bool:
        """Whether the journal is stalled."""
        return self._out_of_space

    def retry(self) -> None:
        """Tries to write again, because there may be space now."""
        with self._ready:
            self._retry = True
            self._ready.notify()

    def release_preallocation(self) -> None:
        """Releases the space allocated ahead, as soon as the thread has nothing to write."""
        with self._ready:
            self._release = True
            self._ready.notify()

    def close(self) -> None:
        """Makes everything queued durable, reports it, and stops the thread."""
        with self._ready:
            self._accepting = False
            self._closing = True
            self._ready.notify()
        if self._thread is not None:
            self._thread.join()
            self._thread = None

    def _stopped(self) -> OSError:
        if self._out_of_space:
            return OSError(errno.ENOSPC, "the journal has no space; nothing is accepted", str(self._directory))
        return StorageStoppedException(f"the journal in {self._directory} is not running; nothing is accepted")

    def _run(self) -> None:
        try:
            if self._file is None:
                self._begin_once_there_is_space()
            while (batch := self._take()) is not None:
                self._commit(*batch)
        except BaseException as error:
            with self._ready:
                self._accepting = False
                self._payloads, self._completions, self._deferred = [], [], []
            log_event(
                _log,
                "journal_failed",
                logging.CRITICAL,
                directory=self._directory,
                error=error,
                note="nothing more is acknowledged",
            )
            self._events.failed(error)
        finally:
            if self._file is not None:
                self._file.close()
                self._file = None

    def _take(self) -> tuple[list[bytes], list[Completion], list[Completion]] | None:
        """Everything queued, after waiting for the first request; None when closed and empty."""
        with self._ready:
            oldest = self._taken_at
            while not self._payloads and not self._completions:
                if self._closing:
                    return None
                if self._release and self._file is not None:
                    self._release = False
                    self._file.cut()
                self._wait(None, wake_at=0)
                oldest = self._monotonic()
            self._wait_for_group(oldest)
            batch = self._payloads, self._completions, self._deferred
            was_full = self.is_full
            self._taken_bytes = self._queued_bytes
            self._payloads, self._completions, self._deferred, self._queued_bytes = [], [], [], 0
            self._oldest, self._taken_at = oldest, self._monotonic()
        if was_full:
            self._events.capacity_available()
        return batch

    def _wait_for_group(self, oldest: float) -> None:
        """Lets later requests join until the oldest, queued at `oldest` or later, has waited the configured time."""
        options = self._options
        if options.max_group_wait_seconds <= 0:
            self.statistics.flushes_of_empty_queue += 1
            return
        deadline = oldest + options.max_group_wait_seconds
        while not self._closing and not self._group_is_full():
            remaining = deadline - self._monotonic()
            if remaining <= 0:
                self.statistics.flushes_after_max_wait += 1
                return
            self._wait(remaining, wake_at=0 if options.buffered_entries else options.buffered_writes_bytes)
        self.statistics.flushes_of_full_group += 1

    def _group_is_full(self) -> bool:
        entries = self._options.buffered_entries
        return self._queued_bytes >= self._options.buffered_writes_bytes or 0 < entries <= len(self._payloads)

    def _wait(self, timeout: float | None, *, wake_at: float) -> None:
        self._wake_at = wake_at
        self._ready.wait(timeout)
        self._wake_at = _BUSY

    def _commit(self, payloads: list[bytes], completions: list[Completion], deferred: list[Completion]) -> None:
        if self._file is None:
            raise self._stopped()
        if payloads:
            try:
                self._roll_if_full()
                self._file.append(payloads)
            except OSError as error:
                if not is_no_space(error):
                    raise
                self._stall(error, payloads, completions + deferred)
                return
            times = self._oldest, self._taken_at, self._monotonic()
            self.statistics.batch_written(self._taken_bytes, len(payloads), *times)
            if deferred:
                self._events.stored(deferred)
            self._file.sync()
            mark = LogMark(self._file.journal_id, self._file.position)
            assert mark > self.synced_mark, "the synced mark moves forward only (S5)"
            self.synced_mark = mark
            self.statistics.batch_synced(len(payloads), *times, self._monotonic())
        if completions:
            self._events.stored(completions)
        if self._out_of_space:
            self._go_on()

    def _stall(self, error: OSError, payloads: list[bytes], completions: list[Completion]) -> None:
        """Keeps the records, gives up the completions, and waits for `retry`. Drops the records if the journal is
        closed.
        """
        was_stalled = self._out_of_space
        with self._ready:
            self._out_of_space, self._accepting, self._retry = True, False, False
            self._payloads = payloads + self._payloads
            completions = completions + self._completions + self._deferred
            self._completions, self._deferred = [], []
            self._queued_bytes = sum(map(len, self._payloads))
        if self._file is not None:
            self._file.cut()
        if not was_stalled:
            if self._events.not_stored(completions, error) is Retry.NEVER:
                self._out_of_space = False
                raise error
            log_event(
                _log,
                "journal_without_space",
                logging.ERROR,
                directory=self._directory,
                error=error,
                note="nothing is accepted until it has",
            )
        self._wait_for_retry()
        with self._ready:
            if self._closing:
                log_event(
                    _log,
                    "journal_truncated",
                    logging.WARNING,
                    directory=self._directory,
                    note="records that it had no space for are left out; they were not acknowledged",
                )
                self._payloads = []

    def _wait_for_retry(self) -> None:
        with self._ready:
            while not self._retry and not self._closing:
                self._wait(None, wake_at=0)

    def _begin_once_there_is_space(self) -> None:
        while not self._closing:
            self._wait_for_retry()
            with self._ready:
                self._retry = False
            try:
                self._begin(list_journals(self._files, self._directory))
            except OSError as error:
                if not is_no_space(error):
                    raise
            else:
                self._go_on()
                return

    def _go_on(self) -> None:
        """Resumes after a stall: everything queued when space ran out is durable now."""
        with self._ready:
            self._out_of_space, self._accepting = False, not self._closing
        log_event(_log, "journal_has_space", directory=self._directory)
        self._events.space_restored()

    def _roll_if_full(self) -> None:
        """Begins the next file. The old one contains nothing unsynced, because every batch ends with a sync."""
        if self._file is None or self._file.position <= self._options.max_size_bytes:
            return
        started = self._monotonic()
        assert self.synced_mark.journal_id == self._file.journal_id, "a file is left once it is synced (S5)"
        following = JournalFile(self._files, self._directory, self._file.journal_id + 1, self._options)
        self.statistics.creation.success(self._monotonic() - started)
        self._file.close()
        self._file = following
