"""All rules and checkers over one history. G and U ids have no checker yet: there are no such ledgers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

from tests.history import check_bookies, check_entries, check_ledgers, check_metadata
from tests.history.events import History
from tests.history.history_index import HistoryIndex
from tests.history.recorder import Recorder
from tests.history.rules import Rule, Rules, Watch
from tests.history.rules_access import LedgersAreKept, PoliciesCountAtOnce, QuotasHold, StrangersAreRefused
from tests.history.rules_bookies import (
    FencesHold,
    ForeignDirectoriesAreRefused,
    NegativesStay,
    NewLivesTakeNoOldAdds,
    WrongKeysAreRefused,
)
from tests.history.rules_discovery import BookiesAreNotOlder
from tests.history.rules_entries import (
    AcknowledgementsAreContiguous,
    ConfirmedReadsStayBelowTheLac,
    QuorumsHaveAnswered,
)
from tests.history.rules_ledgers import (
    FragmentsAreValid,
    MetadataMovesForward,
    RecoveriesAgree,
    RepairsReplaceMembersOnly,
)
from tests.history.violations import InvariantViolated

Checker = Callable[[HistoryIndex], int]
"""Returns how many things it looked at. Raises InvariantViolated."""

CHECKERS: dict[str, Checker] = {
    "P1": check_entries.acknowledged_entries_are_readable,
    "P2": check_ledgers.closed_ledgers_keep_what_was_confirmed,
    "P3": check_entries.closed_ledgers_have_their_copies,
    "P4": check_entries.entries_keep_their_order,
    "G2": check_entries.guaranteed_ledgers_are_fully_replicated,
    "P12": check_ledgers.all_goes_on_once_healed,
    "S3": check_bookies.damage_is_not_answered_as_missing,
    "S8": check_bookies.lost_files_are_not_answered_as_missing,
    "M1": check_metadata.watch_answers_grow,
    "M2": check_metadata.newest_is_delivered,
    "M3": check_metadata.resumed_watches_miss_nothing,
    "M4": check_metadata.clients_never_read_backwards,
    "M5": check_metadata.listings_are_whole,
    "M6": check_metadata.lost_outcomes_are_resolved,
    "M7": check_metadata.store_watches_are_few,
    "A1": check_metadata.denied_calls_change_nothing,
    "D1": check_ledgers.ledgers_are_not_mixed_up,
}

RULES: tuple[type[Rule], ...] = (
    # First: what a stranger did would break others too.
    StrangersAreRefused,
    PoliciesCountAtOnce,
    QuotasHold,
    LedgersAreKept,
    FragmentsAreValid,
    MetadataMovesForward,
    BookiesAreNotOlder,
    FencesHold,
    NegativesStay,
    AcknowledgementsAreContiguous,
    QuorumsHaveAnswered,
    ConfirmedReadsStayBelowTheLac,
    RecoveriesAgree,
    RepairsReplaceMembersOnly,
    ForeignDirectoriesAreRefused,
    WrongKeysAreRefused,
    NewLivesTakeNoOldAdds,
)


def new_rules() -> Rules:
    """That have heard nothing yet."""
    return Rules(rule() for rule in RULES)


REPAIR_INVARIANTS = ("R1", "R2", "R3", "R4", "R5", "R6", "R7", "R8", "R9", "R10", "R11", "R13", "R14", "R15")
"""What auto-recovery is put to. Of R4 this is that ensembles name nobody twice; who holds a lock, and that no copy that
is named goes, shows on ZooKeeper's tree (R17, R16)."""
PEER_INVARIANTS = ("R12", "R16", "R17", "R18")
"""What shows on ZooKeeper's tree: who holds locks and votes there, and what others do meanwhile."""
ENTRY_INVARIANTS = ("A3", "A4")
"""What bookies are put to in worlds under a policy."""
DATA_INVARIANTS = (
    *(f"P{number}" for number in range(1, 13)),
    *(f"S{number}" for number in range(1, 9)),
    "D1",
    "G2",
    *REPAIR_INVARIANTS,
)
"""Everything that clients and bookies are put to, in order; those of gateways are the checkers' M1 to M7."""


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


def check_history(history: History, rules: Rules | None = None) -> Verdict:
    """Of a run that is over: every rule and every checker; each tells its first violation.

    `rules`: those that have heard every event already; without them the history is played to new ones.
    """
    if rules is None:
        rules = new_rules()
        for event in history:
            rules.take(event)
    verdict = Verdict([*rules.violations], rules.looked)
    _ask_checkers(HistoryIndex(history), verdict)
    return verdict


def judge_so_far(history: History) -> Verdict:
    """Of a run that goes on: what the checkers can say by now. Rules hear each event when it happens (`Watch`)."""
    verdict = Verdict()
    _ask_checkers(HistoryIndex(history, over=False), verdict)
    return verdict


def watch(recorder: Recorder, fail: Callable[[InvariantViolated], None], first: int) -> Watch:
    """Judges what a recorder records from here on; `fail` ends the run. See Watch."""
    history = recorder.history
    watching = Watch(history, new_rules(), lambda: judge_so_far(history).violations, fail, first)
    recorder.listeners.append(watching)
    return watching


def _ask_checkers(story: HistoryIndex, verdict: Verdict) -> None:
    for invariant, checker in CHECKERS.items():
        try:
            verdict.looked[invariant] += checker(story)
        except InvariantViolated as violation:
            verdict.violations.append(violation)
    try:
        verdict.looked.update(check_bookies.bookies_keep_what_they_acknowledged(story))
    except InvariantViolated as violation:
        verdict.violations.append(violation)
