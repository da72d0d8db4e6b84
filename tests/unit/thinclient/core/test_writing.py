"""The writer's rules (P9): confirmed in order, over a contiguous prefix at ack quorum, ended once and for all."""

import random
from collections.abc import Sequence
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bookgate.ledger.errors import (
    BKException,
    BookieHandleNotAvailableException,
    IllegalOpException,
    LedgerFencedException,
    NotEnoughBookiesException,
    TimeoutException,
    UnauthorizedAccessException,
    UnexpectedConditionException,
    WriteOnReadOnlyBookieException,
)
from bookgate.ledger.ledger_id import LedgerId
from bookgate.thinclient.core.advanced_writing import AdvancedLedgerWriter
from bookgate.thinclient.core.guaranteed_writing import GuaranteedLedgerWriter
from bookgate.thinclient.core.writing import LedgerWriter, PendingAdd, WriterRules

LEDGER = LedgerId.unscoped(3)


def writer(ensemble_size: int = 3, write_quorum: int = 3, ack_quorum: int = 2) -> LedgerWriter:
    return LedgerWriter(LEDGER, [f"b{i}" for i in range(ensemble_size)], write_quorum, ack_quorum)


def ack(machine: LedgerWriter, add: PendingAdd, index: int) -> Sequence[PendingAdd]:
    return machine.on_ack(add, machine.members[index])


def fail(machine: LedgerWriter, index: int, error: BKException) -> Sequence[PendingAdd]:
    """A failure, and a change that finds no bookie."""
    failed = machine.on_failure(machine.members[index], error)
    if not machine.change_wanted:
        return failed
    machine.begin_change()
    return machine.finish_change(machine.ensemble).failed


def test_confirmed_in_order_whatever_the_order_of_acknowledgements() -> None:
    machine = writer()
    first, second = machine.begin_add(10), machine.begin_add(5)
    assert (first.length, second.length, second.last_add_confirmed) == (10, 15, -1)
    assert [*ack(machine, second, 0), *ack(machine, second, 1), *ack(machine, first, 2)] == []
    assert machine.last_add_confirmed == -1
    assert ack(machine, first, 0) == [first, second]
    assert (machine.last_add_confirmed, machine.confirmed_length) == (1, 15)
    assert machine.begin_add(0).last_add_confirmed == 1


def test_the_same_bookie_twice_is_no_quorum() -> None:
    machine = writer()
    add = machine.begin_add(1)
    assert [*ack(machine, add, 1), *ack(machine, add, 1)] == []
    assert ack(machine, add, 2) == [add]


def test_one_failure_is_tolerated_and_the_bookie_is_left_out_from_then_on() -> None:
    machine = writer()
    before = machine.begin_add(1)
    assert fail(machine, 1, TimeoutException("late")) == ()
    after = machine.begin_add(1)
    assert (before.indexes, after.indexes) == ((0, 1, 2), (2, 0)) or set(after.indexes) == {0, 2}
    for add in (before, after):
        ack(machine, add, 0)
        ack(machine, add, 2)
    assert machine.last_add_confirmed == 1
    assert machine.failed_bookies.keys() == {"b1"}


def test_too_many_failures_end_the_ledger_and_name_everybody() -> None:
    machine = writer()
    done, pending, later = machine.begin_add(1), machine.begin_add(1), machine.begin_add(1)
    ack(machine, done, 0)
    ack(machine, done, 1)
    fail(machine, 0, BookieHandleNotAvailableException("gone"))
    assert fail(machine, 2, TimeoutException("late")) == [pending, later]
    assert isinstance(machine.error, NotEnoughBookiesException)
    for part in ("ledger 3", "entry 1 ", "b0: gone", "b2: late", "up to entry 0", "recovery"):
        assert part in str(machine.error)
    assert [*ack(machine, pending, 0), *ack(machine, pending, 1)] == []
    assert machine.last_add_confirmed == 0
    with pytest.raises(NotEnoughBookiesException):
        machine.begin_add(1)


def test_an_acknowledgement_from_before_the_failure_still_counts() -> None:
    machine = writer()
    add = machine.begin_add(1)
    ack(machine, add, 0)
    fail(machine, 0, BookieHandleNotAvailableException("gone"))
    fail(machine, 1, BookieHandleNotAvailableException("gone"))
    assert ack(machine, add, 2) == [add]
    with pytest.raises(NotEnoughBookiesException):
        machine.begin_add(1)


