"""Whether an operator has suspended the deletion of ledgers; this survives restarts.

The suspension is a file in one of the ledger directories, which Apache BookKeeper's bookie ignores. Not its job: the
setting `gc_collect_ledgers`, which suspends as well.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypeVar

from bookgate.bookie.disks.directories import current
from bookgate.bookie.system.files import FileSystem
from bookgate.bookie.system.threads import REAL_THREADS, Threads

SUSPENDED_FILE = "LEDGER_COLLECTION_SUSPENDED"

T = TypeVar("T")


class DeletionSuspendedException(Exception):
    """An operator suspended the deletion of ledgers after the run began."""


class LedgerSuspension:
    """Blocking; any thread. Raises OSError."""

    def __init__(self, files: FileSystem, ledger_directories: Sequence[Path], threads: Threads = REAL_THREADS) -> None:
        self._files = files
        self._deleting = threads.lock()
        """Held while something is deleted: once `suspend` has returned nothing more is."""
        self._directories = [current(path) for path in ledger_directories]

    def is_suspended(self) -> bool:
        return any(SUSPENDED_FILE in self._files.list_directory(path) for path in self._directories)

    def suspend(self) -> None:
        directory = self._directories[0]
        with self._deleting:
            self._files.close(self._files.open(directory / SUSPENDED_FILE, os.O_RDWR | os.O_CREAT))
            self._files.sync_directory(directory)

    def unless_suspended(self, delete: Callable[[], T]) -> T:
        """The result of `delete`. Raises DeletionSuspendedException."""
        with self._deleting:
            if self.is_suspended():
                raise DeletionSuspendedException
            return delete()

    def resume(self) -> None:
        for directory in self._directories:
            if SUSPENDED_FILE in self._files.list_directory(directory):
                self._files.unlink(directory / SUSPENDED_FILE)
                self._files.sync_directory(directory)
