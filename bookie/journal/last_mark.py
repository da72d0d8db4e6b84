"""The last marks: where the replay of each journal begins, as recorded in each ledger directory.

A `lastMark` file is 16 bytes, journal id and offset; Apache BookKeeper reads and writes no more. A tag and a CRC-32 of
these bytes follow: the *seal*, which a mark written by Apache BookKeeper's bookie does not have. A damaged mark can
therefore be recognised: it counts as none, and the directory's journal is replayed from its beginning, with all files
that are kept. That takes time, brings deleted ledgers back until they are collected again, and takes a ledger and one
that had its id before, and that an earlier process deleted, for the same.

Source: docs/protocol/storage.md#lastmark. Not its job: whether the journal confirms a mark (`replay_start`).
"""

from __future__ import annotations

import logging
import zlib
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

from bookgate.bookie.disks.directories import current
from bookgate.bookie.journal.format import MARK_SIZE, NO_MARK, LogMark
from bookgate.bookie.system.files import FileSystem, read_whole, write_in_place
from bookgate.runtime.logs import log_event

_log = logging.getLogger(__name__)

LAST_MARK_FILE = "lastMark"
_TAG = b"BGMK"
SEALED_SIZE = MARK_SIZE + len(_TAG) + 4


class StoredMark(NamedTuple):
    """The mark in one directory."""

    mark: LogMark
    sealed: bool
    """Whether the seal proves that the mark was written like this."""
    path: Path


def mark_file_name(journal: int, journals: int) -> str:
    """Name of the file that holds the mark of one of a bookie's journals."""
    return LAST_MARK_FILE if journals == 1 else f"{LAST_MARK_FILE}.{journal}"


def read_marks(files: FileSystem, directories: Iterable[Path], name: str = LAST_MARK_FILE) -> list[StoredMark]:
    """The marks of all ledger directories, the furthest first; a missing, short or damaged file counts as none."""
    found: list[StoredMark] = []
    for directory in directories:
        path = current(directory) / name
        content = read_whole(files, path)
        if content is None or len(content) < MARK_SIZE:
            continue
        mark, sealed = LogMark.decode(content), len(content) > MARK_SIZE
        if (sealed and content != _seal(mark)) or mark.journal_id < 0 or mark.offset < 0:
            log_event(_log, "mark_damaged", logging.ERROR, path=path, note="it counts as none")
            continue
        found.append(StoredMark(mark, sealed, path))
    return sorted(found, key=lambda stored: stored.mark, reverse=True)


def read_mark(files: FileSystem, directories: Iterable[Path], name: str = LAST_MARK_FILE) -> LogMark:
    """The furthest mark of any ledger directory."""
    return next((stored.mark for stored in read_marks(files, directories, name)), NO_MARK)


def is_last_here(files: FileSystem, directories: Sequence[Path], journals: int) -> bool:
    """Whether this implementation ran last on the directories: the marks of Apache BookKeeper's bookie have no seal."""
    marks = [
        stored
        for journal in range(journals)
        for stored in read_marks(files, directories, mark_file_name(journal, journals))
    ]
    return bool(marks) and all(stored.sealed for stored in marks)


def write_mark(files: FileSystem, directories: Iterable[Path], mark: LogMark, name: str = LAST_MARK_FILE) -> None:
    """Persists the mark in every ledger directory, durably. Raises the first OSError if no directory could store it."""
    errors: list[OSError] = []
    written = 0
    for directory in directories:
        try:
            write_in_place(files, current(directory) / name, _seal(mark))
            written += 1
        except OSError as error:
            log_event(_log, "mark_not_written", logging.WARNING, path=current(directory) / name, error=error)
            errors.append(error)
    if errors and not written:
        raise errors[0]


def _seal(mark: LogMark) -> bytes:
    data = mark.encode()
    return data + _TAG + zlib.crc32(data).to_bytes(4, "big")
