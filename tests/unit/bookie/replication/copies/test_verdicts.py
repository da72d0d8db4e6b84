"""What follows from what is known of the copies of a ledger."""

from __future__ import annotations

import time
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyroaring import BitMap64

from bookgate.bookie.replication.copies.fragments import complete_fragments
from bookgate.bookie.replication.copies.verdicts import (
    Copies,
    Findings,
    Holding,
    Lost,
    Unknown,
    copies_left,
    has_last_copies,
    judge,
    lacking,
    missing_twice,
)
from bookgate.ledger.metadata import LedgerMetadata
from tests.unit.bookie.replication.copies.test_fragments import BOOKIES, ledger


def whole(metadata: LedgerMetadata) -> dict[str, Copies]:
    """Every bookie holds what it is due to hold, and nothing else."""
    held: dict[str, Copies] = {bookie: Holding(BitMap64()) for bookie in BOOKIES}
    for fragment in complete_fragments(metadata):
        for index, bookie in enumerate(fragment.ensemble):
            state = held[bookie]
            assert isinstance(state, Holding)
            held[bookie] = Holding(state.entries | fragment.due(index))
    return held


CLOSED = ledger((0, 5), 9)


def found(copies: dict[str, Copies], metadata: LedgerMetadata = CLOSED) -> Findings:
    return judge(metadata, copies)


def test_a_whole_ledger_needs_nothing() -> None:
    assert found(whole(CLOSED)).whole


def test_the_places_of_a_lost_bookie_are_taken_by_others() -> None:
    findings = found({**whole(CLOSED), "b:1": Lost()})
    places = [(r.fragment.first_entry_id, r.index, r.bookie_id, r.replace) for r in findings.repairs]
    assert places == [(0, 1, "b:1", True), (5, 0, "b:1", True)]
    assert all(repair.missing == repair.due for repair in findings.repairs)
    assert not findings.unrecoverable


def test_a_bookie_that_lives_and_lacks_entries_is_refilled() -> None:
    copies = whole(CLOSED)
    state = copies["a:1"]
    assert isinstance(state, Holding)
    copies["a:1"] = Holding(state.entries - BitMap64([0, 3]))
    (repair,) = found(copies).repairs
    assert (repair.bookie_id, repair.replace, list(repair.missing)) == ("a:1", False, [0, 3])


def test_what_only_one_bookie_holds_is_a_last_copy() -> None:
    copies = whole(CLOSED)
    assert all(repair.last_copies for repair in found({**copies, "b:1": Lost()}).repairs)
    three = ledger((0, 5), 9, (3, 3))
    (first, _) = found({**whole(three), "b:1": Lost()}, three).repairs
    assert not first.last_copies
    lost = found({**whole(three), "b:1": Lost(), "c:1": Lost()}, three).repairs
    last = [(repair.fragment.first_entry_id, repair.bookie_id) for repair in lost if repair.last_copies]
    assert last == [(0, "b:1"), (0, "c:1"), (5, "b:1"), (5, "c:1")]


def test_a_bookie_that_is_to_be_emptied_is_replaced_although_it_holds_all() -> None:
    copies = whole(CLOSED)
    state = copies["a:1"]
    assert isinstance(state, Holding)
    copies["a:1"] = Holding(state.entries, draining=True)
    (repair,) = found(copies).repairs
    assert (repair.bookie_id, repair.replace, len(repair.missing)) == ("a:1", True, 0)


def test_unknown_is_neither_missing_nor_whole() -> None:
    findings = found({**whole(CLOSED), "b:1": Unknown("it did not answer")})
    assert not findings.repairs
    assert not findings.unrecoverable
    assert findings.unknown == ("b:1: it did not answer",)
    assert not findings.whole


def test_the_only_entry_of_a_last_fragment_without_a_copy_is_unrecoverable() -> None:
    """AR2: the ledger is closed at that entry, so it was there, although every bookie lives and denies it."""
    closed = ledger((0, 9), 9)
    copies = whole(closed)
    for name, state in copies.items():
        assert isinstance(state, Holding)
        copies[name] = Holding(state.entries - BitMap64([9]))
    findings = found(copies, closed)
    assert list(findings.unrecoverable) == [9]
    assert not findings.whole


def test_an_entry_without_any_copy_is_unrecoverable() -> None:
    one = ledger((0,), 3, (3, 1))
    findings = found({**whole(one), "b:1": Lost()}, one)
    assert list(findings.unrecoverable) == [1]
    assert not findings.repairs


def test_an_entry_that_an_unknown_bookie_may_hold_is_not_given_up() -> None:
    copies: dict[str, Copies] = {**whole(CLOSED), "a:1": Lost(), "b:1": Unknown("limbo"), "c:1": Lost()}
    findings = found(copies)
    assert 0 not in findings.unrecoverable, "entry 0 is on a and b"
    assert 2 in findings.unrecoverable, "entry 2 is on c and a"
    assert findings.unknown


