"""Decides which bookies are lost, and when their ledgers are to be marked. Pure; times are milliseconds since 1970.

A bookie that belongs to the cluster, according to its cookie or a ledger, and is not registered is *missed*, from the
moment that an auditor first recorded in the store; an auditor that takes over thus continues with the same time (R13).
A bookie that has been missed for the delay, according to the record or to this auditor's own observation, is *lost*: a
record by a clock that was ahead causes no delay. A registered bookie, writable or not, is neither. A bookie to be
emptied is lost no earlier than any other, but its ledgers are marked too.

If too large a share of all bookies (at least two), or of those of one rack (at least three), were first missed within
a short time, something else is probably wrong, such as the network or the store: this is a *storm*. During a storm none
of the bookies concerned (all, or those of the rack) is considered lost until an operator requests an audit. Those that
would be lost are *held*: only ledgers with an entry that has one copy left without them are repaired. Bookies whose
loss is *settled* do not count, however many there are, and neither do bookies that only ledgers name: whoever may
create a ledger can name bookies that never were, and so cause a storm that never ends. Only the auditor knows which
bookies count; it therefore records in the store that it holds back, and why (`HeldBack`), for other processes.

Source: docs/protocol/auto-recovery.md#lost-bookies. Not its job: finding the ledgers and marking them (`auditor`).
"""

from __future__ import annotations

import json
from bisect import bisect_right
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

_LEAST_OF_A_STORM = 2
_LEAST_OF_A_RACK = 3
"""Least number of missed bookies that make a storm in a rack: a rack may be one host, whose loss is ordinary."""

HELD_BACK = "held_back"
"""The key of the record, among those of the auditor's progress. It exists during a storm only."""


@dataclass(frozen=True, slots=True)
class MassLoss:
    """The definition of a storm."""

    share: float = 0.5
    """More than this share of all bookies, or of those of one rack, must be missed."""
    window_ms: int = 600_000
    """Milliseconds within which they were first missed; 0 for any time."""


@dataclass(frozen=True, slots=True)
class Roll:
    """The auditor's knowledge at a roll call."""

    known: Collection[str]
    """Bookies with a cookie, or registered, or named by a ledger."""
    present: Collection[str]
    """Registered bookies, writable or read-only."""
    missed_since: Mapping[str, int]
    """The time since when each bookie is missed, as recorded in the store."""
    draining: Collection[str]
    """Bookies to be emptied."""
    away_ms: Mapping[str, int] = field(default_factory=dict)
    """Milliseconds for which this auditor itself has missed bookies, by a monotonic clock."""
    settled: Collection[str] = ()
    """Bookies that no ledger names, or whose loss has been handled."""
    only_named: Collection[str] = ()
    """Bookies that ledgers name, and of which this auditor has seen neither a cookie nor a registration."""
    racks: Mapping[str, str] = field(default_factory=dict)
    """The racks of bookies, as far as known."""


@dataclass(frozen=True, slots=True)
class HeldBack:
    """The reason why an auditor holds back marks in a storm."""

    missed: tuple[str, ...]
    """Missed bookies that count, in order: neither those whose loss is settled, nor those that only ledgers name."""
    known: int
    """Number of all bookies that count."""
    rack: str | None = None
    """The rack concerned, or several racks separated by commas; None for all bookies."""

    @property
    def in_words(self) -> str:
        """A description for people."""
        where = "bookies are" if self.rack is None else f"bookies of rack {self.rack} are"
        return f"{len(self.missed)} of {self.known} {where} missed at once"

    def encode(self) -> bytes:
        told = {"missed": self.missed, "known": self.known, **({} if self.rack is None else {"rack": self.rack})}
        return json.dumps(told, sort_keys=True).encode()

    @classmethod
    def decode(cls, record: bytes) -> HeldBack | None:
        """Decodes a record; None if it can't be read: the next roll call writes it again."""
        try:
            told = json.loads(record)
            rack = told.get("rack")
            return cls(tuple(map(str, told["missed"])), int(told["known"]), None if rack is None else str(rack))
        except (ValueError, TypeError, KeyError, AttributeError):
            return None


