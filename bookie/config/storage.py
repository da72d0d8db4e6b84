"""The settings of storage: directories, journal, caches, entry logs.

Lists of directories are separated by commas in the environment and in options; a TOML file may hold a list as well.
Where BookKeeper has the same setting, the description gives its name.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

from pydantic import BeforeValidator, Field
from pydantic_settings import BaseSettings, NoDecode

from bookgate.bookie.journal.options import JournalOptions
from bookgate.bookie.storage.options import StorageConfig
from bookgate.runtime.settings import ConsistentSettings, Renamed, with_unit

_MIB = 1024 * 1024


def _split(value: Any) -> Any:
    if isinstance(value, str):
        return [part.strip() for part in value.split(",") if part.strip()]
    return [value] if isinstance(value, Path) else value


Paths = Annotated[tuple[Path, ...], NoDecode, BeforeValidator(_split)]


class StorageSettings(BaseSettings, ConsistentSettings):
    """The settings of storage, a part of the bookie's."""

    RENAMED: ClassVar[Mapping[str, Renamed]] = {
        **with_unit("_bytes", "journal_alignment_size", "journal_buffered_writes_threshold"),
        "journal_max_group_wait_ms": Renamed("journal_max_group_wait_seconds", 1000),
    }

    data_dir: Path | None = Field(None, description="holds journal and ledgers unless those are set themselves")
    journal_directory: Path | None = Field(None, description="journalDirectory; default: DATA_DIR/journal")
    ledger_directory: Path | None = Field(None, description="ledgerDirectories, of one; default: DATA_DIR/ledgers")
    journal_directories: Paths = Field((), description="journalDirectories, each with a thread of its own")
    ledger_directories: Paths = Field((), description="ledgerDirectories")
    index_directories: Paths = Field((), description="indexDirectories; default: the ledger directories")
    storage_type: Literal["sorted", "interleaved", "db"] = Field(
        "sorted", description="ledgerStorageClass: index files (the first two mean the same) or RocksDB"
    )
    allow_storage_expansion: bool = Field(
        False, description="allowStorageExpansion: new, empty ledger and index directories may join"
    )
    journal_max_size_mb: int = Field(512, ge=1, description="journalMaxSizeMB")
    journal_max_backups: int = Field(5, ge=0, description="journalMaxBackups")
    journal_pre_alloc_size_mb: int = Field(16, ge=1, description="journalPreAllocSizeMB")
    journal_alignment_size_bytes: int = Field(512, ge=512, multiple_of=512, description="journalAlignmentSize")
    journal_max_group_wait_seconds: float = Field(
        0.0, ge=0, description="journalMaxGroupWaitMSec; 0, the default here, syncs whenever the disk is free: faster"
    )
    journal_flush_when_queue_empty: bool = Field(
        False, description="journalFlushWhenQueueEmpty: as if the group wait was 0"
    )
    journal_buffered_writes_threshold_bytes: int = Field(
        512 * 1024, ge=1, description="journalBufferedWritesThreshold: what ends the group wait"
    )
    journal_buffered_entries_threshold: int = Field(
        0, ge=0, description="journalBufferedEntriesThreshold: records that end the group wait; 0 = no limit"
    )
    journal_sync_data: bool = Field(
        True, description="journalSyncData; false acknowledges what a loss of power may take back"
    )
    journal_write_data: bool = Field(
        True, description="journalWriteData; false keeps entries out of the journal: a crash loses the last of them"
    )
    skip_replay_journal_invalid_record: bool = Field(
        False, description="skipReplayJournalInvalidRecord: a damaged journal file is read up to the damage"
    )
    write_cache_mb: int = Field(128, ge=1, description="memory for entries not yet in the entry log, both halves")
    ledger_cache_mb: int = Field(64, ge=1, description="memory for index pages (pageLimit), or RocksDB's block cache")
    read_ahead_cache_mb: int = Field(32, ge=0, description="memory for entries read ahead of sequential readers")
    open_log_limit: int = Field(256, ge=1, description="entry logs kept open for reading")
    ledger_state_limit: int = Field(
        100_000, ge=1, description="ledgers whose state stays in memory although nobody uses them, about 700 bytes each"
    )
    max_entry_gap: int = Field(
        1 << 36, ge=0, description="how far beyond a ledger's last entry here the next one may lie; 0 = no limit"
    )
    flush_interval_seconds: float = Field(10.0, gt=0, description="flushInterval: at most this between checkpoints")
    entry_log_max_mb: int = Field(1024, ge=1, le=1024, description="logSizeLimit")

    def contradictions(self) -> Iterator[str]:
        yield from super().contradictions()
        for one, several in (("journal_directory", "journal_directories"), ("ledger_directory", "ledger_directories")):
            if getattr(self, one) is not None and getattr(self, several):
                yield f"set {one} or {several}, not both"
        journals = self.journal_directory or self.journal_directories
        ledgers = self.ledger_directory or self.ledger_directories
        if self.data_dir is None and not (journals and ledgers):
            yield "set data_dir, or both journal_directory and ledger_directory"
        elif self.storage_type == "db" and len(self.index_directories) not in (0, len(self.ledgers)):
            yield "storage_type db needs as many index_directories as ledger_directories"
        if self.storage_type == "db" and self.allow_storage_expansion:
            yield (
                "storage_type db can't take more directories, as allow_storage_expansion wants: they decide where each "
                "ledger lies"
            )

    @property
    def journals(self) -> tuple[Path, ...]:
        """The journal directories, absolute."""
        return self._absolute(self.journal_directories, self.journal_directory, "journal")

    @property
    def ledgers(self) -> tuple[Path, ...]:
        """The ledger directories, absolute."""
        return self._absolute(self.ledger_directories, self.ledger_directory, "ledgers")

    @property
    def indexes(self) -> tuple[Path, ...]:
        """The index directories, absolute; empty if the index is in the ledger directories."""
        return tuple(path.absolute() for path in self.index_directories)

    def _absolute(self, several: tuple[Path, ...], one: Path | None, name: str) -> tuple[Path, ...]:
        if several:
            return tuple(path.absolute() for path in several)
        if one is not None:
            return (one.absolute(),)
        assert self.data_dir is not None, "checked when the settings were made"
        return ((self.data_dir / name).absolute(),)

    def storage(self) -> StorageConfig:
        """The settings as plain values."""
        return StorageConfig(
            journal_directories=self.journals,
            ledger_directories=self.ledgers,
            index_directories=self.indexes,
            storage=self.storage_type,
            journal=JournalOptions(
                max_size_bytes=self.journal_max_size_mb * _MIB,
                pre_alloc_bytes=self.journal_pre_alloc_size_mb * _MIB,
                alignment_bytes=self.journal_alignment_size_bytes,
                max_group_wait_seconds=0
                if self.journal_flush_when_queue_empty
                else self.journal_max_group_wait_seconds,
                buffered_writes_bytes=self.journal_buffered_writes_threshold_bytes,
                buffered_entries=self.journal_buffered_entries_threshold,
                sync_data=self.journal_sync_data,
            ),
            journal_max_backups=self.journal_max_backups,
            write_cache_bytes=self.write_cache_mb * _MIB,
            ledger_cache_bytes=self.ledger_cache_mb * _MIB,
            read_ahead_bytes=self.read_ahead_cache_mb * _MIB,
            open_file_limit=self.open_log_limit,
            ledger_state_limit=self.ledger_state_limit,
            flush_interval_seconds=self.flush_interval_seconds,
            entry_log_max_bytes=self.entry_log_max_mb * _MIB,
            journal_entries=self.journal_write_data,
            skip_invalid_records=self.skip_replay_journal_invalid_record,
        )
