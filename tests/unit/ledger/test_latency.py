"""The histogram of latencies against the sorted list of them."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from ledger.latency import LatencyHistogram


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


def test_what_is_out_of_range_counts_at_the_border() -> None:
    histogram = LatencyHistogram()
    histogram.record(-1)
    histogram.record(1e9)
    assert histogram.quantile(0.5) == 0
    assert histogram.quantile(1.0) == histogram.max_microseconds / 1000
