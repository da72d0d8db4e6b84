"""How far a scrub has come: what is passed over is remembered, and a pass that left something out has no end."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bookgate.bookie.replication.checks.scrub_progress import ScrubProgress, next_entries
from bookgate.bookie.replication.copies.fragments import complete_fragments
from bookgate.ledger.replication_checks import ORDERED_MS
from tests.unit.bookie.replication.copies.test_fragments import ledger

BEGUN = ScrubProgress(ended_ms=5).begun(9)


def test_a_pass_begins_with_the_first_ledger_and_its_end_is_told() -> None:
    assert (BEGUN.ledger_id, BEGUN.entry_id, BEGUN.left_out, BEGUN.began_ms, BEGUN.ended_ms) == (0, 0, (), 9, 5)
    assert BEGUN.done_with(3).ended(20) == ScrubProgress(ended_ms=20)


def test_a_ledger_is_looked_at_piece_by_piece() -> None:
    within = BEGUN.done_with(3).looked_at(7, 100)
    assert (within.ledger_id, within.entry_id) == (7, 100)
    after = within.done_with(7)
    assert (after.ledger_id, after.entry_id) == (8, 0)


def test_what_was_left_out_is_remembered_until_it_was_looked_at() -> None:
    left = BEGUN.looked_at(7, 100).without(7).done_with(8).without(9)
    assert (left.ledger_id, left.entry_id, left.left_out) == (10, 0, (7, 9))
    with pytest.raises(ValueError, match="2 ledgers"):
        left.ended(20)
    again = left.looked_at(7, 50)
    assert again == left, "one that is read again counts as a whole"
    assert left.without(7) == left
    done = left.done_with(7)
    assert (done.ledger_id, done.left_out) == (10, (9,))
    assert done.done_with(9).ended(20).ended_ms == 20


def test_a_pass_that_does_not_end_has_an_age_too() -> None:
    first = ScrubProgress().begun(9)
    assert ScrubProgress().since_ms is None
    assert ScrubProgress.decode(first.done_with(3).encode()).since_ms == 9
    assert first.ended(20).since_ms == first.ended(20).begun(30).since_ms == 20
    ordered = ScrubProgress(ended_ms=ORDERED_MS)
    assert (ordered.since_ms, ordered.begun(30).since_ms) == (None, 30)


@given(st.lists(st.tuples(st.integers(0, 30), st.booleans()), max_size=40))
def test_every_ledger_before_the_progress_was_looked_at_or_is_left_out(steps: list[tuple[int, bool]]) -> None:
    """Ledgers go up, as a listing has them, or are of those left out."""
    progress, owed = BEGUN, set[int]()
    for number, answered in steps:
        if number < progress.ledger_id and number not in owed:
            continue
        progress = progress.done_with(number) if answered else progress.without(number)
        (owed.discard if answered else owed.add)(number)
        assert {*progress.left_out} == owed
        assert progress.ledger_id > number
    assert ScrubProgress.decode(progress.encode()) == progress


@pytest.mark.parametrize("record", [b"", b"{}", b"[1]", b'{"ledger_id": "x"}'])
def test_what_can_not_be_read_is_no_progress(record: bytes) -> None:
    assert ScrubProgress.decode(record) == ScrubProgress()


@pytest.mark.parametrize("most", [1, 3, 100])
def test_pieces_cover_each_complete_fragment_once(most: int) -> None:
    metadata = ledger((0, 5), 9)
    found, entry_id = list[tuple[int, tuple[str, ...]]](), 0
    while (piece := next_entries(metadata, entry_id, most)) is not None:
        assert piece.last_entry_id - piece.first_entry_id < most
        found += [(each, piece.write_set(each)) for each in range(piece.first_entry_id, piece.last_entry_id + 1)]
        entry_id = piece.last_entry_id + 1
    fragments = complete_fragments(metadata)
    assert found == [
        (each, part.write_set(each))
        for part in fragments
        for each in range(part.first_entry_id, part.last_entry_id + 1)
    ]
