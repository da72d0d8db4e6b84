"""The bookie's directories: layout, locks, the small files in them, and free space.

All data is in the `current` child of a configured directory; the lock file is next to it, so that `current` contains
only what Apache BookKeeper puts there. Source: docs/protocol/storage.md#directories.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Iterable, Mapping
from functools import lru_cache
from pathlib import Path

from bookgate.bookie.disks.rules import DirectoryUsage
from bookgate.bookie.system.files import NEW_SUFFIX, REAL_FILE_SYSTEM, FileSystem, read_whole, write_beside

CURRENT = "current"
LOCK_FILE = "bookie.lock"
VERSION_FILE = "VERSION"

_OLD_LAYOUT_SUFFIXES = (".txn", ".idx", ".log")


class DirectoryException(OSError):
    """A directory can't be used; the message names it, with the remedy."""


@lru_cache(64)
def current(directory: Path) -> Path:
    return directory / CURRENT


def prepare(directory: Path, files: FileSystem = REAL_FILE_SYSTEM) -> None:
    """Creates the directory and its `current`, durably: synced files are lost if the directory's own name is not
    durable.
    """
    inner = current(directory)
    try:
        if not files.exists(inner) and files.exists(directory):
            _refuse_old_layout(directory, files)
        made = [path for path in (inner, *inner.parents) if not files.exists(path)]
        for path in reversed(made):
            files.make_directory(path)
        if not files.is_directory(inner):
            raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), str(inner))
        # The innermost name is synced even if it existed: the process that created it may have been killed before the
        # sync.
        for path in reversed(made or [inner]):
            files.sync_directory(path.parent)
    except DirectoryException:
        raise
    except OSError as error:
        raise DirectoryException(
            f"can't create directory {inner}: {error.strerror}; make its parent writable or configure another directory"
        ) from error


def _refuse_old_layout(directory: Path, files: FileSystem) -> None:
    for name in files.list_directory(directory):
        if name == VERSION_FILE or name.endswith(_OLD_LAYOUT_SUFFIXES):
            raise DirectoryException(
                f"directory {directory} holds {name} but no {CURRENT}: it is of a layout before version 3. "
                "Upgrade it with the BookKeeper version that wrote it, or configure an empty directory."
            )


class DirectoryLock:
    """An exclusive lock on a set of directories, released with the process at the latest."""

    def __init__(self, directories: Iterable[Path], files: FileSystem = REAL_FILE_SYSTEM) -> None:
        """Raises DirectoryException naming the directory that another process holds."""
        self._files = files
        self._fds: list[int] = []
        try:
            for directory in dict.fromkeys(files.resolve(path) for path in directories):
                self._fds.append(_lock(directory, files))
        except BaseException:
            self.release()
            raise

    def release(self) -> None:
        while self._fds:
            self._files.close(self._fds.pop())


def _lock(directory: Path, files: FileSystem) -> int:
    path = directory / LOCK_FILE
    try:
        fd = files.open(path, os.O_RDWR | os.O_CREAT)
    except OSError as error:
        raise DirectoryException(f"can't open {path}: {error.strerror}; make {directory} writable") from error
    try:
        taken = files.lock(fd)
    except BaseException:
        files.close(fd)
        raise
    if not taken:
        files.close(fd)
        raise DirectoryException(
            f"directory {directory} is in use by another bookie process; stop that one or configure another directory"
        )
    return fd


def usage(directory: Path, files: FileSystem = REAL_FILE_SYSTEM) -> DirectoryUsage:
    """Usage of the directory's disk. Raises OSError."""
    return DirectoryUsage(*files.space(directory))


def total_usage(paths: Iterable[Path], files: FileSystem = REAL_FILE_SYSTEM) -> DirectoryUsage:
    """The sum over the directories' disks, each counted once. Raises OSError."""
    disks = {files.device(path): usage(path, files) for path in paths}
    return DirectoryUsage(
        sum(disk.total_bytes for disk in disks.values()), sum(disk.free_bytes for disk in disks.values())
    )


def read_version_files(files: FileSystem, directories: Iterable[Path]) -> dict[Path, bytes | None]:
    """Content of each directory's VERSION file, None where there is none."""
    return {path: read_whole(files, current(path) / VERSION_FILE) for path in directories}


def write_version_files(files: FileSystem, cookies: Mapping[Path, bytes]) -> None:
    """Writes each file completely or not at all. A failed first start thus leaves no empty cookie, which the next start
    would reject.
    """
    for path, content in cookies.items():
        write_beside(files, current(path) / VERSION_FILE, content)
        files.sync_directory(current(path))


def remove_version_files(files: FileSystem, directories: Iterable[Path]) -> None:
    """Takes back what `write_version_files` has written for a new bookie."""
    for path in directories:
        files.unlink(current(path) / VERSION_FILE)
        files.sync_directory(current(path))


def empty_directories(files: FileSystem, directories: Iterable[Path]) -> frozenset[Path]:
    """The directories whose `current` is empty or contains only a cookie: no bookie was ever opened on them."""
    cookies = {VERSION_FILE, VERSION_FILE + NEW_SUFFIX}
    return frozenset(path for path in directories if set(files.list_directory(current(path))) <= cookies)
