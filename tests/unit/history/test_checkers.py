"""Every checker accepts a history in which all is right, and refuses one in which its invariant is broken."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from tests.history import events
from tests.history.check_metadata import INTRUDER
from tests.history.contents import BAD_DIGEST
from tests.history.events import Event, Fault, History, LedgerCreated, ReadDone, Recovered, StrangerAnswered
from tests.history.metadata_events import GONE, ChangeEnded, GuestAnswered, LedgerShown, QuotaSet, StoreChanged
from tests.history.recorder import Recorder
from tests.history.rules_access import FORMER, STRANGE_LAC, STRANGER
from tests.history.verdict import CHECKERS, RULES, check_history, judge_so_far, watch
from tests.history.violations import InvariantViolated
from tests.unit.history.good_history import BOOKIES, CONTENTS, answered, good_history, holds, metadata

Change = Callable[[History], History]


def replaced(kind: type[Event], number: int = 0, **changes: object) -> Change:
    """The event of that kind, counted from 0 (or from the end), with other values."""

    def change(history: History) -> History:
        positions = [position for position, event in enumerate(history) if isinstance(event, kind)]
        position = positions[number]
        return [*history[:position], replace(history[position], **changes), *history[position + 1 :]]  # type: ignore[arg-type]

    return change


def without(kind: type[Event], number: int = 0) -> Change:
    def change(history: History) -> History:
        position = [position for position, event in enumerate(history) if isinstance(event, kind)][number]
        return history[:position] + history[position + 1 :]

    return change


def with_last(*added: Event) -> Change:
    return lambda history: [*history, *added]


def with_late_answer(bookie: str, entry_id: int, operation: str, status: str, **values: object) -> Change:
    def change(history: History) -> History:
        answer = answered(bookie, entry_id, operation, status, arrived_after=len(history))
        return [*history, replace(answer, **values)]  # type: ignore[arg-type]

    return change


def changes(*several: Change) -> Change:
    def change(history: History) -> History:
        for each in several:
            history = each(history)
        return history

    return change


def stranger(operation: str, status: str, **values: object) -> StrangerAnswered:
    answer = StrangerAnswered(3.0, "b1", STRANGER, "7", operation, status, tells=False, arrived_after=0)
    return replace(answer, **values)  # type: ignore[arg-type]


MOVED = ("b1", "b2", "b4")
OTHER = ("w/7/0/10", "w/7/2/10", "w/7/1/10")
STRANGE = ("w/7/0/10", "nobody/7/1/10", "w/7/2/10")
MISSING_ON_TWO = changes(
    with_last(holds("b1", entries=CONTENTS[:1]), holds("b2", entries=CONTENTS[:1])),
)
LATE_FAILURE = events.ReadFailed(3.0, "h", "7", 0, 1, "ReadException")

FAILED_RECOVERY = events.RecoveryFailed(3.0, "h", "7", "LedgerRecoveryException")

BROKEN: dict[str, tuple[str, Change]] = {
    "a denied change in the store": ("A1", with_last(StoreChanged(3.0, "7", 4, 99, f"{INTRUDER}/1"))),
    "a denied removal that was done": ("A1", with_last(ChangeEnded(3.0, INTRUDER, "m", "remove", "done", "7", -1))),
    "more ledgers than a quota": (
        "A2",
        with_last(QuotaSet(3.0, "h", 1), *(StoreChanged(3.0, ledger, 0, 90, f"h/{ledger}") for ledger in "123")),
    ),
    "another's ledger is shown": (
        "A5",
        with_last(StoreChanged(3.0, "1", 0, 90, "w/1"), LedgerShown(3.0, "h", "1", "listing")),
    ),
    "a password is told": ("A5", with_last(GuestAnswered(3.0, "g", "h", "Read", tells=True))),
    "a request of a stranger is served": ("A4", with_last(stranger("add", "EOK"))),
    "a stranger is told that there is no entry": ("A4", with_last(stranger("fencing-read", "ENOENTRY"))),
    "an error for who can't be the owner": ("A4", with_last(stranger("add", "EIO", client=FORMER))),
    "a refusal has the entry": ("A4", with_last(stranger("read", "EUA", tells=True))),
    "who may read no more writes": ("A4", with_last(stranger("add", "EOK", client=FORMER))),
    "a stranger's fence holds": ("A4", with_last(stranger("fencing-read", "EUA"), answered("b9", 5, status="EFENCED"))),
    "a bookie holds a fence that nobody asked for": ("A4", with_last(stranger("fencing-read", "EUA"), holds("b9"))),
    "a stranger's entry is stored": (
        "A4",
        with_last(stranger("add", "EUA"), holds("b9", fenced=False, entries=(f"{STRANGER}/7/1/20",))),
    ),
    "a stranger's LAC is told": ("A4", with_last(events.LacRead(3.0, "h", "7", STRANGE_LAC + 1))),
    "another policy does not count": (
        "A3",
        with_last(events.PolicyReplaced(3.0), stranger("read", "EOK", client=FORMER, arrived_after=1000)),
    ),
    "another content is read": ("P1", replaced(ReadDone, 0, contents=OTHER)),
    "a read fails after healing": ("P1", with_last(LATE_FAILURE)),
    "too few copies of an acknowledged entry": ("P1", MISSING_ON_TWO),
    "closed below an acknowledged entry": ("P2", replaced(events.MetadataSeen, 2, last_entry=0)),
    "the writer closed otherwise": ("P2", with_last(events.Closed(1.5, "w", "7", 1, 20))),
    "too few copies of an entry of a closed ledger": ("P3", MISSING_ON_TWO),
    "a copy too few where all are guaranteed": (
        "G2",
        changes(replaced(LedgerCreated, 0, guaranteed=True), with_last(holds("b1", entries=CONTENTS[:1]))),
    ),
    "entries in another order": ("P4", replaced(ReadDone, 1, contents=OTHER)),
    "an entry of nobody": ("P4", replaced(ReadDone, 1, contents=STRANGE)),
    "two contents on two bookies": ("P4", with_last(holds("b2", entries=OTHER))),
    "a bookie twice": ("P5", replaced(events.MetadataSeen, 0, fragments=((0, ("b1", "b1", "b2")),))),
    "fragments that go back": ("P5", replaced(events.MetadataSeen, 0, fragments=((0, BOOKIES), (0, BOOKIES)))),
    "first fragment above 0": ("P5", replaced(events.MetadataSeen, 0, fragments=((1, BOOKIES),))),
    "opened again": ("P6", with_last(metadata(3, "OPEN"))),
    "a version skipped": ("P6", replaced(events.MetadataSeen, 1, version=-1)),
    "the end moved": ("P6", with_last(metadata(3, "CLOSED", last_entry=1, length=20))),
    "two values of a version": ("P6", with_last(metadata(1, "OPEN", "x"))),
    "an add behind the fence": ("P7", with_late_answer("b2", 9, "add", "EOK")),
    "an add of what was missing": ("P8", with_late_answer("b2", 3, "add", "EOK", arrived_after=0)),
    "acknowledged out of order": ("P9", replaced(events.AppendAcknowledged, 0, entry_id=1)),
    "the LAC goes back": ("P9", replaced(events.WriterLac, 1, lac=-1)),
    "acknowledged by one bookie": (
        "P9",
        changes(without(events.BookieAnswered, 0), without(events.BookieAnswered, 0)),
    ),
    "read above the LAC": ("P10", replaced(ReadDone, 0, lac=1)),
    "read above the end": ("P10", with_last(ReadDone(3.0, "t", "7", 3, ("w/7/3/10",), 9))),
    "told of more than the end": ("P10", with_last(events.LacRead(3.0, "t", "7", 3))),
    "two ends": ("P11", replaced(Recovered, 1, last_entry=1)),
    "never closed": ("P12", changes(without(Recovered, 1))),
    "recovery fails for ever": ("P12", with_last(events.RecoveryAsked(2.5, "h", "7"), FAILED_RECOVERY)),
    "not read whole": ("P12", replaced(ReadDone, 1, contents=CONTENTS[:2])),
    "replay lost an entry": ("S1", with_last(holds("b3", entries=CONTENTS[:2]))),
    "collection took a living ledger": (
        "S2",
        with_last(events.LedgerCollected(3.0, "b3", "7"), holds("b3", entries=())),
    ),
    "damage answered as missing": ("S3", with_late_answer("b3", 1, "read", "ENOENTRY")),
    "what a damaged file held is denied": (
        "S8",
        changes(with_last(Fault(3.0, events.DAMAGED_FILE, "b3")), with_late_answer("b3", 1, "read", "ENOLEDGER")),
    ),
    "a wiped bookie serves": ("S4", with_last(Fault(3.0, "wipe", "b3"), events.BookieStarted(3.0, "b3"))),
    "lost with the power": (
        "S5",
        lambda history: replaced(events.BookieHolds, 0, ledgers=holds("b1", entries=CONTENTS[:2]).ledgers)(history),
    ),
    "a fence lost": ("S6", with_last(holds("b2", fenced=False))),
    "a wrong key let in": ("S7", with_late_answer("b2", 9, "recovery-add", "EOK", wrong_key=True)),
    "a new life takes an old writer's add": (
        "R9",
        changes(
            with_last(metadata(0, "OPEN", ledger="8")),
            with_last(Fault(3.0, events.BEGUN_ANEW, "b2"), events.BookieStarted(3.0, "b2")),
            with_late_answer("b2", 9, "add", "EOK", ledger="8"),
        ),
    ),
    "a complete fragment changed by no repair": ("P6", with_last(metadata(3, "CLOSED", fragments=((0, MOVED),)))),
    "a repair that moves a border": (
        "R7",
        with_last(events.LedgerRepaired(3.0, "7", 3), metadata(3, "CLOSED", fragments=((0, BOOKIES), (2, MOVED)))),
    ),
    "created twice": ("D1", with_last(LedgerCreated(3.0, "x", "7", (3, 3, 2), "other"))),
    "the record of another": ("D1", with_last(metadata(2, "CLOSED", "x", tag="eight"))),
}


def test_a_good_history_is_accepted() -> None:
    verdict = check_history(good_history())
    assert not verdict.violations, verdict
    assert all(verdict.looked[invariant] for invariant in ("P1", "P3", "P7", "P8", "P9", "S1", "S5", "S6", "S7", "P12"))


def test_who_removes_a_ledger_may_create_another() -> None:
    first, second = (StoreChanged(3.0, ledger, 0, 90, f"h/{ledger}") for ledger in "12")
    of_another = StoreChanged(3.0, "3", 0, 91, "other/3")
    kept = [QuotaSet(3.0, "h", 1), first, of_another, StoreChanged(3.0, "1", 1, 92, "other/4")]
    verdict = check_history(with_last(*kept, StoreChanged(3.0, "1", GONE, 93, ""), second)(good_history()))
    assert "A2" not in verdict.broken
    assert verdict.looked["A2"] == 2


def test_who_has_a_ledger_is_shown_it() -> None:
    own = [
        StoreChanged(3.0, "1", 0, 90, "h/1"),
        StoreChanged(3.0, "1", 1, 91, "w/2"),
        LedgerShown(3.0, "h", "1", "read"),
    ]
    verdict = check_history(with_last(*own, GuestAnswered(3.0, "g", "h", "Read", tells=False))(good_history()))
    assert "A5" not in verdict.broken
    assert verdict.looked["A5"] == 2


def test_who_may_is_served_until_the_policy_is_replaced_and_fences_that_were_asked_for_hold() -> None:
    asked = [events.FenceAsked(3.0, bookie, "7") for bookie in BOOKIES]
    reads = [stranger("read", status, client=FORMER) for status in ("EOK", "ENOENTRY")]
    refused = stranger("read", "EUA", client=FORMER, arrived_after=1000)
    after = [*reads, stranger("add", "EUA"), stranger("add", "EIO"), events.PolicyReplaced(3.0), reads[0], refused]
    fenced = [answered("b1", 5, status="EFENCED"), holds("b1")]
    verdict = check_history(with_last(*asked, *after, *fenced)(good_history()))
    assert {"A3", "A4"}.isdisjoint(verdict.broken), verdict
    assert verdict.looked["A3"] == 1
    assert verdict.looked["A4"] == 4


def test_what_a_bookie_doubts_takes_no_adds_without_a_fence_and_none_once_it_is_verified() -> None:
    in_doubt = replace(holds("b9"), ledgers=tuple(replace(each, limbo=True) for each in holds("b9").ledgers))
    verified = [holds("b9"), answered("b9", 5, status="EFENCED")]
    wiped = [Fault(3.0, events.BEGUN_ANEW, "b8"), holds("b8")]
    verdict = check_history(with_last(in_doubt, stranger("add", "EUA"), *verified, *wiped)(good_history()))
    assert "A4" not in verdict.broken, verdict


def test_a_repair_may_replace_members_of_complete_fragments() -> None:
    repaired = metadata(3, "CLOSED", fragments=((0, MOVED),))
    history = with_last(events.LedgerRepaired(3.0, "7", 3), repaired)(good_history())
    verdict = check_history(history)
    assert {"P6", "R7"}.isdisjoint(verdict.broken)
    assert verdict.looked["R7"] == 1


def test_who_was_replaced_may_deny_what_it_held() -> None:
    moved = with_last(events.LedgerRepaired(3.0, "7", 3), metadata(3, "CLOSED", fragments=((0, MOVED),)))
    (left,), (stays, *_) = set(BOOKIES) - set(MOVED), sorted(set(BOOKIES) & set(MOVED))
    for bookie, broken in ((left, False), (stays, True)):
        denied = with_late_answer(bookie, 1, "read", "ENOENTRY", at=4.0)
        assert ("S3" in check_history(changes(moved, denied)(good_history())).broken) is broken


def test_a_fragment_that_is_not_the_last_has_all_copies_where_they_are_guaranteed() -> None:
    moved = with_last(metadata(3, "OPEN", fragments=((0, BOOKIES), (2, MOVED))))
    for guaranteed in (False, True):
        history = changes(replaced(LedgerCreated, 0, guaranteed=guaranteed), moved, with_last(holds("b1", entries=())))
        assert ("G1" in check_history(history(good_history())).broken) is guaranteed


@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_invariant_is_found(name: str) -> None:
    invariant, change = BROKEN[name]
    assert invariant in check_history(change(good_history())).broken


def test_every_invariant_has_a_history_that_breaks_it() -> None:
    others = {invariant for invariant in {*CHECKERS, *(rule.id for rule in RULES)} if not invariant.startswith("M")}
    assert {invariant for invariant, _ in BROKEN.values()} == {*others, "S1", "S2", "S5", "S6"}


def violations_while_it_grows(history: History) -> list[tuple[str, int]]:
    """Which invariants were told to be broken, and how long the history was then."""
    told: list[tuple[str, int]] = []
    recorder = Recorder(lambda: 0.0)
    watch(recorder, lambda violation: told.append((violation.id, len(recorder.history))), first=5)
    for event in history:
        recorder.add(event)
    return told


def test_no_beginning_of_a_good_history_breaks_anything() -> None:
    history = good_history()
    assert not violations_while_it_grows(history)
    for length in range(len(history)):
        assert not judge_so_far(history[:length]).violations


@pytest.mark.parametrize("name", [name for name, (broken, _) in BROKEN.items() if broken in {r.id for r in RULES}])
def test_a_rule_speaks_at_the_event_that_breaks_it(name: str) -> None:
    invariant, change = BROKEN[name]
    history = change(good_history())
    told = violations_while_it_grows(history)
    length = next(length for broken, length in told if broken == invariant)
    assert invariant in check_history(history[:length]).broken
    assert invariant not in check_history(history[: length - 1]).broken


def test_what_only_a_stretch_shows_is_found_before_the_end() -> None:
    _, change = BROKEN["another content is read"]
    history = change(good_history())
    told = violations_while_it_grows([*history, *[events.LacRead(3.0, "h", "7", 0)] * len(history)])
    assert told[0][0] == "P1"


def test_a_bookie_that_lost_a_file_may_have_lost_the_key() -> None:
    let_in = with_late_answer("b2", 9, "recovery-add", "EOK", wrong_key=True)
    for damaged, broken in (("b2", False), ("b1", True)):
        change = changes(with_last(Fault(3.0, events.DAMAGED_FILE, damaged, "7.idx remove")), let_in)
        assert ("S7" in check_history(change(good_history())).broken) is broken


@pytest.mark.parametrize(
    ("state", "moved", "broken"),
    [
        ("OPEN", "first", False),
        ("OPEN", "meanwhile", False),
        ("OPEN", "later", True),
        ("CLOSED", "first", True),
        ("CLOSED", "meanwhile", True),
    ],
)
def test_a_new_life_may_take_adds_of_open_ledgers_that_had_left_the_bookie(
    state: str, moved: str, broken: bool
) -> None:
    named = with_last(metadata(0, state, ledger="8"))
    left = with_last(metadata(1, state, ledger="8", fragments=((0, MOVED),)))
    (old,) = set(BOOKIES) - set(MOVED)
    begun, serves = (with_last(each) for each in (Fault(3.0, events.BEGUN_ANEW, old), events.BookieStarted(3.0, old)))
    order = {"first": (left, begun, serves), "meanwhile": (begun, left, serves), "later": (begun, serves, left)}[moved]
    late = with_late_answer(old, 9, "add", "EOK", ledger="8")
    assert ("R9" in check_history(changes(named, *order, late)(good_history())).broken) is broken


def test_a_bookie_may_deny_what_lies_behind_the_end() -> None:
    """It had acknowledged it, and the recovery that has closed the ledger passed it over."""
    beyond = [with_late_answer("b2", 9, "add", "EOK"), with_late_answer("b2", 9, "read", "ENOENTRY")]
    for end, broken in (("CLOSED", False), ("OPEN", True)):
        open_again = [] if end == "CLOSED" else [with_last(metadata(3, "OPEN"))]
        assert ("S3" in check_history(changes(*open_again, *beyond)(good_history())).broken) is broken


def test_a_deleted_ledger_is_promised_nothing() -> None:
    gone = [events.DeleteAsked(3.0, "d", "7"), events.LedgerCollected(3.0, "b1", "7")]
    history = [*good_history(), *gone, *(holds(bookie, fenced=False, entries=()) for bookie in BOOKIES)]
    assert not check_history(history).violations


def test_what_a_writer_is_told_after_the_deletion_is_no_promise() -> None:
    history = good_history()
    late = replace(next(each for each in history if isinstance(each, events.AppendAcknowledged)), at=4.0, entry_id=5)
    assert "P2" in check_history([*history, late]).broken
    assert "P2" not in check_history([*history, events.DeleteAsked(3.0, "d", "7"), late]).broken
    assert "P2" in check_history([*history, late, events.DeleteAsked(5.0, "d", "7")]).broken


def test_unforced_entries_of_a_deferred_ledger_may_be_lost() -> None:
    def deferred(history: History, lac: int) -> History:
        history = replaced(LedgerCreated, 0, deferred_sync=True)(history)
        changed = [
            replace(event, operation="deferred-add")
            if isinstance(event, events.BookieAnswered) and event.operation == "add"
            else event
            for event in history
        ]
        changed = [event for event in changed if not isinstance(event, events.WriterLac)]
        return [*changed, events.Forced(3.0, "w", "7", lac), *(holds(b, entries=CONTENTS[:1]) for b in BOOKIES)]

    assert "P1" in check_history(deferred(good_history(), 1)).broken
    assert "P1" not in check_history(deferred(good_history(), 0)).broken


def test_a_lost_bookie_excuses_its_copies() -> None:
    damaged = [Fault(0.5, "corrupt", "b1"), holds("b1", entries=())]
    assert not check_history([*good_history(), *damaged]).violations
    assert "P1" in check_history([*good_history(), *damaged, holds("b2", entries=()), holds("b3", entries=())]).broken


def test_a_recovery_that_began_in_bad_times_may_fail_in_good_ones() -> None:
    begun = events.RecoveryAsked(0.5, "h", "7")
    assert "P12" not in check_history([*good_history(), begun, FAILED_RECOVERY]).broken


def test_a_torn_copy_is_excused_only_where_nothing_was_promised() -> None:
    torn = f"{BAD_DIGEST}of entry 3"
    held = (*CONTENTS, torn)
    promised = [answered("b3", 3, "add", "EOK"), holds("b3", entries=held)]
    assert "P4" not in check_history([*good_history(), holds("b3", entries=held)]).broken
    assert "P4" in check_history([*good_history(), *promised]).broken


def test_nobody_can_go_on_where_an_ack_quorum_holds_torn_copies() -> None:
    held = (*CONTENTS, f"{BAD_DIGEST}of entry 3")
    failed = [*good_history(), events.RecoveryAsked(2.5, "h", "7"), FAILED_RECOVERY]
    assert "P12" in check_history([*failed, holds("b3", entries=held)]).broken
    assert "P12" not in check_history([*failed, holds("b3", entries=held), holds("b2", entries=held)]).broken


def test_a_read_that_began_before_healing_may_fail_after_it() -> None:
    verdict = check_history([*good_history(), replace(LATE_FAILURE, asked_at=0.5)])
    assert not verdict.violations


def test_a_violation_says_what_was_seen() -> None:
    (violation,) = (v for v in check_history([*good_history(), LATE_FAILURE]).violations if v.id == "P1")
    assert isinstance(violation, InvariantViolated)
    assert "P1 does not hold: an acknowledged entry is readable" in str(violation)
    assert "entries 0 to 1 can't be read" in str(violation)
    assert "ReadFailed" in str(violation)
