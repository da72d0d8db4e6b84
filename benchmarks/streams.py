"""Streams beside ledgers of records on a cluster of this machine: `make bench-streams`.

Appends: rate and the client's CPU a record, beside a ledger of records, batched the same way. Beginning to write, and
finding a time, in a long stream; beside them a bare take-over, and opening a ledger and reading its last entry. Tails:
readers of many streams; the time from an append to its delivery, beside the time to its acknowledgement.
"""

from __future__ import annotations

import asyncio
import tempfile
import time
from collections.abc import Awaitable, Callable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from statistics import quantiles

from benchmarks.harness import PAIRS, QUICK, Row, figures, measured, report
from bookgate import BookKeeper, LedgerOptions
from bookgate.bookie.standalone.cluster import StandaloneCluster
from bookgate.runtime.event_loop import run_async
from bookgate.streams import Stream, Streams, StreamWriter

_RECORDS = 50_000 if QUICK else 300_000
_RECORD = b"x" * 100
_LONG = 2_000 if QUICK else 20_000
"""Entries of the long stream."""
_STREAMS, _READERS = (10, 3) if QUICK else (100, 10)
_ROUNDS = 10 if QUICK else 20
_OPTIONS = LedgerOptions(3, 3, 2)


async def appends(client: BookKeeper) -> list[Row]:
    """Rate, and CPU of the client."""
    streams = Streams(client, scope_id=77)

    async def to_stream(number: int) -> tuple[float, float]:
        stream = await streams.create(f"appends {number}", _OPTIONS)
        async with stream.writer() as writer:
            return await _timed(lambda: writer.append_all(_RECORD for _ in range(_RECORDS)))

    async def to_ledger(_: int) -> tuple[float, float]:
        async with await client.create_record_ledger(_OPTIONS) as writer:

            async def append_all() -> None:
                for number in range(_RECORDS):
                    writer.append_nowait(_RECORD)
                    if number % 5_000 == 0:
                        await writer.flush()
                await writer.flush()

            return await _timed(append_all)

    ours, peer = [], []
    for number in range(PAIRS + 1):
        pair = await to_stream(number), await to_ledger(number)
        if number:  # the first one warms up
            ours.append(pair[0])
            peer.append(pair[1])
    names = (("", "records/s", True), (", CPU of the client", "µs", False))
    return [
        measured(
            figures(
                f"append records of 100 B{name}",
                unit,
                [each[index] for each in ours],
                [each[index] for each in peer],
                "ledger of records",
                up=up,
            )
        )
        for index, (name, unit, up) in enumerate(names)
    ]


async def _timed(work: Callable[[], Awaitable[object]]) -> tuple[float, float]:
    """Records a second, and the client's CPU a record in microseconds."""
    cpu, began = time.process_time(), time.perf_counter()
    await work()
    return _RECORDS / (time.perf_counter() - began), (time.process_time() - cpu) * 1e6 / _RECORDS


async def long_stream(client: BookKeeper) -> list[Row]:
    """Seconds to begin to write, and to find a time."""
    stream = await Streams(client, scope_id=77).create("long", _OPTIONS)
    async with stream.writer(batch_bytes=1) as writer:
        await writer.append_all(b"entry" for _ in range(_LONG))
    when = datetime.now(UTC)
    begun, taken, found, opened = [], [], [], []
    for _ in range(PAIRS):
        begun.append(await _seconds(lambda: _begun(stream)))
        taken.append(await _seconds(lambda: _taken(client, stream)))
        found.append(await _seconds(lambda: stream.position_of(when)))
        opened.append(await _seconds(lambda: _opened(client, stream)))
    name = f"of {_LONG:,} entries"
    return [
        measured(figures(f"begin to write to a stream {name}", "s", begun, taken, "take-over", up=False)),
        measured(figures(f"find a time in a stream {name}", "s", found, opened, "its last entry", up=False)),
    ]


async def _begun(stream: Stream) -> None:
    await (await stream.writer()).close()


async def _taken(client: BookKeeper, stream: Stream) -> None:
    await (await client.take_over(stream.ledger_id)).release()


async def _opened(client: BookKeeper, stream: Stream) -> None:
    async with client.open_ledger(stream.ledger_id) as reader:
        await reader.read_last_entry()


async def _seconds(work: Callable[[], Awaitable[object]]) -> float:
    began = time.perf_counter()
    await work()
    return time.perf_counter() - began


async def tails(client: BookKeeper) -> Row:
    """The 99th percentile of the time to delivery, beside that to the acknowledgement."""
    streams = Streams(client, scope_id=78)
    opened = [await streams.create(f"tail {number}", _OPTIONS) for number in range(_STREAMS)]
    writers = await asyncio.gather(*[stream.writer(linger_seconds=0.0) for stream in opened])
    delivered: list[float] = []
    # Readers follow before time counts: to open them all takes seconds.
    follow = asyncio.Semaphore(0)
    readers = [asyncio.create_task(_follow(stream, delivered, follow)) for stream in opened for _ in range(_READERS)]
    await asyncio.gather(*[writer.append(_RECORD) for writer in writers])
    for _ in readers:
        await follow.acquire()
    acknowledged: list[float] = []
    for _ in range(_ROUNDS):
        await asyncio.gather(*[_append(writer, acknowledged) for writer in writers])
    await asyncio.wait(readers, timeout=60)
    for reader in readers:
        reader.cancel()
    for writer in writers:
        await writer.close()
    name = f"p99 from append to delivery, {_STREAMS} streams with {_READERS} readers each"
    ours, peer = (quantiles(each, n=100)[-1] * 1000 for each in (delivered, acknowledged))
    return measured(figures(name, "ms", [ours], [peer], "to acknowledgement", up=False))


async def _append(writer: StreamWriter, acknowledged: list[float]) -> None:
    began = time.perf_counter()
    await writer.append(b"%f" % began)
    acknowledged.append(time.perf_counter() - began)


async def _follow(stream: Stream, delivered: list[float], follow: asyncio.Semaphore) -> None:
    """The first record tells that it follows."""
    async with stream.reader() as reader:
        count = 0
        async for record in reader.records():
            if count == 0:
                follow.release()
            else:
                delivered.append(time.perf_counter() - float(record.payload))
            count += 1
            if count > _ROUNDS:
                return


async def run() -> Sequence[Row]:
    rows: list[Row] = []
    with tempfile.TemporaryDirectory() as directory, StandaloneCluster(Path(directory), bookies=3) as cluster:
        async with BookKeeper.connect(cluster.gateway_uri) as client:
            rows += await appends(client)
            rows += await long_stream(client)
            rows.append(await tails(client))
    return rows


def main() -> None:
    report("streams", run_async(run()))


if __name__ == "__main__":
    main()
