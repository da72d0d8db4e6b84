"""A history sorted by ledger: what the checkers look things up in. Made from a history that is over, or goes on."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from bookgate.ledger.quorum import write_set
from tests.history import events, metadata_events
from tests.history.contents import BAD_DIGEST
from tests.history.events import Event, History, MetadataSeen


@dataclass
class LedgerHistory:
    """One ledger. Lists are in the order of the history."""

    ledger: str
    created: list[events.LedgerCreated] = field(default_factory=list)
    asked: dict[int, events.AppendAsked] = field(default_factory=dict)
    """By the number of the append."""
    acknowledged: list[events.AppendAcknowledged] = field(default_factory=list)
    forced: list[events.Forced] = field(default_factory=list)
    writer_lacs: list[events.WriterLac] = field(default_factory=list)
    closed: list[events.Closed] = field(default_factory=list)
    recoveries_asked: list[events.RecoveryAsked] = field(default_factory=list)
    recovered: list[events.Recovered] = field(default_factory=list)
    reads: list[events.ReadDone] = field(default_factory=list)
    read_failures: list[events.ReadFailed] = field(default_factory=list)
    metadata: list[MetadataSeen] = field(default_factory=list)
    delete_asked: list[events.DeleteAsked] = field(default_factory=list)
    failures: list[events.RecoveryFailed | events.CloseFailed | events.AppendFailed] = field(default_factory=list)

    def take(self, event: Event) -> None:
        if isinstance(event, events.AppendAsked):
            self.asked[event.append] = event
        elif (name := _LISTS.get(type(event))) is not None:
            getattr(self, name).append(event)

    @property
    def deferred_sync(self) -> bool:
        return any(created.deferred_sync for created in self.created)

    @property
    def guaranteed(self) -> bool:
        """Whether it has a guaranteed write quorum."""
        return any(created.guaranteed for created in self.created)

    @cached_property
    def acknowledged_contents(self) -> dict[int, events.AppendAcknowledged]:
        """By entry id."""
        return {event.entry_id: event for event in self.acknowledged}

    def content_of(self, acknowledged: events.AppendAcknowledged) -> str:
        return self.asked[acknowledged.append].content

    @property
    def durable_to(self) -> int:
        """The highest entry that must not be lost: acknowledged, and forced where sync is deferred.

        A bookie that has collected a deleted ledger may not know any more that it was fenced, so what a writer is told
        after the deletion counts for nothing.
        """
        until = min((asked.at for asked in self.delete_asked), default=math.inf)
        if self.deferred_sync:
            return max((forced.lac for forced in self.forced if forced.at <= until), default=-1)
        return max((event.entry_id for event in self.acknowledged if event.at <= until), default=-1)

    @cached_property
    def newest(self) -> MetadataSeen | None:
        return max(self.metadata, key=lambda seen: seen.version, default=None)


_LISTS: dict[type[Event], str] = {
    events.LedgerCreated: "created",
    events.AppendAcknowledged: "acknowledged",
    events.Forced: "forced",
    events.WriterLac: "writer_lacs",
    events.Closed: "closed",
    events.RecoveryAsked: "recoveries_asked",
    events.Recovered: "recovered",
    events.ReadDone: "reads",
    events.ReadFailed: "read_failures",
    MetadataSeen: "metadata",
    events.DeleteAsked: "delete_asked",
    events.RecoveryFailed: "failures",
    events.CloseFailed: "failures",
    events.AppendFailed: "failures",
}
"""Where a ledger keeps events of each kind."""
_OF_BOOKIES = frozenset(
    (
        events.BookieAnswered,
        events.BookieStarted,
        events.BookieHolds,
        events.LedgerCollected,
        events.SurplusCollected,
    )
)
_OF_METADATA = frozenset(
    (events.Fault, *(kind for kind in vars(metadata_events).values() if getattr(kind, "__base__", None) is Event))
)


def ensemble_of(seen: MetadataSeen, entry_id: int) -> tuple[str, ...]:
    """The bookies that hold an entry by this record, in write set order."""
    ensemble = next(ensemble for first, ensemble in reversed(seen.fragments) if first <= entry_id)
    return tuple(ensemble[index] for index in write_set(entry_id, len(ensemble), seen.sizes[1]))


@dataclass
class BookieHistory:
    """One bookie's events with their positions in the history."""

    bookie: str
    events: list[tuple[int, Event]] = field(default_factory=list)


