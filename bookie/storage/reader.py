"""The read path of storage, which needs neither journal nor event loop.

An entry is looked up in the write cache, then in the index, then in the entry log. A flush moves entries in this order,
so no look-up misses one.

Data that can't be read completely are an OSError and never "no such entry" (S3). For a ledger in limbo (`limbo`; Apache
BookKeeper's bookie marks such ledgers in RocksDB) the entries that the bookie still holds are served; others are
unknown, and so are its last entry and its LAC.

Any thread. Not its job: permission to read (`request_processor`), batches of requests (`protocol.read_scheduler`).
"""

from __future__ import annotations

import heapq
import itertools
import logging
from bisect import bisect_left
from collections.abc import Iterator, Sequence

from bookgate.bookie.entry_logs.record_run import RecordRun, run_of
from bookgate.bookie.index import file_format
from bookgate.bookie.storage.batch_size import BatchSize
from bookgate.bookie.storage.ledger_descriptor import DELETED, LedgerDescriptor, descriptor_of
from bookgate.bookie.storage.ledger_state import BookieLedgerState
from bookgate.bookie.storage.ledger_store import LedgerStore, store_of
from bookgate.bookie.storage.ledger_table import LedgerTable
from bookgate.bookie.storage.write_cache import WriteCache
from bookgate.bookie.system.files import StorageCorruptException
from bookgate.ledger.entry import has_matching_crc, packet_lac
from bookgate.ledger.errors import DataUnknownException, EntryNotConfirmedException, NoSuchEntryException
from bookgate.ledger.ledger_id import NO_ENTRY
from bookgate.runtime.logs import log_event

_log = logging.getLogger(__name__)

_MAX_RUN = 4096
"""Maximum number of entries in one look-up."""
_MOST_AT_ONCE = 64 * 1024
"""Bytes from memory after which a look-up ends: its client may not take so much."""
_LOOKED_AT_FOR_LAC = 8
"""Number of entry ids, from the last one down, in which a trustworthy LAC is searched."""


