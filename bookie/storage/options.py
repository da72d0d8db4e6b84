"""Where storage keeps its files, and its limits, as plain values."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from bookgate.bookie.journal.options import JournalOptions

_MIB = 1 << 20


@dataclass(frozen=True, slots=True)
class StorageConfig:
    """Where storage keeps its files and how much it may take. Sizes in bytes unless the name says otherwise."""

    journal_directories: tuple[Path, ...]
    ledger_directories: tuple[Path, ...]
    index_directories: tuple[Path, ...] = ()
    """Empty: the index lies in the ledger directories."""
    storage: Literal["sorted", "interleaved", "db"] = "sorted"
    """What the index is: files (both of the first names) or RocksDB."""
    journal_max_size_bytes: int = 512 * _MIB
    journal_pre_alloc_bytes: int = 16 * _MIB
    journal_alignment: int = 512
    journal_max_group_wait_seconds: float = 0.0
    """How long a flush waits for more requests; 0 flushes whenever the journal thread is free."""
    journal_buffered_entries: int = 0
    """Records that end that wait; 0: however many."""
    journal_entries: bool = True
    """False keeps entries out of the journal, and acknowledges them at once; keys, fences and LACs are journaled."""
    skip_invalid_records: bool = False
    """Replay a damaged journal file up to the damage, and go on with the next, instead of refusing the start."""
    read_ahead_bytes: int = 32 * _MIB
    """Entries read ahead for sequential readers."""
    journal_buffered_writes_bytes: int = 512 * 1024
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
    sync_data: bool = True
    """False acknowledges before the journal is synced: for tests and throw-away data only."""

    def journal(self) -> JournalOptions:
        """The same for each of its journals: their queues together hold half of what the write cache does."""
        return JournalOptions(
            max_size=self.journal_max_size_bytes,
            pre_alloc=max(self.journal_alignment, self.journal_pre_alloc_bytes),
            alignment=self.journal_alignment,
            buffered_writes=self.journal_buffered_writes_bytes,
            max_group_wait_seconds=self.journal_max_group_wait_seconds,
            queue_limit=max(1, self.write_cache_bytes // 2 // len(self.journal_directories)),
            sync_data=self.sync_data,
            buffered_entries=self.journal_buffered_entries,
            ample=self.write_cache_bytes + 4 * self.journal_pre_alloc_bytes,
        )
