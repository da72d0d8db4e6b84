"""What a client counts of itself, under BookKeeper's names (`bookkeeper_client_…`; docs/reference/metrics.md).

Plain numbers on the hot path, put together when somebody asks: `snapshot` for anybody, `collector` for a registry of
prometheus-client where that is installed. Latencies of appends and of reads of single entries are those of every
sixteenth; the counts are exact.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple

from bookgate.ledger.errors import BKException
from bookgate.ledger.ledger_id import LedgerId
from bookgate.runtime import background
from bookgate.runtime.latency import OpStats, Sample

if TYPE_CHECKING:
    from prometheus_client.registry import Collector

PREFIX = "bookkeeper_client_"

SAMPLED = 15
"""An append or read is timed when its entry id has none of these bits."""


ReadAnswer = Callable[[str, int, float, BKException | None], None]
"""Takes the bookie, the bytes of the payloads, the seconds since it was asked, and the error if it is one."""


class ClientMetric(NamedTuple):
    """A metric and its present samples. `kind` is `counter`, `gauge` or `summary`; summaries are in milliseconds."""

    name: str
    kind: str
    text: str
    samples: list[Sample]


_OPERATIONS = {
    "LEDGER_CREATE": "ledgers created",
    "LEDGER_OPEN": "ledgers opened, with or without recovery",
    "LEDGER_DELETE": "ledgers deleted",
    "LEDGER_RECOVER": "recoveries",
    "ADD_ENTRY": "appends, from the call to the acknowledgement",
    "READ_ENTRY": "entries read; failures: those that no bookie could serve",
    "READ_LAC": "quorum reads of the last add confirmed",
    "WRITE_LAC": "explicit LACs, written to an ack quorum",
    "FORCE": "forces of deferred-sync ledgers",
    "READ_LAST_CONFIRMED_AND_ENTRY": "long polls",
    "bookie_watcher_NEW_ENSEMBLE_TIME": "choosing an ensemble",
    "bookie_watcher_REPLACE_BOOKIE_TIME": "choosing a replacement",
}

_COUNTERS = {
    "ADD_ENTRY_UR": "adds that a bookie of the write set did not store",
    "NUM_ENSEMBLE_CHANGE": "ensembles changed",
    "READ_ENTRY_DM": "copies whose digest did not match",
    "SPECULATIVE_READ_COUNT": "reads sent to another bookie before the first had answered",
    "LAC_UPDATE_HITS": "answers that moved the last add confirmed",
    "LAC_UPDATE_MISSES": "answers that did not",
    "BATCH_READ": "batches read",
    "bookie_watcher_BOOKIE_QUARANTINE": "times that a bookie was put in quarantine",
    "bookie_watcher_ENSEMBLE_NOT_ADHERING_TO_PLACEMENT_POLICY_TOTAL": "ensembles on too few racks or hosts",
    "per_channel_bookie_client_TIMEOUT": "requests that a bookie did not answer in time",
    "per_channel_bookie_client_FAILED_CONNECTION_COUNTER": "connections that could not be made",
}

_FAILURES, _FAILURES_TEXT = "BACKGROUND_TASK_FAILURES", "background tasks of the process begun anew"

_COUNTED_ELSEWHERE = {
    "GATEWAYS_PASSED_OVER": "answers of gateways, or the want of one, for which another gateway was asked",
}
"""Counters whose owners are asked, as of gauges."""

_GAUGES = {
    "NUM_PENDING_ADD": "appends not yet acknowledged",
    "STREAM_CURSOR_LAG_SECONDS": "age of the oldest record that a cursor of a stream written here has not committed",
    "per_channel_bookie_client_ACTIVE_TLS_CHANNEL_COUNTER": "connections to bookies over TLS",
    "per_channel_bookie_client_ACTIVE_NON_TLS_CHANNEL_COUNTER": "connections to bookies in clear",
}

HIGHEST_COUNTS = frozenset({PREFIX + "STREAM_CURSOR_LAG_SECONDS", PREFIX + _FAILURES})
"""Metrics of which several clients of a process have the highest value together, and not the sum: an age, and what each
of them tells of the whole process.
"""


class ClientMetrics:
    """One object a client."""

    def __init__(self) -> None:
        self.operations = {name: OpStats() for name in _OPERATIONS}
        self.counters = dict.fromkeys(_COUNTERS, 0)
        self.gauges: dict[str, Callable[[], float]] = {}
        """Read when asked for."""
        self.cursor_lags: dict[LedgerId, float] = {}
        """By ledger of a stream that is written here: seconds, as `STREAM_CURSOR_LAG_SECONDS` has the highest of."""
        self.gauges["STREAM_CURSOR_LAG_SECONDS"] = lambda: max(self.cursor_lags.values(), default=0.0)
        self.spans: list[Callable[[str], AbstractContextManager[None]]] = []
        """Entered around each operation that is timed as a whole, with its name."""
        self.on_read_answer: ReadAnswer | None = None
        """Told of each answer that a read of a range has had; set it before the read begins."""
        self.add_entry = self.operations["ADD_ENTRY"]
        self.read_entry = self.operations["READ_ENTRY"]

    def count(self, name: str, times: int = 1) -> None:
        """Counts; `name` is one of the counters'."""
        self.counters[name] += times

    @contextmanager
    def timed(self, name: str) -> Iterator[None]:
        """Counts and times a block; one that raises is a failure."""
        stats = self.operations[name]
        began = time.perf_counter()
        try:
            if self.spans:
                with ExitStack() as entered:
                    for span in self.spans:
                        entered.enter_context(span(name))
                    yield
            else:
                yield
        except BaseException:
            stats.failure(time.perf_counter() - began)
            raise
        stats.success(time.perf_counter() - began)

    def snapshot(self) -> list[ClientMetric]:
        """All metrics as they stand."""
        now = time.monotonic()
        found = [
            ClientMetric(PREFIX + name, "summary", text, list(self.operations[name].samples(now)))
            for name, text in _OPERATIONS.items()
        ]
        for name, text in _COUNTERS.items():
            found.append(ClientMetric(PREFIX + name, "counter", text, [Sample("", {}, self.counters[name])]))
        # Of a copy, which is made in one step: another thread may add a task meanwhile.
        failures = [Sample("", {"task": task}, count) for task, count in dict(background.RESTARTS).items()]
        found.append(
            ClientMetric(PREFIX + _FAILURES, "counter", "background tasks of the process begun anew", failures)
        )
        for kind, names in (("counter", _COUNTED_ELSEWHERE), ("gauge", _GAUGES)):
            for name, text in names.items():
                read = self.gauges.get(name)
                found.append(ClientMetric(PREFIX + name, kind, text, [Sample("", {}, read() if read else 0)]))
        return found

    def collector(self) -> Collector:
        """For a registry of prometheus-client. Raises ModuleNotFoundError where that is not installed."""
        from prometheus_client.core import Metric
        from prometheus_client.registry import Collector

        metrics = self

        class ClientCollector(Collector):
            def collect(self) -> Iterator[Metric]:
                for metric in metrics.snapshot():
                    # The names are BookKeeper's letter for letter: prometheus-client ends those of a "counter" in
                    # `_total` where it says their type, which would then be that of another metric.
                    kind = "unknown" if metric.kind == "counter" else metric.kind
                    family = Metric(metric.name, metric.text, kind)
                    for sample in metric.samples:
                        family.add_sample(metric.name + sample.suffix, sample.labels, sample.value)
                    yield family

        return ClientCollector()

    def values(self) -> dict[str, Any]:
        """Counts alone, by name without the prefix: for a log line or a test."""
        counted: dict[str, Any] = {name: stats.successes for name, stats in self.operations.items()}
        return {**counted, **self.counters}
