"""The RocksDB index of one index directory: a pair of databases for ledgers of scope 0, and one for all others.

The second is made with the first ledger that has a scope: a directory without such ledgers is as BookKeeper's bookie
makes and reads it. Both share one block cache. Source: docs/protocol/storage.md#rocksdb-index,
docs/protocol/scoped-ledgers.md#rocksdb.

The one sync-er and updater is the checkpoint thread, or whoever holds the checkpoint lock; any thread reads. Not its
job: rows and keys (`rocksdb_rows`), which index is used (`ledger_store`).
"""

from __future__ import annotations

from array import array
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path
from typing import ClassVar

from rocksdict import Cache

from bookgate.bookie.index.file_format import IndexHeader, SlotRun
from bookgate.bookie.index.rocksdb_database import is_complete
from bookgate.bookie.index.rocksdb_rows import SCOPED, SCOPED_LEDGERS, SCOPED_LOCATIONS, RocksDbRows
from bookgate.bookie.index.rocksdb_sequences import Sequences
from bookgate.bookie.system.data_loss import OnLoss
from bookgate.bookie.system.files import FileSystem, is_no_space, is_not_opened
from bookgate.ledger.ledger_id import LedgerId


class RocksDbIndex:
    """See the module. `cache_bytes` bounds the blocks of locations kept in memory."""

    shows_unsynced: ClassVar[bool] = False

    def __init__(
        self,
        files: FileSystem,
        directory: Path,
        cache_bytes: int,
        *,
        read_only: bool = False,
        sequences: Sequences | None = None,
        scoped_sequences: Sequences | None = None,
    ) -> None:
        """Opens the databases below `directory`, or creates those of scope 0. Raises OSError, StorageCorruptException.

        With `read_only` neither lock nor file is touched, and a database that is in use can be read as it was then.
        """
        self._files = files
        self._directory = directory
        self._cache = Cache(cache_bytes)
        self._read_only = read_only
        self._scoped_sequences = scoped_sequences
        self._unscoped = RocksDbRows(files, directory, self._cache, read_only=read_only, sequences=sequences)
        self._scoped_paths = directory / SCOPED_LOCATIONS, directory / SCOPED_LEDGERS
        self._scoped: RocksDbRows | None = None
        if any(map(files.exists, self._scoped_paths)):
            try:
                self._scoped = self._open_existing_scoped()
            except BaseException:
                self._unscoped.close()
                raise

    def _open_existing_scoped(self) -> RocksDbRows | None:
        """None for databases that a full disk left unfinished and still keeps so: the first update completes them."""
        try:
            return self._open_scoped()
        except OSError as error:
            if not is_no_space(error) or is_not_opened(error) or self._may_have_scoped_rows():
                raise
            return None

    def _may_have_scoped_rows(self) -> bool:
        if all(is_complete(self._files, path) for path in self._scoped_paths):
            return True
        return self._scoped_sequences is None or self._scoped_sequences.may_tell_of_changes()

    def _open_scoped(self) -> RocksDbRows:
        return RocksDbRows(
            self._files,
            self._directory,
            self._cache,
            layout=SCOPED,
            read_only=self._read_only,
            sequences=self._scoped_sequences,
        )

    def _rows(self, ledger_id: LedgerId) -> RocksDbRows | None:
        """Those that may have the ledger."""
        return self._unscoped if ledger_id.scope_id == 0 else self._scoped

    def _all(self) -> Sequence[RocksDbRows]:
        return (self._unscoped,) if self._scoped is None else (self._unscoped, self._scoped)

    # Reading

    def read_header(self, ledger_id: LedgerId) -> tuple[IndexHeader | None, int] | None:
        """(header, highest entry id or -1); None for a ledger without a row, whatever locations there are."""
        rows = self._rows(ledger_id)
        return None if rows is None else rows.read_header(ledger_id.number)

    def location(self, ledger_id: LedgerId, entry_id: int) -> int:
        """Where the entry is, 0 when the index does not have it."""
        rows = self._rows(ledger_id)
        return 0 if rows is None else rows.location(ledger_id.number, entry_id)

    def locations_in_memory(self, ledger_id: LedgerId, first_entry_id: int, count: int) -> Sequence[int]:
        """None: RocksDB can't say what it has in memory."""
        return ()

    def scattered_locations_in_memory(self, ledger_id: LedgerId, entry_ids: Sequence[int]) -> Sequence[int]:
        """None, as above."""
        return ()

    def locations(self, ledger_id: LedgerId, first_entry_id: int, count: int) -> list[int]:
        """`location` of up to `count` consecutive entries, ending before the first that is absent."""
        rows = self._rows(ledger_id)
        return [] if rows is None else rows.locations(ledger_id.number, first_entry_id, count)

    @property
    def cached_pages(self) -> int:
        """None: RocksDB keeps blocks of its own."""
        return 0

    def entry_ids(self, ledger_id: LedgerId) -> Iterator[int]:
        """Ids of the ledger's entries in the index, ascending."""
        rows = self._rows(ledger_id)
        return iter(()) if rows is None else rows.entry_ids(ledger_id.number)

    def log_ids(self, ledger_id: LedgerId) -> set[int]:
        """The entry logs that the ledger's locations point into."""
        rows = self._rows(ledger_id)
        return set() if rows is None else rows.log_ids(ledger_id.number)

    def ledger_ids(self) -> array[int]:
        """Ids of all ledgers of scope 0 with a row, ascending."""
        return array("q", self._unscoped.numbers())

    def scoped_ledgers(self) -> list[int]:
        """Numbers of all ledgers with a scope and a row, ascending."""
        return [] if self._scoped is None else list(self._scoped.numbers())

    # Writing

    def update(self, ledger_id: LedgerId, header: IndexHeader | None, runs: Sequence[SlotRun]) -> None:
        """Takes down slots, and the header if given, of one ledger. Seen by readers, and durable, after `sync`."""
        try:
            rows = self._rows(ledger_id)
            if rows is None:
                rows = self._scoped = self._open_scoped()
            rows.update(ledger_id.number, header, runs)
        except OSError:
            # Whoever made the updates makes all of them again.
            for each in self._all():
                each.drop_updates()
            raise

    def prepare_deletion(self) -> None:
        """There is nothing to do: a deletion is only taken down until `sync`."""

    def delete(self, ledger_id: LedgerId) -> None:
        """Removes a ledger and its locations; unknown ones are ignored. Durable after `sync`."""
        rows = self._rows(ledger_id)
        if rows is not None:
            rows.delete(ledger_id.number)

    def delete_below(self, ledger_id: LedgerId, entry_id: int) -> None:
        """Removes the locations below an entry, but never the ledger's last one. Durable after `sync`."""
        rows = self._rows(ledger_id)
        if rows is not None:
            rows.delete_below(ledger_id.number, entry_id)

    def sync(self) -> None:
        """Makes all updates durable, in each pair locations first."""
        for rows in self._all():
            rows.sync()

    def read_back(self, ledger_ids: Sequence[LedgerId]) -> None:
        """Syncs: what a database read when it was opened it has written again, and its files have checksums. One that
        found no space may show a batch that is not durable, until it can be opened for writing.
        """
        self.sync()
        for rows in self._all():
            rows.make_writable()

    @property
    def locations_path(self) -> Path:
        """The database of scope 0 that `compact` is about, which stands for both."""
        return self._unscoped.locations_path

    def find_lost(self, trusted: bool, on_loss: OnLoss) -> Collection[int]:
        """None by itself: a database is there as a whole or not."""
        for rows in self._all():
            rows.check_sequences(trusted, on_loss)
        if self._scoped is None and self._scoped_sequences is not None:
            # No database is no proof that there never was one.
            self._scoped_sequences.check((0, 0), self._directory, trusted, on_loss)
        return ()

    def forget(self, numbers: Collection[int]) -> dict[int, int]:
        """Nobody will miss them anyway."""
        return {}

    def put_back(self, forgotten: dict[int, int]) -> None:
        """There is nothing to do."""

    def compact(self) -> None:
        """Rewrites the locations so that deleted rows take no more room. Blocking, long."""
        for rows in self._all():
            rows.compact()

    def close(self) -> None:
        """Closes the databases; what was not synced is dropped, as a crash would. May be called again."""
        for rows in self._all():
            rows.close()
