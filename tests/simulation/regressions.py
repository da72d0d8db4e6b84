"""Seeds that once found a bug of the product, by a name for it. They are run with every test run.

A plan is made anew from its seed, so a change of how plans are drawn turns such a seed into an ordinary one; then what
mattered of its plan is written out here in full.
"""

from __future__ import annotations

from tests.simulation.plan import Plan

REGRESSIONS: dict[str, Plan] = {}
