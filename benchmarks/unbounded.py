"""Unbounded ledgers beside ordinary ones on a cluster of this machine: `make bench-unbounded`.

Appends: rate, CPU of the client and of the bookies an append, three copies each. Taking over: a writer that is gone has
left entries that one bookie lacks; beside it, an ordinary ledger that was left the same way is opened with recovery.
A ledger of many fragments, beside one of a single fragment: opened, read, tailed, trimmed.
"""

from __future__ import annotations

import os
import signal
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

from benchmarks.harness import PAIRS, QUICK, Row, figures, measured, report
from benchmarks.process_cpu import cpu_microseconds
from bookgate import BookKeeper, ClientConfig, LedgerOptions, UnboundedWriteHandle, WriteHandle
from bookgate.bookie.standalone.cluster import StandaloneCluster
from bookgate.ledger.metadata import Fragment
from bookgate.ledger.unbounded import begin_fragment
from bookgate.runtime.event_loop import run_async

_SIZES = (100, 1024)
_ENTRIES = 5_000 if QUICK else 30_000
_LEFT = 1_000 if QUICK else 10_000
"""Entries that are not on their whole write sets when a ledger is taken over."""
_FRAGMENTS = 200 if QUICK else 10_000
_OPTIONS = LedgerOptions(3, 3, 2)
_PEER = "ordinary ledger"
_PATIENT = ClientConfig(
    add_timeout_seconds=600,
    max_in_flight_entries=4 * _LEFT,
    max_in_flight_bytes=1 << 30,
    explicit_lac_interval_seconds=0,
)

Writer = WriteHandle | UnboundedWriteHandle
Make = Callable[[BookKeeper], Awaitable[Writer]]


async def unbounded(client: BookKeeper) -> Writer:
    return await client.create_unbounded_ledger(_OPTIONS)


async def ordinary(client: BookKeeper) -> Writer:
    return await client.create_ledger(options=_OPTIONS)


