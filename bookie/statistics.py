"""Counts of what a bookie does: plain numbers on the hot path, read when metrics are scraped (`metrics`).

Counts are exact. Latencies of very frequent operations are sampled: one add in `SAMPLED`, one value per batch of reads
and per batch that the journal writes.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

from bookgate.runtime.latency import LatencyHistogram, OpStats

SAMPLED = 256
"""A power of two: of so many adds one is timed."""


@dataclass(slots=True)
class BookieStatistics:
    """Counts of requests. Owned by the event loop."""

    adds: int = 0
    adds_refused: int = 0
    adds_refused_read_only: int = 0
    add_bytes: int = 0
    reads: int = 0
    reads_refused: int = 0
    read_bytes: int = 0
    fences: int = 0
    truncations: int = 0
    old_terms: int = 0
    """Requests of clients that were superseded."""
    long_polls: int = 0
    read_lacs: int = 0
    write_cache_hits: int = 0
    """Single reads answered from the write cache; the others were looked for on the disk."""
    write_cache_misses: int = 0
    connections: int = 0
    max_connections: int = 0
    connection_bytes: int = 0
    """What the connections hold: receive buffers, answers that wait, requests under way."""
    max_connection_bytes: int = 0
    accepted: int = 0
    """Connections since the start."""
    refused: int = 0
    """Of them those that were one too many, and found none idle."""
    closed_idle: int = 0
    """Idle ones whose place a new one took."""
    closed_for_memory: int = 0
    tls_handshakes: int = 0
    tls_failures: int = 0
    auth_failures: int = 0
    waits_for_capacity: OpStats = field(default_factory=OpStats)
    """Of connections, for the write cache or the journal was full."""
    add_latency: OpStats = field(default_factory=OpStats)
    """From the request to the answer."""
    read_latency: OpStats = field(default_factory=OpStats)
    """From the reader thread's order to the answer, for each batch."""
    fence_latency: OpStats = field(default_factory=OpStats)
    long_poll_latency: OpStats = field(default_factory=OpStats)
    """Until the wait is over."""
    read_lac_latency: OpStats = field(default_factory=OpStats)
    write_lac_latency: OpStats = field(default_factory=OpStats)
    force_latency: OpStats = field(default_factory=OpStats)
    info_latency: OpStats = field(default_factory=OpStats)


@dataclass(slots=True)
class JournalStatistics:
    """Counts of one journal. Owned by its thread. Latencies are those of whole batches; sizes are in bytes."""

    add_entry: OpStats = field(default_factory=OpStats)
    """From when the oldest record of a batch was queued, at the earliest, until the batch was durable."""
    queue: OpStats = field(default_factory=OpStats)
    flush: OpStats = field(default_factory=OpStats)
    sync: OpStats = field(default_factory=OpStats)
    process: OpStats = field(default_factory=OpStats)
    creation: OpStats = field(default_factory=OpStats)
    batch_entries: LatencyHistogram = field(default_factory=LatencyHistogram)
    batch_bytes: LatencyHistogram = field(default_factory=LatencyHistogram)
    write_bytes: int = 0
    flushes_of_empty_queue: int = 0
    flushes_after_max_wait: int = 0
    flushes_of_full_group: int = 0

    def batch_written(self, size: int, entries: int, oldest: float, taken: float, written: float) -> None:
        """Times in seconds of one clock. The batch has been written, not yet synced."""
        self.queue.success(taken - oldest)
        self.flush.success(written - taken)
        self.batch_entries.record_value(entries)
        self.batch_bytes.record_value(size)
        self.write_bytes += size

    def batch_synced(self, entries: int, oldest: float, taken: float, written: float, synced: float) -> None:
        self.sync.success(synced - written)
        self.process.success(synced - taken)
        self.add_entry.successes += entries
        self.add_entry.succeeded.record(synced - oldest)


@dataclass(slots=True)
class FlushStatistics:
    """Counts of flushes of the write cache. Owned by the checkpoint thread."""

    flushes: OpStats = field(default_factory=OpStats)
    entries: int = 0
    entry_bytes: int = 0
    """The bookkeeping of cached entries included."""
    sizes: LatencyHistogram = field(default_factory=LatencyHistogram)
    """Bytes of each flush, counted in the same way."""
    snapshots: OpStats = field(default_factory=OpStats)
    checkpoints: OpStats = field(default_factory=OpStats)
    """Flush, marks and removed journals together; those that found nothing to do are among them."""


@dataclass(slots=True)
class StoreStatistics:
    """Counts of entry logs and index, all stores together. Counted without a lock: a race may lose a count."""

    flush_entry_log: OpStats = field(default_factory=OpStats)
    flush_index: OpStats = field(default_factory=OpStats)
    logs_begun: int = 0
    logs_full: int = 0
    log_bytes: int = 0
    index_hits: int = 0
    """Pages of the index that were in memory; RocksDB counts none of the three."""
    index_misses: int = 0
    read_page: OpStats = field(default_factory=OpStats)
    read_ahead_hits: int = 0
    """Entries that had been read ahead."""
    read_ahead_misses: int = 0
    read_ahead_entries: LatencyHistogram = field(default_factory=LatencyHistogram)
    """Entries that came with each read that went ahead, and its bytes."""
    read_ahead_bytes: LatencyHistogram = field(default_factory=LatencyHistogram)
    read_ahead_seconds: float = 0.0


class StorageStatistics(NamedTuple):
    """Of each journal what it counts and its queue (records, bytes, limit); flushes; the cache's entries and bytes.

    Of the stores what they count, the index pages in memory, and entries and bytes read ahead.
    """

    journals: list[tuple[JournalStatistics, tuple[int, int, int]]]
    flushes: FlushStatistics
    cache: tuple[int, int]
    stores: StoreStatistics
    index_pages: int
    read_ahead: tuple[int, int]
