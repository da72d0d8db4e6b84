"""Limits the outstanding adds of a writer, and so the memory of a ledger.

It counts entries and bytes twice. *In flight* are entries whose result the application does not have yet; the
configured limits apply to them. *Retained* are entries to which some bookie has neither responded nor failed. An
acknowledged entry can still be retained because of a slow bookie, so these are limited too, to twice the configured
limits: that is how far a writer gets ahead of its slowest bookie. One entry larger than the byte limit is admitted when
no other is outstanding.

Capacity is granted in the order of the requests, and taken in that order: who is granted it continues in a later turn
of the event loop, and until then nobody else may enter, since an entry's id is assigned right after it has entered.
"""

from __future__ import annotations

import asyncio
import heapq
import itertools
from collections import deque
from collections.abc import Callable

from bookgate.ledger.errors import BKException

_RETAINED_FACTOR = 2


class InFlightWindow:
    """Counts and limits the adds of one ledger. Sizes are payload bytes."""

    def __init__(self, max_entries: int, max_bytes: int) -> None:
        self._max_entries = max_entries
        self._max_bytes = max_bytes
        self.entries = 0
        self.bytes = 0
        self.retained_entries = 0
        self.retained_bytes = 0
        self._waiters: deque[tuple[int, asyncio.Future[None]]] = deque()
        self._waiting = 0
        """Callers that wait, or were granted capacity and have not continued yet."""
        self._idle: asyncio.Future[None] | None = None

    def try_enter(self, size: int) -> bool:
        """Takes capacity for an entry if there is enough and nobody waits."""
        if self._waiting or not self._fits(size):
            return False
        self.enter(size)
        return True

    def enter(self, size: int) -> None:
        """Counts an entry, whether or not there is capacity."""
        self.entries += 1
        self.bytes += size
        self.retained_entries += 1
        self.retained_bytes += size

    async def wait_to_enter(self, size: int) -> None:
        """Waits for capacity and takes it. Raises the error passed to `fail`."""
        if self.try_enter(size):
            return
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiters.append((size, waiter))
        await self._turn(waiter, size)

    async def _turn(self, waiter: asyncio.Future[None], size: int) -> None:
        """Waits; capacity granted at the same time as a cancellation is returned."""
        self._waiting += 1
        try:
            await waiter
        except asyncio.CancelledError:
            if waiter.done() and not waiter.cancelled() and waiter.exception() is None:
                self.leave(1, size)
                self.release(size)
            raise
        finally:
            self._waiting -= 1
            if self._waiters:
                self._hand_out()  # some may wait for this turn only, not for capacity

    def leave(self, count: int, size: int) -> None:
        """Entries were acknowledged or failed."""
        self.entries -= count
        self.bytes -= size
        assert self.entries >= 0 <= self.bytes, "each entry leaves the window once"
        if self._waiters:
            self._hand_out()
        if self._idle is not None and not self.entries and not self._idle.done():
            self._idle.set_result(None)

    async def wait_until_idle(self) -> None:
        """Waits until nothing is in flight, including granted capacity. For one caller, once."""
        if self.entries:
            self._idle = asyncio.get_running_loop().create_future()
            await self._idle

    def retain(self, size: int) -> None:
        """An entry that was released is sent to a bookie again."""
        self.retained_entries += 1
        self.retained_bytes += size

    def release(self, size: int, count: int = 1) -> None:
        """Entries are no longer retained."""
        self.retained_entries -= count
        self.retained_bytes -= size
        assert self.retained_entries >= 0 <= self.retained_bytes, "each entry is released once"
        if self._waiters:
            self._hand_out()

    def fail(self, error: BKException) -> None:
        """Ends all waits with an error."""
        waiters, self._waiters = self._waiters, deque()
        for _, waiter in waiters:
            if not waiter.done():
                waiter.set_exception(error)

    def _fits(self, size: int) -> bool:
        if self.entries >= self._max_entries or self.retained_entries >= self._max_entries * _RETAINED_FACTOR:
            return False
        if self.entries and self.bytes + size > self._max_bytes:
            return False
        return not self.retained_entries or self.retained_bytes + size <= self._max_bytes * _RETAINED_FACTOR

    def _hand_out(self) -> None:
        while self._waiters and (self._waiters[0][1].done() or self._fits(self._waiters[0][0])):
            size, waiter = self._waiters.popleft()
            if not waiter.done():
                self.enter(size)
                waiter.set_result(None)


class OrderedWindow(InFlightWindow):
    """Grants capacity to the lowest entry id first, and to the id for which all others wait even beyond the limits."""

    def __init__(self, max_entries: int, max_bytes: int, lowest_missing: Callable[[], int]) -> None:
        super().__init__(max_entries, max_bytes)
        self._lowest_missing = lowest_missing
        self._ordered: list[tuple[int, int, int, asyncio.Future[None]]] = []
        self._turns = itertools.count()

    async def wait_for(self, entry_id: int, size: int) -> None:
        """Like `wait_to_enter`, for the entry with this id."""
        if entry_id == self._lowest_missing() or (not self._ordered and self._fits(size)):
            self.enter(size)
            return
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        heapq.heappush(self._ordered, (entry_id, next(self._turns), size, waiter))
        await self._turn(waiter, size)

    def leave(self, count: int, size: int) -> None:
        """Entries were acknowledged or failed."""
        super().leave(count, size)
        self.hand_out()

    def release(self, size: int, count: int = 1) -> None:
        """Entries are no longer retained."""
        super().release(size, count)
        self.hand_out()

    def fail(self, error: BKException) -> None:
        """Ends all waits with an error."""
        ordered, self._ordered = self._ordered, []
        for *_, waiter in ordered:
            if not waiter.done():
                waiter.set_exception(error)

    def hand_out(self) -> None:
        """Admits waiting entries; must be called when the lowest missing entry has changed."""
        while self._ordered:
            entry_id, _, size, waiter = self._ordered[0]
            if not waiter.done() and entry_id != self._lowest_missing() and not self._fits(size):
                return
            heapq.heappop(self._ordered)
            if not waiter.done():
                self.enter(size)
                waiter.set_result(None)
