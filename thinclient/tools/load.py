"""Loads for measuring: many appends or reads with a number of them outstanding; the results are rates and latencies.

Used by `bookgate bench` and by the benchmarks, so that both measure the same thing: an append's latency is from the
call to the acknowledgement, a read's from the call to the verified entries.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from bookgate.runtime.latency import LatencyHistogram
from bookgate.thinclient.handles.read_handle import ReadHandle
from bookgate.thinclient.handles.write_handle import WriteHandle

Progress = Callable[[int], None]
"""Called from time to time with the amount done so far."""

Stop = Callable[[], bool]
"""Whether a load must end early, with the results so far."""

_TURN = 128


@dataclass(frozen=True)
class LoadResult:
    """The measurements. `bytes` are payload bytes."""

    entries: int
    bytes: int
    seconds: float
    latencies: LatencyHistogram

    @property
    def entries_per_second(self) -> float:
        return self.entries / self.seconds if self.seconds else 0.0

    def summary(self) -> dict[str, Any]:
        """Rates and latencies, as plain values for programs."""
        rate = self.bytes / 1e6 / self.seconds if self.seconds else 0.0
        return {
            "entries": self.entries,
            "bytes": self.bytes,
            "seconds": round(self.seconds, 3),
            "entries_per_second": round(self.entries_per_second, 1),
            "megabytes_per_second": round(rate, 3),
            **self.latencies.summary(),
        }


class _Appends:
    """Outstanding appends. Acknowledgements arrive in entry order, so each belongs to the oldest start."""

    def __init__(self, handle: WriteHandle, outstanding: int) -> None:
        self._handle = handle
        self._outstanding = outstanding
        self._starts: deque[float] = deque()
        self._room: asyncio.Future[None] | None = None
        self._error: BaseException | None = None
        self.latencies = LatencyHistogram()

    async def append(self, payload: bytes) -> None:
        if len(self._starts) >= self._outstanding:
            await self.wait_below(self._outstanding)
        if self._error is not None:
            raise self._error
        self._starts.append(time.perf_counter())
        self._handle.append_nowait(payload).add_done_callback(self._on_done)

    async def wait_below(self, count: int) -> None:
        while len(self._starts) >= count and self._error is None:
            self._room = asyncio.get_running_loop().create_future()
            await self._room
        if self._error is not None:
            raise self._error

    def _on_done(self, future: asyncio.Future[int]) -> None:
        started = self._starts.popleft()
        self._error = self._error or future.exception()
        self.latencies.record(time.perf_counter() - started)
        if self._room is not None and not self._room.done():
            self._room.set_result(None)


async def write_load(
    handle: WriteHandle,
    payload: bytes,
    *,
    outstanding: int,
    entries: int | None = None,
    seconds: float | None = None,
    progress: Progress | None = None,
    stop: Stop = lambda: False,
) -> LoadResult:
    """Appends `payload`, up to a number of entries or for a number of seconds. Raises the errors of an append."""
    appends = _Appends(handle, outstanding)
    began = time.perf_counter()
    written = 0
    until = float("inf") if seconds is None else began + seconds
    while (entries is None or written < entries) and time.perf_counter() < until and not stop():
        await appends.append(payload)
        written += 1
        if not written % _TURN:
            await asyncio.sleep(0)
            if progress is not None:
                progress(written)
    await appends.wait_below(1)
    elapsed = time.perf_counter() - began
    if progress is not None:
        progress(written)
    return LoadResult(written, written * len(payload), elapsed, appends.latencies)


async def sequential_load(
    handle: ReadHandle,
    *,
    batch: int = 1000,
    entries: int | None = None,
    progress: Progress | None = None,
    stop: Stop = lambda: False,
) -> LoadResult:
    """Reads from the first entry on, in lists of `batch` entries; latencies are those of whole lists."""
    end = handle.last_add_confirmed if entries is None else min(handle.last_add_confirmed, entries - 1)
    latencies = LatencyHistogram()
    began = started = time.perf_counter()
    count = size = 0
    async for found in handle.read_batches(0, end, batch):
        now = time.perf_counter()
        latencies.record(now - started)
        started = now
        count += len(found)
        size += sum(len(entry.payload) for entry in found)
        if progress is not None:
            progress(count)
        if stop():
            break
    return LoadResult(count, size, time.perf_counter() - began, latencies)


async def random_load(
    handle: ReadHandle,
    *,
    outstanding: int,
    entries: int,
    width: int = 1,
    rng: random.Random | None = None,
    progress: Progress | None = None,
    stop: Stop = lambda: False,
) -> LoadResult:
    """Reads ranges of `width` entries at random positions, `outstanding` at a time, until `entries` were read."""
    chance = rng or random.Random()
    latencies = LatencyHistogram()
    last_start = max(0, handle.last_add_confirmed - width + 1)
    left = entries
    count = size = 0

    async def reader() -> None:
        nonlocal left, count, size
        while left > 0 and not stop():
            left -= width
            first = chance.randint(0, last_start)
            started = time.perf_counter()
            async for found in handle.read_batches(first, min(first + width - 1, handle.last_add_confirmed), width):
                count += len(found)
                size += sum(len(entry.payload) for entry in found)
            latencies.record(time.perf_counter() - started)
            if progress is not None:
                progress(count)

    began = time.perf_counter()
    await asyncio.gather(*(reader() for _ in range(outstanding)))
    return LoadResult(count, size, time.perf_counter() - began, latencies)
