"""Opens the stores of a bookie as configured: index files, or RocksDB.

Index files: one store over all ledger directories. RocksDB: one per ledger directory, the i-th index directory
belonging to the i-th ledger directory; a ledger belongs to store `ledgerId mod n`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from bookgate.bookie.disks import directories
from bookgate.bookie.disks.writable import WritableDirectories
from bookgate.bookie.entry_logs.entry_logs import EntryLogs
from bookgate.bookie.index.file_index import LedgerCache
from bookgate.bookie.index.index_list import IndexLists
from bookgate.bookie.statistics import StoreStatistics
from bookgate.bookie.storage.ledger_store import LedgerStore
from bookgate.bookie.storage.options import StorageConfig
from bookgate.bookie.system.files import FileSystem
from bookgate.bookie.system.threads import REAL_THREADS, Threads

Writable = Callable[[], Sequence[Path]]
"""The configured directories (parents of `current`) that may take new files."""


def open_stores(
    config: StorageConfig,
    files: FileSystem,
    disks: WritableDirectories,
    statistics: StoreStatistics,
    threads: Threads = REAL_THREADS,
) -> tuple[LedgerStore, ...]:
    """Opens the stores. The directories must exist and be locked. Raises OSError."""
    ledgers = [directories.current(path) for path in config.ledger_directories]
    indexes = [directories.current(path) for path in config.index_directories] or ledgers
    logs_in = _current_of(disks.directories_for_entry_logs)
    if config.storage == "db":
        return _database_stores(config, files, ledgers, indexes, statistics, threads)
    listed = IndexLists(files, config.ledger_directories[0])
    index = LedgerCache(
        files, indexes, config.ledger_cache_bytes, _current_of(disks.directories_for_index_files), statistics, listed
    )
    index.finish_relocations()
    return (LedgerStore(index, _logs(config, files, ledgers, logs_in, statistics, threads), statistics),)


def _database_stores(
    config: StorageConfig,
    files: FileSystem,
    ledgers: Sequence[Path],
    indexes: Sequence[Path],
    statistics: StoreStatistics,
    threads: Threads = REAL_THREADS,
) -> tuple[LedgerStore, ...]:
    """One store per directory. A full directory still gets the logs of its ledgers, which have no other directory."""
    from bookgate.bookie.index.rocksdb_index import RocksDbIndex  # RocksDB is loaded only if it is used
    from bookgate.bookie.index.rocksdb_sequences import SCOPED_SEQUENCES_FILE, SEQUENCES_FILE, Sequences

    if len(ledgers) != len(indexes):
        raise directories.DirectoryException(
            f"storage db has {len(ledgers)} ledger directories and {len(indexes)} index directories; "
            "configure as many of both"
        )
    opened: list[LedgerStore] = []
    try:
        for ledger_directory, index_directory in zip(ledgers, indexes, strict=True):
            sequences = Sequences(files, ledger_directory.parent / SEQUENCES_FILE)
            cache_bytes = config.ledger_cache_bytes // len(ledgers)
            scoped = Sequences(files, ledger_directory.parent / SCOPED_SEQUENCES_FILE)
            index = RocksDbIndex(files, index_directory, cache_bytes, sequences=sequences, scoped_sequences=scoped)
            logs = _logs(config, files, [ledger_directory], lambda: (), statistics, threads)
            opened.append(LedgerStore(index, logs, statistics))
    except BaseException:
        for store in opened:
            store.close()
        raise
    return tuple(opened)


def _logs(
    config: StorageConfig,
    files: FileSystem,
    ledgers: Sequence[Path],
    writable: Writable,
    statistics: StoreStatistics,
    threads: Threads = REAL_THREADS,
) -> EntryLogs:
    return EntryLogs(
        files,
        ledgers,
        max_bytes=config.entry_log_max_bytes,
        open_files=config.open_file_limit,
        read_ahead_bytes=config.read_ahead_bytes // len(config.ledger_directories if config.storage == "db" else (0,)),
        writable=writable,
        statistics=statistics,
        threads=threads,
    )


def _current_of(writable: Writable) -> Writable:
    return lambda: [directories.current(path) for path in writable()]
