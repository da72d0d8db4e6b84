"""The settings of auto-recovery. Where BookKeeper has the same, the description gives its name."""

from __future__ import annotations

from pydantic import Field
from pydantic_settings import BaseSettings

from bookgate.bookie.replication.audits.audit_rules import MassLoss
from bookgate.bookie.replication.audits.auditor import AuditorOptions
from bookgate.bookie.replication.auto_recovery import AutoRecoveryOptions
from bookgate.bookie.replication.checks.placement_check import PlacementCheckOptions
from bookgate.bookie.replication.checks.replica_check import ReplicaCheckOptions
from bookgate.bookie.replication.checks.scrub import ScrubOptions
from bookgate.bookie.replication.copies.budget import CopyLimits
from bookgate.bookie.replication.repairs.worker import WorkerOptions
from bookgate.ledger.replication import MOST_DELAY_SECONDS
from bookgate.runtime.settings import ConsistentSettings

_MIB = 1024 * 1024


class AutoRecoverySettings(BaseSettings, ConsistentSettings):
    """The settings of auditor and worker."""

    lost_bookie_recovery_delay_seconds: int = Field(
        60,
        ge=0,
        le=MOST_DELAY_SECONDS,
        description="lostBookieRecoveryDelay: how long a bookie may be missed before its ledgers are repaired; it goes "
        "into the metadata once, `bookgate autorecovery delay` changes it there; BookKeeper's default: 0",
    )
    audit_interval_seconds: float = Field(
        86400.0, gt=0, description="auditorPeriodicBookieCheckInterval: after so long lost bookies are audited again"
    )
    mass_loss_share: float = Field(
        0.5,
        gt=0,
        le=1,
        description="when more than this share of all bookies, and at least two, or of those of one rack, and at least "
        "three, are missed at once, of their ledgers only such are repaired of which entries have one copy left, "
        "before somebody orders an audit; 1: never",
    )
    mass_loss_window_seconds: float = Field(
        600.0,
        ge=0,
        description="bookies are missed at once if they were first missed within so long; 0: whenever that was",
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
    placement_check_interval_seconds: float = Field(
        0.0,
        ge=0,
        description="auditorPeriodicPlacementPolicyCheckInterval: so long after the last check the auditor looks again "
        "for ledgers that the placement policy would have elsewhere, and workers move them; 0: never",
    )
    scrub_rate_mb_per_second: float = Field(
        4.0,
        ge=0,
        description="how fast the auditor reads all copies of all entries, to see whether their digests are right; 0: "
        "never",
    )
    scrub_interval_seconds: float = Field(
        604_800.0, ge=0, description="so long after it has read them all it begins again"
    )
    open_ledger_recovery_grace_seconds: float = Field(
        30.0,
        ge=0,
        description="openLedgerRereplicationGracePeriod: how long a bookie has to be lost where a ledger is written "
        "before the ledger is taken from its writer",
    )
    replication_tasks: int = Field(4, ge=1, le=256, description="ledgers that the worker repairs at once")
    replication_rate_mb_per_second: float = Field(
        50.0,
        ge=0,
        description="what the worker reads and stores, each entry as 4 KiB at least; 0: without limit; "
        "replicationRateByBytes",
    )
    replication_rate_per_bookie_mb_per_second: float = Field(
        50.0,
        ge=0,
        description="what all workers together read from and store at one bookie, each entry as 4 KiB at least; 0: "
        "without limit",
    )
    replication_last_copies_rate_mb_per_second: float = Field(
        1.0,
        ge=0,
        description="what the worker reads and stores of entries that have one copy left, however low the other rates "
        "are set or overload makes them; 0: no more than these allow",
    )

    def auto_recovery_options(self) -> AutoRecoveryOptions:
        """The settings as plain values."""
        return AutoRecoveryOptions(
            AuditorOptions(
                lost_bookie_delay_seconds=self.lost_bookie_recovery_delay_seconds,
                audit_interval_seconds=self.audit_interval_seconds,
                mass_loss=MassLoss(self.mass_loss_share, int(1000 * self.mass_loss_window_seconds)),
            ),
            WorkerOptions(
                tasks=self.replication_tasks, open_ledger_grace_seconds=self.open_ledger_recovery_grace_seconds
            ),
            CopyLimits(
                self.replication_rate_mb_per_second * _MIB,
                self.replication_rate_per_bookie_mb_per_second * _MIB,
                self.replication_last_copies_rate_mb_per_second * _MIB,
            ),
            ReplicaCheckOptions(
                interval_seconds=self.replica_check_interval_seconds,
                requests_per_second=self.replica_check_requests_per_second,
            ),
            ScrubOptions(
                bytes_a_second=self.scrub_rate_mb_per_second * _MIB, interval_seconds=self.scrub_interval_seconds
            ),
            PlacementCheckOptions(interval_seconds=self.placement_check_interval_seconds),
        )
