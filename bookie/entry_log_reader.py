"""Reads single records of the entry logs of a store by their location.

Descriptors are kept in an LRU; one that is evicted, or whose log was removed, closes when its last reader lets go of
it. Any thread may read.

Not its job: which copy of an entry counts (the index says), scanning whole logs (`entry_log`).
"""

from __future__ import annotations

import os
from collections import OrderedDict
from collections.abc import Sequence
from pathlib import Path
from threading import Lock

from bookie import entry_log_format as fmt
from bookie.files import FileSystem, StorageCorruptException

_FIRST_READ = 8192


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

    def __init__(self, files: FileSystem, directories: Sequence[Path], open_files: int) -> None:
        self._files = files
        self._directories = directories
        self._open_files = open_files
        self._handles: OrderedDict[int, LogHandle] = OrderedDict()
        self._lock = Lock()

    def read(self, location: int, ledger_id: int, entry_id: int) -> bytes:
        """The packet at `location`. Raises StorageCorruptException when it is not that entry's, or not whole."""
        log_id, offset = fmt.split_location(location)
        handle = self.handle(log_id)
        start = offset - 4
        data = self._files.pread(handle.fd, _FIRST_READ, start) if start >= fmt.HEADER_SIZE else b""
        if len(data) < fmt.RECORD_PREFIX_SIZE:
            raise _corrupt(handle, offset, ledger_id, entry_id, "lies outside the log's records")
        length, *ids = fmt.decode_prefix(data)
        if ids != [ledger_id, entry_id] or length < fmt.MIN_ENTRY_SIZE:
            raise _corrupt(handle, offset, ledger_id, entry_id, f"has length {length} and ids {ids}")
        if length + 4 > len(data):
            data = self._read_rest(handle, data, start, length + 4)
        if length + 4 > len(data):
            raise _corrupt(handle, offset, ledger_id, entry_id, "is cut off by the end of the log")
        return data[4 : 4 + length]

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
        handle = self._open(log_id)
        with self._lock:
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
        """Drops what is kept of a log that is removed."""
        with self._lock:
            self._handles.pop(log_id, None)

    def close(self) -> None:
        with self._lock:
            self._handles.clear()


def _corrupt(handle: LogHandle, offset: int, ledger_id: int, entry_id: int, what: str) -> StorageCorruptException:
    return StorageCorruptException(
        f"entry {entry_id} of ledger {ledger_id}: the record at offset {offset} of {handle.path} {what}; the log or "
        "the index is damaged, other replicas of the entry are not affected"
    )
