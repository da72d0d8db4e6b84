"""When a bookie that could not be reached is tried again: at once the first time, then after pauses that double.

A pause is cut by a random share, so that the clients of one bookie don't come back in step. A connection counts as good
once anything was heard on it: a bookie that takes connections and drops them is one that can't be reached. Pure: the
clock and the randomness are arguments.
"""

from __future__ import annotations

import random

from bookgate.ledger.errors import BKException

FIRST_PAUSE = 0.1
LONGEST_PAUSE = 10.0


class ReconnectPauses:
    """The failures in a row of one bookie."""

    def __init__(self, rng: random.Random) -> None:
        self._rng = rng
        self._failures = 0
        self._next_try = 0.0
        self.last_error: BKException | None = None

    def remaining(self, now: float) -> float:
        """Seconds until the bookie may be tried again; 0 for now."""
        return max(0.0, self._next_try - now) if self._failures > 1 else 0.0

    def failed(self, now: float, error: BKException) -> None:
        """An attempt has failed. From the second in a row on a pause follows."""
        self._failures += 1
        self.last_error = error
        pause = min(FIRST_PAUSE * 2 ** min(self._failures - 2, 16), LONGEST_PAUSE)
        self._next_try = now + pause * (1 - self._rng.random() / 2)

    def succeeded(self) -> None:
        """The bookie was heard."""
        self._failures = 0
        self.last_error = None
