"""One RocksDB database of an index: translates its errors, and survives lack of space and of descriptors.

After a write that found no space, or no descriptor for a new file, RocksDB accepts no further write until it is
reopened, and opening needs both itself. A database is therefore in one of three states:

- writable;
- stale: a write found no space, reads continue;
- readable: it was stale and could not be reopened for writing, because there was still no space, or this was so at the
  start. It was opened read-only, which needs neither space nor lock.

A write to a database that is not writable reopens it first, and raises ENOSPC if that fails. Meanwhile readers see what
was durable; nothing is missing for them, because what was not synced is still in the write cache.

Any thread may read. A reader that finds its handle closed uses the new one. An iterator lives as long as it is used,
and with it the old handle with its lock: the next write then tries again.

One thread writes, and another may compact meanwhile; both reopen, one at a time. A reopening ends a compaction under
way: no write waits for one, and RocksDB would remove files that the new handle is about to read.
"""

from __future__ import annotations

import contextlib
import errno
import logging
import threading
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from rocksdict import AccessType, DbClosedError, Options, Rdict, WriteBatch, WriteOptions

from bookgate.bookie.system.data_loss import ACCEPT_LOSS
from bookgate.bookie.system.files import (
    FileSystem,
    StorageCorruptException,
    StorageStoppedException,
    is_no_space,
)
from bookgate.runtime.logs import log_event

_log = logging.getLogger(__name__)

T = TypeVar("T")

_NOT_WRITTEN = {
    "No space left on device": (errno.ENOSPC, "has no room left"),
    "Disk quota exceeded": (errno.EDQUOT, "has no room left"),
    "Too many open files in system": (errno.ENFILE, "can't open a file"),
    "Too many open files": (errno.EMFILE, "can't open a file"),
    "read only mode": (errno.ENOSPC, "had no room and is open for reading only"),
}
"""Words of RocksDB's errors after which a write is tried again: the first that fit."""

_NAMES_THE_CONTENT = "CURRENT"
"""RocksDB writes this file last when it makes a database, as a whole, and never removes it."""


def is_complete(files: FileSystem, path: Path) -> bool:
    """Whether a database was made here: without it, rows have never been there."""
    return files.exists(path / _NAMES_THE_CONTENT)


