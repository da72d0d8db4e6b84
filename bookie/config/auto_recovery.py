"""The settings of auto-recovery. Where BookKeeper has the same, the description gives its name."""

from __future__ import annotations

from pydantic import Field
from pydantic_settings import BaseSettings

from bookgate.bookie.replication.auditor import AuditorOptions
from bookgate.bookie.replication.auto_recovery import AutoRecoveryOptions
from bookgate.bookie.replication.replica_check import ReplicaCheckOptions
from bookgate.bookie.replication.worker import WorkerOptions
from bookgate.runtime.settings import ConsistentSettings

_MIB = 1024 * 1024


class AutoRecoverySettings(BaseSettings, ConsistentSettings):
    """What may be set of a candidate for auditor and a worker."""

    lost_bookie_recovery_delay_seconds: int = Field(
        60,
        ge=0,
        description="lostBookieRecoveryDelay: how long a bookie may be missed before its ledgers are repaired; it goes "
        "into the metadata once, `bookgate autorecovery delay` changes it there; BookKeeper's default: 0",
    )
    audit_interval_seconds: float = Field(
        86400.0, gt=0, description="auditorPeriodicBookieCheckInterval: after so long lost bookies are audited again"
    )
    replica_check_interval_seconds: float = Field(
        604_800.0,
        ge=0,
        description="auditorPeriodicCheckInterval: so long after the last check the auditor asks the bookies again "
        "whether they hold what they are due to hold; 0: never",
    )
    replica_check_requests_per_second: float = Field(
        100.0, ge=0, description="what this check asks of all bookies together; 0: without limit"
    )
    open_ledger_recovery_grace_seconds: float = Field(
        30.0,
        ge=0,
        description="openLedgerRereplicationGracePeriod: how long a bookie has to be lost where a ledger is written "
        "before the ledger is taken from its writer",
    )
    replication_tasks: int = Field(4, ge=1, le=256, description="ledgers that the worker repairs at once")
    replication_rate_mb_per_second: float = Field(
        50.0, ge=0, description="what the worker reads and stores; 0: without limit; replicationRateByBytes"
    )

    def auto_recovery_options(self) -> AutoRecoveryOptions:
        """The same as plain values."""
        return AutoRecoveryOptions(
            AuditorOptions(
                lost_bookie_delay_seconds=self.lost_bookie_recovery_delay_seconds,
                audit_interval_seconds=self.audit_interval_seconds,
            ),
            WorkerOptions(
                tasks=self.replication_tasks, open_ledger_grace_seconds=self.open_ledger_recovery_grace_seconds
            ),
            self.replication_rate_mb_per_second * _MIB,
            ReplicaCheckOptions(
                interval_seconds=self.replica_check_interval_seconds,
                requests_per_second=self.replica_check_requests_per_second,
            ),
        )
