"""Storage of one bookie: a writer and a reader for its ledgers, and the lifecycle of everything that these use.

An entry is accepted into the write cache, queued to the journal, and acknowledged (its completion is `stored`) once the
journal is synced. A checkpoint later moves it to entry log and index. Reads look into the write cache, then the index,
then the entry log.

States: new → open (directories locked, journal replayed, threads running) → closed; or failed after the first disk
error of journal or checkpoint, which is reported once as `failed`, and after which nothing more is accepted or
acknowledged.

`writer` writes, `reader` reads, `ledger_table` has the known ledgers. This module adds the lifecycle: start-up
and journal replay, checkpoints, disk errors and full disks, ledger deletion, limits. A ledger loaded from its index
header has its stored key (S7). A ledger belongs to journal `ledgerId mod n`, which has its own thread and mark.

Threads: the event loop calls everything unless a method says otherwise; `storage_events` says where events come from.

Not its job: whether a request is allowed (`ledger_state`, `protocol.admission`), the wire, which ledgers exist in the
metadata.
"""

from __future__ import annotations

import heapq
import logging
from array import array
from bisect import bisect_left
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager

from bookgate.bookie.disks import directories
from bookgate.bookie.disks.directories import DirectoryLock
from bookgate.bookie.disks.rules import DirectoryUsage
from bookgate.bookie.disks.writable import AllDirectories, WritableDirectories
from bookgate.bookie.journal.format import NO_MARK, LogMark
from bookgate.bookie.journal.journal import Journal
from bookgate.bookie.journal.last_mark import is_last_here, mark_file_name, write_mark
from bookgate.bookie.statistics import FlushStatistics, StorageStatistics, StoreStatistics
from bookgate.bookie.storage.checkpoint import Checkpointer, Flusher, SpaceTolerantFlusher
from bookgate.bookie.storage.closed_before import closed_before
from bookgate.bookie.storage.deleted_ids import DeletedIds
from bookgate.bookie.storage.fails_once import FailsOnce
from bookgate.bookie.storage.ledger_descriptor import LedgerDescriptor
from bookgate.bookie.storage.ledger_store import LedgerStore, store_of
from bookgate.bookie.storage.ledger_table import LedgerTable
from bookgate.bookie.storage.limbo import Limbo
from bookgate.bookie.storage.open_stores import open_stores
from bookgate.bookie.storage.options import StorageConfig
from bookgate.bookie.storage.reader import EntryReader
from bookgate.bookie.storage.recently_deleted import FencedAndDeleted
from bookgate.bookie.storage.replay import Replay
from bookgate.bookie.storage.replay_start import starts_of_replay
from bookgate.bookie.storage.write_cache import WriteCache
from bookgate.bookie.storage.writer import EntryWriter
from bookgate.bookie.storage_events import StorageEvents
from bookgate.bookie.system.data_loss import OnLoss, print_loss, refuse_loss
from bookgate.bookie.system.files import (
    REAL_FILE_SYSTEM,
    FileSystem,
    StorageCorruptException,
    StorageStoppedException,
    is_no_space,
)
from bookgate.bookie.system.threads import REAL_THREADS, Threads
from bookgate.ledger.ledger_id import MAX_UNSCOPED, LedgerId
from bookgate.ledger.ledger_numbers import LedgerNumbers
from bookgate.runtime.logs import log_event

__all__ = [
    "DirectoryUsage",
    "LedgerStorage",
    "StorageConfig",
    "StorageCorruptException",
    "StorageStoppedException",
]

_log = logging.getLogger(__name__)

_MOST_ASKED_FOR = 10_000
"""Maximum number of requested `closed_before` ledgers that are remembered for a check of their metadata."""


