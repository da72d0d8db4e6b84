"""Forwards the events of storage's parts, and reports only the first failure.

A journal, a checkpoint and everything that changes the index may each meet a disk error. The first is reported; storage
has then failed, and later errors are ignored. All other events pass unchanged.
"""

from __future__ import annotations

from bookgate.bookie.storage_events import StorageEvents
from bookgate.bookie.system.threads import Threads


class FailsOnce:
    """`StorageEvents` for journals and checkpoints. Any thread."""

    def __init__(self, events: StorageEvents, threads: Threads) -> None:
        self.stored = events.stored
        self.not_stored = events.not_stored
        self.capacity_available = events.capacity_available
        self.space_restored = events.space_restored
        self.ledgers_deleted = events.ledgers_deleted
        self._events = events
        self._lock = threads.lock()
        self.have_failed = False
        """Nothing more is accepted, acknowledged or checkpointed."""

    def failed(self, error: BaseException) -> None:
        with self._lock:
            if self.have_failed:
                return
            self.have_failed = True
        self._events.failed(error)
