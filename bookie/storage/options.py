"""Where storage keeps its files, and its limits, as plain values."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal

from bookgate.bookie.journal.options import JournalOptions

_MIB = 1 << 20


@dataclass(frozen=True, slots=True)
class StorageConfig:
    """Where storage keeps its files and how much it may use. Sizes are in bytes unless the name says otherwise."""

    journal_directories: tuple[Path, ...]
    ledger_directories: tuple[Path, ...]
    index_directories: tuple[Path, ...] = ()
    """Empty: the index lies in the ledger directories."""
    storage: Literal["sorted", "interleaved", "db"] = "sorted"
    """What the index is: files (both of the first names) or RocksDB."""
    journal: JournalOptions = field(default_factory=JournalOptions)
    """The same for each journal."""
    journal_entries: bool = True
    """False keeps entries out of the journal, and acknowledges them at once; keys, fences and LACs are journaled."""
    skip_invalid_records: bool = False
    """Replay a damaged journal file up to the damage, and go on with the next, instead of refusing the start."""
    read_ahead_bytes: int = 32 * _MIB
    """Entries read ahead for sequential readers."""
    journal_max_backups: int = 5
    write_cache_bytes: int = 64 * _MIB
    """Both halves together, with an allowance for each entry's bookkeeping."""
    ledger_cache_bytes: int = 64 * _MIB
    open_file_limit: int = 256
    """Entry logs kept open for reading."""
    ledger_state_limit: int = 100_000
    """Ledgers kept in memory although nobody uses them."""
    entry_log_max_bytes: int = 1024 * _MIB
    flush_interval_seconds: float = 10.0

    def each_journal(self) -> JournalOptions:
        """The options of one journal: all queues together hold half as much as the write cache."""
        return replace(
            self.journal,
            pre_alloc_bytes=max(self.journal.alignment_bytes, self.journal.pre_alloc_bytes),
            queue_limit_bytes=max(1, self.write_cache_bytes // 2 // len(self.journal_directories)),
            ample_bytes=self.write_cache_bytes + 4 * self.journal.pre_alloc_bytes,
        )
