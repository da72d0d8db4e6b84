"""The bytes that a worker may copy in a time."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from bookgate.bookie.replication.budget import ByteBudget

MIB = 1024 * 1024


def test_no_bound() -> None:
    budget = ByteBudget(0, 0.0)
    budget.overloaded(0.0)
    assert budget.take(1000 * MIB, 0.0) == 0.0


@given(st.lists(st.integers(1, 4 * MIB), min_size=50, max_size=100))
def test_whoever_waits_as_told_keeps_to_the_rate(sizes: list[int]) -> None:
    budget, now = ByteBudget(MIB, 0.0), 0.0
    for size in sizes:
        now += budget.take(size, now)
    assert now >= (sum(sizes) - MIB / 2) / MIB - 1e-6


def test_overload_halves_the_rate_and_it_grows_back() -> None:
    budget = ByteBudget(MIB, 0.0)
    for _ in range(3):
        budget.overloaded(0.0)
    assert budget.rate == MIB / 8
    budget.take(1, 2.0)
    assert round(budget.rate / MIB, 3) == 0.325
    budget.take(1, 100.0)
    assert budget.rate == MIB


def test_it_never_stands_still() -> None:
    budget = ByteBudget(MIB, 0.0)
    for _ in range(1000):
        budget.overloaded(0.0)
    assert budget.take(MIB, 0.0) <= 64
