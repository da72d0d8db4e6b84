"""Computes which entries of a closed ledger its ensembles place on a bookie."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

from bookgate.ledger.metadata import LedgerMetadata


def placed_entries(metadata: LedgerMetadata, bookie_id: str) -> Iterator[range]:
    """The ids of the entries, each once, as ranges with a step."""
    starts = [fragment.first_entry_id for fragment in metadata.fragments]
    bounds = pairwise([*starts, metadata.last_entry_id + 1])
    for fragment, (first, end) in zip(metadata.fragments, bounds, strict=True):
        if bookie_id not in fragment.ensemble:
            continue
        size, position = metadata.ensemble_size, fragment.ensemble.index(bookie_id)
        # Entry e goes to the write quorum of places from e mod size on.
        for behind in range(metadata.write_quorum_size):
            yield range(first + (position - behind - first) % size, end, size)
