"""The cores of unbounded ledgers keep their rules in every interleaving of small worlds."""

from __future__ import annotations

import pytest

from tests.explore.search import explore
from tests.explore.stream_worlds import SMALL_STREAMS, StreamWorld


@pytest.mark.parametrize("small", SMALL_STREAMS, ids=lambda small: small.name)
def test_no_interleaving_breaks_a_rule(small: StreamWorld) -> None:
    world, judge = small.build()
    found = explore(world, judge)
    assert found.violation is None, "\n".join((str(found.violation), *found.trace))
    assert found.complete
    assert found.states > 1_000
    assert world.runs * 5 < found.steps
