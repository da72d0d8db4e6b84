"""The histogram of latencies against the sorted list of them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bookgate.runtime.latency import WINDOW_SECONDS, LatencyHistogram, OpStats


@given(st.lists(st.floats(0, 100), min_size=1, max_size=200), st.sampled_from([0.01, 0.5, 0.9, 0.99, 0.999, 1.0]))
def test_quantiles_are_off_by_three_per_cent_at_most(seconds: list[float], fraction: float) -> None:
    histogram = LatencyHistogram()
    for value in seconds:
        histogram.record(value)
    ordered = sorted(int(value * 1e6) / 1000 for value in seconds)
    rank = max(0, -int(-fraction * len(ordered) // 1) - 1)
    exact = ordered[rank]
    assert exact <= histogram.quantile(fraction) + 1e-9
    assert histogram.quantile(fraction) <= exact * 1.032 + 1e-9
    assert histogram.count == len(seconds)
    assert histogram.summary()["max_ms"] == ordered[-1]


def test_without_values_everything_is_zero() -> None:
    assert set(LatencyHistogram().summary().values()) == {0.0}


def test_values_of_one_histogram_are_not_those_of_another() -> None:
    one, other = LatencyHistogram(), LatencyHistogram()
    before = one.counts()
    one.record(0.001)
    assert sum(one.counts()) == 1
    assert sum(before) == sum(other.counts()) == sum(LatencyHistogram().counts()) == 0
    other.record(0.5)
    assert one.quantile(1.0) == pytest.approx(1.0, rel=0.04)


def test_what_is_out_of_range_counts_at_the_border() -> None:
    histogram = LatencyHistogram()
    histogram.record(-1)
    histogram.record(1e9)
    assert histogram.quantile(0.5) == 0
    assert histogram.quantile(1.0) == histogram.max_microseconds / 1000


def test_recent_quantiles_forget_what_is_older_than_two_windows() -> None:
    histogram = LatencyHistogram()
    histogram.record(1.0)
    assert histogram.recent_quantiles([0.5, 1.0], 0.0) == [1000.0, 1000.0]
    histogram.record(0.000_010)
    assert histogram.recent_quantiles([0.5, 1.0], WINDOW_SECONDS - 1) == [0.01, 1000.0]
    assert histogram.recent_quantiles([1.0], WINDOW_SECONDS) == [0.01], "the first window began with the first look"
    assert histogram.recent_quantiles([1.0], 2 * WINDOW_SECONDS) == [0.0]
    histogram.record(0.000_020)
    assert histogram.recent_quantiles([0.5, 1.0], 2 * WINDOW_SECONDS + 1) == [0.02, 0.02]
    assert histogram.quantile(1.0) == 1000.0, "of the whole time"


def test_samples_have_counts_of_all_time_and_recent_quantiles() -> None:
    stats = OpStats()
    for _ in range(4):
        stats.success(0.001)
    for now in (0.0, WINDOW_SECONDS, 2 * WINDOW_SECONDS):
        shown = list(stats.samples(now))
    of_success = {(sample.suffix, sample.labels.get("quantile")): sample.value for sample in shown[:9]}
    assert of_success["_count", None] == 4
    assert of_success["_sum", None] == 4.0
    assert of_success["", "0.99"] == 0.0


def total_of(stats: OpStats) -> float:
    """Milliseconds."""
    return next(each.value for each in stats.samples(0.0) if each.suffix == "_sum" and each.labels["success"] == "true")


@given(st.lists(st.tuples(st.booleans(), st.integers(0, 10**6), st.booleans()), max_size=60))
def test_the_sum_of_a_sample_never_falls(operations: list[tuple[bool, int, bool]]) -> None:
    """Each operation is timed or not, and somebody looks after it or not."""
    stats, told = OpStats(), 0.0
    for is_timed, microseconds, is_looked_at in operations:
        stats.successes += 1
        if is_timed:
            stats.succeeded.record_value(microseconds)
        if is_looked_at:
            before, told = told, total_of(stats)
            assert told >= before


def test_the_sum_follows_a_mean_that_changes_whichever_share_is_timed() -> None:
    stats = OpStats()
    for milliseconds, timed_each in ((10, 16), (1, 1), (10, 256)):
        before = total_of(stats)
        for number in range(2560):
            stats.successes += 1
            if not number % timed_each:
                stats.succeeded.record_value(milliseconds * 1000)
            if not number % 100:
                total_of(stats)
        # Those after the last timed one are estimated by what was before.
        assert total_of(stats) - before == pytest.approx(2560 * milliseconds, rel=0.06)


def test_what_is_all_timed_has_its_exact_sum() -> None:
    stats = OpStats()
    for microseconds in (7, 0, 3000, 11):
        stats.successes += 1
        stats.succeeded.record_value(microseconds)
        total_of(stats)
    assert total_of(stats) == pytest.approx(3.018)
