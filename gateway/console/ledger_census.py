"""The number of ledgers by state, counted in the background and only while someone looks.

A count reads the metadata of every ledger, so it proceeds in small steps with long pauses, to spare this event loop and
the store. It begins on a request when nothing recent is known, and ends when nobody has asked for a while. Only the
totals are kept.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import aclosing
from typing import Any

from bookgate.gateway.console.paths import CONSOLE
from bookgate.gateway.http.api import Call, NoBody, NoQuery, Route, get
from bookgate.gateway.stores.listed_ledgers import Listed, read_pages
from bookgate.ledger.errors import BKException, NoSuchLedgerExistsOnMetadataServerException
from bookgate.ledger.metadata import LedgerState
from bookgate.ledger.metadata_store import LedgerManager, RawLedgerRecord
from bookgate.runtime.cooperative_yield import giving_way
from bookgate.runtime.logs import log_event

_log = logging.getLogger(__name__)

_STEP = 100
"""Ledgers read at once."""
_REST = 3
"""Times as long as a step takes."""
_FORGET_SECONDS = 30.0
"""Of nobody asking, after which a count ends."""
_FRESH_SECONDS = 60.0
"""So long a result stands at least; one that took long stands ten times as long as it took."""

DAMAGED = "DAMAGED"
"""Stands for a state where the metadata can't be read."""


class LedgerStateCounts:
    """See the module. Of BookKeeper's own ledgers (scope 0)."""

    def __init__(
        self,
        manager: LedgerManager,
        clock: Callable[[], float],
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self._manager = manager
        self._clock = clock
        self._sleep = sleep
        self._asked = 0.0
        self._counts: Counter[str] = Counter()
        self._done: Counter[str] | None = None
        self._done_at = 0.0
        self._took = 0.0
        self._error: str | None = None
        self._task: asyncio.Task[None] | None = None

    def ask(self) -> dict[str, Any]:
        """The last complete count, else the current one. Begins a count if one is due."""
        self._asked = self._clock()
        if self._task is None and self._is_due():
            self._task = asyncio.get_running_loop().create_task(self._run())
            self._task.add_done_callback(self._ended)
        shown = self._counts if self._done is None else self._done
        return {
            "complete": self._done is not None,
            "total": shown.total(),
            "states": {**{state.name: shown[state.name] for state in LedgerState}, DAMAGED: shown[DAMAGED]},
            "ageSeconds": None if self._done is None else round(self._asked - self._done_at, 1),
            "error": self._error,
        }

    async def close(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])

    def _is_due(self) -> bool:
        return self._done is None or self._clock() - self._done_at >= max(_FRESH_SECONDS, 10 * self._took)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._task = None
        if not task.cancelled() and (error := task.exception()) is not None:
            self._error = str(error)
            level = logging.WARNING if isinstance(error, BKException) else logging.ERROR
            log_event(_log, "ledger_count_ended", level, error=error)

    async def _run(self) -> None:
        started = self._clock()
        self._counts = Counter()
        self._error = None
        async with aclosing(self._manager.ledger_ranges()) as runs:  # type: ignore[type-var]
            async for ids in runs:
                for start in range(0, len(ids), _STEP):
                    await self._count(ids[start : start + _STEP])
                    if self._clock() - self._asked > _FORGET_SECONDS:
                        return
        self._done, self._done_at = self._counts, self._clock()
        self._took = self._done_at - started

    async def _count(self, ids: Sequence[int]) -> None:
        begun = self._clock()
        async with aclosing(read_pages(self._manager, 0, ids)) as pages:
            async for page in pages:
                for listed in page:
                    async with giving_way():
                        self._counts.update(_state_of(listed))
        await self._sleep((self._clock() - begun) * _REST)


def census_route(ledger_counts: LedgerStateCounts) -> Route:
    async def counts(_call: Call[NoQuery, NoBody]) -> Any:
        return ledger_counts.ask()

    return get(
        f"{CONSOLE}/ledger_counts",
        "Ledgers by state, counted while somebody asks",
        counts,
        answer={"type": "object", "required": ["complete", "total", "states"]},
    )


def _state_of(listed: Listed) -> Iterator[str]:
    """None for a ledger deleted since."""
    if isinstance(listed.outcome, RawLedgerRecord):
        try:
            yield listed.outcome.record().metadata.state.name
        except BKException:
            yield DAMAGED
    elif not isinstance(listed.outcome, NoSuchLedgerExistsOnMetadataServerException):
        yield DAMAGED
