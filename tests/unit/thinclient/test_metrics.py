"""The client's metrics: counts by outcome, and how prometheus-client shows them."""

from __future__ import annotations

import pytest
from prometheus_client import CollectorRegistry, generate_latest

from bookgate.thinclient.metrics import ClientMetrics


def test_outcomes_are_told_apart() -> None:
    metrics = ClientMetrics()
    with metrics.timed("LEDGER_OPEN"):
        pass
    with pytest.raises(KeyError), metrics.timed("LEDGER_OPEN"):
        raise KeyError
    stats = metrics.operations["LEDGER_OPEN"]
    assert (stats.successes, stats.failures) == (1, 1)


def test_counters_only_by_known_names() -> None:
    metrics = ClientMetrics()
    metrics.count("NUM_ENSEMBLE_CHANGE", 2)
    assert metrics.values()["NUM_ENSEMBLE_CHANGE"] == 2
    with pytest.raises(KeyError):
        metrics.count("NUM_ENSEMBLE_CHANGES")


def test_prometheus_shows_them_under_bookkeepers_names() -> None:
    metrics = ClientMetrics()
    metrics.gauges["NUM_PENDING_ADD"] = lambda: 7
    metrics.count("READ_ENTRY_DM")
    metrics.add_entry.success(0.004)
    registry = CollectorRegistry()
    registry.register(metrics.collector())
    shown = generate_latest(registry).decode()
    assert "bookkeeper_client_NUM_PENDING_ADD 7.0" in shown
    assert "bookkeeper_client_READ_ENTRY_DM 1.0" in shown
    assert 'bookkeeper_client_ADD_ENTRY_count{success="true"} 1.0' in shown
    assert 'bookkeeper_client_ADD_ENTRY{quantile="0.99",success="true"} 4.0' in shown
