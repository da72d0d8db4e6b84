"""How long the console and `bookgate ledger list` take with a million ledgers: `make bench-console`.

The metadata is made in SQLite without a client; one bookie shows it. Timed, each several times and the median told: an
answer with a page of ledgers at the beginning and from the middle on, a search that looks at as many ledgers as one
answer may, and in Chromium the time from opening the view of ledgers until its first row is there. Also the bookie's
memory before and after; and of the command the time until its first ledger is printed, from the start of its process,
and its memory at most, the whole listing through.

There is no peer: Apache BookKeeper has no console.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import sqlite3
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable
from pathlib import Path

from benchmarks.filled_store import fill_store
from benchmarks.harness import QUICK
from bookgate.bookie.standalone.cluster import StandaloneCluster
from bookgate.gateway.stores.drivers import ensure_cluster
from bookgate.ledger.ledger_id import LedgerId
from bookgate.ledger.metadata import LedgerMetadata
from bookgate.ledger.metadata_codec import encode
from tests.integration.browser import chromium

LEDGERS = 50_000 if QUICK else 1_000_000
ROUNDS = 11
_KINDS = 1000


def make_ledgers(path: Path) -> None:
    """In a store that is there; ids of its own making come behind them."""
    kinds = []
    for number in range(_KINDS):
        custom = {"application": b"orders", "number": b"%d" % number}
        kinds.append(encode(LedgerMetadata.new(["bookie-1", "bookie-2", "bookie-3"], 3, 2, custom_metadata=custom)))
    fill_store(path, ((LedgerId.unscoped(n), kinds[n % _KINDS]) for n in range(LEDGERS)))
    with contextlib.closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("UPDATE meta SET value = ? WHERE name = 'next_ledger_id'", (LEDGERS,))


def timed(work: Callable[[], object]) -> float:
    """Milliseconds, the median."""
    times = []
    for _ in range(ROUNDS):
        began = time.perf_counter()
        work()
        times.append((time.perf_counter() - began) * 1000)
    return statistics.median(times)


def fetch(url: str) -> bytes:
    with urllib.request.urlopen(url, timeout=60) as response:
        return bytes(response.read())


def first_row(url: str) -> float:
    """Milliseconds from opening a new page until a ledger is in it, the median."""
    with chromium() as browser:

        def open_view() -> None:
            page = browser.new_page()
            page.goto(url, wait_until="commit")
            page.wait_for_selector("tbody th a")
            page.close()

        open_view()
        return timed(open_view)


def memory_mib(pid: int) -> float:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return int(next(line for line in lines if line.startswith("VmRSS")).split()[1]) / 1024


def first_ledger(gateways: str) -> float:
    """Milliseconds until the command prints a ledger, the median; it is ended then."""

    def print_one() -> None:
        with _listing(gateways) as process:
            assert process.stdout is not None
            process.stdout.readline()
            process.kill()

    return timed(print_one)


def whole_listing(gateways: str) -> tuple[float, float]:
    """Seconds that the command takes for all ledgers, and its memory at most in MiB."""
    began = time.perf_counter()
    with _listing(gateways) as process:
        assert process.stdout is not None
        assert sum(1 for _ in process.stdout) == LEDGERS
        seconds = time.perf_counter() - began
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
    return seconds, usage.ru_maxrss / 1024


def _listing(gateways: str) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "bookgate", "ledger", "list", "--output", "jsonl", "--gateways", gateways]
    return subprocess.Popen(command, stdout=subprocess.PIPE)


def main() -> None:
    with tempfile.TemporaryDirectory() as directory:
        uri = f"sqlite://{directory}/metadata.sqlite"
        asyncio.run(ensure_cluster(uri))
        make_ledgers(Path(directory) / "metadata.sqlite")
        options = ("--set=gc_wait_seconds=3600",)
        with StandaloneCluster(Path(directory), bookies=1, metadata_uri=uri, bookie_options=options) as cluster:
            process = cluster.processes[0].process
            assert process is not None
            before = memory_mib(process.pid)
            base = f"http://{cluster.http[0]}"
            listing = f"{base}/api/v1/console/ledgers"
            rows = {
                "first page, the answer": timed(lambda: fetch(listing)),
                "a page in the middle": timed(lambda: fetch(f"{listing}?start_after={LEDGERS // 2}")),
                "a search through 5,000 ledgers": timed(lambda: fetch(f"{listing}?metadata=number%3Dnone")),
                "first page, in Chromium": first_row(f"{base}/#/ledgers"),
                "bookgate ledger list, first ledger": first_ledger(cluster.gateway_uri),
            }
            seconds, most = whole_listing(cluster.gateway_uri)
            print(f"{LEDGERS:,} ledgers in SQLite; milliseconds, the median of {ROUNDS}")
            for name, milliseconds in rows.items():
                print(f"  {name:34} {milliseconds:8.1f}")
            print(f"  memory of the bookie, MiB          {before:8.0f} before, {memory_mib(process.pid):.0f} after")
            print(f"  bookgate ledger list, all ledgers  {seconds:8.1f} s, {most:.0f} MiB at most")


if __name__ == "__main__":
    main()
