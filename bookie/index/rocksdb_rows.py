"""Rows of ledgers in RocksDB, and their keys, as BookKeeper's DbLedgerStorage lays them out.

Two databases belong together. `locations` has a row for each entry: ledger id and entry id (16 bytes) lead to
the 8-byte location. `ledgers` has a row for each ledger: its id (8 bytes) leads to a `LedgerData` with key, fence and
explicit LAC. All integers are big-endian, so the order of the keys is that of the ids. Two things more are found in
directories of the Java bookie: rows of `ledgers` with 16-byte keys (id and zeros), left by its rebuild tool, and one
row under a negative id with flags of the whole storage, which stays as it is. Source:
docs/protocol/storage.md#rocksdb-index.

Ledgers with a scope have two databases of their own, whose keys have the 16 bytes of a ledger's number where the others
have eight. Source: docs/protocol/scoped-ledgers.md#rocksdb.

Updates gather in a batch that `sync` writes with RocksDB's own synced write; until then readers find the entries in
the write cache, and nothing of a ledger that is being deleted. Locations are written before ledgers, and deleted before
them: a ledger that the index knows may lack entries that the journal still has, but no row of a ledger is lost while
its entries stay. Locations of a ledger without a row are the rest of such a deletion, or of a flush that never wrote
the row. They are hidden from a ledger that is made with this id, and the batch with its first locations begins with
their deletion (D1): what was acknowledged of them comes back from the journal.

A batch that could not be written is lost. Its updates come again, since their entries stay in the write cache, but its
deletions may not: the id may belong to a new ledger by then, and nobody deletes that (D1). The next batch therefore
begins with all deletions that are not durable yet.

Where both kinds of row exist, neither takes anything away from the other: a fence in one holds, and a key in one holds.

Invariants: S3 (an error of RocksDB is never "absent"), S6 and S7 by way of `sync`. The one sync-er and updater is the
checkpoint thread, or whoever holds the checkpoint lock; any thread reads.

Not its job: which pair a ledger belongs to (`rocksdb_index`), RocksDB's own errors and want of space
(`rocksdb_database`), entry logs, caching ledgers (`ledger_table`).
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from google.protobuf.message import DecodeError
from rocksdict import (
    BlockBasedOptions,
    Cache,
    ChecksumType,
    DBCompressionType,
    DBRecoveryMode,
    Options,
    Rdict,
    ReadOptions,
    WriteBatch,
)

from bookgate.bookie.index.file_format import SLOT_SIZE, IndexHeader, SlotRun
from bookgate.bookie.index.rocksdb_database import Database
from bookgate.bookie.index.rocksdb_sequences import Sequences
from bookgate.bookie.index.terms import Terms
from bookgate.bookie.system.data_loss import OnLoss
from bookgate.bookie.system.files import FileSystem, StorageCorruptException
from bookgate.ledger.ledger_id import NO_ENTRY, ledger_name
from bookgate.protos.bookkeeper.proto.db_ledger_storage_pb2 import LedgerData

LOCATIONS = "locations"
LEDGERS = "ledgers"
SCOPED_LOCATIONS = "scoped-locations"
SCOPED_LEDGERS = "scoped-ledgers"

_MAX_ID = (1 << 63) - 1
_BATCH_OPERATIONS = 100_000
_MIB = 1 << 20
_BLOOM_BITS = 10
_LEDGERS_CACHE = 4 * _MIB

_entry_id = struct.Struct(">q")
_location = struct.Struct(">q")
_NO_LOCATION = bytes(SLOT_SIZE)
_REBUILT_SUFFIX = bytes(8)


class Layout(NamedTuple):
    """Names of a pair of databases, and how many bytes of a key are the ledger's number."""

    locations: str
    ledgers: str
    ledger_size: int
    last_key: bytes
    """Behind the keys of all ledgers."""


