"""Checkers of what a bookie holds: S1, S2, S3, S5, S6 and S8. They need a history in which bookies were watched.

A bookie's answers are promises: an entry, once acknowledged with sync, and a fence, once answered, are there after
every restart, until the ledger is deleted. Bookies whose disk was damaged or wiped are excused from what they hold,
never from what they answer falsely.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from tests.history import events
from tests.history.events import BookieAnswered, BookieHolds, Fault
from tests.history.history_index import BookieHistory, HistoryIndex, ensemble_of
from tests.history.rules_bookies import FENCE_ANSWERS, NEGATIVE
from tests.history.violations import (
    AcknowledgedBeforeSync,
    DamageAnsweredAsMissing,
    DeniedWhatItLost,
    FenceNotDurable,
    InvariantViolated,
    LivingLedgerCollected,
    ReplayLost,
)


def _deleted(story: HistoryIndex, ledger: str, position: int) -> bool:
    return story.deleted_at.get(ledger, position) < position


@dataclass
class _Promises:
    """What one bookie has to hold, as its answers say."""

    entries: dict[str, dict[int, tuple[int, BookieAnswered]]] = field(default_factory=dict)
    """Durable for certain: ledger, entry id, position and answer."""
    deferred: dict[str, dict[int, tuple[int, BookieAnswered]]] = field(default_factory=dict)
    fences: dict[str, BookieAnswered] = field(default_factory=dict)
    life_began: int = 0
    lost_power: bool = False

    def take(self, position: int, event: BookieAnswered) -> None:
        if event.operation == "fencing-read" and event.status in FENCE_ANSWERS:
            self.fences.setdefault(event.ledger, event)
        if event.status != "EOK":
            return
        if event.operation in ("add", "recovery-add"):
            self.entries.setdefault(event.ledger, {}).setdefault(event.entry_id, (position, event))
        elif event.operation == "deferred-add":
            self.deferred.setdefault(event.ledger, {}).setdefault(event.entry_id, (position, event))
        elif event.operation == "force":
            for entry_id, (answered, add) in list(self.deferred.get(event.ledger, {}).items()):
                if answered < event.arrived_after:
                    self.entries.setdefault(event.ledger, {}).setdefault(entry_id, (position, add))
                    del self.deferred[event.ledger][entry_id]

    def give_up(self, ledger: str) -> None:
        """Its copies are surplus. What comes of the ledger later is promised anew; that it was fenced P7 knows."""
        self.entries.pop(ledger, None)
        self.deferred.pop(ledger, None)
        self.fences.pop(ledger, None)

    def begin_life(self, position: int) -> None:
        self.deferred.clear()
        self.life_began, self.lost_power = position, False


def bookies_keep_what_they_acknowledged(story: HistoryIndex) -> dict[str, int]:
    """S1, S2, S5, S6: whenever a bookie was looked at, after a start or at the end, it held what it had promised.

    Which of them is broken follows from what happened: a loss of power took what this life had acknowledged (S5); else
    replay or the checkpoint lost it (S1). Fences are S6. A ledger that nobody deleted must not be collected (S2).
    """
    looked = {"S1": 0, "S2": 0, "S5": 0, "S6": 0}
    for bookie in story.bookies.values():
        if bookie.bookie in story.lost_bookies:
            continue
        _check_promises(story, bookie, looked)
    return looked


def _check_promises(story: HistoryIndex, bookie: BookieHistory, looked: dict[str, int]) -> None:
    promises = _Promises()
    for position, event in bookie.events:
        match event:
            case BookieAnswered():
                promises.take(position, event)
            case events.LedgerCollected():
                looked["S2"] += 1
                ledger = story.ledgers.get(event.ledger)
                if ledger is not None and ledger.created and not _deleted(story, event.ledger, position):
                    raise LivingLedgerCollected(f"{bookie.bookie} collected ledger {event.ledger}, which exists", event)
            case events.SurplusCollected():
                promises.give_up(event.ledger)
            case Fault(kind=events.POWER_LOSS):
                promises.lost_power = True
            case BookieHolds():
                _compare(story, bookie.bookie, promises, position, event, looked)
                promises.begin_life(position)


def _compare(
    story: HistoryIndex, bookie: str, promises: _Promises, position: int, held: BookieHolds, looked: dict[str, int]
) -> None:
    stored = {each.ledger: (each.fenced, {entry_id for entry_id, _ in each.entries}) for each in held.ledgers}
    for ledger, fence in promises.fences.items():
        if _deleted(story, ledger, position):
            continue
        looked["S6"] += 1
        if not stored.get(ledger, (False, ()))[0]:
            raise FenceNotDurable(f"{bookie} has lost the fence of ledger {ledger}", fence)
    for ledger, entries in promises.entries.items():
        if _deleted(story, ledger, position):
            continue
        present = stored.get(ledger, (False, set[int]()))[1]
        looked["S1"] += len(entries)
        looked["S5"] += len(entries) if promises.lost_power else 0
        for entry_id, (answered, answer) in entries.items():
            if entry_id not in present:
                kind = _lost_by(promises, answered)
                seen = f"{bookie} has lost entry {entry_id} of ledger {ledger}, which it had acknowledged"
                raise kind(seen, answer)


def _lost_by(promises: _Promises, answered: int) -> type[InvariantViolated]:
    if promises.lost_power and answered >= promises.life_began:
        return AcknowledgedBeforeSync
    return ReplayLost


def damage_is_not_answered_as_missing(story: HistoryIndex) -> int:
    """S3: an entry that a bookie had acknowledged is never answered as missing, whatever became of its disk."""
    bookies = (bookie for bookie in story.bookies.values() if not _lost_a_file(bookie))
    return _nothing_promised_is_denied(story, bookies, DamageAnsweredAsMissing)


def lost_files_are_not_answered_as_missing(story: HistoryIndex) -> int:
    """S8: nor is one that was in a file of which a start found less than there had been."""
    bookies = (bookie for bookie in story.bookies.values() if _lost_a_file(bookie))
    return _nothing_promised_is_denied(story, bookies, DeniedWhatItLost)


def _lost_a_file(bookie: BookieHistory) -> bool:
    return any(isinstance(event, Fault) and event.kind == events.DAMAGED_FILE for _, event in bookie.events)


def _is_placed(story: HistoryIndex, bookie: str, answer: BookieAnswered) -> bool:
    """Whether the metadata place the entry at the bookie; once another one has its place it may let go of its copy.

    So it may of what lies behind the end of a closed ledger.
    """
    ledger = story.ledgers.get(answer.ledger)
    seen = [each for each in ledger.metadata if each.at <= answer.at] if ledger is not None else []
    newest = max(seen, key=lambda each: each.version, default=None)
    if newest is not None and newest.state == "CLOSED" and answer.entry_id > newest.last_entry:
        return False
    return newest is None or bookie in ensemble_of(newest, answer.entry_id)


def _nothing_promised_is_denied(
    story: HistoryIndex, bookies: Iterable[BookieHistory], violation: type[InvariantViolated]
) -> int:
    looked = 0
    for bookie in bookies:
        promises = _Promises()
        for position, event in bookie.events:
            if isinstance(event, BookieHolds | events.BookieStarted):
                promises.begin_life(position)
            if not isinstance(event, BookieAnswered):
                continue
            promises.take(position, event)
            if "read" not in event.operation or event.entry_id < 0:
                continue
            looked += 1
            promised = promises.entries.get(event.ledger, {}).get(event.entry_id)
            if promised is None or event.status not in NEGATIVE or _deleted(story, event.ledger, position):
                continue
            if promised[0] < event.arrived_after and _is_placed(story, bookie.bookie, event):
                raise violation(
                    f"{bookie.bookie} answered {event.status} for entry {event.entry_id} of ledger {event.ledger}",
                    promised[1],
                    event,
                )
    return looked
