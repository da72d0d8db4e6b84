"""Removes entry logs: a log is removed once no index, read back from disk, refers to it.

A log's map and the live records found by a scan only suggest logs to remove: a map may be damaged, damage hides records
from a scan, and both rely on the index as memory shows it. An earlier process may have written slots that never reached
the disk: it was killed before they were synced, or the sync failed, after which Linux shows readers data that is not on
disk, and hides files whose deletion is not on disk. Moves of a compaction are in no journal, so no replay writes such
slots again, and the old log has the only copy that the index on disk refers to.

The ledgers that may refer to a log are known without its map. For a log of this process: those that were appended to
it. For older logs: those that referred to it when the whole index was read back from disk, once per process, before the
first of these logs is removed; after that no ledger begins to refer to them, except those that are announced
(`points_into`). When the log is to be removed, these ledgers are read back from disk and checked again. The results of
a partial search stay valid, so an interrupted search continues later. It is throttled like compaction: each ledger
counts as a small record.

Invariant: S2. Not its job: which logs may be worth removing (`entry_log_collector`), moving live entries (`compactor`).
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Container, Iterable, Iterator
from contextlib import AbstractContextManager
from itertools import islice

from bookgate.bookie.collection.statistics import GcStatistics
from bookgate.bookie.collection.throttle import Throttle
from bookgate.bookie.index.index_list_records import id_set
from bookgate.bookie.storage.ledger_store import LedgerStore
from bookgate.bookie.system.files import StorageCorruptException
from bookgate.ledger.ledger_id import LedgerId
from bookgate.ledger.ledger_numbers import LedgerNumbers, union
from bookgate.runtime.logs import log_event

_log = logging.getLogger(__name__)

_AT_ONCE = 64
"""Ledgers that are read back under one hold of the checkpoint lock."""
_BYTES_OF_A_LEDGER = 1024
"""Bytes that a ledger counts in a search: reading its index costs about as much as copying so many bytes."""


class LogRemoval:
    """Removes logs of one store. Used by one thread, which may block; `exclusive` holds the checkpoint lock.

    Methods raise OSError when the disk fails, StorageStoppedException, and StoppedException.
    """

    def __init__(
        self, store: LedgerStore, exclusive: Callable[[], AbstractContextManager[None]], statistics: GcStatistics
    ) -> None:
        self._store = store
        self._exclusive = exclusive
        self._statistics = statistics
        self._pointers: dict[int, LedgerNumbers] = {}
        """By log of an earlier process: ledgers that pointed into the log when the index was searched."""
        self._unsearched: LedgerNumbers | None = None
        """Ledgers not searched yet; None: the search has not begun."""
        self._told: dict[int, LedgerNumbers] = {}

    def points_into(self, log_id: int, ledgers: Iterable[int]) -> None:
        """These ledgers are about to refer to a log that this process did not write."""
        self._told.setdefault(log_id, LedgerNumbers()).update(ledgers)

    def remove(self, log_ids: Collection[int], existing: Container[int], throttle: Throttle) -> list[int]:
        """Removes the logs to which nothing refers, and returns their ids, ascending. The others are kept."""
        try:
            if any(self._store.logs.appended_ledgers(log_id) is None for log_id in log_ids):
                self._search(throttle)
            wanted = set(log_ids)
            asked = union(map(self._who_may_point_into, wanted))
            referenced: set[int] = set()
            for numbers in _in_parts(number for number in asked if number in existing):
                throttle.check()
                for number in self._read_back(numbers):
                    referenced |= self._store.index.log_ids(LedgerId.of_number(number)) & wanted
        except StorageCorruptException as error:
            self._statistics.failed_deletions += len(log_ids)
            note = "the index can't be searched"
            log_event(_log, "compaction_kept_logs", logging.ERROR, count=len(log_ids), error=error, note=note)
            return []
        for log_id in sorted(referenced):
            self._statistics.failed_deletions += 1
            log_event(
                _log,
                "compaction_kept_log",
                logging.ERROR,
                log=f"{log_id:x}",
                error="the index points at entries that reading it did not find",
            )
        unreferenced = sorted(wanted - referenced)
        if unreferenced:
            self._wait_for_flush()
        for log_id in unreferenced:
            self._store.logs.remove(log_id)
            self._told.pop(log_id, None)
        return unreferenced

    def _who_may_point_into(self, log_id: int) -> LedgerNumbers:
        appended = self._store.logs.appended_ledgers(log_id)
        if appended is not None:
            return appended
        return self._pointers.get(log_id, LedgerNumbers()) | self._told.get(log_id, LedgerNumbers())

    def _search(self, throttle: Throttle) -> None:
        """Reads the whole index back from disk, or the rest of it if an earlier search was interrupted."""
        if self._unsearched is None:
            with self._exclusive():
                # Also where no ledger is left: an earlier process may have failed to make deletions durable.
                self._store.index.read_back(())
            unscoped, scoped = self._store.all_ledgers()
            self._unsearched = LedgerNumbers.of_parts(id_set(unscoped), scoped)
        for numbers in _in_parts(self._unsearched.copy()):
            for number in self._read_back(numbers):
                throttle.copied(_BYTES_OF_A_LEDGER)
                for log_id in self._store.index.log_ids(LedgerId.of_number(number)):
                    self._pointers.setdefault(log_id, LedgerNumbers()).add(number)
            self._unsearched -= LedgerNumbers(numbers)

    def _read_back(self, numbers: Collection[int]) -> Iterator[int]:
        """Yields the ledgers; each of them is read from disk from then on."""
        with self._exclusive():
            self._store.index.read_back([LedgerId.of_number(number) for number in numbers])
        yield from numbers

    def _wait_for_flush(self) -> None:
        """Waits for a running flush: slots that it wrote may already be visible, but are not durable and do not count.

        Raises StorageStoppedException if the flush will never end.
        """
        with self._exclusive():
            self._store.index.sync()


def _in_parts(numbers: Iterable[int]) -> Iterator[list[int]]:
    left = iter(numbers)
    while part := list(islice(left, _AT_ONCE)):
        yield part
