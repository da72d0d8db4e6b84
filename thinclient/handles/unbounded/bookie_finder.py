"""Finds bookies for an unbounded ledger: in place of members that failed, and for the next fragment.

A bookie that failed a short while ago is not chosen again. That none is found is an answer: the cores go on with the
bookies that there are. Not its job: when bookies are wanted (`core.unbounded.writing`), which are better (placement).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Collection

from bookgate.ledger.errors import NotEnoughBookiesException
from bookgate.ledger.metadata_store import LedgerRecord
from bookgate.runtime.logs import log_event
from bookgate.thinclient.core.ensemble_change import Replacements
from bookgate.thinclient.core.placement import EnsembleRequest
from bookgate.thinclient.core.recovery import Replace
from bookgate.thinclient.handles.context import ClientContext
from bookgate.thinclient.handles.ensemble_changer import RecentFailures, find_replacements

_log = logging.getLogger(__name__)


class BookieFinder:
    """Of one writer, or one take-over."""

    def __init__(self, context: ClientContext) -> None:
        self._context = context
        clock = asyncio.get_running_loop().time
        self._failures = RecentFailures(context.config.failed_bookie_interval_seconds, clock)

    async def replacements(self, record: LedgerRecord, wanted: Replace, barred: Collection[str]) -> Replacements:
        """Bookies for the failed ones, as far as there are any."""
        for bookie_id in wanted.failed.values():
            self._failures.note(bookie_id)
        avoid = self._failures.bookies | {*barred}
        try:
            return await find_replacements(self._context, record, wanted.ensemble, wanted.failed, avoid)
        except Exception as error:  # discovery's, or a placement policy's own
            log_event(_log, "ensemble_not_changed", logging.WARNING, ledger=record.ledger_id, error=error)
            return {}

    async def ensemble(self, record: LedgerRecord) -> list[str] | None:
        """An ensemble for the next fragment; None to go on with the present one."""
        request = EnsembleRequest.of(record.metadata)
        try:
            with self._context.metrics.timed("bookie_watcher_NEW_ENSEMBLE_TIME"):
                found = await self._context.placement.new_ensemble(request, needs=record.needs)
        except NotEnoughBookiesException:
            return None
        except Exception as error:  # as above
            log_event(_log, "ensemble_not_changed", logging.WARNING, ledger=record.ledger_id, error=error)
            return None
        return None if self._failures.bookies.intersection(found) else found
