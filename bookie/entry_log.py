"""The entry logs of one directory: appending at checkpoints, rotation, and reading records by location.

A process never appends to a log of an earlier process: its first append opens a log with the next id. Rotation syncs
and closes the full log, map included, so that at any time only the current log has unsynced bytes.

The checkpoint thread appends; any thread reads. Descriptors for reading are kept in an LRU; one that is evicted closes
when its last reader lets go of it.

Not its job: which copy of an entry counts (the index says), removing logs (garbage collection).
"""

from __future__ import annotations

import os
from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Sequence
from itertools import accumulate, pairwise
from pathlib import Path
from threading import Lock

from bookie import entry_log_format as fmt
from bookie.files import FileSystem, StorageCorruptException, read_whole, write_in_place

_WRITE_CHUNK = 1 << 20
_FIRST_READ = 8192


class _ReadHandle:
    """A log open for reading; closed when nobody holds it any more."""

    __slots__ = ("_files", "fd")

    def __init__(self, files: FileSystem, path: Path) -> None:
        self._files = files
        self.fd = files.open(path, os.O_RDONLY)

    def __del__(self) -> None:
        fd = getattr(self, "fd", None)
        if fd is not None:
            self._files.close(fd)


class EntryLogReader:
    """Reads and validates records. `open_files` bounds the descriptors kept."""

    def __init__(self, files: FileSystem, directory: Path, open_files: int) -> None:
        self._files = files
        self._directory = directory
        self._open_files = open_files
        self._handles: OrderedDict[int, _ReadHandle] = OrderedDict()
        self._lock = Lock()

    def read(self, location: int, ledger_id: int, entry_id: int) -> bytes:
        """The packet at `location`. Raises StorageCorruptException when it is not that entry's, or not whole."""
        log_id, offset = fmt.split_location(location)
        handle = self._handle(log_id)
        start = offset - 4
        data = self._files.pread(handle.fd, _FIRST_READ, start) if start >= fmt.HEADER_SIZE else b""
        if len(data) < fmt.RECORD_PREFIX_SIZE:
            raise self._corrupt(log_id, offset, ledger_id, entry_id, "lies outside the log's records")
        length, *ids = fmt.decode_prefix(data)
        if ids != [ledger_id, entry_id] or length < fmt.MIN_ENTRY_SIZE:
            raise self._corrupt(log_id, offset, ledger_id, entry_id, f"has length {length} and ids {ids}")
        if length + 4 > len(data):
            data = self._read_rest(handle, data, start, length + 4)
        if length + 4 > len(data):
            raise self._corrupt(log_id, offset, ledger_id, entry_id, "is cut off by the end of the log")
        return data[4 : 4 + length]

    def _read_rest(self, handle: _ReadHandle, data: bytes, start: int, size: int) -> bytes:
        if start + size > self._files.size(handle.fd):
            return b""
        return data + self._files.pread(handle.fd, size - len(data), start + len(data))

    def _handle(self, log_id: int) -> _ReadHandle:
        with self._lock:
            handle = self._handles.get(log_id)
            if handle is not None:
                self._handles.move_to_end(log_id)
                return handle
        path = self._directory / fmt.file_name(log_id)
        try:
            handle = _ReadHandle(self._files, path)
        except FileNotFoundError as error:
            raise StorageCorruptException(f"the index points into entry log {path}, which does not exist") from error
        with self._lock:
            self._handles[log_id] = handle
            if len(self._handles) > self._open_files:
                self._handles.popitem(last=False)
        return handle

    def _corrupt(self, log_id: int, offset: int, ledger_id: int, entry_id: int, what: str) -> StorageCorruptException:
        path = self._directory / fmt.file_name(log_id)
        return StorageCorruptException(
            f"entry {entry_id} of ledger {ledger_id}: the record at offset {offset} of {path} {what}; the log or the "
            "index is damaged, other replicas of the entry are not affected"
        )

    def close(self) -> None:
        with self._lock:
            self._handles.clear()


