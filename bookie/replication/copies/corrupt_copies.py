"""The record of the copies of a ledger that a scrub found damaged: by bookie, ranges of entry ids, as JSON.

A range may hold more than was found: whoever repairs reads all of it again. So the record stays small, whatever a disk
has done: of more than `MOST_RANGES` ranges of a bookie those with the smallest gaps between them become one. Pure.
Source: docs/protocol/auto-recovery.md#scrub.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from itertools import pairwise

from pyroaring import BitMap64

from bookgate.bookie.replication.copies.fragments import pieces_of
from bookgate.ledger.replication_control import corrupt_copies_of

MOST_RANGES = 500
"""Of a bookie."""


def encode_corrupt(copies: Mapping[str, BitMap64], time_ms: int) -> bytes:
    """The record.

    Args:
        copies: By bookie id the entries that are damaged there.
        time_ms: When they were found, in milliseconds since 1970.
    """
    ranges = {bookie_id: _few(list(pieces_of(ids, len(ids)))) for bookie_id, ids in sorted(copies.items()) if ids}
    return json.dumps({"copies": ranges, "time_ms": time_ms}, sort_keys=True).encode()


def decode_corrupt(record: bytes) -> dict[str, BitMap64]:
    """By bookie id the entries of which the copy may be damaged there; none where the record can't be read."""
    copies: dict[str, BitMap64] = {}
    try:
        for bookie_id, ranges in corrupt_copies_of(record).items():
            ids = copies[bookie_id] = BitMap64()
            for first, last in ranges:
                ids.add_range(first, last + 1)
    except (ValueError, OverflowError):
        return {}  # the next pass finds them again
    return copies


def both(one: Mapping[str, BitMap64], other: Mapping[str, BitMap64]) -> dict[str, BitMap64]:
    """What either names."""
    empty = BitMap64()
    return {name: one.get(name, empty) | other.get(name, empty) for name in (*one, *other)}


def _few(ranges: list[tuple[int, int]]) -> list[tuple[int, int]]:
    if len(ranges) <= MOST_RANGES:
        return ranges
    gaps = sorted(range(1, len(ranges)), key=lambda number: ranges[number][0] - ranges[number - 1][1])
    kept = [0, *sorted(gaps[len(ranges) - MOST_RANGES :]), len(ranges)]
    return [(ranges[start][0], ranges[end - 1][1]) for start, end in pairwise(kept)]
