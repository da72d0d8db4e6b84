"""Whose turn it is: unary calls under way are few, and principals that wait take turns.

A call that comes while few are under way, and nobody waits, begins at once, a few in each pass of the event loop.
Otherwise it waits behind those of its own principal, and the principals take turns, one call a pass: between two looks
at what has come from the network there is the work of a few calls. One that sends a thousand calls at a time waits for
itself. A principal may have so many waiting; more are refused. What gRPC has not accepted yet has no principal.
"""

from __future__ import annotations

import asyncio
from collections import Counter

from bookgate.gateway.services.caller import OverLimitException
from bookgate.runtime.security.principal import Principal
from bookgate.runtime.security.rate_limits import FairQueue

_UNDER_WAY = 64
_BEGUN_A_PASS = 4
"""While nobody waits: of so many what comes in meanwhile waits a millisecond."""

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
        self._begun = 0
        """In this pass of the loop."""
        self._pass_ends = False
        """Whether the end of this pass is on the loop's list."""

    @property
    def waiting(self) -> int:
        """Calls that wait for their turn."""
        return len(self._queue)

    def enter_at_once(self) -> bool:
        """Whether the call begins now; `leave` follows then. Otherwise `wait` is for it."""
        if self._free <= 0 or self._waiting or self._begun >= _BEGUN_A_PASS:
            return False
        self._begin()
        return True

    def leave(self) -> None:
        """A call has ended: another may begin."""
        self._free += 1
        if self._waiting:
            self._look_in_next_pass()

    async def wait(self, principal: Principal) -> None:
        """Returns when it is this call's turn; `leave` follows. Raises OverLimitException."""
        if self._waiting[principal] >= self._most_waiting:
            raise OverLimitException(f"{self._most_waiting} calls of {principal} wait here, its limit", _RETRY_SECONDS)
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting[principal] += 1
        self._queue.put(principal, turn)
        self._look_in_next_pass()
        try:
            await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():
                # It had got its turn already, which is another's now.
                self.leave()
            raise
        finally:
            self._waiting[principal] -= 1
            if not self._waiting[principal]:
                del self._waiting[principal]

    def _begin(self) -> None:
        self._free -= 1
        self._begun += 1
        self._look_in_next_pass()

    def _look_in_next_pass(self) -> None:
        if not self._pass_ends:
            self._pass_ends = True
            asyncio.get_running_loop().call_soon(self._next_pass)

    def _next_pass(self) -> None:
        self._pass_ends, self._begun = False, 0
        while self._free > 0 and (turn := self._queue.take()) is not None:
            if not turn.done():
                turn.set_result(None)
                self._begin()
                return
