"""Follows a ledger while it is written: carries out the steps of `core.tailing` for a `LedgerView`.

The metadata watch of the view interrupts waits: a new fragment, the ledger's end or its deletion ends the current wait.
While no gateway is reachable, the tail continues with the metadata that it knows.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import TYPE_CHECKING

from bookgate.ledger.entry import Entry
from bookgate.ledger.errors import BKException, NoSuchLedgerExistsOnMetadataServerException
from bookgate.thinclient.core.entry_read import MISSING
from bookgate.thinclient.core.tailing import Finished, LastConfirmedAndEntry, Look, Pause, ReadRange, TailSteps, WaitFor

if TYPE_CHECKING:
    from bookgate.thinclient.handles.ledger_view import LedgerView

_REFRESH_INTERVAL = 1.0
"""Minimum seconds between two reads of the metadata because of failures."""


class Tail:
    """One tailing reader."""

    def __init__(self, view: LedgerView, from_entry: int, max_entries: int, long_poll: bool, parallel: bool) -> None:
        config = view.context.config
        self._view = view
        self._max_entries = max_entries
        self._parallel = parallel
        self._loop = asyncio.get_running_loop()
        self._refresh_at = 0.0
        self._steps = TailSteps(
            from_entry,
            long_polls=long_poll,
            interval=config.tail_poll_interval_seconds,
            failure_timeout=config.tail_failure_timeout_seconds,
        )

    async def batches(self) -> AsyncGenerator[list[Entry], None]:
        """Yields lists of entries as they become readable; ends with the ledger."""
        view, steps = self._view, self._steps
        await view.listen()
        while True:
            view.check_readable()
            changed = view.changed()
            step = steps.next(view.last_add_confirmed, view.is_closed, self._loop.time())
            match step:
                case Finished():
                    return
                case Pause(seconds):
                    await asyncio.wait((changed,), timeout=seconds)
                case ReadRange(first, last):
                    async with aclosing(self._read(first, last)) as batches:
                        async for batch in batches:
                            yield batch
                case WaitFor(entry_id):
                    entry = await self._wait_for(entry_id, changed)
                    if entry is not None:
                        steps.delivered(entry.entry_id)
                        yield [entry]
                case Look():
                    await self._look()

    async def _read(self, first: int, last: int) -> AsyncGenerator[list[Entry], None]:
        """Yields the entries that are readable now. Errors are passed to the steps, since they may be temporary."""
        async with aclosing(self._view.batches_of(first, last, self._max_entries)) as batches:
            while True:
                try:
                    batch = await anext(batches, None)
                except BKException as error:
                    await self._failed(error)
                    return
                if batch is None:
                    return
                self._steps.delivered(batch[-1].entry_id)
                yield batch

    async def _wait_for(self, entry_id: int, changed: asyncio.Future[None]) -> Entry | None:
        """The entry if a response included it; None if the caller must look at the ledger again."""
        began = self._loop.time()
        poll = self._view.long_poll(entry_id, self._parallel)
        try:
            await asyncio.wait((poll.result, changed), return_when=asyncio.FIRST_COMPLETED)
            if not poll.result.done():
                return None
            found: LastConfirmedAndEntry = poll.result.result()
        except MISSING:
            self._steps.on_nothing_there(self._loop.time())
            return None
        except BKException as error:
            await self._failed(error)
            return None
        finally:
            poll.cancel()
        lac = self._view.last_add_confirmed
        self._steps.on_waited(lac, began, self._loop.time())
        return found.entry if entry_id <= lac else None

    async def _look(self) -> None:
        began = self._loop.time()
        try:
            lac = await self._view.try_read_last_confirmed()
        except BKException as error:
            await self._failed(error)
        else:
            self._steps.on_waited(lac, began, self._loop.time())

    async def _failed(self, error: BKException) -> None:
        """Raises the error if the steps do not tolerate it; else reads the metadata again."""
        self._view.check_readable()
        now = self._loop.time()
        self._steps.on_failure(error, self._view.is_closed, now)
        if now < self._refresh_at:
            return
        self._refresh_at = now + _REFRESH_INTERVAL
        try:
            await self._view.refresh()
        except NoSuchLedgerExistsOnMetadataServerException:
            raise
        except BKException:
            return  # no gateway responds: continue with the known metadata