class Bench:
    def __init__(self, cluster: StandaloneCluster) -> None:
        self._uri = cluster.gateway_uri
        self._pids = {each.bookie_id: each.process.pid for each in cluster.processes if each.process is not None}

    # Appends

    async def appends(self, size: int) -> list[Row]:
        """Rate, and the CPU of client and bookies."""
        ours, peer = [], []
        async with await BookKeeper.connect(self._uri) as client:
            for number in range(PAIRS + 1):
                pair = await self._append(client, unbounded, size), await self._append(client, ordinary, size)
                if number:  # the first one warms up
                    ours.append(pair[0])
                    peer.append(pair[1])
        names = (("", "appends/s", True), (", CPU of the client", "µs", False), (", CPU of the bookies", "µs", False))
        return [
            figures(
                f"append {size} B, three copies{name}",
                unit,
                [each[index] for each in ours],
                [each[index] for each in peer],
                _PEER,
                up=up,
            )
            for index, (name, unit, up) in enumerate(names)
        ]

    async def _append(self, client: BookKeeper, make: Make, size: int) -> tuple[float, float, float]:
        writer, payload = await make(client), b"x" * size
        cpu, bookies, began = time.process_time(), self._cpu(), time.perf_counter()
        await writer.append_all(payload for _ in range(_ENTRIES))
        seconds = time.perf_counter() - began
        spent = (time.process_time() - cpu) * 1e6, self._cpu() - bookies
        await writer.close()
        return _ENTRIES / seconds, spent[0] / _ENTRIES, spent[1] / _ENTRIES

    def _cpu(self) -> float:
        return sum(map(cpu_microseconds, self._pids.values()))

    # Taking over

    async def take_overs(self) -> Row:
        async def take(client: BookKeeper, number: int) -> None:
            await (await client.take_over(number)).release()

        async def recover(client: BookKeeper, number: int) -> None:
            await client.open_ledger(number, recovery=True)

        ours = [await self._taken(unbounded, take) for _ in range(PAIRS)]
        peer = [await self._taken(ordinary, recover) for _ in range(PAIRS)]
        return figures(f"take over, {_LEFT:,} entries that one bookie lacks", "s", ours, peer, "recovery", up=False)

    async def _taken(self, make: Make, take: Callable[[BookKeeper, int], Awaitable[None]]) -> float:
        """Seconds."""
        async with await BookKeeper.connect(self._uri, _PATIENT) as gone:
            writer = await make(gone)
            await writer.append(b"first")
            lacking = self._pids[writer.metadata.last_fragment.ensemble[2]]
            os.kill(lacking, signal.SIGSTOP)
            try:
                await writer.append_all(b"x" * 1024 for _ in range(_LEFT))
            finally:
                number = writer.ledger_id.low
                await gone.close()
                os.kill(lacking, signal.SIGCONT)
        async with await BookKeeper.connect(self._uri) as client:
            began = time.perf_counter()
            await take(client, number)
            return time.perf_counter() - began

    # Many fragments

    async def many_fragments(self) -> list[Row]:
        """Opening a ledger of many fragments, reading it through, and trimming it, beside one of a single fragment."""
        spent: dict[str, tuple[list[float], list[float]]] = {}
        async with await BookKeeper.connect(self._uri) as client:
            for _ in range(PAIRS):
                for side, fragments in enumerate((_FRAGMENTS, 1)):
                    for what, seconds in (await self._life(client, fragments)).items():
                        spent.setdefault(what, ([], []))[side].append(seconds)
        peer = "one fragment"
        return [
            figures(f"{_FRAGMENTS:,} fragments: {what}", "s", ours, others, peer, up=False)
            for what, (ours, others) in spent.items()
        ]

    async def _life(self, client: BookKeeper, fragments: int) -> dict[str, float]:
        """Seconds that each use of such a ledger takes."""
        number, began = await _with_fragments(client, fragments), time.perf_counter()
        async with client.open_ledger(number) as reader:
            opened = time.perf_counter()
            assert reader.last_add_confirmed == _FRAGMENTS - 1
            assert [entry.entry_id async for entry in reader.read(0, 99)] == list(range(100))
            first = time.perf_counter()
            tail = aiter(reader.tail(_FRAGMENTS - 100))
            assert (await anext(tail)).entry_id == _FRAGMENTS - 100
            tailed = time.perf_counter()
        await client.trim_ledger(number, _FRAGMENTS // 2)
        trimmed = time.perf_counter()
        return {
            "open": opened - began,
            "read 100 entries at the beginning": first - opened,
            "first entry of a tail near the end": tailed - first,
            "trim half of it": trimmed - tailed,
        }


async def _with_fragments(client: BookKeeper, fragments: int) -> int:
    """A ledger of so many fragments. All lie on the same three bookies, each in another order than the last: its writer
    would take minutes to begin them one by one.
    """
    writer = await client.create_unbounded_ledger(_OPTIONS)
    await writer.append_all(b"entry" for _ in range(_FRAGMENTS))
    await writer.release()
    record = await client.read_record(writer.ledger_id)
    metadata, (one, two, three) = record.metadata, record.metadata.last_fragment.ensemble
    orders = ((one, two, three), (two, three, one))
    for first in range(1, fragments):
        metadata = begin_fragment(metadata, Fragment(first, orders[first % 2]), first * len(b"entry"))
    if fragments > 1:
        await client.ledger_manager.write(record.ledger_id, metadata, record.version)
    return record.ledger_id.low


@asynccontextmanager
async def _bench(directory: Path) -> AsyncIterator[Bench]:
    with StandaloneCluster(directory, bookies=6) as cluster:
        yield Bench(cluster)


async def run() -> Sequence[Row]:
    rows: list[Row] = []
    with tempfile.TemporaryDirectory() as directory:
        async with _bench(Path(directory)) as bench:
            for size in _SIZES:
                rows += map(measured, await bench.appends(size))
            rows.append(measured(await bench.take_overs()))
            rows += map(measured, await bench.many_fragments())
    return rows


def main() -> None:
    report("unbounded", run_async(run()))


if __name__ == "__main__":
    main()
