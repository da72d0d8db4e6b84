"""The reads of recoveries: runs of entries, what they lack, and bookies that know nothing of them."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from bookgate.ledger.entry import Entry
from bookgate.ledger.errors import DigestMatchException
from bookgate.ledger.metadata import LedgerMetadata
from bookgate.ledger.wire.messages import MOST_FOLLOWING_BYTES
from bookgate.thinclient.core.recovery_reads import Missing, RecoveryRead, RecoveryReads, Unreadable


def reads_of(sizes: tuple[int, int, int] = (3, 3, 2), batch: int = 20, *, runs: bool = True) -> RecoveryReads:
    names = [f"b{index}" for index in range(sizes[0])]
    return RecoveryReads(LedgerMetadata.new(names, sizes[1], sizes[2]).begin_recovery(), batch, runs=runs)


def entry(entry_id: int) -> Entry:
    return Entry(9, entry_id, -1, entry_id + 1, b"x")


def entries(first: int, end: int) -> list[Entry]:
    return [entry(entry_id) for entry_id in range(first, end)]


def taken(reads: RecoveryReads, first: int, end: int) -> Sequence[object]:
    return [reads.take(entry_id) for entry_id in range(first, end)]


def test_one_request_asks_for_half_of_what_is_read_ahead() -> None:
    reads = reads_of()
    assert reads.begin(5, 25, 1) == [RecoveryRead(5, "b2", 9), RecoveryRead(15, "b0", 9)]
    assert reads.on_answer(5, entry(5), entries(6, 15)) == ()
    assert taken(reads, 5, 16) == [*entries(5, 15), None]


def test_what_a_run_lacks_is_asked_for_by_name_and_missing_by_these_answers_alone() -> None:
    reads = reads_of()
    reads.begin(0, 10, 1)
    assert reads.on_answer(0, entry(0), entries(1, 4)) == [RecoveryRead(4, "b1", 5)]
    assert taken(reads, 0, 5) == [*entries(0, 4), None]
    assert reads.on_answer(4, Missing.MISSING) == [RecoveryRead(4, "b2", 5)]
    assert reads.take(4) is None
    assert reads.on_answer(4, Missing.MISSING) == ()
    assert reads.take(4) is Missing.MISSING
    assert reads.take(5) is None, "nobody was asked for it by name"


def test_a_run_goes_on_behind_a_gap_of_one_bookie() -> None:
    reads = reads_of()
    reads.begin(0, 10, 1)
    reads.on_answer(0, entry(0), entries(1, 4))
    assert reads.on_answer(4, entry(4), entries(5, 10)) == ()
    assert taken(reads, 0, 10) == entries(0, 10)


def test_another_replica_is_asked_for_the_whole_run() -> None:
    reads = reads_of()
    reads.begin(0, 10, 1)
    damaged = Unreadable(DigestMatchException("damaged"))
    assert reads.on_answer(0, damaged) == [RecoveryRead(0, "b1", 9)]
    assert reads.on_answer(0, entry(0), entries(1, 10)) == ()
    assert taken(reads, 0, 10) == entries(0, 10)


def test_a_bookie_that_answers_singly_is_asked_singly_from_then_on() -> None:
    reads = reads_of()
    reads.begin(0, 10, 1)
    assert reads.on_answer(0, entry(0)) == [RecoveryRead(1, "b1", 8)]
    assert reads.on_answer(1, entry(1), entries(2, 10)) == ()
    assert reads.begin(30, 33, 1) == [RecoveryRead(30, "b0"), RecoveryRead(31, "b1"), RecoveryRead(32, "b2")]
    assert reads.begin(40, 43, 1) == [RecoveryRead(40, "b1", 2)], "the others are asked for runs"


def test_bookies_without_runs_are_asked_once_each_for_one() -> None:
    reads = reads_of(batch=200)
    (first,) = reads.begin(0, 100, 1)
    todo, with_runs = [first], 0
    while todo:
        wanted = todo.pop()
        with_runs += wanted.following > 0
        todo += reads.on_answer(wanted.entry_id, entry(wanted.entry_id)) or ()
    assert taken(reads, 0, 100) == entries(0, 100)
    assert with_runs == 3


@pytest.mark.parametrize(("sizes", "runs"), [((3, 2, 2), True), ((3, 3, 2), False)])
def test_no_runs_where_bookies_hold_parts_or_frames_are_small(sizes: tuple[int, int, int], runs: bool) -> None:
    reads = reads_of(sizes, runs=runs).begin(0, 4, 1)
    assert [(read.entry_id, read.following) for read in reads] == [(0, 0), (1, 0), (2, 0), (3, 0)]


@pytest.mark.parametrize(("largest", "longest"), [(1, 10), (200_000, 5), (MOST_FOLLOWING_BYTES, 1)])
def test_a_run_is_as_long_as_a_response_may_be(largest: int, longest: int) -> None:
    (first, *_) = reads_of().begin(0, 20, largest)
    assert first.following == longest - 1


def test_answers_nobody_waits_for_change_nothing() -> None:
    reads = reads_of()
    reads.begin(0, 10, 1)
    assert reads.on_answer(3, entry(3)) is None, "it was asked for behind entry 0 only"
    reads.on_answer(0, entry(0), entries(1, 10))
    assert reads.on_answer(0, Missing.MISSING) is None
    reads.clear()
    assert reads.on_answer(0, entry(0)) is None
    assert reads.take(0) is None
