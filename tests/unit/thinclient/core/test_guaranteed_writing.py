"""Which failed bookies of a guaranteed writer may be replaced (G3)."""

from __future__ import annotations

import pytest

from bookgate.ledger.errors import TimeoutException
from bookgate.ledger.ledger_id import LedgerId
from bookgate.thinclient.core.ensemble_change import pinned
from bookgate.thinclient.core.guaranteed_writing import GuaranteedLedgerWriter

LATE = TimeoutException("late")


@pytest.mark.parametrize(
    ("failed", "acked", "stay"),
    [
        ([0], [], []),
        ([0], [0b110], []),
        ([1], [0b110], [1]),
        ([0], [0b110, 0b111], []),
        ([0, 1], [0b111], [1]),
        ([0, 1], [0b111, 0b101], [0]),
        ([0, 1, 2], [0b011, 0b110], [0, 1, 2]),
    ],
)
def test_each_confirmed_entry_keeps_its_ack_quorum(failed: list[int], acked: list[int], stay: list[int]) -> None:
    assert pinned(failed, acked, 2) == {*stay}


def test_what_a_change_may_have_replaced_already_counts_as_gone() -> None:
    assert pinned([0, 1], [0b111], 2, {1}) == {0}
    assert pinned([0, 1], [0b1111], 2, {1}) == set()


def test_a_bookie_that_fails_during_a_change_is_judged_with_those_that_it_replaces() -> None:
    machine = GuaranteedLedgerWriter(LedgerId.unscoped(3), ["b0", "b1", "b2", "b3"], 4, 2)
    for indexes in ((1, 2, 3), (0, 1, 2)):
        add = machine.begin_add(1)
        for index in indexes:
            machine.on_ack(add, machine.members[index])
    assert (machine.sequence_head, machine.last_add_confirmed) == (1, -1)
    machine.on_failure(machine.members[1], LATE)
    assert machine.begin_change() == {1: "b1"}
    machine.on_failure(machine.members[0], LATE)
    assert machine.begin_change() == {1: "b1"}, "without b0 too, entry 1 would be on one bookie"
    machine.finish_change(["b0", "new", "b2", "b3"])
    assert machine.pinned == {0}
