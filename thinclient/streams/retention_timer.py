"""Applies a stream's retention from time to time while its writer is open.

One attempt at a time; a failed one is logged, and the next comes at its time. Not its job: what is deleted (`stream`).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable

from bookgate.ledger.errors import BKException, ClientClosedException
from bookgate.runtime.logs import log_bug, log_event

_log = logging.getLogger(__name__)


class RetentionTimer:
    """The timer of one writer."""

    def __init__(self, stream: str, apply: Callable[[], Awaitable[int]], interval_seconds: float) -> None:
        self._stream = stream
        self._apply = apply
        self._interval = interval_seconds
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None
        self._attempt: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Begins to wait for the next time."""
        self._timer = self._loop.call_later(self._interval, self._begin)

    def stop(self) -> None:
        """Ends it for good."""
        if self._timer is not None:
            self._timer.cancel()
        if self._attempt is not None:
            self._attempt.cancel()

    def _begin(self) -> None:
        self._attempt = self._loop.create_task(self._run())

    async def _run(self) -> None:
        try:
            await self._apply()
        except ClientClosedException:
            return
        except BKException as error:
            log_event(_log, "stream_retention_failed", logging.WARNING, stream=self._stream, error=error)
        except Exception as error:
            log_bug(_log, "stream_retention", error, state="goes on", stream=self._stream)
        self.start()
