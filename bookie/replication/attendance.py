"""Which bookies are registered, and how long the others have been away, as one process has seen it.

Times are in seconds of this process's own clock: only what it has seen itself counts, so a bookie that was away before
this process began to look has been away since then only. Pure.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

from bookgate.ledger.metadata_store import RegisteredBookie


class Attendance:
    """The registrations as they were told last."""

    def __init__(self) -> None:
        self._present: dict[str, bool] = {}
        """Registered bookies; True for a read-only one."""
        self._away_since: dict[str, float] = {}
        self.told = False
        """Whether anything is known."""

    def hear(self, bookies: Iterable[RegisteredBookie], now: float) -> Collection[str]:
        """Takes in all bookies of the cluster. Returns those that have come (back)."""
        before = self._present
        self._present = {each.bookie_id: each.read_only for each in bookies if each.registered}
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

    def away_seconds(self, bookie_id: str, now: float) -> float | None:
        """For how long a bookie has been away without interruption; None if it is registered.

        From the first question on, for one that this process has never seen.
        """
        if bookie_id in self._present:
            return None
        return now - self._away_since.setdefault(bookie_id, now)
