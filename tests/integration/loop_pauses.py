"""How long an event loop stands still: because something blocks it, or because it computes.

The loop beats every few milliseconds, and another thread looks whether it does. What blocks is counted in looks at
which the thread of the loop has neither gone on nor wants to (the kernel has it asleep); what computes, in CPU time.
So neither grows with the load of the machine, where a thread waits for a core.
"""

from __future__ import annotations

import asyncio
import gc
import sys
import threading
import time
import traceback
from pathlib import Path
from types import TracebackType
from typing import Self

_BEAT_SECONDS = 0.005


class LoopPauses:
    """An asynchronous context manager around what must not hold up the loop it runs on."""

    def __init__(self) -> None:
        self.blocked_seconds = 0.0
        """The longest time for which the loop waited in the middle of a step."""
        self.busy_seconds = 0.0
        """The longest time that it computed between two turns."""
        self.where = ""
        """Where it waited longest."""
        self._beats = 0
        self._beat_at = 0.0
        self._over = threading.Event()
        self._watcher = threading.Thread(
            target=self._watch, args=(threading.get_ident(), threading.get_native_id()), daemon=True
        )

    async def __aenter__(self) -> Self:
        # What the tests before have left is not to be searched for garbage here.
        gc.collect()
        gc.freeze()
        self._loop = asyncio.get_running_loop()
        self._beat_at = time.thread_time()
        self._beat()
        self._watcher.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._over.set()
        self._timer.cancel()
        self._watcher.join()
        gc.unfreeze()

    def _beat(self) -> None:
        now = time.thread_time()
        self.busy_seconds = max(self.busy_seconds, now - self._beat_at)
        self._beat_at = now
        self._beats += 1
        self._timer = self._loop.call_later(_BEAT_SECONDS / 2, self._beat)

    def _watch(self, loop_thread: int, native: int) -> None:
        clock = time.pthread_getcpuclockid(loop_thread)
        state = Path(f"/proc/self/task/{native}/stat")
        before, still = (0, 0.0), 0
        while not self._over.is_set():
            time.sleep(_BEAT_SECONDS)
            seen = self._beats, time.clock_gettime(clock)
            asleep = seen == before and state.read_text().rpartition(")")[2].split()[0] != "R"
            still = still + 1 if asleep else 0
            before = seen
            if still * _BEAT_SECONDS > self.blocked_seconds:
                self.blocked_seconds = still * _BEAT_SECONDS
                self.where = "".join(traceback.format_stack(sys._current_frames().get(loop_thread), 6))
