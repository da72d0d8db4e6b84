"""Virtual time for unit tests: an async test with the fixture `virtual_time` runs in a simulated world.

Sockets, timers and clocks are the simulator's: a wait costs nothing, and a busy machine changes nothing. There is one
process on one host, 127.0.0.1. Real I/O is refused; gRPC, TLS and files stay with `pytest.mark.asyncio`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from tests.simulation.world import World

_LOOK_AGAIN_SECONDS = 0.001


class VirtualTime:
    """The world of one test."""

    def __init__(self, name: str) -> None:
        self.world = World(name)
        self.world.loop.outside.host = "127.0.0.1"
        self.world.network.host("127.0.0.1")

    def hold_up(self, seconds: float) -> None:
        """The event loop does something else for so long: what falls due meanwhile is late."""
        self.world.loop.hold_up(seconds)

    def take_bugs(self) -> list[BaseException]:
        """Removes and returns the errors that were logged as bugs, or reached the event loop, which fail the test
        otherwise.
        """
        found = [context["exception"] for context in self.world.unhandled]
        self.world.unhandled.clear()
        return found


async def until(condition: Callable[[], bool]) -> None:
    """Waits for what has no event of its own, 10 virtual seconds at most."""
    async with asyncio.timeout(10):
        while not condition():  # noqa: ASYNC110
            await asyncio.sleep(_LOOK_AGAIN_SECONDS)
