"""Orders for the auditor's checks: one that is ordered is due at once, whenever it ended last.

An order is the time of the check's last end, set to the beginning of time in the store: as BookKeeper's
`forceauditchecks` does it, so that an auditor of BookKeeper's begins such a check with its next start. Bookgate's looks
for orders every few seconds. Not its job: the checks (`bookie.replication.checks`).
"""

from __future__ import annotations

import enum
import json

from bookgate.ledger.errors import IllegalOpException, MetadataVersionException
from bookgate.ledger.replication import PeriodicCheck
from bookgate.ledger.replication_control import obstacle
from bookgate.ledger.replication_store import RecordKind, ReplicationMetadata

ORDERED_MS = 0
"""In place of the time of its last end."""
SCRUB_PROGRESS = "scrub"
"""The key of the scrub's record, among those of the auditor's progress."""


class Check(enum.Enum):
    """What may be ordered."""

    REPLICAS = "replicas"
    PLACEMENT = "placement"
    SCRUB = "scrub"


async def order_check(store: ReplicationMetadata, check: Check) -> str:
    """Has a check begin now, and returns at once with the auditor's bookie id.

    A scrub that is under way goes on; a check that is under way ends as the one that was ordered.

    Raises IllegalOpException: Auto-recovery is disabled, or there is nobody to do it.
    """
    problem, auditor = await obstacle(store), await store.auditor()
    if problem is not None or auditor is None:
        raise IllegalOpException(problem or "there is no auditor just now; try again")
    match check:
        case Check.REPLICAS:
            await store.set_check_time(PeriodicCheck.ALL_LEDGERS, ORDERED_MS)
        case Check.PLACEMENT:
            await store.set_check_time(PeriodicCheck.PLACEMENT_POLICY, ORDERED_MS)
        case Check.SCRUB:
            await _order_scrub(store)
    return auditor


async def _order_scrub(store: ReplicationMetadata) -> None:
    while True:
        found = await store.read_record(RecordKind.PROGRESS, SCRUB_PROGRESS)
        if found is None:
            return  # it has never ended
        try:
            told = json.loads(found.value)
            under_way = told["began_ms"] is not None
        except (ValueError, TypeError, KeyError):
            return  # what can't be read counts as no progress
        if under_way:
            return
        content = json.dumps({**told, "ended_ms": ORDERED_MS}, sort_keys=True).encode()
        try:
            await store.write_record(RecordKind.PROGRESS, SCRUB_PROGRESS, content, found.version)
        except MetadataVersionException:
            continue
        return
