"""Clocks that are looked up when they are called, so that they can be the defaults of parameters.

A default of `time.monotonic` itself is the machine's clock for ever, also where a simulated world has replaced it.
"""

from __future__ import annotations

import time


def now_ms() -> int:
    """Milliseconds since 1970."""
    return int(time.time() * 1000)


def time_of_day() -> float:
    """Seconds since 1970."""
    return time.time()


def monotonic() -> float:
    """Seconds that nobody sets."""
    return time.monotonic()


def precise() -> float:
    """The same for short spans, as finely as the machine has it."""
    return time.perf_counter()
