"""Clients' operations as spans, and their counts as metrics, for OpenTelemetry.

    from bookgate.otel import instrument
    stop = instrument(bookkeeper)

Spans are of what is timed as a whole: creating, opening, deleting and recovering ledgers, forces, quorum reads of the
LAC. Appends and reads of entries have none, at their rates: they are counted and timed in the metrics. The metrics are
those of `ClientMetrics`, under their names (docs/reference/metrics.md); a summary gives its count and its sum.

A meter provider takes an instrument of a name once. So its instruments are made once, and observe all clients that are
instrumented with it: their values are added up, or the highest is told of what each client has for the whole process.
Counters never go back: what a client had counted when it was taken out still counts.

Only the API of OpenTelemetry is used; the application configures the SDK and its exporters.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple, Protocol
from weakref import WeakKeyDictionary

from bookgate.thinclient.metrics import HIGHEST_COUNTS, ClientMetric, ClientMetrics

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
        meter_provider: OpenTelemetry's `MeterProvider`; None uses the global one. Clients of one provider are measured
            together.

    Returns:
        A function that ends the spans and takes the client out of the metrics, to be called when the client is closed:
        until then its metrics stay in memory. What it has counted stays in the counters.

    Raises:
        ModuleNotFoundError: `opentelemetry-api` is not installed (the extra `bookgate[otel]`).
    """
    from opentelemetry import trace

    tracer = trace.get_tracer(_SCOPE, tracer_provider=tracer_provider)

    @contextmanager
    def span(operation: str) -> Iterator[None]:
        with tracer.start_as_current_span(f"bookkeeper {operation.lower()}", kind=trace.SpanKind.CLIENT):
            yield

    measured = _measured_by(meter_provider)
    client.metrics.spans.append(span)
    measured.add(client.metrics)

    def stop() -> None:
        if span in client.metrics.spans:
            client.metrics.spans.remove(span)
            measured.take_out(client.metrics)

    return stop


class _Series(NamedTuple):
    """One value of a metric."""

    name: str
    suffix: str
    labels: tuple[tuple[str, str], ...]


_Values = dict[_Series, float]


class _Measured:
    """The clients that one meter provider observes. They come and go in any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._uses = Counter[ClientMetrics]()
        self._counted: _Values = {}
        """The counters of clients that were taken out."""
        self._counted_by: WeakKeyDictionary[ClientMetrics, _Values] = WeakKeyDictionary()
        """What is in there of each, which does not count twice where it is instrumented again."""

    def add(self, client: ClientMetrics) -> None:
        with self._lock:
            self._uses[client] += 1
            for series, value in self._counted_by.pop(client, {}).items():
                _add(self._counted, series, -value)

    def take_out(self, client: ClientMetrics) -> None:
        with self._lock:
            self._uses[client] -= 1
            if self._uses[client]:
                return
            del self._uses[client]
            counters = (metric for metric in client.snapshot() if metric.kind != "gauge")
            counted = self._counted_by[client] = dict(_values(counters))
            for series, value in counted.items():
                _add(self._counted, series, value)

    def values(self, name: str, suffix: str) -> _Values:
        """The present values of a metric."""
        with self._lock:
            found = {each: value for each, value in self._counted.items() if each[:2] == (name, suffix)}
            for client in self._uses:
                for series, value in _values(metric for metric in client.snapshot() if metric.name == name):
                    if series.suffix == suffix:
                        _add(found, series, value)
            return found


def _values(metrics: Iterable[ClientMetric]) -> Iterator[tuple[_Series, float]]:
    """All values but quantiles, which can't be put together."""
    for metric in metrics:
        for sample in metric.samples:
            if "quantile" not in sample.labels:
                yield _Series(metric.name, sample.suffix, tuple(sample.labels.items())), sample.value


def _add(values: _Values, series: _Series, value: float) -> None:
    before = values.get(series, 0)
    values[series] = max(before, value) if series.name in HIGHEST_COUNTS else before + value


class _GlobalProvider:
    """Stands for the global meter provider, which may be set once clients are instrumented."""


_GLOBAL = _GlobalProvider()
_measured: WeakKeyDictionary[Any, _Measured] = WeakKeyDictionary()
_lock = threading.Lock()


def _measured_by(meter_provider: Any) -> _Measured:
    from opentelemetry import metrics

    set_globally = metrics.get_meter_provider()
    is_global = meter_provider is None or meter_provider is set_globally
    keys = (_GLOBAL, set_globally) if is_global else (meter_provider,)
    with _lock:
        for key in keys:
            if (known := _measured.get(key)) is not None:
                return known
        made = _Measured()
        _observe(metrics.get_meter(_SCOPE, meter_provider=meter_provider), made)
        _measured[keys[0]] = made
        return made


def _observe(meter: Any, measured: _Measured) -> None:
    for metric in ClientMetrics().snapshot():
        name, text = metric.name, metric.text
        if metric.kind == "gauge":
            meter.create_observable_gauge(name, [_reader(measured, name, "")], description=text)
        elif metric.kind == "counter":
            meter.create_observable_counter(name, [_reader(measured, name, "")], description=text)
        else:
            count, total = _reader(measured, name, "_count"), _reader(measured, name, "_sum")
            meter.create_observable_counter(f"{name}.count", [count], description=text)
            meter.create_observable_counter(f"{name}.sum", [total], unit="ms", description=text)


def _reader(measured: _Measured, name: str, suffix: str) -> Callable[[Any], Iterable[Any]]:
    from opentelemetry.metrics import Observation

    def read(_options: Any) -> Iterator[Any]:
        for series, value in measured.values(name, suffix).items():
            yield Observation(value, dict(series.labels))

    return read
