"""The writer of an unbounded ledger: LAC and LAFR, pinned bookies, fragments that are full, terms."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

import pytest

from bookgate.ledger.errors import (
    BKException,
    BookieHandleNotAvailableException,
    IncorrectParameterException,
    InvalidTermException,
    TermSupersededException,
    UnauthorizedAccessException,
)
from bookgate.ledger.ledger_id import LedgerId
from bookgate.ledger.metadata import Fragment, LedgerMetadata
from bookgate.ledger.terms import FragmentCaps
from bookgate.ledger.unbounded import begin_term, create_unbounded, open_term
from bookgate.thinclient.core.recovery import Replace
from bookgate.thinclient.core.unbounded.adds import (
    Add,
    ChooseEnsemble,
    Confirmed,
    Effect,
    FailedAdds,
    Place,
    RetryLater,
    SendAdd,
    StoreFragment,
)
from bookgate.thinclient.core.unbounded.changes import NewFragment
from bookgate.thinclient.core.unbounded.writing import UnboundedWriter, WriterState

LEDGER = LedgerId.unscoped(3)
DOWN = BookieHandleNotAvailableException("down")
E = TypeVar("E")


def writer(term: int = 0, caps: FragmentCaps | None = None) -> UnboundedWriter:
    metadata = create_unbounded(LedgerMetadata.new(("a", "b", "c"), 3, 2), caps or FragmentCaps())
    for _ in range(term):
        metadata = open_term(begin_term(metadata, 77))
    return UnboundedWriter(LEDGER, metadata, term - 1, 0)  # each take-over has left a truncate entry


def add(machine: UnboundedWriter, size: int = 10) -> Add:
    return machine.begin_add(size)[0]


def ack(machine: UnboundedWriter, entry: Add, *indexes: int) -> list[Effect]:
    return [effect for index in indexes for effect in machine.on_ack(entry, machine.places[index], machine.term)]


def of(kind: type[E], effects: Sequence[object]) -> list[E]:
    return [effect for effect in effects if isinstance(effect, kind)]


def sends(effects: Sequence[object]) -> list[tuple[int, str, bool]]:
    return sorted(
        (each.add.entry_id, place.bookie_id, each.truncate) for each in of(SendAdd, effects) for place in each.places
    )


def test_lac_and_lafr_are_unbroken_runs_of_their_own() -> None:
    machine = writer()
    first, second, third = add(machine), add(machine), add(machine)
    assert ack(machine, second, 0, 1, 2) == []
    assert (machine.last_add_confirmed, machine.lafr) == (-1, -1)
    assert ack(machine, first, 0, 1) == [Confirmed([first, second])]
    assert (machine.last_add_confirmed, machine.lafr, machine.pending_count) == (1, -1, 3)
    ack(machine, third, 0, 1)
    assert (machine.last_add_confirmed, machine.lafr) == (2, -1), "the LAFR never jumps to the LAC"
    ack(machine, first, 2)
    assert (machine.lafr, machine.replicated_length, machine.pending_count) == (1, 20, 1)
    late = add(machine)
    assert (late.last_add_confirmed, late.lafr, late.length) == (2, 1, 40)


def test_answers_of_another_term_and_second_ones_count_for_nothing() -> None:
    machine = writer(term=2)
    entry = add(machine)
    for index in range(3):
        assert machine.on_ack(entry, machine.places[index], 1) == ()
    assert ack(machine, entry, 0, 0, 0) == []
    assert (machine.last_add_confirmed, machine.lafr) == (1, 1)
    assert ack(machine, entry, 1) == [Confirmed([entry])]


def test_a_new_fragment_begins_after_the_lafr() -> None:
    machine = writer()
    ack(machine, add(machine), 0, 1, 2)
    second, third = add(machine), add(machine)
    ack(machine, second, 0, 1)
    assert machine.on_failure(machine.places[2], DOWN) == [Replace(("a", "b", "c"), {2: "c"})]
    stored = machine.on_replacements({2: "d"})
    assert stored == [StoreFragment(NewFragment(Fragment(1, ("a", "b", "d")), 10))]
    assert ack(machine, third, 0, 1) == [], "nothing is confirmed while a change is stored"
    effects = machine.on_stored()
    assert sends(effects) == [(1, "d", False), (2, "d", False)]
    assert of(Confirmed, effects) == [Confirmed([third])]
    ack(machine, second, 2)
    ack(machine, third, 2)
    assert (machine.lafr, machine.pending_count) == (2, 0)


def test_a_pinned_bookie_is_replaced_only_when_what_it_holds_is_everywhere() -> None:
    machine = writer()
    first = add(machine)
    ack(machine, first, 0, 1)
    late = machine.places[1]
    assert of(Replace, machine.on_failure(late, DOWN)) == [], "b holds a confirmed entry that c lacks (G3)"
    assert machine.pinned == {1}
    assert machine.state is WriterState.STEADY
    assert of(Replace, machine.on_failure(machine.places[2], DOWN)) == [Replace(("a", "b", "c"), {2: "c"})]
    machine.on_replacements({2: "d"})
    assert sends(machine.on_stored()) == [(0, "d", False)]
    assert ack(machine, first, 2) == [Replace(("a", "b", "d"), {1: "b"})], "now it may go"
    assert machine.on_replacements({1: "e"}) == [StoreFragment(NewFragment(Fragment(1, ("a", "e", "d")), 10))]


def test_the_acknowledgements_of_a_replaced_bookie_are_void() -> None:
    machine = writer()
    first = add(machine)
    ack(machine, first, 2)
    old = machine.places[2]
    machine.on_failure(old, DOWN)
    machine.on_replacements({2: "d"})
    machine.on_stored()
    assert machine.on_ack(first, old, 0) == ()
    assert machine.on_failure(old, DOWN) == ()
    assert ack(machine, first, 0) == []
    assert ack(machine, first, 2) == [Confirmed([first])]


def joiners(effects: Sequence[object]) -> list[tuple[Add, Place]]:
    """The adds by which bookies are truncated that are to join."""
    return [(each.add, place) for each in of(SendAdd, effects) if each.truncate for place in each.places]


def test_a_bookie_that_joins_is_truncated_before_the_metadata_name_it() -> None:
    machine = writer(term=1)
    first, _ = add(machine), add(machine)
    machine.on_failure(machine.places[2], DOWN)
    effects = machine.on_replacements({2: "d"})
    assert sends(effects) == [(0, "d", True)], "the last entry that is fully replicated, and no other"
    assert of(StoreFragment, effects) == []
    assert machine.state is WriterState.TRUNCATING
    assert ack(machine, first, 0, 1) == [Confirmed([first])], "the others go on"
    assert sends(machine.begin_add(10)[1]) == [(3, "a", False), (3, "b", False)]
    ((sent, joiner),) = joiners(effects)
    assert machine.on_ack(sent, joiner, 1) == [StoreFragment(NewFragment(Fragment(1, ("a", "b", "d")), 0))]
    assert sends(machine.on_stored()) == [(1, "d", False), (2, "d", False), (3, "d", False)]
    assert machine.lac_receivers(1) == ("a", "b", "d")


def test_who_is_pinned_by_what_was_confirmed_while_another_was_truncated_stays() -> None:
    machine = writer(term=1)
    first = add(machine)
    ack(machine, first, 2)
    machine.on_failure(machine.places[2], DOWN)
    ((sent, joiner),) = joiners(machine.on_replacements({2: "d"}))
    assert ack(machine, first, 0) == [Confirmed([first])]
    assert machine.on_ack(sent, joiner, 1) == [RetryLater({"c": DOWN})], "only a and c have it (G3)"
    assert ack(machine, first, 1) == [Replace(("a", "b", "c"), {2: "c"})]
    assert machine.on_replacements({2: "d"}) == [StoreFragment(NewFragment(Fragment(2, ("a", "b", "d")), 10))]


def test_of_two_that_are_to_join_the_one_that_responds_does() -> None:
    machine = writer(term=1)
    add(machine)
    machine.on_failure(machine.places[1], DOWN)
    machine.on_replacements({})
    assert machine.on_failure(machine.places[2], DOWN) == [Replace(("a", "b", "c"), {1: "b", 2: "c"})]
    (sent, joiner), (_, other) = joiners(machine.on_replacements({1: "d", 2: "e"}))
    assert machine.on_failure(other, DOWN) == ()
    assert machine.on_ack(sent, joiner, 1) == [StoreFragment(NewFragment(Fragment(1, ("a", "d", "c")), 0))]
    assert of(Replace, machine.on_stored()) == [Replace(("a", "d", "c"), {2: "c"})], "another is looked for at once"
    assert machine.barred == {"e"}


def test_a_full_fragment_goes_on_where_it_is_if_a_bookie_of_the_next_can_not_be_truncated() -> None:
    machine = writer(term=1, caps=FragmentCaps(max_entries=2))
    first, second = add(machine), add(machine)
    for entry in (first, second):
        ack(machine, entry, 0, 1, 2)
    (sent, joiner), (_, other) = joiners(machine.on_ensemble(("d", "e", "b")))
    assert machine.on_ack(sent, joiner, 1) == ()
    assert machine.on_failure(other, DOWN) == [StoreFragment(NewFragment(Fragment(3, ("a", "b", "c")), 20))]


def test_without_a_bookie_to_replace_it_the_failed_one_is_tried_again() -> None:
    machine = writer()
    first = add(machine)
    machine.on_failure(machine.places[2], DOWN)
    assert machine.on_replacements({}) == [RetryLater({"c": DOWN})]
    second, effects = machine.begin_add(10)
    assert sends(effects) == [(1, "a", False), (1, "b", False)]
    ack(machine, first, 0, 1)
    assert ack(machine, second, 0, 1) == [Confirmed([second])]
    assert sends(machine.retry()) == [(0, "c", False), (1, "c", False)]
    ack(machine, first, 2)
    ack(machine, second, 2)
    assert (machine.lafr, machine.retry()) == (1, ())


def test_failures_during_a_change_are_part_of_the_next() -> None:
    machine = writer()
    add(machine)
    machine.on_failure(machine.places[2], DOWN)
    assert machine.on_failure(machine.places[1], DOWN) == []
    machine.on_replacements({2: "d"})
    assert of(Replace, machine.on_stored()) == [Replace(("a", "b", "d"), {1: "b"})]


def test_a_full_fragment_ends_when_everything_in_it_is_replicated() -> None:
    machine = writer(caps=FragmentCaps(max_entries=2))
    first, second = add(machine), add(machine)
    third, effects = machine.begin_add(10)
    assert sends(effects) == [], "it waits for the next fragment"
    ack(machine, first, 0, 1, 2)
    assert ack(machine, second, 0, 1) == [Confirmed([second])]
    assert ack(machine, second, 2) == [ChooseEnsemble(("a", "b", "c"))]
    assert machine.on_ensemble(("d", "b", "e")) == [StoreFragment(NewFragment(Fragment(2, ("d", "b", "e")), 20))]
    assert sends(machine.on_stored()) == [(2, "b", False), (2, "d", False), (2, "e", False)]
    assert ack(machine, third, 0, 1) == [Confirmed([third])]


def test_a_fragment_is_full_by_bytes_too_and_may_keep_its_ensemble() -> None:
    machine = writer(caps=FragmentCaps(max_bytes=25))
    entries = [add(machine) for _ in range(7)]
    for entry in entries[:3]:
        ack(machine, entry, 0, 1, 2)
    assert machine.on_ensemble(None) == [StoreFragment(NewFragment(Fragment(3, ("a", "b", "c")), 30))]
    assert {entry for entry, _, _ in sends(machine.on_stored())} == {3, 4, 5}, "the next one is full with entry 5"


def test_a_higher_term_ends_the_writer_and_nothing_is_sent_again() -> None:
    machine = writer(term=1)
    first, second = add(machine), add(machine)
    ack(machine, first, 0, 1)
    (failed,) = of(FailedAdds, machine.on_failure(machine.places[2], InvalidTermException("refused")))
    assert failed.adds == [second], "the first one is confirmed"
    assert isinstance(failed.error, TermSupersededException)
    with pytest.raises(TermSupersededException, match="ledger 3"):
        machine.begin_add(10)
    assert [*ack(machine, second, 0, 1), *machine.on_failure(machine.places[0], DOWN), *machine.retry()] == []
    assert machine.on_stored() == machine.on_replacements({0: "x"}) == machine.on_ensemble(None) == ()
    assert machine.disengage(DOWN) == ()


def test_a_higher_term_counts_from_a_bookie_that_was_replaced_as_well() -> None:
    machine = writer(term=1)
    add(machine)
    old = machine.places[2]
    machine.on_failure(old, DOWN)
    machine.on_replacements({2: "d"})
    machine.on_stored()
    assert of(FailedAdds, machine.on_failure(old, InvalidTermException("refused")))


def test_what_no_other_bookie_can_mend_ends_the_writer() -> None:
    machine = writer()
    entry = add(machine)
    error = UnauthorizedAccessException("wrong password")
    assert machine.on_failure(machine.places[0], error) == [FailedAdds([entry], error)]


def test_an_empty_entry_is_refused() -> None:
    with pytest.raises(IncorrectParameterException, match="empty"):
        writer().begin_add(0)


def test_a_bookie_that_did_not_answer_the_truncate_flag_is_barred_for_the_term() -> None:
    machine = writer(term=1)
    add(machine)
    machine.on_failure(machine.places[2], DOWN)
    ((sent, joiner),) = joiners(machine.on_replacements({2: "d"}))
    assert machine.on_failure(joiner, DOWN) == [Replace(("a", "b", "c"), {2: "c"})], "another is looked for at once"
    assert machine.barred == {"d"}
    assert machine.on_replacements({2: "d"}) == [RetryLater({"c": DOWN})], "it is not sent the flag again"
    assert sends(machine.retry()) == [(1, "c", False)]
    assert machine.on_ack(sent, joiner, 1) == ()
    assert machine.barred == set(), "its answer came after all"
    machine.on_failure(machine.places[2], DOWN)
    assert of(StoreFragment, machine.on_replacements({2: "d"})), "and it was truncated"


def test_a_bookie_that_was_a_member_at_this_term_joins_without_truncation() -> None:
    machine = writer(term=1)
    add(machine)
    machine.on_failure(machine.places[2], DOWN)
    ((sent, joiner),) = joiners(machine.on_replacements({2: "d"}))
    machine.on_ack(sent, joiner, 1)
    machine.on_stored()
    machine.on_failure(machine.places[1], DOWN)
    assert of(StoreFragment, machine.on_replacements({1: "c"}))
    assert sends(machine.on_stored()) == [(1, "c", False)]


def test_a_higher_term_counts_from_a_bookie_that_is_to_join_too() -> None:
    machine = writer(term=1)
    add(machine)
    machine.on_failure(machine.places[2], DOWN)
    ((sent, joiner),) = joiners(machine.on_replacements({2: "d"}))
    assert of(FailedAdds, machine.on_failure(joiner, InvalidTermException("refused")))
    assert machine.on_ack(sent, joiner, 1) == ()


NOT_SENT = DOWN.of_request_over()


def test_a_bookie_to_which_the_truncate_flag_was_never_sent_is_asked_again_later() -> None:
    """A bookie that was away for a moment must not be missing for as long as the writer writes (P12)."""
    machine = writer(term=1)
    add(machine)
    machine.on_failure(machine.places[2], DOWN)
    ((sent, joiner),) = joiners(machine.on_replacements({2: "d"}))
    assert machine.on_failure(joiner, NOT_SENT, sent) == [Replace(("a", "b", "c"), {2: "c"})]
    assert (machine.barred, machine.avoided) == (set(), {"d"}), "another one is looked for first"
    assert machine.on_replacements({2: "d"}) == [RetryLater({"c": DOWN})]
    assert sends(machine.retry()) == [(1, "c", False)]
    assert machine.avoided == set()
    machine.on_failure(machine.places[2], DOWN)
    ((sent, joiner),) = joiners(machine.on_replacements({2: "d"}))
    assert of(StoreFragment, machine.on_ack(sent, joiner, 1)), "it joins"


def test_a_flag_that_may_still_arrive_bars_the_bookie_whatever_was_never_sent_before() -> None:
    machine = writer(term=1)
    add(machine)
    for failure in (NOT_SENT, DOWN):
        machine.on_failure(machine.places[2], DOWN)
        ((sent, joiner),) = joiners(machine.on_replacements({2: "d"}))
        machine.on_failure(joiner, failure, sent)
        machine.on_replacements({})
        machine.retry()
    assert machine.barred == {"d"}


@pytest.mark.parametrize("error", [UnauthorizedAccessException("unknown principal"), NOT_SENT])
def test_a_bookie_that_is_to_join_and_refuses_does_not_and_the_writer_goes_on(error: BKException) -> None:
    """It may have an older policy than the members."""
    machine = writer(term=1)
    first = add(machine)
    machine.on_failure(machine.places[2], DOWN)
    ((sent, joiner),) = joiners(machine.on_replacements({2: "d"}))
    effects = machine.on_failure(joiner, error.of_request_over(), sent)
    assert [type(effect) for effect in effects] == [Replace]
    assert machine.error is None
    assert ack(machine, first, 0, 1) == [Confirmed([first])]


def test_a_bookie_that_refuses_the_flag_is_asked_again_for_the_next_fragment() -> None:
    machine = writer(term=1, caps=FragmentCaps(max_entries=1))
    for entry in (add(machine), add(machine)):
        ack(machine, entry, 0, 1, 2)
        ((sent, joiner),) = joiners(machine.on_ensemble(("d", "b", "c")))
        assert [
            each.new.fragment.ensemble for each in of(StoreFragment, machine.on_failure(joiner, NOT_SENT, sent))
        ] == [("a", "b", "c")]
        machine.on_stored()
