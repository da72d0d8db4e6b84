"""The numbers of a gateway in another process look as they do in its own."""

from __future__ import annotations

import json

from prometheus_client import CollectorRegistry

from bookgate.bookie.metrics.exposition import render
from bookgate.gateway.metrics import GatewayMetrics, Reading
from bookgate.gateway.process.reported_metrics import ReportedMetrics, report
from bookgate.runtime.child_process import Pauses


def counted() -> GatewayMetrics:
    metrics = GatewayMetrics()
    metrics.method("Read").done("SUCCESS", 0.003)
    metrics.method("Read").done("UNAVAILABLE", 3)
    metrics.observe_store("read", 0.1)
    metrics.show(Reading("streams", "streaming calls", lambda: 7), Reading("hits", "from the cache", lambda: 8, True))
    return metrics


def shown(metrics: GatewayMetrics | ReportedMetrics) -> set[str]:
    registry = CollectorRegistry()
    registry.register(metrics)
    return {line for line in render(registry).splitlines() if "gateway_process" not in line}


def reported(metrics: GatewayMetrics) -> ReportedMetrics:
    there = ReportedMetrics()
    there.keep(json.dumps({"report": report(metrics, ReportedMetrics())}).encode())
    return there


def test_they_are_the_same_at_both_ends() -> None:
    metrics = counted()
    there = reported(metrics)
    assert shown(there) == shown(metrics)
    assert there.requests() == (2, 1)
    assert [(each.name, each.read(), each.counts) for each in there.readings()] == [
        ("streams", 7, False),
        ("hits", 8, True),
    ]


def test_of_a_process_that_is_gone_is_known_that_it_is_gone() -> None:
    there = reported(counted())
    streams = there.readings()[0]
    there.forget()
    there.restarts = 3
    assert streams.read() == 0
    assert there.requests() == (0, 0)
    values = {sample.name: sample.value for metric in there.collect() for sample in metric.samples}
    assert values == {"bookgate_gateway_process_up": 0, "bookgate_gateway_process_restarts_total": 3}


def test_pauses_grow_until_a_process_has_lasted() -> None:
    pauses = Pauses()
    assert [pauses.after(0) for _ in range(8)] == [0.2, 0.4, 0.8, 1.6, 3.2, 6.4, 10, 10]
    assert pauses.after(Pauses.SOUND_SECONDS - 1) == 10
    assert pauses.after(Pauses.SOUND_SECONDS) == 0.2
    assert pauses.after(1) == 0.4
