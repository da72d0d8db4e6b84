"""How long the console takes with a million ledgers: `make bench-console`.

The metadata is made in SQLite without a client; one bookie shows it. Timed, each several times and the median told: an
answer with a page of ledgers at the beginning and from the middle on, a search that looks at as many ledgers as one
answer may, and in Chromium the time from opening the view of ledgers until its first row is there. Also the bookie's
memory before and after.

There is no peer: Apache BookKeeper has no console.
"""

from __future__ import annotations

import asyncio
import statistics
import tempfile
import time
import urllib.request
from collections.abc import Callable
from pathlib import Path

from benchmarks.harness import QUICK
from bookie.standalone import StandaloneCluster
from gateway.drivers import create_factory
from ledger.manager import CreateRequest
from ledger.metadata import LedgerMetadata
from tests.integration.browser import chromium

LEDGERS = 50_000 if QUICK else 1_000_000
ROUNDS = 11
_AT_ONCE = 10_000


async def make_ledgers(uri: str) -> None:
    factory = create_factory(uri)
    await factory.initialize()
    for start in range(0, LEDGERS, _AT_ONCE):
        requests = []
        for number in range(start, min(start + _AT_ONCE, LEDGERS)):
            custom = {"application": b"orders", "number": b"%d" % number}
            metadata = LedgerMetadata.new(["bookie-1", "bookie-2", "bookie-3"], 3, 2, custom_metadata=custom)
            requests.append(CreateRequest(None, metadata.close(99, 10_000)))
        await factory.ledger_manager.create_many(requests)
    await factory.close()


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


def main() -> None:
    with tempfile.TemporaryDirectory() as directory:
        uri = f"sqlite://{directory}/metadata.sqlite"
        asyncio.run(make_ledgers(uri))
        options = ("--set=gc_wait_seconds=86400",)
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
            }
            print(f"{LEDGERS:,} ledgers in SQLite; milliseconds, the median of {ROUNDS}")
            for name, milliseconds in rows.items():
                print(f"  {name:32} {milliseconds:8.1f}")
            print(f"  memory of the bookie, MiB        {before:8.0f} before, {memory_mib(process.pid):.0f} after")


if __name__ == "__main__":
    main()
