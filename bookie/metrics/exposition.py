"""Builds metrics of one form for each kind, and the text that is scraped.

Counters have BookKeeper's names letter for letter, so that its dashboards and alerts find them. prometheus-client would
append `_total` to each; metrics of other origin (the hosted gateway) have that ending, and keep it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from prometheus_client import CollectorRegistry
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.samples import Sample
from prometheus_client.utils import floatToGoString

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"


def gauge(name: str, text: str, value: float | None) -> GaugeMetricFamily:
    """A value that goes up and down; None: the metric has no sample, because this process does not know the value."""
    return GaugeMetricFamily(name, text, value=value)


def gauges(name: str, text: str, values: Sequence[tuple[Mapping[str, str], float]]) -> Metric:
    """A gauge with several samples, each with its labels."""
    metric = Metric(name, text, "gauge")
    for labels, value in values:
        metric.add_sample(name, dict(labels), value)
    return metric


def counter(name: str, text: str, value: float) -> Metric:
    """A value that only grows from the start of the process."""
    return counters(name, text, [({}, value)])


def counters(name: str, text: str, values: Sequence[tuple[Mapping[str, str], float]]) -> Metric:
    """A counter with several samples, each with its labels."""
    metric = Metric(name, text, "counter")
    for labels, value in values:
        metric.add_sample(name, dict(labels), value)
    return metric


def render(registry: CollectorRegistry) -> str:
    """All metrics in Prometheus' text format (0.0.4), a counter under the name that its samples have."""
    return "".join(line for metric in registry.collect() for line in _lines(metric))


def _lines(metric: Metric) -> Iterator[str]:
    name = metric.name
    if metric.type == "counter" and all(sample.name != name for sample in metric.samples):
        name += "_total"
    kind = "untyped" if metric.type == "unknown" else metric.type
    yield f"# HELP {name} {_escaped(metric.documentation)}\n# TYPE {name} {kind}\n"
    for sample in metric.samples:
        yield _line(sample)


def _line(sample: Sample) -> str:
    labels = ",".join(f'{name}="{_escaped(value, quoted=True)}"' for name, value in sorted(sample.labels.items()))
    value: str = floatToGoString(sample.value)  # type: ignore[no-untyped-call]
    return f"{sample.name}{{{labels}}} {value}\n" if labels else f"{sample.name} {value}\n"


def _escaped(text: str, *, quoted: bool = False) -> str:
    text = text.replace("\\", r"\\").replace("\n", r"\n")
    return text.replace('"', r"\"") if quoted else text
