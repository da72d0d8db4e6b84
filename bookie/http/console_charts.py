"""The console's charts of a bookie: requests, latencies, journals and write cache."""

from __future__ import annotations

from collections.abc import Callable

from bookgate.bookie.statistics import BookieStatistics, StorageStatistics
from bookgate.gateway.console.rates import Chart, gauge, p99_of, rate_of


def bookie_charts(requests: BookieStatistics, storage: Callable[[], StorageStatistics]) -> list[Chart]:
    """Storage is open: its journals do not change any more."""
    journals = [journal for journal, _ in storage().journals]
    return [
        Chart(
            "Entries",
            "count/s",
            (
                rate_of("adds", "added", lambda: requests.adds),
                rate_of("reads", "read", lambda: requests.reads),
                rate_of("refused", "refused", lambda: requests.adds_refused + requests.reads_refused),
            ),
        ),
        Chart(
            "Bytes",
            "bytes/s",
            (
                rate_of("add_bytes", "added", lambda: requests.add_bytes),
                rate_of("read_bytes", "read", lambda: requests.read_bytes),
            ),
        ),
        Chart(
            "Latency, 99 of 100 within",
            "ms",
            (
                p99_of("add_p99", "add", requests.add_latency.succeeded),
                p99_of("read_p99", "read", requests.read_latency.succeeded),
                *(
                    p99_of(f"sync_p99_{number}", _name("journal sync", number, len(journals)), journal.sync.succeeded)
                    for number, journal in enumerate(journals)
                ),
            ),
        ),
        Chart(
            "Journal queue",
            "count",
            tuple(
                gauge(f"queue_{number}", _name("records", number, len(journals)), _queue(storage, number))
                for number in range(len(journals))
            ),
        ),
        Chart("Write cache", "bytes", (gauge("write_cache", "held", lambda: storage().cache[1]),)),
        Chart("Clients", "count", (gauge("connections", "connections", lambda: requests.connections),)),
    ]


def _name(label: str, number: int, count: int) -> str:
    return label if count == 1 else f"{label} {number}"


def _queue(storage: Callable[[], StorageStatistics], number: int) -> Callable[[], float]:
    return lambda: storage().journals[number][1][0]
