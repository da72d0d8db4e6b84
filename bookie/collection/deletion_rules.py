"""When ledgers that the metadata lacks may be deleted: after a waiting period, and not if they are most of what is
held.

A complete and ordered listing may still be the wrong one: that of a store that was restored to an older state, or lost
its contents. Nothing shows that at once, so a ledger is deleted only if it is missing in two passes a whole period
apart (`Quarantine`), and a pass that would delete most of what a bookie holds is held back until an operator forces it
(`is_mass_deletion`). What is deleted on one bookie is soon deleted on all, because they use the same store.

Not its job: listing (`rules`), whose metadata were listed (`ledger_collector`).
"""

from __future__ import annotations

from collections.abc import Sequence

from bookgate.bookie.collection.rules import SortedIds
from bookgate.ledger.ledger_id import id_array


class Quarantine:
    """The ledgers missing in the last passes. `wait_seconds` is the period; times are in seconds of one clock."""

    def __init__(self, wait_seconds: float) -> None:
        self._wait_seconds = wait_seconds
        self._candidates: Sequence[int] = ()
        self._since: float | None = None

    def due(self, missing: Sequence[int], now: float) -> Sequence[int]:
        """A pass has come to its end: which of the ids that it missed, ascending, have waited long enough."""
        waited = SortedIds(self._candidates)
        again = id_array(number for number in missing if number in waited)
        if self._since is not None and now - self._since < self._wait_seconds:
            self._candidates = again
            return ()
        self._candidates, self._since = missing, now
        return again


def is_mass_deletion(due: int, local: int, max_share: float, at_least: int) -> bool:
    """Whether deleting `due` of `local` ledgers is implausible; fewer than `at_least` never are."""
    return due >= at_least and due > max_share * local
