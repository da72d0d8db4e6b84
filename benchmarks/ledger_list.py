"""`bookgate ledger list` over a million ledgers: `make bench-ledger_list`.

The time to the first line, the time to the last, and the largest memory of the command's process. The peer of each is a
bare client of the same gateway in a process of its own, which asks Iterate for the ids alone and prints them.
"""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

from benchmarks.filled_store import make_filled_store
from benchmarks.harness import QUICK, Row, figures, report
from bookgate.ledger.ledger_id import LedgerId
from bookgate.ledger.metadata import LedgerMetadata
from bookgate.ledger.metadata_codec import encode

_LEDGERS = 50_000 if QUICK else 1_000_000
_BARE = """
import sys, grpc
from bookgate.ledger.id_set import decode_ids
from bookgate.protos.bookkeeper.gateway.v1.ledger_metadata_service_pb2 import GetLedgerRangesRequest
from bookgate.protos.bookkeeper.gateway.v1.ledger_metadata_service_pb2_grpc import LedgerMetadataServiceStub
with grpc.insecure_channel(sys.argv[1]) as channel:
    for page in LedgerMetadataServiceStub(channel).Iterate(GetLedgerRangesRequest()):
        for number in decode_ids(page.serialized_ranges):
            print(number)
"""


class Run(NamedTuple):
    """Seconds to the first and to the last line, and MiB."""

    first: float
    last: float
    memory: float


def make_store(path: Path) -> str:
    """A store with as many closed ledgers, which name bookies that are elsewhere."""
    metadata = encode(LedgerMetadata.new(["elsewhere-1:3181", "elsewhere-2:3181"], 2, 2).close(9, 1000))
    return make_filled_store(path, ((LedgerId.unscoped(number), metadata) for number in range(_LEDGERS)))


def run(command: list[str]) -> Run:
    """Reads what the command prints, to its end."""
    began = time.perf_counter()
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        first, lines, memory = time.perf_counter() - began, 1, 0.0
        for _ in process.stdout:
            lines += 1
            if lines % 10_000 == 0:
                memory = max(memory, _largest_memory(process.pid))
        last = time.perf_counter() - began
    assert process.returncode == 0
    assert lines >= _LEDGERS, f"{lines} lines only"
    return Run(first, last, memory)


def _largest_memory(pid: int) -> float:
    """MiB so far; 0 once the process has ended. What `wait4` tells counts the parent's as well."""
    with contextlib.suppress(OSError):
        for line in Path(f"/proc/{pid}/status").read_text().splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) / 1024
    return 0.0


def main() -> None:
    with tempfile.TemporaryDirectory() as directory:
        uri = make_store(Path(directory) / "metadata.sqlite")
        # No bookie: a new one would look through them all before it serves.
        gateway_command = [sys.executable, "-m", "bookgate", "gateway", "--json", "--port=0", f"--metadata-uri={uri}"]
        with subprocess.Popen(gateway_command, stdout=subprocess.PIPE) as process:
            assert process.stdout is not None
            gateway = json.loads(process.stdout.readline())["gateway"]
            command = [sys.executable, "-m", "bookgate", "ledger", "list", "--gateways", f"grpc://{gateway}"]
            pairs = [(run(command), run([sys.executable, "-c", _BARE, gateway])) for _ in range(2)]
            process.terminate()
    what = f"ledger list of {_LEDGERS:,}"
    names = (("until its first line", "s"), ("until its last line", "s"), ("largest memory", "MiB"))
    rows: list[Row] = []
    for at, (name, unit) in enumerate(names):
        ours, bare = [each[at] for each, _ in pairs], [each[at] for _, each in pairs]
        rows.append(figures(f"{what}: {name}", unit, ours, bare, "ids alone", up=False))
    report("ledger_list", rows)


if __name__ == "__main__":
    main()
