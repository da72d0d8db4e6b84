"""Gives the space of a part of a file back to the file system: fallocate(2), which Python does not offer."""

from __future__ import annotations

import ctypes
import errno
import os

_KEEP_SIZE, _PUNCH_HOLE = 1, 2
_CANNOT = (errno.EOPNOTSUPP, errno.ENOSYS, errno.EINVAL)


def punch_hole(fd: int, start: int, size: int) -> bool:
    """Makes a hole, which reads as zeros. False where the file system or the system cannot. Raises OSError."""
    fallocate = getattr(ctypes.CDLL(None, use_errno=True), "fallocate64", None)
    if fallocate is None:
        return False
    fallocate.argtypes = (ctypes.c_int, ctypes.c_int, ctypes.c_int64, ctypes.c_int64)
    if fallocate(fd, _KEEP_SIZE | _PUNCH_HOLE, start, size) == 0:
        return True
    error = ctypes.get_errno()
    if error in _CANNOT:
        return False
    raise OSError(error, os.strerror(error))
