"""A task that the auditor in office runs besides its audits: allowed with the office, cancelled without it.

A task runs in turns (`_turn`). A turn returns the seconds until the next one, ten minutes at most, or that it was not
complete: then, and after a failure of the store, the next one follows after a pause that doubles each time. An operator
may request a turn meanwhile (`_is_ordered`), which is checked every few seconds. A turn must be correct even if it is
cancelled at any point (R12). Source: docs/protocol/auto-recovery.md#auditor.

Not its job: which process is in office (`auditor`).
"""

from __future__ import annotations

import asyncio
import logging
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Collection, Mapping
from contextlib import suppress

from bookgate.bookie.replication.copies.bookies import Bookies
from bookgate.ledger.errors import BKException
from bookgate.ledger.metadata_store import BookieSet, LedgerManagerFactory, Membership, RegisteredBookie
from bookgate.runtime.background import keep_running
from bookgate.runtime.clock import now_ms
from bookgate.runtime.logs import log_event

_log = logging.getLogger(__name__)

_LONGEST_SLEEP_SECONDS = 600.0
"""Longest seconds between two turns: the clock, or the time in the store, may change meanwhile."""
_ORDERS_SEEN_SECONDS = 5.0
"""Longest seconds until a request is noticed."""


class OfficeTask(ABC):
    """See the module. Call `allow` when the process enters office, `stop` before the connections are closed."""

    name: str
    """The name of the task for people."""

    def __init__(
        self,
        factory: LedgerManagerFactory,
        bookies: Bookies,
        membership: Membership | None,
        first_pause_seconds: float,
        longest_pause_seconds: float,
    ) -> None:
        """`membership` is the cluster to which the process belongs, if known. A longest pause of 0 turns the task
        off.
        """
        self._factory = factory
        self._metadata = factory.replication_metadata
        self._bookies = bookies
        self._membership = membership
        self._first_pause = first_pause_seconds
        self._longest_pause = longest_pause_seconds
        self._task: asyncio.Task[None] | None = None

    def allow(self, allowed: bool) -> None:
        """Sets whether the process may act as the auditor; if not, the current turn is cancelled at once."""
        if not allowed:
            if self._task is not None:
                self._task.cancel()
            self._task = None
            self._out_of_office()
        elif self._task is None and self._longest_pause > 0:
            self._task = keep_running(self.name, self._run)

    async def stop(self) -> None:
        """Ends the task for good."""
        task = self._task
        self.allow(False)
        if task is not None:
            await asyncio.gather(task, return_exceptions=True)

    async def _run(self) -> None:
        pause = self._first_pause
        while True:
            seconds = None
            try:
                seconds = await self._turn()
            except (BKException, TimeoutError) as error:
                log_event(_log, "auditor_task", logging.WARNING, task=self.name, state="postponed", error=error)
            if seconds is None:
                seconds, pause = pause, min(2 * pause, self._longest_pause)
            else:
                seconds, pause = min(seconds, _LONGEST_SLEEP_SECONDS), self._first_pause
            await self._sleep(seconds)

    async def _sleep(self, seconds: float) -> None:
        """Sleeps until then, or until a turn is requested."""
        until = loop_time() + seconds
        while (left := until - loop_time()) > _ORDERS_SEEN_SECONDS:
            await asyncio.sleep(_ORDERS_SEEN_SECONDS)
            with suppress(BKException, TimeoutError):
                if await self._is_ordered():
                    return
        await asyncio.sleep(left)

    async def _is_ordered(self) -> bool:
        """Whether an operator has requested a turn since the last one began. Raises BKException."""
        return False

    async def _present(self) -> Mapping[str, RegisteredBookie]:
        """The registered bookies."""
        bookies = await self._factory.service_discovery.bookies(BookieSet.ALL)
        return {each.bookie_id: each for each in bookies if each.registered}

    @abstractmethod
    async def _turn(self) -> float | None:
        """Works, if something is due. Returns the seconds until the next call; None if the turn was not complete.

        Raises BKException or TimeoutError if it failed.
        """

    @abstractmethod
    def _out_of_office(self) -> None:
        """Clears metrics that only the auditor may expose."""


async def due_in_seconds(
    ended_ms: int | None, interval_seconds: float, write: Callable[[int], Awaitable[None]]
) -> float:
    """The seconds until work that ended at this time is due again; 0 if it never ended.

    A time in the future was recorded by a clock that was ahead. It is replaced (`write`) by the current time: treated
    as the current time at each reading, it would delay the work until the clock has reached it.
    """
    if ended_ms is None:
        return 0.0
    if ended_ms > now_ms():
        await write(now_ms())
        return interval_seconds
    return max(0.0, interval_seconds - (now_ms() - ended_ms) / 1000)


def loop_time() -> float:
    """Seconds of the event loop's clock."""
    return asyncio.get_running_loop().time()


def first_few(left: Collection[int]) -> list[int]:
    """The first few ids, for the log."""
    return sorted(left)[:5]
