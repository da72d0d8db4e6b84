"""Seeds that once found a bug of the product, by a name for it. They are run with every test run.

A plan is made anew from its seed, so a change of how plans are drawn turns such a seed into an ordinary one; then what
mattered of its plan is written out here in full.
"""

from __future__ import annotations

from tests.simulation.plan import STORE_FAULTS, FaultPlan, Plan, RatePlan, WriterPlan

REGRESSIONS: dict[str, Plan] = {
    "mode-that-changes-back-while-gateways-are-away": Plan(
        seed=149,
        bookies=3,
        duration=20.0,
        writers=(WriterPlan("w1", 3.555803648280619, (3, 2, 2), (4,), 100, 0.7058823529411765, "close"),),
        visits=(),
        faults=(FaultPlan("f3", 10.807552742963395, "full-disk", 1, 4.0),),
        rates=(RatePlan("r-slow-packets", "slow-packets", 0.2), RatePlan("r-store", STORE_FAULTS, 1.0)),
        gateways=2,
    ),
}
