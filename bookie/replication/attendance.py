"""The registered bookies, and how long the others have been away, as observed by one process. Pure.

Times are in seconds of this process's own clock. Only its own observations count: a bookie that was away before this
process began to watch counts as away since then.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Set

from bookgate.ledger.metadata_store import RegisteredBookie


class Attendance:
    """The registrations as last reported."""

    def __init__(self) -> None:
        self._present: dict[str, bool] = {}
        """Registered bookies; True for a read-only one."""
        self._away_since: dict[str, float] = {}
        self._members: set[str] = set()
        self.told = False
        """Whether registrations were ever reported."""

    def hear(self, bookies: Iterable[RegisteredBookie], now: float) -> Collection[str]:
        """Records all bookies of the cluster. Returns those that have appeared or returned."""
        before, self._present = self._present, {}
        for each in bookies:
            self._members.add(each.bookie_id)
            if each.registered:
                self._present[each.bookie_id] = each.read_only
        for bookie_id in before:
            if bookie_id not in self._present:
                self._away_since.setdefault(bookie_id, now)
        for bookie_id in self._present:
            self._away_since.pop(bookie_id, None)
        self.told = True
        return [bookie_id for bookie_id in self._present if bookie_id not in before]

    @property
    def present(self) -> Mapping[str, bool]:
        """Registered bookies; True for a read-only one."""
        return self._present

    @property
    def members(self) -> Set[str]:
        """Bookies that were reported at least once, because they had a cookie or were registered."""
        return self._members

    def away_seconds(self, bookie_id: str, now: float) -> float | None:
        """Seconds for which a bookie has been away without interruption; None if it is registered.

        For a bookie that this process has never seen, the time counts from the first call.
        """
        if bookie_id in self._present:
            return None
        return now - self._away_since.setdefault(bookie_id, now)
