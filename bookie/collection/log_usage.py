"""How many bytes of a complete entry log belong to each ledger: read from its ledgers map, or found by a scan.

A log without a map was current when a process ended. Its records are counted only if the index refers to them: replay
wrote again what the journal still had, and an interrupted compaction left copies to which nothing refers. In a complete
log a dead record stays dead, so a record that is not counted can't become alive again (S2). The map says nothing about
single records and is trusted; the result of scanning a damaged log is not, which `has_map` shows.

Source: docs/protocol/storage.md#ledgers-map, docs/protocol/storage.md#garbage-collection. Not its job: the consequences
(`rules`).
"""

from __future__ import annotations

from collections.abc import Container

from bookgate.bookie.collection.rules import EntryLogUsage
from bookgate.bookie.collection.throttle import Throttle
from bookgate.bookie.entry_logs import format as fmt
from bookgate.bookie.storage.ledger_store import LedgerStore
from bookgate.ledger.ledger_id import LedgerId

RECORD_LENGTH_SIZE = 4


def extract_usage(store: LedgerStore, log_id: int, existing: Container[int], throttle: Throttle) -> EntryLogUsage:
    """The usage of a complete log by ledgers among `existing`.

    Raises OSError, StorageCorruptException, StoppedException.
    """
    ledgers_map = store.logs.ledgers_map(log_id)
    if ledgers_map is not None:
        usage = EntryLogUsage(log_id, sum(ledgers_map.values()), ledgers_map, has_map=True)
        usage.keep(existing)
        return usage
    live: dict[int, int] = {}
    for record in store.logs.scan(log_id):
        size = len(record.packet) + RECORD_LENGTH_SIZE
        throttle.read(size)
        if record.ledger_id in existing and is_live(store, record.ledger_id, record.entry_id, record.location):
            live[record.ledger_id] = live.get(record.ledger_id, 0) + size
    total = max(0, store.logs.size(log_id) - fmt.HEADER_SIZE)
    return EntryLogUsage(log_id, total, live, has_map=False)


def is_live(store: LedgerStore, number: int, entry_id: int, location: int) -> bool:
    """Whether the index refers to exactly this record. Raises StorageCorruptException if it can't be read."""
    return entry_id >= 0 and store.index.location(LedgerId.of_number(number), entry_id) == location
