"""Many store calls at once, but not too many."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from typing import TypeVar

Item = TypeVar("Item")
Result = TypeVar("Result")

DEFAULT_PARALLEL = 64


async def map_unordered(
    call: Callable[[Item], Awaitable[Result]], items: Iterable[Item], parallel: int = DEFAULT_PARALLEL
) -> AsyncIterator[Result]:
    """Results as they come, at most `parallel` calls under way. The first failure ends it and cancels the others."""

    async def run(item: Item) -> Result:
        return await call(item)

    waiting = iter(items)
    running: set[asyncio.Task[Result]] = set()
    try:
        while True:
            while len(running) < parallel and (item := next(waiting, _END)) is not _END:
                running.add(asyncio.ensure_future(run(item)))  # type: ignore[arg-type]
            if not running:
                return
            done, running = await asyncio.wait(running, return_when=asyncio.FIRST_COMPLETED)
            results = [task.result() for task in done]
            for result in results:
                yield result
    finally:
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)


_END = object()
