"""Whether a bookie answers so much slower than it can that somebody else must be waiting, too. Pure.

For each bookie, operation and size class of what was read or stored the least time of an answer in the last minutes is
kept: that is how fast the bookie is when it has nothing else to do. Some answers in a row that each take many times as
long, and longer than anybody would mind, are a *rising latency*: those of the cluster's clients rise with them. One
slow answer says nothing: a collection of garbage, or a journal that was just being synced.

Times come from the caller, in seconds of one clock. Source: docs/protocol/auto-recovery.md#budget (R15).
"""

from __future__ import annotations

import enum
from dataclasses import dataclass

_TIMES_THE_LEAST = 8
_LEAST_SECONDS = 0.05
"""Answers below are never slow."""
_IN_A_ROW = 3
_KEPT_SECONDS = 300.0
"""The least time is that of one to two of these."""


class Asked(enum.Enum):
    """What a bookie was asked for."""

    READ = enum.auto()
    STORE = enum.auto()


@dataclass(slots=True)
class _Class:
    began: float
    least: float
    least_before: float
    slow: int = 0
    """Answers in a row."""


class AnswerTimes:
    """Of the bookies that one worker asks."""

    def __init__(self) -> None:
        self._classes: dict[tuple[str, Asked, int], _Class] = {}

    def is_rising(self, bookie_id: str, asked: Asked, size: int, seconds: float, now: float) -> bool:
        """Takes in an answer of so many bytes; whether it, with those before it, shows a rising latency."""
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
