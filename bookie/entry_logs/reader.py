"""Reads single records of the entry logs of a store by their location.

What follows an entry that a sequential reader asked for is kept in memory (`read_ahead`).

Descriptors are kept in an LRU; one that is evicted, or whose log was removed, closes when its last reader lets go of
it. Any thread may read.

Not its job: which copy of an entry counts (the index says), scanning whole logs (`log_file`).
"""

from __future__ import annotations

import os
import struct
import time
from collections import OrderedDict
from collections.abc import Callable, Sequence
from pathlib import Path
from threading import Lock

from bookgate.bookie.entry_logs import format as fmt
from bookgate.bookie.entry_logs.read_ahead import ReadAhead
from bookgate.bookie.statistics import StoreStatistics
from bookgate.bookie.system.files import FileSystem, StorageCorruptException

_FIRST_READ = 8192
_MOST_IN_MEMORY = 64 * 1024
"""Bytes read at once on the event loop, where others wait for it."""
_MAX_RUN = 4 << 20
"""Bytes read at once for a run of entries, about."""

_NO_LIMIT = 1 << 62

_ids = struct.Struct(">qq")


class LogHandle:
    """A log open for reading; closed when nobody holds it any more."""

    __slots__ = ("_files", "fd", "path")

    def __init__(self, files: FileSystem, path: Path) -> None:
        self._files = files
        self.path = path
        self.fd = files.open(path, os.O_RDONLY)

    def __del__(self) -> None:
        fd = getattr(self, "fd", None)
        if fd is not None:
            self._files.close(fd)


