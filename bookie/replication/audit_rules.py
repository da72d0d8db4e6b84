"""Which bookies are lost, and when their ledgers are to be marked. Pure; times are milliseconds since 1970.

A bookie that belongs to the cluster, as its cookie says, and is not registered is *missed*, from the moment that an
auditor first noted in the store; so an auditor that takes over goes on with the same time (R13). One that has been
missed for the delay, by the note or as this auditor has seen itself, is *lost*: a note by a clock that was ahead keeps
nobody waiting. One that is registered, writable or not, is neither; one that is to be emptied is lost
no earlier than any other, but its ledgers are marked too.

When more than half of the bookies, and at least two, are missed at once, it is more likely that something else is
wrong, such as the network or the store: that is a *storm*. Nothing is held lost in a storm until somebody orders an
audit. Source: docs/protocol/auto-recovery.md#lost-bookies.

Not its job: finding the ledgers and marking them (`auditor`).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

_STORM_SHARE = 0.5
_LEAST_OF_A_STORM = 2


@dataclass(frozen=True, slots=True)
class Roll:
    """What an auditor knows when it calls the roll."""

    known: Collection[str]
    """Bookies with a cookie, or registered."""
    present: Collection[str]
    """Registered bookies, writable or read-only."""
    missed_since: Mapping[str, int]
    """As noted in the store."""
    draining: Collection[str]
    """To be emptied."""
    away_ms: Mapping[str, int] = field(default_factory=dict)
    """For how long this auditor itself has missed bookies, whatever its clock was set to."""


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
    storm: bool
    next_in_ms: int | None
    """After how long the next bookie would be lost, if none comes or goes before."""


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
    storm = len(missed) >= _LEAST_OF_A_STORM and len(missed) > _STORM_SHARE * len(set(roll.known))
    left = {
        each: delay_ms - max(now_ms - roll.missed_since.get(each, now_ms), roll.away_ms.get(each, 0)) for each in missed
    }
    lost = [each for each in missed if ordered or (not storm and left[each] <= 0)]
    waiting = [left[each] for each in missed if each not in lost and left[each] > 0]
    return Verdict(
        to_note=tuple(each for each in missed if each not in roll.missed_since),
        to_forget=tuple(sorted(each for each in roll.missed_since if each not in missed)),
        lost=tuple(lost),
        draining=tuple(sorted(set(roll.draining) - set(missed))),
        storm=storm,
        next_in_ms=min(waiting, default=None),
    )
