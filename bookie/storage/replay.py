"""Replay: applies the journal at a start, from the persisted mark to its end.

Every record is applied as when it was first accepted: a key creates its ledger, a fence fences, an explicit LAC is set,
a term is taken, an entry is stored again, truncated entries are deleted again. All of this is idempotent, so a crash
during replay does no harm. The fence is not checked: every journaled record was accepted. A record of a ledger whose
key is neither in the journal nor in the index belongs to a deleted ledger, and is skipped; so is a meta record of
unknown type.

A ledger's key is the one stored first (S7): a key record that differs from the index header is skipped; two different
key records refuse the start. If a record says that the ledger was created again, everything applied of it so far
belonged to a deleted ledger, and is dropped, and so is what the index has: the deletion may not have become durable
(D1). The index may have entries of the new ledger that do not follow where entries are not journaled, where a damaged
part is passed over, and where the replay has no mark; then it is left alone unless something was applied.

Every file and its name are synced before its records are applied: the mark passes them, and a power failure must not
remove data before the mark, which would look like a loss.

The journal has no checksums, and a power failure may leave an unsynced record with missing blocks: zeros, because files
are pre-allocated. Such a record was not acknowledged, but it may be the second copy of an entry whose first copy was.
So a copy that lacks blocks of the one held so far is skipped (P1). Zeros alone do not tell: a later term of an
unbounded ledger may give an id another entry, which may hold zeros (see `_lacks_blocks`).

Source: docs/protocol/storage.md#replay.

Not its job: parsing (`journal.format`), persisting the mark (the caller, once everything is flushed), where
to begin and whether files are missing (`replay_start`).
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterator
from pathlib import Path

from bookgate.bookie.index.file_format import MAX_ENTRY_ID, fits_header
from bookgate.bookie.journal import format as fmt
from bookgate.bookie.journal.file import list_journals
from bookgate.bookie.journal.format import JournalRecord, JournalScan, LogMark
from bookgate.bookie.storage.checkpoint import SpaceTolerantFlusher
from bookgate.bookie.storage.ledger_descriptor import LedgerDescriptor
from bookgate.bookie.storage.ledger_state import is_acceptable_key
from bookgate.bookie.storage.ledger_table import LedgerTable
from bookgate.bookie.storage.write_cache import WriteCache
from bookgate.bookie.system.data_loss import WAYS_OUT
from bookgate.bookie.system.files import FileSystem, StorageCorruptException
from bookgate.ledger.entry import decode_lac_header, has_matching_crc, is_same_entry, lac_header_size_of, packet_lac
from bookgate.ledger.ledger_id import LedgerId
from bookgate.runtime.logs import log_event

_log = logging.getLogger(__name__)
_BLOCK = 512
"""Bytes that a disk writes atomically."""
_ZEROS = bytes(_BLOCK)
_LENGTH_SIZE = 4
_FIRST_BYTES = 4096
"""Bytes examined of a file that seems to be empty."""


class Replay:
    """One replay of one journal directory into write cache and ledger table."""

    def __init__(
        self,
        files: FileSystem,
        directory: Path,
        table: LedgerTable,
        cache: WriteCache,
        flusher: SpaceTolerantFlusher,
        held: Callable[[LedgerDescriptor, int], bytes | None],
        *,
        skip_invalid: bool = False,
        accept_loss: bool = False,
        all_follows: bool = True,
    ) -> None:
        """`held` returns the copy of an entry that storage holds so far, if it can be read.

        With `skip_invalid` a damaged file is applied up to the damage; otherwise the damage refuses the start. With
        `accept_loss` no damage refuses it. With `all_follows` nothing of a ledger is passed over that the journal
        should have since the ledger was created, and that includes its entries.
        """
        self._files = files
        self._directory = directory
        self._table = table
        self._cache = cache
        self._flusher = flusher
        self._held = held
        self._skip_invalid = skip_invalid or accept_loss
        self._accept_loss = accept_loss
        self._all_follows = all_follows
        self._keys: dict[LedgerId, bytes] = {}
        self._skipped = 0
        self.passed_over: set[LedgerId] = set()
        """Ledgers with records and no key: they were deleted, or another replay has their key."""
        self._applied: set[LedgerId] = set()
        """Ledgers of which this replay has applied records."""

    def run(self, mark: LogMark) -> LogMark:
        """Applies all records after `mark` and flushes them. Returns the mark that may be persisted once all is
        flushed.

        Raises StorageCorruptException, naming file and offset.
        """
        self._files.sync_directory(self._directory)
        journals = [journal_id for journal_id in list_journals(self._files, self._directory) if journal_id >= mark[0]]
        for journal_id in journals:
            start = mark.offset if journal_id == mark.journal_id else 0
            mark = LogMark(journal_id, self._replay_file(journal_id, start))
        self._refuse_lost_headers()
        self._flusher.flush()
        if self._skipped:
            log_event(
                _log, "replay_passed_over", directory=self._directory, records=self._skipped, note="of unknown ledgers"
            )
        return mark

    def _refuse_lost_headers(self) -> None:
        """Refuses the start if skipped records belong to a ledger with entries in its index file: it was not
        deleted.
        """
        for ledger_id in self.passed_over:
            if self._table.has_lost_header(ledger_id) and not self._accept_loss:
                self._table.get(ledger_id)  # raises with the remedy

    def _replay_file(self, journal_id: int, start: int) -> int:
        """Applies one file from `start`, or from the end of its header; returns the end of its data."""
        path = self._directory / fmt.file_name(journal_id)
        fd = self._files.open(path, os.O_RDONLY)
        try:
            self._files.fdatasync(fd)
            # Data whose sync failed are in memory only: the mark must not pass them.
            self._files.forget_cached(fd)
            return self._replay_open_file(fd, path, start)
        except StorageCorruptException as error:
            self._skip(error, self._accept_loss)
            return start
        finally:
            self._files.close(fd)

    def _replay_open_file(self, fd: int, path: Path, start: int) -> int:
        version, header_size = fmt.decode_header(self._files.pread(fd, 8, 0), str(path))
        scan = JournalScan(
            lambda size, offset: self._files.pread(fd, size, offset),
            self._files.size(fd),
            max(start, header_size),
            version,
            str(path),
        )
        for record in self._records(scan):
            self._apply(record, path)
        if scan.end == header_size and version < fmt.CURRENT_VERSION:
            self._refuse_damaged_header(fd, header_size, path)
        return scan.end

    def _refuse_damaged_header(self, fd: int, header_size: int, path: Path) -> None:
        """Refuses a file of an old version that does not begin with a record, since its header is damaged, unless it is
        empty.
        """
        if any(self._files.pread(fd, _FIRST_BYTES, header_size)):
            raise StorageCorruptException(
                f"journal {path} has records and no header of a version that could have them; the file is damaged. "
                f"{WAYS_OUT}."
            )

    def _records(self, scan: JournalScan) -> Iterator[JournalRecord]:
        try:
            yield from scan
        except StorageCorruptException as error:
            self._skip(error, self._skip_invalid)

    def _skip(self, error: StorageCorruptException, may_skip: bool) -> None:
        if not may_skip:
            raise error
        log_event(_log, "replay_skips", logging.ERROR, error=error, note="what follows in this file is left out")

    def _apply(self, record: JournalRecord, path: Path) -> None:
        try:
            self._apply_sound(record, path)
        except StorageCorruptException as error:
            if not self._accept_loss:
                raise
            log_event(_log, "replay_record_skipped", logging.ERROR, error=error)

    def _apply_sound(self, record: JournalRecord, path: Path) -> None:
        try:
            ledger_id = LedgerId.of_number(record.ledger_id)
            if record.entry_id >= 0:
                self._apply_entry(ledger_id, record)
            elif record.entry_id == fmt.LEDGER_KEY:
                self._apply_key(ledger_id, fmt.meta_blob(record.payload))
            elif record.entry_id in (fmt.FENCE, fmt.EXPLICIT_LAC, fmt.TERM):
                self._apply_state(ledger_id, record)
            elif record.entry_id == fmt.TRUNCATE:
                self._apply_truncation(ledger_id, fmt.decode_truncate(record.payload))
            elif record.entry_id == fmt.MADE_ANEW:
                self._begin_anew(ledger_id)
            else:
                log_event(
                    _log,
                    "replay_unknown_record",
                    logging.WARNING,
                    path=path,
                    kind=record.entry_id,
                    offset=record.offset,
                )
        except ValueError as error:
            raise StorageCorruptException(
                f"journal {path}: the record at offset {record.offset} can't be applied: {error}; the file is damaged"
            ) from error

    def _apply_key(self, ledger_id: LedgerId, master_key: bytes) -> None:
        self.passed_over.discard(ledger_id)
        seen = self._keys.setdefault(ledger_id, master_key)
        if seen != master_key:
            raise ValueError(f"it gives ledger {ledger_id} another master key than an earlier record")
        if not fits_header(master_key, b""):
            raise ValueError(f"a master key of {len(master_key)} bytes does not fit an index header")
        ledger = self._table.get(ledger_id, headerless_is_unknown=True)
        if ledger is None:
            ledger = self._table.create(ledger_id, master_key)
        elif not is_acceptable_key(ledger.master_key):
            ledger.master_key = master_key
        elif ledger.master_key != master_key:
            log_event(_log, "replay_other_key", logging.WARNING, ledger=ledger_id, note="the index's master key counts")
        self._mark_header(ledger)

    def _begin_anew(self, ledger_id: LedgerId) -> None:
        """Drops everything of a ledger that was deleted and created again; the index may have some of it."""
        if self._all_follows or ledger_id in self._applied:
            self._table.drop(ledger_id, self._cache.discard, self._flusher.attempt)
            self._applied.discard(ledger_id)
        self._keys.pop(ledger_id, None)
        self.passed_over.discard(ledger_id)

    def _mark_header(self, ledger: LedgerDescriptor) -> None:
        self._applied.add(ledger.ledger_id)
        if self._cache.mark_header(ledger):
            self._flusher.flush()

    def _apply_state(self, ledger_id: LedgerId, record: JournalRecord) -> None:
        ledger = self._find(ledger_id)
        if ledger is None:
            return
        if record.entry_id == fmt.FENCE:
            ledger.fenced = True
        elif record.entry_id == fmt.TERM:
            ledger.take_terms(fmt.decode_term(record.payload))
        else:
            self._apply_explicit_lac(ledger, fmt.meta_blob(record.payload))
        # Dirty even if the header says the same: an earlier process may have been killed before it synced it.
        self._mark_header(ledger)

    def _apply_explicit_lac(self, ledger: LedgerDescriptor, packet: bytes) -> None:
        if len(packet) < lac_header_size_of(ledger.number) or not fits_header(ledger.master_key, packet):
            raise ValueError(f"an explicit LAC of {len(packet)} bytes is out of range")
        ledger.explicit_lac = packet
        ledger.advance_lac(decode_lac_header(packet)[1])

    def _apply_entry(self, ledger_id: LedgerId, record: JournalRecord) -> None:
        if record.entry_id > MAX_ENTRY_ID:
            raise ValueError(f"entry id {record.entry_id} is above {MAX_ENTRY_ID}")
        ledger = self._find(ledger_id)
        if ledger is None:
            return
        if record.entry_id > ledger.last_entry_id:
            ledger.last_entry_id = record.entry_id
        lac = packet_lac(record.payload)
        if lac is not None and lac < record.entry_id:
            # Otherwise it is damaged: a LAC is always below its entry's id.
            ledger.advance_lac(lac)
        if _ZEROS in record.payload and self._is_torn(ledger, record):
            log_event(_log, "replay_torn_entry", logging.WARNING, ledger=ledger_id, entry=record.entry_id)
            return
        self._applied.add(ledger_id)
        if self._cache.put(ledger, record.entry_id, record.payload):
            self._flusher.flush()

    def _apply_truncation(self, ledger_id: LedgerId, last_entry_id: int) -> None:
        ledger = self._find(ledger_id)
        if ledger is None:
            return
        self._applied.add(ledger_id)
        if self._cache.delete(ledger, ledger.truncate(last_entry_id)):
            self._flusher.flush()

    def _is_torn(self, ledger: LedgerDescriptor, record: JournalRecord) -> bool:
        """Whether comparison with the copy held so far shows that this one was only partly written."""
        empty = list(_blocks_of_zeros(record))
        held = self._held(ledger, record.entry_id) if empty else None
        return held is not None and _lacks_blocks(record.payload, empty, held)

    def _find(self, ledger_id: LedgerId) -> LedgerDescriptor | None:
        # A ledger that was deleted and created again may have an index file without header; its key then comes later.
        ledger = self._table.get(ledger_id, headerless_is_unknown=True)
        if ledger is None:
            self._skipped += 1
            self.passed_over.add(ledger_id)
        return ledger


def _blocks_of_zeros(record: JournalRecord) -> Iterator[int]:
    """Yields the positions in the payload at which a whole block of the file contains only zeros."""
    begin = record.offset + _LENGTH_SIZE
    for start in range(-begin % _BLOCK, len(record.payload) - _BLOCK + 1, _BLOCK):
        if record.payload[start : start + _BLOCK] == _ZEROS:
            yield start


def _lacks_blocks(packet: bytes, empty: list[int], held: bytes) -> bool:
    """Whether `packet` is a copy whose blocks at `empty` never reached the disk, where `held` has data.

    A CRC tells. Where there is none, a torn copy is one that shows `held` in its other blocks: another value of the
    entry would not, and may have been acknowledged.
    """
    torn = bytearray(held)
    for start in empty:
        torn[start : start + _BLOCK] = _ZEROS
    if len(held) != len(packet) or torn == held or has_matching_crc(packet):
        return False
    return has_matching_crc(held) or is_same_entry(packet, bytes(torn))
