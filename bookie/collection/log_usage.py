"""How many bytes of a complete entry log belong to each ledger: read from its ledgers map, or found by a scan.

A log without a map was current when a process ended. Its records are counted only if the index refers to them: replay
wrote again what the journal still had, and an interrupted compaction left copies to which nothing refers. In a complete
log a dead record stays dead, so a record that is not counted can't become alive again (S2). The map says nothing about
single records and is trusted; the result of scanning a damaged log is not, which `has_map` shows.

Source: docs/protocol/storage.md#ledgers-map, docs/protocol/storage.md#garbage-collection. Not its job: the consequences
(`rules`).
"""

from __future__ import annotations

from collections.abc import Collection, Container, Iterable, Mapping
from itertools import islice

from bookgate.bookie.collection.rules import EntryLogUsage
from bookgate.bookie.collection.throttle import Throttle
from bookgate.bookie.entry_logs import format as fmt
from bookgate.bookie.storage.ledger_store import LedgerStore
from bookgate.bookie.system.files import StorageCorruptException
from bookgate.ledger.ledger_id import LedgerId

RECORD_LENGTH_SIZE = 4
_FEW = 64
"""Entries of a ledger that are worth looking at one by one."""


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


def correct_usages(store: LedgerStore, usages: Iterable[EntryLogUsage], trimmed: Collection[int]) -> None:
    """Corrects what is known of complete logs for ledgers of which the index has lost the first entries.

    A log to which nothing of such a ledger points any more has none of it. A ledger with only a few entries left, since
    this bookie is in none of its later fragments, counts with exactly these. Otherwise the map's figure stays, which is
    too high for the one log in which the remaining entries begin. Raises OSError.
    """
    if not trimmed:
        return
    held: dict[int, tuple[set[int], Mapping[int, int] | None]] = {}
    for usage in usages:
        live: dict[int, int] = {}
        for number in usage.ledgers:
            if number not in trimmed:
                continue
            if number not in held:
                held[number] = store.index.log_ids(LedgerId.of_number(number)), _few_bytes(store, number)
            log_ids, few = held[number]
            if usage.log_id not in log_ids:
                live[number] = 0
            elif few is not None:
                live[number] = few.get(usage.log_id, 0)
        if live:
            usage.correct(live)


def _few_bytes(store: LedgerStore, number: int) -> Mapping[int, int] | None:
    """Bytes by log of a ledger with at most `_FEW` entries; None for one with more."""
    ledger_id = LedgerId.of_number(number)
    entry_ids = list(islice(store.index.entry_ids(ledger_id), _FEW + 1))
    if len(entry_ids) > _FEW:
        return None
    found: dict[int, int] = {}
    for entry_id in entry_ids:
        location = store.index.location(ledger_id, entry_id)
        try:
            size = len(store.logs.read(location, number, entry_id)) + RECORD_LENGTH_SIZE
        except StorageCorruptException:
            return None
        found[location >> 32] = found.get(location >> 32, 0) + size
    return found


def is_live(store: LedgerStore, number: int, entry_id: int, location: int) -> bool:
    """Whether the index refers to exactly this record. Raises StorageCorruptException if it can't be read."""
    return entry_id >= 0 and store.index.location(LedgerId.of_number(number), entry_id) == location
