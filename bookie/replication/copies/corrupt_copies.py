"""The record of the copies of a ledger that were found damaged, as sets of entry ids.

Whoever repairs reads all of it again. Pure. Source: docs/protocol/auto-recovery.md#scrub. Not its job: the record's
form, and writing it (`ledger.corrupt_copies`).
"""

from __future__ import annotations

from collections.abc import Mapping

from pyroaring import BitMap64

from bookgate.bookie.replication.copies.fragments import pieces_of
from bookgate.ledger.corrupt_copies import Ranges
from bookgate.ledger.replication_control import corrupt_copies_of


def ranges_of(copies: Mapping[str, BitMap64]) -> dict[str, Ranges]:
    """By bookie id the entries that are damaged there, as the record has them."""
    return {bookie_id: list(pieces_of(ids, len(ids))) for bookie_id, ids in copies.items()}


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
