"""Auto-recovery under measurement, and what it is measured beside: a plain copy, and a writer.

Arguments: the metadata URI. It runs in a process of its own, with the parts of `bookgate autorecovery start`, so that
its CPU is that of the worker alone. Calls to the metadata store are counted.
"""

from __future__ import annotations

import asyncio
import random
import sys
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Sized
from contextlib import asynccontextmanager
from types import FrameType
from typing import Any

from benchmarks.load_process import commands, serve_async
from bookgate import BookKeeper, ClientConfig
from bookgate.bookie.replication.audits.auditor import AuditorOptions
from bookgate.bookie.replication.audits.index_keeper import IndexOptions
from bookgate.bookie.replication.auto_recovery import AutoRecovery, AutoRecoveryOptions
from bookgate.bookie.replication.checks.replica_check import ReplicaCheckOptions
from bookgate.bookie.replication.checks.scrub import ScrubOptions
from bookgate.bookie.replication.copies.budget import CopyLimits
from bookgate.bookie.replication.repairs.tools import WorkerTools
from bookgate.bookie.replication.repairs.worker import ReplicationWorker, WorkerOptions
from bookgate.gateway.stores.drivers import create_factory
from bookgate.ledger.ledger_id import LedgerId
from bookgate.ledger.metadata_store import BookieSet, LedgerManagerFactory
from bookgate.runtime.event_loop import run_async
from bookgate.runtime.latency import LatencyHistogram
from bookgate.thinclient.handles.read_handle import ReadHandle

_LEDGER_READS = ("read", "read_many")
_OTHER_CALLS = (
    "mark",
    "read_mark",
    "delete_mark",
    "try_lock",
    "release",
    "is_held",
    "write_ledger",
    "lost_bookie_delay",
    "records",
    "remove_record",
)
_INDEX_SECONDS = IndexOptions().batch_seconds + 2
"""After so long the auditor's index has read anew what had changed; these reads count."""
_TURN_SECONDS = 0.01
"""Between two looks at the statistics; a look costs some microseconds."""


