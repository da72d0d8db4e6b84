"""Which scopes a bookie holds: how many ledgers of each, and how many bytes their records take in the entry logs.

Bytes are those that garbage collection found in complete logs; by the ledgers map, of a log that it has not looked at
yet; and what this process has appended to the present log. A log that was the present one when a process ended has no
map: it counts once collection has looked at it. Records of entries that were deleted or written again count until their
log is collected. Ledgers that the index has no more are left out. Source:
docs/protocol/scoped-ledgers.md#in-a-bookies-files. Not its job: which of them exist in the metadata.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple

from pyroaring import BitMap64

from bookgate.bookie.collection.rules import EntryLogUsage
from bookgate.bookie.entry_logs.entry_logs import EntryLogs
from bookgate.bookie.storage.ledger_store import LedgerStore
from bookgate.bookie.system.files import StorageCorruptException
from bookgate.ledger.ledger_id import halves_of
from bookgate.ledger.ledger_numbers import LedgerNumbers


class ScopeUsage(NamedTuple):
    """What a bookie holds of one scope."""

    scope_id: int
    """Signed, as everywhere in APIs."""
    ledgers: int
    bytes: int


class ScopeCounts:
    """Counts ledgers by scope, and bytes of those that were counted before."""

    def __init__(self) -> None:
        self._present = LedgerNumbers()
        self._ledgers: Counter[int] = Counter()
        self._bytes: Counter[int] = Counter()

    def add_ledgers(self, unscoped: Iterable[int], scoped: Iterable[int]) -> None:
        """The ledgers of an index, by their numbers."""
        found = LedgerNumbers.of_parts(BitMap64(iter(unscoped)), scoped)
        self._present = self._present | found
        self._ledgers[0] += len(found.unscoped)
        self._ledgers.update(number >> 64 for number in found.scoped)

    def add_bytes(self, by_ledger: Mapping[int, int]) -> None:
        """What ledgers have in an entry log."""
        for number, size in by_ledger.items():
            if number in self._present:
                self._bytes[number >> 64] += size

    def usages(self) -> list[ScopeUsage]:
        """In the order of listings: scope 0 first, then by the scopes' bits."""
        return [
            ScopeUsage(halves_of(scope << 64)[0], self._ledgers[scope], self._bytes[scope])
            for scope in sorted(self._ledgers)
            if self._ledgers[scope]
        ]


def scope_usage(examined: Iterable[tuple[LedgerStore, Mapping[int, EntryLogUsage]]]) -> list[ScopeUsage]:
    """Of a bookie that runs: its stores, and of each the logs that collection has looked at, by id. Any thread."""
    counts, stores = ScopeCounts(), list(examined)
    for store, _ in stores:
        counts.add_ledgers(*store.all_ledgers())
    for store, usages in stores:
        for by_ledger in _bytes(store.logs, usages):
            counts.add_bytes(by_ledger)
    return counts.usages()


def _bytes(logs: EntryLogs, usages: Mapping[int, EntryLogUsage]) -> Iterator[Mapping[int, int]]:
    yield from logs.bytes_being_written()
    for log_id in logs.complete_logs():
        if (usage := usages.get(log_id)) is not None:
            yield usage.bytes_by_ledger
            continue
        try:
            found = logs.ledgers_map(log_id)
        except (OSError, StorageCorruptException):
            continue  # it was collected meanwhile, or can't be read: whoever reads its entries says so
        if found is not None:
            yield found
