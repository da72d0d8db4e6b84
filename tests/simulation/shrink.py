"""A smaller plan that still breaks the same invariant: parts are taken out as long as the run keeps failing."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from tests.simulation.plan import Plan

Fails = Callable[[Plan], bool]


def shrink(plan: Plan, fails: Fails, most_runs: int = 150) -> Plan:
    """Takes out parts in ever smaller groups, then halves what the writers do. `fails` runs a plan."""
    tries = _Tries(fails, most_runs)
    plan = _without_parts(plan, tries)
    return _with_shorter_writers(plan, tries)


class _Tries:
    """How many runs are left."""

    def __init__(self, fails: Fails, most: int) -> None:
        self._fails = fails
        self.left = most

    def fails(self, plan: Plan) -> bool:
        if not self.left:
            return False
        self.left -= 1
        return self._fails(plan)


def _without_parts(plan: Plan, tries: _Tries) -> Plan:
    size = max(1, len(plan.names) // 2)
    while True:
        names, removed = plan.names, False
        for start in range(0, len(names), size):
            group = [name for name in names[start : start + size] if name in plan.names]
            smaller = plan.without(group)
            if group and smaller.writers and tries.fails(smaller):
                plan, removed = smaller, True
        if size == 1 and not removed:
            return plan
        if not removed or size > len(plan.names):
            size = max(1, size // 2)


def _with_shorter_writers(plan: Plan, tries: _Tries) -> Plan:
    for number, writer in enumerate(plan.writers):
        while len(writer.bursts) > 1:
            shorter = replace(writer, bursts=writer.bursts[: len(writer.bursts) // 2])
            smaller = replace(plan, writers=(*plan.writers[:number], shorter, *plan.writers[number + 1 :]))
            if not tries.fails(smaller):
                break
            plan, writer = smaller, shorter
    return plan


def keep_option(plan: Plan) -> str:
    """What names this plan among those of its seed: its parts, of writers also how many bursts they are left with."""
    bursts = {writer.name: len(writer.bursts) for writer in plan.writers}
    return ",".join(f"{name}:{bursts[name]}" if name in bursts else name for name in plan.names)


def kept(plan: Plan, option: str) -> Plan:
    """The plan that `keep_option` has named. Raises ValueError for parts that the seed's plan does not have."""
    wanted = dict(part.partition(":")[::2] for part in option.split(","))
    unknown = set(wanted) - set(plan.names)
    if unknown:
        raise ValueError(f"the plan of seed {plan.seed} has no {', '.join(sorted(unknown))}; it has {plan.names}")
    smaller = plan.keeping(wanted)
    writers = tuple(
        replace(writer, bursts=writer.bursts[: int(wanted[writer.name] or len(writer.bursts))])
        for writer in smaller.writers
    )
    return replace(smaller, writers=writers)
