"""Which bookies are lost, and when their ledgers are to be marked. Pure; times are milliseconds since 1970.

A bookie that belongs to the cluster, according to its cookie or a ledger, and is not registered is *missed*, from the
moment that an auditor first recorded in the store; an auditor that takes over thus continues with the same time (R13).
One that has been missed for the delay, according to the record or to what this auditor has seen itself, is *lost*: a
record by a clock that was ahead delays nothing. A registered bookie, writable or not, is neither; one that is to be
emptied is lost no earlier than any other, but its ledgers are marked too.

When more than half of the bookies, and at least two, are missed at once, it is more likely that something else is
wrong, such as the network or the store: that is a *storm*. During a storm no bookie is considered lost until an
operator orders an audit. Bookies whose loss is *settled* do not count, however many they have become over time. Only
the auditor knows which losses are settled; it therefore records in the store that it holds back, and why (`HeldBack`),
for others that ask.

Source: docs/protocol/auto-recovery.md#lost-bookies. Not its job: finding the ledgers and marking them (`auditor`).
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

_STORM_SHARE = 0.5
_LEAST_OF_A_STORM = 2

HELD_BACK = "held_back"
"""The key of the record, among those of the auditor's progress. There is one in a storm only."""


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


@dataclass(frozen=True, slots=True)
class HeldBack:
    """Why an auditor marks nothing, in a storm."""

    missed: tuple[str, ...]
    """Bookies that are missed, without those whose loss is settled; in order."""
    known: int
    """Of so many bookies, again without those."""

    def encode(self) -> bytes:
        return json.dumps({"missed": self.missed, "known": self.known}, sort_keys=True).encode()

    @classmethod
    def decode(cls, record: bytes) -> HeldBack | None:
        """None for what can't be read: the next call of the roll writes it anew."""
        try:
            told = json.loads(record)
            return cls(tuple(map(str, told["missed"])), int(told["known"]))
        except (ValueError, TypeError, KeyError):
            return None


@dataclass(frozen=True, slots=True)
class Verdict:
    """What follows from a roll call."""

    to_note: tuple[str, ...]
    """Bookies that are missed and not noted yet."""
    to_forget: tuple[str, ...]
    """Bookies that are noted as missed and are not any more."""
    lost: tuple[str, ...]
    draining: tuple[str, ...]
    """Bookies to be emptied."""
    held_back: HeldBack | None
    """In a storm, also while an audit is ordered."""
    next_in_ms: int | None
    """After how long the next bookie would be lost, if none comes or goes before."""

    @property
    def storm(self) -> bool:
        return self.held_back is not None


def call_the_roll(roll: Roll, delay_ms: int, now_ms: int, *, ordered: bool = False) -> Verdict:
    """Judges who is missed and who is lost.

    Args:
        roll: What is known.
        delay_ms: How long a bookie may be missed before it is lost.
        now_ms: The time.
        ordered: Somebody has ordered an audit: who is missed is lost now, storm or not.

    Returns:
        The verdict.
    """
    missed = sorted(set(roll.known) - set(roll.present))
    settled = set(missed) & set(roll.settled)
    fresh = tuple(each for each in missed if each not in settled)
    counted = len(set(roll.known) - settled)
    storm = len(fresh) >= _LEAST_OF_A_STORM and len(fresh) > _STORM_SHARE * counted
    left = {
        each: delay_ms - max(now_ms - roll.missed_since.get(each, now_ms), roll.away_ms.get(each, 0)) for each in missed
    }
    lost = [each for each in missed if ordered or (left[each] <= 0 and not (storm and each not in settled))]
    waiting = [left[each] for each in missed if each not in lost and left[each] > 0]
    return Verdict(
        to_note=tuple(each for each in missed if each not in roll.missed_since),
        to_forget=tuple(sorted(each for each in roll.missed_since if each not in missed)),
        lost=tuple(lost),
        draining=tuple(sorted(set(roll.draining) - set(missed))),
        held_back=HeldBack(fresh, counted) if storm else None,
        next_in_ms=min(waiting, default=None),
    )