def test_striped_ledgers_go_on_only_while_the_next_write_set_can_do_it() -> None:
    machine = writer(4, 2, 2)
    fail(machine, 2, TimeoutException("late"))
    assert machine.begin_add(1).indexes == (0, 1)
    with pytest.raises(NotEnoughBookiesException, match="entry 1 can't reach 2 of 2"):
        machine.begin_add(1)


@pytest.mark.parametrize("error", [LedgerFencedException, UnauthorizedAccessException, IllegalOpException])
def test_one_such_answer_ends_it_at_once(error: type[BKException]) -> None:
    machine = writer()
    add = machine.begin_add(1)
    assert fail(machine, 1, error("no")) == [add]
    assert isinstance(machine.error, error)
    assert fail(machine, 0, TimeoutException("late")) == ()
    assert isinstance(machine.error, error)


def test_recovery_starts_behind_the_known_end() -> None:
    machine = LedgerWriter(LEDGER, ["a", "b"], 2, 1, last_add_confirmed=41, length=100)
    add = machine.begin_add(5)
    assert (add.entry_id, add.last_add_confirmed, add.length) == (42, 41, 105)


quorums = st.integers(1, 5).flatmap(
    lambda e: st.integers(1, e).flatmap(lambda w: st.tuples(st.just(e), st.just(w), st.integers(1, w)))
)


@given(quorums, st.integers(0, 2**32), st.integers(1, 60))
def test_lac_never_passes_what_an_ack_quorum_holds(sizes: tuple[int, int, int], seed: int, steps: int) -> None:
    """P9 against a naive model: sets of holders by entry."""
    ensemble_size, write_quorum, ack_quorum = sizes
    rng = random.Random(seed)
    machine = writer(*sizes)
    adds, told, on_the_way = [], [], []
    holders: dict[int, set[int]] = {}
    for _ in range(steps):
        action = rng.random()
        if action < 0.4:
            if machine.error is None:
                try:
                    add = machine.begin_add(rng.randrange(100))
                except NotEnoughBookiesException:
                    continue
                adds.append(add)
                holders[add.entry_id] = set()
                assert len(set(add.indexes)) == len(add.indexes) <= write_quorum
                on_the_way += [(add, index) for index in add.indexes]
        elif action < 0.9 and on_the_way:
            add, index = on_the_way.pop(rng.randrange(len(on_the_way)))
            holders[add.entry_id].add(index)
            told += [done.entry_id for done in ack(machine, add, index)]
        elif action >= 0.97:
            failed = [add.entry_id for add in fail(machine, rng.randrange(ensemble_size), TimeoutException("late"))]
            assert failed == sorted(failed)
            assert not failed or failed[0] > machine.last_add_confirmed
        assert told == list(range(machine.last_add_confirmed + 1))
        assert all(len(holders[entry_id]) >= ack_quorum for entry_id in told)
    assert [add.entry_id for add in adds] == list(range(len(adds)))
    assert all(b.length - a.length == b.size for a, b in pairwise(adds))
    # A writer that still goes on has confirmed everything that an ack quorum holds, up to the first that it does not.
    if machine.error is None:
        gap = next((e for e, held in holders.items() if len(held) < ack_quorum), len(adds))
        assert machine.last_add_confirmed == gap - 1


def test_what_is_pending_when_no_write_set_is_left_ends_with_the_next_failure() -> None:
    machine = writer()
    add = machine.begin_add(1)
    ack(machine, add, 0)
    fail(machine, 0, BookieHandleNotAvailableException())
    fail(machine, 1, BookieHandleNotAvailableException())
    with pytest.raises(NotEnoughBookiesException):
        machine.begin_add(1)
    assert machine.on_failure(machine.members[2], TimeoutException(), add) == [add]
    assert not machine.change_wanted


def test_what_waits_for_an_entry_that_could_not_begin_is_unreachable() -> None:
    machine = AdvancedLedgerWriter(LEDGER, ["b0", "b1", "b2"], 2, 1)
    fail(machine, 0, BookieHandleNotAvailableException())
    fail(machine, 1, BookieHandleNotAvailableException())
    later = machine.begin_add_at(1, 1)
    with pytest.raises(NotEnoughBookiesException):
        machine.begin_add_at(0, 1)
    assert not ack(machine, later, 2)
    assert machine.unreachable() == [later]
    assert not machine.pending_count


