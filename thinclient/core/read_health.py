"""Which bookies reads should avoid: those that lately failed, timed out or were too slow are asked last.

Any order of replicas is correct (docs/protocol/client-protocol.md#reading-one-entry); this one keeps readers from
waiting for the same dead bookie again and again. A bookie is avoided for a while, then tried again like any other. One
for a client, shared by its readers; time is an argument.
"""

from __future__ import annotations

from collections.abc import Iterable

AVOIDED_FOR = 60.0
"""Seconds after a failure."""


class ReadHealth:
    """Failures by bookie."""

    def __init__(self, avoided_for: float = AVOIDED_FOR) -> None:
        self._avoided_for = avoided_for
        self._failed: dict[str, float] = {}

    def failed(self, bookie_id: str, now: float) -> None:
        """The bookie could not be reached, did not answer in time or answered with an error of its own."""
        self._failed[bookie_id] = now

    def avoids(self, bookie_id: str, now: float) -> bool:
        """The bookie is to be asked last."""
        failed = self._failed.get(bookie_id)
        if failed is None:
            return False
        if now - failed < self._avoided_for:
            return True
        del self._failed[bookie_id]
        return False

    def ordered(self, bookies: Iterable[str], now: float) -> tuple[str, ...]:
        """The bookies in the order given, but for those to avoid, which come last."""
        if not self._failed:
            return tuple(bookies)
        return tuple(sorted(bookies, key=lambda bookie: self.avoids(bookie, now)))
