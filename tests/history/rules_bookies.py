"""What a single answer of a bookie can break: P7, P8, R9, S4 and S7.

They need a history in which bookies were watched.
"""

from __future__ import annotations

from typing import ClassVar

from tests.history import events
from tests.history.events import BookieAnswered, DeleteAsked, Event, Fault, MetadataRemoved, MetadataSeen
from tests.history.rules import Rule
from tests.history.violations import (
    FenceBroken,
    NegativeTakenBack,
    NewLifeTookOldAdd,
    StartedOnForeignDirectory,
    WrongKeyAccepted,
)

FENCE_ANSWERS = ("EOK", "ENOENTRY", "ENOLEDGER")
"""What a bookie answers to a fencing read when it has fenced the ledger."""
NEGATIVE = ("ENOENTRY", "ENOLEDGER")
ADDS = ("add", "deferred-add")
"""Those of writers."""


class _OfAnswers(Rule):
    """Of ledgers that nobody asked to delete: a bookie that has collected one takes whatever comes as new."""

    hears: ClassVar[tuple[type[Event], ...]] = (BookieAnswered, DeleteAsked, Fault)

    def __init__(self) -> None:
        super().__init__()
        self._deleted: set[str] = set()

    def take(self, position: int, event: Event) -> None:
        if isinstance(event, DeleteAsked):
            self._deleted.add(event.ledger)
        elif isinstance(event, BookieAnswered) and event.ledger not in self._deleted:
            self._answered(position, event)

    def _answered(self, position: int, event: BookieAnswered) -> None:
        raise NotImplementedError


class FencesHold(_OfAnswers):
    """P7: an add that arrived after a fencing read was answered is not accepted."""

    id = "P7"

    def __init__(self) -> None:
        super().__init__()
        self._fenced: dict[tuple[str, str], tuple[int, BookieAnswered]] = {}

    def _answered(self, position: int, event: BookieAnswered) -> None:
        key = (event.bookie, event.ledger)
        if event.operation == "fencing-read" and event.status in FENCE_ANSWERS:
            self._fenced.setdefault(key, (position, event))
        elif event.operation in ADDS and key in self._fenced:
            self.looked += 1
            fenced_at, fence = self._fenced[key]
            if event.status == "EOK" and event.arrived_after > fenced_at:
                seen = f"{event.bookie} accepted entry {event.entry_id} of fenced ledger {event.ledger}"
                raise FenceBroken(seen, fence, event)


class NegativesStay(_OfAnswers):
    """P8."""

    id = "P8"

    def __init__(self) -> None:
        super().__init__()
        self._missing: dict[tuple[str, str, int], BookieAnswered] = {}

    def _answered(self, position: int, event: BookieAnswered) -> None:
        if event.entry_id < 0:
            return
        key = (event.bookie, event.ledger, event.entry_id)
        if event.operation == "fencing-read" and event.status in NEGATIVE:
            self._missing.setdefault(key, event)
            self.looked += 1
        elif event.operation in ADDS and event.status == "EOK" and key in self._missing:
            raise NegativeTakenBack(
                f"{event.bookie} accepted entry {event.entry_id} of ledger {event.ledger} after it had answered "
                "that it has none",
                self._missing[key],
                event,
            )


class WrongKeysAreRefused(_OfAnswers):
    """S7. A bookie that lost files may have lost the key with them: the ledger's is then the first that comes."""

    id = "S7"

    def __init__(self) -> None:
        super().__init__()
        self._damaged: set[str] = set()

    def take(self, position: int, event: Event) -> None:
        if isinstance(event, Fault) and event.kind in (events.DAMAGED_FILE, events.BEGUN_ANEW):
            self._damaged.add(event.target)
        super().take(position, event)

    def _answered(self, position: int, event: BookieAnswered) -> None:
        if not event.wrong_key or event.bookie in self._damaged:
            return
        self.looked += 1
        if event.status in FENCE_ANSWERS:
            raise WrongKeyAccepted(f"{event.bookie} let a wrong key in to ledger {event.ledger}", event)


class ForeignDirectoriesAreRefused(Rule):
    """S4."""

    id = "S4"
    hears = (Fault, events.BookieStarted)

    def __init__(self) -> None:
        super().__init__()
        self._wiped: dict[str, Fault] = {}

    def take(self, position: int, event: Event) -> None:
        if isinstance(event, Fault) and event.kind == "wipe":
            self._wiped[event.target] = event
            self.looked += 1
        elif isinstance(event, events.BookieStarted) and event.bookie in self._wiped:
            wiped = self._wiped[event.bookie]
            raise StartedOnForeignDirectory(f"{event.bookie} serves though its data are gone", wiped, event)


class NewLivesTakeNoOldAdds(_OfAnswers):
    """R9: of a bookie that began anew under its id, for ledgers that named it all the time until it served again, and
    for those that were not open any more when its former life ended.
    """

    id = "R9"
    hears = (BookieAnswered, DeleteAsked, Fault, events.BookieStarted, MetadataSeen, MetadataRemoved)

    def __init__(self) -> None:
        super().__init__()
        self._members: dict[str, set[str]] = {}
        """By ledger, as the store has it."""
        self._over: set[str] = set()
        """Ledgers that are closed, or in recovery."""
        self._older: dict[str, set[str]] = {}
        """Ledgers of former lives by bookie."""
        self._down: set[str] = set()

    def take(self, position: int, event: Event) -> None:
        match event:
            case Fault(kind=events.BEGUN_ANEW, target=bookie):
                naming = {ledger for ledger, members in self._members.items() if bookie in members}
                self._older[bookie] = naming | (self._over & self._members.keys())
                self._down.add(bookie)
            case events.BookieStarted(bookie=bookie):
                self._down.discard(bookie)
            case MetadataSeen(client=events.STORE, ledger=ledger):
                if event.state != "OPEN":
                    self._over.add(ledger)
                self._seen(ledger, {member for _, ensemble in event.fragments for member in ensemble})
            case MetadataRemoved(client=events.STORE, ledger=ledger):
                self._over.discard(ledger)
                self._seen(ledger, set())
        super().take(position, event)

    def _seen(self, ledger: str, members: set[str]) -> None:
        """What leaves a bookie while it is down is not among what it finds, unless it is closed."""
        self._members[ledger] = members
        if ledger not in self._over:
            for bookie in self._down - members:
                self._older[bookie].discard(ledger)

    def _answered(self, position: int, event: BookieAnswered) -> None:
        if event.operation in ADDS and event.ledger in self._older.get(event.bookie, ()):
            self.looked += 1
            if event.status == "EOK":
                seen = f"{event.bookie} accepted entry {event.entry_id} of ledger {event.ledger}"
                raise NewLifeTookOldAdd(f"{seen}, which is older than its directories", event)
