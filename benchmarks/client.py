"""The thin client on a cluster of this machine: `make bench-client`.

One process is the client, one a bookie; all share the cores. Beside each row stands a limit: frames that were encoded
beforehand and sent to the same bookie in the same run, or the least that the same work takes.
"""

from __future__ import annotations

import asyncio
import tempfile
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

from benchmarks.entry_load import encoded_adds, encoded_batch_reads, encoded_reads, requests_per_second
from benchmarks.harness import PAIRS, QUICK, Row, figures, report
from bookgate import BookKeeper, ClientConfig
from bookgate.bookie.standalone.cluster import StandaloneCluster
from bookgate.ledger.ledger_id import LedgerId
from bookgate.runtime.event_loop import run_async
from bookgate.runtime.latency import LatencyHistogram
from bookgate.thinclient.spark.options.read_options import parse_options
from bookgate.thinclient.spark.reading.batch import EntriesReader
from bookgate.thinclient.spark.worker_client import clients
from bookgate.thinclient.tools.load import LoadResult, random_load, sequential_load, write_load

ONE = 1, 1, 1
THREE = 3, 3, 2

WRITES = (
    # quorums, payload bytes, outstanding, entries
    (ONE, 100, 1000, 40_000),
    (ONE, 1024, 1000, 30_000),
    (ONE, 65536, 64, 1_500),
    (ONE, 1024, 1, 500),
    (THREE, 100, 1000, 20_000),
    (THREE, 1024, 1000, 15_000),
    (THREE, 65536, 64, 600),
    (THREE, 1024, 1, 400),
)


async def _written(
    client: BookKeeper, quorums: tuple[int, int, int], size: int, outstanding: int, entries: int
) -> LoadResult:
    handle = await client.create_ledger(*quorums)
    async with handle:
        result = await write_load(handle, b"x" * size, outstanding=outstanding, entries=entries)
    await client.delete_ledger(handle.ledger_id)
    return result


async def _repeated(run: Callable[[], Awaitable[LoadResult]]) -> tuple[list[LoadResult], list[float]]:
    """Results of several runs after one warm-up, and the client's CPU in microseconds an entry of each."""
    await run()
    results, costs = [], []
    for _ in range(PAIRS):
        began = time.process_time()
        result = await run()
        costs.append((time.process_time() - began) / result.entries * 1e6)
        results.append(result)
    return results, costs


