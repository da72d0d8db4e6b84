"""Live rates: numbers sampled every two seconds and kept for ten minutes, so that a chart shows the recent past when it
is opened.

A `Series` samples one number; `rate_of` derives one from a growing count, `p99_of` from a histogram, for the time since
the last sample. A chart holds series of one unit. Memory is constant.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from bookgate.runtime.background import keep_running
from bookgate.runtime.latency import LatencyHistogram, LatencyWindow

INTERVAL_SECONDS = 2.0
_KEPT = 300

Value = float | None
"""None where there is nothing to tell of, as a latency while nothing happens."""


@dataclass(frozen=True)
class Series:
    """One line of a chart. `read` is called once per interval, with the seconds since the last call."""

    name: str
    label: str
    read: Callable[[float], Value]


@dataclass(frozen=True)
class Chart:
    """Series of one unit: `count`, `bytes`, either with `/s`, or `ms`."""

    title: str
    unit: str
    series: tuple[Series, ...]


def gauge(name: str, label: str, read: Callable[[], float]) -> Series:
    """A number as it is."""
    return Series(name, label, lambda _seconds: read())


def rate_of(name: str, label: str, count: Callable[[], float]) -> Series:
    """The growth of a count per second; None at the first sample."""
    before: float | None = None

    def read(seconds: float) -> Value:
        nonlocal before
        now, earlier = count(), before
        before = now
        return None if earlier is None or seconds <= 0 else max(0.0, (now - earlier) / seconds)

    return Series(name, label, read)


def p99_of(name: str, label: str, histogram: LatencyHistogram) -> Series:
    """The 99th percentile, in milliseconds, of the values since the last sample."""
    window = LatencyWindow(histogram)
    return Series(name, label, lambda _seconds: window.quantile(0.99))


class Rates:
    """See the module. `clock` in seconds, `wall_clock` in seconds since 1970."""

    def __init__(self, charts: Sequence[Chart], clock: Callable[[], float], wall_clock: Callable[[], float]) -> None:
        self._charts = charts
        self._series = [series for chart in charts for series in chart.series]
        self._clock = clock
        self._wall_clock = wall_clock
        self._looked = clock()
        self._points: deque[tuple[int, list[Value]]] = deque(maxlen=_KEPT)
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Starts sampling, on this event loop."""
        self.look()
        self._task = keep_running("rates of the console", self._run)

    async def close(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])

    async def _run(self) -> None:
        while True:
            await asyncio.sleep(INTERVAL_SECONDS)
            self.look()

    def look(self) -> None:
        """Samples every series once."""
        now = self._clock()
        seconds, self._looked = now - self._looked, now
        at_ms = int(self._wall_clock() * 1000)
        self._points.append((at_ms, [_rounded(series.read(seconds)) for series in self._series]))

    def shown(self, since_ms: int) -> dict[str, Any]:
        """The charts, with the points after a time; a point is a time and one value per series, in the order of the
        charts.
        """
        return {
            "intervalSeconds": INTERVAL_SECONDS,
            "keptSeconds": INTERVAL_SECONDS * _KEPT,
            "charts": [
                {
                    "title": chart.title,
                    "unit": chart.unit,
                    "series": [{"name": series.name, "label": series.label} for series in chart.series],
                }
                for chart in self._charts
            ],
            "points": [[at_ms, *values] for at_ms, values in self._points if at_ms > since_ms],
        }


def _rounded(value: Value) -> Value:
    return None if value is None else round(value, 3)
