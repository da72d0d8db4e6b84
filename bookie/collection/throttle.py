"""Throttles garbage collection to leave disk and CPU to requests, and ends it when the bookie stops.

All work of a collection is reported here, record by record. Copied records count in full; records that are only read
count a tenth, because scanning a log costs a fraction of rewriting it.
"""

from __future__ import annotations

from collections.abc import Callable

from bookgate.bookie.system.threads import Event

_READ_SHARE = 0.1
_SHORTEST_WAIT = 0.05
"""Seconds; many shorter waits would cost more than they save."""


class StoppedException(Exception):
    """The bookie is stopping; the work ends where it is."""


class Throttle:
    """Allows `per_second` units, records or bytes; 0: no limit. For one thread."""

    def __init__(self, per_second: float, *, by_bytes: bool, stopping: Event, clock: Callable[[], float]) -> None:
        self._per_second = per_second
        self._by_bytes = by_bytes
        self._stopping = stopping
        self._clock = clock
        self._free_at = clock()

    def check(self) -> None:
        """Raises StoppedException if the bookie stops."""
        if self._stopping.is_set():
            raise StoppedException("the bookie stops")

    def read(self, size: int) -> None:
        """Reports that a record of `size` bytes was read. Waits if necessary. Raises StoppedException."""
        self._take(_READ_SHARE * (size if self._by_bytes else 1))

    def copied(self, size: int) -> None:
        """Reports that a record of `size` bytes was copied. Waits if necessary. Raises StoppedException."""
        self._take(size if self._by_bytes else 1)

    def _take(self, units: float) -> None:
        self.check()
        if self._per_second <= 0:
            return
        now = self._clock()
        self._free_at = max(now, self._free_at) + units / self._per_second
        wait = self._free_at - now
        if wait > _SHORTEST_WAIT and self._stopping.wait(wait):
            self.check()
