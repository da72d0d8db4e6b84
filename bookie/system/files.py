"""The bookie's interface to the disk: every byte that storage reads or writes passes through `FileSystem`.

The real one calls the operating system; tests and the simulator pass a subclass that fails, tears, forgets or records.
Calls are those of POSIX with two additions: writes are complete or raise, and every error names its file.

Not its job: formats, caching, deciding when to sync.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from bookgate.bookie.system.holes import punch_hole

_syncfs = getattr(ctypes.CDLL(None, use_errno=True), "syncfs", None)
_fadvise = getattr(os, "posix_fadvise", None)


class StorageCorruptException(OSError):
    """What is on the disk can't be what was written: a torn record, ids that do not match, a header that is no header.

    Answered as an I/O error, never as "no such entry" (S3).
    """


class StorageStoppedException(OSError):
    """Storage is not open, or stopped after a disk error; nothing is accepted or acknowledged any more."""


class NotOpenedException(OSError):
    """There was no descriptor or no memory to open a file with: nothing was read or written."""


def is_not_opened(error: BaseException) -> bool:
    """Whether a file was not opened for want of descriptors or memory."""
    return isinstance(error, NotOpenedException) or (
        isinstance(error, OSError) and error.errno in (errno.EMFILE, errno.ENFILE)
    )


def is_no_space(error: BaseException) -> bool:
    """Whether a write found no room on the disk, or no quota, or could not begin since its file was not opened."""
    return is_not_opened(error) or (isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT))


class FileSystem:
    """The real file system. Every method raises OSError."""

    def open(self, path: Path, flags: int) -> int:
        """A file descriptor; `flags` are those of os.open. A new file is for this user and its group."""
        with _opening():
            return os.open(path, flags | os.O_CLOEXEC, 0o640)

    def close(self, fd: int) -> None:
        os.close(fd)

    def pread(self, fd: int, size: int, offset: int) -> bytes:
        """Up to `size` bytes at `offset`; fewer only at the end of the file."""
        try:
            data = os.pread(fd, size, offset)
            while len(data) < size and (more := os.pread(fd, size - len(data), offset + len(data))):
                data += more
        except OSError as error:
            raise _named(error, fd) from None
        return data

    def pread_in_memory(self, fd: int, buffer: memoryview, offset: int) -> int:
        """Fills `buffer` with what lies at `offset`, as far as that needs no disk. Never blocks.

        Returns:
            The number of bytes, 0 where it is unknown whether the disk is needed.
        """
        try:
            return os.preadv(fd, (buffer,), offset, os.RWF_NOWAIT)
        except OSError:
            # Not in memory, or a file system that can't tell; what else is wrong `pread` says.
            return 0

    def pwrite(self, fd: int, data: bytes, offset: int) -> None:
        """Writes all of `data` at `offset`."""
        try:
            written = os.pwrite(fd, data, offset)
            if written == len(data):
                return
            rest = memoryview(data)
            while written < len(data):
                written += os.pwrite(fd, rest[written:], offset + written)
        except OSError as error:
            raise _named(error, fd) from None

    def allocate(self, fd: int, size: int) -> None:
        """Makes the file at least `size` bytes long, the new ones zero, and reserves the space."""
        try:
            os.posix_fallocate(fd, 0, size)
        except OSError as error:
            raise _named(error, fd) from None

    def free_bytes(self, fd: int) -> int:
        """What an ordinary user may still take of the file system that holds the file."""
        status = os.fstatvfs(fd)
        return status.f_bavail * status.f_frsize

    def truncate(self, fd: int, size: int) -> None:
        """Sets the file's length, with zeros (a hole) where it grows."""
        try:
            os.ftruncate(fd, size)
        except OSError as error:
            raise _named(error, fd) from None

    def clear(self, fd: int, start: int, end: int) -> None:
        """Makes these bytes zeros, and gives their space back where the file system can (a hole)."""
        try:
            if not punch_hole(fd, start, end - start):
                for offset in range(start, end, _ZEROS):
                    os.pwrite(fd, bytes(min(_ZEROS, end - offset)), offset)
        except OSError as error:
            raise _named(error, fd) from None

    def size(self, fd: int) -> int:
        return os.fstat(fd).st_size

    def data_extents(self, fd: int, start: int) -> Iterator[tuple[int, int]]:
        """(first byte, end) of the parts of the file from `start` that are not holes, ascending."""
        size = self.size(fd)
        position = start
        while position < size:
            try:
                position = os.lseek(fd, position, os.SEEK_DATA)
            except OSError:  # ENXIO: nothing but a hole up to the end
                return
            end = os.lseek(fd, position, os.SEEK_HOLE)
            yield position, end
            position = end

    def fdatasync(self, fd: int) -> None:
        try:
            os.fdatasync(fd)
        except OSError as error:
            raise _named(error, fd) from None

    def fsync(self, fd: int) -> None:
        try:
            os.fsync(fd)
        except OSError as error:
            raise _named(error, fd) from None

    def forget_cached(self, fd: int) -> None:
        """Drops what memory has of the file, save what was written and not synced: it is read from the disk again.

        After a sync that failed, Linux takes what it has in memory for written, and shows it to readers.
        """
        if _fadvise is not None:
            _fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)

    def sync_directory(self, path: Path) -> None:
        """Makes the names in a directory durable."""
        fd = self.open_file_system(path)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)

    @property
    def syncs_file_systems(self) -> bool:
        """Whether `sync_file_system` can be used: Linux has it."""
        return _syncfs is not None

    def open_file_system(self, path: Path) -> int:
        """A descriptor of the file system that holds a directory, for sync_file_system; close it."""
        with _opening():
            return os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)

    def sync_file_system(self, fd: int) -> None:
        """Makes everything on the file system durable, contents and names, whoever wrote it.

        Raises OSError also for what failed to be written back since `fd` was opened (Linux 5.8 and later), be its file
        closed: so open it before the first write that it is to cover.
        """
        if _syncfs is None:
            raise OSError(errno.ENOSYS, "this system can't sync a file system as a whole")
        if _syncfs(fd) != 0:
            error = ctypes.get_errno()
            raise OSError(error, os.strerror(error))

    def make_directory(self, path: Path) -> bool:
        """Creates the directory; False when it was there already."""
        try:
            path.mkdir(0o750)
        except FileExistsError:
            return False
        return True

    def exists(self, path: Path) -> bool:
        return path.exists()

    def resolve(self, path: Path) -> Path:
        """The path without links in it."""
        return path.resolve()

    def is_directory(self, path: Path) -> bool:
        return path.is_dir()

    def may_change(self, path: Path) -> bool:
        """Whether the directory can be read and written; False too where the system has remounted it read-only."""
        return os.access(path, os.R_OK | os.W_OK | os.X_OK)

    def space(self, path: Path) -> tuple[int, int]:
        """Bytes of the file system that holds the path: all, and those that an ordinary user may still take."""
        status = os.statvfs(path)
        return status.f_blocks * status.f_frsize, status.f_bavail * status.f_frsize

    def device(self, path: Path) -> int:
        """A number for the file system that holds the path."""
        return os.stat(path).st_dev

    def lock(self, fd: int) -> bool:
        """Takes the file for this process until it is closed, or the process ends; False when another has it."""
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True

    def list_directory(self, path: Path) -> list[str]:
        with _opening():
            return os.listdir(path)

    def unlink(self, path: Path) -> None:
        path.unlink()

    def link(self, path: Path, name: Path) -> None:
        """Gives a file one more name on the same file system. Raises FileExistsError when there is such a name."""
        os.link(path, name)

    def same_file(self, path: Path, other: Path) -> bool:
        """Whether both are names of one file. Both exist."""
        return os.path.samefile(path, other)

    def rename(self, path: Path, target: Path) -> None:
        """Gives a file another name on the same file system, replacing what has that name."""
        path.rename(target)


