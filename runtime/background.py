"""Background tasks that live as long as their owner and never fail unnoticed.

A loop that follows, renews or cleans up runs in a task that nobody awaits. If it ended with an error, Python would
report that when the task is garbage collected, if ever, and everything that depends on the loop would wait for ever.
`keep_running` instead restarts it after a pause that grows with repeated failures, logs the error with its traceback,
and counts it.

States of a task: *running*; *pausing* after a failure; *over*, when its work has returned or it was cancelled. Code
that waits for the work's result keeps waiting during a restart. The work is repeated from its beginning, so it must be
restartable.

Not its job: errors that the work expects, and work whose failure must end its owner (a bookie that can't measure its
disks); such work notifies its owner itself.
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
"""Work that ran at least this long before it failed is restarted after the shortest pause again."""

RESTARTS: Counter[str] = Counter()
"""Number of failures in this process, by task name."""


def keep_running(name: str, work: Callable[[], Coroutine[Any, Any, None]]) -> asyncio.Task[None]:
    """Runs `work` in its own task and restarts it after each failure.

    Args:
        name: What the work does, for log and metric; the same for all tasks of a kind.
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
        except Exception as error:  # any error at all: nobody else would report it
            if loop.time() - began >= _SOUND_SECONDS:
                pause = _FIRST_PAUSE
            RESTARTS[name] += 1
            log_bug(_log, "background_task_failed", error, task=name, pause_seconds=pause)
        await asyncio.sleep(pause)
        pause = min(2 * pause, _LONGEST_PAUSE)
