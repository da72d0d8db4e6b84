"""The settings of garbage collection as plain values."""

from __future__ import annotations

from dataclasses import dataclass

from bookgate.bookie.collection.rules import CompactionPolicy, CompactionRule

DEFAULT_POLICY = CompactionPolicy(minor=CompactionRule(0.2, 3600), major=CompactionRule(0.8, 86400))


@dataclass(frozen=True, slots=True)
class GarbageCollectionConfig:
    """Times in seconds; rates per second, 0 for no limit."""

    wait_seconds: float = 600.0
    policy: CompactionPolicy = DEFAULT_POLICY
    rate_entries: float = 1000.0
    rate_bytes: float = 1_000_000.0
    throttle_by_bytes: bool = False
    verify_metadata: bool = True
    metadata_rate: float = 1000.0
    metadata_timeout_seconds: float = 20.0
    collect_ledgers: bool = True
    """False: no ledger is deleted."""
    max_deleted_share: float = 0.5
    """A run that would delete a larger share of the ledgers held is held back until it is forced."""
    mass_deletion_ledgers: int = 10
    """A run that would delete fewer is never held back."""
    force_when_no_space: bool = False
    target_log_bytes: int = 0
    """Smaller entry logs count as if they had this size, so compaction merges them."""
    over_replicated_wait_seconds: float = 0.0
    """Interval of the search for over-replicated ledgers; 0 or less: none."""
    location_compaction_seconds: float = 0.0
    """Interval of compactions of the RocksDB index; 0 or less: none."""