class Database:
    """See the module. `options` makes those of one opening. Raises OSError, StorageCorruptException."""

    def __init__(self, path: Path, options: Callable[[], Options], *, read_only: bool = False) -> None:
        """`read_only` touches neither lock nor file; a database in use is read as it was then."""
        self._path = path
        self._options = options
        self._synced = WriteOptions()
        self._synced.sync = True
        self._writable = not read_only
        self._closed = False
        self._reopening = threading.Lock()
        try:
            self._rows = self._open(read_only)
        except OSError as error:
            if read_only or not is_no_space(error):
                raise
            self._rows = self._open_for_reading(error)

    def _open(self, read_only: bool) -> Rdict:
        access = AccessType.read_only() if read_only else AccessType.read_write()
        return translated(self._path, lambda: Rdict(str(self._path), self._options(), access_type=access))

    def _open_for_reading(self, found_no_space: OSError) -> Rdict:
        """Raises `found_no_space` where there is no database to read yet."""
        try:
            rows = self._open(read_only=True)
        except OSError as error:
            log_event(_log, "database_not_opened", logging.ERROR, path=self._path, error=error)
            raise found_no_space from None
        self._writable = False
        log_event(_log, "database_read_only", logging.ERROR, path=self._path, error=found_no_space)
        return rows

    def read(self, call: Callable[[Rdict], T]) -> T:
        """Any call that changes nothing."""
        while True:
            rows = self._rows
            try:
                return translated(self._path, lambda rows=rows: call(rows))  # type: ignore[misc]
            except StorageStoppedException:
                if rows is self._rows:
                    raise

    def translated(self, call: Callable[[], T]) -> T:
        """A call of an iterator."""
        return translated(self._path, call)

    def write(self, batch: WriteBatch) -> None:
        """Durably. The batch is used up by an attempt that fails: whoever made the updates makes them again."""
        self.make_writable()
        try:
            translated(self._path, lambda: self._rows.write(batch, self._synced))
        except OSError as error:
            if is_no_space(error):
                self._writable = False
            raise

    def sequence(self) -> int:
        """The number of the last change, which never goes back."""
        return int(self.read(lambda rows: rows.latest_sequence_number()))

    def compact(self) -> None:
        """Rewrites everything, so that deleted rows take no more room. Blocking, long. Raises ENOSPC also where a write
        found no space meanwhile.
        """
        self.make_writable()
        rows = self._rows
        try:
            translated(self._path, lambda: rows.compact_range(None, None))
        except StorageStoppedException:
            if rows is self._rows:
                raise
        if rows is not self._rows or not self._writable:
            raise OSError(errno.ENOSPC, f"the database {self._path} found no room while it was compacted")

    @property
    def is_writable(self) -> bool:
        """Whether all that it shows is durable."""
        return self._writable

    def make_writable(self) -> None:
        """Reopens it if a write, or its opening, found no space. Then all that it shows is durable. Raises ENOSPC."""
        with self._reopening:
            if not self._writable and not self._closed:
                self._reopen()

    def _reopen(self) -> None:
        translated(self._path, lambda: self._rows.cancel_all_background(True))
        old, self._rows = self._rows, self._open(read_only=True)
        _close(self._path, old)
        try:
            rows = self._open(read_only=False)
        except BlockingIOError as error:
            raise OSError(errno.ENOSPC, f"the database {self._path} had no room and is still being read") from error
        old, self._rows, self._writable = self._rows, rows, True
        _close(self._path, old)
        log_event(_log, "database_has_space", path=self._path)

    def close(self) -> None:
        """What was not synced is dropped, as a crash would. May be called again."""
        with self._reopening:
            self._closed = True
            _close(self._path, self._rows)


def _close(path: Path, rows: Rdict) -> None:
    with contextlib.suppress(DbClosedError):
        try:
            rows.close()
        except DbClosedError:
            raise
        except Exception as error:
            # What RocksDB would still write is in its log already, or was never taken.
            log_event(_log, "database_closed_badly", logging.WARNING, path=path, error=error)


def translated(path: Path, call: Callable[[], T]) -> T:
    """Runs a call of RocksDB; its errors, which have no class of their own, become those of storage."""
    try:
        return call()
    except OSError as error:
        if error.errno is None:  # the binding's own, which says neither what nor where
            raise _not_written(path, str(error)) or type(error)(
                f"the database {path} can't be opened: {error}"
            ) from error
        raise
    except Exception as error:
        raise _storage_error(path, error) from error


def _not_written(path: Path, text: str) -> OSError | None:
    for words, (code, what) in _NOT_WRITTEN.items():
        if words in text:
            return OSError(code, f"the database {path} {what}: {text}")
    return None


def _storage_error(path: Path, error: Exception) -> OSError:
    text = str(error)
    if isinstance(error, DbClosedError):
        return StorageStoppedException(f"the database {path} is closed")
    not_written = _not_written(path, text)
    if not_written is not None:
        return not_written
    if text.startswith(("Corruption", "Invalid argument", "Not implemented")):
        return StorageCorruptException(
            f"the database {path} is damaged, or not one of RocksDB: {text}. Restore it; or give this bookie up and "
            "let its ledgers be replicated from the others; or remove it and start the bookie once with "
            f"{ACCEPT_LOSS}: what it lacks is then unknown to it, not absent"
        )
    if "lock" in text.lower():
        return OSError(errno.EAGAIN, f"the database {path} is in use by another process: {text}")
    return OSError(errno.EIO, f"the database {path} failed: {text}")
