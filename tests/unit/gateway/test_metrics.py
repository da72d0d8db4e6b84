"""What a scrape shows."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, generate_latest

from bookgate.gateway.metrics import GatewayMetrics, Reading


def shown(metrics: GatewayMetrics) -> set[str]:
    registry = CollectorRegistry()
    registry.register(metrics)
    return set(generate_latest(registry).decode().splitlines())


def test_calls_by_method_and_code() -> None:
    metrics = GatewayMetrics()
    read = metrics.method("Read")
    read.done("SUCCESS", 0.003)
    read.done("SUCCESS", 20.0)
    read.done("LEDGER_NOT_FOUND", 0.003)
    read.in_flight = 2
    assert metrics.method("Read") is read
    assert {
        'bookgate_gateway_requests_total{code="SUCCESS",method="Read"} 2.0',
        'bookgate_gateway_requests_total{code="LEDGER_NOT_FOUND",method="Read"} 1.0',
        'bookgate_gateway_requests_in_flight{method="Read"} 2.0',
        'bookgate_gateway_request_seconds_bucket{le="0.002",method="Read"} 0.0',
        'bookgate_gateway_request_seconds_bucket{le="0.005",method="Read"} 2.0',
        'bookgate_gateway_request_seconds_bucket{le="10.0",method="Read"} 2.0',
        'bookgate_gateway_request_seconds_bucket{le="+Inf",method="Read"} 3.0',
        'bookgate_gateway_request_seconds_count{method="Read"} 3.0',
    } <= shown(metrics)


def test_store_latency_and_readings() -> None:
    metrics = GatewayMetrics()
    metrics.observe_store("write", 0.25)
    metrics.show(Reading("streams", "streams", lambda: 7), Reading("cache_hits", "hits", lambda: 3, counts=True))
    assert {
        'bookgate_gateway_store_seconds_sum{operation="write"} 0.25',
        "bookgate_gateway_streams 7.0",
        "bookgate_gateway_cache_hits_total 3.0",
    } <= shown(metrics)
