"""Plans come from seeds alone, and shrink to what a failure needs."""

from __future__ import annotations

import pytest

from tests.simulation.plan import Limits, Plan, make_plan
from tests.simulation.run import REPAIR_LIMITS
from tests.simulation.shrink import keep_option, kept, shrink

LIMITS = Limits(
    fault_kinds=("kill", "pause"), lossy_kinds=("wipe",), rates={"slow": 0.5}, faults=(4, 8), writers=(3, 4)
)


def test_a_seed_always_gives_the_same_plan() -> None:
    assert make_plan(5, LIMITS) == make_plan(5, LIMITS)
    assert make_plan(5, LIMITS) != make_plan(6, LIMITS)


def test_names_are_unique() -> None:
    for seed in range(50):
        names = make_plan(seed, LIMITS).names
        assert len(names) == len(set(names))


def test_a_plan_shrinks_to_what_fails() -> None:
    plan = make_plan(5, LIMITS)
    fault, writer = plan.faults[2].name, plan.writers[1].name
    runs = 0

    def fails(smaller: Plan) -> bool:
        nonlocal runs
        runs += 1
        bursts = next((len(each.bursts) for each in smaller.writers if each.name == writer), 0)
        return fault in smaller.names and bursts >= 2

    small = shrink(plan, fails)
    assert set(small.names) == {fault, writer}
    assert 2 <= len(small.writers[0].bursts) <= 3
    assert runs <= 150


def test_a_shrunk_plan_has_a_name() -> None:
    plan = make_plan(5, LIMITS)
    small = shrink(plan, lambda smaller: len(smaller.writers) >= 2)
    assert kept(make_plan(5, LIMITS), keep_option(small)) == small
    assert kept(plan, keep_option(plan)) == plan


def test_an_unknown_part_is_refused() -> None:
    with pytest.raises(ValueError, match="has no f99"):
        kept(make_plan(5, LIMITS), "f99")


def test_large_ids_are_tried() -> None:
    plans = [make_plan(seed, REPAIR_LIMITS) for seed in range(200)]
    ids = [writer.ledger_id for plan in plans for writer in plan.writers if writer.ledger_id is not None]
    assert any(each.low == 0x7FFF_FFFF for each in ids)
    assert any(each.low > 1 << 62 for each in ids)
    scoped = [plan for plan in plans if any(each.ledger_id and each.ledger_id.scope_id for each in plan.writers)]
    assert len(scoped) > len(plans) // 4, "auto-recovery's marks and locks have scopes, too"
