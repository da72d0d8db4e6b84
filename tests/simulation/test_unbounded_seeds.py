"""Clients that fight for one unbounded ledger, in a few seeded worlds."""

from __future__ import annotations

from collections import Counter

import pytest

from tests.simulation.kinds import WorldKind, run_one

SEEDS = (*range(8), 760000227)
"""The last one: what a bookie that joins again holds below its fragment."""
SHORT = 2
_looked: Counter[str] = Counter()


@pytest.mark.parametrize(
    "seed", [*SEEDS[:SHORT], *(pytest.param(seed, marks=pytest.mark.long) for seed in SEEDS[SHORT:])]
)
def test_invariants_hold(seed: int) -> None:
    outcome = run_one(WorldKind.UNBOUNDED, seed)
    assert outcome.problem is None, outcome.problem
    _looked.update(outcome.looked)


@pytest.mark.long
def test_each_invariant_was_put_to_the_test() -> None:
    for seed in SEEDS if not _looked else ():
        _looked.update(run_one(WorldKind.UNBOUNDED, seed).looked)
    assert [each for each in WorldKind.UNBOUNDED.invariants if not _looked[each]] == []


@pytest.mark.long
def test_a_seed_is_the_same_run_each_time() -> None:
    first, second = (run_one(WorldKind.UNBOUNDED, 3, transcript=True) for _ in range(2))
    assert first.transcript == second.transcript
