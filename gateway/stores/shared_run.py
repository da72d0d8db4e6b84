"""A run of something that all who want it at about the same time share.

A caller is served only by a run that began after its call: what a run finds out is no older than the call.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable


class SharedRun:
    """See the module. Belongs to one event loop."""

    def __init__(self, run: Callable[[], Awaitable[None]]) -> None:
        self._run = run
        self._running: asyncio.Task[None] | None = None
        self._next: asyncio.Task[None] | None = None

    async def wait(self) -> None:
        """Returns after a run that begins now or, if one is under way, after that. Raises what the run raises."""
        if self._next is None:
            self._next = asyncio.get_running_loop().create_task(self._begin(self._running))
            self._next.add_done_callback(_nobody_may_wait)
        # Other callers wait for it too, so a cancelled caller must not cancel it.
        await asyncio.shield(self._next)

    async def _begin(self, before: asyncio.Task[None] | None) -> None:
        if before is not None:
            await asyncio.wait([before])
        self._running, self._next = self._next, None
        try:
            await self._run()
        finally:
            if self._next is None:
                self._running = None


def _nobody_may_wait(task: asyncio.Task[None]) -> None:
    """Retrieves the exception of a task whose callers have all gone, so that asyncio does not report it."""
    if not task.cancelled():
        task.exception()
