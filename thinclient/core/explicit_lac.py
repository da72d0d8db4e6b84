"""When a writer sends its last add confirmed to the bookies in a separate request
(docs/protocol/client-protocol.md#explicit-lacs).

Entries carry the LAC of the moment they were sent, so readers learn about the last entries only from later ones. A
writer that pauses therefore sends an explicit LAC at the next interval, unless the LAC was already sent with an entry
or explicitly. Once the last entry is known to be confirmed and the bookies have been told, nothing is due until its
next entry.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from bookgate.ledger.ledger_id import NO_ENTRY


class ConfirmedWriter(Protocol):
    """A writer, as this rule sees it."""

    @property
    def last_add_confirmed(self) -> int:
        """The LAC."""

    @property
    def previous_last_add_confirmed(self) -> int:
        """The LAC before it last advanced."""

    @property
    def last_add_pushed(self) -> int:
        """The entry sent last."""

    def lac_receivers(self, last_add_confirmed: int) -> Sequence[str]:
        """The bookies to which this LAC is sent."""


class ExplicitLacRule:
    """The rule, evaluated at every interval."""

    def __init__(self) -> None:
        self._known = NO_ENTRY

    def due(self, last_add_confirmed: int, previous: int) -> int | None:
        """The LAC to send now, or None. `previous` is the LAC before it last advanced: entries have carried it
        since.
        """
        if self._known < previous:
            self._known = previous
            return None
        if last_add_confirmed <= self._known:
            return None
        self._known = last_add_confirmed
        return last_add_confirmed

    def has_said_all(self, last_add_pushed: int) -> bool:
        """Whether the bookies know the entry sent last to be confirmed: only another entry changes that."""
        return self._known >= last_add_pushed
