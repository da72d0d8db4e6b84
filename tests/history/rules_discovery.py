"""What a single answer of a gateway about the bookies can break: M4, of discovery.

A gateway answers with nothing older than what it has shown itself: with a revision of the store, or in another answer
about the bookies. Of two gateways one may be behind the other. A registration is known by its label, which a change of
it replaces. A bookie whose session has ended registers again with the same label: an answer with it may then show the
earlier of the two, and proves no more.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict

from tests.history.events import Event
from tests.history.metadata_events import BookieChanged, BookiesAsked, BookiesTold, GatewayShowed
from tests.history.rules import Rule
from tests.history.violations import ReadBackwards


class BookiesAreNotOlder(Rule):
    """See the module."""

    id = "M4"
    hears = (BookieChanged, GatewayShowed, BookiesAsked, BookiesTold)

    def __init__(self) -> None:
        super().__init__()
        self._changes: defaultdict[str, list[BookieChanged]] = defaultdict(list)
        self._shown: defaultdict[str, int] = defaultdict(int)
        """By gateway: the newest change that it has shown."""
        self._asked: dict[tuple[str, int], int] = {}
        """By gateway and stream: what it had shown when it was asked."""

    def take(self, position: int, event: Event) -> None:
        match event:
            case BookieChanged():
                self._changes[event.bookie].append(event)
            case GatewayShowed():
                self._shown[event.gateway] = max(self._shown[event.gateway], event.order)
            case BookiesAsked():
                self._asked[event.gateway, event.stream] = self._shown[event.gateway]
            case BookiesTold():
                self._told(event)

    def _told(self, told: BookiesTold) -> None:
        self.looked += 1
        frontier, labels = self._asked.get((told.gateway, told.stream), 0), dict(told.labels)
        for bookie, changes in self._changes.items():
            label = labels.get(bookie, "")
            known = bisect_right(changes, frontier, key=_order)
            state = next((each for each in changes[max(known - 1, 0) :] if each.label == label), None)
            if known and state is None:
                sight = f"{told.gateway} told {label or 'nothing'} of {bookie} though it had shown a later state"
                raise ReadBackwards(sight, changes[known - 1], told)
            if state is not None and label:
                self._shown[told.gateway] = max(self._shown[told.gateway], state.order)


def _order(change: BookieChanged) -> int:
    return change.order
