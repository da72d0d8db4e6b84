"""One index and its entry logs, which hold the entries of a set of ledgers.

With index files there is one store over all ledger directories; with RocksDB there is one per directory, and a ledger
belongs to store `ledgerId mod n`, as in Apache BookKeeper.

Not its job: entries not flushed yet (`write_cache`), choosing the store of a ledger (the caller of `store_of`).
"""

from __future__ import annotations

import time
from array import array
from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple

from bookgate.bookie.entry_logs.entry_logs import EntryLogs
from bookgate.bookie.index.file_format import IndexHeader, SlotRun, slot_runs
from bookgate.bookie.index.ledger_index import LedgerIndex
from bookgate.bookie.statistics import StoreStatistics
from bookgate.bookie.storage.ledger_descriptor import DELETED, LedgerDescriptor

Table = Mapping[int, bytes]


class AllNumbers(NamedTuple):
    """Numbers of ledgers: those of scope 0 as an array (type code q), and scoped ones; both ascending."""

    unscoped: array[int]
    scoped: Sequence[int]


class LedgerStore:
    """See the module. Garbage collection and inspection use `index` and `logs` too."""

    def __init__(self, index: LedgerIndex, logs: EntryLogs, statistics: StoreStatistics | None = None) -> None:
        self.index = index
        self.logs = logs
        self._written: dict[LedgerDescriptor, tuple[Table, list[SlotRun]]] = {}
        """Entries that a failed flush has already written to entry logs: each table with the locations."""
        self._failed_syncs = 0
        self._statistics = statistics or StoreStatistics()

    def ledger_ids(self) -> array[int]:
        """Ids of the ledgers of scope 0 whose index is on disk, ascending."""
        return self.index.ledger_ids()

    def all_ledgers(self) -> AllNumbers:
        """The ledgers of all scopes whose index is on disk."""
        return AllNumbers(self.index.ledger_ids(), self.index.scoped_ledgers())

    def flush(self, tables: Mapping[LedgerDescriptor, Table], headers: Collection[LedgerDescriptor]) -> None:
        """Writes entries sorted by ledger and entry, syncs the log, then writes index slots and headers and syncs them.

        So the index never points at an entry that is not durable in the log. Repeated after an error with the same
        tables, it writes only entries that are not in the log yet, so that an index without space does not fill the
        logs.
        """
        started = time.monotonic()
        slots = self._write_entries(tables)
        self.logs.sync()
        synced = time.monotonic()
        self._statistics.flush_entry_log.success(synced - started)
        for ledger in sorted(slots.keys() | headers, key=_by_number):
            header = None
            if ledger in headers:
                header = IndexHeader(ledger.master_key, ledger.fenced, ledger.explicit_lac, terms=ledger.terms)
            self.index.update(ledger.ledger_id, header, slots.get(ledger, ()))
        self.index.sync()
        self._statistics.flush_index.success(time.monotonic() - synced)
        self.logs.flushed()
        self._written.clear()

    def _write_entries(self, tables: Mapping[LedgerDescriptor, Table]) -> dict[LedgerDescriptor, list[SlotRun]]:
        if self._failed_syncs != self.logs.failed_syncs:
            # Data whose sync failed may never reach the disk.
            self._failed_syncs = self.logs.failed_syncs
            self._written.clear()
        slots: dict[LedgerDescriptor, list[SlotRun]] = {}
        for ledger in sorted(tables, key=_by_number):
            table = tables[ledger]
            written = self._written.get(ledger)
            if written is not None and written[0] is table:
                slots[ledger] = written[1]
                continue
            entry_ids = sorted(table)
            locations = self._append(ledger, [table[entry_id] for entry_id in entry_ids])
            slots[ledger] = slot_runs(entry_ids, locations)
            self._written[ledger] = table, slots[ledger]
        return slots

    def _append(self, ledger: LedgerDescriptor, packets: Sequence[bytes]) -> Sequence[int]:
        """Writes the packets to the log; returns the location of each, 0 for a deleted entry."""
        if ledger.term is None:
            return self.logs.append(ledger.number, packets)
        written = [packet for packet in packets if packet is not DELETED]
        locations = iter(self.logs.append(ledger.number, written) if written else ())
        return [0 if packet is DELETED else next(locations) for packet in packets]

    def close(self) -> None:
        self.logs.close()
        self.index.close()


def store_of(stores: Sequence[LedgerStore], number: int) -> LedgerStore:
    """The store that holds the ledger with this number."""
    return stores[number % len(stores)]


def _by_number(ledger: LedgerDescriptor) -> int:
    return ledger.number
