"""Checkpoints: cached entries are written to entry log and index, then the mark advances, then old journals may be
deleted.

The order makes a crash at any point harmless (S1):

1. take mark M of each journal, the end of what it has synced;
2. swap the write cache: everything journaled up to M is in the half to be flushed, was flushed before, or is on the
   list of dirty headers, because it entered the cache before it was queued for the journal;
3. write the entries, sorted by ledger and entry, to the entry log; sync it;
4. write index slots and headers; sync them and their names;
5. drop the flushed half; persist each M; delete journal files before it beyond the number kept as backup; forget
   deleted ledgers of which they had the last records (`deleted_ids`).

So the index never refers to anything that the log does not hold durably, and the mark never passes a record whose
entry, key, fence or explicit LAC is not durable elsewhere (S1, S6).

One checkpoint runs at a time; `exclusive` keeps checkpoints out while something else changes the index. The thread
makes one at each interval, or when the active half of the cache is due. After the first error, whoever requested that
checkpoint, there is no further one: the marks stay, `failed` is reported, the half being flushed stays readable. A
later checkpoint would move a mark past data that this one failed to flush.

Lack of space does not end checkpoints, if `not_stored` asks for a retry: the next checkpoint flushes that half again,
in all stores that do not have their part yet, before the other, so that its marks hold for both. It runs at the
interval or with `retry`; once one succeeds, `space_restored` is reported. Data that a replay left in the cache for lack
of space are flushed in the same way.

Journal files before the mark that are kept as backup are deleted too if their disk is full.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from bookgate.bookie.disks import directories
from bookgate.bookie.disks.writable import WritableDirectories
from bookgate.bookie.journal import format as journal_format
from bookgate.bookie.journal.file import list_journals
from bookgate.bookie.journal.format import LogMark
from bookgate.bookie.journal.journal import Journal
from bookgate.bookie.journal.last_mark import mark_file_name, write_mark
from bookgate.bookie.statistics import FlushStatistics
from bookgate.bookie.storage.deleted_ids import DeletedIds
from bookgate.bookie.storage.ledger_descriptor import LedgerDescriptor
from bookgate.bookie.storage.ledger_store import LedgerStore
from bookgate.bookie.storage.options import StorageConfig
from bookgate.bookie.storage.write_cache import Snapshot, Table, WriteCache
from bookgate.bookie.storage_events import Retry, StorageEvents
from bookgate.bookie.system.files import FileSystem, StorageStoppedException, is_no_space
from bookgate.bookie.system.threads import REAL_THREADS, RunningThread, Threads
from bookgate.runtime.logs import log_event

_log = logging.getLogger(__name__)


class Flusher:
    """Steps 2 to 4, and the first half of 5. The next flush repeats a failed one, in the stores that lack it.

    A store that has its part gets nothing again: while the disk of another one is full, each repetition would fill its
    own. What changes meanwhile is in the active half, or deleted in the index.
    """

    def __init__(self, cache: WriteCache, stores: Sequence[LedgerStore]) -> None:
        self._cache = cache
        self._stores = stores
        self._failed: Snapshot | None = None
        self._have_it: set[int] = set()
        """Positions of the stores in which all of their part of `_failed` is durable."""
        self.statistics = FlushStatistics()

    def flush(self) -> bool:
        """Flushes what is cached; everything is durable on return. False if there was nothing."""
        flushed = False
        if self._failed is not None:
            self._write(self._failed)
            flushed = True
        started = time.monotonic()
        snapshot = self._cache.swap()
        self.statistics.snapshots.success(time.monotonic() - started)
        if snapshot.is_empty:
            return flushed
        self._failed = snapshot
        self._write(snapshot)
        return True

    def _write(self, snapshot: Snapshot) -> None:
        # A ledger may have been deleted since a flush of this snapshot failed.
        kept = {ledger: table for ledger, table in snapshot.tables.items() if not ledger.deleted}
        headers = {ledger for ledger in snapshot.headers if not ledger.deleted}
        # The highest LAC and LAFR of an unbounded ledger change with its entries.
        headers.update(ledger for ledger in kept if not ledger.has_header or ledger.term is not None)
        started = time.monotonic()
        for store in range(len(self._stores)):
            if store not in self._have_it:
                self._write_to(store, kept, headers)
                self._have_it.add(store)
        self.statistics.entry_bytes += self._cache.flushing_bytes
        self.statistics.sizes.record_value(self._cache.flushing_bytes)
        self._cache.drop_flushing()
        self._failed = None
        self._have_it.clear()
        self.statistics.flushes.success(time.monotonic() - started)
        self.statistics.entries += sum(map(len, kept.values()))

    def _write_to(self, store: int, kept: dict[LedgerDescriptor, Table], headers: set[LedgerDescriptor]) -> None:
        """Writes the part of one store, and all to the only one."""
        count = len(self._stores)
        if count > 1:
            kept = {ledger: table for ledger, table in kept.items() if ledger.number % count == store}
            headers = {ledger for ledger in headers if ledger.number % count == store}
        if count == 1 or kept or headers:
            self._stores[store].flush(kept, headers)
        # At once: whoever needs a header written again resets this, also before the other stores have their part.
        for ledger in headers:
            ledger.has_header = True


class SpaceTolerantFlusher:
    """Flushes until a flush finds no space; then everything stays in the cache. For a start on a full disk.

    `not_stored` decides whether to continue; otherwise the error is raised.
    """

    def __init__(self, flusher: Flusher, events: StorageEvents) -> None:
        self._flusher = flusher
        self._events = events
        self.out_of_space = False

    def flush(self) -> None:
        if not self.out_of_space:
            self.attempt(self._flusher.flush)

    def attempt(self, write: Callable[[], object]) -> None:
        """Runs `write`, and records whether it found no space."""
        try:
            write()
        except OSError as error:
            if not is_no_space(error) or self._events.not_stored((), error) is Retry.NEVER:
                raise
            self.out_of_space = True
            log_event(
                _log,
                "replay_without_space",
                logging.ERROR,
                error=error,
                note="what it brings back stays in memory for now",
            )


class Checkpointer:
    """Runs checkpoints, on its own thread once started."""

    def __init__(
        self,
        files: FileSystem,
        flusher: Flusher,
        journals: Sequence[Journal],
        config: StorageConfig,
        events: StorageEvents,
        disks: WritableDirectories,
        deleted: DeletedIds,
        threads: Threads = REAL_THREADS,
    ) -> None:
        self._files = files
        self._threads = threads
        self._flusher = flusher
        self._journals = journals
        self._journal_directories = config.journal_directories
        self._ledger_directories = config.ledger_directories
        self._backups = config.journal_max_backups
        self._interval = config.flush_interval_seconds
        self._events = events
        self._disks = disks
        self._deleted = deleted
        self._unsynced_removals: set[Path] = set()
        self._out_of_space = False
        self._running = threads.lock()
        self._broken = False
        self._persisted = [journal_format.NO_MARK] * len(journals)
        self._wake = threads.condition()
        self._requested = False
        self._closing = False
        self._thread: RunningThread | None = None

    def start(self, persisted: Sequence[LogMark], *, out_of_space: bool = False) -> None:
        """Starts the thread; `persisted` are the marks on disk. With `out_of_space` the replay could not flush."""
        assert len(persisted) == len(self._journals), "a mark for each journal"
        self._persisted = list(persisted)
        self._out_of_space = out_of_space
        self._thread = self._threads.start(self._run, "checkpoint")

    def request(self) -> None:
        """Requests a checkpoint from the thread now."""
        if self._requested:
            return
        with self._wake:
            self._requested = True
            self._wake.notify()

    @contextmanager
    def exclusive(self) -> Iterator[None]:
        """Keeps checkpoints out; waits for a running one."""
        with self._running:
            yield

    def checkpoint(self) -> None:
        """Makes a checkpoint; blocks until it is complete.

        Raises OSError, after which there is no further checkpoint, except after lack of space.
        """
        with self._running:
            if self._broken:
                raise StorageStoppedException("an earlier checkpoint failed; the journal is kept, no other is made")
            self._broken = True
            self._checkpoint()
            self._broken = False
            was_out_of_space, self._out_of_space = self._out_of_space, False
        if was_out_of_space:
            log_event(_log, "checkpoint_has_space")
            self._events.space_restored()

    @property
    def out_of_space(self) -> bool:
        """Whether the last checkpoint found no space."""
        return self._out_of_space

    def retry(self) -> None:
        """Repeats a checkpoint that found no space."""
        with self._wake:
            self._wake.notify()

    def _checkpoint(self) -> None:
        started = time.monotonic()
        try:
            marks = [journal.synced_mark for journal in self._journals]
            if self._flusher.flush():
                self._events.capacity_available()
            for journal, mark in enumerate(marks):
                self._complete(journal, mark)
            self._flusher.statistics.checkpoints.success(time.monotonic() - started)
        except BaseException as error:
            self._flusher.statistics.checkpoints.failure(time.monotonic() - started)
            if not isinstance(error, OSError) or not self._may_try_again(error):
                log_event(_log, "checkpoint_failed", logging.CRITICAL, error=error, note="the journal is kept")
                self._events.failed(error)
            raise

    def _may_try_again(self, error: OSError) -> bool:
        if not is_no_space(error):
            return False
        was_out_of_space, self._out_of_space = self._out_of_space, True
        if not was_out_of_space:
            if self._events.not_stored((), error) is Retry.NEVER:
                self._out_of_space = False
                return False
            for journal in self._journals:
                journal.release_preallocation()
            log_event(
                _log,
                "checkpoint_without_space",
                logging.ERROR,
                error=error,
                note="the journal is kept, and it is tried again",
            )
        self._broken = False
        return True

    def _complete(self, journal: int, mark: LogMark) -> None:
        """The end of step 5 for one journal. Marks never move back."""
        directory = self._journal_directories[journal]
        is_full = self._disks.is_full_journal_directory(directory)
        assert mark <= self._journals[journal].synced_mark, "a checkpoint never claims what is not synced"
        if mark > self._persisted[journal]:
            name = mark_file_name(journal, len(self._journal_directories))
            write_mark(self._files, self._ledger_directories, mark, name)
            self._persisted[journal] = mark
        elif not is_full:
            return
        backups = 0 if is_full else self._backups
        first = self._remove_journals(directories.current(directory), self._persisted[journal], backups)
        self._deleted.forget(journal, first, self._journals[journal].last_file_of_queued)

    def _remove_journals(self, directory: Path, mark: LogMark, backups: int) -> int:
        """Returns the id of the first file that is left."""
        assert backups >= 0
        old = [journal_id for journal_id in list_journals(self._files, directory) if journal_id < mark.journal_id]
        gone = old[: max(0, len(old) - backups)]
        for journal_id in gone:
            self._unsynced_removals.add(directory)
            self._files.unlink(directory / journal_format.file_name(journal_id))
        if directory in self._unsynced_removals:
            # After a loss of power none comes back: what was deleted here is forgotten with its records.
            self._files.sync_directory(directory)
            self._unsynced_removals.discard(directory)
        return old[len(gone)] if len(gone) < len(old) else mark.journal_id

    @property
    def is_sound(self) -> bool:
        """Whether the thread runs and no checkpoint has failed for good."""
        return self._thread is not None and self._thread.is_alive()

    def stop(self) -> None:
        """Ends the thread after the current checkpoint, if any."""
        with self._wake:
            self._closing = True
            self._wake.notify()
        if self._thread is not None:
            self._thread.join()
            self._thread = None

    def _run(self) -> None:
        while self._wait():
            try:
                self.checkpoint()
            except BaseException:  # the checkpoint has reported it
                if self._broken:
                    return

    def _wait(self) -> bool:
        """Waits for a request or the interval; False when closing."""
        with self._wake:
            if not self._requested and not self._closing:
                self._wake.wait(self._interval)
            self._requested = False
            return not self._closing
