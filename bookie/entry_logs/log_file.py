"""One entry log: appending, its ledgers map, scanning.

A log being written belongs to one thread. `finish` ends it: map, sync; nothing is appended afterwards. A log that was
current at a stop or a crash has no map, and may end in the middle of a record.

A scan returns every record that can be distinguished from padding, in bounded memory. In a log with a map the records
fill the space up to the map; an impossible record there is an error (S3), because a scan that decides what may be
deleted must not take a record that it could not see for a dead one. Without a map such a record is the torn tail of a
crash, and is skipped.

Source: docs/protocol/storage.md#log-header, docs/protocol/storage.md#log-records, docs/protocol/storage.md#ledgers-map,
docs/protocol/storage.md#scan-of-a-log. Not its job: ids and directories (`entry_logs`), reading single records
(`reader`), which copy of an entry counts (the index decides).
"""

from __future__ import annotations

import os
import re
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from itertools import accumulate
from pathlib import Path
from typing import NamedTuple

from bookgate.bookie.entry_logs import format as fmt
from bookgate.bookie.system.files import FileSystem, StorageCorruptException, is_no_space

_WRITE_CHUNK = 1 << 20
_SCAN_CHUNK = 1 << 20
_LENGTH_SIZE = 4
_positive_int = re.compile(rb"(?!\0\0\0\0)[\x00-\x7f][\s\S]{3}")


class LogFile:
    """A log being written. `position` is the offset of the next record."""

    def __init__(self, files: FileSystem, directory: Path, log_id: int) -> None:
        """Creates the file, with a durable name. Raises OSError."""
        self._files = files
        self._bytes_by_ledger: dict[int, int] = {}
        self._unsynced = True
        self.directory = directory
        self.log_id = log_id
        self._path = directory / fmt.file_name(log_id)
        self._fd = files.open(self._path, os.O_RDWR | os.O_CREAT | os.O_EXCL)
        self.position = fmt.HEADER_SIZE
        try:
            files.pwrite(self._fd, fmt.encode_header(), 0)
            files.sync_directory(directory)
        except BaseException as error:
            files.close(self._fd)
            if is_no_space(error):
                files.unlink(self._path)
            raise

    def append(self, ledger_id: int, packets: Sequence[bytes], limit: int) -> list[int]:
        """Appends those packets of one ledger that end at or before `limit`; returns their locations.

        An empty log takes at least one packet, however large. If there is no space, nothing is appended.
        """
        ends = list(accumulate(map(_LENGTH_SIZE.__add__, map(len, packets))))
        fitting = bisect_right(ends, limit - self.position)
        if packets and not fitting and self.position == fmt.HEADER_SIZE:
            fitting = 1
        base, start = self.position, 0
        while start < fitting:
            written = ends[start - 1] if start else 0
            stop = min(fitting, max(start + 1, bisect_right(ends, written + _WRITE_CHUNK)))
            try:
                self._files.pwrite(self._fd, fmt.encode_records(packets[start:stop]), base + written)
            except OSError as error:
                if is_no_space(error):
                    self._files.truncate(self._fd, base)
                raise
            self._unsynced = True
            start = stop
        if not fitting:
            return []
        assert self.position == base, "one thread appends to a log"
        self.position = base + ends[fitting - 1]
        self._bytes_by_ledger[ledger_id] = self._bytes_by_ledger.get(ledger_id, 0) + ends[fitting - 1]
        first = fmt.location_of(self.log_id, base) + _LENGTH_SIZE
        return [first, *map(first.__add__, ends[: fitting - 1])]

    @property
    def ledgers(self) -> Iterable[int]:
        """The ledgers that were appended."""
        return self._bytes_by_ledger.keys()

    @property
    def bytes_by_ledger(self) -> dict[int, int]:
        """Bytes appended of each ledger, as they are now. Any thread: a dictionary is copied in one step."""
        return self._bytes_by_ledger.copy()

    def sync(self) -> None:
        """Makes everything appended so far durable."""
        if self._unsynced:
            self._files.fdatasync(self._fd)
            self._unsynced = False

    def finish(self) -> None:
        """Appends the ledgers map, syncs and closes."""
        self._files.pwrite(self._fd, fmt.encode_ledgers_map(self._bytes_by_ledger), self.position)
        fields = fmt.encode_map_fields(self.position, len(self._bytes_by_ledger))
        self._files.pwrite(self._fd, fields, fmt.MAP_FIELDS_OFFSET)
        self._files.fdatasync(self._fd)
        self.close()

    def close(self) -> None:
        """Closes the log without a map, as a crash would leave it."""
        if self._fd >= 0:
            self._files.close(self._fd)
            self._fd = -1


