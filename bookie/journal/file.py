"""One journal file being written: header, records, padding, preallocation.

Records are appended, then synced; the data after the last sync may be truncated again. The file is allocated ahead in
units, so that a sync has no new length to write; the zeros at the end mark the end of data. If the disk is short of
space, nothing is allocated ahead.

A file is always new: an existing id is an error. Header and name are durable before a record is written; a file that
finds no space for them is removed again.

Not its job: which records share a sync, when the next file begins, what an error means (`journal`); the contents of
records (`format`).
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from bookgate.bookie.journal import format as fmt
from bookgate.bookie.journal.options import JournalOptions
from bookgate.bookie.system.files import FileSystem, is_no_space


def list_journals(files: FileSystem, directory: Path) -> list[int]:
    """Ids of the journal files, ascending."""
    ids = (fmt.journal_id_of(name) for name in files.list_directory(directory))
    return sorted(journal_id for journal_id in ids if journal_id is not None)


class JournalFile:
    """One file being written."""

    def __init__(self, files: FileSystem, directory: Path, journal_id: int, options: JournalOptions) -> None:
        self._files = files
        self._options = options
        self._allocated = 0
        self.journal_id = journal_id
        path = directory / fmt.file_name(journal_id)
        self._fd = files.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL)
        self.position = 0
        try:
            self._write(fmt.encode_header())
            files.fsync(self._fd)
            files.sync_directory(directory)
            self._synced = self.position
        except BaseException as error:
            files.close(self._fd)
            if is_no_space(error):
                # The same id is used again once there is space.
                files.unlink(path)
            raise

    def append(self, payloads: Sequence[bytes]) -> None:
        """Writes the records, followed by the padding that ends a flush."""
        chunk: list[bytes] = []
        size = 0
        for payload in payloads:
            chunk.append(payload)
            size += len(payload)
            if size >= self._options.buffered_writes_bytes:
                self._write(fmt.encode_records(chunk))
                chunk, size = [], 0
        last = fmt.encode_records(chunk)
        self._write(last + fmt.padding(self.position + len(last), self._options.alignment_bytes))

    def sync(self) -> None:
        if self._options.sync_data:
            self._files.fdatasync(self._fd)
        self._synced = self.position

    def cut(self) -> None:
        """Truncates the file at the end of the last sync, and so releases everything written or allocated after it."""
        self._files.truncate(self._fd, self._synced)
        self.position = self._allocated = self._synced

    def close(self) -> None:
        self._files.close(self._fd)

    def _write(self, data: bytes) -> None:
        end = self.position + len(data)
        if end > self._allocated:
            self._allocate(end)
        self._files.pwrite(self._fd, data, self.position)
        self.position = end

    def _allocate(self, end: int) -> None:
        """Reserves space up to `end`, and the rest of its unit if the disk has ample space left."""
        unit = self._options.pre_alloc_bytes
        size = -(-end // unit) * unit
        if self._files.free_bytes(self._fd) < size - self._allocated + self._options.ample_bytes:
            size = end
        try:
            self._files.allocate(self._fd, size)
        except OSError as error:
            if not is_no_space(error) or size == end:
                raise
            self._files.allocate(self._fd, size := end)
        self._allocated = size
