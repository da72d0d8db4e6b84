"""The cores of the product keep their rules in every interleaving of small worlds (`make explore` has larger ones)."""

from __future__ import annotations

import pytest

from tests.explore.search import explore
from tests.explore.worlds import SMALL, SmallWorld


@pytest.mark.parametrize("small", SMALL, ids=lambda small: small.name)
def test_no_interleaving_breaks_a_rule(small: SmallWorld) -> None:
    world, judge = small.build()
    found = explore(world, judge)
    assert found.violation is None, "\n".join((str(found.violation), *found.trace))
    assert found.complete
    # Far fewer would mean that something never happens; the cores run for a small part of the steps only.
    assert found.states > 1_000
    assert world.runs * 10 < found.steps
