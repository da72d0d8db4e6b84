"""Many store calls concurrently, up to a limit."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from itertools import chain, islice
from typing import Generic, TypeVar

Item = TypeVar("Item")
Result = TypeVar("Result")

DEFAULT_PARALLEL = 64


def _weightless(result: object) -> int:
    return 0


async def map_unordered(
    call: Callable[[Item], Awaitable[Result]],
    items: Iterable[Item],
    parallel: int = DEFAULT_PARALLEL,
    size_of: Callable[[Result], int] = _weightless,
    most_bytes: int = 0,
) -> AsyncIterator[Result]:
    """Yields results as they arrive, with at most `parallel` calls running. The first failure cancels the others and is
    raised.

    A consumer that does not take results delays the calls: at most twice `parallel` results are held. With `size_of`
    they have at most `most_bytes` together; a single result may have more. A result that turns out too large for what
    is held beside it is dropped, and its call repeated once there is room.
    """
    waiting = iter(items)
    held = _Held[Result](parallel, most_bytes)

    async def put(item: Item, expected: int) -> int:
        """Puts the item's result among those held; returns its size."""
        while True:
            await held.room_for(expected)
            result = await call(item)
            size = size_of(result)
            if held.put(result, size, expected):
                return size
            del result
            expected = size

    async def work(first: Item) -> None:
        # Each worker makes one call after the other, because a task per call would cost more.
        size = 0
        try:
            for item in chain((first,), waiting):
                size = await put(item, size)
        finally:
            held.news.set()

    workers = [asyncio.ensure_future(work(item)) for item in islice(waiting, parallel)]
    running = set(workers)
    try:
        while running or held:
            while held:
                yield held.take()
            held.room.set()
            ended = {worker for worker in running if worker.done()}
            running -= ended
            for worker in ended:
                worker.result()
            if running and not held:
                await held.news.wait()
                held.news.clear()
    finally:
        for worker in workers:
            worker.cancel()
        await asyncio.gather(*workers, return_exceptions=True)


class _Held(Generic[Result]):
    """The results that the consumer has not taken yet, and the room for those to come.

    A result's size is known only with the result. Each worker therefore reserves as much as its last one had.
    """

    def __init__(self, most: int, most_bytes: int) -> None:
        self._most = most
        self._most_bytes = most_bytes
        self._results: deque[tuple[Result, int]] = deque()
        self._bytes = 0
        """Of the results, and reserved for running calls."""
        self.news, self.room = asyncio.Event(), asyncio.Event()

    def __len__(self) -> int:
        return len(self._results)

    async def room_for(self, expected: int) -> None:
        """Reserves `expected` bytes once there is room. Alone, a result of any size has room."""
        while len(self._results) >= self._most or (self._bytes and self._bytes + expected > self._most_bytes):
            self.room.clear()
            await self.room.wait()
        self._bytes += expected

    def put(self, result: Result, size: int, expected: int) -> bool:
        """Takes a result in, for which `expected` bytes are reserved. False: it is larger, and there is no room."""
        others = self._bytes - expected
        if size > expected and others and others + size > self._most_bytes:
            self._bytes = others
            return False
        self._bytes = others + size
        self._results.append((result, size))
        self.news.set()
        return True

    def take(self) -> Result:
        result, size = self._results.popleft()
        self._bytes -= size
        return result
