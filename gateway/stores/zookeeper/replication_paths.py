"""The nodes of auto-recovery below one ledgers root. No I/O here. Source: docs/protocol/auto-recovery.md#tree."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from bookgate.ledger.ledger_id import MAX_UNSCOPED
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
    def scoped_marks(self) -> str:
        """Of ledgers with a scope, where BookKeeper never looks."""
        return f"{self.base}/bookgate/scoped/ledgers"

    @property
    def scoped_locks(self) -> str:
        return f"{self.base}/bookgate/scoped/locks"

    @property
    def disable(self) -> str:
        return f"{self.base}/disable"

    @property
    def delay(self) -> str:
        return f"{self.base}/lostBookieRecoveryDelay"

    @property
    def election(self) -> str:
        return f"{self.base}/auditorelection"

    def mark(self, number: int) -> str:
        return "/".join((self.marks_of(number), *mark_directories(number), mark_name(number)))

    def marks_of(self, number: int) -> str:
        """The tree that has the mark of this ledger."""
        return self.marks if number <= MAX_UNSCOPED else self.scoped_marks

    def marks_above(self, path: str) -> str:
        """The tree in which a directory of marks is."""
        return self.scoped_marks if path.startswith(f"{self.scoped_marks}/") else self.marks

    def lock(self, number: int) -> str:
        return f"{self.locks if number <= MAX_UNSCOPED else self.scoped_locks}/{mark_name(number)}"

    def check(self, check: PeriodicCheck) -> str:
        return f"{self.base}/{check.value}"

    def records(self, kind: RecordKind) -> str:
        return f"{self.base}/bookgate/{kind.value}"


def setting_nodes(paths: ReplicationPaths, settings: Mapping[str, bytes]) -> list[tuple[str, bytes]]:
    """The nodes of settings in a fresh cluster, parents first; none without settings."""
    directory = paths.records(RecordKind.SETTING)
    above = [(paths.base, b""), (directory.rpartition("/")[0], b""), (directory, b"")]
    return [*above, *((f"{directory}/{key}", value) for key, value in settings.items())] if settings else []
