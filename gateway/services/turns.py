"""Whose turn it is: unary calls under way are few, and principals that wait take turns.

A call that comes while few are under way begins at once. Otherwise it waits behind those of its own principal, and the
principals take turns: one that sends a thousand calls at a time waits for itself, and another's call waits for one call
of each other principal at most. A principal may have so many waiting; more are refused.
"""

from __future__ import annotations

import asyncio
from collections import Counter

from bookgate.gateway.services.caller import OverLimitException
from bookgate.runtime.security.principal import Principal
from bookgate.runtime.security.rate_limits import FairQueue

_UNDER_WAY = 64
_WAITING = 10_000
_RETRY_SECONDS = 1.0


class Turns:
    """See the module. One per gateway, on one event loop."""

    def __init__(self, under_way: int = _UNDER_WAY, waiting: int = _WAITING) -> None:
        """`waiting`: of one principal."""
        self._free = under_way
        self._most_waiting = waiting
        self._queue: FairQueue[asyncio.Future[None]] = FairQueue()
        self._waiting: Counter[Principal] = Counter()

    @property
    def waiting(self) -> int:
        """Calls that wait for their turn."""
        return len(self._queue)

    def enter_at_once(self) -> bool:
        """Whether the call begins now; `leave` follows then. Otherwise `wait` is for it."""
        if self._free <= 0:
            return False
        self._free -= 1
        return True

    def leave(self) -> None:
        """A call has ended: the next one begins."""
        if self._waiting:
            self._pass_on()
        else:
            self._free += 1

    async def wait(self, principal: Principal) -> None:
        """Returns when it is this call's turn; `leave` follows. Raises OverLimitException."""
        if self._waiting[principal] >= self._most_waiting:
            raise OverLimitException(f"{self._most_waiting} calls of {principal} wait here, its limit", _RETRY_SECONDS)
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting[principal] += 1
        self._queue.put(principal, turn)
        try:
            await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():
                # It had got its turn already, which is another's now.
                self._pass_on()
            raise
        finally:
            self._waiting[principal] -= 1
            if not self._waiting[principal]:
                del self._waiting[principal]

    def _pass_on(self) -> None:
        while (turn := self._queue.take()) is not None:
            if not turn.done():
                turn.set_result(None)
                return
        self._free += 1