class EntryLogWriter:
    """Appends packets to the current log, which holds at most `max_bytes` before its map. Checkpoint thread only."""

    def __init__(self, files: FileSystem, directory: Path, max_bytes: int) -> None:
        self._files = files
        self._directory = directory
        self._max_bytes = max_bytes
        self._last_id = _last_log_id(files, directory)
        self._fd = -1
        self._position = 0
        self._bytes_by_ledger: dict[int, int] = {}
        self._unsynced = False

    def append(self, ledger_id: int, packets: Sequence[bytes]) -> list[int]:
        """Appends packets of one ledger and returns their locations; rotates the log between records where full."""
        ends = list(accumulate(map(len, packets)))
        ends = [end + 4 * (index + 1) for index, end in enumerate(ends)]
        locations: list[int] = []
        start = 0
        while start < len(packets):
            base = ends[start - 1] if start else 0
            stop = self._fitting(ends, start, base)
            if stop == start:
                self._rotate()
                continue
            locations += self._write(ledger_id, packets[start:stop], [0, *(end - base for end in ends[start:stop])])
            start = stop
        return locations

    def sync(self) -> None:
        """Makes everything appended so far durable."""
        if self._unsynced:
            self._files.fdatasync(self._fd)
            self._unsynced = False

    def close(self) -> None:
        """Closes the current log as it is: without a map, as a crash would leave it."""
        if self._fd >= 0:
            self._files.close(self._fd)
            self._fd = -1

    def _fitting(self, ends: list[int], start: int, base: int) -> int:
        """Index behind the last packet that goes into the next write; `start` when the log must be rotated first."""
        if self._fd < 0:
            return start
        room = self._max_bytes - self._position
        stop = bisect_right(ends, base + min(room, _WRITE_CHUNK), start)
        if stop > start:
            return stop
        is_empty = self._position == fmt.HEADER_SIZE
        return start + 1 if is_empty or ends[start] - base <= room else start

    def _write(self, ledger_id: int, packets: Sequence[bytes], offsets: list[int]) -> list[int]:
        """Writes records at the end; `offsets` are relative, one more than packets."""
        self._files.pwrite(self._fd, fmt.encode_records(packets), self._position)
        first = fmt.location_of(self._last_id, self._position) + 4
        size = offsets.pop()
        self._position += size
        self._unsynced = True
        self._bytes_by_ledger[ledger_id] = self._bytes_by_ledger.get(ledger_id, 0) + size
        return [first + offset for offset in offsets]

    def _rotate(self) -> None:
        if self._fd >= 0:
            self._finish()
        self._last_id = self._free_id()
        write_in_place(self._files, self._directory / "lastId", b"%x\n" % self._last_id, sync=False)
        path = self._directory / fmt.file_name(self._last_id)
        self._fd = self._files.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL)
        self._files.pwrite(self._fd, fmt.encode_header(), 0)
        self._files.sync_directory(self._directory)
        self._position = fmt.HEADER_SIZE
        self._unsynced = True

    def _finish(self) -> None:
        """Appends the ledgers map to the current log, and syncs and closes it."""
        self._files.pwrite(self._fd, fmt.encode_ledgers_map(self._bytes_by_ledger), self._position)
        fields = fmt.encode_map_fields(self._position, len(self._bytes_by_ledger))
        self._files.pwrite(self._fd, fields, fmt.MAP_FIELDS_OFFSET)
        self._files.fdatasync(self._fd)
        self._bytes_by_ledger = {}
        self.close()

    def _free_id(self) -> int:
        used = _used_log_ids(self._files, self._directory)
        log_id = self._last_id
        while True:
            log_id = log_id + 1 if log_id < fmt.MAX_LOG_ID else 0
            if log_id not in used:
                return log_id


def _used_log_ids(files: FileSystem, directory: Path) -> set[int]:
    ids = (fmt.log_id_of(name) for name in files.list_directory(directory))
    return {log_id for log_id in ids if log_id is not None}


def _last_log_id(files: FileSystem, directory: Path) -> int:
    """The id after which to look for a free one: from `lastId`, or else the logs that exist; -1 in a new directory.

    The beginning of the largest gap counts as well, so that ids stay apart after they wrapped around.
    """
    used = _used_log_ids(files, directory)
    recorded = _recorded_last_id(files, directory)
    last = recorded if recorded > 0 else max(used, default=-1)
    return max(last, _largest_gap_start(used) - 1)


def _recorded_last_id(files: FileSystem, directory: Path) -> int:
    data = read_whole(files, directory / "lastId") or b""
    try:
        return int(data.decode("ascii").strip(), 16)
    except ValueError:
        return -1


def _largest_gap_start(used: set[int]) -> int:
    """First id of the largest run of free ids; 0 when none is in use."""
    bounds = [-1, *sorted(used), fmt.MAX_LOG_ID]
    gaps = ((right - left, left) for left, right in pairwise(bounds))
    return max(gaps, key=lambda gap: gap[0])[1] + 1
