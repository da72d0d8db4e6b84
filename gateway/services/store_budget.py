"""How many calls to the metadata store may be under way at once, and how long they take.

A flood of calls starves the heartbeats of the store's session until it expires, and then every watch is to be armed
again. So a single call that finds the budget spent is refused (RESOURCE_EXHAUSTED), and the items of a batch, which
bound themselves, wait; they get at most half of it, lest a batch keep the others out.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from bookgate.ledger.errors import TooManyRequestsException

Observe = Callable[[str, float], None]
"""Told the operation and its seconds."""


class StoreBudget:
    """See the module. One a gateway."""

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
        """One call. Raises TooManyRequestsException when too many are under way."""
        if self._under_way >= self._calls:
            raise TooManyRequestsException(
                f"{self._under_way} calls to the metadata store are under way at this gateway, its limit; try again"
            )
        async with self._counted(operation):
            yield

    @asynccontextmanager
    async def part_of_batch(self, operation: str) -> AsyncIterator[None]:
        """One call of a batch, which waits for its turn."""
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
            self._observe(operation, time.perf_counter() - began)
