"""The record of the corrupt copies of a ledger, as sets of entry ids. Pure.

A repair reads all of these copies again. Source: docs/protocol/auto-recovery.md#scrub. Not its job: the record's
format, and writing it (`ledger.corrupt_copies`).
"""

from __future__ import annotations

from collections.abc import Mapping

from pyroaring import BitMap64

from bookgate.bookie.replication.copies.fragments import pieces_of
from bookgate.ledger.corrupt_copies import Ranges
from bookgate.ledger.replication_control import corrupt_copies_of


def ranges_of(copies: Mapping[str, BitMap64]) -> dict[str, Ranges]:
    """The corrupt entries by bookie id, in the form of the record."""
    return {bookie_id: list(pieces_of(ids, len(ids))) for bookie_id, ids in copies.items()}


def decode_corrupt(record: bytes) -> dict[str, BitMap64]:
    """The entries with a possibly corrupt copy, by bookie id; empty if the record can't be read."""
    copies: dict[str, BitMap64] = {}
    try:
        for bookie_id, ranges in corrupt_copies_of(record).items():
            ids = copies[bookie_id] = BitMap64()
            for first, last in ranges:
                ids.add_range(first, last + 1)
    except (ValueError, OverflowError):
        return {}  # the next pass of the scrub finds them again
    return copies
