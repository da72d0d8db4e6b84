"""Checkpoints: cached entries go to the entry log and the index, then the mark moves, then old journals may go.

The order is what makes a crash at any point harmless (S1):

1. take mark M, the end of what the journal has synced;
2. swap the write cache: everything journaled up to M is in the half to flush, flushed before, or on the dirty headers'
   list, for it entered the cache before it was queued to the journal;
3. write the entries, sorted by ledger and entry, to the entry log; sync it;
4. write index slots and headers; sync them and their names;
5. let the flushed half go; persist M; remove journals before M beyond the number kept as backup.

So the index never points at what the log does not durably hold, and the mark never passes a record whose entry, key,
fence or explicit LAC is not durable elsewhere (S1, S6).

One checkpoint runs at a time. The thread makes one every interval, or when the active half of the cache is due. The
first error, whoever asked for that checkpoint, is the last: the mark stays, `on_fatal` is told, the half that was being
flushed stays readable. A later checkpoint would move the mark past what this one failed to flush.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path
from threading import Condition, Lock, Thread

from bookie import directories, journal_format
from bookie.entry_log import EntryLogWriter
from bookie.files import FileSystem, StorageStoppedException
from bookie.index_file import IndexHeader, SlotRun, slot_runs
from bookie.journal import list_journals
from bookie.journal_format import LogMark
from bookie.ledger_cache import LedgerCache
from bookie.stored_ledger import StoredLedger
from bookie.write_cache import Snapshot, WriteCache

_log = logging.getLogger(__name__)


class Flusher:
    """Steps 3 and 4: writes one snapshot of the cache to entry log and index."""

    def __init__(self, cache: WriteCache, log: EntryLogWriter, index: LedgerCache) -> None:
        self._cache = cache
        self._log = log
        self._index = index

    def flush(self) -> bool:
        """Flushes what is cached; everything is durable on return. False when there was nothing."""
        snapshot = self._cache.swap()
        if snapshot.is_empty:
            return False
        slots = self._write_entries(snapshot)
        self._log.sync()
        new = {ledger for ledger in snapshot.tables if not ledger.has_header}
        self._write_index(slots, snapshot.headers | new)
        self._index.sync()
        for ledger in snapshot.headers | new:
            ledger.has_header = True
        self._cache.drop_flushing()
        return True

    def _write_entries(self, snapshot: Snapshot) -> dict[StoredLedger, list[SlotRun]]:
        slots: dict[StoredLedger, list[SlotRun]] = {}
        for ledger in sorted(snapshot.tables, key=_by_id):
            table = snapshot.tables[ledger]
            entry_ids = sorted(table)
            locations = self._log.append(ledger.number, [table[entry_id] for entry_id in entry_ids])
            slots[ledger] = slot_runs(entry_ids, locations)
        return slots

    def _write_index(self, slots: dict[StoredLedger, list[SlotRun]], headers: set[StoredLedger]) -> None:
        for ledger in sorted(slots.keys() | headers, key=_by_id):
            header = None
            if ledger in headers:
                header = IndexHeader(ledger.master_key, ledger.fenced, ledger.explicit_lac)
            self._index.update(ledger.ledger_id, header, slots.get(ledger, ()))

    def close(self) -> None:
        self._log.close()
        self._index.close()


def _by_id(ledger: StoredLedger) -> tuple[int, int]:
    return ledger.ledger_id.scope_id, ledger.number


class Checkpointer:
    """Runs checkpoints, on its own thread once started. `interval` is in seconds.

    `synced_mark` gives the end of what the journal has synced; `on_room` is called after each flush.
    """

    def __init__(
        self,
        files: FileSystem,
        flusher: Flusher,
        journal_directory: Path,
        ledger_directories: tuple[Path, ...],
        *,
        max_backups: int,
        interval: float,
        synced_mark: Callable[[], LogMark],
        on_room: Callable[[], None],
        on_fatal: Callable[[BaseException], None],
    ) -> None:
        self._files = files
        self._flusher = flusher
        self._journal_directory = journal_directory
        self._ledger_directories = ledger_directories
        self._max_backups = max_backups
        self._interval = interval
        self._synced_mark = synced_mark
        self._on_room = on_room
        self._on_fatal = on_fatal
        self._running = Lock()
        self._broken = False
        self._persisted = journal_format.NO_MARK
        self._wake = Condition(Lock())
        self._requested = False
        self._closing = False
        self._thread: Thread | None = None

    def start(self, persisted: LogMark) -> None:
        """Starts the thread; `persisted` is the mark on disk."""
        self._persisted = persisted
        self._thread = Thread(target=self._run, name="checkpoint", daemon=True)
        self._thread.start()

    def request(self) -> None:
        """Asks the thread for a checkpoint now."""
        if self._requested:
            return
        with self._wake:
            self._requested = True
            self._wake.notify()

    def checkpoint(self) -> None:
        """Makes a checkpoint; blocks until it is complete. Raises OSError, after which no other is made."""
        with self._running:
            if self._broken:
                raise StorageStoppedException("an earlier checkpoint failed; the journal is kept, no other is made")
            self._broken = True
            self._checkpoint()
            self._broken = False

    def _checkpoint(self) -> None:
        try:
            mark = self._synced_mark()
            if self._flusher.flush():
                self._on_room()
            self.complete(mark)
        except BaseException as error:
            _log.critical("checkpoint failed, the journal is kept: %s", error)
            self._on_fatal(error)
            raise

    def complete(self, mark: LogMark) -> None:
        """Step 5. Marks never move back."""
        if mark <= self._persisted:
            return
        directories.write_mark(self._files, self._ledger_directories, mark)
        self._persisted = mark
        self._remove_journals(mark)

    def _remove_journals(self, mark: LogMark) -> None:
        directory = directories.current(self._journal_directory)
        old = [journal_id for journal_id in list_journals(self._files, directory) if journal_id < mark.journal_id]
        for journal_id in old[: max(0, len(old) - self._max_backups)]:
            self._files.unlink(directory / journal_format.file_name(journal_id))

    def stop(self) -> None:
        """Ends the thread after the checkpoint it may be making."""
        with self._wake:
            self._closing = True
            self._wake.notify()
        if self._thread is not None:
            self._thread.join()
            self._thread = None

    def _run(self) -> None:
        try:
            while self._wait():
                self.checkpoint()
        except BaseException:  # the checkpoint has told on_fatal
            return

    def _wait(self) -> bool:
        """Waits for a request or the interval; False when closing."""
        with self._wake:
            if not self._requested and not self._closing:
                self._wake.wait(self._interval)
            self._requested = False
            return not self._closing
