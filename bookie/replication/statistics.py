"""How Prometheus sees auto-recovery, of the process that it runs in. Names: docs/reference/metrics.md.

What is so of the whole cluster is shown by the auditor in office alone; elsewhere those metrics have no sample, so that
a sum or a maximum over all processes is the auditor's word.
"""

from __future__ import annotations

import time
from collections.abc import Iterator

from prometheus_client.core import Metric
from prometheus_client.registry import Collector

from bookgate.bookie.metrics.exposition import counter, gauge
from bookgate.bookie.replication.auditor import AuditorStatistics
from bookgate.bookie.replication.auto_recovery import AutoRecovery

_AUDITOR = "auditor_"
_CHECK = "auditor_REPLICA_CHECK_"
_WORKER = "replication_worker_"


class AutoRecoveryCollector(Collector):
    """Shows one process's auditor and worker."""

    def __init__(self, shown: AutoRecovery) -> None:
        self._shown = shown

    def collect(self) -> Iterator[Metric]:
        yield from self._of_the_auditor()
        yield from self._of_the_check()
        yield from self._of_the_worker()

    def _of_the_auditor(self) -> Iterator[Metric]:
        done = self._shown.auditor.statistics
        yield gauge(_AUDITOR + "IS_AUDITOR", "1 while this process is the cluster's auditor", int(done.is_auditor))
        yield from _of_the_cluster(done)
        yield counter(_AUDITOR + "AUDITS", "audits that have looked at all ledgers", done.audits)
        yield counter(_AUDITOR + "AUDITS_FAILED", "audits that could not, and were begun anew", done.audits_failed)
        yield counter(_AUDITOR + "NUM_LEDGERS_CHECKED", "ledgers that audits have looked at", done.ledgers_audited)
        yield counter(_AUDITOR + "NUM_UNDER_REPLICATED_LEDGERS", "ledgers that audits have marked", done.ledgers_marked)
        yield counter(
            _AUDITOR + "LEDGERS_UNREADABLE",
            "ledgers left out: their metadata are damaged",
            done.ledgers_unreadable,
        )

    def _of_the_check(self) -> Iterator[Metric]:
        done = self._shown.check.statistics
        running = int(done.in_progress) if self._shown.auditor.statistics.is_auditor else None
        yield gauge(_CHECK + "IN_PROGRESS", "1 while a check of replicas is under way", running)
        yield gauge(
            _CHECK + "SECONDS_SINCE",
            "since the last complete check of replicas ended",
            None if done.ended_ms is None else _age(done.ended_ms),
        )
        yield counter(_CHECK + "COMPLETE", "checks of replicas that have looked at all ledgers", done.checks)
        yield counter(_CHECK + "INCOMPLETE", "checks that could not, and are begun again later", done.checks_failed)
        yield counter(_CHECK + "LEDGERS", "ledgers that checks have looked at", done.ledgers_checked)
        yield counter(
            _CHECK + "LEDGERS_MARKED", "of these the ones of which a living bookie lacks entries", done.ledgers_marked
        )
        yield counter(
            _CHECK + "LEDGERS_UNREADABLE",
            "ledgers left out of checks: their metadata are damaged",
            done.ledgers_unreadable,
        )

    def _of_the_worker(self) -> Iterator[Metric]:
        shown, done = self._shown, self._shown.worker.statistics
        yield gauge(_WORKER + "MARKED_LEDGERS", "marks in the last listing", done.marks_seen)
        yield gauge(_WORKER + "LEDGERS_IN_PROGRESS", "ledgers under repair now", done.in_progress)
        yield counter(
            _WORKER + "NUM_FULL_OR_PARTIAL_LEDGERS_REPLICATED",
            "ledgers that a last look found whole",
            done.ledgers_repaired,
        )
        yield counter(_WORKER + "LEDGERS_POSTPONED", "repairs that are to be tried again", done.ledgers_failed)
        yield counter(
            _WORKER + "LEDGERS_RECOVERED", "ledgers that were taken from writers and closed", done.ledgers_recovered
        )
        yield counter(
            _WORKER + "LEDGERS_UNRECOVERABLE",
            "ledgers found to have entries of which no copy is left",
            done.ledgers_unrecoverable,
        )
        yield counter(_WORKER + "NUM_ENTRIES_WRITTEN", "copies stored", shown.copied_entries)
        yield counter(_WORKER + "NUM_BYTES_WRITTEN", "bytes of these", shown.copied_bytes)
        yield gauge(
            _WORKER + "BYTES_A_SECOND", "rate that the budget grants now; 0: without limit", shown.bytes_a_second
        )


def _of_the_cluster(done: AuditorStatistics) -> Iterator[Metric]:
    enabled = int(done.enabled) if done.is_auditor else None
    yield gauge(_AUDITOR + "ENABLED", "1 while auto-recovery is enabled for the cluster", enabled)
    roll = done.roll if enabled else None
    yield gauge(
        _AUDITOR + "BOOKIES_MISSED",
        "bookies of the cluster that are not registered",
        None if roll is None else roll.missed,
    )
    yield gauge(
        _AUDITOR + "BOOKIES_LOST",
        "of these the ones missed for longer than the delay",
        None if roll is None else roll.lost,
    )
    yield gauge(
        _AUDITOR + "AUDIT_HELD_BACK",
        "1 while so many bookies are missed that no ledger is marked before somebody orders an audit",
        None if roll is None else int(roll.storm),
    )
    survey = done.survey if done.is_auditor else None
    yield gauge(_AUDITOR + "MARKED_LEDGERS", "ledgers marked for repair", None if survey is None else survey.marked)
    yield gauge(
        _AUDITOR + "UNRECOVERABLE_LEDGERS",
        "ledgers with entries of which no copy is left",
        None if survey is None else survey.unrecoverable,
    )
    yield gauge(
        _AUDITOR + "OLDEST_MARK_SECONDS",
        "for how long the first marked of the ledgers that lack copies, and can be repaired, has been so; 0: none",
        None if survey is None else _age(survey.oldest_mark_ms),
    )


def _age(since_ms: int | None) -> float:
    return 0.0 if since_ms is None else max(0.0, time.time() - since_ms / 1000)