class RepairLoad:
    """The operations; times in seconds."""

    def __init__(self, uri: str) -> None:
        self._uri = uri
        self._calls = Counter[str]()
        self._factory: LedgerManagerFactory | None = None
        self._auto_recovery: AutoRecovery | None = None

    async def repair(self, ledgers: list[int], lost: str, mib_a_second: float, seconds: float = 3600) -> dict[str, Any]:
        """Marks the ledgers and has a worker repair them, all, or for so long; from the first ledger that it takes."""
        factory = await self._store()
        for ledger_id in ledgers:
            await factory.replication_metadata.mark(ledger_id, [lost])
        rng = random.Random(0)
        tools = WorkerTools(factory, ClientConfig(), rng, CopyLimits(mib_a_second * 1024 * 1024))
        worker = ReplicationWorker(factory, tools.repair, WorkerOptions(), rng)
        began_cpu = time.process_time()
        await worker.start()
        await _until(lambda: worker.statistics.in_progress > 0)
        began = time.perf_counter()
        await _until(lambda: worker.statistics.ledgers_repaired >= len(ledgers), seconds)
        ended, ended_cpu = time.perf_counter(), time.process_time()
        done = worker.statistics.ledgers_repaired
        await worker.stop()
        await tools.close()
        return {
            "seconds": ended - began,
            "cpu": ended_cpu - began_cpu,
            "entries": tools.copied.entries,
            "ledgers": done,
        }

    async def copy(self, ledgers: list[int]) -> dict[str, Any]:
        """Reads the ledgers, and appends what they hold to ledgers of one copy."""
        entries = 0
        made: list[LedgerId] = []
        async with await BookKeeper.connect(self._uri) as client:
            began, began_cpu = time.perf_counter(), time.process_time()

            async def payloads(reader: ReadHandle) -> AsyncIterator[bytes | memoryview]:
                nonlocal entries
                async for batch in reader.read_batches(0, reader.last_add_confirmed):
                    for entry in batch:
                        entries += 1
                        yield entry.payload

            async def copy_one(ledger_id: int) -> None:
                async with await client.open_ledger(ledger_id) as reader, await client.create_ledger(1, 1, 1) as writer:
                    await writer.append_all(payloads(reader))
                    made.append(writer.ledger_id)

            await asyncio.gather(*map(copy_one, ledgers))
            ended, ended_cpu = time.perf_counter(), time.process_time()
            await asyncio.gather(*map(client.delete_ledger, made))
        return {"seconds": ended - began, "cpu": ended_cpu - began_cpu, "entries": entries}

    async def write(self, rate: float, seconds: float, size: int) -> dict[str, Any]:
        """Appends at a steady rate; an entry's latency is from when it was due, so that none is left out."""
        latencies, payload = LatencyHistogram(), b"w" * size
        async with await BookKeeper.connect(self._uri) as client, await client.create_ledger(3, 3, 2) as writer:

            async def append(due: float) -> None:
                await writer.append(payload)
                latencies.record(time.perf_counter() - due)

            began = time.perf_counter()
            under_way = []
            for number in range(int(rate * seconds)):
                due = began + number / rate
                await asyncio.sleep(max(0.0, due - time.perf_counter()))
                under_way.append(asyncio.ensure_future(append(due)))
            await asyncio.gather(*under_way)
            await writer.close()
            await client.delete_ledger(writer.ledger_id)
        return {"p50": latencies.quantile(0.5), "p99": latencies.quantile(0.99)}

    async def stand(self) -> bool:
        """Begins auto-recovery with a delay of 0; returns once this process is the auditor, with a complete index."""
        factory = await self._store()
        options = AutoRecoveryOptions(
            AuditorOptions(lost_bookie_delay_seconds=0), check=ReplicaCheckOptions(0), scrub=ScrubOptions(0)
        )
        running = self._auto_recovery = AutoRecovery(factory, "benchmark", options, ClientConfig())
        await running.start()
        statistics = running.auditor.statistics
        await _until(lambda: statistics.roll is not None and statistics.index.ledgers is not None)
        await asyncio.sleep(_INDEX_SECONDS)
        self._calls.clear()
        return True

    async def recovered(self, lost: str, ledgers: int) -> dict[str, Any]:
        """From the end of the bookie's registration until so many ledgers are whole; ends auto-recovery.

        Begin it before the loss.
        """
        factory, running = await self._store(), self._auto_recovery
        assert running is not None
        discovery = factory.service_discovery
        while lost in {each.bookie_id for each in await discovery.bookies(BookieSet.WRITABLE)}:  # noqa: ASYNC110
            await asyncio.sleep(_TURN_SECONDS)
        began, began_cpu = time.perf_counter(), time.process_time()
        await _until(lambda: running.worker.statistics.ledgers_repaired >= ledgers)
        ended, ended_cpu = time.perf_counter(), time.process_time()
        await asyncio.sleep(_INDEX_SECONDS)
        calls = Counter(self._calls)
        await running.stop()
        return {
            "seconds": ended - began,
            "cpu": ended_cpu - began_cpu,
            "entries": running.copied_entries,
            "reads": sum(count for name, count in calls.items() if name.startswith(_LEDGER_READS)),
            "calls": dict(calls),
        }

    async def _store(self) -> LedgerManagerFactory:
        if self._factory is None:
            self._factory = create_factory(self._uri)
            await self._factory.initialize()
            self._count(self._factory.ledger_manager, _LEDGER_READS)
            self._count(self._factory.replication_metadata, _OTHER_CALLS)
        return self._factory

    def _count(self, part: object, names: tuple[str, ...]) -> None:
        """Of calls with several ledgers each ledger counts."""

        def counting(name: str, call: Callable[..., Awaitable[Any]]) -> Callable[..., Awaitable[Any]]:
            def counted(*arguments: Any, **named: Any) -> Awaitable[Any]:
                several = name == "read_many" and isinstance(arguments[0], Sized)
                kind = f"{name} by {_caller()}" if name in _LEDGER_READS else name
                self._calls[kind] += len(arguments[0]) if several else 1
                return call(*arguments, **named)

            return counted

        for name in names:
            setattr(part, name, counting(name, getattr(part, name)))

    async def close(self) -> None:
        if self._factory is not None:
            await self._factory.close()


def _caller() -> str:
    """The module that reads ledgers, so that it shows what for."""
    frame: FrameType | None = sys._getframe(2)
    while frame is not None and frame.f_globals["__name__"].endswith("ledger_pages"):
        frame = frame.f_back
    return "" if frame is None else str(frame.f_globals["__name__"]).rpartition(".")[2]


async def _until(reached: Callable[[], bool], seconds: float = 3600) -> None:
    """Returns when it is, or after so many seconds."""
    began = time.perf_counter()
    while not reached() and time.perf_counter() - began < seconds:  # noqa: ASYNC110 - statistics have no event
        await asyncio.sleep(_TURN_SECONDS)


@asynccontextmanager
async def _open(uri: str) -> AsyncIterator[RepairLoad]:
    load = RepairLoad(uri)
    try:
        yield load
    finally:
        await load.close()


async def main() -> None:
    loop = asyncio.get_running_loop()
    async with _open(sys.argv[1]) as load:
        await serve_async(load, lambda: loop.run_in_executor(None, commands))


if __name__ == "__main__":
    run_async(main())
