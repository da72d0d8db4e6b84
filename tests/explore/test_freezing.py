"""Snapshots tell apart what a method could tell apart, and nothing else."""

from __future__ import annotations

from collections import deque

import pytest

from bookgate.ledger.errors import LedgerFencedException
from bookgate.ledger.ledger_id import LedgerId
from bookgate.thinclient.core.writing import LedgerWriter
from tests.explore.freezing import freeze, pack, unpack


def _writer() -> LedgerWriter:
    writer = LedgerWriter(LedgerId.unscoped(1), ("a", "b"), 2, 2)
    add = writer.begin_add(3)
    writer.on_ack(add, writer.members[0])
    return writer


def test_equal_states_are_equal_and_a_copy_is_independent() -> None:
    writer = _writer()
    before = freeze(writer)
    assert freeze(_writer()) == before
    copy = unpack(pack(writer))
    assert freeze(copy) == before
    copy.on_ack(copy.oldest_incomplete, copy.members[1])
    assert copy.last_add_confirmed == 0
    assert freeze(copy) != before == freeze(writer)


def test_one_object_met_twice_is_not_two_equal_ones() -> None:
    one = [1]
    assert freeze([one, one]) != freeze([[1], [1]])
    assert freeze({"a": 1, "b": 2}) == freeze({"b": 2, "a": 1})
    assert freeze(deque([1])) != freeze(deque([2]))


def test_an_iterator_counts_by_what_is_left_of_it() -> None:
    begun = iter((1, 2))
    next(begun)
    assert freeze(begun) != freeze(iter((1, 2)))
    assert freeze(begun) == freeze(unpack(pack(begun)))
    assert next(begun) == 2


def test_errors_count_by_their_class_and_functions_are_refused() -> None:
    assert freeze(LedgerFencedException("a")) == freeze(LedgerFencedException("b"))
    with pytest.raises(TypeError, match="no state"):
        freeze([print])
