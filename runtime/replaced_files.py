"""Files that a command replaces as a whole: after any failure there is the former file or the new one, never a part.

Not its job: the files of a bookie, whose writes the simulator sees (`bookie.system.files`).
"""

from __future__ import annotations

import errno
import os
import secrets
from contextlib import suppress
from pathlib import Path


def replace_file(path: Path, content: bytes, mode: int) -> None:
    """Writes the content beside the file, makes it durable, and gives it the file's name and mode.

    Where the path is a link, what it points to is replaced; what is no file, such as a pipe, is written to. Raises
    OSError, which names the path.
    """
    try:
        if path.exists() and not path.is_file():
            path.write_bytes(content)
        else:
            _replace(path.resolve(), content, mode)
    except OSError as error:
        # Not the name of the file beside it, which is gone by now.
        raise OSError(error.errno, error.strerror, str(path)) from error
    except RuntimeError as error:
        raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), str(path)) from error


def _replace(path: Path, content: bytes, mode: int) -> None:
    new = path.with_name(f".{path.name}.{secrets.token_hex(4)}.new")
    try:
        with open(os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode), "wb", buffering=0) as file:
            _write(file.fileno(), content)
            os.fsync(file.fileno())
        os.replace(new, path)
    except BaseException:
        with suppress(OSError):
            new.unlink()
        raise
    _sync_directory(path.parent)


def _write(descriptor: int, content: bytes) -> None:
    left = memoryview(content)
    while left:
        left = left[os.write(descriptor, left) :]


def _sync_directory(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