UNSCOPED = Layout(LOCATIONS, LEDGERS, 8, (1 << 63).to_bytes(8, "big"))  # negative ids sort last
SCOPED = Layout(SCOPED_LOCATIONS, SCOPED_LEDGERS, 16, b"\xff" * 17)


class RocksDbRows:
    """See the module. `cache` is for the blocks of `locations`."""

    def __init__(
        self,
        files: FileSystem,
        directory: Path,
        cache: Cache,
        *,
        layout: Layout = UNSCOPED,
        read_only: bool = False,
        sequences: Sequences | None = None,
    ) -> None:
        """Opens both databases below `directory`, or creates them. Raises OSError, StorageCorruptException.

        With `read_only` neither lock nor file is touched, and a database that is in use can be read as it was then.
        """
        self._directory = directory
        self._layout = layout
        self._sequences = sequences
        self._locations = Database(self.locations_path, lambda: _locations_options(cache), read_only=read_only)
        try:
            self._ledgers = Database(directory / layout.ledgers, _ledgers_options, read_only=read_only)
        except BaseException:
            self._locations.close()
            raise
        try:
            if not read_only:
                # RocksDB syncs what is in its directories, not their own names.
                files.sync_directory(directory)
        except BaseException:
            self.close()
            raise
        self._new_locations = WriteBatch(raw_mode=True)
        self._new_ledgers = WriteBatch(raw_mode=True)
        self._deleting: set[int] = set()
        """Ledgers of which nothing is found any more, although their rows are there until `sync` succeeds."""
        self._leftovers: set[int] = set()
        """Ledgers that had locations and no row when their header was read."""
        self._begun: set[int] = set()
        """Ledgers without a row, with updates since the last `sync`: their locations are not leftovers."""

    # Reading

    def _key(self, number: int) -> bytes:
        """What the keys of a ledger's rows begin with."""
        return number.to_bytes(self._layout.ledger_size, "big")

    def _ids(self, key: bytes) -> tuple[int, int]:
        """Ledger and entry of a location's key."""
        size = self._layout.ledger_size
        return int.from_bytes(key[:size], "big"), int(_entry_id.unpack_from(key, size)[0])

    def read_header(self, number: int) -> tuple[IndexHeader | None, int] | None:
        """(header, highest entry id or -1); None for a ledger without a row, whatever locations there are."""
        row = self._row(number)
        if row is None:
            if number not in self._deleting and self._has_locations(number):
                self._leftovers.add(number)
            return None
        lac = row.explicitLac if row.HasField("explicitLac") else None
        terms = _terms_of(row)
        fenced = row.fenced if terms is None else terms.fenced
        header = IndexHeader(row.masterKey, fenced, lac or None, row.limbo, terms=terms)
        return header, self._last_entry_id(number)

    def location(self, number: int, entry_id: int) -> int:
        """Where the entry is, 0 when the index does not have it."""
        if self._is_hidden(number):
            return 0
        key = self._key(number) + _entry_id.pack(entry_id)
        return self._decode_location(key, self._locations.read(lambda rows: rows.get(key)))

    def locations(self, number: int, first_entry_id: int, count: int) -> list[int]:
        """`location` of up to `count` consecutive entries, ending before the first that is absent."""
        if self._is_hidden(number):
            return []
        ledger = self._key(number)
        bounds = ReadOptions()
        bounds.set_iterate_upper_bound(ledger + _entry_id.pack(min(first_entry_id + count, _MAX_ID)))
        found: list[int] = []
        rows = self._iterate(self._locations, ledger + _entry_id.pack(first_entry_id), bounds)
        for key, value in rows:
            if self._ids(key)[1] != first_entry_id + len(found):
                break
            found.append(self._decode_location(key, value))
        return found

    def entry_ids(self, number: int) -> Iterator[int]:
        """Ids of the ledger's entries in the index, ascending."""
        if self._is_hidden(number):
            return
        for key, _ in self._rows_of(number):
            yield self._ids(key)[1]

    def log_ids(self, number: int) -> set[int]:
        """The entry logs that the ledger's locations point into."""
        rows = self._rows_of(number)
        return {location >> 32 for key, value in rows if (location := self._decode_location(key, value))}

    def _is_hidden(self, number: int) -> bool:
        """Whether the locations in the database are not those of the ledger that has this id now."""
        # The row is looked up: another thread may add a ledger while `sync` writes its row.
        return number in self._deleting or (number in self._leftovers and self._row(number) is None)

    def numbers(self) -> Iterator[int]:
        """All ledgers with a row, ascending."""
        last = -1
        for key in self._keys_of_ledgers():
            number = int.from_bytes(key[: self._layout.ledger_size], "big")
            if number != last:
                yield number
            last = number

    def _row(self, number: int) -> LedgerData | None:
        """The ledger's row, of both where there are two."""
        if number in self._deleting:
            return None
        key = self._key(number)
        own = self._decode_row(number, self._ledgers.read(lambda rows: rows.get(key)))
        rebuilt = self._decode_row(number, self._ledgers.read(lambda rows: rows.get(key + _REBUILT_SUFFIX)))
        if own is None or rebuilt is None:
            return own or rebuilt
        merged = LedgerData(
            exists=True,
            fenced=own.fenced or rebuilt.fenced,
            masterKey=own.masterKey if own.masterKey.strip(b"\0") else rebuilt.masterKey,
        )
        if own.HasField("explicitLac") or rebuilt.HasField("explicitLac"):
            merged.explicitLac = own.explicitLac or rebuilt.explicitLac
        if own.limbo or rebuilt.limbo:
            merged.limbo = True
        _put_terms(merged, _terms_of(own))
        return merged

    def _decode_row(self, number: int, value: bytes | None) -> LedgerData | None:
        if value is None:
            return None
        row = LedgerData()
        try:
            row.ParseFromString(value)
            problem = "" if row.IsInitialized() else "fields are missing"
        except DecodeError as error:
            problem = str(error)
        if problem:
            raise StorageCorruptException(
                f"the row of ledger {ledger_name(number)} in {self._directory / self._layout.ledgers} can't be read: "
                f"{problem}; the database is damaged, restore it or let the bookie's ledgers be replicated again"
            )
        return row

    def _decode_location(self, key: bytes, value: bytes | None) -> int:
        if value is None:
            return 0
        if len(value) != _location.size:
            number, entry_id = self._ids(key)
            raise StorageCorruptException(
                f"the location of entry {entry_id} of ledger {ledger_name(number)} in {self.locations_path} has "
                f"{len(value)} bytes instead of {_location.size}; the database is damaged"
            )
        location: int = _location.unpack(value)[0]
        return location

    def _last_entry_id(self, number: int) -> int:
        def seek(database: Rdict) -> bytes | None:
            rows = database.iter()
            rows.seek_for_prev(self._key(number) + _entry_id.pack(_MAX_ID))
            if not rows.valid():
                rows.status()
                return None
            key: bytes = rows.key()
            return key

        key = self._locations.read(seek)
        if key is None or len(key) != self._layout.ledger_size + _entry_id.size:
            return NO_ENTRY
        found, entry_id = self._ids(key)
        return int(entry_id) if found == number else NO_ENTRY

    def _has_locations(self, number: int) -> bool:
        return next(self._rows_of(number), None) is not None

    def _rows_of(self, number: int) -> Iterator[tuple[bytes, bytes]]:
        bounds = ReadOptions()
        ledger = self._key(number)
        bounds.set_iterate_upper_bound(ledger + _entry_id.pack(_MAX_ID))
        yield from self._iterate(self._locations, ledger + _entry_id.pack(0), bounds)

    def _keys_of_ledgers(self) -> Iterator[bytes]:
        bounds = ReadOptions()
        bounds.set_iterate_upper_bound(self._layout.last_key)
        for key, _ in self._iterate(self._ledgers, self._key(0), bounds):
            yield key

    def _iterate(self, database: Database, first: bytes, bounds: ReadOptions) -> Iterator[tuple[bytes, bytes]]:
        """Rows from `first`. An error in the middle is raised: rows never just end."""
        rows = database.read(lambda rows: rows.iter(bounds))
        database.translated(lambda: rows.seek(first))
        while rows.valid():
            yield rows.key(), rows.value()
            rows.next()
        database.translated(rows.status)

    # Writing

    def update(self, number: int, header: IndexHeader | None, runs: Sequence[SlotRun]) -> None:
        """Takes down slots, and the header if given, of one ledger. Seen by readers, and durable, after `sync`."""
        stored = None
        if header is not None:
            stored = self._row(number)
            if stored is None:
                self._begin(number)
        ledger = self._key(number)
        for run in runs:
            for index, offset in enumerate(range(0, len(run.data), SLOT_SIZE)):
                key = ledger + _entry_id.pack(run.first + index)
                slot = run.data[offset : offset + SLOT_SIZE]
                if slot == _NO_LOCATION:
                    self._new_locations.delete(key)
                else:
                    self._new_locations.put(key, slot)
        if header is not None:
            self._put_header(number, header, stored)
        if len(self._new_locations) >= _BATCH_OPERATIONS:
            self._write_locations()

    def _begin(self, number: int) -> None:
        """Deletes leftovers before the first locations of a ledger, and never what these have become."""
        if number in self._begun or number in self._deleting:
            return
        self._begun.add(number)
        # A database that found no space may show a deletion that its reopening takes back.
        if not self._locations.is_writable or self._has_locations(number):
            self._queue_deletion_of_locations(number)

    def _put_header(self, number: int, header: IndexHeader, stored: LedgerData | None) -> None:
        row = LedgerData(exists=True, fenced=header.fenced, masterKey=header.master_key)
        _put_terms(row, header.terms)
        if header.explicit_lac is not None:
            row.explicitLac = header.explicit_lac
        if stored is not None and stored.limbo:
            row.limbo = True
        key = self._key(number)
        self._new_ledgers.put(key, row.SerializeToString())
        self._new_ledgers.delete(key + _REBUILT_SUFFIX)

    def delete_below(self, number: int, entry_id: int) -> None:
        """Removes the locations below an entry, but never the ledger's last one. Durable after `sync`."""
        key, end = self._key(number), min(entry_id, self._last_entry_id(number))
        if end > 0:
            self._new_locations.delete_range(key + _entry_id.pack(0), key + _entry_id.pack(end))

    def delete(self, number: int) -> None:
        """Removes a ledger and its locations; unknown ones are ignored. Durable after `sync`.

        From now on neither its row nor an entry is found, since the id may be used again.
        """
        self._deleting.add(number)
        self._queue_deletion(number)

    def _queue_deletion(self, number: int) -> None:
        key = self._key(number)
        self._queue_deletion_of_locations(number)
        self._new_ledgers.delete(key)
        self._new_ledgers.delete(key + _REBUILT_SUFFIX)

    def _queue_deletion_of_locations(self, number: int) -> None:
        key = self._key(number)
        self._new_locations.delete_range(key + _entry_id.pack(0), key + _entry_id.pack(_MAX_ID))

    def sync(self) -> None:
        """Makes all updates durable, in the order of the module's text."""
        self._write_locations()
        batch, self._new_ledgers = self._new_ledgers, WriteBatch(raw_mode=True)
        self._write(self._ledgers, batch)
        self._deleting.clear()
        self._leftovers -= self._begun
        self._begun.clear()
        # One that found no space may show a batch that is not durable.
        if self._sequences is not None and self._locations.is_writable and self._ledgers.is_writable:
            self._sequences.store(self._at())

    def _write_locations(self) -> None:
        batch, self._new_locations = self._new_locations, WriteBatch(raw_mode=True)
        self._write(self._locations, batch)

    def _write(self, database: Database, batch: WriteBatch) -> None:
        if len(batch) == 0:
            return
        try:
            database.write(batch)
        except OSError:
            # Both batches: a ledger's row must not be there before its locations.
            self.drop_updates()
            raise

    def drop_updates(self) -> None:
        """Drops what is not written, except deletions."""
        self._new_locations = WriteBatch(raw_mode=True)
        self._new_ledgers = WriteBatch(raw_mode=True)
        self._begun.clear()
        for number in self._deleting:
            self._queue_deletion(number)

    def make_writable(self) -> None:
        """Reopens databases that found no space. Raises ENOSPC where there still is none."""
        self._locations.make_writable()
        self._ledgers.make_writable()

    @property
    def locations_path(self) -> Path:
        """The database that `compact` is about."""
        return self._directory / self._layout.locations

    def check_sequences(self, trusted: bool, on_loss: OnLoss) -> None:
        """Whether the databases have lost something."""
        if self._sequences is not None:
            self._sequences.check(self._at(), self._directory, trusted, on_loss)

    def _at(self) -> tuple[int, int]:
        return self._locations.sequence(), self._ledgers.sequence()

    def compact(self) -> None:
        """Rewrites `locations` so that deleted rows take no more room. Blocking, long."""
        self._locations.compact()

    def close(self) -> None:
        """Closes the databases; what was not synced is dropped, as a crash would. May be called again."""
        self._locations.close()
        self._ledgers.close()


