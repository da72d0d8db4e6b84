"""When the answers of a bookie show that it has too much to do."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from bookgate.bookie.replication.copies.answer_times import AnswerTimes, Asked

QUICK, SLOW = 0.01, 0.081
KIB = 1024


def rising(times: AnswerTimes, *seconds: float, now: float = 0.0, size: int = 100 * KIB) -> list[bool]:
    return [times.is_rising("a", Asked.STORE, size, each, now) for each in seconds]


def test_some_answers_in_a_row_that_take_many_times_the_least_are_rising_latency() -> None:
    times = AnswerTimes()
    assert rising(times, QUICK, SLOW, SLOW, SLOW, SLOW) == [False, False, False, True, True]
    assert rising(times, 8 * QUICK, SLOW, SLOW, SLOW) == [False, False, False, True]


def test_a_single_slow_answer_is_none() -> None:
    assert rising(AnswerTimes(), *[QUICK, 9.0, 9.0] * 10) == [False] * 30


def test_nobody_minds_some_milliseconds() -> None:
    assert rising(AnswerTimes(), 0.001, *[0.05] * 9) == [False] * 10
    assert rising(AnswerTimes(), 0.001, *[0.051] * 3)[-1]


def test_bookies_operations_and_sizes_have_times_of_their_own() -> None:
    times = AnswerTimes()
    rising(times, QUICK)
    others = [("b", Asked.STORE, 100 * KIB), ("a", Asked.READ, 100 * KIB), ("a", Asked.STORE, 300 * KIB)]
    for bookie_id, asked, size in others:
        assert not any(times.is_rising(bookie_id, asked, size, SLOW, 0.0) for _ in range(5))
    # Of about one size.
    assert rising(times, SLOW, SLOW, SLOW, size=120 * KIB)[-1]


def test_what_a_bookie_could_do_long_ago_is_forgotten() -> None:
    times = AnswerTimes()
    assert rising(times, QUICK, SLOW, SLOW, SLOW)[-1]
    assert rising(times, SLOW, SLOW, SLOW, now=300.0)[-1]
    assert rising(times, SLOW, SLOW, SLOW, now=600.0) == [False] * 3


@given(st.lists(st.floats(0.0, 0.05)))
def test_quick_answers_never_are(seconds: list[float]) -> None:
    assert not any(rising(AnswerTimes(), *seconds))
