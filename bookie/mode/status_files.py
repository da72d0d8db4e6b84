"""BOOKIE_STATUS and DIRTY: files in the ledger directories that record the bookie's mode and whether it stopped
cleanly.

BOOKIE_STATUS is one line, `1,<READ_WRITE|READ_ONLY>,<milliseconds>,<manual: true|false>`; the older form lacks the last
field and counts as manual. It is written to every ledger directory when the mode changes; the newest counts. DIRTY is
empty, and exists from the end of a start to the end of a clean stop. Source: docs/protocol/storage.md#bookie_status,
docs/protocol/storage.md#dirty.
"""

from __future__ import annotations

import errno
import logging
import os
from collections.abc import Iterable
from pathlib import Path

from bookgate.bookie.disks.directories import current
from bookgate.bookie.mode.mode import BookieStatus
from bookgate.bookie.system.files import FileSystem, read_whole, write_in_place
from bookgate.runtime.logs import log_event

_log = logging.getLogger(__name__)

_NOT_PERMITTED = (errno.EACCES, errno.EPERM, errno.EROFS)

STATUS_FILE = "BOOKIE_STATUS"
DIRTY_FILE = "DIRTY"
_VERSION = "1"
_READ_ONLY, _READ_WRITE = "READ_ONLY", "READ_WRITE"


def encode(status: BookieStatus) -> bytes:
    mode = _READ_ONLY if status.read_only else _READ_WRITE
    return f"{_VERSION},{mode},{status.updated_ms},{str(status.manual).lower()}\n".encode()


def decode(content: bytes) -> BookieStatus | None:
    """The status; None if the content is not a valid one."""
    fields = content.decode("utf-8", "replace").strip().split(",")
    if len(fields) not in (3, 4) or fields[0] != _VERSION or fields[1] not in (_READ_ONLY, _READ_WRITE):
        return None
    if not fields[2].isascii() or not fields[2].isdigit():
        return None
    manual = len(fields) == 3 or fields[3].lower() == "true"
    return BookieStatus(fields[1] == _READ_ONLY, manual, int(fields[2]))


def read_status(files: FileSystem, ledger_directories: Iterable[Path]) -> BookieStatus | None:
    """The newest status of all directories, None if there is none. Unreadable files are skipped."""
    found: list[BookieStatus] = []
    for directory in ledger_directories:
        path = current(directory) / STATUS_FILE
        try:
            content = read_whole(files, path)
        except OSError as error:
            log_event(_log, "status_not_read", logging.WARNING, path=path, error=error)
            continue
        status = decode(content) if content is not None else None
        if status is not None:
            found.append(status)
        elif content is not None:
            log_event(_log, "status_not_read", logging.WARNING, path=path, error="it is no status of a bookie")
    return max(found, key=lambda status: status.updated_ms, default=None)


def write_status(files: FileSystem, ledger_directories: Iterable[Path], status: BookieStatus) -> bool:
    """Writes the status to every directory; one that can't store it (it may be full) is logged and skipped.

    False if all were skipped: the next start finds an earlier status.
    """
    written = [_write_status(files, current(directory) / STATUS_FILE, status) for directory in ledger_directories]
    return any(written) or not written


def _write_status(files: FileSystem, path: Path, status: BookieStatus) -> bool:
    try:
        write_in_place(files, path, encode(status))
    except OSError as error:
        log_event(_log, "status_not_written", logging.WARNING, path=path, error=error)
        return False
    return True


def mark_dirty(files: FileSystem, ledger_directories: Iterable[Path]) -> bool:
    """Records that the bookie runs. Returns True if the last run did not end cleanly.

    A full disk is logged only: storage can wait for space. Raises OSError if the directory may not be written to: no
    checkpoint would succeed.
    """
    was_dirty = False
    for directory in ledger_directories:
        path = current(directory) / DIRTY_FILE
        try:
            if DIRTY_FILE in files.list_directory(current(directory)):
                was_dirty = True
                continue
            files.close(files.open(path, os.O_RDWR | os.O_CREAT))
            files.sync_directory(current(directory))
        except OSError as error:
            if error.errno in _NOT_PERMITTED:
                raise
            log_event(_log, "dirty_mark_not_made", logging.WARNING, path=path, error=error)
    return was_dirty


def mark_clean(files: FileSystem, ledger_directories: Iterable[Path]) -> None:
    """Records a clean stop: everything is on disk."""
    for directory in ledger_directories:
        path = current(directory) / DIRTY_FILE
        try:
            files.unlink(path)
            files.sync_directory(current(directory))
        except FileNotFoundError:
            continue
        except OSError as error:
            log_event(_log, "dirty_mark_not_removed", logging.WARNING, path=path, error=error)
