"""What a single event can break where there is a policy: A2 to A5.

Answers of bookies to strangers are events of their own. What a stranger writes says so: its entries by the name that
they begin with, its LAC by being above all others.
"""

from __future__ import annotations

from tests.history import events
from tests.history.events import (
    BookieAnswered,
    BookieHolds,
    Event,
    Fault,
    FenceAsked,
    LacRead,
    PolicyReplaced,
    StrangerAnswered,
)
from tests.history.metadata_events import GONE, GuestAnswered, LedgerShown, QuotaSet, StoreChanged
from tests.history.rules import Rule
from tests.history.rules_bookies import ADDS
from tests.history.violations import LedgerNotKept, PolicyOutlived, QuotaExceeded, StrangerServed

STRANGER = "stranger"
"""May do everything to ledgers that it owns, and owns none."""
NOBODY = "nobody"
"""Has a token, and no policy names it."""
ANONYMOUS = "anonymous"
"""Shows no token."""
FORMER = "former"
"""May read until the policy is replaced."""
APPENDER = "appender"
"""May add, and does not: it asks for what is more than that."""
STRANGERS = (STRANGER, NOBODY, ANONYMOUS, FORMER, APPENDER)
STRANGE_LAC = 1 << 40
"""The least LAC that a stranger writes."""
_REFUSED = ("EUA",)
_OWNER_NOT_LEARNT = ("EUA", "EIO")
"""Where it depends on the owner, and the metadata are out of the bookie's reach."""
_READS = ("read", "batch-read", "read-lac", "list")


class QuotasHold(Rule):
    """A2, for an owner. Each change carries a mark that begins with who asked for it."""

    id = "A2"
    hears = (QuotaSet, StoreChanged)

    def __init__(self) -> None:
        super().__init__()
        self._quota: QuotaSet | None = None
        self._owned: dict[str, StoreChanged] = {}

    def take(self, position: int, event: Event) -> None:
        if isinstance(event, QuotaSet):
            self._quota = event
        elif isinstance(event, StoreChanged) and event.version == GONE:
            self._owned.pop(event.ledger, None)
        elif isinstance(event, StoreChanged) and self._quota is not None and event.version == 0:
            self._created(event, self._quota)

    def _created(self, event: StoreChanged, quota: QuotaSet) -> None:
        if event.mark.partition("/")[0] != quota.client:
            return
        self.looked += 1
        self._owned[event.ledger] = event
        if len(self._owned) > quota.ledgers:
            seen = f"{quota.client} has {len(self._owned)} ledgers, and may have {quota.ledgers}"
            raise QuotaExceeded(seen, quota, *self._owned.values())


class LedgersAreKept(Rule):
    """A5. A ledger is its creator's, whose name its first mark begins with."""

    id = "A5"
    hears = (GuestAnswered, LedgerShown, StoreChanged)

    def __init__(self) -> None:
        super().__init__()
        self._creators: dict[str, str] = {}

    def take(self, position: int, event: Event) -> None:
        match event:
            case StoreChanged(version=0):
                self._creators[event.ledger] = event.mark.partition("/")[0]
            case LedgerShown():
                self.looked += 1
                if self._creators.get(event.ledger) != event.client:
                    creator = self._creators.get(event.ledger)
                    raise LedgerNotKept(f"{event.client} was shown ledger {event.ledger}, which is {creator}'s", event)
            case GuestAnswered():
                self.looked += 1
                if event.tells:
                    raise LedgerNotKept(f"{event.gateway} told {event.client} a password", event)


def _is_refused(answer: StrangerAnswered) -> bool:
    refusals = _OWNER_NOT_LEARNT if answer.client == STRANGER else _REFUSED
    return answer.status in refusals and not answer.tells


class StrangersAreRefused(Rule):
    """A4. Of a bookie that lost data nothing is known but what it says."""

    id = "A4"
    hears = (StrangerAnswered, FenceAsked, BookieAnswered, BookieHolds, LacRead, Fault)

    def __init__(self) -> None:
        super().__init__()
        self._fences: set[tuple[str, str]] = set()
        """By bookie and ledger: those that clients asked for, and the bookies' own."""
        self._under_policy = False
        self._damaged: set[str] = set()

    def take(self, position: int, event: Event) -> None:
        match event:
            case StrangerAnswered():
                self._under_policy = True
                self._answered(event)
            case FenceAsked():
                self._fences.add((event.bookie, event.ledger))
            case Fault() if event.kind in events.LOSES_DATA:
                self._damaged.add(event.target)
            case BookieAnswered(status="EFENCED") if self._under_policy and event.operation in ADDS:
                self._is_fenced_for_a_reason(event)
            case BookieHolds():
                # What is in limbo the bookie fences by itself, and the fence stays when the ledger is verified.
                self._fences |= {(event.bookie, each.ledger) for each in event.ledgers if each.limbo}
                if self._under_policy:
                    self._holds_nothing_strange(event)
            case LacRead() if event.lac >= STRANGE_LAC:
                raise StrangerServed(f"ledger {event.ledger} has the LAC {event.lac} of a stranger", event)

    def _answered(self, event: StrangerAnswered) -> None:
        if event.client == FORMER and event.operation in _READS:
            return
        self.looked += 1
        if not _is_refused(event):
            raise StrangerServed(f"{event.bookie} answered {event.status} to {event.client}", event)

    def _is_fenced_for_a_reason(self, event: BookieAnswered) -> None:
        if event.bookie in self._damaged:
            return
        self.looked += 1
        if (event.bookie, event.ledger) not in self._fences:
            raise StrangerServed(f"{event.bookie} has fenced ledger {event.ledger}, and no client asked it to", event)

    def _holds_nothing_strange(self, event: BookieHolds) -> None:
        self.looked += 1
        for ledger in event.ledgers:
            for entry_id, content in ledger.entries:
                if content.partition("/")[0] in STRANGERS:
                    raise StrangerServed(f"{event.bookie} holds entry {entry_id} of ledger {ledger.ledger}: {content}")
            damaged = event.bookie in self._damaged  # such a bookie takes no adds by itself
            if ledger.fenced and not damaged and (event.bookie, ledger.ledger) not in self._fences:
                raise StrangerServed(f"{event.bookie} has fenced ledger {ledger.ledger}, and no client asked it to")


class PoliciesCountAtOnce(Rule):
    """A3, of policies: what arrives behind another policy is judged by that one."""

    id = "A3"
    hears = (StrangerAnswered, PolicyReplaced)

    def __init__(self) -> None:
        super().__init__()
        self._replaced: tuple[int, PolicyReplaced] | None = None

    def take(self, position: int, event: Event) -> None:
        if isinstance(event, PolicyReplaced):
            self._replaced = position, event
        elif isinstance(event, StrangerAnswered) and event.client == FORMER and self._replaced is not None:
            replaced_at, replaced = self._replaced
            if event.arrived_after <= replaced_at:
                return
            self.looked += 1
            if not _is_refused(event):
                seen = f"{event.bookie} answered {event.status} to {event.client}, who had no rights any more"
                raise PolicyOutlived(seen, replaced, event)
