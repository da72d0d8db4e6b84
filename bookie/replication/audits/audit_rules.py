"""Which bookies are lost, and when their ledgers are to be marked. Pure; times are milliseconds since 1970.

A bookie that belongs to the cluster, according to its cookie or a ledger, and is not registered is *missed*, from the
moment that an auditor first recorded in the store; an auditor that takes over thus continues with the same time (R13).
One that has been missed for the delay, according to the record or to what this auditor has seen itself, is *lost*: a
record by a clock that was ahead delays nothing. A registered bookie, writable or not, is neither; one that is to be
emptied is lost no earlier than any other, but its ledgers are marked too.

When too large a share of the bookies, and at least two, or of those of one rack, and at least three, were first missed
within a while, it is more likely that something else is wrong, such as the network or the store: that is a *storm*.
During a storm no bookie that it is about, any or those of the rack, is considered lost until an operator orders an
audit. Those that would be lost are *held*: only ledgers of which an entry has one copy left beside them are repaired.
Bookies whose loss is *settled* do not count, however many they have become over time. Only the auditor knows which
losses are settled; it therefore records in the store that it holds back, and why (`HeldBack`), for others that ask.

Source: docs/protocol/auto-recovery.md#lost-bookies. Not its job: finding the ledgers and marking them (`auditor`).
"""

from __future__ import annotations

import json
from bisect import bisect_right
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

_LEAST_OF_A_STORM = 2
_LEAST_OF_A_RACK = 3
"""A rack may be one host: that of two bookies is an ordinary loss."""

HELD_BACK = "held_back"
"""The key of the record, among those of the auditor's progress. There is one in a storm only."""


@dataclass(frozen=True, slots=True)
class MassLoss:
    """What makes losses a storm."""

    share: float = 0.5
    """More than this share of all bookies, or of those of one rack, are missed."""
    window_ms: int = 600_000
    """They were first missed within so long; 0: whenever."""


@dataclass(frozen=True, slots=True)
class Roll:
    """What an auditor knows when it calls the roll."""

    known: Collection[str]
    """Bookies with a cookie, or registered, or named by a ledger."""
    present: Collection[str]
    """Registered bookies, writable or read-only."""
    missed_since: Mapping[str, int]
    """As noted in the store."""
    draining: Collection[str]
    """To be emptied."""
    away_ms: Mapping[str, int] = field(default_factory=dict)
    """For how long this auditor itself has missed bookies, whatever its clock was set to."""
    settled: Collection[str] = ()
    """Bookies that hold nothing any more, or whose loss was dealt with a while ago."""
    racks: Mapping[str, str] = field(default_factory=dict)
    """Of the bookies whose rack is known."""


@dataclass(frozen=True, slots=True)
class HeldBack:
    """Why an auditor marks next to nothing, in a storm."""

    missed: tuple[str, ...]
    """Bookies that are missed, without those whose loss is settled; in order."""
    known: int
    """Of so many bookies, again without those."""
    rack: str | None = None
    """Only bookies of this rack are meant, or of these, by commas; None: all."""

    @property
    def in_words(self) -> str:
        """For people."""
        where = "bookies are" if self.rack is None else f"bookies of rack {self.rack} are"
        return f"{len(self.missed)} of {self.known} {where} missed at once"

    def encode(self) -> bytes:
        told = {"missed": self.missed, "known": self.known, **({} if self.rack is None else {"rack": self.rack})}
        return json.dumps(told, sort_keys=True).encode()

    @classmethod
    def decode(cls, record: bytes) -> HeldBack | None:
        """None for what can't be read: the next call of the roll writes it anew."""
        try:
            told = json.loads(record)
            rack = told.get("rack")
            return cls(tuple(map(str, told["missed"])), int(told["known"]), None if rack is None else str(rack))
        except (ValueError, TypeError, KeyError, AttributeError):
            return None


@dataclass(frozen=True, slots=True)
class Verdict:
    """What follows from a roll call."""

    to_note: tuple[str, ...]
    """Bookies that are missed and not noted yet."""
    to_forget: tuple[str, ...]
    """Bookies that are noted as missed and are not any more."""
    missed: tuple[str, ...]
    lost: tuple[str, ...]
    held: tuple[str, ...]
    """Missed bookies that would be lost but for the storm."""
    draining: tuple[str, ...]
    """Bookies to be emptied."""
    held_back: HeldBack | None
    """In a storm, also while an audit is ordered."""
    next_in_ms: int | None
    """After how long the next bookie would be lost, if none comes or goes before."""

    @property
    def storm(self) -> bool:
        return self.held_back is not None


def call_the_roll(
    roll: Roll, delay_ms: int, now_ms: int, *, ordered: bool = False, mass_loss: MassLoss | None = None
) -> Verdict:
    """Judges who is missed and who is lost.

    Args:
        roll: What is known.
        delay_ms: How long a bookie may be missed before it is lost.
        now_ms: The time.
        ordered: Somebody has ordered an audit: who is missed is lost now, storm or not.
        mass_loss: What is a storm.

    Returns:
        The verdict.
    """
    missed = sorted(set(roll.known) - set(roll.present))
    settled = set(missed) & set(roll.settled)
    held_back = _storm(roll, [each for each in missed if each not in settled], now_ms, mass_loss or MassLoss())
    left = {
        each: delay_ms - max(now_ms - roll.missed_since.get(each, now_ms), roll.away_ms.get(each, 0)) for each in missed
    }
    due = [each for each in missed if ordered or left[each] <= 0]
    held = [each for each in due if held_back is not None and not ordered and each in held_back.missed]
    waiting = [left[each] for each in missed if each not in due and left[each] > 0]
    return Verdict(
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
    """Where too many of the bookies that count are missed: in the whole cluster, or else in racks.

    `fresh` are the missed ones, in order, without those whose loss is settled."""
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
    """How many of the times at most lie within one window; all of them without one."""
    ordered = sorted(times)
    if window_ms <= 0:
        return len(ordered)
    return max((bisect_right(ordered, first + window_ms) - at for at, first in enumerate(ordered)), default=0)
