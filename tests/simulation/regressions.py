"""Seeds that once found a bug of the product, by a name for it. They are run with every test run.

A plan is made anew from its seed, so a change of how plans are drawn makes these seeds ordinary ones: then the part of
the plan that mattered is written out here in full instead.
"""

from __future__ import annotations

from tests.simulation.plan import Plan

REGRESSIONS: dict[str, Plan] = {}
