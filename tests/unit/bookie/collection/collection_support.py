"""The part of garbage collection that works on entry logs, for tests: at full speed, and when the test says so."""

from __future__ import annotations

import threading
import time

from bookgate.bookie.collection.entry_log_collector import EntryLogCollector
from bookgate.bookie.collection.rules import CompactionRule
from bookgate.bookie.collection.statistics import GcStatistics
from bookgate.bookie.storage.storage import LedgerStorage
from bookgate.bookie.system.files import REAL_FILE_SYSTEM, FileSystem


class Collection:
    """One collector over the stores of an open storage."""

    def __init__(self, storage: LedgerStorage, files: FileSystem = REAL_FILE_SYSTEM) -> None:
        self.statistics = GcStatistics()
        self.stopping = threading.Event()
        self.storage = storage
        self.logs = EntryLogCollector(files, storage, self.stopping, self.statistics, (0, False), time.monotonic)

    def run(self, threshold: float = 0.9) -> None:
        self.logs.settle_leftovers()
        self.logs.collect()
        self.logs.compact(CompactionRule(threshold, 1))

    def complete_logs(self) -> list[int]:
        return [log_id for store in self.storage.stores for log_id in store.logs.complete_logs()]
