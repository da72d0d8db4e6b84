"""Which entries each place of an ensemble is due to hold, and what a repair may change of the metadata."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyroaring import BitMap64

from bookgate.bookie.replication.copies.fragments import (
    CompleteFragment,
    complete_fragments,
    due_at,
    is_large,
    why_not_examined,
    with_members_replaced,
    written_ensemble,
)
from bookgate.ledger.metadata import Fragment, LedgerMetadata, LedgerState
from bookgate.ledger.quorum import write_set

BOOKIES = ("a:1", "b:1", "c:1", "d:1", "e:1")


def ledger(starts: tuple[int, ...], last: int | None, sizes: tuple[int, int] = (3, 2)) -> LedgerMetadata:
    """Closed at `last`, or open; fragments on different bookies."""
    ensembles = [tuple(BOOKIES[(n + k) % 5] for k in range(sizes[0])) for n in range(len(starts))]
    new = LedgerMetadata.new(ensembles[0], sizes[1], 1)
    fragments = tuple(map(Fragment, starts, ensembles))
    if last is None:
        return replace(new, fragments=fragments)
    return replace(new, fragments=fragments, state=LedgerState.CLOSED, last_entry_id=last, length=last + 1)


@given(
    first=st.integers(0, 50),
    count=st.integers(0, 40),
    size=st.integers(1, 5),
    quorum=st.integers(1, 5),
)
def test_the_due_ids_are_those_of_the_write_sets(first: int, count: int, size: int, quorum: int) -> None:
    quorum = min(quorum, size)
    fragment = CompleteFragment(first, first + count - 1, BOOKIES[:size], quorum)
    for index in range(size):
        expected = [e for e in range(first, first + count) if index in write_set(e, size, quorum)]
        assert list(fragment.due(index)) == expected
        assert fragment.due_count(index) == len(expected)
    for entry_id in range(first, first + count):
        assert fragment.write_set(entry_id) == tuple(BOOKIES[index] for index in write_set(entry_id, size, quorum))


def test_of_a_closed_ledger_all_fragments_are_complete() -> None:
    closed = ledger((0, 5, 9), 9)
    assert [(f.first_entry_id, f.last_entry_id) for f in complete_fragments(closed)] == [(0, 4), (5, 8), (9, 9)]
    assert written_ensemble(closed) == ()


def test_of_a_ledger_that_is_written_the_last_one_is_not() -> None:
    written = ledger((0, 5), None)
    assert [(f.first_entry_id, f.last_entry_id) for f in complete_fragments(written)] == [(0, 4)]
    assert written_ensemble(written) == ("b:1", "c:1", "d:1")


def test_what_bookies_are_due_to_hold_is_counted_with_a_mean_of_bytes() -> None:
    closed = replace(ledger((0, 5), 9), length=1000)
    # Entries 0 to 4 lie on a, b and c, 5 to 9 on b, c and d, two copies of each.
    assert due_at(closed, ("a:1",)) == (3, 300)
    assert due_at(closed, ("b:1",)) == (4 + 4, 800)
    assert due_at(closed, ("a:1", "b:1", "c:1", "d:1")) == (20, 2000)
    assert due_at(closed, ("e:1",)) == (0, 0)
    assert due_at(ledger((0, 5), None), ("a:1",)) == (3, 0), "nothing tells how long it is"
    assert due_at(replace(ledger((0,), -1), length=0), ("a:1",)) == (0, 0)


def test_an_empty_ledger_has_a_fragment_without_entries() -> None:
    (fragment,) = complete_fragments(ledger((0,), -1))
    assert not fragment.due(0)


@pytest.mark.parametrize(("size", "quorum"), [(3, 2), (5, 1), (20, 3)])
@pytest.mark.parametrize("first", [0, 7, (1 << 32) - 70_000])
@pytest.mark.parametrize("count", [(1 << 16) - 1, (1 << 16) + 20, 200_003, 300_000])
def test_the_due_ids_of_many_entries_repeat_those_of_the_first(size: int, quorum: int, first: int, count: int) -> None:
    fragment = CompleteFragment(first, first + count - 1, tuple(map(str, range(size))), quorum)
    for index in (0, size - 1):
        expected = BitMap64(e for e in range(first, first + count) if (index - e) % size < quorum)
        assert fragment.due(index) == expected


def test_ledgers_that_claim_too_many_entries_are_not_examined() -> None:
    for sizes, most in (((3, 3), 1 << 32), ((3, 2), 1 << 28)):
        assert most >= 10**8
        assert not why_not_examined(ledger((0,), most - 1, sizes))
        assert f"claim {most + 1} entries" in why_not_examined(ledger((0,), most, sizes))
        assert why_not_examined(ledger((0, 1 << 62), None, sizes)), "the complete fragment of an open ledger"
        assert not why_not_examined(ledger((0,), None, sizes))
        assert not why_not_examined(ledger((1 << 62,), (1 << 62) + 9, sizes)), "large ids, few entries"
        assert not why_not_examined(ledger((0,), -1, sizes))


def test_wide_ensembles_are_examined_with_fewer_entries() -> None:
    """The bitmaps of all bookies are held at once, some 32 MiB each for 2^28 entries."""
    for size in (4, 8, 20, 1000):
        new = LedgerMetadata.new(tuple(map(str, range(size))), 2, 2)
        most = min(1 << 28, (1 << 31) // size)
        assert most >= (10**8 if size <= 20 else 10**6)
        assert not why_not_examined(new.close(most - 1, most))
        assert why_not_examined(new.close(most, most))
        assert is_large(new.close(most - 1, most))
        assert not is_large(new.close((1 << 26) // size - 1, 1))
    assert not is_large(ledger((0,), (1 << 32) - 1, (3, 3)))
    assert not is_large(ledger((0,), None))


def test_many_fragments_are_large_too() -> None:
    """Work with their bitmaps grows with fragments, bookies and write quorum."""

    def of_fragments(ensemble_size: int, write_quorum_size: int) -> LedgerMetadata:
        names = tuple(map(str, range(ensemble_size)))
        new = LedgerMetadata.new(names, write_quorum_size, 1)
        return replace(new, fragments=tuple(Fragment(first, names) for first in range(0, 3000 * 64, 64)))

    assert is_large(of_fragments(16, 15))
    assert not is_large(of_fragments(5, 3))
    assert not is_large(of_fragments(3, 3))
    assert is_large(of_fragments(32, 32))


def fragment_of(metadata: LedgerMetadata, first_entry_id: int) -> CompleteFragment:
    (found,) = [each for each in complete_fragments(metadata) if each.first_entry_id == first_entry_id]
    return found


def test_a_repair_replaces_members_by_place_and_name() -> None:
    closed = ledger((0, 5), 9)
    changed = with_members_replaced(closed, fragment_of(closed, 5), {1: ("c:1", "a:1")})
    assert changed is not None
    assert [fragment.ensemble for fragment in changed.fragments] == [("a:1", "b:1", "c:1"), ("b:1", "a:1", "d:1")]
    assert replace(changed, fragments=closed.fragments) == closed


def test_a_repair_that_fits_no_more_changes_nothing() -> None:
    closed, written = ledger((0, 5), 9), ledger((0, 5), None)
    assert with_members_replaced(closed, fragment_of(closed, 5), {1: ("b:1", "a:1")}) is None, "another member by now"
    assert with_members_replaced(closed, fragment_of(closed, 5), {1: ("c:1", "d:1")}) is None, "twice in the ensemble"
    gone = replace(fragment_of(closed, 5), first_entry_id=4)
    assert with_members_replaced(closed, gone, {1: ("c:1", "a:1")}) is None, "no such fragment"
    assert with_members_replaced(closed, fragment_of(closed, 5), {3: ("c:1", "a:1")}) is None, "no such place"
    assert with_members_replaced(written, fragment_of(closed, 5), {1: ("c:1", "a:1")}) is None, "it is still written"
    assert with_members_replaced(written, fragment_of(closed, 0), {1: ("b:1", "e:1")}) is not None


def test_a_fragment_that_was_merged_with_the_next_one_is_not_the_one_that_was_copied() -> None:
    """Only those of unbounded ledgers are."""
    before = ledger((0, 5), None)
    (repaired,) = complete_fragments(before)
    grown = replace(before, fragments=(before.fragments[0], replace(before.fragments[1], first_entry_id=8)))
    assert with_members_replaced(before, repaired, {1: ("b:1", "e:1")}) is not None
    assert with_members_replaced(grown, repaired, {1: ("b:1", "e:1")}) is None


def test_an_ensemble_that_names_a_bookie_twice_is_repaired() -> None:
    """BookKeeper's repairs can leave such a one (AR33)."""
    closed = LedgerMetadata.new(("a:1", "b:1", "c:1"), 3, 1).close(9, 90)
    twice = replace(closed, fragments=(Fragment(0, ("a:1", "a:1", "c:1")),))
    (repaired,) = complete_fragments(twice)
    for replacements, expected in (
        ({2: ("c:1", "d:1")}, ("a:1", "a:1", "d:1")),
        ({1: ("a:1", "b:1")}, ("a:1", "b:1", "c:1")),
        ({0: ("a:1", "d:1"), 1: ("a:1", "b:1")}, ("d:1", "b:1", "c:1")),
    ):
        changed = with_members_replaced(twice, repaired, replacements)
        assert changed is not None
        assert changed.fragments[0].ensemble == expected
    assert with_members_replaced(twice, repaired, {2: ("c:1", "a:1")}) is None
    assert with_members_replaced(twice, repaired, {0: ("a:1", "d:1"), 1: ("a:1", "d:1")}) is None
