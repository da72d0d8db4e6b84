"""The log of requests that clients got wrong: no bugs of the bookie, and not worth a line each.

Anybody who reaches the port can send as many as the network takes. So there is one line, and no other for a while; the
next one says how many there were meanwhile.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

from bookgate.runtime.logs import log_event

_log = logging.getLogger(__name__)

_QUIET_SECONDS = 60.0


class RefusalLog:
    """For one thread. `clock` gives seconds."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._quiet_until = float("-inf")
        self._untold = 0

    def tell(self, error: object, **about: object) -> None:
        """A request was refused because of `error`."""
        now = self._clock()
        if now < self._quiet_until:
            self._untold += 1
            return
        more, self._untold = self._untold, 0
        self._quiet_until = now + _QUIET_SECONDS
        log_event(_log, "request_refused", logging.WARNING, **about, error=error, others_before=more)
