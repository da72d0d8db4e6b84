"""What auto-recovery's metadata amount to at a moment: how much is marked, for how long, and what can't be repaired.

The auditor in office counts for its metrics, commands and the doctor for people. It is one listing of all marks.

Not its job: which bookies are lost (`bookie.replication.audit_rules`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from bookgate.ledger.replication_store import RecordKind, ReplicationMetadata


@dataclass(frozen=True, slots=True)
class Survey:
    """The counts of a cluster."""

    marked: int
    """Ledgers that are marked for whatever reason."""
    oldest_mark_ms: int | None
    """Since when the first marked of those that lack copies has been marked, in milliseconds since 1970; None: none.

    Left out are ledgers that can't be repaired, such as only move from a bookie that is to be emptied or are misplaced,
    and marks without a time."""
    unrecoverable: int
    corrupt: int
    """Ledgers with copies that a scrub found damaged."""
    lacking: int
    """Marked ledgers that lack copies, also those that can't be repaired: neither misplaced ones nor such as only move
    from a bookie that is to be emptied."""
    missed_since: Mapping[str, int]
    """Bookies that the auditor has missed, and since when, in milliseconds since 1970."""
    draining: frozenset[str]
    """Bookies that are to be emptied."""


async def missed_bookies(metadata: ReplicationMetadata) -> dict[str, int]:
    """Bookies that the auditor has missed, and since when, in milliseconds since 1970."""
    notes = await metadata.records(RecordKind.MISSED_BOOKIE)
    return {name: int(note.value) for name, note in notes.items() if note.value.isdigit()}


async def survey(metadata: ReplicationMetadata) -> Survey:
    """Counts. Raises what `ReplicationMetadata.marks` and `records` raise."""
    missed_since = await missed_bookies(metadata)
    draining = frozenset(await metadata.records(RecordKind.DRAINING_BOOKIE))
    unrecoverable = await metadata.records(RecordKind.UNRECOVERABLE_LEDGER)
    corrupt = await metadata.records(RecordKind.CORRUPT_LEDGER)
    leaving = draining - missed_since.keys()
    marked, lacking, oldest = 0, 0, None
    async for page in metadata.marks():
        marked += len(page)
        for mark in page:
            if leaving.issuperset(mark.value.replicas):
                continue
            lacking += 1
            began = mark.value.ctime_ms
            if began is None or str(mark.value.ledger_id) in unrecoverable:
                continue
            oldest = began if oldest is None else min(oldest, began)
    return Survey(marked, oldest, len(unrecoverable), len(corrupt), lacking, missed_since, draining)
