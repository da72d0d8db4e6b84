"""The counts of a replication worker, for its metrics."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class WorkerStatistics:
    """Counts of a worker since its start."""

    ledgers_repaired: int = 0
    ledgers_failed: int = 0
    ledgers_recovered: int = 0
    """Open ledgers that were fenced, recovered and closed."""
    ledgers_unrecoverable: int = 0
    marks_seen: int = 0
    """Number of marks in the last listing."""
    in_progress: int = 0
