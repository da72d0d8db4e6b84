"""Where a bookie was that is away, and since when."""

from __future__ import annotations

from bookgate.gateway.console.last_seen import LastSeen
from tests.unit.gateway.console.test_console import Clock, bookie


def test_a_bookie_that_went_away_is_remembered_with_the_first_look_that_missed_it() -> None:
    clock = Clock()
    seen = LastSeen(clock)
    here, other = bookie("a"), bookie("b")
    gone = bookie("a", writable=False, version="unknown")
    seen.take([here, other])
    assert (seen.info(here), seen.away_since_ms("a")) == (here.info, None)
    for _ in range(2):
        clock.now += 5
        seen.take([gone, other])
        assert (seen.info(gone), seen.away_since_ms("a")) == (here.info, 1_005_000)
    seen.take([here, other])
    assert seen.away_since_ms("a") is None
    clock.now += 5
    seen.take([gone, other])
    assert seen.away_since_ms("a") == 1_015_000


def test_of_a_bookie_that_was_never_there_and_of_one_whose_cookie_is_gone_nothing_is_known() -> None:
    seen = LastSeen(Clock())
    gone = bookie("a", writable=False, version="unknown")
    seen.take([gone])
    assert (seen.info(gone), seen.away_since_ms("a")) == (gone.info, None)
    seen.take([bookie("a")])
    seen.take([])
    seen.take([gone])
    assert (seen.info(gone), seen.away_since_ms("a")) == (gone.info, None)
