"""Logs invalid requests of clients, at a limited rate.

Anyone who reaches the port can send as many invalid requests as the network permits. The first one is logged, the next
ones are only counted for a while; the next line has their number.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

from bookgate.runtime.logs import log_event

_log = logging.getLogger(__name__)

_QUIET_SECONDS = 60.0


class RefusalLog:
    """Used by one thread. `clock` returns seconds."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._quiet_until = float("-inf")
        self._untold = 0

    def tell(self, error: object, **about: object) -> None:
        """Logs or counts a request that was rejected because of `error`."""
        now = self._clock()
        if now < self._quiet_until:
            self._untold += 1
            return
        more, self._untold = self._untold, 0
        self._quiet_until = now + _QUIET_SECONDS
        log_event(_log, "request_refused", logging.WARNING, **about, error=error, others_before=more)
