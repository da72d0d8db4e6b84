"""Tasks that run for as long as their owner lives: none of them ends unseen.

A loop that follows, renews or cleans up is a task that nobody waits for. Were it to end with an error, that would be
told when it is collected as garbage, if ever, and what depends on it would wait for ever. `keep_running` runs it again
instead, after a pause that grows while it keeps failing, says so in the log with the error's trace, and counts it.

States of a task: *running*; *pausing* after a failure; *over*, when its work has returned or it was cancelled. Those
who wait for what the work does wait on: it is done again from its beginning, so work must be able to begin anew.

Not its job: errors that the work foresees, and work whose failure must end its owner (a bookie that can't measure its
disks): that work tells its owner itself.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Callable, Coroutine
from typing import Any

from bookgate.runtime.logs import log_bug

_log = logging.getLogger(__name__)

_FIRST_PAUSE, _LONGEST_PAUSE = 0.1, 10.0
_SOUND_SECONDS = 60.0
"""Work that ran for so long begins with the shortest pause again."""

RESTARTS: Counter[str] = Counter()
"""How often a task of each name failed in this process."""


def keep_running(name: str, work: Callable[[], Coroutine[Any, Any, None]]) -> asyncio.Task[None]:
    """Runs `work` in a task of its own, again and again while it fails.

    Args:
        name: What it does, for the log and the metric; the same for all tasks of a kind.
        work: Called for each run.

    Returns:
        The task: done once the work has returned, or when it was cancelled.
    """
    return asyncio.get_running_loop().create_task(_run(name, work), name=name)


async def _run(name: str, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
    loop = asyncio.get_running_loop()
    pause = _FIRST_PAUSE
    while True:
        began = loop.time()
        try:
            return await work()
        except Exception as error:  # whatever it is: there is nobody else to hear of it
            if loop.time() - began >= _SOUND_SECONDS:
                pause = _FIRST_PAUSE
            RESTARTS[name] += 1
            log_bug(_log, "background_task_failed", error, task=name, pause_seconds=pause)
        await asyncio.sleep(pause)
        pause = min(2 * pause, _LONGEST_PAUSE)
