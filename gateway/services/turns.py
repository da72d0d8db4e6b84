"""Fair scheduling of unary calls: few are in progress at a time, and waiting principals take turns.

A call that arrives while few are in progress and none waits begins at once, but only a few in each iteration of the
event loop. Otherwise it waits behind the calls of its own principal, and the principals take turns, one call per
iteration; so only a few calls are processed between two polls of the network. A principal that sends a thousand calls
at once delays only itself. The number of waiting calls of a principal is limited; more are rejected. Calls that gRPC
has not accepted yet have no principal.
"""

from __future__ import annotations

import asyncio
from collections import Counter

from bookgate.gateway.services.caller import OverLimitException
from bookgate.runtime.security.principal import Principal
from bookgate.runtime.security.rate_limits import FairQueue

_UNDER_WAY = 64
_BEGUN_A_PASS = 4
"""Calls begun in one iteration while none waits: few enough that arriving calls wait about a millisecond."""

_LOOKED_AT = 3
"""Calls begun, in however many iterations, before the end of an iteration is waited for: a callback for each call would
cost as much as all else here, and an iteration of its own."""

_WAITING = 10_000
_RETRY_SECONDS = 1.0


class Turns:
    """See the module. One per gateway, on one event loop."""

    def __init__(self, under_way: int = _UNDER_WAY, waiting: int = _WAITING) -> None:
        """`waiting` limits the waiting calls of one principal."""
        self._free = under_way
        self._most_waiting = waiting
        self._queue: FairQueue[asyncio.Future[None]] = FairQueue()
        self._waiting: Counter[Principal] = Counter()
        self._begun = 0
        """Calls begun since the last end of an iteration that was looked at: at least those of this iteration."""
        self._pass_ends = False
        """Whether a callback for the end of this iteration is scheduled."""

    @property
    def waiting(self) -> int:
        """Calls that wait for their turn."""
        return len(self._queue)

    def enter_at_once(self) -> bool:
        """Whether the call begins now; the caller must then call `leave` at its end, otherwise `wait` now."""
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
        """Returns when it is this call's turn; the caller must call `leave` at its end. Raises OverLimitException."""
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
                # It already had its turn, which goes to another call now.
                self.leave()
            raise
        finally:
            self._waiting[principal] -= 1
            if not self._waiting[principal]:
                del self._waiting[principal]

    def _begin(self) -> None:
        self._free -= 1
        self._begun += 1
        if self._begun >= _LOOKED_AT:
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
                break
        if self._free > 0 and self._queue:
            self._look_in_next_pass()
