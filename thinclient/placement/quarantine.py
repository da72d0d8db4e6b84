"""Quarantine: which bookies have failed so often recently that new ensembles should avoid them.

More than `threshold` unexpected errors of a bookie within `interval` seconds put it into quarantine for
`quarantine_time` seconds. Errors that say nothing about a bookie's health (it is down, it lacks an entry or ledger, the
ledger is fenced, …) are not counted. All ledgers of a client share one object; quarantine is off by default. Source:
docs/protocol/client-protocol.md#quarantine.

Pure except for the clock, which is an argument. Not its job: choosing (`chooser` excludes these bookies at first).
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import NamedTuple

from bookgate.ledger.errors import (
    BKException,
    BookieHandleNotAvailableException,
    ClientClosedException,
    DuplicateEntryIdException,
    LedgerExistException,
    LedgerFencedException,
    NoSuchEntryException,
    NoSuchLedgerExistsException,
    WriteOnReadOnlyBookieException,
)
from bookgate.runtime.logs import log_event

_log = logging.getLogger(__name__)

EXPECTED_ERRORS = (
    BookieHandleNotAvailableException,
    ClientClosedException,
    DuplicateEntryIdException,
    LedgerExistException,
    LedgerFencedException,
    NoSuchEntryException,
    NoSuchLedgerExistsException,
    WriteOnReadOnlyBookieException,
)
"""Errors that are not counted."""


class _Count(NamedTuple):
    since: float
    errors: int


class BookieHealth:
    """Counts errors by bookie. Times are in seconds of `clock`."""

    def __init__(
        self,
        clock: Callable[[], float],
        *,
        enabled: bool = True,
        threshold: int = 100,
        interval: float = 60.0,
        quarantine_time: float = 1800.0,
        on_quarantine: Callable[[str], None] = lambda bookie_id: None,
    ) -> None:
        self._clock = clock
        self._enabled = enabled
        self._threshold = threshold
        self._interval = interval
        self._quarantine_time = quarantine_time
        self._on_quarantine = on_quarantine
        self._counts: dict[str, _Count] = {}
        self._until: dict[str, float] = {}

    def on_error(self, bookie_id: str, error: BKException) -> None:
        """A request to a bookie failed."""
        if not self._enabled or isinstance(error, EXPECTED_ERRORS) or bookie_id in self._until:
            return
        now = self._clock()
        since, errors = self._counts.get(bookie_id, _Count(now, 0))
        if now - since >= self._interval:
            since, errors = now, 0
        self._counts[bookie_id] = _Count(since, errors + 1)
        if errors + 1 > self._threshold:
            del self._counts[bookie_id]
            self._until[bookie_id] = now + self._quarantine_time
            self._on_quarantine(bookie_id)
            log_event(
                _log,
                "bookie_quarantined",
                logging.WARNING,
                bookie=bookie_id,
                errors=errors + 1,
                seconds=self._quarantine_time,
                last_error=error,
            )

    def quarantined(self) -> frozenset[str]:
        """The bookies currently in quarantine."""
        if not self._until:
            return frozenset()
        now = self._clock()
        self._until = {bookie_id: until for bookie_id, until in self._until.items() if until > now}
        return frozenset(self._until)
