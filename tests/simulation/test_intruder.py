"""Worlds of gateways whose policy denies a client's changes and gives another a quota: A1, A2, and all others."""

from __future__ import annotations

from collections import Counter

from tests.history.metadata_events import LedgerShown
from tests.simulation.metadata_run import run_metadata_seed


def test_what_is_denied_changes_nothing() -> None:
    looked: Counter[str] = Counter()
    shown: set[str] = set()
    for seed in (0, 1, 3, 7):
        outcome = run_metadata_seed(seed, seconds=6, intruder=True)
        assert not outcome.failed, outcome.problem
        looked += outcome.looked
        shown |= {event.how for event in outcome.history if isinstance(event, LedgerShown)}
    assert looked["A1"] > 20
    assert looked["A2"] > 10
    assert looked["A5"] > 100
    assert shown == {"listing", "records", "read", "batch", "watch"}
    assert looked["M5"]
    assert looked["M6"]
