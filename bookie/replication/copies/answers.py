"""Describes the responses of a ledger's bookies in words: why it can't be repaired, for people and records."""

from __future__ import annotations

from collections.abc import Mapping

from pyroaring import BitMap64

from bookgate.bookie.replication.copies.fragments import complete_fragments
from bookgate.bookie.replication.copies.verdicts import Copies, Lost, Unknown
from bookgate.ledger.metadata import LedgerMetadata


def in_words(metadata: LedgerMetadata, copies: Mapping[str, Copies]) -> dict[str, str]:
    """For each bookie: `lost`, `complete`, or the numbers of its missing and corrupt entries."""
    due: dict[str, BitMap64] = {}
    for fragment in complete_fragments(metadata):
        for index, bookie_id in enumerate(fragment.ensemble):
            due.setdefault(bookie_id, BitMap64()).update(fragment.due(index))
    return {name: _in_words(state, due.get(name, BitMap64())) for name, state in sorted(copies.items())}


def _in_words(state: Copies, due: BitMap64) -> str:
    if isinstance(state, Lost):
        return "lost"
    if isinstance(state, Unknown):
        return f"unknown: {state.reason}"
    lacks, corrupt = len(due - state.entries - state.corrupt), len(due & state.corrupt)
    words = [f"lacks {lacks}"] if lacks else []
    words += [f"corrupt {corrupt}"] if corrupt else []
    words += ["in limbo"] if state.limbo else []
    return ", ".join(words) or "complete"
