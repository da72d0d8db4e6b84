"""Spans of operations and metrics of a client, as OpenTelemetry's own SDK gets them."""

from __future__ import annotations

import gc
import weakref
from types import SimpleNamespace
from typing import Any, cast

import pytest
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import StatusCode

from bookgate import BookKeeper, NoSuchLedgerExistsOnMetadataServerException, UnauthorizedAccessException
from bookgate.ledger.ledger_id import LedgerId
from bookgate.otel import instrument
from bookgate.runtime import background
from bookgate.thinclient.metrics import ClientMetrics
from bookgate.thinclient.telemetry import opentelemetry
from tests.told_secrets import MARK, tells_secret
from tests.unit.thinclient.fakes import fake_cluster

_PASSWORD = f"{MARK}password".encode()
_WRONG = f"{MARK}wrong".encode()


@pytest.mark.asyncio
async def test_operations_are_spans_and_counts_are_metrics() -> None:
    spans, reader = InMemorySpanExporter(), InMemoryMetricReader()
    tracers, meters = TracerProvider(), MeterProvider([reader])
    tracers.add_span_processor(SimpleSpanProcessor(spans))
    async with fake_cluster() as cluster:
        client = cluster.client()
        stop = instrument(client, tracers, meters)
        async with client.create_ledger() as ledger:
            for _ in range(3):
                await ledger.append(b"one")
        with pytest.raises(NoSuchLedgerExistsOnMetadataServerException):
            await client.open_ledger(4711)
        found = {span.name: span for span in spans.get_finished_spans()}
        assert found["bookkeeper ledger_create"].status.status_code is StatusCode.UNSET
        assert found["bookkeeper ledger_open"].status.status_code is StatusCode.ERROR
        data = reader.get_metrics_data()
        assert data is not None
        # OpenTelemetry's names know no case.
        metrics: dict[str, Any] = {
            each.name.lower(): each for each in data.resource_metrics[0].scope_metrics[0].metrics
        }
        points = metrics["bookkeeper_client_add_entry.count"].data.data_points
        assert sum(point.value for point in points if point.attributes["success"] == "true") == 3
        assert "bookkeeper_client_num_pending_add" in metrics
        stop()
        stop()
        spans.clear()
        await client.delete_ledger(ledger.ledger_id)
        assert not spans.get_finished_spans()


def values_of(reader: InMemoryMetricReader, name: str) -> dict[str, float]:
    """The values of a metric by the label `success`, or `task`."""
    data = reader.get_metrics_data()
    assert data is not None
    (points,) = (
        each.data.data_points
        for each in data.resource_metrics[0].scope_metrics[0].metrics
        if each.name.lower() == f"bookkeeper_client_{name}".lower()
    )
    return {"".join(map(str, (point.attributes or {}).values())): cast(Any, point).value for point in points}


async def append(client: BookKeeper, entries: int) -> None:
    async with client.create_ledger() as ledger:
        for _ in range(entries):
            await ledger.append(b"one")


@pytest.mark.asyncio
async def test_clients_of_a_provider_are_measured_together_and_counters_never_go_back(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(background.RESTARTS, "a task", 4)
    reader = InMemoryMetricReader()
    meters = MeterProvider([reader])
    async with fake_cluster() as cluster:
        first, second = cluster.client(), cluster.client()
        await append(first, 1)
        stop = instrument(first, None, meters)
        await append(first, 2)
        stop_second = instrument(second, None, meters)
        stop_again = instrument(second, None, meters)
        await append(second, 5)
        assert values_of(reader, "ADD_ENTRY.count")["true"] == 8
        assert values_of(reader, "BACKGROUND_TASK_FAILURES")["a task"] == 4, "each has those of the process"
        stream = LedgerId(0, 1)
        first.metrics.cursor_lags[stream], second.metrics.cursor_lags[stream] = 20.0, 30.0
        first.metrics.gauges["NUM_PENDING_ADD"], second.metrics.gauges["NUM_PENDING_ADD"] = (lambda: 2), (lambda: 3)
        assert values_of(reader, "STREAM_CURSOR_LAG_SECONDS") == {"": 30}
        assert values_of(reader, "NUM_PENDING_ADD") == {"": 5}
        for _ in range(2):
            stop_second()
        await append(second, 1)
        assert values_of(reader, "ADD_ENTRY.count")["true"] == 9, "it is instrumented by another call"
        for end in (stop, stop, stop_again):
            end()
            assert values_of(reader, "ADD_ENTRY.count")["true"] == 9
        assert values_of(reader, "BACKGROUND_TASK_FAILURES")["a task"] == 4
        instrument(second, None, meters)
        await append(second, 1)
        assert values_of(reader, "ADD_ENTRY.count")["true"] == 10
        assert values_of(reader, "NUM_PENDING_ADD") == {"": 3}


def test_nothing_is_held_of_clients_that_were_taken_out() -> None:
    meters = MeterProvider([InMemoryMetricReader()])
    client = SimpleNamespace(metrics=ClientMetrics())
    metrics = weakref.ref(client.metrics)
    instrument(client, None, meters)()
    del client
    gc.collect()
    assert metrics() is None


def test_the_global_provider_is_one_under_all_its_names(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is set once clients are instrumented, by some with its name."""
    monkeypatch.setattr(opentelemetry, "_measured", weakref.WeakKeyDictionary())
    before = opentelemetry._measured_by(None)
    provider = MeterProvider()
    monkeypatch.setattr("opentelemetry.metrics.get_meter_provider", lambda: provider)
    assert opentelemetry._measured_by(provider) is opentelemetry._measured_by(None) is before
    assert opentelemetry._measured_by(MeterProvider()) is not before
    monkeypatch.setattr(opentelemetry, "_measured", weakref.WeakKeyDictionary({provider: before}))
    assert opentelemetry._measured_by(None) is before


@pytest.mark.asyncio
async def test_spans_tell_no_secret() -> None:
    """Neither their attributes nor the events of exceptions, with messages and stack traces."""
    spans = InMemorySpanExporter()
    tracers = TracerProvider()
    tracers.add_span_processor(SimpleSpanProcessor(spans))
    async with fake_cluster() as cluster:
        client = cluster.client(token=f"{MARK}token")
        stop = instrument(client, tracers, MeterProvider())
        async with client.create_ledger(password=_PASSWORD) as ledger:
            await ledger.append(b"one")
        async with await client.open_ledger(ledger.ledger_id, _PASSWORD) as reader:
            assert [entry async for entry in reader.read(0, 0)]
        with pytest.raises(UnauthorizedAccessException):
            await client.open_ledger(ledger.ledger_id, _WRONG)
        stop()
    found = spans.get_finished_spans()
    assert {each.name for each in found} >= {"bookkeeper ledger_create", "bookkeeper ledger_open"}
    assert [event.name for span in found for event in span.events] == ["exception"]
    assert [span.to_json() for span in found if tells_secret(span.to_json())] == []
