"""Which bookies reads avoid: those that recently failed, timed out or were too slow are tried last.

Any order of replicas is correct (docs/protocol/client-protocol.md#reading-one-entry); this one keeps readers from
waiting for the same dead bookie repeatedly. A bookie is avoided for a while, then treated like any other. All readers
of a client share one object; time is an argument.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable

AVOIDED_FOR = 60.0
"""Seconds for which a bookie is avoided after a failure."""


class ReadHealth:
    """Recent failures by bookie."""

    def __init__(self, avoided_for: float = AVOIDED_FOR) -> None:
        self._avoided_for = avoided_for
        self._failed: OrderedDict[str, float] = OrderedDict()
        """When each failed last; the oldest first."""

    def failed(self, bookie_id: str, now: float) -> None:
        """The bookie was unreachable, did not respond in time, or responded with an error of its own."""
        self._failed[bookie_id] = now
        self._failed.move_to_end(bookie_id)
        # Ledgers can name any number of bookies that do not exist, and nobody asks for those again.
        while now - next(iter(self._failed.values())) >= self._avoided_for:
            self._failed.popitem(last=False)

    def avoids(self, bookie_id: str, now: float) -> bool:
        """Whether the bookie is to be tried last."""
        failed = self._failed.get(bookie_id)
        if failed is None:
            return False
        if now - failed < self._avoided_for:
            return True
        del self._failed[bookie_id]
        return False

    def ordered(self, bookies: Iterable[str], now: float) -> tuple[str, ...]:
        """The bookies in the given order, but with those to avoid moved to the end."""
        if not self._failed:
            return tuple(bookies)
        return tuple(sorted(bookies, key=lambda bookie: self.avoids(bookie, now)))