class EntryLogReader:
    """Reads and validates records. `open_files` bounds the descriptors kept; a log lies in any of `directories`."""

    def __init__(
        self,
        files: FileSystem,
        directories: Sequence[Path],
        open_files: int,
        read_ahead_bytes: int = 0,
        statistics: StoreStatistics | None = None,
    ) -> None:
        self.written_for_good: Callable[[int], int] = lambda log_id: _NO_LIMIT
        """Up to which offset a log may be read ahead: behind it somebody may be writing."""
        self._files = files
        self._directories = directories
        self._open_files = open_files
        self._handles: OrderedDict[int, LogHandle] = OrderedDict()
        self._forgotten = 0
        """How many logs were removed."""
        self._statistics = statistics or StoreStatistics()
        self._ahead = ReadAhead(read_ahead_bytes)
        self._lock = Lock()

    @property
    def read_ahead_usage(self) -> tuple[int, int]:
        """Entries kept for sequential readers, and the bytes of memory they take."""
        return self._ahead.usage

    def read(self, location: int, ledger_id: int, entry_id: int) -> bytes:
        """The packet at `location`. Raises StorageCorruptException when it is not that entry's, or not whole."""
        kept = self._kept(location, ledger_id, entry_id)
        if kept is not None:
            return kept
        self._statistics.read_ahead_misses += 1
        window = self._ahead.window(ledger_id, entry_id)
        log_id, offset = fmt.split_location(location)
        handle = self.handle(log_id)
        start = offset - 4
        size = max(_FIRST_READ, window)
        started = time.monotonic()
        data = self._files.pread(handle.fd, size, start) if start >= fmt.HEADER_SIZE else b""
        length = _check_record(handle, data, offset, ledger_id, entry_id)
        if length + 4 > len(data):
            data = self._read_rest(handle, data, start, length + 4)
            if length + 4 > len(data):
                raise _corrupt(handle, offset, ledger_id, entry_id, "is cut off by the end of the log")
        if window:
            self._keep_ahead(location, ledger_id, entry_id, data, window, started)
        return data[4 : 4 + length]

    def read_in_memory(self, location: int, ledger_id: int, entry_id: int) -> bytes | None:
        """What `read` returns where that needs no disk, else None; what is damaged is left to it. Never blocks."""
        kept = self._kept(location, ledger_id, entry_id)
        log_id, offset = fmt.split_location(location)
        # Without the lock: a log that is let go of meanwhile stays open as long as it is held here.
        handle = self._handles.get(log_id) if kept is None else None
        start = offset - 4
        if handle is None or start < fmt.HEADER_SIZE:
            return kept
        window = min(self._ahead.window(ledger_id, entry_id), _MOST_IN_MEMORY)
        started = time.monotonic()
        data = self._files.pread_in_memory(handle.fd, max(_FIRST_READ, window), start)
        if data is None or len(data) < fmt.RECORD_PREFIX_SIZE:
            return None
        length, *ids = fmt.decode_prefix(data)
        if ids != [ledger_id, entry_id] or not fmt.MIN_ENTRY_SIZE <= length <= len(data) - 4:
            return None
        self._statistics.read_ahead_misses += 1
        if window:
            self._keep_ahead(location, ledger_id, entry_id, data, window, started)
        return data[4 : 4 + length]

    def _kept(self, location: int, ledger_id: int, entry_id: int) -> bytes | None:
        """The packet if it was read ahead."""
        kept = self._ahead.get(location)
        if kept is None or not kept.startswith(_ids.pack(ledger_id, entry_id)):
            return None
        self._statistics.read_ahead_hits += 1
        return kept

    def _keep_ahead(
        self, location: int, ledger_id: int, entry_id: int, data: bytes, window: int, started: float
    ) -> None:
        """Keeps what stands behind an entry that a sequential reader asked for, as far as it is written for good."""
        log_id, offset = fmt.split_location(location)
        written = self.written_for_good(log_id) - offset + 4
        if written < fmt.decode_prefix(data)[0] + 4:
            return
        count = self._ahead.keep(location, ledger_id, entry_id, data[:written], window)
        self._statistics.read_ahead_entries.record_value(count)
        self._statistics.read_ahead_bytes.record_value(len(data))
        self._statistics.read_ahead_seconds += time.monotonic() - started

    def read_run(self, locations: Sequence[int], ledger_id: int, first_entry_id: int, max_bytes: int) -> list[bytes]:
        """Packets of consecutive entries at `locations`, by a single read where the entries stand in a row.

        At least the first, which is read as `read` does; as many more as stand behind it in the same log within about
        `max_bytes`, are whole, and are what they should be.
        """
        count = _leading_run(locations, min(max_bytes, _MAX_RUN))
        if count == 1:
            return [self.read(locations[0], ledger_id, first_entry_id)]
        log_id, offset = fmt.split_location(locations[0])
        handle = self.handle(log_id)
        base = locations[0] - 4
        size = 2 * locations[count - 1] - locations[count - 2] - base
        data = self._files.pread(handle.fd, size, offset - 4) if offset >= fmt.HEADER_SIZE + 4 else b""
        packets: list[bytes] = []
        for index in range(count):
            start = locations[index] - base
            if start + 16 > len(data):
                break
            length, *ids = fmt.decode_prefix(data[start - 4 : start + 16])
            if ids != [ledger_id, first_entry_id + index] or not fmt.MIN_ENTRY_SIZE <= length <= len(data) - start:
                break
            packets.append(data[start : start + length])
        return packets or [self.read(locations[0], ledger_id, first_entry_id)]

    def _read_rest(self, handle: LogHandle, data: bytes, start: int, size: int) -> bytes:
        if start + size > self._files.size(handle.fd):
            return b""
        return data + self._files.pread(handle.fd, size - len(data), start + len(data))

    def handle(self, log_id: int) -> LogHandle:
        """The log, open for reading. Raises StorageCorruptException when there is no such log."""
        with self._lock:
            handle = self._handles.get(log_id)
            if handle is not None:
                self._handles.move_to_end(log_id)
                return handle
            forgotten = self._forgotten
        handle = self._open(log_id)
        with self._lock:
            if forgotten != self._forgotten:
                # It may be the log that was removed meanwhile: kept open, it would keep its space.
                return handle
            self._handles[log_id] = handle
            if len(self._handles) > self._open_files:
                self._handles.popitem(last=False)
        return handle

    def _open(self, log_id: int) -> LogHandle:
        name = fmt.file_name(log_id)
        for directory in self._directories:
            try:
                return LogHandle(self._files, directory / name)
            except FileNotFoundError:
                continue
        places = ", ".join(map(str, self._directories))
        raise StorageCorruptException(f"entry log {name} does not exist in {places}, but the index points into it")

    def forget(self, log_id: int) -> None:
        """Drops what is kept of a log that was removed."""
        with self._lock:
            self._forgotten += 1
            self._handles.pop(log_id, None)

    def close(self) -> None:
        with self._lock:
            self._handles.clear()


def _leading_run(locations: Sequence[int], max_bytes: int) -> int:
    """How many locations from the first on ascend in one log within `max_bytes`."""
    first = locations[0]
    limit = min(first + max_bytes, first | 0xFFFFFFFF)
    previous, count = first, 1
    for location in locations[1:]:
        if not previous < location <= limit:
            break
        previous = location
        count += 1
    return count


def _check_record(handle: LogHandle, data: bytes, offset: int, ledger_id: int, entry_id: int) -> int:
    """The length of the record that `data` begins with. Raises StorageCorruptException when it is not that entry's."""
    if len(data) < fmt.RECORD_PREFIX_SIZE:
        raise _corrupt(handle, offset, ledger_id, entry_id, "lies outside the log's records")
    length, *ids = fmt.decode_prefix(data)
    if ids != [ledger_id, entry_id] or length < fmt.MIN_ENTRY_SIZE:
        raise _corrupt(handle, offset, ledger_id, entry_id, f"has length {length} and ids {ids}")
    return length


def _corrupt(handle: LogHandle, offset: int, ledger_id: int, entry_id: int, what: str) -> StorageCorruptException:
    return StorageCorruptException(
        f"entry {entry_id} of ledger {ledger_id}: the record at offset {offset} of {handle.path} {what}; the log or "
        "the index is damaged, other replicas of the entry are not affected"
    )
