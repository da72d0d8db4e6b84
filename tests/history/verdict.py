"""All checkers over one history. G and U ids have no checker yet: there are no such ledgers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

from tests.history import check_bookies, check_entries, check_ledgers, check_metadata
from tests.history.events import History
from tests.history.story import Story
from tests.history.violations import InvariantViolated

Checker = Callable[[Story], int]
"""Returns how many things it looked at. Raises InvariantViolated."""

CHECKERS: dict[str, Checker] = {
    "P1": check_entries.acknowledged_entries_are_readable,
    "P2": check_ledgers.closed_ledgers_keep_what_was_confirmed,
    "P3": check_entries.closed_ledgers_have_their_copies,
    "P4": check_entries.entries_keep_their_order,
    "P5": check_ledgers.fragments_are_valid,
    "P6": check_ledgers.metadata_moves_forward,
    "P7": check_bookies.fences_hold,
    "P8": check_bookies.negatives_are_not_taken_back,
    "P9": check_entries.acknowledgements_are_contiguous,
    "P10": check_entries.confirmed_reads_stay_below_the_lac,
    "P11": check_ledgers.recoveries_agree,
    "P12": check_ledgers.all_goes_on_once_healed,
    "S3": check_bookies.damage_is_not_answered_as_missing,
    "S4": check_bookies.foreign_directories_are_refused,
    "S7": check_bookies.wrong_keys_are_refused,
    "M1": check_metadata.watch_answers_grow,
    "M2": check_metadata.newest_is_delivered,
    "M3": check_metadata.resumed_watches_miss_nothing,
    "M4": check_metadata.clients_never_read_backwards,
    "M5": check_metadata.listings_are_whole,
    "M6": check_metadata.lost_outcomes_are_resolved,
    "M7": check_metadata.store_watches_are_few,
    "D1": check_ledgers.ledgers_are_not_mixed_up,
}

INVARIANTS = (*(f"P{number}" for number in range(1, 13)), *(f"S{number}" for number in range(1, 8)), "D1")
"""Everything that is looked at, in order."""


@dataclass
class Verdict:
    """What the checkers found. `looked` counts by invariant; one of 0 was not put to the test."""

    violations: list[InvariantViolated] = field(default_factory=list)
    looked: Counter[str] = field(default_factory=Counter)

    @property
    def broken(self) -> list[str]:
        return [violation.id for violation in self.violations]

    def __str__(self) -> str:
        return "\n\n".join(map(str, self.violations)) or "every invariant holds"


def judge(history: History) -> Verdict:
    """Runs every checker; each tells its first violation."""
    story, verdict = Story(history), Verdict()
    for invariant, checker in CHECKERS.items():
        try:
            verdict.looked[invariant] += checker(story)
        except InvariantViolated as violation:
            verdict.violations.append(violation)
    try:
        verdict.looked.update(check_bookies.bookies_keep_what_they_acknowledged(story))
    except InvariantViolated as violation:
        verdict.violations.append(violation)
    return verdict
