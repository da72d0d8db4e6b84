"""Ledgers that were fenced when they were deleted here: for a while a writer that did not notice is told so.

In memory only, as in Apache BookKeeper. Bounded in time and number; the oldest go first.

Source: storage page, section 7.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from threading import Lock

REMEMBERED_SECONDS = 7 * 24 * 3600
REMEMBERED_LEDGERS = 100_000


class FencedAndDeleted:
    """Any thread. `clock` gives seconds."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._lock = Lock()
        self._forgotten_at: OrderedDict[int, float] = OrderedDict()

    def add(self, number: int) -> None:
        """Remembers a ledger id of scope 0."""
        with self._lock:
            self._forgotten_at[number] = self._clock() + REMEMBERED_SECONDS
            self._forgotten_at.move_to_end(number)
            if len(self._forgotten_at) > REMEMBERED_LEDGERS:
                self._forgotten_at.popitem(last=False)

    def __contains__(self, number: int) -> bool:
        if number not in self._forgotten_at:
            return False
        with self._lock:
            forgotten_at = self._forgotten_at.get(number)
            if forgotten_at is None or forgotten_at > self._clock():
                return forgotten_at is not None
            del self._forgotten_at[number]
            return False
