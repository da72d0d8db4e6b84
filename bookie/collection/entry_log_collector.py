"""The part of garbage collection that handles entry logs: their usage, their removal, compaction. Blocking.

Per store it remembers the usage of the complete logs; each log is examined once. Logs without live records are removed
if the index agrees (`log_removal`); if it does not, the log is examined again. Source:
docs/protocol/storage.md#garbage-collection, docs/protocol/storage.md#compaction.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Container, Mapping
from dataclasses import dataclass, field

from bookgate.bookie.collection.compactor import Compactor
from bookgate.bookie.collection.java_leftovers import Leftovers
from bookgate.bookie.collection.log_removal import LogRemoval
from bookgate.bookie.collection.log_usage import correct_usages, extract_usage
from bookgate.bookie.collection.rules import CompactionRule, EntryLogUsage, SortedIds, logs_to_compact
from bookgate.bookie.collection.statistics import GcPhase, GcStatistics
from bookgate.bookie.collection.throttle import Throttle
from bookgate.bookie.storage.ledger_store import LedgerStore
from bookgate.bookie.storage.storage import LedgerStorage
from bookgate.bookie.system.files import FileSystem, StorageCorruptException
from bookgate.bookie.system.threads import Event
from bookgate.runtime.logs import log_event

_log = logging.getLogger(__name__)


@dataclass(slots=True)
class _Known:
    """What is known of one store's logs."""

    store: LedgerStore
    removal: LogRemoval
    usages: dict[int, EntryLogUsage] = field(default_factory=dict)
    existing: Container[int] = ()


class EntryLogCollector:
    """Used by one thread at a time; `rate` is a number per second, and whether it counts bytes."""

    def __init__(
        self,
        files: FileSystem,
        storage: LedgerStorage,
        stopping: Event,
        statistics: GcStatistics,
        rate: tuple[float, bool],
        clock: Callable[[], float],
        target_bytes: int = 0,
    ) -> None:
        self._files = files
        self._storage = storage
        self._stopping = stopping
        self._statistics = statistics
        self._rate = rate
        self._clock = clock
        self._target_bytes = target_bytes
        self.trimmed: frozenset[int] = frozenset()
        """Unbounded ledgers whose first entries are deleted: the maps of logs count these still."""
        self._known = [_Known(store, LogRemoval(store, storage.exclusive, statistics)) for store in storage.stores]

    def settle_leftovers(self) -> None:
        """Handles leftovers of compactions by earlier processes. Logs that these emptied are removed like any other
        empty log.
        """
        for known in self._known:
            for log_id in Leftovers(self._files, known.store, self._storage.exclusive, known.removal).settle():
                known.usages[log_id] = EntryLogUsage(log_id, 1, {}, has_map=False)

    def collect(self) -> None:
        """Examines new logs, and removes those without existing ledgers. Raises OSError, StoppedException."""
        for known in self._known:
            self._refresh(known)
            self._remove_empty(known)
        self._count()

    def _refresh(self, known: _Known) -> None:
        started = self._clock()
        store = known.store
        # This order matters: everything in a complete log is in the index, so a ledger that is not in the index now is
        # in none of these logs.
        complete = store.logs.complete_logs()
        known.existing = SortedIds(*store.all_ledgers())
        known.usages = {log_id: known.usages[log_id] for log_id in complete if log_id in known.usages}
        throttle = self._throttle()
        self._statistics.begin(GcPhase.ENTRY_LOGS, len(complete))
        for log_id in complete:
            throttle.check()
            self._statistics.phase_done += 1
            usage = known.usages.get(log_id)
            if usage is not None:
                usage.keep(known.existing)
                continue
            try:
                known.usages[log_id] = extract_usage(store, log_id, known.existing, throttle)
            except StorageCorruptException as error:
                log_event(_log, "entry_log_not_read", logging.ERROR, log=f"{log_id:x}", error=error, note="it is kept")
                self._statistics.failed_deletions += 1
        correct_usages(store, known.usages.values(), self.trimmed)
        self._statistics.extract_seconds += self._clock() - started

    def _remove_empty(self, known: _Known) -> None:
        empty = [(log_id, known.usages[log_id]) for log_id in sorted(known.usages) if known.usages[log_id].is_empty]
        sizes = {log_id: known.store.logs.size(log_id) for log_id, _ in empty}
        for log_id in sizes:
            del known.usages[log_id]
        removed = known.removal.remove(sizes, known.existing, self._throttle()) if empty else ()
        for log_id in removed:
            self._statistics.reclaimed_by_deletion += sizes[log_id]

    def compact(self, rule: CompactionRule) -> None:
        """Compacts the logs below the threshold, the emptiest first, as long as time allows."""
        started = self._clock()
        deadline = started + rule.max_seconds if rule.max_seconds > 0 else math.inf
        try:
            for known in self._known:
                self._compact_store(known, rule.threshold, deadline)
        finally:
            self._statistics.compact_seconds += self._clock() - started
            self._count()

    def compact_locations(self) -> None:
        """Lets the indexes reclaim the space of deleted rows. Raises OSError."""
        self._statistics.begin(GcPhase.LOCATIONS)
        for known in self._known:
            known.store.index.compact()

    def usages(self) -> list[EntryLogUsage]:
        """The usage of all complete logs when they were last examined. Any thread; read-only."""
        return [usage for known in self._known for usage in list(known.usages.values())]

    def examined(self) -> list[tuple[LedgerStore, Mapping[int, EntryLogUsage]]]:
        """Each store, and the usage of its complete logs by their ids when they were last examined. Any thread."""
        return [(known.store, known.usages.copy()) for known in self._known]

    def _compact_store(self, known: _Known, threshold: float, deadline: float) -> None:
        compactor = self._compactor(known)
        try:
            chosen = logs_to_compact(known.usages.values(), threshold, self._target_bytes)
            self._statistics.begin(GcPhase.COMPACTION, len(chosen))
            for usage in chosen:
                if self._clock() >= deadline:
                    break
                compactor.compact(usage.log_id, known.existing)
                known.usages.pop(usage.log_id, None)
                self._statistics.phase_done += 1
        finally:
            compactor.finish()

    def _compactor(self, known: _Known) -> Compactor:
        return Compactor(
            known.store,
            self._storage.exclusive,
            known.removal,
            self._throttle(),
            self._statistics,
            self._storage.config.entry_log_max_bytes,
        )

    def _throttle(self) -> Throttle:
        per_second, by_bytes = self._rate
        return Throttle(per_second, by_bytes=by_bytes, stopping=self._stopping, clock=self._clock)

    def _count(self) -> None:
        usages = [usage for known in self._known for usage in known.usages.values()]
        self._statistics.active_entry_logs = len(usages)
        self._statistics.active_entry_log_bytes = sum(usage.remaining for usage in usages)
        self._statistics.entry_log_bytes = sum(usage.total for usage in usages)
