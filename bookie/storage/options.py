"""The directories and limits of storage, as plain values."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal

from bookgate.bookie.journal.options import JournalOptions

_MIB = 1 << 20


@dataclass(frozen=True, slots=True)
class StorageConfig:
    """The directories and limits of storage. Sizes are in bytes unless the name says otherwise."""

    journal_directories: tuple[Path, ...]
    ledger_directories: tuple[Path, ...]
    index_directories: tuple[Path, ...] = ()
    """Directories of the index; if empty, the ledger directories."""
    storage: Literal["sorted", "interleaved", "db"] = "sorted"
    """Type of the index: files (both of the first names) or RocksDB."""
    journal: JournalOptions = field(default_factory=JournalOptions)
    """The options of each journal."""
    journal_entries: bool = True
    """If false, entries are not journaled and are acknowledged at once; keys, fences and LACs are still journaled."""
    skip_invalid_records: bool = False
    """Replays a damaged journal file up to the damage, and continues with the next, instead of refusing the start."""
    read_ahead_bytes: int = 32 * _MIB
    """Bytes of entries read ahead for sequential readers."""
    journal_max_backups: int = 5
    write_cache_bytes: int = 64 * _MIB
    """Bytes of both halves of the write cache together, including an estimate for bookkeeping."""
    ledger_cache_bytes: int = 64 * _MIB
    open_file_limit: int = 256
    """Maximum number of entry logs kept open for reading."""
    ledger_state_limit: int = 100_000
    """Maximum number of unused ledgers kept in memory."""
    entry_log_max_bytes: int = 1024 * _MIB
    flush_interval_seconds: float = 10.0

    def each_journal(self) -> JournalOptions:
        """The options of one journal; the queues of all journals together hold half as much as the write cache."""
        return replace(
            self.journal,
            pre_alloc_bytes=max(self.journal.alignment_bytes, self.journal.pre_alloc_bytes),
            queue_limit_bytes=max(1, self.write_cache_bytes // 2 // len(self.journal_directories)),
            ample_bytes=self.write_cache_bytes + 4 * self.journal.pre_alloc_bytes,
        )
