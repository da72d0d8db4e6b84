"""What a gateway counts: plain numbers on the hot path, read when metrics are scraped.

All names begin with `bookgate_gateway_` (docs/reference/metrics.md). There is one object per gateway, registered where
the process exposes its metrics.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from bisect import bisect_left
from collections.abc import Callable, Iterator
from typing import NamedTuple

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from bookgate.runtime import background
from bookgate.runtime.security import refused_files
from bookgate.runtime.security.access_control import AccessControl
from bookgate.runtime.security.access_counts import LABELS, TEXT, access_samples

PREFIX = "bookgate_gateway_"
_DOORS = ("grpc", "http")
_FINE = ("SUCCESS", "CANCELLED")
"""Outcomes of calls that went as they should: a stream that is watched ends by its client's wish."""
_BOUNDS = (0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0)


class Latencies:
    """A histogram of seconds."""

    __slots__ = ("_buckets", "_sum")

    def __init__(self) -> None:
        self._buckets = [0] * (len(_BOUNDS) + 1)
        self._sum = 0.0

    def observe(self, seconds: float) -> None:
        self._buckets[bisect_left(_BOUNDS, seconds)] += 1
        self._sum += seconds

    def add_to(self, family: HistogramMetricFamily, labels: list[str]) -> None:
        """Adds the histogram in Prometheus' form: each bucket includes the counts of those below it."""
        below, buckets = 0, []
        for bound, count in zip([*map(str, _BOUNDS), "+Inf"], self._buckets, strict=True):
            below += count
            buckets.append((bound, below))
        family.add_metric(labels, buckets, self._sum)


class MethodCounts:
    """The counts of one RPC method."""

    __slots__ = ("codes", "in_flight", "latencies")

    def __init__(self) -> None:
        self.codes: dict[str, int] = {}
        self.in_flight = 0
        self.latencies = Latencies()

    def done(self, code: str, seconds: float) -> None:
        self.codes[code] = self.codes.get(code, 0) + 1
        self.latencies.observe(seconds)


class Reading(NamedTuple):
    """A number that another object owns, read when metrics are scraped."""

    name: str
    text: str
    read: Callable[[], float]
    counts: bool = False
    """It only grows: a counter, whose name ends in `_total` when shown."""


class GatewayNumbers(Collector, ABC):
    """What console and metrics need of a gateway's numbers, whether it runs in this process or in another one."""

    @abstractmethod
    def readings(self) -> list[Reading]:
        """The numbers other than those of calls."""

    @abstractmethod
    def requests(self) -> tuple[int, int]:
        """Number of calls answered, over all methods, and how many of them failed."""


class GatewayMetrics(GatewayNumbers):
    """See the module."""

    def __init__(self) -> None:
        self._methods: dict[str, MethodCounts] = {}
        self._store: dict[str, Latencies] = {}
        self._readings: list[Reading] = []
        self.access: AccessControl | None = None
        """None: a gateway without security."""

    def method(self, name: str) -> MethodCounts:
        """The counts of a method, by its short name."""
        return self._methods.setdefault(name, MethodCounts())

    def observe_store(self, operation: str, seconds: float) -> None:
        latencies = self._store.get(operation)
        if latencies is None:
            latencies = self._store[operation] = Latencies()
        latencies.observe(seconds)

    def show(self, *readings: Reading) -> None:
        """Adds numbers to what is shown."""
        self._readings.extend(readings)

    def readings(self) -> list[Reading]:
        """What `show` has added."""
        return list(self._readings)

    def requests(self) -> tuple[int, int]:
        codes = [each for counts in self._methods.values() for each in counts.codes.items()]
        return sum(count for _, count in codes), sum(count for code, count in codes if code not in _FINE)

    def collect(self) -> Iterator[Metric]:
        yield from self._collect_methods()
        store = HistogramMetricFamily(
            f"{PREFIX}store_seconds", "calls to the metadata store, by operation", labels=["operation"]
        )
        for operation, latencies in self._store.items():
            latencies.add_to(store, [operation])
        yield store
        failures = CounterMetricFamily(
            f"{PREFIX}background_task_failures", "background tasks of the process begun anew", labels=["task"]
        )
        for task, count in dict(background.RESTARTS).items():
            failures.add_metric([task], count)
        yield failures
        access = CounterMetricFamily(f"{PREFIX}access", TEXT, labels=LABELS)
        for labels, count in access_samples(None if self.access is None else self.access.counts, _DOORS):
            access.add_metric(labels, count)
        yield access
        yield self._refused_files()
        for reading in self._readings:
            family = CounterMetricFamily if reading.counts else GaugeMetricFamily
            yield family(PREFIX + reading.name, reading.text, value=reading.read())

    def _refused_files(self) -> Metric:
        family = GaugeMetricFamily(f"{PREFIX}access_file_refused", refused_files.TEXT, labels=refused_files.LABELS)
        for kind, refused in refused_files.refused_samples(self.access.refused_files if self.access else {}):
            family.add_metric([kind], refused)
        return family

    def _collect_methods(self) -> Iterator[Metric]:
        requests = CounterMetricFamily(f"{PREFIX}requests", "calls answered, by outcome", labels=["method", "code"])
        seconds = HistogramMetricFamily(f"{PREFIX}request_seconds", "from call to last answer", labels=["method"])
        in_flight = GaugeMetricFamily(f"{PREFIX}requests_in_flight", "calls under way", labels=["method"])
        for method, counts in self._methods.items():
            for code, count in counts.codes.items():
                requests.add_metric([method, code], count)
            counts.latencies.add_to(seconds, [method])
            in_flight.add_metric([method], counts.in_flight)
        yield requests
        yield seconds
        yield in_flight
