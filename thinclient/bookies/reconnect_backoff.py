"""When to retry a bookie that was unreachable: at once the first time, then after pauses that double.

A random share is cut from each pause, so that the clients of one bookie do not reconnect in step. A connection counts
as good once anything was received on it: a bookie that accepts connections and drops them counts as unreachable. Pure:
the clock and the randomness are arguments.
"""

from __future__ import annotations

import random

from bookgate.ledger.errors import BKException

FIRST_PAUSE = 0.1
LONGEST_PAUSE = 10.0


class ReconnectPauses:
    """The consecutive failures of one bookie."""

    def __init__(self, rng: random.Random) -> None:
        self._rng = rng
        self._failures = 0
        self._next_try = 0.0
        self.last_error: BKException | None = None

    def remaining(self, now: float) -> float:
        """Seconds until the bookie may be tried again; 0 for now."""
        return max(0.0, self._next_try - now) if self._failures > 1 else 0.0

    def failed(self, now: float, error: BKException) -> None:
        """An attempt has failed. From the second consecutive failure on a pause follows."""
        self._failures += 1
        self.last_error = error
        pause = min(FIRST_PAUSE * 2 ** min(self._failures - 2, 16), LONGEST_PAUSE)
        self._next_try = now + pause * (1 - self._rng.random() / 2)

    def succeeded(self) -> None:
        """The bookie has sent something."""
        self._failures = 0
        self.last_error = None
