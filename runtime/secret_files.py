"""Secrets in files, or on standard input. The library reads them too, without the command-line extra."""

from __future__ import annotations

import sys
from pathlib import Path


def secret_of(file: Path) -> str:
    """The content of a file without one line end; for standard input (`-`) the first line only, the rest stays unread.

    Raises OSError, and ValueError for invalid UTF-8.
    """
    if str(file) != "-":
        text = file.read_bytes()
    else:
        with open(sys.stdin.fileno(), "rb", buffering=0, closefd=False) as unbuffered:
            text = unbuffered.readline()
    return text.removesuffix(b"\n").removesuffix(b"\r").decode()
