"""Entries that are journaled but not yet in an entry log, and ledgers whose header is not yet in an index file.

Two halves: the active one takes adds, the other is being flushed. `swap` turns active into flushing; `drop_flushing`
ends a flush. An entry is in a half from before it is queued for the journal until after its index slot is durable, so a
look-up in the order active, flushing, index never misses one.

Dirty headers travel with the entries but on their own list: a fence or an explicit LAC of a ledger without cached
entries is flushed as well (S6; flaws F2, F3 and F5 come from visiting only ledgers with cached pages).

A truncation replaces each entry by `DELETED`: this hides the entry in the flushing half and in the index, and is
flushed with the entries until the index lacks the entry too.

The event loop adds; the checkpoint thread swaps and drops; readers look up from any thread. One lock, held for a few
operations, orders adds and swaps.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from threading import Lock
from typing import NamedTuple, cast

from bookgate.bookie.storage.ledger_descriptor import DELETED, LedgerDeletedException, LedgerDescriptor

ENTRY_OVERHEAD = 128
"""Approximate bytes of memory of an entry besides its packet."""

LEDGER_OVERHEAD = 1000
"""Approximate bytes of memory of a ledger with cached entries besides the entries: its table and its state."""

HEADER_OVERHEAD = 700
"""Approximate bytes of memory of a ledger with a dirty header: its state, and its place in the list."""

Table = dict[int, bytes]


class Snapshot(NamedTuple):
    """The data that one checkpoint flushes."""

    tables: dict[LedgerDescriptor, Table]
    headers: set[LedgerDescriptor]

    @property
    def is_empty(self) -> bool:
        return not self.tables and not self.headers


class WriteCache:
    """`capacity` is in bytes, for both halves together. Adds are never rejected; `is_full` tells the caller to stop
    them.
    """

    def __init__(self, capacity: int) -> None:
        self._capacity = capacity
        self._lock = Lock()
        self._active: dict[LedgerDescriptor, Table] = {}
        self._active_bytes = 0
        self._active_headers: set[LedgerDescriptor] = set()
        self._flushing: dict[LedgerDescriptor, Table] = {}
        self._flushing_bytes = 0
        self._unwritten: set[int] = set()
        """Watched ledgers without writes since `watch`."""

    def put(self, ledger: LedgerDescriptor, entry_id: int, packet: bytes) -> bool:
        """Adds an entry or replaces it. True when the active half is due for a flush.

        Raises LedgerDeletedException.
        """
        with self._lock:
            table = self._active.get(ledger)
            if table is None:
                table = self._new_table(ledger)
            if entry_id in table:
                self._active_bytes -= len(table[entry_id]) + ENTRY_OVERHEAD
            table[entry_id] = packet
            self._active_bytes += len(packet) + ENTRY_OVERHEAD
            if self._unwritten:
                self._unwritten.discard(ledger.number)
        return 2 * self._active_bytes >= self._capacity

    def put_run(self, ledger: LedgerDescriptor, entry_ids: Sequence[int], packets: Sequence[bytes]) -> bool:
        """The same for several entries, whose ids differ."""
        with self._lock:
            table = self._active.get(ledger)
            if table is None:
                table = self._new_table(ledger)
            if not table.keys().isdisjoint(entry_ids):
                replaced = [len(table[entry_id]) for entry_id in entry_ids if entry_id in table]
                self._active_bytes -= sum(replaced) + ENTRY_OVERHEAD * len(replaced)
            table.update(zip(entry_ids, packets, strict=True))
            self._active_bytes += sum(map(len, packets)) + ENTRY_OVERHEAD * len(packets)
            self._unwritten.discard(ledger.number)
        return 2 * self._active_bytes >= self._capacity

    def delete(self, ledger: LedgerDescriptor, entry_ids: Sequence[int]) -> bool:
        """Deletes entries, wherever they are. True when the active half is due for a flush.

        Raises LedgerDeletedException.
        """
        return bool(entry_ids) and self.put_run(ledger, entry_ids, [DELETED] * len(entry_ids))

    def _new_table(self, ledger: LedgerDescriptor) -> Table:
        if ledger.deleted:
            raise LedgerDeletedException
        table = self._active[ledger] = {}
        self._active_bytes += LEDGER_OVERHEAD
        return table

    def mark_header(self, ledger: LedgerDescriptor) -> bool:
        """The next checkpoint writes the ledger's key, fence or explicit LAC. True if a checkpoint is due.

        Raises LedgerDeletedException.
        """
        with self._lock:
            if ledger.deleted:
                raise LedgerDeletedException
            if ledger not in self._active_headers:
                self._active_headers.add(ledger)
                self._active_bytes += HEADER_OVERHEAD
            self._unwritten.discard(ledger.number)
        return 2 * self._active_bytes >= self._capacity

    def watch(self, numbers: Iterable[int]) -> None:
        """From now on records which of these ledgers are written to; replaces those watched before."""
        with self._lock:
            self._unwritten = set(numbers)

    def discard_unwritten(self, number: int, ledger: LedgerDescriptor | None) -> bool:
        """Calls `discard` for a watched ledger (None if it is not in memory); returns False, without any effect, if it
        was written to since.
        """
        with self._lock:
            if number not in self._unwritten:
                return False
            if ledger is not None:
                self._discard(ledger)
            return True

    def discard(self, ledger: LedgerDescriptor) -> None:
        """Drops a ledger's unflushed data, and accepts nothing more for it. Not during a flush."""
        with self._lock:
            self._discard(ledger)

    def _discard(self, ledger: LedgerDescriptor) -> None:
        ledger.deleted = True
        table = self._active.pop(ledger, None)
        if table is not None:
            self._active_bytes -= sum(map(len, table.values())) + ENTRY_OVERHEAD * len(table) + LEDGER_OVERHEAD
        if ledger in self._active_headers:
            self._active_headers.remove(ledger)
            self._active_bytes -= HEADER_OVERHEAD
        assert self._active_bytes >= 0, "what is dropped was counted"
        assert self._active_bytes == 0 or self._active or self._active_headers, "an empty cache counts nothing"

    def ledgers(self) -> set[LedgerDescriptor]:
        """Ledgers with data that are not yet flushed."""
        with self._lock:
            return {*self._active, *self._active_headers, *self._flushing}

    def get(self, ledger: LedgerDescriptor, entry_id: int) -> bytes | None:
        """The newest cached copy of an entry; `DELETED` if a truncation deleted it."""
        for half in (self._active, self._flushing):
            table = half.get(ledger)
            if table is not None and (packet := table.get(entry_id)) is not None:
                return packet
        return None

    def get_run(self, ledger: LedgerDescriptor, first_entry_id: int, count: int) -> list[bytes]:
        """The newest cached copies of up to `count` consecutive entries, ending before the first that is not cached."""
        ids = range(first_entry_id, first_entry_id + count)
        active, flushing = self._active.get(ledger), self._flushing.get(ledger)
        if active is None or flushing is None:
            table = active or flushing
            found = list(map(table.get, ids)) if table else []
        else:
            found = [active.get(entry_id) or flushing.get(entry_id) for entry_id in ids]
        if ledger.term is not None:  # only unbounded ledgers have deleted entries
            found = [None if packet is DELETED else packet for packet in found]
        return cast("list[bytes]", found[: found.index(None)] if None in found else found)

    def get_scattered(self, ledger: LedgerDescriptor, entry_ids: Sequence[int]) -> list[bytes | None]:
        """`get` of each of these entries."""
        active, flushing = self._active.get(ledger), self._flushing.get(ledger)
        if active is None and flushing is None:
            return [None] * len(entry_ids)
        return [self.get(ledger, entry_id) for entry_id in entry_ids]

    def first_held(self, ledger: LedgerDescriptor, first_entry_id: int, count: int) -> int:
        """How many of `count` entries precede the first that is cached, also as deleted."""
        ids = range(first_entry_id, first_entry_id + count)
        tables = [table for half in (self._active, self._flushing) if (table := half.get(ledger)) is not None]
        if all(table.keys().isdisjoint(ids) for table in tables):
            return count
        return next((index for index, entry_id in enumerate(ids) if self.get(ledger, entry_id) is not None), count)

    def entries(self, ledger: LedgerDescriptor) -> tuple[list[int], set[int]]:
        """Ids of the cached entries, ascending, and ids of entries that are deleted even if the index has them."""
        newest: Table = {}
        for half in (self._active, self._flushing):
            if table := half.get(ledger):
                newest = table | newest
        deleted = {entry_id for entry_id, packet in newest.items() if packet is DELETED}
        return sorted(newest.keys() - deleted), deleted

    @property
    def flushing_bytes(self) -> int:
        return self._flushing_bytes

    @property
    def usage(self) -> tuple[int, int]:
        """Number of entries and bytes held by both halves, bookkeeping included."""
        halves = (*list(self._active.values()), *list(self._flushing.values()))
        return sum(map(len, halves)), self._active_bytes + self._flushing_bytes

    @property
    def is_full(self) -> bool:
        return self._active_bytes + self._flushing_bytes >= self._capacity

    def swap(self) -> Snapshot:
        """Begins a flush: returns the half that was active until now, which stays readable until `drop_flushing`."""
        with self._lock:
            if self._flushing:
                raise RuntimeError("the previous flush of the write cache has not ended")
            snapshot = Snapshot(self._active, self._active_headers)
            self._flushing, self._flushing_bytes = self._active, self._active_bytes
            self._active, self._active_bytes, self._active_headers = {}, 0, set()
        return snapshot

    def drop_flushing(self) -> None:
        """Ends a flush: its entries are durable in entry log and index."""
        with self._lock:
            self._flushing, self._flushing_bytes = {}, 0
