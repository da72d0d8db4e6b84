"""Finds bookies for an unbounded ledger: replacements of failed members, and ensembles of new fragments.

A bookie that failed recently is not chosen again. Finding none is a valid result: the cores continue with the present
bookies. Not its job: when bookies are needed (`core.unbounded.writing`), which are better (placement).
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
    """Finds bookies for one writer, or one take-over."""

    def __init__(self, context: ClientContext) -> None:
        self._context = context
        clock = asyncio.get_running_loop().time
        self._failures = RecentFailures(context.config.failed_bookie_interval_seconds, clock)

    async def replacements(self, record: LedgerRecord, wanted: Replace, avoided: Collection[str]) -> Replacements:
        """Replacements for the failed bookies, as far as bookies are available."""
        for bookie_id in wanted.failed.values():
            self._failures.note(bookie_id)
        avoid = self._failures.bookies | {*avoided}
        try:
            return await find_replacements(self._context, record, wanted.ensemble, wanted.failed, avoid)
        except Exception as error:  # including errors of discovery or a placement policy
            log_event(_log, "ensemble_not_changed", logging.WARNING, ledger=record.ledger_id, error=error)
            return {}

    async def ensemble(self, record: LedgerRecord) -> list[str] | None:
        """An ensemble for the next fragment; None to keep the present one."""
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