def test_an_entry_that_a_bookie_may_have_in_limbo_is_not_given_up() -> None:
    in_limbo: dict[str, Copies] = {**whole(CLOSED), "a:1": Lost(), "b:1": Holding(BitMap64(), limbo=True)}
    findings = found(in_limbo)
    assert 0 not in findings.unrecoverable, "entry 0 is on a and b"
    assert findings.unknown
    assert 0 in found({**in_limbo, "b:1": Holding(BitMap64())}).unrecoverable


def test_a_ledger_of_which_its_bookies_hold_nothing_is_judged_as_a_whole() -> None:
    """Not entry by entry: metadata may claim thousands of millions."""
    many = ledger((0,), (1 << 31) - 1, (3, 3))
    nothing: dict[str, Copies] = {"a:1": Holding(BitMap64()), "b:1": Lost(), "c:1": Holding(BitMap64([5]))}
    assert len(found(nothing, many).unrecoverable) == (1 << 31) - 1
    findings = found({**nothing, "b:1": Unknown("refused")}, many)
    assert not findings.unrecoverable
    assert findings.unknown == ("b:1: refused",)


def test_the_fragment_that_is_written_is_left_alone() -> None:
    written = ledger((0,), None)
    findings = found({**whole(written), "b:1": Lost()}, written)
    assert not findings.repairs
    assert findings.lost_where_written == ("b:1",)


def test_a_ledger_that_is_written_is_whole_once_all_of_its_last_ensemble_have_answered() -> None:
    written = ledger((0,), None)
    assert found(whole(written), written).whole
    findings = found({**whole(written), "b:1": Unknown("refused")}, written)
    assert not findings.whole
    assert findings.unknown == ("b:1: refused",)
    beside_a_loss = found({**whole(written), "a:1": Lost(), "b:1": Unknown("refused")}, written)
    assert not beside_a_loss.unknown, "the recovery finds out"


def test_the_end_of_a_ledger_is_lost_with_all_that_may_have_acknowledged_it() -> None:
    one_acknowledges = ledger((0, 5), None)
    two_acknowledge = replace(one_acknowledges, ack_quorum_size=2)
    for metadata, lost, expected in (
        (one_acknowledges, ("b:1",), True),
        (two_acknowledge, ("b:1",), False),
        (two_acknowledge, ("b:1", "c:1"), True),
        (one_acknowledges, ("a:1",), False),  # of the fragment before
        (ledger((0, 5), 9), ("b:1",), False),  # closed: its end is known
    ):
        copies: dict[str, Copies] = {**whole(metadata), **{bookie_id: Lost() for bookie_id in lost}}
        assert found(copies, metadata).end_is_lost is expected, (metadata, lost)


def test_one_answer_alone_makes_nothing_missing() -> None:
    first, second = Holding(BitMap64([1])), Holding(BitMap64([2]))
    assert missing_twice(first, second) == Holding(BitMap64([1, 2]))
    assert missing_twice(first, Unknown("gone")) == Unknown("gone")
    assert missing_twice(Unknown("gone"), second) == second


def test_the_danger_is_that_of_the_worst_entry() -> None:
    assert copies_left(CLOSED, []) == 2
    assert copies_left(CLOSED, ["b:1"]) == 1
    assert copies_left(CLOSED, ["b:1", "c:1"]) == 0


@pytest.mark.parametrize(("size", "quorum"), [(1, 1), (3, 3), (5, 1), (5, 2), (7, 4)])
def test_the_copies_of_each_write_set_are_counted(size: int, quorum: int) -> None:
    members = tuple(f"{number}:1" for number in range(size))
    metadata = LedgerMetadata.new(members, quorum, 1).close(size - 1, 100)
    (fragment,) = complete_fragments(metadata)
    write_sets = [fragment.write_set(entry_id) for entry_id in range(size)]
    for gone in (members[:1], members[1:], members[-2:], members[::2], members, ()):
        left = [sum(member not in gone for member in each) for each in write_sets]
        assert copies_left(metadata, gone) == min(left)
        assert has_last_copies(metadata, gone) is (1 in left and quorum > 1)


def test_a_wide_ensemble_takes_no_longer_than_its_bookies_are_many() -> None:
    """Any client can create one as wide as metadata have room for; each write set on its own would take minutes."""
    members = [f"{number}:1" for number in range(50_000)]
    metadata = LedgerMetadata.new(members, len(members), 1).close(99_999, 100)
    began = time.process_time()
    assert copies_left(metadata, members[:1]) == len(members) - 1
    assert not has_last_copies(metadata, members[:1])
    assert time.process_time() - began < 5.0


