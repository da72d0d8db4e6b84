"""When ledgers that the metadata lacks may be deleted: they wait a period, and a pass must not take most of them.

A listing that is complete and in order may still be the wrong one: of a store that came back older, or lost what it
had. Nothing tells that at once, so a ledger goes only when it is missing in two passes that are a whole period apart
(`Quarantine`), and a pass that would take most of what a bookie holds is held back until somebody forces it
(`is_mass_deletion`). What is gone on one bookie is soon gone on all: they ask the same store.

Not its job: listing (`rules`), whose metadata were listed (`ledger_collector`).
"""

from __future__ import annotations

from collections.abc import Sequence

from bookgate.bookie.collection.rules import SortedIds
from bookgate.ledger.ledger_id import id_array


class Quarantine:
    """The ledgers that the last passes missed. `wait_seconds` is the period; times are seconds of one clock.

    Passes that follow each other sooner, since somebody asked for them, let nothing go and begin no period: they only
    take out what they find again.
    """

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
    """Whether to delete `due` of `local` ledgers is too much to be believed; fewer than `at_least` never are."""
    return due >= at_least and due > max_share * local
