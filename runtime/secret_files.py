"""Secrets in files, or on standard input. The library reads them too, without the extra of the command line."""

from __future__ import annotations

import sys
from pathlib import Path


def secret_of(file: Path) -> str:
    """What a file holds, less one line's end; of standard input (`-`) the first line, and what follows is left there.

    Raises OSError, ValueError for what is no UTF-8.
    """
    if str(file) != "-":
        text = file.read_bytes()
    else:
        with open(sys.stdin.fileno(), "rb", buffering=0, closefd=False) as unbuffered:
            text = unbuffered.readline()
    return text.removesuffix(b"\n").removesuffix(b"\r").decode()
