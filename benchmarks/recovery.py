"""Auto-recovery on a cluster of this machine: `make bench-recovery`; `FULL=1` for larger losses.

`LEDGERS=4000` sets how many small ledgers are lost at once.
`PART=copying,loss,foreground,index` measures some parts only; `index` is of `audit`.

Four bookies, each a process; ledgers of three copies, written on three of them; then one is stopped, and what it had is
copied to the fourth. Beside the repair stands a plain copy of the same ledgers: a thin client that reads them and
appends the entries to a ledger of one bookie, in the same process. CPU is that process's, without the bookies'.
"""

from __future__ import annotations

import asyncio
import os
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from benchmarks.audit import index_rows
from benchmarks.harness import PAIRS, QUICK, Row, figures, report
from benchmarks.load_process import LoadProcess
from bookgate import BookKeeper
from bookgate.bookie.replication.copies.budget import cost_of
from bookgate.bookie.standalone.cluster import StandaloneCluster
from bookgate.runtime.event_loop import run_async

FULL = os.environ.get("FULL") == "1"
MIB = 1024 * 1024
LOADS = ((100, 20_000), (1024, 10_000), (65536, 600))
"""Payload bytes, and entries repaired a pair, in four ledgers."""
LEDGERS_AT_ONCE = 4
BUDGET_MIB, WRITER_RATE, WRITER_BYTES = 50.0, 200.0, 1024
"""The budget is the default of `replication_rate_mb_per_second`."""
WINDOW_SECONDS = 2.0 if QUICK else 5.0
LARGE_BYTES = (32 if QUICK else 1024 if FULL else 256) * MIB
SMALL_LEDGERS = int(os.environ.get("LEDGERS", 100 if QUICK else 10_000 if FULL else 1_000))
SMALL_ENTRIES = 10


class Bookies:
    """The cluster. The first bookie is the one that is lost, the last the one that gets its copies."""

    def __init__(self, cluster: StandaloneCluster) -> None:
        self._cluster = cluster
        self.lost = cluster.processes[0].bookie_id

    def write(self, ledgers: int, entries: int, size: int) -> list[int]:
        """Ledgers of three copies, the lost bookie's and two others'."""
        return run_async(_written(self._cluster.metadata_uri, ledgers, entries, size))

    def delete(self, ledgers: list[int]) -> None:
        """Audits read every ledger that is there."""
        run_async(_deleted(self._cluster.metadata_uri, ledgers))

    def three(self) -> None:
        """Only those are there that ledgers are written on."""
        self._stop(-1)
        self._start(0)

    def fourth(self) -> None:
        self._start(-1)

    def lose_the_first(self) -> None:
        """It takes back its registration, so that no lease has to end first."""
        self._stop(0)

    def _stop(self, number: int) -> None:
        self._cluster.processes[number].terminate()
        self._cluster.processes[number].wait()

    def _start(self, number: int) -> None:
        process = self._cluster.processes[number]
        if process.process is None:
            process.start()
            process.wait_until_serving()


async def _written(uri: str, ledgers: int, entries: int, size: int) -> list[int]:
    async with await BookKeeper.connect(uri) as client:
        room = asyncio.Semaphore(8)

        async def write() -> int:
            async with room, await client.create_ledger(3, 3, 2) as handle:
                await handle.append_all(b"r" * size for _ in range(entries))
                return handle.ledger_id.low

        return list(await asyncio.gather(*(write() for _ in range(ledgers))))


async def _deleted(uri: str, ledgers: list[int]) -> None:
    async with await BookKeeper.connect(uri) as client:
        await asyncio.gather(*map(client.delete_ledger, ledgers))


