"""What a single acknowledgement or read can break: P9 and P10."""

from __future__ import annotations

from tests.history.events import (
    AppendAcknowledged,
    AppendAsked,
    BookieAnswered,
    Event,
    LacRead,
    LedgerCreated,
    MetadataSeen,
    ReadDone,
    WriterLac,
)
from tests.history.rules import Rule
from tests.history.violations import DirtyRead, LacAheadOfQuorum


class AcknowledgementsAreContiguous(Rule):
    """P9, of who writes a ledger: in order from 0 on, and the LAC that is shown only grows. It may be ahead of an
    acknowledgement that waits for its turn to be told, though never of what was asked."""

    id = "P9"
    hears = (LedgerCreated, AppendAsked, AppendAcknowledged, WriterLac)

    def __init__(self) -> None:
        super().__init__()
        self._asked: dict[str, int] = {}
        """How many, of each ledger that was created here."""
        self._acknowledged: dict[str, AppendAcknowledged] = {}
        self._lacs: dict[str, WriterLac] = {}

    def take(self, position: int, event: Event) -> None:
        match event:
            case LedgerCreated():
                self._asked.setdefault(event.ledger, 0)
            case AppendAsked() if event.ledger in self._asked:
                self._asked[event.ledger] += 1
            case AppendAcknowledged() if event.ledger in self._asked:
                self._in_order(event)
            case WriterLac() if event.ledger in self._asked:
                self._follows(event)
            case _:
                pass

    def _in_order(self, event: AppendAcknowledged) -> None:
        self.looked += 1
        before = self._acknowledged.get(event.ledger)
        expected = 0 if before is None else before.entry_id + 1
        self._acknowledged[event.ledger] = event
        if event.entry_id != expected:
            shown = (event,) if before is None else (before, event)
            seen = f"ledger {event.ledger}: entry {event.entry_id} was acknowledged where {expected} was due"
            raise LacAheadOfQuorum(seen, *shown)

    def _follows(self, shown: WriterLac) -> None:
        self.looked += 1
        last, asked = self._lacs.get(shown.ledger), self._asked[shown.ledger]
        self._lacs[shown.ledger] = shown
        if last is not None and shown.lac < last.lac:
            raise LacAheadOfQuorum(f"ledger {shown.ledger}: the LAC went from {last.lac} back", last, shown)
        if shown.lac >= asked:
            raise LacAheadOfQuorum(f"ledger {shown.ledger}: LAC {shown.lac} with {asked} appends", shown)


class QuorumsHaveAnswered(Rule):
    """P9, where bookies are watched: an acknowledged entry has an ack quorum of good answers behind it."""

    id = "P9"
    hears = (LedgerCreated, BookieAnswered, AppendAcknowledged)

    def __init__(self) -> None:
        super().__init__()
        self._quorums: dict[str, int] = {}
        self._stored: dict[tuple[str, int], set[str]] = {}
        self._unwatched: AppendAcknowledged | None = None
        """The first that was acknowledged while nobody knew whether bookies are watched."""
        self._watched = False

    def take(self, position: int, event: Event) -> None:
        match event:
            case BookieAnswered():
                self._watched = True
                if self._unwatched is not None:
                    self._has_quorum(self._unwatched)
                if event.status == "EOK" and event.operation.endswith("add"):
                    self._stored.setdefault((event.ledger, event.entry_id), set()).add(event.bookie)
            case LedgerCreated():
                self._quorums.setdefault(event.ledger, event.sizes[2])
            case AppendAcknowledged() if event.ledger not in self._quorums:
                pass  # somebody else's
            case AppendAcknowledged() if self._watched:
                self._has_quorum(event)
            case AppendAcknowledged():
                self._unwatched = self._unwatched or event
            case _:
                pass

    def _has_quorum(self, event: AppendAcknowledged) -> None:
        self.looked += 1
        bookies = self._stored.get((event.ledger, event.entry_id), set())
        wanted = self._quorums[event.ledger]
        if len(bookies) < wanted:
            raise LacAheadOfQuorum(
                f"ledger {event.ledger}: entry {event.entry_id} was acknowledged when {sorted(bookies)} had "
                f"answered, not {wanted}",
                event,
            )


class ConfirmedReadsStayBelowTheLac(Rule):
    """P10: of entries that were delivered as confirmed, and of last adds confirmed that readers were told."""

    id = "P10"
    hears = (ReadDone, LacRead, MetadataSeen)

    def __init__(self) -> None:
        super().__init__()
        self._furthest: dict[str, tuple[int, ReadDone | LacRead]] = {}
        """The last entry known to be confirmed, and who was told."""
        self._sealed: dict[str, MetadataSeen] = {}

    def take(self, position: int, event: Event) -> None:
        if isinstance(event, MetadataSeen):
            if event.state == "CLOSED" and self._sealed.setdefault(event.ledger, event) is event:
                self._ends_above(event.ledger)
        elif isinstance(event, LacRead):
            self._reaches(event.lac, event)
        elif isinstance(event, ReadDone) and event.confirmed and event.contents:
            self._is_clean(event)

    def _is_clean(self, read: ReadDone) -> None:
        if read.last > read.lac:
            raise DirtyRead(f"ledger {read.ledger}: entry {read.last} was read at LAC {read.lac}", read)
        self._reaches(read.last, read)

    def _reaches(self, last: int, told: ReadDone | LacRead) -> None:
        self.looked += 1
        furthest = self._furthest.get(told.ledger)
        if furthest is None or last > furthest[0]:
            self._furthest[told.ledger] = last, told
            self._ends_above(told.ledger)

    def _ends_above(self, ledger: str) -> None:
        furthest, sealed = self._furthest.get(ledger), self._sealed.get(ledger)
        if furthest is None or sealed is None or furthest[0] <= sealed.last_entry:
            return
        last, told = furthest
        was = "was read" if isinstance(told, ReadDone) else "was said to be confirmed"
        seen = f"ledger {ledger}: entry {last} {was}, and the ledger ends at {sealed.last_entry}"
        raise DirtyRead(seen, told, sealed)
