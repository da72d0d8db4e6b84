"""What adds at a bookie notice of listings that its own gateway and HTTP answer: `make bench-listings`.

The same adds, undisturbed and with somebody listing all the while, alternately: the peer of each row is the undisturbed
run beside it. What is listed: ledgers with a megabyte of metadata each, over HTTP and by Iterate, and many with small
metadata, by one client and by twenty. The clients that list run in processes of their own and share the cores.
"""

from __future__ import annotations

import asyncio
import contextlib
import multiprocessing
import sqlite3
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import grpc

from benchmarks.entry_load import encoded_adds, requests_per_second
from benchmarks.harness import PAIRS, QUICK, Row, figures, report
from bookie.standalone import StandaloneCluster
from gateway.drivers import ensure_cluster
from gateway.embedded.change_feed import ledger_key
from ledger.ledger_id import LedgerId
from ledger.metadata import LedgerMetadata
from ledger.metadata_codec import encode
from protos.bookkeeper.gateway.v1.ledger_metadata_service_pb2 import GetLedgerRangesRequest
from protos.bookkeeper.gateway.v1.ledger_metadata_service_pb2_grpc import LedgerMetadataServiceStub

ORDINARY = 10_000
LARGE = 100 if QUICK else 600
LARGE_BYTES = 1_000_000
ADDS = 1_000 if QUICK else 4_000
OUTSTANDING = 4


def make_store(path: Path) -> str:
    """Ordinary ledgers first, large ones behind them."""
    uri = f"sqlite://{path}"

    asyncio.run(ensure_cluster(uri))
    ensemble = ["bookie-1", "bookie-2", "bookie-3"]
    ordinary = encode(LedgerMetadata.new(ensemble, 3, 2))
    large = encode(LedgerMetadata.new(ensemble, 3, 2, custom_metadata={"k": b"x" * LARGE_BYTES}))
    rows = (
        (ledger_key(LedgerId.unscoped(n)), ordinary if n < ORDINARY else large, time.time_ns() // 10**6)
        for n in range(ORDINARY + LARGE)
    )
    with contextlib.closing(sqlite3.connect(path)) as connection, connection:
        insert = "INSERT INTO ledgers (key, version, created_revision, metadata, created_ms) VALUES (?, 0, 1, ?, ?)"
        connection.executemany(insert, rows)
    return uri


def list_over_http(_gateway: str, http: str) -> None:
    path = f"/api/v1/ledger/list?print_metadata=true&limit=1000&start_after={ORDINARY - 1}"
    while True:
        with contextlib.suppress(OSError), urllib.request.urlopen(f"http://{http}{path}") as answer:
            while answer.read(1 << 20):
                pass


def iterate_large(gateway: str, _http: str) -> None:
    asyncio.run(_iterate(gateway, 1, GetLedgerRangesRequest(include_metadata=True, start_after=ORDINARY - 1)))


def iterate_ordinary(gateway: str, _http: str) -> None:
    asyncio.run(_iterate(gateway, 1, GetLedgerRangesRequest(include_metadata=True, end_before=ORDINARY)))


def iterate_twenty_times(gateway: str, _http: str) -> None:
    asyncio.run(_iterate(gateway, 20, GetLedgerRangesRequest(include_metadata=True, end_before=ORDINARY)))


async def _iterate(gateway: str, streams: int, request: GetLedgerRangesRequest) -> None:
    async with grpc.aio.insecure_channel(gateway, options=[("grpc.max_receive_message_length", -1)]) as channel:
        iterate = LedgerMetadataServiceStub(channel).Iterate

        async def again() -> None:
            while True:
                async for _ in iterate(request):
                    pass

        await asyncio.gather(*(again() for _ in range(streams)))


@contextmanager
def listing(target: Callable[[str, str], None], gateway: str, http: str) -> Iterator[None]:
    process = multiprocessing.get_context("spawn").Process(target=target, args=(gateway, http), daemon=True)
    process.start()
    time.sleep(2)  # until it is in full swing; nothing depends on it
    try:
        yield
    finally:
        process.kill()
        process.join()


def main() -> None:
    with tempfile.TemporaryDirectory(prefix="bookgate-bench-", dir=".") as directory:
        uri = make_store(Path(directory).resolve() / "metadata.sqlite")
        options = ("--set=gc_wait_seconds=3600",)
        with StandaloneCluster(Path(directory), bookies=1, metadata_uri=uri, bookie_options=options) as cluster:
            port = int(cluster.bookies[0].rpartition(":")[2])
            gateway, http = cluster.gateway_uri.removeprefix("grpc://"), cluster.http[0]

            def p99() -> float:
                return requests_per_second(port, encoded_adds(1024, ADDS), OUTSTANDING)[1].quantile(0.99)

            rows: list[Row] = []
            for name, target in (
                (f"{LARGE} ledgers of 1 MB over HTTP", list_over_http),
                (f"Iterate over {LARGE} ledgers of 1 MB", iterate_large),
                (f"Iterate over {ORDINARY:,} ordinary ledgers", iterate_ordinary),
                ("20 of these at once", iterate_twenty_times),
            ):
                p99()
                disturbed, undisturbed = [], []
                for _ in range(PAIRS):
                    undisturbed.append(p99())
                    with listing(target, gateway, http):
                        disturbed.append(p99())
                rows.append(figures(f"add p99 beside: {name}", "ms", disturbed, undisturbed, "undisturbed", up=False))
            report("listings", rows)


if __name__ == "__main__":
    main()
