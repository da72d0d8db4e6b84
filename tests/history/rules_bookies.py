"""What a single answer of a bookie can break: P7, P8, S4 and S7. They need a history in which bookies were watched."""

from __future__ import annotations

from tests.history import events
from tests.history.events import BookieAnswered, DeleteAsked, Event, Fault
from tests.history.rules import Rule
from tests.history.violations import FenceBroken, NegativeTakenBack, StartedOnForeignDirectory, WrongKeyAccepted

FENCE_ANSWERS = ("EOK", "ENOENTRY", "ENOLEDGER")
"""What a bookie answers to a fencing read when it has fenced the ledger."""
NEGATIVE = ("ENOENTRY", "ENOLEDGER")
ADDS = ("add", "deferred-add")
"""Those of writers."""


class _OfAnswers(Rule):
    """Of ledgers that nobody asked to delete: a bookie that has collected one takes whatever comes as new."""

    hears = (BookieAnswered, DeleteAsked, Fault)

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
    """S7. A bookie that lost a file may have lost the key with it: the ledger's is then the first that comes."""

    id = "S7"

    def __init__(self) -> None:
        super().__init__()
        self._damaged: set[str] = set()

    def take(self, position: int, event: Event) -> None:
        if isinstance(event, Fault) and event.kind == events.DAMAGED_FILE:
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
