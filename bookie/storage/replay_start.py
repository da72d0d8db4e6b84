"""Determines where the replay of a journal begins, and whether the files prove a loss (S8).

Replay begins at the furthest mark that the journal confirms: the journal's data must reach it. Proof of a loss is

- a mark beyond the data of its journal: a sealed mark (`last_mark`), or all marks there are;
- a missing journal file: the file of the mark, one between others, or all of them although the bookie has run.

A seal vouches for the mark, so only the end of its journal is examined. A mark without a seal was written by Apache
BookKeeper's bookie, or is damaged; it must be at the end of a record, so the file is read up to it. After a
replay that bookie leaves marks 4 bytes after the data, or at the end of the file: these are valid.

Undetectable, because the format has neither checksums nor an end marker: data truncated exactly at the mark, or zeros
from the mark on, look like a torn tail.

Not its job: replaying (`replay`), reacting to a loss (`storage`).
"""

from __future__ import annotations

import logging
import os
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

from bookgate.bookie.disks.directories import current
from bookgate.bookie.entry_logs.format import FILE_SUFFIX as LOG_SUFFIX
from bookgate.bookie.journal import format as fmt
from bookgate.bookie.journal.file import list_journals
from bookgate.bookie.journal.format import NO_MARK, JournalScan, LogMark
from bookgate.bookie.journal.last_mark import StoredMark, mark_file_name, read_marks
from bookgate.bookie.mode.status_files import DIRTY_FILE
from bookgate.bookie.storage.options import StorageConfig
from bookgate.bookie.system.data_loss import LostDataException, OnLoss
from bookgate.bookie.system.files import FileSystem, StorageCorruptException
from bookgate.runtime.logs import log_event

_log = logging.getLogger(__name__)

_BLOCK = 512
_PART = 1 << 16
_LENGTH_SIZE = 4


def starts_of_replay(files: FileSystem, config: StorageConfig, on_loss: OnLoss) -> list[LogMark]:
    """The position at which the replay of each journal begins. Raises OSError, and the errors of `on_loss`."""
    has_run = _has_run(files, config)
    count = len(config.journal_directories)
    return [
        start_of_replay(
            files,
            current(directory),
            read_marks(files, config.ledger_directories, mark_file_name(journal, count)),
            has_run=has_run,
            on_loss=on_loss,
        )
        for journal, directory in enumerate(config.journal_directories)
    ]


def _has_run(files: FileSystem, config: StorageConfig) -> bool:
    """Whether a bookie has run on the directories: it was not stopped cleanly, or there are entry logs."""
    names = (files.list_directory(current(path)) for path in config.ledger_directories)
    return any(name == DIRTY_FILE or name.endswith(LOG_SUFFIX) for each in names for name in each)


def start_of_replay(
    files: FileSystem, directory: Path, marks: Sequence[StoredMark], *, has_run: bool, on_loss: OnLoss
) -> LogMark:
    """The position at which the replay of one journal begins; `marks` are those of all ledger directories.

    `has_run` is whether a bookie ran on the directories before. Raises OSError, and the errors of `on_loss`.
    """
    journals = list_journals(files, directory)
    mark = _borne_out(files, directory, marks, on_loss)
    if not journals and not marks and has_run:
        on_loss(LostDataException(f"journal directory {directory} is empty though the bookie has run on it"))
    behind = [journal_id for journal_id in journals if journal_id >= mark.journal_id]
    for before, after in pairwise(behind):
        if after != before + 1:
            path = directory / fmt.file_name(before + 1)
            on_loss(LostDataException(f"journal {path} is missing between {before:x} and {after:x}"))
    return mark


def _borne_out(files: FileSystem, directory: Path, marks: Sequence[StoredMark], on_loss: OnLoss) -> LogMark:
    passed_over: list[tuple[StoredMark, str]] = []
    chosen = NO_MARK
    for stored in marks:
        problem = _problem(files, directory, stored) if stored.mark.journal_id > 0 else None
        if problem is None:
            chosen = stored.mark
            break
        passed_over.append((stored, problem))
    certain = [problem for stored, problem in passed_over if stored.sealed or chosen == NO_MARK]
    if certain:
        on_loss(LostDataException(certain[0]))
    for stored, problem in passed_over:
        log_event(
            _log, "mark_passed_over", logging.WARNING, path=stored.path, reason=problem, note="another mark counts"
        )
    return chosen


def _problem(files: FileSystem, directory: Path, stored: StoredMark) -> str | None:
    """Why the journal does not confirm the mark; None if it does."""
    mark, path = stored.mark, directory / fmt.file_name(stored.mark.journal_id)
    try:
        fd = files.open(path, os.O_RDONLY)
    except FileNotFoundError:
        return f"journal {path} is missing, but the last mark says that it is not yet fully in ledger storage"
    try:
        if mark.offset > files.size(fd):
            return f"journal {path} has {files.size(fd)} bytes, and the last mark {stored.path} says {mark.offset}"
        if stored.sealed and any(files.pread(fd, min(_BLOCK, mark.offset), max(0, mark.offset - _BLOCK))):
            return None
        if _is_record_boundary(files, fd, mark.offset, stored):
            return None
        return f"journal {path} has no record that ends at {mark.offset}, where the last mark {stored.path} stands"
    finally:
        files.close(fd)


def _is_zero(files: FileSystem, fd: int, start: int, end: int) -> bool:
    """Whether a part of a file has zeros only; behind the end of the file there are none."""
    return not any(any(files.pread(fd, min(_PART, end - at), at)) for at in range(start, end, _PART))


def _is_record_boundary(files: FileSystem, fd: int, offset: int, stored: StoredMark) -> bool:
    """Whether records end at `offset`, or the scan of Apache BookKeeper's bookie stops there after them.

    Also true if damage before `offset` hides this: nothing there is needed. Not if zeros reach from the damaged length
    to beyond `offset`: what was there may be gone as well.
    """
    size, scan = files.size(fd), None
    try:
        version, end = fmt.decode_header(files.pread(fd, 8, 0), str(stored.path))
        if offset <= end:
            return True
        scan = JournalScan(lambda count, at: files.pread(fd, count, at), size, end, version, str(stored.path))
        for record in scan:
            if record.offset >= offset:
                return offset in (record.offset, end)
            end = scan.end
    except StorageCorruptException as error:
        damaged_at = 0 if scan is None else scan.end
        if _is_zero(files, fd, damaged_at + _LENGTH_SIZE, offset + _BLOCK):
            return False
        log_event(_log, "journal_damaged_before_mark", logging.WARNING, error=error, note="it is not needed")
        return True
    foreign = () if stored.sealed else (scan.end + _LENGTH_SIZE, size)
    return offset in (end, scan.end, *foreign)