class HistoryIndex:
    """Everything of a history that the checkers ask for."""

    def __init__(self, history: History, *, over: bool = True) -> None:
        self.history = history
        self.over = over
        """Whether the run has ended: only then must all be there that is to come."""
        self.ledgers: dict[str, LedgerHistory] = {}
        self.bookies: dict[str, BookieHistory] = {}
        self.lost_bookies: set[str] = set()
        """Bookies whose data were damaged or destroyed at some time."""
        self.healed_at: int | None = None
        for position, event in enumerate(history):
            self._take(position, event)

    def _take(self, position: int, event: Any) -> None:
        kind = type(event)
        if kind in _OF_BOOKIES:
            self._bookie(event.bookie).events.append((position, event))
        elif kind is events.Fault:
            if event.kind in events.LOSES_DATA:
                self.lost_bookies.add(event.target)
            self._bookie(event.target).events.append((position, event))
        elif kind is events.Healed:
            self.healed_at = position
        elif isinstance(ledger := getattr(event, "ledger", None), str):
            self._ledger(ledger).take(event)

    def _bookie(self, bookie: str) -> BookieHistory:
        found = self.bookies.get(bookie)
        if found is None:
            found = self.bookies[bookie] = BookieHistory(bookie)
        return found

    def _ledger(self, ledger: str) -> LedgerHistory:
        found = self.ledgers.get(ledger)
        if found is None:
            found = self.ledgers[ledger] = LedgerHistory(ledger)
        return found

    @cached_property
    def of_metadata(self) -> list[Event]:
        """What happened around gateways, and the faults between."""
        return [event for event in self.history if type(event) in _OF_METADATA]

    def kept_ledgers(self) -> Iterator[LedgerHistory]:
        """Ledgers that were created and that nobody asked to delete."""
        return (ledger for ledger in self.ledgers.values() if ledger.created and not ledger.delete_asked)

    @cached_property
    def holdings(self) -> dict[str, dict[str, dict[int, str]]]:
        """What each bookie held at the end of the run: bookie, ledger, entry id, content. Nothing before the end,
        since a bookie goes on after it was looked at."""
        found: dict[str, dict[str, dict[int, str]]] = {}
        for event in self.history if self.over else ():
            if isinstance(event, events.BookieHolds):
                found[event.bookie] = {held.ledger: dict(held.entries) for held in event.ledgers}
        return found

    @cached_property
    def promised(self) -> set[tuple[str, str, int]]:
        """Bookie, ledger and entry of what bookies acknowledged as durable."""
        return {
            (event.bookie, event.ledger, event.entry_id)
            for event in self.history
            if isinstance(event, events.BookieAnswered) and event.promises_an_entry
        }

    def is_torn(self, bookie: str, ledger: str, entry_id: int, content: str) -> bool:
        """Whether what a bookie holds is a damaged copy of which it had promised nothing.

        A loss of power may leave one of what was on its way to the journal, whose records have no checksum.
        """
        return content.startswith(BAD_DIGEST) and (bookie, ledger, entry_id) not in self.promised

    def torn_at(self, ledger: str) -> set[str]:
        """Bookies that hold torn copies in the end."""
        return {
            bookie
            for bookie, held in self.holdings.items()
            for entry_id, content in held.get(ledger, {}).items()
            if self.is_torn(bookie, ledger, entry_id, content)
        }

    @cached_property
    def deleted_at(self) -> dict[str, int]:
        """Position of the first wish to delete each such ledger."""
        found: dict[str, int] = {}
        for position, event in enumerate(self.history):
            if isinstance(event, events.DeleteAsked):
                found.setdefault(event.ledger, position)
        return found

    def in_reach(self, seen: MetadataSeen, entry_id: int, without: Collection[str] = ()) -> bool:
        """Whether fewer bookies than the ack quorum of the entry's write set have lost data, or are to be left out."""
        bookies = ensemble_of(seen, entry_id)
        lost = sum(bookie in self.lost_bookies or bookie in without for bookie in bookies)
        return lost < seen.sizes[2]
