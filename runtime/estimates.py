"""How fast work proceeds, and when it will end: one rule for everything that shows progress. Pure.

Times are seconds of any one clock; the caller decides what is counted: ledgers, entries, bytes.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

_WINDOW_SECONDS = 600.0
"""The rate covers this many last seconds."""


class Rate:
    """How fast a count grows, or falls."""

    def __init__(self, window_seconds: float = _WINDOW_SECONDS) -> None:
        self._window = window_seconds
        self._seen: deque[tuple[float, int]] = deque()

    def take(self, count: int, now: float) -> float:
        """Records the present count, and returns its change per second; 0 at the first call."""
        seen = self._seen
        seen.append((now, count))
        while seen[0][0] < now - self._window and len(seen) > 2:
            seen.popleft()
        began, at_first = seen[0]
        return (count - at_first) / (now - began) if now > began else 0.0


@dataclass(frozen=True, slots=True)
class Estimate:
    """How fast work proceeds, as far as it is known."""

    total: int
    """The amount to be done, including what was added since."""
    a_minute: float | None
    seconds_left: float | None


class Progress:
    """Estimates the rest of some work from repeated counts of what is left."""

    def __init__(self) -> None:
        self._done = 0
        self._left: int | None = None
        self._rate = Rate()

    def take(self, left: int, now: float) -> Estimate:
        """Records how much is left. Work that was added since the last call hides work that was done."""
        if self._left is not None:
            self._done += max(0, self._left - left)
        self._left = left
        a_second = -self._rate.take(left, now)
        if a_second <= 0:
            return Estimate(self._done + left, None, None)
        return Estimate(self._done + left, a_second * 60, left / a_second)
