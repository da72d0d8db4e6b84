"""Values that take long to determine, refreshed from time to time: callers get the latest known value at once."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Generic, TypeVar

from bookgate.ledger.errors import BKException

T = TypeVar("T")


class Recent(Generic[T]):
    """Calls `find` again when the value is older than `fresh_seconds`, once at a time for any number of callers.

    With `rest`, a value is kept for that many times as long as it took to determine.
    """

    def __init__(
        self,
        find: Callable[[], Awaitable[T]],
        clock: Callable[[], float],
        fresh_seconds: float = 3.0,
        wait_seconds: float = 1.0,
        rest: float = 0.0,
    ) -> None:
        self._find = find
        self._clock = clock
        self._fresh_seconds = fresh_seconds
        self._wait_seconds = wait_seconds
        self._rest = rest
        self._took = 0.0
        self._known: T | None = None
        self._found_at: float | None = None
        self._task: asyncio.Task[None] | None = None

    async def get(self) -> T | None:
        """The latest known value, None before there is one. A failed refresh keeps the old value."""
        if self._task is None and not self._is_fresh():
            self._task = asyncio.get_running_loop().create_task(self._look())
        if self._task is not None:
            await asyncio.wait([self._task], timeout=self._wait_seconds)
        return self._known

    async def close(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])

    def _is_fresh(self) -> bool:
        fresh = max(self._fresh_seconds, self._rest * self._took)
        return self._found_at is not None and self._clock() - self._found_at < fresh

    async def _look(self) -> None:
        began = self._clock()
        try:
            with suppress(BKException):
                self._known = await self._find()
        finally:
            self._found_at = self._clock()
            self._took = self._found_at - began
            self._task = None
