"""The order in which a worker takes marked ledgers, and when it tries one again."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from bookgate.bookie.replication.repairs.repair_queue import (
    FIRST_PAUSE_SECONDS,
    LONGEST_PAUSE_SECONDS,
    Candidate,
    GivenUp,
    RepairQueue,
)
from bookgate.ledger.ledger_id import LedgerId
from bookgate.ledger.metadata import LedgerMetadata
from bookgate.ledger.metadata_store import LedgerRecord
from bookgate.ledger.password_check import PasswordCheck


def test_the_fewest_copies_first_then_the_newest() -> None:
    queue = RepairQueue()
    candidates = [Candidate(1, 0, 2), Candidate(2, 0, 1), Candidate(3, 0, 1), Candidate(4, 0, 2)]
    assert [each.ledger_id for each in queue.order(candidates, 0.0)] == [3, 2, 4, 1]


def test_of_equals_those_below_their_ack_quorum_come_first() -> None:
    candidates = [Candidate(9, 0, 2), Candidate(1, 0, 2, below_ack_quorum=True), Candidate(2, 0, 1)]
    assert [each.ledger_id for each in RepairQueue().order(candidates, 0.0)] == [2, 1, 9]


def test_what_has_waited_for_long_goes_up() -> None:
    queue = RepairQueue()
    assert queue.is_due(1, 0, 0.0)
    assert queue.is_due(9, 0, 5_000.0)
    assert [each.ledger_id for each in queue.order([Candidate(1, 0, 3), Candidate(9, 0, 1)], 5_000.0)] == [1, 9]


def test_every_failure_doubles_the_pause_up_to_a_bound() -> None:
    queue, now, pauses = RepairQueue(), 0.0, []
    for _ in range(3000):
        pauses.append(queue.failed(7, 0, now))
        assert not queue.is_due(7, 0, now)
        assert queue.next_due() == now + pauses[-1]
        now += pauses[-1]
        assert queue.is_due(7, 0, now)
    assert pauses[:3] == [FIRST_PAUSE_SECONDS, 2 * FIRST_PAUSE_SECONDS, 4 * FIRST_PAUSE_SECONDS]
    assert pauses[-1] == LONGEST_PAUSE_SECONDS


def test_what_is_unrecoverable_waits_for_a_change() -> None:
    queue = RepairQueue()
    record = LedgerRecord(LedgerId.unscoped(7), LedgerMetadata.new(["a", "b"], 2, 1).close(9, 100), 11, incarnation=5)
    queue.unrecoverable(record, 3, ["a", "b"])
    assert queue.next_due() is None
    assert not queue.is_due(7, 3, 1e9)
    assert queue.is_given_up(7)
    given_up = queue.given_up_at(7)
    assert given_up is not None
    assert given_up.is_still(record)
    queue.failed(8, 0, 0.0)
    assert not queue.is_given_up(8)
    assert queue.is_due(7, 4, 1e9), "somebody marked it again"
    queue.returned(["c"])
    assert not queue.is_due(7, 3, 1e9)
    queue.returned(["b"])
    assert queue.is_due(7, 3, 1e9)


def test_a_ledger_is_as_it_was_given_up_until_it_is_written_or_created_anew() -> None:
    metadata = LedgerMetadata.new(["a", "b"], 2, 1).close(9, 100)
    record = LedgerRecord(LedgerId.unscoped(7), metadata, 11, incarnation=5)
    given_up = GivenUp.of(record)
    assert not given_up.is_still(replace(record, version=12)), "its writer may change it"
    assert not given_up.is_still(replace(record, incarnation=6)), "the version alone does not tell them apart"
    # Older gateways do not tell the incarnation.
    other = replace(record, metadata=replace(metadata, length=99))
    for known, told in ((5, None), (None, 6), (None, None)):
        before = GivenUp.of(replace(record, incarnation=known))
        assert before.is_still(replace(record, incarnation=told))
        assert not before.is_still(replace(other, incarnation=told))
    check = PasswordCheck(b"salt", b"digest")
    assert given_up.is_still(replace(record, metadata=replace(metadata, password_check=check)))


def test_what_is_not_marked_any_more_is_forgotten() -> None:
    queue = RepairQueue()
    queue.failed(7, 0, 0.0)
    queue.failed(8, 0, 0.0)
    queue.keep_only({8})
    assert queue.is_due(7, 0, 0.0)
    assert not queue.is_due(8, 0, 0.0)


@given(st.lists(st.tuples(st.integers(0, 50), st.integers(0, 3)), unique_by=lambda pair: pair[0]))
def test_an_order_leaves_nobody_out(pairs: list[tuple[int, int]]) -> None:
    candidates = [Candidate(ledger_id, 0, left) for ledger_id, left in pairs]
    ordered = RepairQueue().order(candidates, 0.0)
    assert sorted(ordered, key=lambda each: each.ledger_id) == sorted(candidates, key=lambda each: each.ledger_id)
    assert [each.copies_left for each in ordered] == sorted(each.copies_left for each in candidates)
