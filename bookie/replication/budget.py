"""How fast a worker may copy: a bucket of bytes that fills at a rate, and that overload empties.

Each read and each copy sent costs its bytes. The rate is halved when a bookie says that it has too many requests, and
grows back by a tenth a second. Pure: times come from the caller, in seconds of one clock. Source:
docs/protocol/auto-recovery.md#budget (R15).
"""

from __future__ import annotations

_LEAST_SHARE = 1 / 64
_GROWTH_A_SECOND = 0.1
_BURST_SECONDS = 0.25


class ByteBudget:
    """See the module. `bytes_a_second` is the full rate; 0 for no bound."""

    def __init__(self, bytes_a_second: float, now: float) -> None:
        self._full_rate = bytes_a_second
        self._rate = bytes_a_second
        self._free_at = now
        self._grown_at = now

    @property
    def rate(self) -> float:
        """Bytes a second that are granted now."""
        return self._rate

    def take(self, size: int, now: float) -> float:
        """Takes `size` bytes out; returns for how many seconds the caller has to wait before it uses them."""
        if self._full_rate <= 0:
            return 0.0
        self._grow(now)
        self._free_at = max(self._free_at, now - _BURST_SECONDS) + size / self._rate
        return max(0.0, self._free_at - now)

    def overloaded(self, now: float) -> None:
        """A bookie has too much to do."""
        self._grow(now)
        self._rate = max(self._full_rate * _LEAST_SHARE, self._rate / 2)

    def _grow(self, now: float) -> None:
        seconds, self._grown_at = max(0.0, now - self._grown_at), now
        self._rate = min(self._full_rate, self._rate + self._full_rate * _GROWTH_A_SECOND * seconds)
