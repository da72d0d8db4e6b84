"""Unbounded ledgers in the metadata: terms, fragments, trims, and what is stored of them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bookgate.ledger.errors import (
    IllegalOpException,
    IncorrectParameterException,
    LedgerClosedException,
    MetadataFormatException,
    MetadataSerializationException,
    TermSupersededException,
)
from bookgate.ledger.ledger_id import LedgerId
from bookgate.ledger.metadata import Fragment, LedgerMetadata, LedgerState
from bookgate.ledger.metadata_codec import decode, encode, from_format, to_format
from bookgate.ledger.metadata_store import LedgerRecord
from bookgate.ledger.terms import FragmentCaps, Terms
from bookgate.ledger.unbounded import (
    begin_fragment,
    begin_term,
    check_holder,
    check_ordinary,
    close_unbounded,
    create_unbounded,
    deleted_before,
    open_term,
    trim,
)

A, B = ("a:1", "b:1", "c:1"), ("d:1", "b:1", "c:1")
ORDINARY = LedgerMetadata.new(A, 3, 2, password=b"secret", custom_metadata={"key": b"value"}, ctime_ms=7)
FRESH = create_unbounded(ORDINARY, FragmentCaps(1000, 10))
GROWN = begin_fragment(begin_fragment(FRESH, Fragment(5, B), 50), Fragment(9, A), 90)


def test_a_new_ledger_is_open_at_term_0() -> None:
    assert (FRESH.state, FRESH.terms, deleted_before(FRESH)) == (
        LedgerState.OPEN,
        Terms(caps=FragmentCaps(1000, 10)),
        0,
    )


def test_whoever_takes_over_increments_the_term_and_leaves_a_mark() -> None:
    taken = begin_term(FRESH, 77)
    again = begin_term(taken, 78)
    assert taken.terms is not None
    assert again.terms is not None
    assert (taken.state, taken.terms.term, taken.terms.holder) == (LedgerState.IN_RECOVERY, 1, 77)
    assert (again.state, again.terms.term, again.terms.holder) == (LedgerState.IN_RECOVERY, 2, 78)
    opened = open_term(again)
    assert (opened.state, opened.terms) == (LedgerState.OPEN, again.terms)


def test_a_term_is_its_holders_alone() -> None:
    taken = begin_term(FRESH, 77)
    check_holder(taken, 1, 77)
    for term, holder in ((0, 0), (1, 78), (2, 77)):
        with pytest.raises(TermSupersededException, match="its term is 1"):
            check_holder(taken, term, holder)


def test_closed_is_final() -> None:
    closed = close_unbounded(FRESH, 9, 1000)
    assert (closed.is_closed, closed.last_entry_id, closed.length) == (True, 9, 1000)
    with pytest.raises(LedgerClosedException, match="entry 9"):
        begin_term(closed, 77)
    with pytest.raises(LedgerClosedException, match="entry 9"):
        check_holder(closed, 0, 0)
    changes: list[Callable[[], object]] = [lambda: open_term(closed), lambda: begin_fragment(closed, Fragment(9, B), 0)]
    for change in changes:
        with pytest.raises(IncorrectParameterException, match="CLOSED"):
            change()


def test_a_ledger_that_is_taken_over_is_not_closed_before_it_is_open_again() -> None:
    with pytest.raises(IncorrectParameterException, match="IN_RECOVERY"):
        close_unbounded(begin_term(FRESH, 77), 9, 1000)


@pytest.mark.parametrize(
    "change",
    [FRESH.begin_recovery, lambda: FRESH.close(9, 9), lambda: FRESH.with_ensemble(9, B)],
    ids=["recovery", "close", "another ensemble"],
)
def test_ordinary_transitions_refuse_it(change: Callable[[], object]) -> None:
    with pytest.raises(IncorrectParameterException, match="unbounded"):
        change()


def test_an_ordinary_ledger_is_not_taken_over() -> None:
    changes: list[Callable[[], object]] = [lambda: begin_term(ORDINARY, 1), lambda: trim(ORDINARY, 5)]
    for change in changes:
        with pytest.raises(IncorrectParameterException, match="not unbounded"):
            change()
    check_ordinary(LedgerRecord(LedgerId.unscoped(1), ORDINARY, 0))
    with pytest.raises(IllegalOpException, match="ledger 1 is unbounded"):
        check_ordinary(LedgerRecord(LedgerId.unscoped(1), FRESH, 0))


def test_fragments_are_appended_replaced_and_merged_but_for_the_last() -> None:
    assert GROWN.fragments == (Fragment(0, A), Fragment(5, B), Fragment(9, A))
    assert begin_fragment(GROWN, Fragment(9, B), 90).fragments == (Fragment(0, A), Fragment(5, B), Fragment(9, B))
    merged = begin_fragment(begin_fragment(GROWN, Fragment(9, B), 90), Fragment(12, B), 120)
    assert merged.fragments == (Fragment(0, A), Fragment(5, B), Fragment(12, B))
    assert merged.terms is not None
    assert merged.terms.length_before == 120
    with pytest.raises(IncorrectParameterException, match="can't begin at entry 8"):
        begin_fragment(GROWN, Fragment(8, B), 80)


@pytest.mark.parametrize(
    ("before", "fragments"),
    [
        (0, GROWN.fragments),
        (3, (Fragment(3, A), Fragment(5, B), Fragment(9, A))),
        (5, (Fragment(5, B), Fragment(9, A))),
        (8, (Fragment(8, B), Fragment(9, A))),
        (9, (Fragment(9, A),)),
        (1000, (Fragment(9, A),)),
    ],
)
def test_a_trim_never_reaches_into_the_last_fragment(before: int, fragments: tuple[Fragment, ...]) -> None:
    trimmed = trim(GROWN, before)
    assert trimmed.fragments == fragments
    assert trim(trimmed, 1) is trimmed or before == 0


def test_a_closed_ledger_is_trimmed_to_its_end() -> None:
    trimmed = trim(close_unbounded(GROWN, 11, 110), 1000)
    assert (trimmed.fragments, deleted_before(trimmed)) == ((Fragment(12, A),), 12)
    assert decode(encode(trimmed)) == trimmed


STATES = [FRESH, GROWN, begin_term(GROWN, 2**63 - 1), trim(GROWN, 6), close_unbounded(GROWN, 11, 110)]


@pytest.mark.parametrize("metadata", [*STATES, create_unbounded(ORDINARY)], ids=range(6))
def test_what_is_stored_is_read_back(metadata: LedgerMetadata) -> None:
    assert decode(encode(replace(metadata, creator_token=5))) == replace(metadata, creator_token=5)


@pytest.mark.parametrize("metadata", STATES, ids=range(5))
def test_who_does_not_know_it_sees_an_empty_closed_ledger_without_bookies(metadata: LedgerMetadata) -> None:
    message = to_format(metadata)
    message.ClearField("unbounded")
    segments = [(list(segment.ensembleMember), segment.firstEntryId) for segment in message.segment]
    assert (message.state, message.lastEntryId, message.length, segments) == (3, -1, 0, [([], 0)])
    assert (message.ensembleSize, message.quorumSize, message.ackQuorumSize) == (0, 0, 0)


def test_older_formats_hold_no_terms() -> None:
    with pytest.raises(MetadataSerializationException, match="version 3"):
        encode(replace(FRESH, format_version=2))


def test_damage_is_named() -> None:
    message = to_format(close_unbounded(GROWN, 11, 110))
    message.unbounded.ClearField("lastEntryId")
    with pytest.raises(MetadataFormatException, match="CLOSED without"):
        from_format(message)
    message = to_format(GROWN)
    del message.unbounded.bookie[-1]
    with pytest.raises(MetadataFormatException, match="not listed"):
        from_format(message)
    message = to_format(GROWN)
    message.unbounded.fragment[1].after = 0
    with pytest.raises(MetadataFormatException, match="does not come after"):
        from_format(message)
    message = to_format(GROWN)
    message.unbounded.term = -1
    with pytest.raises(MetadataFormatException, match="negative"):
        from_format(message)
    with pytest.raises(MetadataFormatException, match="old format"):
        from_format(to_format(GROWN), 2)
    with pytest.raises(IncorrectParameterException, match="at least 1"):
        FragmentCaps(max_entries=0)


@settings(max_examples=2, deadline=None)
@given(seed=st.integers(0, 2**32), bookies=st.integers(3, 30), rate=st.integers(1, 10**6))
def test_metadata_stay_small_over_a_year_of_fragments_of_a_minute(seed: int, bookies: int, rate: int) -> None:
    """Each minute a new ensemble, each hour a trim to a day. The first, the middle and the last day are looked at."""
    rng = Random(seed)
    names = [f"bookie-{number}.cluster.example.org:3181" for number in range(bookies)]
    metadata = create_unbounded(LedgerMetadata.new(rng.sample(names, 3), 3, 2))
    end, minutes = 0, 0
    for hour in (0, 182 * 24, 364 * 24):
        # Between them only ids and bytes grow: a trim leaves nothing else of what was written before.
        end += rate * max(0, hour * 60 - minutes)
        minutes = (hour + 25) * 60
        for _ in range(25 * 60):
            end += rng.randint(1, 2 * rate)
            metadata = _grown(metadata, Fragment(end, tuple(rng.sample(names, 3))))
        assert len(encode(metadata)) < 24 * 1024, "far below the 64 KiB that are allowed"
        assert decode(encode(metadata)) == metadata
        metadata = trim(open_term(begin_term(metadata, hour + 1)), end)
        assert len(metadata.fragments) == 1


def _grown(metadata: LedgerMetadata, fragment: Fragment) -> LedgerMetadata:
    return begin_fragment(metadata, fragment, fragment.first_entry_id * 1000)