_ZEROS = 1 << 20
"""Zeros written at once."""


def _named(error: OSError, fd: int) -> OSError:
    """The error with the name of the file, where the system can tell it (Linux)."""
    with suppress(OSError):
        error.filename = error.filename or os.readlink(f"/proc/self/fd/{fd}")
    return error


@contextmanager
def _opening() -> Iterator[None]:
    """Other calls than these may fail for want of memory as well, and have done something by then."""
    try:
        yield
    except OSError as error:
        if error.errno == errno.ENOMEM:
            raise NotOpenedException(error.errno, error.strerror, error.filename) from error
        raise


REAL_FILE_SYSTEM = FileSystem()


def read_whole(files: FileSystem, path: Path) -> bytes | None:
    """Content of a small file, None when there is no such file."""
    try:
        fd = files.open(path, os.O_RDONLY)
    except FileNotFoundError:
        return None
    try:
        return files.pread(fd, files.size(fd), 0)
    finally:
        files.close(fd)


def write_in_place(files: FileSystem, path: Path, data: bytes, *, sync: bool = True) -> None:
    """Overwrites the beginning of a small file (created if need be) and, with `sync`, makes content and name durable.

    Meant for content below a disk sector, which changes as a whole: there is no moment at which the file is empty.
    """
    fd = files.open(path, os.O_RDWR | os.O_CREAT)
    try:
        files.pwrite(fd, data, 0)
        if files.size(fd) > len(data):
            files.truncate(fd, len(data))
        if sync:
            files.fsync(fd)
    finally:
        files.close(fd)
    if sync:
        files.sync_directory(path.parent)


NEW_SUFFIX = ".new"


def write_beside(files: FileSystem, path: Path, data: bytes) -> None:
    """Replaces a file as a whole: the content is written beside it, synced, and takes its name.

    After a failure or a loss of power the file is the old one (or missing, as before) or the new one. The name is
    durable once the caller has synced the directory.
    """
    new = path.with_name(path.name + NEW_SUFFIX)
    fd = files.open(new, os.O_RDWR | os.O_CREAT)
    try:
        files.truncate(fd, 0)
        files.pwrite(fd, data, 0)
        files.fsync(fd)
    finally:
        files.close(fd)
    files.rename(new, path)
