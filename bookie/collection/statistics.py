"""Statistics of garbage collection as plain numbers, exposed to Prometheus under BookKeeper's names (`bookie_gc_…`)."""

from __future__ import annotations

import enum
from collections.abc import Iterator
from dataclasses import dataclass

from prometheus_client.core import Metric
from prometheus_client.registry import Collector

from bookgate.bookie.metrics.exposition import counter, gauge

_PREFIX = "bookie_gc_"


class GcPhase(enum.Enum):
    """The phase of the current run."""

    IDLE = "idle"
    LEDGERS = "comparing ledgers with the metadata"
    ENTRY_LOGS = "looking into entry logs"
    COMPACTION = "compacting entry logs"
    LOCATIONS = "compacting the index"


@dataclass(slots=True)
class GcStatistics:
    """Written by the run, read by any thread. Sizes in bytes, times in seconds."""

    active_entry_logs: int = 0
    """Number of complete entry logs after the last run."""
    active_entry_log_bytes: int = 0
    """Bytes in these logs that belong to existing ledgers."""
    entry_log_bytes: int = 0
    """All bytes in these logs."""
    active_ledgers: int = 0
    deleted_ledgers: int = 0
    over_replicated_ledgers: int = 0
    trimmed_ledgers: int = 0
    """Ledgers deleted because no fragment names this bookie any more."""
    kept_candidates: int = 0
    """Ledgers missing in a listing that were kept, because their metadata exists or could not be read."""
    failed_listings: int = 0
    held_back_ledgers: int = 0
    """Ledgers that the last run did not delete because they were most of what is held; 0 if it held nothing back."""
    major_compactions: int = 0
    minor_compactions: int = 0
    reclaimed_by_compaction: int = 0
    reclaimed_by_deletion: int = 0
    failed_deletions: int = 0
    """Entry logs that should have been removed and are still there: damaged, in doubt, or not removable."""
    runs: int = 0
    run_seconds: float = 0.0
    ledger_seconds: float = 0.0
    extract_seconds: float = 0.0
    compact_seconds: float = 0.0
    phase: GcPhase = GcPhase.IDLE
    phase_done: int = 0
    phase_total: int = 0
    """Entry logs that the phase has finished, and all it has to process; 0 if it does not count them."""
    last_run_ms: int = 0
    """When the last run ended, milliseconds since 1970; 0 before the first."""

    def begin(self, phase: GcPhase, total: int = 0) -> None:
        """A phase begins."""
        self.phase, self.phase_done, self.phase_total = phase, 0, total

    def compaction_ratio(self) -> float:
        """The fraction of the entry logs' bytes that could be freed."""
        return 1 - self.active_entry_log_bytes / self.entry_log_bytes if self.entry_log_bytes else 0.0


class GcCollector(Collector):
    """Exposes the statistics of one bookie to Prometheus."""

    def __init__(self, statistics: GcStatistics) -> None:
        self._statistics = statistics

    def collect(self) -> Iterator[Metric]:
        s = self._statistics
        yield _gauge("ACTIVE_ENTRY_LOG_TOTAL", "complete entry logs", s.active_entry_logs)
        yield gauge(
            _PREFIX + "ACTIVE_ENTRY_LOG_SPACE_BYTES", "bytes of existing ledgers in them", s.active_entry_log_bytes
        )
        yield _gauge("ENTRY_LOG_SPACE_BYTES", "bytes of complete entry logs", s.entry_log_bytes)
        yield gauge(
            _PREFIX + "ENTRY_LOG_COMPACT_RATIO", "part of the entry logs that could be freed", s.compaction_ratio()
        )
        yield _gauge("ACTIVE_LEDGER_TOTAL", "ledgers held", s.active_ledgers)
        yield _counter("DELETED_LEDGER_TOTAL", "ledgers collected", s.deleted_ledgers)
        yield _counter(
            "OVER_REPLICATED_LEDGERS", "ledgers deleted that were moved elsewhere", s.over_replicated_ledgers
        )
        yield counter(
            _PREFIX + "TRIMMED_LEDGERS", "unbounded ledgers whose first entries were deleted", s.trimmed_ledgers
        )
        yield counter(
            _PREFIX + "KEPT_CANDIDATES", "ledgers missing in a listing that were not collected", s.kept_candidates
        )
        yield _counter("FAILED_LISTINGS", "runs that could not list the metadata", s.failed_listings)
        yield _gauge("HELD_BACK_LEDGERS", "ledgers that the last run did not dare to delete", s.held_back_ledgers)
        yield _counter("MAJOR_COMPACTION_TOTAL", "major compactions", s.major_compactions)
        yield _counter("MINOR_COMPACTION_TOTAL", "minor compactions", s.minor_compactions)
        yield counter(
            _PREFIX + "RECLAIMED_COMPACTION_SPACE_BYTES", "bytes freed by compaction", s.reclaimed_by_compaction
        )
        yield counter(
            _PREFIX + "RECLAIMED_DELETION_SPACE_BYTES", "bytes freed by removing logs", s.reclaimed_by_deletion
        )
        yield _counter("RECLAIM_FAILED_TO_DELETE", "entry logs that could not be removed", s.failed_deletions)
        yield _timer("THREAD_RUNTIME", "runs", s.runs, s.run_seconds)
        yield _timer("GC_LEDGER_RUNTIME", "comparing with the metadata", s.runs, s.ledger_seconds)
        yield _timer("EXTRACT_META_RUNTIME", "looking into entry logs", s.runs, s.extract_seconds)
        yield _timer("COMPACT_RUNTIME", "compaction", s.runs, s.compact_seconds)


def _gauge(name: str, text: str, value: float) -> Metric:
    return gauge(_PREFIX + name, text, value)


def _counter(name: str, text: str, value: float) -> Metric:
    return counter(_PREFIX + name, text, value)


def _timer(name: str, text: str, count: int, seconds: float) -> Metric:
    """A summary without quantiles, in milliseconds like BookKeeper's."""
    metric = Metric(_PREFIX + name, f"{text}, in milliseconds", "summary")
    metric.add_sample(f"{_PREFIX}{name}_count", {"success": "true"}, count)
    metric.add_sample(f"{_PREFIX}{name}_sum", {"success": "true"}, seconds * 1000)
    return metric
