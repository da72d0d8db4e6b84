"""The text of the metrics: prometheus-client's own, but for the names of counters."""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from bookgate.bookie.metrics.exposition import counter, counters, gauge, render


class Fixed(Collector):
    def __init__(self, *metrics: Metric) -> None:
        self._metrics = metrics

    def collect(self) -> Iterator[Metric]:
        yield from self._metrics


def registry_of(*metrics: Metric) -> CollectorRegistry:
    registry = CollectorRegistry()
    registry.register(Fixed(*metrics))
    return registry


def test_what_others_count_is_shown_as_prometheus_client_shows_it() -> None:
    calls = CounterMetricFamily("calls", 'a "text" with \\ and\nlines', labels=["method", "code"])
    calls.add_metric(["Read", 'a "b" \\ c\nd'], 7)
    seconds = HistogramMetricFamily("seconds", "how long", labels=["method"])
    seconds.add_metric(["Read"], [("0.1", 1), ("+Inf", 3)], 2.5)
    summary = Metric("waits", "of clients", "summary")
    summary.add_sample("waits", {"quantile": "0.5"}, float("nan"))
    summary.add_sample("waits_count", {}, 12345678901)
    registry = registry_of(
        calls, CounterMetricFamily("none", "without samples", labels=["a"]), seconds, summary, gauge("g", "x", 0.1)
    )
    assert render(registry) == generate_latest(registry).decode()


def test_the_names_of_counters_are_not_touched() -> None:
    shown = render(registry_of(counter("A_TOTAL", "all", 3), counters("b", "each", [({"i": "0"}, 1), ({"i": "1"}, 2)])))
    assert shown.splitlines() == [
        "# HELP A_TOTAL all",
        "# TYPE A_TOTAL counter",
        "A_TOTAL 3.0",
        "# HELP b each",
        "# TYPE b counter",
        'b{i="0"} 1.0',
        'b{i="1"} 2.0',
    ]
