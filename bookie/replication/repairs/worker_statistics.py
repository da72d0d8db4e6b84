"""What a replication worker counts, for its metrics."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class WorkerStatistics:
    """What a worker has done since its start."""

    ledgers_repaired: int = 0
    ledgers_failed: int = 0
    ledgers_recovered: int = 0
    """Ledgers that were still written, and were fenced and closed."""
    ledgers_unrecoverable: int = 0
    marks_seen: int = 0
    """In the last listing."""
    in_progress: int = 0
