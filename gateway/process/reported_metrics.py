"""The metrics of a gateway in another process: its report each second, and how it is exposed here.

The child sends all its numbers as one JSON line (`report`); the parent keeps the latest line unparsed and parses it
only when someone asks (`ReportedMetrics`). To the gateway's metrics it adds those of its process,
`bookgate_gateway_process_…`, two of which are the parent's: whether the child answers, and how often it was restarted.

Not its job: sending and receiving the lines, reacting to silence.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from functools import partial
from typing import Any

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from bookgate.gateway.metrics import PREFIX, GatewayMetrics, GatewayNumbers, Reading

REPORT_SECONDS = 1.0


def report(metrics: GatewayMetrics, more: Collector) -> dict[str, Any]:
    """All numbers of the gateway, and those of the collectors in `more`."""
    return {
        "families": [*_families(metrics.collect()), *_families(more.collect())],
        "readings": [[each.name, each.text, each.read(), each.counts] for each in metrics.readings()],
        "requests": metrics.requests(),
    }


def _families(metrics: Iterable[Metric]) -> Iterator[list[Any]]:
    for metric in metrics:
        samples = [[sample.name, sample.labels, sample.value] for sample in metric.samples]
        yield [metric.name, metric.documentation, metric.type, samples]


class ReportedMetrics(GatewayNumbers):
    """`keep` takes a report; `forget` drops it when the process has ended."""

    def __init__(self) -> None:
        self.answers = False
        """Whether it has reported lately."""
        self.restarts = 0
        self._line = b""
        self._known: dict[str, Any] | None = None

    def keep(self, line: bytes) -> None:
        self._line, self._known = line, None
        self.answers = True

    def forget(self) -> None:
        self._line, self._known = b"", None
        self.answers = False

    def collect(self) -> Iterator[Metric]:
        for name, documentation, kind, samples in self._report.get("families", ()):
            metric = Metric(name, documentation, kind)
            for sample, labels, value in samples:
                metric.add_sample(sample, labels, value)
            yield metric
        text = "1: the gateway's process serves and answers; 0: it is being started again, or is stuck"
        yield GaugeMetricFamily(f"{PREFIX}process_up", text, value=int(self.answers))
        text = "times that the gateway's process ended unasked, or could not start, and was started again"
        yield CounterMetricFamily(f"{PREFIX}process_restarts", text, value=self.restarts)

    def readings(self) -> list[Reading]:
        return [
            Reading(name, text, partial(self._reading, name), counts)
            for name, text, _, counts in self._report.get("readings", ())
        ]

    def requests(self) -> tuple[int, int]:
        answered, failed = self._report.get("requests", (0, 0))
        return answered, failed

    def _reading(self, wanted: str) -> float:
        """0 of a process that is not there."""
        values: dict[str, float] = {name: value for name, _, value, _ in self._report.get("readings", ())}
        return values.get(wanted, 0)

    @property
    def _report(self) -> dict[str, Any]:
        if self._known is None:
            self._known = json.loads(self._line)["report"] if self._line else {}
        return self._known