def test_entries_that_have_one_copy_left_are_told_from_such_as_have_more_or_none() -> None:
    three = ledger((0, 5), 9, (3, 3))
    members = three.fragments[0].ensemble
    assert not has_last_copies(three, members[:1])
    assert has_last_copies(three, members[:2])
    # Nothing helps those that have none, and one that never had another is no worse off than before.
    assert not has_last_copies(ledger((0,), 9, (3, 3)), members)
    assert not has_last_copies(ledger((0,), 9, (3, 1)), ["z:1"])
    assert not has_last_copies(ledger((0,), 9, (3, 1)), members[:1])
    # What is still written, and what holds nothing, does not count.
    assert not has_last_copies(ledger((0,), None, (3, 3)), members[:2])
    assert has_last_copies(ledger((0, 5), None, (3, 3)), members[:2])
    assert not has_last_copies(ledger((0,), -1, (3, 3)), members[:2])
    # With fewer copies than bookies it depends on which entries there are.
    assert not has_last_copies(ledger((0,), 0, (3, 2)), members[2:])
    assert has_last_copies(ledger((0,), 1, (3, 2)), members[2:])


STATES = st.one_of(
    st.just(Lost()),
    st.just(Unknown("?")),
    st.builds(Holding, st.builds(BitMap64, st.sets(st.integers(0, 9)))),
)


@given(st.fixed_dictionaries(dict.fromkeys(BOOKIES, STATES)))
def test_whatever_is_known_every_place_is_accounted_for(copies: dict[str, Copies]) -> None:
    """A place holds all, is repaired from what somebody holds, lacks what is lost for good, or is not known."""
    findings = found(copies)
    repaired = {(repair.fragment.first_entry_id, repair.index) for repair in findings.repairs}
    for fragment in complete_fragments(CLOSED):
        held = BitMap64()
        for index, bookie in enumerate(fragment.ensemble):
            state = copies[bookie]
            if isinstance(state, Holding):
                held |= state.entries & fragment.due(index)
        for index, bookie in enumerate(fragment.ensemble):
            state, due = copies[bookie], fragment.due(index)
            if (fragment.first_entry_id, index) in repaired:
                assert not isinstance(state, Unknown)
                assert due <= held | (state.entries if isinstance(state, Holding) else BitMap64())
            elif isinstance(state, Unknown):
                assert findings.unknown
            elif isinstance(state, Lost) or not due <= state.entries:
                assert findings.unknown or due & findings.unrecoverable
        for entry_id in findings.unrecoverable & fragment.due(0):
            assert entry_id not in held


def test_who_lacks_entries_lives_and_is_due_to_hold_them() -> None:
    copies = whole(CLOSED)
    assert lacking(CLOSED, copies) == []
    state = copies["b:1"]
    assert isinstance(state, Holding)
    assert lacking(CLOSED, {**copies, "b:1": Holding(state.entries | BitMap64([99]))}) == []
    assert lacking(CLOSED, {**copies, "b:1": Holding(state.entries - BitMap64([state.entries.max()]))}) == ["b:1"]
    for silent in (Lost(), Unknown("no answer")):
        assert lacking(CLOSED, {**copies, "b:1": silent, "c:1": Holding(BitMap64())}) == ["c:1"]


def test_in_a_ledger_that_is_written_the_last_fragment_is_due_to_nobody() -> None:
    nothing: dict[str, Copies] = {bookie: Holding(BitMap64()) for bookie in BOOKIES}
    assert lacking(ledger((0,), None), nothing) == []
    assert lacking(ledger((0, 5), None), nothing) != []


def test_what_is_corrupt_is_copied_over_and_two_answers_are_needed() -> None:
    copies = whole(CLOSED)
    state = copies["a:1"]
    assert isinstance(state, Holding)
    bad, other = BitMap64([state.entries.min()]), BitMap64([state.entries.max()])
    once = Holding(state.entries - bad - other, corrupt=bad | other)
    twice = missing_twice(once, Holding(state.entries - bad, corrupt=bad))
    assert twice == Holding(state.entries - bad, corrupt=bad)
    assert missing_twice(once, Unknown("no answer")) == Unknown("no answer")
    (repair,) = found({**copies, "a:1": twice}).repairs
    assert (repair.bookie_id, repair.missing, repair.replace) == ("a:1", bad, False)


def test_what_is_corrupt_everywhere_is_unrecoverable_and_what_may_be_elsewhere_is_not() -> None:
    bad = BitMap64([2])
    copies: dict[str, Copies] = {
        name: Holding(state.entries - bad, corrupt=bad & state.entries) if isinstance(state, Holding) else state
        for name, state in whole(CLOSED).items()
    }
    assert found(copies).unrecoverable == bad
    name = complete_fragments(CLOSED)[0].write_set(2)[0]
    assert not found({**copies, name: Unknown("no answer")}).unrecoverable
