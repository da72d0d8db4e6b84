"""Many store calls concurrently, up to a limit."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from itertools import chain, islice
from typing import TypeVar

Item = TypeVar("Item")
Result = TypeVar("Result")

DEFAULT_PARALLEL = 64


async def map_unordered(
    call: Callable[[Item], Awaitable[Result]], items: Iterable[Item], parallel: int = DEFAULT_PARALLEL
) -> AsyncIterator[Result]:
    """Yields results as they arrive, with at most `parallel` calls running. The first failure cancels the others and is
    raised.

    A consumer that does not take results delays the calls: at most twice `parallel` results are held.
    """
    waiting = iter(items)
    results: deque[Result] = deque()
    news, room = asyncio.Event(), asyncio.Event()
    room.set()

    async def work(first: Item) -> None:
        # Each worker makes one call after the other, because a task per call would cost more.
        try:
            for item in chain((first,), waiting):
                results.append(await call(item))
                news.set()
                if len(results) >= parallel:
                    room.clear()
                    await room.wait()
        finally:
            news.set()

    workers = [asyncio.ensure_future(work(item)) for item in islice(waiting, parallel)]
    running = set(workers)
    try:
        while running or results:
            while results:
                yield results.popleft()
            room.set()
            ended = {worker for worker in running if worker.done()}
            running -= ended
            for worker in ended:
                worker.result()
            if running and not results:
                await news.wait()
                news.clear()
    finally:
        for worker in workers:
            worker.cancel()
        await asyncio.gather(*workers, return_exceptions=True)
