"""The settings of garbage collection and compaction. Where BookKeeper has the same, the description gives its name."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import ClassVar

from pydantic import Field
from pydantic_settings import BaseSettings

from bookgate.bookie.collection.options import GarbageCollectionConfig
from bookgate.bookie.collection.rules import CompactionPolicy, CompactionRule
from bookgate.runtime.settings import ConsistentSettings, Renamed, with_unit


class GcSettings(BaseSettings, ConsistentSettings):
    """The settings of garbage collection, a part of the bookie's."""

    RENAMED: ClassVar[Mapping[str, Renamed]] = {
        **with_unit("_per_second", "compaction_rate_entries", "compaction_rate_bytes", "gc_metadata_op_rate_limit"),
        "minor_compaction_max_time_millis": Renamed("minor_compaction_max_time_seconds", 1000),
        "major_compaction_max_time_millis": Renamed("major_compaction_max_time_seconds", 1000),
    }

    gc_wait_seconds: float = Field(600.0, gt=0, description="gcWaitTime: between runs of garbage collection")
    minor_compaction_threshold: float = Field(
        0.2, le=1, description="minorCompactionThreshold: logs with less in use are compacted; 0 or less: off"
    )
    minor_compaction_interval_seconds: float = Field(3600.0, description="minorCompactionInterval; 0 or less: off")
    major_compaction_threshold: float = Field(0.8, le=1, description="majorCompactionThreshold; 0 or less: off")
    major_compaction_interval_seconds: float = Field(86400.0, description="majorCompactionInterval; 0 or less: off")
    force_allow_compaction: bool = Field(
        False, description="forceAllowCompaction: a forced run compacts although the interval is off"
    )
    compaction_rate_entries_per_second: float = Field(
        1000.0, ge=0, description="compactionRateByEntries; 0: without limit"
    )
    compaction_rate_bytes_per_second: float = Field(
        1_000_000.0, ge=0, description="compactionRateByBytes; 0: without limit"
    )
    is_throttle_by_bytes: bool = Field(False, description="isThrottleByBytes: which of the two rates counts")
    verify_metadata_on_gc: bool = Field(
        True,
        description="verifyMetadataOnGC: a ledger's metadata is read before it goes; BookKeeper's default: off",
    )
    gc_collect_ledgers: bool = Field(
        True, description="off: no ledger is deleted, whatever the metadata say; for after they were restored"
    )
    gc_max_deleted_share: float = Field(
        0.5, ge=0, le=1, description="a run that would delete more of the ledgers held is held back until it is forced"
    )
    gc_mass_deletion_ledgers: int = Field(
        10, ge=1, description="runs that would delete fewer ledgers are never held back"
    )
    gc_over_replicated_wait_seconds: float = Field(
        0.0,
        description="gcOverreplicatedLedgerWaitTime: between looks for closed ledgers that were moved elsewhere, whose "
        "copies here then go under the lock of auto-recovery; 0 or less: off; BookKeeper's default: a day",
    )
    gc_metadata_op_rate_limit_per_second: float = Field(1000.0, ge=0, description="gcMetadataOpRateLimit; 0: none")
    minor_compaction_max_time_seconds: float = Field(
        -1, description="minorCompactionMaxTimeMillis: after which a run begins no further log; 0 or less: no limit"
    )
    major_compaction_max_time_seconds: float = Field(-1, description="majorCompactionMaxTimeMillis")
    use_target_entry_log_size_for_gc: bool = Field(
        False, description="useTargetEntryLogSizeForGc: a log's limit counts, not its size: small logs are merged"
    )
    entry_location_compaction_interval_seconds: float = Field(
        -1, description="entryLocationCompactionInterval, of RocksDB's index; 0 or less: only when asked for"
    )
    is_force_gc_allow_when_no_space: bool = Field(
        False, description="isForceGCAllowWhenNoSpace: a disk that fills up begins a run instead of ending compaction"
    )

    def contradictions(self) -> Iterator[str]:
        yield from super().contradictions()
        problem = self._compaction_policy().problem(self.gc_wait_seconds)
        if problem is not None:
            yield problem

    def garbage_collection(self, entry_log_bytes: int) -> GarbageCollectionConfig:
        """The settings as plain values.

        Args:
            entry_log_bytes: Maximum size of an entry log.
        """
        return GarbageCollectionConfig(
            wait_seconds=self.gc_wait_seconds,
            policy=self._compaction_policy(),
            rate_entries=self.compaction_rate_entries_per_second,
            rate_bytes=self.compaction_rate_bytes_per_second,
            throttle_by_bytes=self.is_throttle_by_bytes,
            verify_metadata=self.verify_metadata_on_gc,
            metadata_rate=self.gc_metadata_op_rate_limit_per_second,
            collect_ledgers=self.gc_collect_ledgers,
            over_replicated_wait_seconds=self.gc_over_replicated_wait_seconds,
            max_deleted_share=self.gc_max_deleted_share,
            mass_deletion_ledgers=self.gc_mass_deletion_ledgers,
            force_when_no_space=self.is_force_gc_allow_when_no_space,
            target_log_bytes=entry_log_bytes if self.use_target_entry_log_size_for_gc else 0,
            location_compaction_seconds=self.entry_location_compaction_interval_seconds,
        )

    def _compaction_policy(self) -> CompactionPolicy:
        return CompactionPolicy(
            minor=CompactionRule(
                self.minor_compaction_threshold,
                self.minor_compaction_interval_seconds,
                self.minor_compaction_max_time_seconds,
            ),
            major=CompactionRule(
                self.major_compaction_threshold,
                self.major_compaction_interval_seconds,
                self.major_compaction_max_time_seconds,
            ),
            forced_always=self.force_allow_compaction,
        )