class LedgerStorage:
    """Methods raise OSError for disk errors and StorageStoppedException if storage is not open."""

    ledgers: LedgerTable
    """The known ledgers; set while open, like the next two."""
    reader: EntryReader
    writer: EntryWriter

    def __init__(
        self,
        config: StorageConfig,
        events: StorageEvents,
        files: FileSystem = REAL_FILE_SYSTEM,
        threads: Threads = REAL_THREADS,
        disks: WritableDirectories | None = None,
    ) -> None:
        """`disks` selects the directories that may be written, by default all of them."""
        self._config = config
        self._files = files
        self._threads = threads
        self._disks = disks or AllDirectories(config.ledger_directories, config.index_directories)
        self._owner_events = events
        self._events = FailsOnce(events, threads)
        self.needs_journal = True
        """False once storage was closed with all data in entry logs and index."""
        self.stores: tuple[LedgerStore, ...] = ()
        """Index and entry logs, while open."""
        self._lock: DirectoryLock | None = None
        self._deleted = FencedAndDeleted(threads.monotonic)
        self.limbo_marks = Limbo(files, config.ledger_directories, threads)
        self._closed_before = closed_before(files, config.ledger_directories)
        self._asked_for: set[int] = set()
        self._cache = WriteCache(config.write_cache_bytes)
        self._journals = tuple(
            Journal(files, directories.current(path), config.each_journal(), self._events, threads)
            for path in config.journal_directories
        )
        self._checkpointer: Checkpointer | None = None
        self._flush_statistics = FlushStatistics()
        self._store_statistics = StoreStatistics()

    @property
    def config(self) -> StorageConfig:
        return self._config

    # Life

    def lock_directories(self) -> None:
        """Creates the directories if necessary and locks them for this process. `open` calls it if that was not done.

        Raises DirectoryException naming the directory.
        """
        if self._lock is None:
            config = self._config
            paths = (*config.journal_directories, *config.ledger_directories, *config.index_directories)
            for path in paths:
                directories.prepare(path, self._files)
            self._lock = DirectoryLock(paths, self._files)

    def open(self, accept_loss: Collection[int] | None = None) -> None:
        """Blocking: locks, replays the journals, flushes, persists the marks, and starts the threads.

        If the files prove a loss of acknowledged data, or are damaged, it raises and changes nothing; with
        `accept_loss` it continues with the existing data. The given numbers are ledgers that may have lost data: they,
        and all of which something is here, are in limbo from then on, whether or not there is proof.

        If there is no space, and `not_stored` asks for a retry, replayed data stay in memory, the marks stay, and
        storage is open and `out_of_space`; it continues as after any other write without space.

        Raises DirectoryException, LostDataException, StorageCorruptException or another OSError; the directories are
        then unlocked.
        """
        self.lock_directories()
        try:
            self._open(accept_loss)
        except BaseException:
            for journal in self._journals:
                journal.close()
            self._release()
            raise

    def _open(self, accept_loss: Collection[int] | None) -> None:
        config = self._config
        on_loss = refuse_loss if accept_loss is None else print_loss
        self.limbo_marks.load(on_loss)
        self._closed_before.load(on_loss)
        if accept_loss is not None:
            # Durable before a replay removes the proof of the loss.
            self.limbo_marks.add(accept_loss)
        starts = starts_of_replay(self._files, config, on_loss)
        trusted = is_last_here(self._files, config.ledger_directories, len(config.journal_directories))
        self.stores = open_stores(config, self._files, self._disks, self._store_statistics, self._threads)
        self._find_lost(trusted, on_loss)
        deleted_ids = DeletedIds(len(self._journals))
        self.ledgers = LedgerTable(
            self.stores, config.ledger_state_limit, self._threads, self.limbo_marks, self._closed_before, deleted_ids
        )
        flusher = Flusher(self._cache, self.stores)
        self._flush_statistics = flusher.statistics
        tolerant = SpaceTolerantFlusher(flusher, self._events)
        self.reader = EntryReader(self._cache, self.ledgers, self.stores)
        replays = [
            self._replay(journal, mark, tolerant, accept_loss is not None) for journal, mark in enumerate(starts)
        ]
        for _, _, passed_over in replays:
            self.ledgers.deleted_before(passed_over)
        if accept_loss is not None:
            # Before the marks move: a crash in between finds the loss as it was.
            held = [*self.ledger_ids(), *self.scoped_ledgers()]
            self.ledgers.enter_limbo(self.limbo_marks.add_held(held))
        checkpointer = Checkpointer(
            self._files, flusher, self._journals, config, self._events, self._disks, deleted_ids, self._threads
        )
        self.writer = EntryWriter(
            self._cache,
            self._journals,
            self.ledgers,
            checkpointer,
            self._events,
            journal_entries=config.journal_entries,
        )
        for journal, (_, end, _) in zip(self._journals, replays, strict=True):
            journal.open(end)
        marks = [self._persist_beginning(number, mark, tolerant) for number, (mark, _, _) in enumerate(replays)]
        self._checkpointer = checkpointer
        checkpointer.start(marks, out_of_space=tolerant.out_of_space)

    def _find_lost(self, trusted: bool, on_loss: OnLoss) -> None:
        """Puts ledgers that are missing in the index in limbo, whatever the journal still holds of them (S8)."""
        for store in self.stores:
            lost = store.index.find_lost(trusted, on_loss)
            self.limbo_marks.add_lost(lost)
            store.index.forget(lost)

    def _replay(
        self, journal: int, mark: LogMark, flusher: SpaceTolerantFlusher, accept_loss: bool
    ) -> tuple[LogMark, LogMark, set[LedgerId]]:
        """Replays one journal from its mark into the stores. Returns the mark, the end of the journal, and the ledgers
        that were passed over.
        """
        # Without a mark it begins with files of a time of which nothing is known; and parts of it may be passed over.
        config = self._config
        is_whole = mark != NO_MARK and not accept_loss and not config.skip_invalid_records
        directory = directories.current(config.journal_directories[journal])
        replay = Replay(
            self._files,
            directory,
            self.ledgers,
            self._cache,
            flusher,
            self.reader.held_entry,
            skip_invalid=config.skip_invalid_records,
            accept_loss=accept_loss,
            all_follows=config.journal_entries and is_whole,
        )
        end = max(mark, replay.run(mark))
        return mark, end, replay.passed_over

    def _persist_beginning(self, journal: int, replayed: LogMark, flusher: SpaceTolerantFlusher) -> LogMark:
        """Sets the mark to the present beginning of the journal, after all replayed data are in the stores. Returns it.

        So a mark never points at data that a killed process wrote but did not sync, and no journal lacks a mark,
        without which the loss of its first file would not be noticed. Without space the mark stays.
        """
        begun = self._journals[journal]
        if flusher.out_of_space or begun.out_of_space:
            return replayed
        name = mark_file_name(journal, len(self._journals))
        mark = begun.synced_mark
        flusher.attempt(lambda: write_mark(self._files, self._config.ledger_directories, mark, name))
        return replayed if flusher.out_of_space else mark

    def checkpoint(self) -> None:
        """Blocking: makes all data that are durable in the journal durable in entry log and index."""
        self._running_checkpointer().checkpoint()

    @contextmanager
    def exclusive(self) -> Iterator[None]:
        """Holds the checkpoint lock, so that no flush runs meanwhile; for other code that changes the index
        (compaction).

        An OSError in the block ends storage, like that of a checkpoint: after a failed sync the durable state of the
        index is unknown. Damage found by the block, and lack of space, do not. Raises StorageStoppedException.
        """
        with self._running_checkpointer().exclusive():
            self._running_checkpointer()  # the previous holder of the lock may have failed
            try:
                yield
            except (StorageCorruptException, StorageStoppedException):
                raise
            except OSError as error:
                if not is_no_space(error):
                    self._events.failed(error)
                raise

    def _running_checkpointer(self) -> Checkpointer:
        if self._checkpointer is None or self._events.have_failed:
            raise StorageStoppedException("storage is not open; no checkpoint can be made")
        return self._checkpointer

    def close(self) -> None:
        """Blocking: acknowledges queued records, makes a last checkpoint, and unlocks the directories."""
        try:
            if self._checkpointer is not None:
                self._checkpointer.stop()
                for journal in self._journals:
                    journal.close()
                if not self._events.have_failed:
                    self._last_checkpoint(self._checkpointer)
        finally:
            self._checkpointer = None
            self._release()

    def _last_checkpoint(self, checkpointer: Checkpointer) -> None:
        """Makes the last checkpoint; data that find no space are replayed from the journal at the next start."""
        try:
            checkpointer.checkpoint()
            self.needs_journal = False
        except OSError as error:
            if not checkpointer.out_of_space:
                raise
            log_event(
                _log,
                "storage_closed_early",
                logging.WARNING,
                error=error,
                note="there is no last checkpoint; the journal has the rest",
            )

    def statistics(self) -> StorageStatistics:
        """The counters of all parts, for metrics."""
        ahead = [store.logs.read_ahead_usage for store in self.stores]
        return StorageStatistics(
            [(journal.statistics, journal.queued) for journal in self._journals],
            self._flush_statistics,
            self._cache.usage,
            self._store_statistics,
            sum(store.index.cached_pages for store in self.stores),
            (sum(entries for entries, _ in ahead), sum(size for _, size in ahead)),
        )

    @property
    def is_sound(self) -> bool:
        """Whether no part has failed and every thread runs."""
        parts = (self._checkpointer, *self._journals)
        return not self._events.have_failed and all(part is not None and part.is_sound for part in parts)

    @property
    def out_of_space(self) -> bool:
        """Whether a write that found no space has yet to succeed."""
        checkpoints = self._checkpointer is not None and self._checkpointer.out_of_space
        return checkpoints or any(journal.out_of_space for journal in self._journals)

    def retry(self) -> None:
        """Repeats writes that found no space."""
        for journal in self._journals:
            if journal.out_of_space:
                journal.retry()
        if self._checkpointer is not None and self._checkpointer.out_of_space:
            self._checkpointer.retry()

    def _release(self) -> None:
        for store in self.stores:
            store.close()
        if self._lock is not None:
            self._lock.release()
            self._lock = None

    # Limbo

    @property
    def synced_marks(self) -> list[LogMark]:
        """The end of what each journal has synced."""
        return [journal.synced_mark for journal in self._journals]

    def is_in_limbo(self, number: int) -> bool:
        """Whether a ledger is in limbo, even if it is not known here."""
        return number in self.limbo_marks

    def may_have_held(self, number: int) -> bool:
        """Whether a ledger that is not known here is in limbo, or was closed before this bookie began.

        The bookie never says that such a ledger does not exist, and no writer's request creates it.
        """
        if number in self.limbo_marks:
            return True
        if number not in self._closed_before:
            return False
        if len(self._asked_for) < _MOST_ASKED_FOR:
            self._asked_for.add(number)
        return True

    def asked_for(self) -> list[int]:
        """Ledgers that were closed before this bookie began, and were requested here since the last call."""
        asked, self._asked_for = self._asked_for, set()
        return sorted(asked)

    def begin_again(self, numbers: Collection[int]) -> None:
        """Blocking: removes ids from `closed_before` that belong to new, open ledgers now. Raises OSError."""
        self._closed_before.replace(self._closed_before.numbers - LedgerNumbers(numbers))

    def limbo(self) -> list[int]:
        """Numbers of all ledgers in this bookie's list of limbo, ascending."""
        return self.limbo_marks.numbers()

    def leave_limbo(self, numbers: Collection[int], closed_elsewhere: Collection[int] = ()) -> None:
        """Blocking: releases verified ledgers from limbo. Raises OSError.

        Those of `closed_elsewhere` are closed and name other bookies now. They are listed in `closed_before` first,
        since a fence may be among what this bookie has lost, and it need hold nothing of them that could be fenced.
        """
        if closed_elsewhere:
            self._closed_before.replace(self._closed_before.numbers | LedgerNumbers(closed_elsewhere))
        self.limbo_marks.remove(numbers)
        self.ledgers.leave_limbo(numbers)

    # Deleting

    @contextmanager
    def watch_writes(self, numbers: Sequence[int]) -> Iterator[None]:
        """Within the block, `delete_ledgers` with `unwritten` leaves out ledgers that are written to from now on.

        There is one block at a time: that of garbage collection, which verifies in it that the metadata lack the
        ledgers.
        """
        self._cache.watch(numbers)
        try:
            yield
        finally:
            self._cache.watch(())

    def delete_ledgers(self, numbers: Sequence[int], *, unwritten: bool = False) -> list[int]:
        """Blocking: durably deletes ledgers by their number; garbage collection later removes their bytes in entry
        logs.

        With `unwritten`, only ledgers without writes since `watch_writes`. Returns the deleted ledgers. Cached entries
        are dropped as well. A replay may restore a ledger from records that are still in the journal.
        Raises OSError, StorageStoppedException; what was deleted by then is gone, durably after the next write of the
        index.
        """
        gone = list[int]()
        durably = False
        with self.exclusive():
            try:
                self._delete_in_index(numbers, unwritten, gone)
                for store in self.stores:
                    store.index.sync()
                durably = True
            finally:
                # Even without space: a ledger created again under such an id must be found once it is flushed, and has
                # nothing of the former one, such as its owner.
                self.ledgers.deleted(durably=durably)
                self._owner_events.ledgers_deleted(gone)
        return gone

    def _delete_in_index(self, numbers: Sequence[int], unwritten: bool, gone: list[int]) -> None:
        """Adds to `gone` what is deleted, also where it ends with an error."""
        forgotten = list[dict[int, int]]()
        try:
            forgotten.extend(store.index.forget(numbers) for store in self.stores)
            gone.extend(number for number in numbers if self._delete(number, unwritten))
        finally:
            for store, listed in zip(self.stores, forgotten, strict=False):
                store.index.put_back({number: listed[number] for number in listed.keys() - set(gone)})

    def delete_below(self, number: int, entry_id: int) -> bool:
        """Blocking: durably deletes the entries of a ledger below an id from the index, but not the last one held;
        garbage collection later removes their bytes in entry logs. What is not flushed yet stays for the next time.

        Returns whether there was one. Raises OSError, StorageStoppedException.
        """
        index = store_of(self.stores, number).index
        ledger_id = LedgerId.of_number(number)
        if next(index.entry_ids(ledger_id), entry_id) >= entry_id:
            return False
        with self.exclusive():
            index.delete_below(ledger_id, entry_id)
            index.sync()
        return True

    def _delete(self, number: int, unwritten: bool) -> bool:
        def discard(ledger: LedgerDescriptor | None) -> bool:
            if unwritten:
                return self._cache.discard_unwritten(number, ledger)
            if ledger is not None:
                self._cache.discard(ledger)
            return True

        return self.ledgers.delete(LedgerId.of_number(number), discard, self._deleted.deleted)

    def compared(self, scope_id: int, local: Sequence[int], missing: Sequence[int]) -> None:
        """Records that the metadata lack those of a scope's local ledgers in `missing`, and have the others. Any
        thread.
        """
        self._deleted.compared(scope_id, local, missing)

    def was_fenced_and_deleted(self, ledger_id: LedgerId) -> bool:
        """Whether the ledger was fenced when it was deleted here, within the last days: it accepts no add.

        False for a ledger of which there was nothing but a fence: its id may still be used for another ledger.
        """
        return ledger_id.number in self._deleted

    def ledger_ids(self) -> array[int]:
        """Ids (type code q) of all ledgers of scope 0 held, ascending, those in memory included.

        Lists directories; any thread.
        """
        on_disk = heapq.merge(*(store.ledger_ids() for store in self.stores)) if len(self.stores) > 1 else None
        found = array("q", on_disk) if on_disk is not None else self.stores[0].ledger_ids()
        cached = (ledger.number for ledger in self._cache.ledgers())
        return _with_cached(found, sorted(number for number in cached if number <= MAX_UNSCOPED))

    def scoped_ledgers(self) -> list[int]:
        """Like `ledger_ids`: the numbers of all scoped ledgers held, ascending, and so grouped by scope."""
        # In this order: a ledger that leaves the cache is in the index by then.
        cached = {ledger.number for ledger in self._cache.ledgers() if ledger.number > MAX_UNSCOPED}
        return sorted(cached.union(*(store.index.scoped_ledgers() for store in self.stores)))

    def usage(self) -> DirectoryUsage:
        """Usage of the disks of all ledger directories together. Raises OSError."""
        return directories.total_usage(self._config.ledger_directories, self._files)


def _with_cached(on_disk: array[int], cached: Sequence[int]) -> array[int]:
    """Merges two ascending listings; `cached` is short compared with what may be on disk."""
    missing = [number for number in cached if not _contains(on_disk, number)]
    if not missing:
        return on_disk
    return array("q", heapq.merge(on_disk, missing))


def _contains(ascending: array[int], number: int) -> bool:
    index = bisect_left(ascending, number)
    return index < len(ascending) and ascending[index] == number
