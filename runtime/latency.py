"""Latencies, and what an operation counts of itself.

The histogram takes constant memory, constant time a value, and is off by three per cent at worst.
Values are whole microseconds. Below 64 each has a bucket of its own; above, each power of two is cut into 32.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

_SUB_BITS = 5
_EXACT = 1 << (_SUB_BITS + 1)
_MAX_BITS = 40

WINDOW_SECONDS = 60.0
"""Quantiles that Prometheus gets are of the last one to two windows: BookKeeper's provider has 60 s too."""


def _bucket(microseconds: int) -> int:
    shift = microseconds.bit_length() - _SUB_BITS - 1
    return microseconds if shift <= 0 else (shift << _SUB_BITS) + (microseconds >> shift)


_NO_COUNTS = [0] * (_bucket((1 << _MAX_BITS) - 1) + 1)


def _upper_bound(bucket: int) -> int:
    """The largest value that falls into the bucket."""
    if bucket < _EXACT:
        return bucket
    shift = (bucket >> _SUB_BITS) - 1
    return (((bucket & ((1 << _SUB_BITS) - 1)) + (1 << _SUB_BITS) + 1) << shift) - 1


class _Window:
    """The counts as they were when the present window began, and the one before it."""

    __slots__ = ("began", "last", "present")

    def __init__(self) -> None:
        self.began: float | None = None
        self.present: list[int] = []
        self.last: list[int] | None = None

    def before(self, counts: list[int], now: float) -> list[int] | None:
        """The counts at the beginning of the last window, None: nothing was counted then. Begins a new one when due."""
        if self.began is None:
            self.began, self.present = now, counts.copy()
        elif now - self.began >= WINDOW_SECONDS:
            self.began, self.last, self.present = now, self.present, counts.copy()
        return self.last


class LatencyHistogram:
    """Record with `record`, ask with `quantile`."""

    def __init__(self) -> None:
        self._counts = _NO_COUNTS
        """The buckets; a list of its own from the first value on, since most histograms never get one."""
        self.count = 0
        self.total_microseconds = 0
        self.max_microseconds = 0
        self._window = _Window()

    def record(self, seconds: float) -> None:
        self.record_value(int(seconds * 1e6))

    def record_value(self, value: int) -> None:
        """Microseconds, or whatever else is counted in whole numbers; `quantile` then gives thousands of it."""
        value = min(max(value, 0), (1 << _MAX_BITS) - 1)
        if not self.count:
            self._counts = _NO_COUNTS.copy()
        self._counts[_bucket(value)] += 1
        self.count += 1
        self.total_microseconds += value
        if value > self.max_microseconds:
            self.max_microseconds = value

    def counts(self) -> list[int]:
        """A copy of how many values each bucket has."""
        return self._counts.copy()

    def quantile(self, fraction: float) -> float:
        """Milliseconds that `fraction` of the values do not exceed; 0 without values."""
        [found] = self._quantiles([fraction], self._counts)
        return found

    def recent_quantiles(self, fractions: Sequence[float], now: float) -> list[float]:
        """The same for several, in rising order, of the values since the window before the last began.

        A window is over when somebody asks `WINDOW_SECONDS` or more after it began; `now` is in seconds of any clock.
        """
        if not self.count:
            return [0.0] * len(fractions)
        before = self._window.before(self._counts, now)
        if before is None:
            return self._quantiles(fractions, self._counts)
        return self._quantiles(fractions, [count - then for count, then in zip(self._counts, before, strict=True)])

    def _quantiles(self, fractions: Sequence[float], counts: Sequence[int]) -> list[float]:
        total, seen = sum(counts), 0
        found: list[float] = []
        wanted = [fraction * total for fraction in fractions]
        for bucket, count in enumerate(counts):
            seen += count
            while count and len(found) < len(wanted) and seen >= wanted[len(found)]:
                found.append(min(_upper_bound(bucket), self.max_microseconds) / 1000)
        return found + [0.0] * (len(fractions) - len(found))

    def summary(self) -> dict[str, float]:
        """Milliseconds: p50, p99, p99.9, max and mean."""
        mean = self.total_microseconds / self.count / 1000 if self.count else 0.0
        return {
            "p50_ms": self.quantile(0.5),
            "p99_ms": self.quantile(0.99),
            "p99_9_ms": self.quantile(0.999),
            "max_ms": self.max_microseconds / 1000,
            "mean_ms": round(mean, 3),
        }


class OpStats:
    """Successes, failures and latencies of one operation: BookKeeper's OpStatsLogger.

    Counting is exact; latencies may be those of a sample where an operation is done by the hundred thousand.
    """

    __slots__ = ("failed", "failures", "succeeded", "successes")

    def __init__(self) -> None:
        self.successes = 0
        self.failures = 0
        self.succeeded = LatencyHistogram()
        self.failed = LatencyHistogram()

    def success(self, seconds: float) -> None:
        self.successes += 1
        self.succeeded.record(seconds)

    def failure(self, seconds: float) -> None:
        self.failures += 1
        self.failed.record(seconds)

    def samples(self, now: float) -> Iterator[Sample]:
        """As BookKeeper's Prometheus provider shows it: a summary in milliseconds, `success` as a label.

        Counts and sums are those since the start, quantiles those of the last windows; `now` is in seconds.
        """
        for label, count, latencies in (
            ("true", self.successes, self.succeeded),
            ("false", self.failures, self.failed),
        ):
            labels = {"success": label}
            recent = latencies.recent_quantiles(QUANTILES, now)
            for fraction, value in zip(QUANTILES, recent, strict=True):
                yield Sample("", {**labels, "quantile": str(fraction)}, value)
            mean = latencies.total_microseconds / latencies.count / 1000 if latencies.count else 0.0
            yield Sample("_count", labels, count)
            yield Sample("_sum", labels, mean * count)


QUANTILES = (0.5, 0.75, 0.95, 0.99, 0.999, 0.9999, 1.0)
"""Those of BookKeeper's Prometheus provider."""


class Sample(NamedTuple):
    """One line of a metric: what follows its name, the labels, the value."""

    suffix: str
    labels: dict[str, str]
    value: float


class LatencyWindow:
    """The values that a histogram got since the last look at it."""

    def __init__(self, histogram: LatencyHistogram) -> None:
        self._histogram = histogram
        self._seen = histogram.count
        self._counts = histogram.counts()

    def quantile(self, fraction: float) -> float | None:
        """Milliseconds that `fraction` of them do not exceed, None without any. The next look begins here."""
        if self._histogram.count == self._seen:
            return None
        earlier, self._counts = self._counts, self._histogram.counts()
        self._seen = self._histogram.count
        fresh = [now - before for now, before in zip(self._counts, earlier, strict=True)]
        wanted, seen = fraction * sum(fresh), 0
        for bucket, count in enumerate(fresh):
            seen += count
            if count and seen >= wanted:
                return min(_upper_bound(bucket), self._histogram.max_microseconds) / 1000
        return None
