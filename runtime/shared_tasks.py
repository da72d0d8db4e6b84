"""Tasks that several callers await, each under `asyncio.shield`: the close of a client, a handle or a writer.

A caller that is cancelled does not end the work, and those that come later share its outcome.

Not its job: work that nobody awaits (`background`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any


def shared_task(work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
    """Begins the work. Its error is that of whoever awaits the task, and nobody's if all callers were cancelled."""
    task = asyncio.get_running_loop().create_task(work)
    task.add_done_callback(has_failed)  # which retrieves the error, so that asyncio does not report it
    return task


def has_failed(task: asyncio.Task[None]) -> bool:
    """Whether the work has ended with an error."""
    return task.done() and not task.cancelled() and task.exception() is not None
