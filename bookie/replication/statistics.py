"""Auto-recovery's metrics of the process in which it runs. Names: docs/reference/metrics.md.

Metrics about the whole cluster are exposed by the auditor in office alone; elsewhere they have no sample, so that a sum
or a maximum over all processes is the auditor's value.
"""

from __future__ import annotations

import time
from collections.abc import Iterator

from prometheus_client.core import Metric
from prometheus_client.registry import Collector

from bookgate.bookie.metrics.exposition import counter, gauge, gauges
from bookgate.bookie.replication.audits.auditor import AuditorStatistics
from bookgate.bookie.replication.auto_recovery import AutoRecovery
from bookgate.bookie.replication.checks.ledger_check import CheckStatistics
from bookgate.ledger.replication_progress import Amount, Danger

_AUDITOR = "auditor_"
_CHECK = "auditor_REPLICA_CHECK_"
_PLACEMENT = "auditor_PLACEMENT_CHECK_"
_SCRUB = "auditor_SCRUB_"
_WORKER = "replication_worker_"


class AutoRecoveryCollector(Collector):
    """The metrics of one process's auditor and worker."""

    def __init__(self, shown: AutoRecovery) -> None:
        self._shown = shown

    def collect(self) -> Iterator[Metric]:
        yield from self._of_the_auditor()
        in_office = self._shown.auditor.statistics.is_auditor
        yield from _of_a_check(_CHECK, "check of replicas", self._shown.check.statistics, in_office=in_office)
        done = self._shown.placement_check.statistics
        yield from _of_a_check(_PLACEMENT, "check of placement", done, in_office=in_office)
        yield from self._of_the_scrub()
        yield from self._of_the_worker()

    def _of_the_auditor(self) -> Iterator[Metric]:
        done = self._shown.auditor.statistics
        yield gauge(_AUDITOR + "IS_AUDITOR", "1 while this process is the cluster's auditor", int(done.is_auditor))
        yield gauge(
            _AUDITOR + "GIVES_WAY",
            "1 while this process does nothing, since the auditor is none of Bookgate's and nobody asked for two",
            int(self._shown.gives_way_to is not None),
        )
        yield from _of_the_cluster(done)
        yield from self._of_the_progress(done)
        yield counter(_AUDITOR + "AUDITS", "audits that have found all ledgers of lost bookies", done.audits)
        yield counter(
            _AUDITOR + "AUDITS_BY_INDEX",
            "of these the ones that the index has told these ledgers",
            done.audits_by_index,
        )
        yield counter(_AUDITOR + "AUDITS_FAILED", "audits that could not, and were begun anew", done.audits_failed)
        yield counter(_AUDITOR + "NUM_LEDGERS_CHECKED", "ledgers that audits have looked at", done.ledgers_audited)
        yield from self._of_the_index()
        yield counter(_AUDITOR + "NUM_UNDER_REPLICATED_LEDGERS", "ledgers that audits have marked", done.ledgers_marked)
        yield counter(
            _AUDITOR + "LEDGERS_UNREADABLE",
            "ledgers left out: their metadata are damaged",
            done.ledgers_unreadable,
        )

    def _of_the_progress(self, done: AuditorStatistics) -> Iterator[Metric]:
        """Metrics of progress, as this process's worker counts; all workers see the same marks."""
        progress = self._shown.worker.progress if done.is_auditor else None
        classes = {} if progress is None else progress.classes or {}
        bookies = {} if progress is None else progress.bookies
        told = Danger if done.is_auditor else ()
        by_class = [({"class": danger.value}, classes.get(danger, Amount())) for danger in told]
        yield gauges(
            _AUDITOR + "LEDGERS_IN_DANGER",
            "marked ledgers by the class of danger that they are in",
            [(labels, amount.ledgers) for labels, amount in by_class],
        )
        yield gauges(
            _AUDITOR + "BYTES_TO_COPY",
            "bytes of marked ledgers that are to be copied, at most, by class; of closed ledgers",
            [(labels, amount.bytes) for labels, amount in by_class],
        )
        yield gauges(
            _AUDITOR + "LEDGERS_TO_REPAIR",
            "marked ledgers that can be repaired, by the `bookie` where they lack copies; the 50 with the most",
            [({"bookie": bookie_id}, count) for bookie_id, count in bookies.items()],
        )

    def _of_the_index(self) -> Iterator[Metric]:
        index, is_auditor = self._shown.auditor.statistics.index, self._shown.auditor.statistics.is_auditor
        yield gauge(
            _AUDITOR + "INDEX_COMPLETE",
            "1 while the index is complete; 0: audits read all ledgers",
            int(index.ledgers is not None) if is_auditor else None,
        )
        yield gauge(_AUDITOR + "INDEX_LEDGERS", "ledgers in the index", index.ledgers)
        yield counter(_AUDITOR + "INDEX_READINGS", "readings of all ledgers for a new index", index.readings)
        yield counter(
            _AUDITOR + "INDEX_DIFFERENCES",
            "ledgers of which the index was wrong without a word of the store's feed",
            index.differences,
        )

    def _of_the_scrub(self) -> Iterator[Metric]:
        done = self._shown.scrub.statistics
        in_office = self._shown.auditor.statistics.is_auditor
        yield gauge(
            _SCRUB + "IN_PROGRESS",
            "1 while copies are read to check their digests",
            int(done.in_progress) if in_office else None,
        )
        yield gauge(
            _SCRUB + "SECONDS_SINCE",
            "since all copies had been read for the last time, or, before the first time, since that pass began",
            None if done.since_ms is None else _age(done.since_ms),
        )
        yield gauge(
            _SCRUB + "LEDGERS_LEFT_OUT",
            "ledgers that could not be read yet in the pass under way",
            done.ledgers_left_out,
        )
        yield counter(_SCRUB + "PASSES", "times that all copies of all ledgers were read", done.passes)
        yield counter(_SCRUB + "ENTRIES", "copies of entries looked at", done.entries)
        yield counter(_SCRUB + "BYTES", "bytes of these", done.bytes)
        yield counter(_SCRUB + "CORRUPT_COPIES", "copies of entries found damaged, and marked for repair", done.corrupt)
        yield counter(
            _SCRUB + "LEDGERS_UNVERIFIED",
            "ledgers left out: their metadata are damaged, or name no digest",
            done.ledgers_unverified,
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
        yield counter(
            _WORKER + "PLACEMENT_COMPROMISES",
            "bookies chosen although the placement policy would have had another one",
            shown.placement_compromises,
        )
        yield counter(_WORKER + "NUM_ENTRIES_WRITTEN", "copies stored", shown.copied_entries)
        yield counter(_WORKER + "NUM_BYTES_WRITTEN", "bytes of these", shown.copied_bytes)
        yield gauge(
            _WORKER + "BYTES_A_SECOND", "rate that the budget grants now; 0: without limit", shown.bytes_a_second
        )


def _of_a_check(prefix: str, what: str, done: CheckStatistics, *, in_office: bool) -> Iterator[Metric]:
    yield gauge(prefix + "IN_PROGRESS", f"1 while a {what} is under way", int(done.in_progress) if in_office else None)
    yield gauge(
        prefix + "SECONDS_SINCE",
        f"since the last complete {what} ended, or, before the first one, since this auditor began it",
        None if done.since_ms is None else _age(done.since_ms),
    )
    yield counter(prefix + "COMPLETE", f"times that a {what} has looked at all ledgers", done.checks)
    yield counter(prefix + "INCOMPLETE", f"times that a {what} could not, and is begun again later", done.checks_failed)
    yield counter(prefix + "LEDGERS", f"ledgers that a {what} has looked at", done.ledgers_checked)
    yield counter(prefix + "LEDGERS_MARKED", "of these the ones marked for repair", done.ledgers_marked)
    yield counter(
        prefix + "LEDGERS_UNREADABLE",
        f"ledgers that a {what} left out: their metadata are damaged",
        done.ledgers_unreadable,
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
        "1 while so many bookies are missed that only ledgers with last copies are marked until an audit is ordered",
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
        _AUDITOR + "CORRUPT_LEDGERS",
        "ledgers with copies that a scrub found damaged, and that are not repaired yet",
        None if survey is None else survey.corrupt,
    )
    yield gauge(
        _AUDITOR + "OLDEST_MARK_SECONDS",
        "for how long the first marked of the ledgers that lack copies, and can be repaired, has been so; 0: none",
        None if survey is None else _age(survey.oldest_mark_ms),
    )


def _age(since_ms: int | None) -> float:
    return 0.0 if since_ms is None else max(0.0, time.time() - since_ms / 1000)
