"""All entry logs of one store, in one or several ledger directories; their ids are unique across all of them.

A process never appends to a log of an earlier process: its first append opens a log with the next id. Rotation finishes
the full log, so that at any time only the current log, and that of a compaction, has unsynced bytes.

A log is complete, and may be examined by garbage collection, when it is no longer appended to and everything in it is
in the index: a log rotated in the middle of a flush holds entries that look dead until the flush ends (S2).

Threads: `append`, `sync` and `flushed` belong to the checkpoint thread; any thread may call `read`, `scan` and the
rest.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from pathlib import Path

from bookgate.bookie.entry_logs import format as fmt
from bookgate.bookie.entry_logs.log_file import LogFile, LogRecord, LogScan, read_ledgers_map
from bookgate.bookie.entry_logs.reader import EntryLogReader
from bookgate.bookie.entry_logs.record_run import RecordRun
from bookgate.bookie.statistics import StoreStatistics
from bookgate.bookie.system.files import FileSystem, is_no_space, read_whole, write_in_place
from bookgate.bookie.system.threads import REAL_THREADS, Threads
from bookgate.ledger.ledger_numbers import LedgerNumbers
from bookgate.runtime.logs import log_event

_log = logging.getLogger(__name__)

_LAST_ID_FILE = "lastId"
_MAX_OFFSET = 0xFFFFFFFF
_NO_LIMIT = 1 << 62
_LENGTH_SIZE = 4


class EntryLogs:
    """The logs in `directories` (each a `current`); a log takes at most `max_bytes` before its map.

    `writable` returns the directories that may take a new log; if it returns none, all may.
    """

    def __init__(
        self,
        files: FileSystem,
        directories: Sequence[Path],
        *,
        max_bytes: int,
        open_files: int,
        read_ahead_bytes: int = 0,
        writable: Callable[[], Sequence[Path]] | None = None,
        statistics: StoreStatistics | None = None,
        threads: Threads = REAL_THREADS,
    ) -> None:
        self._files = files
        self._directories = tuple(directories)
        self._max_bytes = max_bytes
        self._writable = writable or (lambda: self._directories)
        self._lock = threads.lock()
        self._last_id = max(_last_log_id(files, directory) for directory in directories)
        self._current: LogFile | None = None
        self._incomplete: set[int] = set()
        """Logs of this process that are not complete yet. Guarded by the lock, like _last_id."""
        self._rotated: list[int] = []
        """Those of them that were finished since the last flush ended."""
        self._appended: dict[int, LedgerNumbers] = {}
        """By log that this process has ended: the ledgers that were appended to it. Guarded by the lock."""
        self.failed_syncs = 0
        """Number of failed syncs."""
        self._flushed = (-1, 0)
        """The current log, and its length at the end of the last flush."""
        self._statistics = statistics or StoreStatistics()
        self._reader = EntryLogReader(files, self._directories, open_files, read_ahead_bytes, self._statistics)
        self._reader.written_for_good = self._written_for_good

    @property
    def directories(self) -> tuple[Path, ...]:
        """The directories of the logs."""
        return self._directories

    # Writing

    def append(self, ledger_id: int, packets: Sequence[bytes]) -> list[int]:
        """Appends packets of one ledger and returns their locations. Rotates a full log, between records."""
        if not packets:
            return []
        log = self._current
        if log is None or log.directory not in self._writable_directories():
            log = self._rotate()
        locations = log.append(ledger_id, packets, self._max_bytes)
        while len(locations) < len(packets):
            log = self._rotate()
            locations += log.append(ledger_id, packets[len(locations) :], self._max_bytes)
        self._statistics.log_bytes += sum(map(len, packets)) + _LENGTH_SIZE * len(packets)
        return locations

    def sync(self) -> None:
        """Makes everything appended so far durable."""
        if self._current is not None:
            self._sync(self._current)

    def _sync(self, log: LogFile) -> None:
        try:
            log.sync()
        except BaseException:
            self.failed_syncs += 1
            raise

    def flushed(self) -> None:
        """Everything appended is durably in the index: logs rotated meanwhile are complete now."""
        with self._lock:
            self._incomplete.difference_update(self._rotated)
        self._rotated.clear()
        if self._current is not None:
            self._flushed = (self._current.log_id, self._current.position)

    def new_log(self) -> CompactionLog:
        """A separate log for a compaction, or for another caller that copies records. Any thread."""
        return CompactionLog(self, self._create())

    def close(self) -> None:
        """Closes the current log as it is, without a map, and releases all descriptors."""
        if self._current is not None:
            self._current.close()
            self._current = None
        self._reader.close()

    def _writable_directories(self) -> Sequence[Path]:
        return self._writable() or self._directories

    def _rotate(self) -> LogFile:
        if self._current is not None:
            self._finish(self._current)
            self._statistics.logs_full += 1
            self._rotated.append(self._current.log_id)
            self._remember(self._current)
            self._current = None
        self._current = self._create()
        return self._current

    def _finish(self, log: LogFile) -> None:
        """If a full disk has no space for the map, only the map is lost, provided that another directory can be
        written.
        """
        self._sync(log)
        self._write_map(log, required=all(path == log.directory for path in self._writable_directories()))

    def _write_map(self, log: LogFile, *, required: bool) -> None:
        """Ends a log that was synced; if a map is not required, a lack of space costs only the map."""
        try:
            log.finish()
        except OSError as error:
            if required or not is_no_space(error):
                raise
            log_event(
                _log, "entry_log_without_map", logging.WARNING, log=log.log_id, directory=log.directory, error=error
            )
            log.close()

    def _remember(self, log: LogFile) -> None:
        """Keeps the ledgers that were appended to a finished log."""
        with self._lock:
            self._appended[log.log_id] = LedgerNumbers(log.ledgers)

    def _create(self) -> LogFile:
        with self._lock:
            log_id = self._last_id = self._free_id()
            self._incomplete.add(log_id)
            places = self._writable_directories()
            place = places[log_id % len(places)]
            for directory in self._directories:
                self._record_last_id(directory, log_id, required=directory == place)
            log = LogFile(self._files, place, log_id)
            self._statistics.logs_begun += 1
            return log

    def _record_last_id(self, directory: Path, log_id: int, *, required: bool) -> None:
        """Writes `lastId`. Not required in a directory that may be full: a start looks at the names of the logs as
        well.
        """
        try:
            write_in_place(self._files, directory / _LAST_ID_FILE, b"%x\n" % log_id, sync=False)
        except OSError as error:
            if required:
                raise
            log_event(_log, "last_log_id_not_written", logging.WARNING, path=directory / _LAST_ID_FILE, error=error)

    def _free_id(self) -> int:
        used = set[int]().union(*(_used_log_ids(self._files, directory) for directory in self._directories))
        log_id = self._last_id
        while True:
            log_id = log_id + 1 if log_id < fmt.MAX_LOG_ID else 0
            if log_id not in used and log_id not in self._incomplete:
                return log_id

    def _completed(self, log: LogFile) -> None:
        self._remember(log)
        with self._lock:
            self._incomplete.discard(log.log_id)

    # Reading: any thread

    def read(self, location: int, ledger_id: int, entry_id: int) -> bytes:
        """The packet at `location`. Raises StorageCorruptException if it belongs to another entry or is incomplete."""
        return self._reader.read(location, ledger_id, entry_id)

    def read_in_memory(self, locations: Sequence[int], ledger_id: int, first_entry_id: int) -> list[bytes]:
        """Packets of consecutive entries, as many of the first as need no disk: see EntryLogReader.read_in_memory."""
        return self._reader.read_in_memory(locations, ledger_id, first_entry_id)

    def read_scattered_in_memory(
        self, locations: Sequence[int], ledger_id: int, entry_ids: Sequence[int]
    ) -> list[bytes]:
        """The same for entries in any order: see EntryLogReader.read_scattered_in_memory."""
        return self._reader.read_scattered_in_memory(locations, ledger_id, entry_ids)

    @property
    def read_ahead_usage(self) -> tuple[int, int]:
        """Number of entries kept for sequential readers, and the bytes of memory they use."""
        return self._reader.read_ahead_usage

    def read_runs(
        self, locations: Sequence[int], ledger_id: int, first_entry_id: int, max_bytes: int
    ) -> list[RecordRun]:
        """Records of consecutive entries beginning with the first, in few reads: see EntryLogReader.read_runs."""
        return self._reader.read_runs(locations, ledger_id, first_entry_id, max_bytes)

    def _written_for_good(self, log_id: int) -> int:
        if log_id not in self._incomplete:
            return _NO_LIMIT
        flushed_id, position = self._flushed
        return position if log_id == flushed_id else 0

    def complete_logs(self) -> list[int]:
        """Ids of the complete logs, ascending, including those of earlier processes."""
        names = (name for directory in self._directories for name in self._files.list_directory(directory))
        found = {log_id for name in names if (log_id := _log_id_of(name)) is not None}
        with self._lock:
            return sorted(found - self._incomplete)

    def appended_ledgers(self, log_id: int) -> LedgerNumbers | None:
        """The ledgers that were appended to a complete log; None for a log of an earlier process."""
        with self._lock:
            return self._appended.get(log_id)

    def bytes_being_written(self) -> list[dict[int, int]]:
        """Bytes by ledger in the log that is appended to now; of none right after a start. Any thread."""
        current = self._current
        return [] if current is None else [current.bytes_by_ledger]

    # A handle is held while its descriptor is used; otherwise the number may meanwhile belong to another file.

    def size(self, log_id: int) -> int:
        """Bytes of the file, including header and map."""
        handle = self._reader.handle(log_id)
        return self._files.size(handle.fd)

    def ledgers_map(self, log_id: int) -> dict[int, int] | None:
        """Bytes by ledger, including length fields; None if there is no valid map."""
        handle = self._reader.handle(log_id)
        return read_ledgers_map(self._files, handle.fd)

    def scan(self, log_id: int) -> Iterator[LogRecord]:
        """The records of a log, in bounded memory. Raises StorageCorruptException if a log with a map is damaged."""
        handle = self._reader.handle(log_id)
        yield from LogScan(self._files, handle.fd, log_id, str(handle.path))

    def remove(self, log_id: int) -> None:
        """Removes a log, if it still exists. Nothing in the index may refer to it."""
        for directory in self._directories:
            try:
                self._files.unlink(directory / fmt.file_name(log_id))
            except FileNotFoundError:
                continue
            self._reader.forget(log_id)
            self._files.sync_directory(directory)
        with self._lock:
            self._appended.pop(log_id, None)


class CompactionLog:
    """A log that one thread writes next to the current one. End it with `finish` or `abandon`."""

    def __init__(self, logs: EntryLogs, log: LogFile) -> None:
        self._logs = logs
        self._log = log
        self.log_id = log.log_id

    def append(self, ledger_id: int, packets: Sequence[bytes]) -> list[int]:
        """Appends packets of one ledger and returns their locations. Raises OSError."""
        locations = self._log.append(ledger_id, packets, _MAX_OFFSET)
        if len(locations) < len(packets):
            raise OSError(f"entry log {self.log_id:x} has no room for {len(packets)} packets of ledger {ledger_id}")
        return locations

    def sync(self) -> None:
        """Makes everything appended so far durable, so that the index may refer to it. Raises OSError."""
        self._log.sync()

    def finish(self) -> None:
        """Writes the map, if there is space for it, syncs and closes: log and name are durable on return.

        Raises OSError. The log is closed and complete even then: the index refers to nothing that was not synced.
        """
        try:
            self._log.sync()
            self._logs._write_map(self._log, required=False)
        finally:
            self._log.close()
            self._logs._completed(self._log)

    def abandon(self) -> None:
        """Closes and removes the log; the index must not refer to it."""
        self._log.close()
        self._logs.remove(self.log_id)
        self._logs._completed(self._log)


def _log_id_of(name: str) -> int | None:
    """The id in a log's name; None for leftovers of a compaction."""
    log_id = fmt.log_id_of(name)
    return log_id if log_id is not None and name == fmt.file_name(log_id) else None


def _used_log_ids(files: FileSystem, directory: Path) -> set[int]:
    ids = (fmt.log_id_of(name) for name in files.list_directory(directory))
    return {log_id for log_id in ids if log_id is not None}


def _last_log_id(files: FileSystem, directory: Path) -> int:
    """The id after which to look for a free one: from `lastId`, else from the existing logs; -1 in a new directory.

    The beginning of the largest gap counts as well, so that ids stay apart after they wrapped around.
    """
    used = _used_log_ids(files, directory)
    recorded = _recorded_last_id(files, directory)
    last = recorded if recorded > 0 else max(used, default=-1)
    return max(last, _largest_gap_start(used) - 1)


def _recorded_last_id(files: FileSystem, directory: Path) -> int:
    data = read_whole(files, directory / _LAST_ID_FILE) or b""
    try:
        return int(data.decode("ascii").strip(), 16)
    except ValueError:
        return -1


def _largest_gap_start(used: set[int]) -> int:
    """First id of the largest run of free ids; 0 when none is in use."""
    bounds = [-1, *sorted(used), fmt.MAX_LOG_ID]
    gaps = ((right - left, left) for left, right in pairwise(bounds))
    return max(gaps, key=lambda gap: gap[0])[1] + 1
