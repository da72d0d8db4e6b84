"""The grace period of open ledgers: how long a writer has to replace a lost bookie (R6). Pure.

It is over when a bookie of the last ensemble has been away, and the ledger's metadata have not changed, for the whole
period, as observed by this process from its first examination on, by a monotonic clock. A live writer replaces the
bookie at its next add, which changes the metadata. Source: docs/protocol/auto-recovery.md#worker.
"""

from __future__ import annotations

from collections.abc import Collection

from bookgate.bookie.replication.attendance import Attendance
from bookgate.bookie.replication.repairs.repair import Outcome
from bookgate.ledger.metadata_store import LedgerRecord


class Graces:
    """The grace periods of the open ledgers that one process examines."""

    def __init__(self, seconds: float, attendance: Attendance) -> None:
        self._seconds = seconds
        self._attendance = attendance
        self._seen: dict[int, tuple[int, float]] = {}
        """By ledger, the version of its metadata, and since when it has been observed."""

    def keep_only(self, ledgers: Collection[int]) -> None:
        """Forgets all other ledgers; their grace periods start again."""
        for ledger_id in self._seen.keys() - ledgers:
            del self._seen[ledger_id]

    def forget(self, ledger_id: int) -> None:
        self._seen.pop(ledger_id, None)

    def left(self, record: LedgerRecord, now: float) -> float:
        """Seconds until the metadata have been unchanged for the grace period."""
        ledger_id = record.ledger_id.number
        version, since = self._seen.get(ledger_id, (record.version, now))
        if version != record.version:
            since = now
        self._seen[ledger_id] = record.version, since
        return max(0.0, since + self._seconds - now)

    def is_over(self, outcome: Outcome, now: float) -> bool:
        """Whether the ledger may be fenced: nothing else remains to be repaired, and its lost bookies stayed away."""
        lost = outcome.findings.lost_where_written
        if not lost or outcome.findings.repairs:
            return False
        if self.left(outcome.record, now) > 0:
            return False
        away = [self._attendance.away_seconds(bookie_id, now) for bookie_id in lost]
        return any(seconds is not None and seconds >= self._seconds for seconds in away)
