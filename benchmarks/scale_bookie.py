"""A bookie with many ledgers, and the repair of a lost one, for the scale benchmark.

Adds of 1 KiB go to many ledgers in turn, encoded beforehand; CPU, memory and journal are the process's own figures, the
disk is what its directories hold after it has stopped. The repair is that of `recovery`: three copies, one bookie lost.
Not its job: predictions (`scale_model`).
"""

from __future__ import annotations

import math
import tempfile
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from itertools import product
from pathlib import Path

from benchmarks.bookie_memory import peak_mib
from benchmarks.entry_load import encoded_adds, requests_per_second
from benchmarks.load_process import LoadProcess, rss_bytes
from benchmarks.process_cpu import cpu_microseconds
from benchmarks.recovery import SMALL_ENTRIES, Bookies
from bookgate.bookie.standalone.cluster import StandaloneCluster
from bookgate.ledger.wire.messages import ReadRequest
from bookgate.ledger.wire.v3 import encode_request

ENTRY_BYTES = 1024
_OUTSTANDING = 1000
_FRAMES_AT_ONCE = 20_000
_READ = 20_000
_QUIET = ("--set=gc_wait_seconds=86400", "--set=minor_compaction_interval_seconds=0")
_CACHES_MB = {"write_cache_mb": 128, "ledger_cache_mb": 64, "read_ahead_cache_mb": 32}
"""The defaults."""


@contextmanager
def _bookie(directory: Path, storage: str, share: float) -> Iterator[tuple[int, int, str]]:
    """Process, port and HTTP address of one bookie."""
    options = (f"--set=storage_type={storage}", *_QUIET, *_caches(share))
    with StandaloneCluster(directory, bookies=1, bookie_options=options) as cluster:
        process = cluster.processes[0].process
        assert process is not None
        yield process.pid, int(cluster.bookies[0].rpartition(":")[2]), cluster.http[0]


def _caches(share: float) -> Iterator[str]:
    """Caches scaled down with the load, so that as much of it comes from files."""
    return (f"--set={name}={max(1, math.ceil(size * share))}" for name, size in _CACHES_MB.items())


def _add(port: int, ledgers: int, entries: int, share: float) -> None:
    """Each ledger gets its entries in turn, part by part; a part fills a third of the write cache."""
    together = max(1, math.ceil(_FRAMES_AT_ONCE * share) // entries)
    for first in range(1, ledgers + 1, together):
        ids = range(first, min(first + together, ledgers + 1))
        requests_per_second(port, encoded_adds(ENTRY_BYTES, len(ids) * entries, ids), _OUTSTANDING)


def bookie_figures(storage: str, ledgers: int, entries: int, share: float = 1.0) -> Mapping[str, float]:
    """Each an add, a read, a ledger or an entry; `share`: of the caches that a bookie has by default."""
    with tempfile.TemporaryDirectory(prefix="bookgate-bench-", dir=".") as directory:
        place, adds = Path(directory).resolve(), ledgers * entries
        with _bookie(place, storage, share) as (pid, port, http):
            base, before, journal = rss_bytes(pid), cpu_microseconds(pid), _journal_bytes(http)
            _add(port, ledgers, entries, share)
            add_cpu = (cpu_microseconds(pid) - before) / adds
            journal = (_journal_bytes(http) - journal) / adds
            peak = peak_mib(pid) * 1024 * 1024
            read_cpu = _read_cpu(pid, port, ledgers, entries)
        data = place / "bookie-1"
        logs = sum(path.stat().st_size for path in data.rglob("*.log") if path.parent.name == "current")
        index = sum(_allocated(path) for path in data.rglob("*") if _is_index(path))
    return {
        "add_cpu": add_cpu,
        "read_cpu": read_cpu,
        "journal_bytes": journal,
        "log_bytes": logs / adds,
        "index_bytes": index / ledgers,
        "base_bytes": base,
        "peak_bytes": peak,
    }


def _read_cpu(pid: int, port: int, ledgers: int, entries: int) -> float:
    """Of single reads, spread over the ledgers."""
    chosen = range(1, ledgers + 1, max(1, ledgers * entries // _READ))
    wanted = [
        ReadRequest(number, ledger, entry) for number, (ledger, entry) in enumerate(product(chosen, range(entries)))
    ]
    frames = list(map(encode_request, wanted))
    before = cpu_microseconds(pid)
    requests_per_second(port, frames, _OUTSTANDING)
    return (cpu_microseconds(pid) - before) / len(frames)


def _is_index(path: Path) -> bool:
    return path.is_file() and "ledgers" in path.parts and path.suffix != ".log" and path.name != "bookie.log"


def _allocated(path: Path) -> int:
    return path.stat().st_blocks * 512


def _journal_bytes(http: str) -> float:
    with urllib.request.urlopen(f"http://{http}/metrics", timeout=30) as answer:
        lines = answer.read().decode().splitlines()
    return sum(
        float(line.rpartition(" ")[2]) for line in lines if line.startswith("bookie_journal_JOURNAL_WRITE_BYTES")
    )


def repair_figures(ledgers: int) -> Mapping[str, float]:
    """The loss of a bookie with so many small ledgers, until all are whole again; each a ledger."""
    with (
        tempfile.TemporaryDirectory(prefix="bookgate-bench-", dir=".") as directory,
        StandaloneCluster(Path(directory), bookies=4) as cluster,
        LoadProcess("benchmarks.repair_load", cluster.metadata_uri) as load,
    ):
        bookies = Bookies(cluster)
        bookies.three()
        bookies.write(ledgers, SMALL_ENTRIES, 100)
        bookies.fourth()
        load.call("stand")
        load.begin("recovered", lost=bookies.lost, ledgers=ledgers)
        bookies.lose_the_first()
        done = load.finish()
    return {
        "repair_cpu": done["cpu"] * 1e6 / ledgers,
        "repair_seconds": done["seconds"] / ledgers,
        "repair_reads": done["reads"] / ledgers,
        "repair_calls": sum(done["calls"].values()) / ledgers,
    }
