"""What is said of how fast something goes."""

from __future__ import annotations

import pytest

from bookgate.runtime.estimates import Estimate, Progress, Rate


def test_the_rate_is_that_of_all_looks_so_far() -> None:
    progress = Progress()
    assert progress.take(100, 5.0) == Estimate(100, None, None)
    assert progress.take(100, 6.0) == Estimate(100, None, None)
    assert progress.take(80, 15.0) == Estimate(100, 120.0, 40.0)
    assert progress.take(0, 25.0) == Estimate(100, 300.0, 0.0)


def test_what_comes_meanwhile_is_added_to_all() -> None:
    progress = Progress()
    progress.take(10, 0.0)
    progress.take(6, 60.0)
    assert progress.take(9, 120.0) == Estimate(13, 0.5, 1080.0)
    assert progress.take(20, 180.0) == Estimate(24, None, None)


def test_the_rate_forgets_what_was_long_ago() -> None:
    progress = Progress()
    progress.take(1000, 0.0)
    progress.take(100, 60.0)
    estimate = Estimate(0, None, None)
    for minute in range(2, 14):
        estimate = progress.take(100 - minute, minute * 60.0)
    assert estimate.a_minute == pytest.approx(1.0)
    assert estimate.seconds_left == pytest.approx(87 * 60)


def test_a_count_that_stands_still_has_the_rate_nought_once_its_growth_is_long_ago() -> None:
    rate = Rate(window_seconds=10.0)
    assert rate.take(5, 0.0) == 0.0
    assert rate.take(25, 4.0) == 5.0
    assert rate.take(25, 8.0) == 2.5
    assert rate.take(25, 14.1) == 0.0
