"""Opens the stores of a bookie as its configuration wants them: index files, or RocksDB.

Index files: one store over all ledger directories. RocksDB: one for each ledger directory, the i-th index directory
belonging to the i-th ledger directory; a ledger belongs to store `ledgerId mod n`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from bookie import directories
from bookie.entry_logs import EntryLogs
from bookie.files import FileSystem
from bookie.ledger_cache import LedgerCache
from bookie.ledger_store import LedgerStore
from bookie.storage_config import StorageConfig

Writable = Callable[[], Sequence[Path]]
"""The configured directories (parents of `current`) that may take new files."""


def open_stores(
    config: StorageConfig, files: FileSystem, writable_ledgers: Writable, writable_indexes: Writable
) -> tuple[LedgerStore, ...]:
    """The stores, open. The directories are made and locked. Raises OSError."""
    ledgers = [directories.current(path) for path in config.ledger_directories]
    indexes = [directories.current(path) for path in config.index_directories] or ledgers
    if config.storage == "db":
        raise NotImplementedError("storage = db: the RocksDB index is not built into this version")
    index = LedgerCache(files, indexes, config.ledger_cache_bytes, _current_of(writable_indexes))
    index.finish_relocations()
    return (LedgerStore(index, _logs(config, files, ledgers, _current_of(writable_ledgers))),)


def _logs(config: StorageConfig, files: FileSystem, ledgers: Sequence[Path], writable: Writable) -> EntryLogs:
    return EntryLogs(
        files,
        ledgers,
        max_bytes=config.entry_log_max_bytes,
        open_files=config.open_file_limit,
        writable=writable,
    )


def _current_of(writable: Writable) -> Writable:
    return lambda: [directories.current(path) for path in writable()]
