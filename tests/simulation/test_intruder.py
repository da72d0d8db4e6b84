"""Worlds of gateways with a policy and a client whose changes it denies: all other invariants hold, and A1."""

from __future__ import annotations

from collections import Counter

from tests.simulation.metadata_run import run_metadata_seed


def test_what_is_denied_changes_nothing() -> None:
    looked: Counter[str] = Counter()
    for seed in range(4):
        outcome = run_metadata_seed(seed, seconds=6, intruder=True)
        assert not outcome.failed, outcome.problem
        looked += outcome.looked
    assert looked["A1"] > 20
    assert looked["M5"]
    assert looked["M6"]
