"""Which of the configured directories are writable: the question that storage asks before it creates a file.

Not its job: measuring (`monitor`), the rules (`rules`).
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Protocol


class WritableDirectories(Protocol):
    """Answers for the configured directories, the parents of `current`. May be called from any thread."""

    def directories_for_entry_logs(self) -> Sequence[Path]:
        """Ledger directories in which a new entry log may begin. If empty, all are tried."""

    def directories_for_index_files(self) -> Sequence[Path]:
        """Index directories in which a new index file may be created. If empty, all are tried."""

    def is_full_journal_directory(self, directory: Path) -> bool:
        """Whether a journal directory's disk is full: journal files kept as backup are then deleted."""


class AllDirectories:
    """For disks that are not measured: every directory is writable."""

    def __init__(self, ledger_directories: Sequence[Path], index_directories: Sequence[Path]) -> None:
        self._ledgers = ledger_directories
        self._indexes = index_directories or ledger_directories

    def directories_for_entry_logs(self) -> Sequence[Path]:
        return self._ledgers

    def directories_for_index_files(self) -> Sequence[Path]:
        return self._indexes

    def is_full_journal_directory(self, directory: Path) -> bool:
        return False
