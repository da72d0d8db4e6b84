"""Tells whether a file was replaced or rewritten since it was read: certificates, keys, the mapping of racks."""

from __future__ import annotations

import os
from pathlib import Path

FileMark = tuple[int, int, int]
"""Equal as long as the file is the same: time of the last change in nanoseconds, inode, size in bytes."""


def mark_of(path: str | Path) -> FileMark:
    """The mark of a file. Raises OSError."""
    status = os.stat(path)
    return status.st_mtime_ns, status.st_ino, status.st_size
