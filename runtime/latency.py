"""Latency histograms, and the statistics of an operation.

A histogram takes constant memory and constant time per value, with a relative error of at most three per cent. Values
are whole microseconds. Each value below 64 has its own bucket; above, each power of two is divided into 32 buckets.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

_SUB_BITS = 5
_EXACT = 1 << (_SUB_BITS + 1)
_MAX_BITS = 40

WINDOW_SECONDS = 60.0
"""Quantiles exported to Prometheus cover the last one to two windows; BookKeeper's provider uses 60 s too."""


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
    """Snapshots of the counts at the start of the current window and of the previous one."""

    __slots__ = ("began", "last", "present")

    def __init__(self) -> None:
        self.began: float | None = None
        self.present: list[int] = []
        self.last: list[int] | None = None

    def before(self, counts: list[int], now: float) -> list[int] | None:
        """The counts at the start of the previous window, or None if there were none. Starts a new window if it is
        due.
        """
        if self.began is None:
            self.began, self.present = now, counts.copy()
        elif now - self.began >= WINDOW_SECONDS:
            self.began, self.last, self.present = now, self.present, counts.copy()
        return self.last


class LatencyHistogram:
    """A latency histogram: `record` adds a value, `quantile` evaluates it."""

    def __init__(self) -> None:
        self._counts = _NO_COUNTS
        """The buckets. The list is allocated with the first value, since most histograms never receive one."""
        self.count = 0
        self.total_microseconds = 0
        self.max_microseconds = 0
        self._window = _Window()

    def record(self, seconds: float) -> None:
        self.record_value(int(seconds * 1e6))

    def record_value(self, value: int) -> None:
        """Records a value in microseconds or any other whole unit; `quantile` then returns thousands of that unit."""
        value = min(max(value, 0), (1 << _MAX_BITS) - 1)
        if not self.count:
            self._counts = _NO_COUNTS.copy()
        self._counts[_bucket(value)] += 1
        self.count += 1
        self.total_microseconds += value
        if value > self.max_microseconds:
            self.max_microseconds = value

    def counts(self) -> list[int]:
        """A copy of the number of values per bucket."""
        return self._counts.copy()

    def quantile(self, fraction: float) -> float:
        """The latency in milliseconds that `fraction` of the values do not exceed; 0 if there are none."""
        [found] = self._quantiles([fraction], self._counts)
        return found

    def recent_quantiles(self, fractions: Sequence[float], now: float) -> list[float]:
        """Quantiles, for fractions in rising order, of the values recorded since the start of the previous window.

        A window ends at the first call `WINDOW_SECONDS` or more after it began; `now` is in seconds of any clock.
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
        """p50, p99, p99.9, max and mean, in milliseconds."""
        mean = self.total_microseconds / self.count / 1000 if self.count else 0.0
        return {
            "p50_ms": self.quantile(0.5),
            "p99_ms": self.quantile(0.99),
            "p99_9_ms": self.quantile(0.999),
            "max_ms": self.max_microseconds / 1000,
            "mean_ms": round(mean, 3),
        }


class _EstimatedSum:
    """The sum of all latencies, in milliseconds, where those of a sample are known. It never falls, as a counter must
    not, and costs nothing until somebody asks for it.

    What was counted since the last timed operation is estimated by the mean so far. The next timed ones replace that:
    should they be faster, the sum stands still until it has caught up.
    """

    __slots__ = ("_known", "_told")

    def __init__(self) -> None:
        self._known = (0, 0, 0, 0.0)
        """Operations, timed ones, microseconds of those, and the sum, when the last timed one was seen."""
        self._told = 0.0

    def of(self, count: int, latencies: LatencyHistogram) -> float:
        """The sum for so many operations, whose sample is in the histogram."""
        counted, timed, microseconds, total = self._known
        now_timed, now_microseconds = latencies.count, latencies.total_microseconds
        if now_timed > timed:
            total += (count - counted) * (now_microseconds - microseconds) / (now_timed - timed) / 1000
            self._known = counted, timed, microseconds, total = count, now_timed, now_microseconds, total
        mean = microseconds / timed / 1000 if timed else 0.0
        self._told = max(self._told, total + (count - counted) * mean)
        return self._told


class OpStats:
    """Successes, failures and latencies of one operation: BookKeeper's OpStatsLogger.

    Counts are exact; for very frequent operations the latencies may be those of a sample.
    """

    __slots__ = ("_failed_sum", "_succeeded_sum", "failed", "failures", "succeeded", "successes")

    def __init__(self) -> None:
        self.successes = 0
        self.failures = 0
        self.succeeded = LatencyHistogram()
        self.failed = LatencyHistogram()
        self._succeeded_sum = _EstimatedSum()
        self._failed_sum = _EstimatedSum()

    def success(self, seconds: float) -> None:
        self.successes += 1
        self.succeeded.record(seconds)

    def failure(self, seconds: float) -> None:
        self.failures += 1
        self.failed.record(seconds)

    def samples(self, now: float) -> Iterator[Sample]:
        """Samples in the form of BookKeeper's Prometheus provider: a summary in milliseconds with the label `success`.

        Counts and sums cover the time since the start, quantiles the last windows; `now` is in seconds.
        """
        for label, count, latencies, total in (
            ("true", self.successes, self.succeeded, self._succeeded_sum),
            ("false", self.failures, self.failed, self._failed_sum),
        ):
            labels = {"success": label}
            recent = latencies.recent_quantiles(QUANTILES, now)
            for fraction, value in zip(QUANTILES, recent, strict=True):
                yield Sample("", {**labels, "quantile": str(fraction)}, value)
            yield Sample("_count", labels, count)
            yield Sample("_sum", labels, total.of(count, latencies))


QUANTILES = (0.5, 0.75, 0.95, 0.99, 0.999, 0.9999, 1.0)
"""The quantiles of BookKeeper's Prometheus provider."""


class Sample(NamedTuple):
    """One line of a metric: the suffix of its name, the labels, the value."""

    suffix: str
    labels: dict[str, str]
    value: float


class LatencyWindow:
    """The values that a histogram received since the previous evaluation."""

    def __init__(self, histogram: LatencyHistogram) -> None:
        self._histogram = histogram
        self._seen = histogram.count
        self._counts = histogram.counts()

    def quantile(self, fraction: float) -> float | None:
        """Milliseconds that `fraction` of these values do not exceed, None if there are none. Starts the next
        evaluation period.
        """
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
