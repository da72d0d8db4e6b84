"""Detects bookies that respond so much slower than they can that clients must be waiting too. Pure.

For each bookie, operation and size class, the shortest response time of the last minutes is kept: the speed of the
bookie when it is idle. Several consecutive responses that each take many times as long, and longer than a noticeable
minimum, are a *rising latency*: the latencies of the cluster's clients rise as well. A single slow response proves
nothing: its cause may be a run of Python's garbage collector, or a sync of the journal.

Times come from the caller, in seconds of one clock. Source: docs/protocol/auto-recovery.md#budget (R15).
"""

from __future__ import annotations

import enum
from dataclasses import dataclass

_TIMES_THE_LEAST = 8
_LEAST_SECONDS = 0.05
"""Responses faster than this are never slow."""
_IN_A_ROW = 3
_KEPT_SECONDS = 300.0
"""The shortest time covers one to two periods of this length."""


class Asked(enum.Enum):
    """The operation that was requested."""

    READ = enum.auto()
    STORE = enum.auto()


@dataclass(slots=True)
class _Class:
    began: float
    least: float
    least_before: float
    slow: int = 0
    """Number of consecutive slow responses."""


class AnswerTimes:
    """The response times of the bookies that one worker uses."""

    def __init__(self) -> None:
        self._classes: dict[tuple[str, Asked, int], _Class] = {}

    def is_rising(self, bookie_id: str, asked: Asked, size: int, seconds: float, now: float) -> bool:
        """Records a response of `size` bytes; returns whether it, with earlier ones, shows a rising latency."""
        key = bookie_id, asked, size.bit_length()
        seen = self._classes.get(key)
        if seen is None:
            seen = self._classes[key] = _Class(now, seconds, seconds)
        elif now - seen.began >= _KEPT_SECONDS:
            seen.began, seen.least_before, seen.least = now, seen.least, seconds
        seen.least = min(seen.least, seconds)
        limit = max(_LEAST_SECONDS, _TIMES_THE_LEAST * min(seen.least, seen.least_before))
        seen.slow = seen.slow + 1 if seconds > limit else 0
        return seen.slow >= _IN_A_ROW
