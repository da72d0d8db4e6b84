"""How long an event loop stands still, measured from another thread.

Both beat every few milliseconds. A pause counts the beats of the other thread during which the loop has had none, not
the time on the clock: a machine that is too busy to run this process gives neither of them a beat.
"""

from __future__ import annotations

import asyncio
import sys
import threading
import time
import traceback
from types import TracebackType
from typing import Self

_BEAT_SECONDS = 0.005


class LoopPauses:
    """An asynchronous context manager around what must not hold up the loop it runs on."""

    def __init__(self) -> None:
        self.longest_seconds = 0.0
        self.where = ""
        """Where the loop stood in the longest pause."""
        self._beats = 0
        self._over = threading.Event()
        self._watcher = threading.Thread(target=self._watch, args=(threading.get_ident(),), daemon=True)

    async def __aenter__(self) -> Self:
        self._loop = asyncio.get_running_loop()
        self._beat()
        self._watcher.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._over.set()
        self._timer.cancel()
        self._watcher.join()

    def _beat(self) -> None:
        self._beats += 1
        self._timer = self._loop.call_later(_BEAT_SECONDS / 2, self._beat)

    def _watch(self, loop_thread: int) -> None:
        seen, missed = self._beats, 0
        while not self._over.is_set():
            time.sleep(_BEAT_SECONDS)
            missed = missed + 1 if self._beats == seen else 0
            seen = self._beats
            if missed * _BEAT_SECONDS > self.longest_seconds:
                self.longest_seconds = missed * _BEAT_SECONDS
                self.where = "".join(traceback.format_stack(sys._current_frames().get(loop_thread), 6))
