"""What is remembered of deleted ledgers, and what it costs."""

from __future__ import annotations

import pytest

from bookgate.bookie.storage.recently_deleted import FencedAndDeleted
from bookgate.ledger.ledger_id import LedgerId
from tests.unit.memory import memory_kept


@pytest.fixture
def deleted() -> FencedAndDeleted:
    return FencedAndDeleted(lambda: 0.0)


def test_scopes_whose_ledgers_were_deleted_cost_nothing(deleted: FencedAndDeleted) -> None:
    with memory_kept() as kept:
        for scope_id in range(1, 2001):
            numbers = [LedgerId(scope_id, low).number for low in (1, 2)]
            deleted.compared(scope_id, numbers, [])
            for number in numbers:
                deleted.deleted(number, fenced=False, held_entries=True)
        assert kept() < 20_000


def test_another_ledger_with_the_id_of_a_deleted_one_was_never_in_the_metadata(deleted: FencedAndDeleted) -> None:
    deleted.compared(0, [5], [])
    deleted.deleted(5, fenced=False, held_entries=True)
    deleted.deleted(5, fenced=True, held_entries=False)
    assert 5 not in deleted