async def _writes(client: BookKeeper, bookie_port: int) -> list[Row]:
    rows = []
    for quorums, size, outstanding, count in WRITES:
        entries = max(50, count // 5) if QUICK else count
        results, costs = await _repeated(lambda: _written(client, quorums, size, outstanding, entries))  # noqa: B023
        name = f"append, {quorums[0]} bookie{'s' * (quorums[0] > 1)}, {size} B, {outstanding} outstanding"
        rates = [result.entries_per_second for result in results]
        if outstanding > 1:
            limits = [requests_per_second(bookie_port, encoded_adds(size, entries), outstanding)[0] for _ in results]
            rows.append(figures(name, "entries/s", rates, limits, "encoded beforehand, one bookie"))
        else:
            single = [1000 / result.latencies.quantile(0.5) for result in results]
            rows.append(figures(name, "entries/s", rates, single, "1 / p50"))
        rows.append(
            figures(f"{name}: client CPU", "µs an entry", costs, [1e6 / rate for rate in rates], "wall clock", up=False)
        )
    return rows


async def _reads(client: BookKeeper, singly: BookKeeper, bookie_ports: Mapping[str, int]) -> list[Row]:
    entries = 20_000 if QUICK else 100_000
    async with await client.create_ledger(*ONE) as handle:
        await handle.append_all(b"y" * 1024 for _ in range(entries))
    [bookie_id] = handle.metadata.last_fragment.ensemble
    number, port = handle.ledger_id.low, bookie_ports[bookie_id]
    single_frames = encoded_reads(number, range(20_000))
    batch_frames = encoded_batch_reads(number, 20_000, 100)
    single_limit = [requests_per_second(port, single_frames, 100)[0] for _ in range(PAIRS)]
    batch_limit = [100 * requests_per_second(port, batch_frames, 10)[0] for _ in range(PAIRS)]
    rows = []

    def add(name: str, results: Sequence[LoadResult], costs: Sequence[float], limit: Sequence[float]) -> None:
        rates = [result.entries_per_second for result in results]
        rows.append(figures(name, "entries/s", rates, limit, "encoded beforehand"))
        walls = [1e6 / rate for rate in rates]
        rows.append(figures(f"{name}: client CPU", "µs an entry", costs, walls, "wall clock", up=False))

    for name, user, batch, outstanding, limit in (
        ("read 1 KiB singly, 100 outstanding", singly, 1, 100, single_limit),
        ("read 1 KiB singly, 1 outstanding", singly, 1, 1, single_limit),
        ("read 1 KiB, ranges of 100 singly, 10 ranges", singly, 100, 10, single_limit),
        ("read 1 KiB, batches of 100, 10 batches", client, 100, 10, batch_limit),
    ):
        async with await user.open_ledger(handle.ledger_id) as reader:
            count = (entries // 10 if batch == 1 else entries) // (10 if outstanding == 1 else 1)
            load = lambda: random_load(reader, outstanding=outstanding, entries=count, width=batch)  # noqa: B023, E731
            add(name, *await _repeated(load), limit)
    for name, user, limit in (
        ("read 1 KiB, sequential, singly", singly, single_limit),
        ("read 1 KiB, sequential, batched", client, batch_limit),
    ):
        async with await user.open_ledger(handle.ledger_id) as reader:
            add(name, *await _repeated(lambda: sequential_load(reader)), limit)
    await client.delete_ledger(handle.ledger_id)
    return rows


def _into_arrow(uri: str) -> list[Row]:
    """As an executor of Spark does it, with the schema and the options of the source, but without Spark."""
    entries = 20_000 if QUICK else 100_000
    options = parse_options({"gateways": uri})
    rates, costs, limits = [], [], []
    with clients.use(options.gateways, options.client_settings) as client:
        with client.create_ledger(*ONE) as handle:
            handle.append_all(b"y" * 1024 for _ in range(entries))
        ledger_id = handle.ledger_id
        reader = EntriesReader(replace(options, ledger_ids=(ledger_id.low,)))
        for _ in range(PAIRS + 1):
            began, began_cpu = time.perf_counter(), time.process_time()
            rows = sum(batch.num_rows for task in reader.partitions() for batch in reader.read(task))
            costs.append((time.process_time() - began_cpu) / rows * 1e6)
            rates.append(rows / (time.perf_counter() - began))
            limits.append(1e6 / costs[-1])
        client.delete_ledger(ledger_id)
    name = "read 1 KiB batched into Arrow"
    return [
        figures(name, "entries/s", rates[1:], limits[1:], "of a core for itself"),
        figures(f"{name}: client CPU", "µs an entry", costs[1:], [1e6 / r for r in rates[1:]], "wall clock", up=False),
    ]


async def _tail(client: BookKeeper) -> Row:
    """From the call of append to the delivery by another handle's tail, at a thousand entries a second."""
    entries = 500 if QUICK else 3000
    ours, acknowledged = [], []
    for _ in range(PAIRS):
        writer = await client.create_ledger(*THREE)
        reader = await client.open_ledger(writer.ledger_id)
        starts: list[float] = []
        delivered, appended = LatencyHistogram(), LatencyHistogram()

        async def follow() -> None:
            async for entry in reader.tail(0):  # noqa: B023
                delivered.record(time.perf_counter() - starts[entry.entry_id])  # noqa: B023

        following = asyncio.create_task(follow())
        for _ in range(entries):
            began = time.perf_counter()
            starts.append(began)
            await writer.append(b"z" * 100)
            appended.record(time.perf_counter() - began)
            await asyncio.sleep(max(0.0, began + 0.001 - time.perf_counter()))
        await writer.close()
        await following
        await reader.close()
        await client.delete_ledger(writer.ledger_id)
        ours.append(delivered.quantile(0.5))
        acknowledged.append(appended.quantile(0.5))
    return figures("tail: append to delivery, p50", "ms", ours, acknowledged, "the append itself", up=False)


async def _recovery(client: BookKeeper, uri: str) -> Row:
    """A ledger of 10,000 entries none of which is known to be confirmed, beside reading them once."""
    entries, ours, reads = 10_000, [], []
    for _ in range(PAIRS):
        ledger_id = await _abandoned(uri, entries)
        began = time.perf_counter()
        reader = await client.open_ledger(ledger_id, recovery=True)
        ours.append(time.perf_counter() - began)
        assert reader.last_add_confirmed == entries - 1
        reads.append((await sequential_load(reader)).seconds)
        await reader.close()
        await client.delete_ledger(ledger_id)
    return figures("recovery of 10,000 unsealed entries of 100 B", "s", ours, reads, "reading them", up=False)


async def _abandoned(uri: str, entries: int) -> LedgerId:
    """All packets leave before the first acknowledgement, so each says that nothing is confirmed."""
    config = ClientConfig(max_in_flight_entries=entries)
    async with await BookKeeper.connect(uri, config) as other:
        handle = await other.create_ledger(*THREE)
        await asyncio.gather(*[handle.append_nowait(b"r" * 100) for _ in range(entries)])
        return handle.ledger_id


async def _run(cluster: StandaloneCluster) -> list[Row]:
    uri = cluster.gateway_uri
    ports = {f"bookie-{number}": int(address.rpartition(":")[2]) for number, address in enumerate(cluster.bookies, 1)}
    async with (
        await BookKeeper.connect(uri) as client,
        await BookKeeper.connect(uri, ClientConfig(batch_reads=False)) as singly,
    ):
        return [
            *await _writes(client, ports["bookie-1"]),
            *await _reads(client, singly, ports),
            *await asyncio.to_thread(_into_arrow, uri),
            await _tail(client),
            await _recovery(client, uri),
        ]


def main() -> None:
    with ExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="bookgate-bench-", dir=".")))
        cluster = stack.enter_context(StandaloneCluster(directory))
        rows = run_async(_run(cluster))
    report("client", rows)


if __name__ == "__main__":
    main()
