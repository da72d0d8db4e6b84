"""A client's operations as spans, and its counts as metrics, for OpenTelemetry.

    from bookgate.otel import instrument
    stop = instrument(bookkeeper)

Spans are of what is timed as a whole: creating, opening, deleting and recovering ledgers, forces, quorum reads of the
LAC. Appends and reads of entries have none, at their rates: they are counted and timed in the metrics. The metrics are
those of `ClientMetrics`, under their names (docs/reference/metrics.md); a summary gives its count and its sum.

Only the API of OpenTelemetry is used; the application configures the SDK and its exporters.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any, Protocol

from bookgate.thinclient.metrics import ClientMetric, ClientMetrics

_SCOPE = "bookgate"


class Instrumented(Protocol):
    """A client, asynchronous or blocking."""

    @property
    def metrics(self) -> ClientMetrics: ...


def instrument(client: Instrumented, tracer_provider: Any = None, meter_provider: Any = None) -> Callable[[], None]:
    """Has a client's operations traced and its counts measured.

    Args:
        client: The client; its operations from now on.
        tracer_provider: OpenTelemetry's `TracerProvider`; None uses the global one.
        meter_provider: OpenTelemetry's `MeterProvider`; None uses the global one.

    Returns:
        A function that ends the spans; metrics end with the client's meter provider.

    Raises:
        ModuleNotFoundError: `opentelemetry-api` is not installed (the extra `bookgate[otel]`).
    """
    from opentelemetry import metrics, trace

    tracer = trace.get_tracer(_SCOPE, tracer_provider=tracer_provider)
    meter = metrics.get_meter(_SCOPE, meter_provider=meter_provider)

    @contextmanager
    def span(operation: str) -> Iterator[None]:
        with tracer.start_as_current_span(f"bookkeeper {operation.lower()}", kind=trace.SpanKind.CLIENT):
            yield

    client.metrics.spans.append(span)
    for metric in client.metrics.snapshot():
        _observe(meter, client.metrics, metric)

    def stop() -> None:
        if span in client.metrics.spans:
            client.metrics.spans.remove(span)

    return stop


def _observe(meter: Any, counted: ClientMetrics, metric: ClientMetric) -> None:
    name, text = metric.name, metric.text
    if metric.kind == "gauge":
        meter.create_observable_gauge(name, [_reader(counted, name, "")], description=text)
    elif metric.kind == "counter":
        meter.create_observable_counter(name, [_reader(counted, name, "")], description=text)
    else:
        meter.create_observable_counter(f"{name}.count", [_reader(counted, name, "_count")], description=text)
        meter.create_observable_counter(f"{name}.sum", [_reader(counted, name, "_sum")], unit="ms", description=text)


def _reader(counted: ClientMetrics, name: str, suffix: str) -> Callable[[Any], Iterable[Any]]:
    from opentelemetry.metrics import Observation

    def read(_options: Any) -> Iterator[Any]:
        for metric in counted.snapshot():
            if metric.name == name:
                for sample in metric.samples:
                    if sample.suffix == suffix:
                        yield Observation(sample.value, dict(sample.labels))

    return read
