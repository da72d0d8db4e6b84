"""The nodes of auto-recovery below one ledgers root. No I/O here. Source: docs/protocol/auto-recovery.md#tree."""

from __future__ import annotations

from dataclasses import dataclass

from bookgate.ledger.replication import PeriodicCheck, mark_directories, mark_name
from bookgate.ledger.replication_store import RecordKind


@dataclass(frozen=True, slots=True)
class ReplicationPaths:
    """Paths below one ledgers root."""

    root: str

    @property
    def base(self) -> str:
        return f"{self.root}/underreplication"

    @property
    def layout(self) -> str:
        return f"{self.base}/LAYOUT"

    @property
    def marks(self) -> str:
        return f"{self.base}/ledgers"

    @property
    def locks(self) -> str:
        return f"{self.base}/locks"

    @property
    def disable(self) -> str:
        return f"{self.base}/disable"

    @property
    def delay(self) -> str:
        return f"{self.base}/lostBookieRecoveryDelay"

    @property
    def election(self) -> str:
        return f"{self.base}/auditorelection"

    def mark(self, ledger_id: int) -> str:
        return "/".join((self.marks, *mark_directories(ledger_id), mark_name(ledger_id)))

    def lock(self, ledger_id: int) -> str:
        return f"{self.locks}/{mark_name(ledger_id)}"

    def check(self, check: PeriodicCheck) -> str:
        return f"{self.base}/{check.value}"

    def records(self, kind: RecordKind) -> str:
        return f"{self.base}/bookgate/{kind.value}"
