"""Memory of a bookie that holds very many ledgers: `make bench-bookie-memory`.

For each kind of index: a bookie's directory with the index of a million ledgers is made without the bookie, then the
bookie is started on it and a tenth of the ledgers is worked on, chosen at random: adds of 1 KiB in turn, several rounds
so that checkpoints run between, then a read of every entry. Shown is the most memory that the process ever had, beside
the limit of 512 MiB.

The directory takes some 5 GB while it runs; it goes to a temporary directory (TMPDIR) and away again.
"""

from __future__ import annotations

import os
import random
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from benchmarks.entry_load import encoded_adds, requests_per_second
from benchmarks.harness import QUICK, Row, compare_once, report
from bookgate.bookie.index.file_format import IndexHeader, relative_path, slot_runs
from bookgate.bookie.index.rocksdb_index import RocksDbIndex
from bookgate.bookie.standalone.cluster import StandaloneCluster
from bookgate.bookie.system.files import REAL_FILE_SYSTEM
from bookgate.ledger.digest import ledger_master_key
from bookgate.ledger.ledger_id import LedgerId
from bookgate.ledger.wire.messages import ReadRequest
from bookgate.ledger.wire.v3 import encode_request

LEDGERS = 50_000 if QUICK else 1_000_000
WORKED_ON = LEDGERS // 10
ROUNDS = 3
ENTRY_BYTES = 1024
OUTSTANDING = 1000
LIMIT_MIB = 512

_HEADER = IndexHeader(ledger_master_key(b""), fenced=False, explicit_lac=None)
_AT_ONCE = 10_000
_NO_COLLECTION = ("--set=gc_wait_seconds=86400", "--set=minor_compaction_interval_seconds=0")
"""The metadata has none of these ledgers."""


def make_index_files(directory: Path) -> None:
    """A file with a header for each ledger."""
    for upper in range(min(256, LEDGERS >> 8) or 1):
        for lower in range(256):
            (directory / f"{upper:x}" / f"{lower:x}").mkdir(parents=True, exist_ok=True)
    header = _HEADER.encode()
    for number in range(LEDGERS):
        path = directory / relative_path(LedgerId.unscoped(number))
        path.parent.mkdir(parents=True, exist_ok=True)
        fd = os.open(path, os.O_WRONLY | os.O_CREAT)
        os.write(fd, header)
        os.close(fd)


def make_rows(directory: Path) -> None:
    """A row, and the location of one entry, for each ledger."""
    index = RocksDbIndex(REAL_FILE_SYSTEM, directory, 8 << 20)
    try:
        for number in range(LEDGERS):
            index.update(LedgerId.unscoped(number), _HEADER, slot_runs([1000], [(1 << 32) + 1028]))
            if number % _AT_ONCE == 0:
                index.sync()
        index.sync()
    finally:
        index.close()


def work(port: int, ledgers: Sequence[int]) -> None:
    """An add to every ledger, so many times; then reads of all that, in any order."""
    count = len(ledgers)
    for entry_id in range(ROUNDS):
        requests_per_second(port, encoded_adds(ENTRY_BYTES, count, ledgers, entry_id), OUTSTANDING)
    reads = [ReadRequest(number + 1, ledgers[number % count], number // count) for number in range(ROUNDS * count)]
    random.Random(1).shuffle(reads)
    for first in range(0, len(reads), _AT_ONCE):
        requests_per_second(port, list(map(encode_request, reads[first : first + _AT_ONCE])), OUTSTANDING)


def peak_mib(pid: int) -> float:
    """The most resident memory that the process ever had."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) / 1024
    raise RuntimeError(f"process {pid} does not say how much memory it had")


def peak_of(storage: str, make_index: Callable[[Path], None]) -> float:
    with tempfile.TemporaryDirectory(prefix="bookgate-bench-") as directory:
        options = (f"--set=storage_type={storage}", *_NO_COLLECTION)
        cluster = StandaloneCluster(Path(directory), bookies=1, bookie_options=options)
        with cluster:
            pass  # that makes the directories and their cookies
        began = time.monotonic()
        make_index(Path(directory) / "bookie-1" / "ledgers" / "current")
        print(f"{storage}: the index of {LEDGERS:,} ledgers was made in {time.monotonic() - began:.0f} s", flush=True)
        with cluster:
            process = cluster.processes[0].process
            if process is None:
                raise RuntimeError("the bookie does not run")
            at_start = peak_mib(process.pid)
            began = time.monotonic()
            work(int(cluster.bookies[0].rpartition(":")[2]), random.Random(0).sample(range(LEDGERS), WORKED_ON))
            peak = peak_mib(process.pid)
            print(f"{storage}: {at_start:.0f} MiB at the start, {peak:.0f} MiB after {time.monotonic() - began:.0f} s")
            return peak


def main() -> None:
    def row(storage: str, make_index: Callable[[Path], None]) -> Row:
        name = f"{storage}: {LEDGERS:,} ledgers, {WORKED_ON:,} worked on"
        return compare_once(
            name, "MiB", lambda: peak_of(storage, make_index), lambda: LIMIT_MIB, "limit", higher_is_better=False
        )

    report("bookie_memory", [row("db", make_rows), row("sorted", make_index_files)])


if __name__ == "__main__":
    main()