class LogRecord(NamedTuple):
    """One record of a scan; `ledger_id` is the ledger's number."""

    ledger_id: int
    entry_id: int
    location: int
    packet: bytes


def read_ledgers_map(files: FileSystem, fd: int) -> dict[int, int] | None:
    """Bytes by ledger number of a finished log; None if it has no valid map and must be scanned."""
    fields = fmt.decode_map_fields(files.pread(fd, fmt.HEADER_SIZE, 0))
    if fields is None:
        return None
    offset, ledgers = fields
    size = min(files.size(fd) - offset, fmt.LARGEST_MAP_RECORD_PER_LEDGER * ledgers)
    return fmt.decode_ledgers_map(files.pread(fd, size, offset), ledgers) if size > 0 else None


class LogScan:
    """Iterates over the records of one log, in file order."""

    def __init__(self, files: FileSystem, fd: int, log_id: int, name: str) -> None:
        self._files = files
        self._fd = fd
        self._log_id = log_id
        self._name = name
        self._chunk = b""
        self._chunk_start = 0
        fields = fmt.decode_map_fields(files.pread(fd, fmt.HEADER_SIZE, 0))
        size = files.size(fd)
        self._has_map = fields is not None and fmt.HEADER_SIZE <= fields[0] <= size
        self._end = fields[0] if fields is not None and self._has_map else size

    def __iter__(self) -> Iterator[LogRecord]:
        position = fmt.HEADER_SIZE
        while position + fmt.RECORD_PREFIX_SIZE <= self._end:
            length, ledger_id, entry_id = fmt.decode_prefix(self._take(position, fmt.LONGEST_PREFIX_SIZE))
            if length <= 0:
                position = self._behind_padding(position)
                continue
            following = position + _LENGTH_SIZE + length
            if length < fmt.MIN_ENTRY_SIZE or following > self._end:
                if self._has_map:
                    raise self._corrupt(position, length)
                if length >= fmt.MIN_ENTRY_SIZE:
                    return
                position += 1
                continue
            if ledger_id >= 0:
                packet = self._take(position + _LENGTH_SIZE, length)
                yield LogRecord(ledger_id, entry_id, fmt.location_of(self._log_id, position + _LENGTH_SIZE), packet)
            position = following

    def _behind_padding(self, position: int) -> int:
        """The next position at which a positive length may be."""
        data = self._take(position, _SCAN_CHUNK)
        match = _positive_int.search(data)
        return position + (match.start() if match else max(1, len(data) - 3))

    def _take(self, offset: int, size: int) -> bytes:
        """Bytes of the log through a read-ahead chunk; fewer at the end of the records."""
        size = min(size, self._end - offset)
        start = offset - self._chunk_start
        if start < 0 or start + size > len(self._chunk):
            self._chunk = self._files.pread(self._fd, min(max(size, _SCAN_CHUNK), self._end - offset), offset)
            self._chunk_start = offset
            start = 0
        return self._chunk[start : start + size]

    def _corrupt(self, position: int, length: int) -> StorageCorruptException:
        return StorageCorruptException(
            f"entry log {self._name}: the record at offset {position} has the impossible length {length}; the log is "
            "damaged and is kept as it is. Entries that can't be read any more are served by other replicas."
        )
