"""Limits concurrent calls to the metadata store, and measures their duration.

A flood of calls starves the heartbeats of the store session until it expires, after which every watch must be armed
again. A single call is therefore rejected (RESOURCE_EXHAUSTED) when the budget is used up. Items of a batch wait
instead, since a batch bounds itself; together they get at most half of the budget, so that batches can't exclude other
calls.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from bookgate.ledger.errors import TooManyRequestsException

Observe = Callable[[str, float], None]
"""Receives the name of an operation and its duration in seconds."""


class StoreBudget:
    """The budget; see the module. One per gateway."""

    def __init__(self, calls: int, observe: Observe = lambda operation, seconds: None) -> None:
        self._calls = calls
        self._under_way = 0
        self._for_batches = asyncio.Semaphore(max(1, calls // 2))
        self._observe = observe

    @property
    def under_way(self) -> int:
        return self._under_way

    @asynccontextmanager
    async def call(self, operation: str) -> AsyncIterator[None]:
        """Wraps one call. Raises TooManyRequestsException if too many are in progress."""
        if self._under_way >= self._calls:
            raise TooManyRequestsException(
                f"{self._under_way} calls to the metadata store are under way at this gateway, its limit; try again"
            )
        async with self._counted(operation):
            yield

    @asynccontextmanager
    async def part_of_batch(self, operation: str) -> AsyncIterator[None]:
        """Wraps one call of a batch, which waits for its turn."""
        async with self._for_batches, self._counted(operation):
            yield

    @asynccontextmanager
    async def _counted(self, operation: str) -> AsyncIterator[None]:
        self._under_way += 1
        began = time.perf_counter()
        try:
            yield
        finally:
            self._under_way -= 1
            assert self._under_way >= 0, "an operation ends once"
            self._observe(operation, time.perf_counter() - began)
