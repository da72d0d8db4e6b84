"""Spans of operations and metrics of a client, as OpenTelemetry's own SDK gets them."""

from __future__ import annotations

from typing import Any

import pytest
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import StatusCode

from bookgate import NoSuchLedgerExistsOnMetadataServerException, UnauthorizedAccessException
from bookgate.otel import instrument
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
