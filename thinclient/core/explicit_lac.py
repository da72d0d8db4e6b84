"""When a writer tells the bookies its last add confirmed by a request of its own
(docs/protocol/client-protocol.md#explicit-lacs).

Entries carry the LAC of the moment they were sent, so readers learn of the last entries only when later ones come. A
writer that falls silent says it explicitly: at every interval, unless the LAC has gone out with an entry or like this.
"""

from __future__ import annotations

from bookgate.ledger.ledger_id import NO_ENTRY


class ExplicitLacRule:
    """Asked at every interval."""

    def __init__(self) -> None:
        self._known = NO_ENTRY

    def due(self, last_add_confirmed: int, previous: int) -> int | None:
        """The LAC to send now, if any. `previous` is the LAC before its last move: entries have carried it since."""
        if self._known < previous:
            self._known = previous
            return None
        if last_add_confirmed <= self._known:
            return None
        self._known = last_add_confirmed
        return last_add_confirmed
