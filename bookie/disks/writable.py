"""Which of the configured directories are writable, as storage asks before it begins a file.

Not its job: measuring (`monitor`), the rules (`rules`).
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Protocol


class WritableDirectories(Protocol):
    """The directories are the configured ones, the parents of `current`. Any thread asks."""

    def directories_for_entry_logs(self) -> Sequence[Path]:
        """Ledger directories that a new entry log may begin in. None of them: all are tried."""

    def directories_for_index_files(self) -> Sequence[Path]:
        """Index directories that a new index file may go to. The same."""

    def is_full_journal_directory(self, directory: Path) -> bool:
        """Whether a journal directory's disk is full: journal files that are kept as backup go then."""


class AllDirectories:
    """Disks that are not measured: every directory is writable."""

    def __init__(self, ledger_directories: Sequence[Path], index_directories: Sequence[Path]) -> None:
        self._ledgers = ledger_directories
        self._indexes = index_directories or ledger_directories

    def directories_for_entry_logs(self) -> Sequence[Path]:
        return self._ledgers

    def directories_for_index_files(self) -> Sequence[Path]:
        return self._indexes

    def is_full_journal_directory(self, directory: Path) -> bool:
        return False