def copying_rows(bookies: Bookies, load: LoadProcess) -> Iterator[Row]:
    """Repairs without a budget, each beside a plain copy of the same ledgers."""
    bookies.three()
    written = {
        (size, count): [
            bookies.write(LEDGERS_AT_ONCE, (count // 4 if QUICK else count) // LEDGERS_AT_ONCE, size)
            for _ in range(PAIRS + 1)
        ]
        for size, count in LOADS
    }
    bookies.fourth()
    bookies.lose_the_first()
    for (size, _), rounds in written.items():
        repairs, copies = [], []
        for ledgers in rounds:
            copies.append(load.call("copy", ledgers=ledgers))
            repairs.append(load.call("repair", ledgers=ledgers, lost=bookies.lost, mib_a_second=0))
            assert repairs[-1]["entries"] == copies[-1]["entries"]
            bookies.delete(ledgers)
        yield from _copying_rows(size, repairs[1:], copies[1:])  # the first is the warm-up


def _copying_rows(size: int, repairs: list[dict[str, Any]], copies: list[dict[str, Any]]) -> Iterator[Row]:
    name, peer = f"repair, {size:,} B", "plain copy"
    for unit, what, per, factor in (
        ("µs CPU an entry", "cpu", "entries", 1e6),
        ("entries/s", "entries", "seconds", 1.0),
        ("MiB/s", "entries", "seconds", size / MIB),
    ):
        ours, peers = ([run[what] / run[per] * factor for run in runs] for runs in (repairs, copies))
        yield figures(name, unit, ours, peers, peer, up=what != "cpu")


def foreground_rows(bookies: Bookies, load: LoadProcess, writer: LoadProcess) -> Iterator[Row]:
    """A writer's latency beside a repair with the default budget, in turn with the same without."""
    window = {"rate": WRITER_RATE, "seconds": WINDOW_SECONDS, "size": WRITER_BYTES}
    for size in (1024, 65536):
        enough = int(BUDGET_MIB * MIB / 2 * (WINDOW_SECONDS + 1) / size)
        entries = enough if size > 1024 else min(enough, int(10_000 * WINDOW_SECONDS))
        bookies.three()
        rounds = [bookies.write(LEDGERS_AT_ONCE, entries // LEDGERS_AT_ONCE, size) for _ in range(PAIRS)]
        bookies.fourth()
        bookies.lose_the_first()
        writer.call("write", **window)
        beside, alone, shares = [], [], []
        for ledgers in rounds:
            alone.append(writer.call("write", **window))
            load.begin(
                "repair", ledgers=ledgers, lost=bookies.lost, mib_a_second=BUDGET_MIB, seconds=WINDOW_SECONDS + 1
            )
            beside.append(writer.call("write", **window))
            repaired = load.finish()
            bookies.delete(ledgers)
            shares.append(repaired["entries"] * size / MIB / repaired["seconds"])
        name = f"add beside a repair of {size:,} B"
        for tail in ("p50", "p99"):
            yield figures(
                f"{name}: {tail}",
                "ms",
                [run[tail] for run in beside],
                [run[tail] for run in alone],
                "without",
                up=False,
            )
        granted = BUDGET_MIB / 2 * size / cost_of([size])
        yield figures(f"{name}: copied", "MiB/s", shares, [granted] * PAIRS, "what the budget grants")


def loss_rows(bookies: Bookies, load: LoadProcess) -> Iterator[Row]:
    """From the loss of a bookie to full copies, without a budget, by an auditor and a worker."""
    large = LARGE_BYTES // 65536
    for name, ledgers, entries, size in (
        (f"loss, a ledger of {LARGE_BYTES // MIB} MiB", 1, large, 65536),
        (f"loss, {SMALL_LEDGERS:,} ledgers of {SMALL_ENTRIES} entries", SMALL_LEDGERS, SMALL_ENTRIES, 100),
    ):
        bookies.three()
        ids = bookies.write(ledgers, entries, size)
        bookies.fourth()
        copied = load.call("copy", ledgers=ids[:1000])
        load.call("stand")
        load.begin("recovered", lost=bookies.lost, ledgers=ledgers)
        bookies.lose_the_first()
        done = load.finish()
        bookies.delete(ids)
        assert done["entries"] == ledgers * entries
        share = ledgers / len(ids[:1000])
        yield figures(
            f"{name}: full copies", "s", [done["seconds"]], [copied["seconds"] * share], "plain copy", up=False
        )
        yield figures(f"{name}: CPU", "s", [done["cpu"]], [copied["cpu"] * share], "plain copy", up=False)
        reads = done["reads"] / ledgers
        yield figures(f"{name}: metadata reads", "a ledger", [reads], [3.0], "aim", up=False)
        print(
            name, {call: round(count / ledgers, 2) for call, count in sorted(done["calls"].items())}, "calls a ledger"
        )


def main() -> None:
    with ExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="bookgate-bench-", dir=".")))
        cluster = stack.enter_context(StandaloneCluster(directory, bookies=4))
        load = stack.enter_context(LoadProcess("benchmarks.repair_load", cluster.metadata_uri))
        writer = stack.enter_context(LoadProcess("benchmarks.repair_load", cluster.metadata_uri))
        bookies = Bookies(cluster)
        parts: dict[str, Callable[[], Iterator[Row]]] = {
            "copying": lambda: copying_rows(bookies, load),
            "loss": lambda: loss_rows(bookies, load),
            "foreground": lambda: foreground_rows(bookies, load, writer),
            "index": index_rows,
        }
        chosen = os.environ.get("PART", ",".join(parts)).split(",")
        rows = [row for name in chosen for row in parts[name]()]
    report("recovery", rows, whole="PART" not in os.environ)


if __name__ == "__main__":
    main()
