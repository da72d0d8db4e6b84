"""Which bookies reads avoid, and for how long that is remembered."""

from __future__ import annotations

import tracemalloc

from bookgate.thinclient.core.read_health import ReadHealth


def test_a_bookie_is_avoided_for_a_while_after_its_last_failure() -> None:
    health = ReadHealth(60)
    health.failed("a", 0)
    health.failed("b", 10)
    health.failed("a", 30)
    health.failed("c", 75)
    assert health.ordered(("a", "b", "c", "d"), 75) == ("b", "d", "a", "c")
    assert health.ordered(("a", "b", "c", "d"), 90) == ("a", "b", "d", "c")


def test_failures_of_bookies_that_nobody_asks_for_again_do_not_stay() -> None:
    """Ledgers can name any number of bookies that do not exist."""
    health = ReadHealth(60)
    tracemalloc.start()
    try:
        for second in range(20_000):
            health.failed(f"no-such-{second}", second)
        held, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert held < 100_000
    assert health.avoids("no-such-19999", 20_000)
