"""How the bookie's numbers become metrics: one way for each kind, wherever they come from.

The name is BookKeeper's. Prometheus wants counters to end in `_total`: a name that ends in `_TOTAL` has it, in small
letters; any other gets it at its end.
"""

from __future__ import annotations

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

_TOTAL = "_TOTAL"


def gauge(name: str, text: str, value: float) -> GaugeMetricFamily:
    """What goes up and down."""
    return GaugeMetricFamily(name, text, value=value)


def counter(name: str, text: str, value: float) -> CounterMetricFamily:
    """What only grows, from the start of the process."""
    return CounterMetricFamily(name.removesuffix(_TOTAL), text, value=value)