def test_with_delay_a_member_that_is_out_counts_against_an_add_that_was_never_sent_to_it() -> None:
    rules = WriterRules(delay_ensemble_change=True)
    machine = LedgerWriter(LEDGER, ["b0", "b1", "b2"], 3, 2, rules=rules)
    machine.on_failure(machine.members[1], WriteOnReadOnlyBookieException(), machine.begin_add(1))
    machine.begin_change()
    assert not machine.finish_change(machine.ensemble).failed  # there is no spare bookie
    add = machine.begin_add(1)
    assert set(add.indexes) == {0, 2}
    machine.on_failure(machine.members[0], TimeoutException(), add)
    assert machine.change_wanted
    machine.begin_change()
    assert add in machine.finish_change(machine.ensemble).failed


def test_with_delay_a_failure_of_a_complete_add_counts_once_a_change_has_taken_its_acknowledgements() -> None:
    rules = WriterRules(delay_ensemble_change=True)
    machine = LedgerWriter(LEDGER, ["b0", "b1", "b2"], 3, 2, rules=rules)
    first, second = machine.begin_adds((1, 1))
    ack(machine, second, 0)
    ack(machine, second, 1)
    machine.on_failure(machine.members[2], TimeoutException(), second)
    assert not machine.change_wanted, "it is complete"
    machine.on_failure(machine.members[0], TimeoutException(), first)
    machine.on_failure(machine.members[1], TimeoutException(), first)
    assert machine.begin_change() == {0: "b0", 1: "b1"}
    machine.finish_change(["b3", "b4", "b2"])
    ack(machine, second, 0)
    machine.on_failure(machine.members[1], TimeoutException(), second)
    assert machine.change_wanted, "nobody is left who might acknowledge it"
    assert machine.begin_change() == {1: "b4", 2: "b2"}


@pytest.mark.parametrize("acknowledged", [True, False])
def test_a_bookie_that_is_tried_again_gets_what_it_has_not_stored(acknowledged: bool) -> None:
    machine = writer()
    add = machine.begin_add(1)
    if acknowledged:
        ack(machine, add, 0)
    fail(machine, 0, TimeoutException())
    late = machine.begin_add(1)
    assert set(late.indexes) == {1, 2}
    resend = machine.readmit(0)
    assert resend == ([(late, 0)] if acknowledged else [(add, 0), (late, 0)])
    ack(machine, late, 0)
    assert not ack(machine, late, 1)
    assert [*ack(machine, add, 0), *ack(machine, add, 1)] == [add, late]


def begun_by(kind: type[LedgerWriter]) -> tuple[LedgerWriter, PendingAdd]:
    """A writer of this kind, and its first add."""
    machine = kind(LEDGER, ["b0", "b1", "b2"], 3, 2)
    if isinstance(machine, AdvancedLedgerWriter):
        return machine, machine.begin_add_at(0, 1)
    return machine, machine.begin_add(1)


@pytest.mark.parametrize("kind", [LedgerWriter, AdvancedLedgerWriter, GuaranteedLedgerWriter])
def test_what_a_bookie_was_asked_before_it_was_tried_again_counts_for_nobody_after_it(kind: type[LedgerWriter]) -> None:
    machine, add = begun_by(kind)
    first = machine.members[1]
    fail(machine, 1, TimeoutException("late"))  # no spare bookie
    assert machine.readmit(1) == [(add, 1)]
    machine.on_failure(machine.members[1], TimeoutException("late"), add)
    machine.begin_change()
    assert machine.finish_change(["b0", "b3", "b2"]).resend == [(add, 1)]
    assert not machine.on_ack(add, first)
    assert not ack(machine, add, 0), "b3 has not stored it"
    assert ack(machine, add, 2) == [add]


def test_an_ensemble_that_others_gave_a_bookie_twice_ends_the_ledger() -> None:
    machine = writer()
    add = machine.begin_add(1)
    machine.on_failure(machine.members[0], TimeoutException())
    machine.begin_change()
    ensemble = machine.ensemble
    changed = machine.finish_change((ensemble[1], *ensemble[1:]))
    assert (list(changed.resend), list(changed.confirmed), list(changed.failed)) == ([], [], [add])
    assert isinstance(machine.error, UnexpectedConditionException)
    assert f"{ensemble[1]}, {ensemble[1]}, {ensemble[2]}" in str(machine.error)
