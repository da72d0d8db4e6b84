"""Whether an operator has suspended the deletion of ledgers; this survives restarts.

The suspension is a file in one of the ledger directories, which Apache BookKeeper's bookie ignores. Not its job: the
setting `gc_collect_ledgers`, which suspends as well.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from bookgate.bookie.disks.directories import current
from bookgate.bookie.system.files import FileSystem

SUSPENDED_FILE = "LEDGER_COLLECTION_SUSPENDED"


class LedgerSuspension:
    """Blocking; any thread. Raises OSError."""

    def __init__(self, files: FileSystem, ledger_directories: Sequence[Path]) -> None:
        self._files = files
        self._directories = [current(path) for path in ledger_directories]

    def is_suspended(self) -> bool:
        return any(SUSPENDED_FILE in self._files.list_directory(path) for path in self._directories)

    def suspend(self) -> None:
        directory = self._directories[0]
        self._files.close(self._files.open(directory / SUSPENDED_FILE, os.O_RDWR | os.O_CREAT))
        self._files.sync_directory(directory)

    def resume(self) -> None:
        for directory in self._directories:
            if SUSPENDED_FILE in self._files.list_directory(directory):
                self._files.unlink(directory / SUSPENDED_FILE)
                self._files.sync_directory(directory)
