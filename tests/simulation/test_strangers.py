"""Worlds in which bookies have a policy: all other invariants hold, and A3 and A4."""

from __future__ import annotations

import logging
from collections import Counter
from dataclasses import replace

import pytest

from tests.history.events import StrangerAnswered
from tests.history.rules_access import STRANGERS
from tests.simulation.plan import make_plan
from tests.simulation.run import SMALL_LIMITS, run_seed

UNDER_A_POLICY = replace(SMALL_LIMITS, access=1.0, gateways=(0,))
SEEDS = range(1, 7)


def test_strangers_are_told_nothing_and_leave_nothing(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.CRITICAL + 1)
    looked: Counter[str] = Counter()
    asked: Counter[tuple[str, str]] = Counter()
    for seed in SEEDS:
        outcome = run_seed(seed, limits=UNDER_A_POLICY)
        assert not outcome.failed, outcome.problem
        looked += outcome.looked
        answers = (event for event in outcome.history if isinstance(event, StrangerAnswered))
        asked.update((event.client, event.operation) for event in answers)
    assert {"A3", "A4", "P1", "P12"} <= set(looked)
    assert {client for client, _ in asked} == set(STRANGERS)
    operations = {"add", "deferred-add", "recovery-add", "fencing-read", "fencing-batch-read", "read", "batch-read"}
    assert {operation for _, operation in asked} == {*operations, "write-lac", "read-lac", "force", "list"}


def test_a_policy_is_drawn_apart() -> None:
    """Whether a world has one changes nothing else of its plan."""
    plans = [make_plan(seed, SMALL_LIMITS) for seed in range(200)]
    assert 20 < sum(plan.guarded for plan in plans) < 80
    assert any(plan.guarded and plan.gateways for plan in plans)
    for plan in plans:
        assert replace(plan, guarded=False) == make_plan(plan.seed, replace(SMALL_LIMITS, access=0.0))
