"""One bookie under a load of adds that was encoded beforehand: `make bench-bookie`.

The peer `limit` is a bare loop that appends and syncs what it receives (`bare_bookie`); both get the same frames from
the same generator in the same run. The Java bookie's recorded figures are for a Java client that encodes as it goes.
"""

from __future__ import annotations

import itertools
import socket
import struct
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from benchmarks.harness import QUICK, Row, against_recorded, compare, report
from bookie.standalone import StandaloneCluster
from ledger.digest import digest_for, ledger_master_key
from ledger.entry import encode_entry
from ledger.metadata import DigestType
from ledger.protocol_v3 import encode_request
from ledger.requests import AddRequest

_LENGTH = struct.Struct(">I")
_JAVA_ADDS = {100: 51_600.0, 1024: 31_500.0, 65536: 1_420.0}
_LOADS = ((100, 60_000, 1000), (1024, 40_000, 1000), (65536, 1_500, 64))
"""Payload bytes, entries, outstanding."""

_ledger_ids = itertools.count(1)


def _frames(size: int, count: int) -> list[bytes]:
    """Adds of a ledger of its own, so that every run writes anew."""
    ledger_id = next(_ledger_ids)
    digest, key, payload = digest_for(DigestType.CRC32C, b""), ledger_master_key(b""), b"x" * size
    return [
        encode_request(AddRequest(e + 1, ledger_id, e, key, encode_entry(digest, ledger_id, e, e - 1, 0, payload)))
        for e in range(count)
    ]


def _adds_per_second(port: int, frames: list[bytes], outstanding: int) -> float:
    with socket.create_connection(("127.0.0.1", port)) as connection:
        room = threading.Semaphore(outstanding)
        step = max(1, outstanding // 8)

        def send() -> None:
            for start in range(0, len(frames), step):
                batch = frames[start : start + step]
                for _ in batch:
                    room.acquire()
                connection.sendall(b"".join(batch))

        sender = threading.Thread(target=send)
        began = time.perf_counter()
        sender.start()
        for answers in _answers(connection, len(frames)):
            room.release(answers)
        elapsed = time.perf_counter() - began
        sender.join()
    return len(frames) / elapsed


def _answers(connection: socket.socket, wanted: int) -> Iterator[int]:
    rest = b""
    while wanted:
        data = rest + connection.recv(1 << 18)
        position = answers = 0
        while len(data) - position >= 4:
            end = position + 4 + _LENGTH.unpack_from(data, position)[0]
            if end > len(data):
                break
            position, answers = end, answers + 1
        rest = data[position:]
        wanted -= answers
        yield answers


@contextmanager
def _bare_bookie(directory: Path) -> Iterator[int]:
    command = [sys.executable, "-m", "benchmarks.bare_bookie", str(directory)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        yield int(process.stdout.readline())
        process.communicate()


def main() -> None:
    rows: list[Row] = []
    with ExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="bookgate-bench-", dir=".")))
        cluster = stack.enter_context(StandaloneCluster(directory, bookies=1))
        ours = int(cluster.bookies[0].rpartition(":")[2])
        bare = stack.enter_context(_bare_bookie(directory))
        for size, count, outstanding in _LOADS:
            entries = count // 4 if QUICK else count
            row = compare(
                f"add, 1 bookie, {size} B, {outstanding} outstanding",
                "adds/s",
                lambda size=size, entries=entries, outstanding=outstanding: _adds_per_second(  # type: ignore[misc]
                    ours, _frames(size, entries), outstanding
                ),
                lambda size=size, entries=entries, outstanding=outstanding: _adds_per_second(  # type: ignore[misc]
                    bare, _frames(size, entries), outstanding
                ),
                "limit",
            )
            rows += [row, against_recorded(row, _JAVA_ADDS[size])]
    report("bookie", rows)


if __name__ == "__main__":
    main()
