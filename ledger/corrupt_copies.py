"""The record of the copies of a ledger that were found damaged: by bookie, ranges of entry ids, as JSON.

Who finds such copies, a scrub or an audit, adds them to the record and then marks the ledger; the worker reads them
once more and writes good copies over them. A range may hold more than was found: so the record stays small, whatever a
disk has done. Of more than `MOST_RANGES` ranges of a bookie those with the smallest gaps between them become one.
Source: docs/protocol/auto-recovery.md#scrub. Not its job: finding them (`scrub`, `spark.jobs.marking`).
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from itertools import pairwise

from bookgate.ledger.errors import MetadataVersionException
from bookgate.ledger.replication_control import corrupt_copies_of
from bookgate.ledger.replication_store import RecordKind, ReplicationMetadata

MOST_RANGES = 500
"""Of a bookie."""

Ranges = Sequence[tuple[int, int]]
"""First and last entry ids."""


def encode(copies: Mapping[str, Ranges], time_ms: int) -> bytes:
    """The record.

    Args:
        copies: By bookie id the entries that are damaged there.
        time_ms: When they were found, in milliseconds since 1970.
    """
    told = {bookie_id: _few(_joined(ranges)) for bookie_id, ranges in sorted(copies.items()) if ranges}
    return json.dumps({"copies": told, "time_ms": time_ms}, sort_keys=True).encode()


async def note_corrupt(store: ReplicationMetadata, ledger_id: int, copies: Mapping[str, Ranges], time_ms: int) -> None:
    """Adds copies to the record of a ledger; it is to be marked afterwards, with these bookies.

    Raises what `ReplicationMetadata.write_record` raises, unless another one has written it meanwhile.
    """
    key = str(ledger_id)
    while True:
        before = await store.read_record(RecordKind.CORRUPT_LEDGER, key)
        known = {} if before is None else corrupt_copies_of(before.value)
        both = {name: [*known.get(name, ()), *copies.get(name, ())] for name in (*known, *copies)}
        try:
            version = None if before is None else before.version
            await store.write_record(RecordKind.CORRUPT_LEDGER, key, encode(both, time_ms), version)
        except MetadataVersionException:
            continue
        return


def _joined(ranges: Ranges) -> list[tuple[int, int]]:
    """The same in ascending order, with gaps between them."""
    joined: list[tuple[int, int]] = []
    for first, last in sorted(ranges):
        if joined and first <= joined[-1][1] + 1:
            joined[-1] = joined[-1][0], max(last, joined[-1][1])
        else:
            joined.append((first, last))
    return joined


def _few(ranges: list[tuple[int, int]]) -> list[tuple[int, int]]:
    if len(ranges) <= MOST_RANGES:
        return ranges
    gaps = sorted(range(1, len(ranges)), key=lambda number: ranges[number][0] - ranges[number - 1][1])
    kept = [0, *sorted(gaps[len(ranges) - MOST_RANGES :]), len(ranges)]
    return [(ranges[start][0], ranges[end - 1][1]) for start, end in pairwise(kept)]
