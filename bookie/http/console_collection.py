"""Garbage collection for the console: the current run, its progress, what it freed, and the usage of entry logs."""

from __future__ import annotations

from typing import Any

from bookgate.bookie.collection.garbage_collector import GarbageCollector
from bookgate.bookie.collection.rules import USAGE_BUCKETS, CompactionKind, usage_bucket
from bookgate.gateway.console.paths import CONSOLE
from bookgate.gateway.http.api import Call, NoBody, NoQuery, Route, get

_LOGS_SHOWN = 500


def console_collection_routes(collector: GarbageCollector) -> list[Route]:
    async def collection(_call: Call[NoQuery, NoBody]) -> Any:
        seen, counted = collector.details(), collector.statistics
        return {
            "phase": counted.phase.value,
            "phaseDone": counted.phase_done,
            "phaseTotal": counted.phase_total,
            "asked": collector.is_in_force_gc,
            "compacting": "major" if seen.major_compacting else "minor" if seen.minor_compacting else None,
            "runs": counted.runs,
            "runSeconds": round(counted.run_seconds, 3),
            "lastRun": counted.last_run_ms or None,
            "ledgers": counted.active_ledgers,
            "deletedLedgers": counted.deleted_ledgers,
            "failedListings": counted.failed_listings,
            "heldBackLedgers": counted.held_back_ledgers,
            "keptCandidates": counted.kept_candidates,
            "reclaimedByDeletion": counted.reclaimed_by_deletion,
            "reclaimedByCompaction": counted.reclaimed_by_compaction,
            "failedDeletions": counted.failed_deletions,
            "minor": _kind(collector, CompactionKind.MINOR, seen.minor_compactions, seen.last_minor_compaction_ms),
            "major": _kind(collector, CompactionKind.MAJOR, seen.major_compactions, seen.last_major_compaction_ms),
            **_logs(collector),
        }

    return [
        get(
            f"{CONSOLE}/collection",
            "Garbage collection: its progress, and how entry logs are used",
            collection,
            answer={"type": "object", "required": ["phase", "minor", "major", "logs"]},
        )
    ]


def _kind(collector: GarbageCollector, kind: CompactionKind, done: int, last_ms: int) -> dict[str, Any]:
    # Before the first one, the time of the start stands there.
    return {"count": done, "last": last_ms if done else None, "suspended": collector.is_suspended(kind)}


def _logs(collector: GarbageCollector) -> dict[str, Any]:
    """Complete entry logs as the last run saw them: by tenths of their usage, and the emptiest of them."""
    usages = collector.logs.usages()
    buckets = [{"logs": 0, "bytes": 0} for _ in range(USAGE_BUCKETS)]
    for usage in usages:
        bucket = buckets[usage_bucket(usage.usage)]
        bucket["logs"] += 1
        bucket["bytes"] += usage.total
    emptiest = sorted(usages, key=lambda usage: (usage.usage, usage.log_id))[:_LOGS_SHOWN]
    return {
        "buckets": buckets,
        "logCount": len(usages),
        "logBytes": sum(usage.total for usage in usages),
        "liveBytes": sum(usage.remaining for usage in usages),
        "logs": [
            {
                "id": f"{usage.log_id:x}",
                "bytes": usage.total,
                "liveBytes": usage.remaining,
                "ledgers": len(usage.ledgers),
            }
            for usage in emptiest
        ],
    }
