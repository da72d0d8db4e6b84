"""What adds at a bookie notice of listings that its own gateway and HTTP answer: `make bench-listings`.

The same adds, undisturbed and with somebody listing all the while, alternately: the peer of each row is the undisturbed
run beside it. So with the gateway in a process of its own (`gateway_process`) and in the bookie's, in turn; memory and
CPU of either without any listing stand beside. What is listed: ledgers with a megabyte of metadata each, over HTTP and
by Iterate, and many with small metadata, by one client and by twenty. The clients that list run in processes of their
own and share the cores.
"""

from __future__ import annotations

import asyncio
import contextlib
import multiprocessing
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import grpc

from benchmarks.entry_load import encoded_adds, encoded_reads, new_ledger_ids, requests_per_second
from benchmarks.filled_store import make_filled_store
from benchmarks.harness import PAIRS, QUICK, Row, figures, report
from benchmarks.process_cpu import cpu_microseconds
from bookgate.bookie.standalone.cluster import StandaloneCluster
from bookgate.ledger.ledger_id import LedgerId
from bookgate.ledger.metadata import LedgerMetadata
from bookgate.ledger.metadata_codec import encode
from bookgate.protos.bookkeeper.gateway.v1.ledger_metadata_service_pb2 import GetLedgerRangesRequest
from bookgate.protos.bookkeeper.gateway.v1.ledger_metadata_service_pb2_grpc import LedgerMetadataServiceStub

ORDINARY = 10_000
LARGE = 100 if QUICK else 600
LARGE_BYTES = 1_000_000
ADDS = 1_000 if QUICK else 4_000
OUTSTANDING = 4
CPU_OPERATIONS = 20_000 if QUICK else 100_000


def make_store(path: Path) -> str:
    """Ordinary ledgers first, large ones behind them."""
    # Not the bookies under test: those would be in limbo for all these ledgers, and look at each.
    ensemble = ["elsewhere-1:3181", "elsewhere-2:3181", "elsewhere-3:3181"]
    ordinary = encode(LedgerMetadata.new(ensemble, 3, 2))
    large = encode(LedgerMetadata.new(ensemble, 3, 2, custom_metadata={"k": b"x" * LARGE_BYTES}))
    numbers = range(ORDINARY + LARGE)
    return make_filled_store(path, ((LedgerId.unscoped(n), ordinary if n < ORDINARY else large) for n in numbers))


def list_over_http(_gateway: str, http: str) -> None:
    path = f"/api/v1/ledger/list?print_metadata=true&limit=1000&start_after={ORDINARY - 1}"
    while True:
        with contextlib.suppress(OSError), urllib.request.urlopen(f"http://{http}{path}") as answer:
            while answer.read(1 << 20):
                pass


def iterate_large(gateway: str, _http: str) -> None:
    asyncio.run(
        _iterate(gateway, 1, GetLedgerRangesRequest(include_metadata=True, columns=True, start_after=ORDINARY - 1))
    )


def iterate_ordinary(gateway: str, _http: str) -> None:
    asyncio.run(_iterate(gateway, 1, GetLedgerRangesRequest(include_metadata=True, columns=True, end_before=ORDINARY)))


def iterate_twenty_times(gateway: str, _http: str) -> None:
    asyncio.run(_iterate(gateway, 20, GetLedgerRangesRequest(include_metadata=True, columns=True, end_before=ORDINARY)))


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


@dataclass
class Bookie:
    """A bookie under test, with its gateway in its own process or in another."""

    mode: str
    cluster: StandaloneCluster
    disturbed: list[float] = field(default_factory=list)
    undisturbed: list[float] = field(default_factory=list)
    cpu_an_add: list[float] = field(default_factory=list)
    cpu_a_read: list[float] = field(default_factory=list)

    @property
    def _pid(self) -> int:
        process = self.cluster.processes[0].process
        assert process is not None
        return process.pid

    @property
    def _port(self) -> int:
        return int(self.cluster.bookies[0].rpartition(":")[2])

    def p99(self) -> float:
        return requests_per_second(self._port, encoded_adds(1024, ADDS), OUTSTANDING)[1].quantile(0.99)

    def take_pair(self, target: Callable[[str, str], None]) -> None:
        self.undisturbed.append(self.p99())
        with listing(target, self.cluster.gateways[0], self.cluster.http[0]):
            self.disturbed.append(self.p99())

    def take_cpu(self) -> None:
        """Microseconds of the bookie's own process, those of its threads included."""
        (ledger,) = new_ledger_ids(1)
        self.cpu_an_add.append(self._cpu_of(encoded_adds(1024, CPU_OPERATIONS, [ledger])))
        self.cpu_a_read.append(self._cpu_of(encoded_reads(ledger, range(CPU_OPERATIONS))))

    def _cpu_of(self, frames: list[bytes]) -> float:
        before = cpu_microseconds(self._pid)
        requests_per_second(self._port, frames, 1000)
        return (cpu_microseconds(self._pid) - before) / len(frames)

    def memory_mib(self) -> float:
        """Of its processes, what they share counted once."""
        return sum(_pss_mib(pid) for pid in (self._pid, *_children(self._pid)))


def _pss_mib(pid: int) -> float:
    rollup = Path(f"/proc/{pid}/smaps_rollup").read_text()
    return int(rollup.partition("\nPss:")[2].split()[0]) / 1024


def _children(pid: int) -> list[int]:
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def _rows_of(bookies: list[Bookie]) -> Iterator[Row]:
    for name, target in (
        (f"{LARGE} ledgers of 1 MB over HTTP", list_over_http),
        (f"Iterate over {LARGE} ledgers of 1 MB", iterate_large),
        (f"Iterate over {ORDINARY:,} ordinary ledgers", iterate_ordinary),
        ("20 of these at once", iterate_twenty_times),
    ):
        for bookie in bookies:
            bookie.p99()
            bookie.disturbed, bookie.undisturbed = [], []
        for _ in range(PAIRS):
            for bookie in bookies:
                bookie.take_pair(target)
        for bookie in bookies:
            yield figures(
                f"{bookie.mode}: add p99 beside {name}",
                "ms",
                bookie.disturbed,
                bookie.undisturbed,
                "undisturbed",
                up=False,
            )


def main() -> None:
    with tempfile.TemporaryDirectory(prefix="bookgate-bench-", dir=".") as directory, ExitStack() as stack:
        place = Path(directory).resolve()
        bookies = []
        for mode, setting in (("own process", "true"), ("one process", "false")):
            (place / setting).mkdir()
            uri = make_store(place / setting / "metadata.sqlite")
            options = ("--set=gc_wait_seconds=3600", f"--set=gateway_process={setting}")
            cluster = StandaloneCluster(place / setting, bookies=1, metadata_uri=uri, bookie_options=options)
            bookies.append(Bookie(mode, stack.enter_context(cluster)))
        own, one = bookies
        memory = figures("memory at the start", "MiB", [own.memory_mib()], [one.memory_mib()], one.mode, up=False)
        for _ in range(PAIRS):
            own.take_cpu()
            one.take_cpu()
        add = figures("CPU of the bookie's process an add", "us", own.cpu_an_add, one.cpu_an_add, one.mode, up=False)
        read = figures("CPU of the bookie's process a read", "us", own.cpu_a_read, one.cpu_a_read, one.mode, up=False)
        report("listings", [memory, add, read, *_rows_of(bookies)])


if __name__ == "__main__":
    main()
