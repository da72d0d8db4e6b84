"""When ledgers missing in the metadata may be deleted: after a waiting period, and not if they are most of what is
held.

A complete and ordered listing may still be wrong: the store may have been restored to an older state, or have lost its
contents. Nothing shows that at once, so a ledger is deleted only if it is missing in two passes a whole period apart
(`Quarantine`), and a pass that would delete most of what a bookie holds is held back until an operator forces it
(`is_mass_deletion`). All bookies use the same store, so all of them would soon delete the same ledgers.

Not its job: listing (`rules`), whose metadata were listed (`ledger_collector`).
"""

from __future__ import annotations

from collections.abc import Sequence

from bookgate.bookie.collection.rules import SortedIds
from bookgate.ledger.ledger_id import id_array


class Quarantine:
    """The ledgers missing in the last passes. `wait_seconds` is the period; all times are seconds of one clock."""

    def __init__(self, wait_seconds: float) -> None:
        self._wait_seconds = wait_seconds
        self._candidates: Sequence[int] = ()
        self._since: float | None = None

    def due(self, missing: Sequence[int], now: float) -> Sequence[int]:
        """Called at the end of a pass: those of its missing ids (ascending) that have waited long enough."""
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