def _terms_of(row: LedgerData) -> Terms | None:
    if not row.HasField("ledgerTerm"):
        return None
    return Terms(row.ledgerTerm, row.fencedInTerm, row.lastAddConfirmed, row.lastAddFullyReplicated)


def _put_terms(row: LedgerData, terms: Terms | None) -> None:
    """A bookie that does not know terms finds the ledger fenced, and accepts no writer's add."""
    if terms is None:
        return
    row.ledgerTerm, row.fencedInTerm, row.lastAddConfirmed, row.lastAddFullyReplicated = terms
    row.fenced = True


def _common_options() -> Options:
    options = Options(raw_mode=True)
    options.create_if_missing(True)
    options.set_level_compaction_dynamic_level_bytes(True)
    options.set_max_background_jobs(2)
    options.set_keep_log_file_num(5)
    # Only a torn tail is what a crash leaves. Taking less than that for granted would silently drop synced rows.
    options.set_wal_recovery_mode(DBRecoveryMode.tolerate_corrupted_tail_records())
    return options


def _table_options(block_size: int, cache: Cache) -> BlockBasedOptions:
    table = BlockBasedOptions()
    table.set_block_size(block_size)
    table.set_block_cache(cache)
    table.set_format_version(5)
    table.set_checksum_type(ChecksumType.xxhash())
    return table


def _locations_options(cache: Cache) -> Options:
    options = _common_options()
    options.set_compression_type(DBCompressionType.lz4())
    options.set_write_buffer_size(32 * _MIB)
    options.set_max_write_buffer_number(2)
    options.set_target_file_size_base(64 * _MIB)
    options.set_max_bytes_for_level_base(256 * _MIB)
    options.set_level_zero_file_num_compaction_trigger(4)
    table = _table_options(64 * 1024, cache)
    table.set_bloom_filter(_BLOOM_BITS, block_based=False)
    options.set_block_based_table_factory(table)
    return options


def _ledgers_options() -> Options:
    options = _common_options()
    options.set_compression_type(DBCompressionType.snappy())
    options.set_write_buffer_size(8 * _MIB)
    options.set_max_write_buffer_number(2)
    options.set_block_based_table_factory(_table_options(4 * 1024, Cache(_LEDGERS_CACHE)))
    return options
