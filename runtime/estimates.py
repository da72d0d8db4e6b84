"""How fast something goes, and when it will have ended: one rule for everything that shows progress. Pure.

Times are seconds of any one clock; what is counted is the caller's matter: ledgers, entries, bytes.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

_WINDOW_SECONDS = 600.0
"""The rate is that of the last so many seconds."""


class Rate:
    """How fast a count goes up, or down."""

    def __init__(self, window_seconds: float = _WINDOW_SECONDS) -> None:
        self._window = window_seconds
        self._seen: deque[tuple[float, int]] = deque()

    def take(self, count: int, now: float) -> float:
        """Takes in the count as it is now, and returns how much it has changed a second; 0 after the first look."""
        seen = self._seen
        seen.append((now, count))
        while seen[0][0] < now - self._window and len(seen) > 2:
            seen.popleft()
        began, at_first = seen[0]
        return (count - at_first) / (now - began) if now > began else 0.0


@dataclass(frozen=True, slots=True)
class Estimate:
    """How fast it goes, as far as that can be told."""

    total: int
    """What was to be done, with what has come since."""
    a_minute: float | None
    seconds_left: float | None


class Progress:
    """Makes estimates of what is left, look by look."""

    def __init__(self) -> None:
        self._done = 0
        self._left: int | None = None
        self._rate = Rate()

    def take(self, left: int, now: float) -> Estimate:
        """Takes in how much is left. What has come since the last look hides what went."""
        if self._left is not None:
            self._done += max(0, self._left - left)
        self._left = left
        a_second = -self._rate.take(left, now)
        if a_second <= 0:
            return Estimate(self._done + left, None, None)
        return Estimate(self._done + left, a_second * 60, left / a_second)
