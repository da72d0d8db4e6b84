"""Garbage collection and compaction of one bookie, over its HTTP admin. The calls block."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from bookgate.ledger.errors import IncorrectParameterException
from bookgate.thinclient.tools.admin_client import AdminHttp, AdminRefusedException

GC = "/api/v1/bookie/gc"
GC_DETAILS = "/api/v1/bookie/gc_details"
LOCATIONS = "/api/v1/bookie/entry_location_compact"


@dataclass(frozen=True, slots=True)
class SuspendedGc:
    """What a bookie does not do until it is resumed."""

    major: bool
    """Major compaction."""
    minor: bool
    """Minor compaction."""
    ledgers: bool
    """The deletion of ledgers that no metadata names."""


def trigger(admin: AdminHttp, *, major: bool, minor: bool, force_ledgers: bool) -> None:
    """See `Admin.trigger_gc`."""
    body = {"forceMajor": major, "forceMinor": minor} if major or minor else {}
    if force_ledgers:
        body["forceLedgers"] = True
    admin.put(GC, body or None)


def suspended(admin: AdminHttp) -> SuspendedGc:
    """See `Admin.gc_suspended`."""
    answer = admin.get(f"{GC}/suspend_compaction")
    return SuspendedGc(
        answer["isMajorGcSuspended"] == "true", answer["isMinorGcSuspended"] == "true", _ledgers_suspended(admin)
    )


def _ledgers_suspended(admin: AdminHttp) -> bool:
    """False for a bookie that can't suspend it."""
    try:
        return bool(admin.get(f"{GC}/suspend_ledgers")["isLedgerCollectionSuspended"] == "true")
    except AdminRefusedException:
        return False


def change(
    admin: AdminHttp, verb: Literal["suspend", "resume"], *, major: bool, minor: bool, ledgers: bool
) -> SuspendedGc:
    """Suspends or resumes: both kinds of compaction unless something is named. Returns what is suspended then."""
    both = not (major or minor)
    if ledgers:
        admin.put(f"{GC}/{verb}_ledgers")
    if major or minor or not ledgers:
        admin.put(f"{GC}/{verb}_compaction", {f"{verb}Major": major or both, f"{verb}Minor": minor or both})
    return suspended(admin)


def index_compactions(admin: AdminHttp) -> dict[str, Any]:
    """The indexes of a bookie that keeps them in RocksDB, and whether each is compacted now."""
    return dict(admin.get(LOCATIONS))


def compact_index(admin: AdminHttp, paths: Sequence[str] | None) -> list[str]:
    """See `Admin.compact_index`."""
    chosen = list(paths or index_compactions(admin))
    if any("," in path for path in chosen):
        raise IncorrectParameterException(
            "a path with a comma in it can't be named over HTTP; name no path to compact all"
        )
    admin.put(LOCATIONS, {"entryLocationRocksDBCompact": True, "entryLocations": ",".join(chosen)})
    return chosen