class EntryReader:
    """See the module."""

    def __init__(self, cache: WriteCache, ledgers: LedgerTable, stores: Sequence[LedgerStore]) -> None:
        self._cache = cache
        self._ledgers = ledgers
        self._stores = stores

    def read_cached(self, ledger: BookieLedgerState, entry_id: int) -> bytes | None:
        """The entry if it is in the write cache; `DELETED` if a truncation deleted it. Never blocks; any thread."""
        return self._cache.get(descriptor_of(ledger), entry_id)

    def read_cached_run(self, ledger: BookieLedgerState, first_entry_id: int, count: int) -> list[bytes]:
        """The first of so many consecutive entries that are in the write cache, some 64 KiB at most.

        Never blocks; any thread.
        """
        stored = descriptor_of(ledger)
        packet = self._cache.get(stored, first_entry_id)
        if packet is None or packet is DELETED:
            return []
        if count == 1:
            return [packet]
        # A checkpoint may have taken it out of the cache since.
        return _as_many_as_fit(self._cache.get_run(stored, first_entry_id, count) or [packet])

    def read_in_memory(self, ledger: BookieLedgerState, first_entry_id: int, count: int) -> list[bytes]:
        """The first of so many consecutive entries that index and entry log have in memory. Never blocks.

        It ends before the first entry that is in the write cache, also as deleted.
        """
        stored = descriptor_of(ledger)
        if self._cache.get(stored, first_entry_id) is not None:
            return []
        store = self._store(stored)
        locations = store.index.locations_in_memory(stored.ledger_id, first_entry_id, count)
        if len(locations) > 1:  # the cache has newer data
            locations = locations[: self._cache.first_held(stored, first_entry_id, len(locations))]
        return store.logs.read_in_memory(locations, stored.number, first_entry_id) if locations else []

    def read_scattered_in_memory(self, ledger: BookieLedgerState, entry_ids: Sequence[int]) -> tuple[list[bytes], int]:
        """The first of several entries, in any order, that need no disk, some 64 KiB at most. Never blocks.

        Returns:
            The packets, perhaps none, and how many of them are from the write cache.
        """
        stored = descriptor_of(ledger)
        cached = self._cache.get_scattered(stored, entry_ids)
        others = [entry_id for entry_id, packet in zip(entry_ids, cached, strict=True) if packet is None]
        logged = iter(self._scattered_in_logs(stored, others) if others else ())
        packets: list[bytes] = []
        for packet in cached:
            found = packet or next(logged, None)
            if found is None or found is DELETED:
                break
            packets.append(found)
        packets = _as_many_as_fit(packets)
        return packets, len(packets) - cached[: len(packets)].count(None)

    def _scattered_in_logs(self, ledger: LedgerDescriptor, entry_ids: Sequence[int]) -> list[bytes]:
        store = self._store(ledger)
        locations = store.index.scattered_locations_in_memory(ledger.ledger_id, entry_ids)
        return store.logs.read_scattered_in_memory(locations, ledger.number, entry_ids[: len(locations)])

    def read_entry(self, ledger: BookieLedgerState, entry_id: int) -> bytes:
        """The entry's packet. May read files; any thread.

        Raises NoSuchEntryException, DataUnknownException if the ledger is in limbo, or StorageCorruptException if the
        bookie holds the entry but can't read it completely.
        """
        stored = descriptor_of(ledger)
        packet = self._cache.get(stored, entry_id)
        if packet is DELETED:
            raise NoSuchEntryException(f"entry {entry_id} of ledger {stored.ledger_id} was truncated here")
        if packet is not None:
            return packet
        while location := self._location(stored, entry_id):
            try:
                return self._store(stored).logs.read(location, stored.number, entry_id)
            except StorageCorruptException:
                # Compaction may have moved the entry and removed the log since the location was looked up.
                if self._location(stored, entry_id) == location:
                    raise
        if stored.deleted and (ledger_now := self._ledgers.get(stored.ledger_id)) is not None:
            # Deleted and created again since it was looked up.
            return self.read_entry(ledger_now, entry_id)
        _refuse_limbo(stored)
        raise NoSuchEntryException(f"this bookie does not hold entry {entry_id} of ledger {stored.ledger_id}")

    def held_entry(self, ledger: LedgerDescriptor, entry_id: int) -> bytes | None:
        """The entry if it can be read, else None."""
        try:
            return self.read_entry(ledger, entry_id)
        except (NoSuchEntryException, DataUnknownException, StorageCorruptException):
            return None

    def read_batch(self, ledger: BookieLedgerState, first_entry_id: int, batch: BatchSize) -> list[RecordRun]:
        """Records of consecutive entries, with as few file reads as their locations allow; any thread."""
        stored = descriptor_of(ledger)
        runs: list[RecordRun] = []
        entry_id = first_entry_id
        while batch.room > 0:
            try:
                found = self._read_runs(stored, entry_id, batch.room, batch.bytes_left)
            except (OSError, NoSuchEntryException, DataUnknownException) as error:
                if not runs:
                    raise
                log_event(_log, "read_failed", logging.ERROR, error=error)
                break
            if not found:
                break
            for run in found:
                count = batch.take(run.ends)
                if count:
                    runs.append(run.first(count))
                    entry_id += count
        return runs or [run_of([self.read_entry(stored, first_entry_id)])]

    def _read_runs(self, ledger: LedgerDescriptor, entry_id: int, count: int, max_bytes: int) -> Sequence[RecordRun]:
        """Some of the entries from `entry_id` on; none when it is not held or can't be read."""
        if not 0 <= entry_id <= file_format.MAX_ENTRY_ID:
            return ()
        count = min(count, _MAX_RUN)
        cached = self._cache.get(ledger, entry_id)
        if cached is DELETED:
            return ()
        if cached is not None:
            count = min(count, 1 + max_bytes // (len(cached) + 4))
            return [run_of(self._cache.get_run(ledger, entry_id, count) or [cached])]
        store = self._store(ledger)
        locations = store.index.locations(ledger.ledger_id, entry_id, count)
        if not locations:
            return ()
        # The cache has newer data.
        locations = locations[: self._cache.first_held(ledger, entry_id, len(locations))]
        try:
            if not locations:
                return [run_of([self.read_entry(ledger, entry_id)])]
            return store.logs.read_runs(locations, ledger.number, entry_id, max_bytes)
        except StorageCorruptException as error:
            log_event(_log, "read_failed", logging.ERROR, error=error)
            return ()

    def _location(self, ledger: LedgerDescriptor, entry_id: int) -> int:
        if not 0 <= entry_id <= file_format.MAX_ENTRY_ID:
            return 0
        return self._store(ledger).index.location(ledger.ledger_id, entry_id)

    def _store(self, ledger: LedgerDescriptor) -> LedgerStore:
        return store_of(self._stores, ledger.number)

    def last_entry_id(self, ledger: BookieLedgerState) -> int:
        """Highest entry held, -1 if none. Never blocks. Raises DataUnknownException for a ledger in limbo."""
        stored = descriptor_of(ledger)
        _refuse_limbo(stored)
        return stored.last_entry_id

    def last_shown(self, ledger: BookieLedgerState) -> int:
        """Highest entry held that a reader may see, -1 if none. Reads the index; any thread.

        Raises:
            DataUnknownException: The ledger is in limbo.
            EntryNotConfirmedException: Entries are held, none of which is known to be confirmed.
        """
        last = self.last_entry_id(ledger)
        if last == NO_ENTRY or ledger.shows(last, None):
            return last
        confirmed = self.known_lac(ledger)
        for entry_id in range(min(last, confirmed), max(NO_ENTRY, confirmed - _MAX_RUN), -1):
            if self.held_entry(descriptor_of(ledger), entry_id) is not None:
                return entry_id
        raise EntryNotConfirmedException(f"no entry of ledger {ledger.ledger_id} here is known to be confirmed")

    def loaded_lac(self, ledger: BookieLedgerState) -> int | None:
        """What `known_lac` returns if that needs no file, else None. Never blocks."""
        stored = descriptor_of(ledger)
        return None if stored.stored_lac is None or stored.limbo else max(stored.known_lac, stored.stored_lac)

    def known_lac(self, ledger: BookieLedgerState) -> int:
        """The highest known LAC; -1 if none. Reads the last entry if the LAC was not needed since the ledger was
        loaded.
        """
        stored = descriptor_of(ledger)
        _refuse_limbo(stored)
        if stored.stored_lac is None:
            # Kept apart from known_lac, which the event loop advances meanwhile.
            stored.stored_lac = self._lac_of_last_entry(stored)
        return max(stored.known_lac, stored.stored_lac)

    def _lac_of_last_entry(self, ledger: LedgerDescriptor) -> int:
        """The LAC of the last entry whose CRC proves it intact, because readers can't verify a LAC themselves (F19).

        A LAC that is too low costs a reader a request to another bookie; one that is too high shows it entries beyond
        which the ledger may not extend. If no entry has a CRC, the digest needs the ledger's password; then the last
        LAC that is below its entry's id, as it must be, is used.
        """
        unproven = NO_ENTRY
        for entry_id in range(ledger.last_entry_id, max(NO_ENTRY, ledger.last_entry_id - _LOOKED_AT_FOR_LAC), -1):
            packet = self._readable(ledger, entry_id)
            lac = None if packet is None else packet_lac(packet)
            if packet is None or lac is None or lac >= entry_id:
                continue
            if has_matching_crc(packet):
                return lac
            if unproven == NO_ENTRY:
                unproven = lac
        return unproven

    def _readable(self, ledger: LedgerDescriptor, entry_id: int) -> bytes | None:
        """Like `held_entry`; logs an entry that is held but can't be read."""
        try:
            return self.read_entry(ledger, entry_id)
        except NoSuchEntryException:
            return None
        except StorageCorruptException as error:
            log_event(_log, "lac_not_read", logging.ERROR, ledger=ledger.ledger_id, error=error)
            return None

    def entry_ids(self, ledger: BookieLedgerState) -> Iterator[tuple[int, int]]:
        """(first, count) of the runs of consecutive entries held, ascending. Reads the index file; any thread."""
        stored = descriptor_of(ledger)
        cached, deleted = self._cache.entries(stored)
        first = end = -1
        for entry_id in heapq.merge(cached, self._store(stored).index.entry_ids(stored.ledger_id)):
            if entry_id < end or (entry_id in deleted):
                continue
            if entry_id != end:
                if end > first:
                    yield first, end - first
                first = entry_id
            end = entry_id + 1
        if end > first:
            yield first, end - first


def _as_many_as_fit(packets: list[bytes]) -> list[bytes]:
    """The first of them until they have so many bytes; at least one."""
    ends = list(itertools.accumulate(map(len, packets)))
    return packets[: bisect_left(ends, _MOST_AT_ONCE) + 1]


def _refuse_limbo(ledger: LedgerDescriptor) -> None:
    if ledger.limbo:
        raise DataUnknownException(
            f"ledger {ledger.ledger_id} is in limbo: this bookie may have lost some of it and can't say what it held"
        )
