"""A bookie's metrics for Prometheus, under BookKeeper's names, collected at each scrape.

Latencies are summaries in milliseconds with the labels `success` and `quantile`, like BookKeeper's; their counts are
exact, their quantiles come from a sample (`statistics`). Garbage collection and the gateway have collectors of their
own. Names: docs/reference/metrics.md.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from bookgate.bookie.disks.monitor import used_percent
from bookgate.bookie.disks.rules import DirectoryUsage
from bookgate.bookie.metrics.exposition import counter, counters, gauge
from bookgate.bookie.statistics import BookieStatistics, JournalStatistics, StorageStatistics
from bookgate.runtime import background
from bookgate.runtime.latency import QUANTILES, LatencyHistogram, OpStats
from bookgate.runtime.security import refused_files
from bookgate.runtime.security.access_control import AccessControl
from bookgate.runtime.security.access_counts import LABELS, TEXT, access_samples

_SERVER = "bookkeeper_server_"
_JOURNAL = "bookie_journal_"
_DOORS = ("entry", "http")


@dataclass(frozen=True)
class Sources:
    """The objects that the collector reads at a scrape."""

    requests: BookieStatistics
    storage: Callable[[], StorageStatistics]
    server_status: Callable[[], int]
    server_sanity: Callable[[], int]
    parked_long_polls: Callable[[], int]
    disks: Callable[[], Mapping[Path, DirectoryUsage]]
    """Last measured usage of the ledger directories."""
    writable_directories: Callable[[], int]
    access: AccessControl | None
    """Access decisions at the entry port and over HTTP; None without security."""


class BookieCollector(Collector):
    """Exposes one bookie to Prometheus."""

    def __init__(self, sources: Sources) -> None:
        self._sources = sources

    def collect(self) -> Iterator[Metric]:
        sources = self._sources
        yield gauge(
            "bookie_SERVER_STATUS",
            "1 writable, 0 read-only, -1 not registered in the metadata store, or not known to be",
            sources.server_status(),
        )
        yield gauge(
            "bookie_SERVER_SANITY",
            "1 while storage and its threads are sound, 0 when not, -1 before and after",
            sources.server_sanity(),
        )
        yield counters(
            "bookie_BACKGROUND_TASK_FAILURES",
            "background tasks of the process that failed with an error that nobody foresaw, and were begun anew",
            [({"task": task}, count) for task, count in dict(background.RESTARTS).items()],
        )
        yield from _of_requests(sources.requests, sources.parked_long_polls())
        yield from _of_connections(sources.requests)
        control = sources.access
        access = access_samples(None if control is None else control.counts, _DOORS)
        yield counters("bookie_ACCESS", TEXT, [(dict(zip(LABELS, key, strict=True)), count) for key, count in access])
        yield _of_refused_files(control.refused_files if control else {})
        storage = sources.storage()
        yield from _of_journals(storage)
        yield from _of_write_cache(storage, sources.requests)
        yield from _of_stores(storage)
        yield from _of_disks(sources.disks(), sources.writable_directories())


def _of_requests(requests: BookieStatistics, parked: int) -> Iterator[Metric]:
    yield counter(_SERVER + "ADD_ENTRY_COUNT", "adds acknowledged", requests.adds)
    yield counter(_SERVER + "ADD_ENTRY_REFUSED", "adds refused", requests.adds_refused)
    yield counter(
        _SERVER + "ADD_ENTRY_READ_ONLY", "adds refused as the bookie is read-only", requests.adds_refused_read_only
    )
    yield counter("bookie_WRITE_BYTES", "bytes of acknowledged adds", requests.add_bytes)
    yield counter(_SERVER + "READ_ENTRY_COUNT", "reads answered with an entry", requests.reads)
    yield counter(_SERVER + "READ_ENTRY_REFUSED", "reads answered without", requests.reads_refused)
    yield counter("bookie_READ_BYTES", "bytes of entries read", requests.read_bytes)
    yield counter(_SERVER + "READ_ENTRY_FENCE_REQUEST_COUNT", "fences made durable", requests.fences)
    yield counter(_SERVER + "TRUNCATE_COUNT", "truncations of unbounded ledgers begun", requests.truncations)
    yield counter(
        _SERVER + "INVALID_TERM_COUNT", "requests refused for an old term of their ledger", requests.old_terms
    )
    yield counter(_SERVER + "READ_ENTRY_LONG_POLL_REQUEST_COUNT", "long polls taken", requests.long_polls)
    yield gauge(_SERVER + "READ_ENTRY_LONG_POLL_PARKED", "long polls that wait", parked)
    yield counter(_SERVER + "READ_LAC_COUNT", "reads of the last add confirmed", requests.read_lacs)
    requests.add_latency.successes, requests.add_latency.failures = requests.adds, requests.adds_refused
    yield _summary(_SERVER + "ADD_ENTRY_REQUEST", "adds, from the request to the answer", requests.add_latency)
    requests.read_latency.successes, requests.read_latency.failures = requests.reads, requests.reads_refused
    yield _summary(
        _SERVER + "READ_ENTRY_REQUEST", "reads; latencies of batches that went to the disk", requests.read_latency
    )
    yield _summary(_SERVER + "READ_ENTRY_FENCE_REQUEST", "fences, until durable", requests.fence_latency)
    yield _summary(
        _SERVER + "READ_ENTRY_LONG_POLL_REQUEST", "long polls, until their wait is over", requests.long_poll_latency
    )
    yield _summary(_SERVER + "READ_LAC", "reads of the last add confirmed, by the batch", requests.read_lac_latency)
    yield _summary(_SERVER + "WRITE_LAC", "explicit LACs, until durable", requests.write_lac_latency)
    yield _summary(_SERVER + "FORCE_LEDGER", "forces", requests.force_latency)
    yield _summary(_SERVER + "GET_BOOKIE_INFO", "questions for the disks' space", requests.info_latency)


def _of_refused_files(refused: refused_files.RefusedFiles) -> Metric:
    gauges = GaugeMetricFamily("bookie_ACCESS_FILE_REFUSED", refused_files.TEXT, labels=refused_files.LABELS)
    for kind, value in refused_files.refused_samples(refused):
        gauges.add_metric([kind], value)
    return gauges


def _of_connections(requests: BookieStatistics) -> Iterator[Metric]:
    yield gauge(_SERVER + "CONNECTIONS", "open connections of clients", requests.connections)
    yield gauge(_SERVER + "CONNECTIONS_MAX", "as many as there may be", requests.max_connections)
    yield gauge(
        _SERVER + "CONNECTIONS_MEMORY_USED",
        "bytes of receive buffers, answers that clients do not take, and requests under way",
        requests.connection_bytes,
    )
    yield gauge(_SERVER + "CONNECTIONS_MEMORY_MAX", "as many as there may be", requests.max_connection_bytes)
    yield counter(_SERVER + "CONNECTIONS_ACCEPTED", "connections of clients since the start", requests.accepted)
    yield counter(_SERVER + "CONNECTIONS_REFUSED", "connections over the limit while none was idle", requests.refused)
    yield counter(_SERVER + "CONNECTIONS_CLOSED_IDLE", "idle ones whose place was needed", requests.closed_idle)
    yield counter(
        _SERVER + "CONNECTIONS_CLOSED_MEMORY", "closed as all held too much memory", requests.closed_for_memory
    )
    yield counter(_SERVER + "TLS_HANDSHAKES", "TLS handshakes that succeeded", requests.tls_handshakes)
    yield counter(_SERVER + "TLS_HANDSHAKE_FAILURES", "TLS handshakes that failed", requests.tls_failures)
    yield counter(_SERVER + "AUTH_FAILURES", "clients that failed to authenticate", requests.auth_failures)


def _of_journals(storage: StorageStatistics) -> Iterator[Metric]:
    journals = [statistics for statistics, _ in storage.journals]
    latencies: list[tuple[str, str, Callable[[JournalStatistics], OpStats]]] = [
        ("JOURNAL_ADD_ENTRY", "records, from the queue until durable", lambda of: of.add_entry),
        ("JOURNAL_QUEUE_LATENCY", "records in the queue", lambda of: of.queue),
        ("JOURNAL_FLUSH_LATENCY", "writing a batch", lambda of: of.flush),
        ("JOURNAL_SYNC", "syncing a batch", lambda of: of.sync),
        ("JOURNAL_PROCESS_TIME_LATENCY", "a batch, once taken from the queue", lambda of: of.process),
        ("JOURNAL_CREATION_LATENCY", "beginning a new journal file", lambda of: of.creation),
    ]
    for name, text, latency in latencies:
        metric = Metric(_JOURNAL + name, f"{text}; milliseconds", "summary")
        for index, journal in enumerate(journals):
            _add_latency(metric, latency(journal), {"journalIndex": str(index)})
        yield metric
    sizes: list[tuple[str, str, Callable[[JournalStatistics], LatencyHistogram]]] = [
        ("JOURNAL_FORCE_WRITE_BATCH_ENTRIES", "records of a batch", lambda of: of.batch_entries),
        ("JOURNAL_FORCE_WRITE_BATCH_BYTES", "bytes of a batch", lambda of: of.batch_bytes),
    ]
    for name, text, size in sizes:
        metric = Metric(_JOURNAL + name, text, "summary")
        for index, journal in enumerate(journals):
            _add_sizes(metric, size(journal), {"journalIndex": str(index), "success": "true"})
        yield metric
    counts: list[tuple[str, str, Callable[[JournalStatistics], int]]] = [
        ("JOURNAL_WRITE_BYTES", "bytes of records written", lambda of: of.write_bytes),
        ("JOURNAL_NUM_FLUSH_EMPTY_QUEUE", "batches taken without a wait", lambda of: of.flushes_of_empty_queue),
        ("JOURNAL_NUM_FLUSH_MAX_WAIT", "batches after the longest group wait", lambda of: of.flushes_after_max_wait),
        (
            "JOURNAL_NUM_FLUSH_MAX_OUTSTANDING_BYTES",
            "batches that were full before",
            lambda of: of.flushes_of_full_group,
        ),
    ]
    for name, text, count in counts:
        values = [({"journalIndex": str(index)}, count(journal)) for index, journal in enumerate(journals)]
        yield counters(_JOURNAL + name, text, values)
    queues = (
        ("JOURNAL_QUEUE_SIZE", "records that wait for the journal"),
        ("JOURNAL_MEMORY_USED", "bytes that wait for the journal"),
        ("JOURNAL_MEMORY_MAX", "bytes from which clients are made to wait"),
    )
    for position, (name, text) in enumerate(queues):
        gauges = GaugeMetricFamily(_JOURNAL + name, text, labels=["journalIndex"])
        for index, (_, queue) in enumerate(storage.journals):
            gauges.add_metric([str(index)], queue[position])
        yield gauges


def _of_write_cache(storage: StorageStatistics, requests: BookieStatistics) -> Iterator[Metric]:
    flushes = storage.flushes
    entries, size = storage.cache
    yield gauge("bookie_write_cache_count", "entries in the write cache", entries)
    yield gauge("bookie_write_cache_size", "bytes of memory they take", size)
    yield counter("bookie_write_cache_hits", "single reads answered from the write cache", requests.write_cache_hits)
    yield counter("bookie_write_cache_misses", "single reads that it did not answer", requests.write_cache_misses)
    yield _summary("bookie_flush", "flushes of the write cache to entry log and index", flushes.flushes)
    yield _sizes("bookie_flush_size", "bytes of memory that each flushed", flushes.sizes)
    yield _summary("bookie_CHECKPOINT", "checkpoints: flush, marks, removed journals", flushes.checkpoints)
    yield _summary("bookie_SKIP_LIST_SNAPSHOT", "taking the write cache's full half", flushes.snapshots)
    yield counter("bookie_SKIP_LIST_FLUSH_BYTES", "bytes of memory flushed", flushes.entry_bytes)
    yield counter("bookie_SKIP_LIST_FLUSH_ENTRIES", "entries flushed", flushes.entries)
    waits = requests.waits_for_capacity
    yield counter("bookie_SKIP_LIST_THROTTLING", "times a client had to wait for room", waits.successes)
    yield _summary("bookie_SKIP_LIST_THROTTLING_LATENCY", "these waits", waits)


def _of_stores(storage: StorageStatistics) -> Iterator[Metric]:
    stores = storage.stores
    yield _summary("bookie_flush_entrylog", "the part of flushes that writes entry logs", stores.flush_entry_log)
    yield _summary("bookie_flush_ledger_index", "the part that writes the index", stores.flush_index)
    yield counter("bookie_ENTRYLOGS_CREATED", "entry logs begun by flushes and compactions", stores.logs_begun)
    yield counter("bookie_ENTRYLOGS_ROTATED", "entry logs that flushes have filled", stores.logs_full)
    yield counter("bookie_ENTRYLOGS_WRITE_BYTES", "bytes that flushes wrote to entry logs", stores.log_bytes)
    yield gauge("bookie_NUM_INDEX_PAGES", "pages of the index in memory", storage.index_pages)
    yield counter("bookie_LEDGER_CACHE_HIT", "pages of the index found in memory", stores.index_hits)
    yield counter("bookie_LEDGER_CACHE_MISS", "pages of the index read", stores.index_misses)
    yield _summary("bookie_LEDGER_CACHE_READ_PAGE", "reading a page of the index", stores.read_page)
    entries, size = storage.read_ahead
    yield gauge("bookie_read_cache_count", "entries read ahead that are in memory", entries)
    yield gauge("bookie_read_cache_size", "bytes of memory they take", size)
    yield counter("bookie_read_cache_hits", "single entries that had been read ahead", stores.read_ahead_hits)
    yield counter("bookie_read_cache_misses", "single entries read from entry logs", stores.read_ahead_misses)
    yield _sizes("bookie_readahead_batch_count", "entries of each read ahead", stores.read_ahead_entries)
    yield _sizes("bookie_readahead_batch_size", "bytes of each read ahead", stores.read_ahead_bytes)
    yield counter("bookie_readahead_time", "milliseconds spent on it", stores.read_ahead_seconds * 1000)


def _of_disks(disks: Mapping[Path, DirectoryUsage], writable: int) -> Iterator[Metric]:
    for directory, usage in disks.items():
        name = f"bookie_ledger_dir_{_sanitised(directory)}_usage"
        yield gauge(name, f"per cent of the disk of {directory} that is used", used_percent(usage))
    yield gauge("bookie_ledger_writable_dirs", "ledger directories that are not full", writable)
    yield gauge("bookie_ledger_num_dirs", "ledger directories", len(disks))


def _sanitised(directory: Path) -> str:
    """A directory's name in a metric, as BookKeeper writes it: characters other than letters and digits become
    underscores.
    """
    return "".join(char if char.isascii() and char.isalnum() else "_" for char in str(directory))


def _summary(name: str, text: str, latency: OpStats) -> Metric:
    metric = Metric(name, f"{text}; milliseconds", "summary")
    _add_latency(metric, latency, {})
    return metric


def _sizes(name: str, text: str, sizes: LatencyHistogram) -> Metric:
    metric = Metric(name, text, "summary")
    _add_sizes(metric, sizes, {"success": "true"})
    return metric


def _add_latency(metric: Metric, latency: OpStats, labels: dict[str, str]) -> None:
    for sample in latency.samples(time.monotonic()):
        metric.add_sample(metric.name + sample.suffix, {**labels, **sample.labels}, sample.value)


def _add_sizes(metric: Metric, sizes: LatencyHistogram, labels: dict[str, str]) -> None:
    recent = sizes.recent_quantiles(QUANTILES, time.monotonic())
    for fraction, value in zip(QUANTILES, recent, strict=True):
        # The quantiles are divided by 1000, because most values are microseconds; these are sizes.
        metric.add_sample(metric.name, {**labels, "quantile": str(fraction)}, value * 1000)
    metric.add_sample(metric.name + "_count", labels, sizes.count)
    metric.add_sample(metric.name + "_sum", labels, sizes.total_microseconds)
