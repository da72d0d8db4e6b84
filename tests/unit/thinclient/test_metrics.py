"""The client's metrics: counts by outcome, and how prometheus-client shows them."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
from prometheus_client import CollectorRegistry, generate_latest

from bookgate.runtime import background
from bookgate.thinclient.metrics import ClientMetrics


def test_outcomes_are_told_apart() -> None:
    metrics = ClientMetrics()
    with metrics.timed("LEDGER_OPEN"):
        pass
    with pytest.raises(KeyError), metrics.timed("LEDGER_OPEN"):
        raise KeyError
    stats = metrics.operations["LEDGER_OPEN"]
    assert (stats.successes, stats.failures) == (1, 1)


def test_a_task_that_fails_for_the_first_time_meanwhile_does_not_end_the_look(monkeypatch: pytest.MonkeyPatch) -> None:
    """The tasks are of the loop's thread, and the look may be of another one."""

    class Growing(Counter[str]):
        def items(self) -> Any:
            for each in super().items():
                self[f"after {each[0]}"] += 1
                yield each

    monkeypatch.setattr(background, "RESTARTS", Growing({"a task": 1}))
    (failures,) = (each for each in ClientMetrics().snapshot() if each.name.endswith("BACKGROUND_TASK_FAILURES"))
    assert [(each.labels, each.value) for each in failures.samples] == [({"task": "a task"}, 1)]


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