@dataclass(frozen=True, slots=True)
class RollCallResult:
    """The result of a roll call."""

    to_note: tuple[str, ...]
    """Missed bookies that are not recorded yet."""
    to_forget: tuple[str, ...]
    """Bookies that are recorded as missed but are not missed any more."""
    missed: tuple[str, ...]
    lost: tuple[str, ...]
    held: tuple[str, ...]
    """Missed bookies that would be lost without the storm."""
    draining: tuple[str, ...]
    """Bookies to be emptied."""
    held_back: HeldBack | None
    """Set during a storm, also while an audit is requested."""
    next_in_ms: int | None
    """Milliseconds until the next bookie would be lost, if registrations do not change."""

    @property
    def storm(self) -> bool:
        return self.held_back is not None


def call_the_roll(
    roll: Roll, delay_ms: int, now_ms: int, *, ordered: bool = False, mass_loss: MassLoss | None = None
) -> RollCallResult:
    """Decides which bookies are missed and which are lost.

    Args:
        roll: The auditor's knowledge.
        delay_ms: How long a bookie may be missed before it is lost.
        now_ms: The current time.
        ordered: An operator has requested an audit: missed bookies are lost now, even in a storm.
        mass_loss: The definition of a storm.

    Returns:
        The verdict.
    """
    missed = sorted(set(roll.known) - set(roll.present))
    uncounted = {*roll.settled, *roll.only_named}
    held_back = _storm(roll, [each for each in missed if each not in uncounted], now_ms, mass_loss or MassLoss())
    left = {
        each: delay_ms - max(now_ms - roll.missed_since.get(each, now_ms), roll.away_ms.get(each, 0)) for each in missed
    }
    due = [each for each in missed if ordered or left[each] <= 0]
    held = [each for each in due if held_back is not None and not ordered and each in held_back.missed]
    waiting = [left[each] for each in missed if each not in due and left[each] > 0]
    return RollCallResult(
        to_note=tuple(each for each in missed if each not in roll.missed_since),
        to_forget=tuple(sorted(each for each in roll.missed_since if each not in missed)),
        missed=tuple(missed),
        lost=tuple(each for each in due if each not in held),
        held=tuple(held),
        draining=tuple(sorted(set(roll.draining) - set(missed))),
        held_back=held_back,
        next_in_ms=min(waiting, default=None),
    )


def _storm(roll: Roll, fresh: Sequence[str], now_ms: int, mass_loss: MassLoss) -> HeldBack | None:
    """The storm, if too many of the bookies that count are missed, in the whole cluster or else in racks.

    `fresh` are the missed bookies that count, in order."""
    counted = {*roll.present, *fresh} & set(roll.known)
    if _are_too_many(roll, fresh, len(counted), _LEAST_OF_A_STORM, now_ms, mass_loss):
        return HeldBack(tuple(fresh), len(counted))
    found: list[str] = []
    held: set[str] = set()
    known = 0
    for rack in sorted({roll.racks[each] for each in fresh if each in roll.racks}):
        there = {each for each in counted if roll.racks.get(each) == rack}
        missed = there.intersection(fresh)
        if _are_too_many(roll, missed, len(there), _LEAST_OF_A_RACK, now_ms, mass_loss):
            found.append(rack)
            held |= missed
            known += len(there)
    return HeldBack(tuple(sorted(held)), known, ", ".join(found)) if found else None


def _are_too_many(
    roll: Roll, missed: Collection[str], known: int, least: int, now_ms: int, mass_loss: MassLoss
) -> bool:
    times = [roll.missed_since.get(each, now_ms) for each in missed]
    at_once = _most_within(times, mass_loss.window_ms)
    return at_once >= least and at_once > mass_loss.share * known


def _most_within(times: Iterable[int], window_ms: int) -> int:
    """The largest number of times within one window; all of them if the window is 0."""
    ordered = sorted(times)
    if window_ms <= 0:
        return len(ordered)
    return max((bisect_right(ordered, first + window_ms) - at for at, first in enumerate(ordered)), default=0)
