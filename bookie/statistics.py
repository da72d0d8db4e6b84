"""Counts of what a bookie does, kept as plain numbers on the hot path and read when metrics are scraped.

Names are BookKeeper's (operations page, section 6).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector


@dataclass(slots=True)
class BookieStatistics:
    """Owned by the event loop."""

    adds: int = 0
    adds_refused: int = 0
    add_bytes: int = 0
    reads: int = 0
    reads_refused: int = 0
    read_bytes: int = 0
    fences: int = 0
    connections: int = 0


class BookieCollector(Collector):
    """Shows the statistics of one bookie to Prometheus."""

    def __init__(self, statistics: BookieStatistics, server_status: Callable[[], int]) -> None:
        self._statistics = statistics
        self._server_status = server_status

    def collect(self) -> Iterator[Metric]:
        statistics = self._statistics
        yield _gauge("bookie_SERVER_STATUS", "1 writable, 0 read-only, -1 not registered", self._server_status())
        yield _gauge("bookkeeper_server_CONNECTIONS", "open connections of clients", statistics.connections)
        yield _counter("bookkeeper_server_ADD_ENTRY_COUNT", "adds acknowledged", statistics.adds)
        yield _counter("bookkeeper_server_ADD_ENTRY_REFUSED", "adds refused", statistics.adds_refused)
        yield _counter("bookie_WRITE_BYTES", "bytes of acknowledged adds", statistics.add_bytes)
        yield _counter("bookkeeper_server_READ_ENTRY_COUNT", "reads answered with an entry", statistics.reads)
        yield _counter("bookkeeper_server_READ_ENTRY_REFUSED", "reads answered without", statistics.reads_refused)
        yield _counter("bookie_READ_BYTES", "bytes of entries read", statistics.read_bytes)
        yield _counter("bookkeeper_server_READ_ENTRY_FENCE_REQUEST_COUNT", "fences made durable", statistics.fences)


def _gauge(name: str, text: str, value: float) -> GaugeMetricFamily:
    return GaugeMetricFamily(name, text, value=value)


def _counter(name: str, text: str, value: float) -> CounterMetricFamily:
    return CounterMetricFamily(name, text, value=value)
