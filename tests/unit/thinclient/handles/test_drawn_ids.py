"""Ids that the client draws: one that is taken is replaced by another, one that was given is not."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from bookgate.ledger.errors import LedgerExistException
from bookgate.ledger.ledger_id import LedgerId
from bookgate.ledger.metadata import LedgerMetadata
from bookgate.ledger.metadata_store import LedgerRecord
from bookgate.thinclient.handles import creation
from bookgate.thinclient.handles.ledger_options import LedgerOptions

METADATA = LedgerMetadata.new(["b:1"], 1, 1)


class Store:
    """Has a ledger at whatever is asked for first, so many times."""

    def __init__(self, taken: int) -> None:
        self.taken = taken
        self.asked: list[LedgerId] = []

    async def create(self, ledger_id: LedgerId, metadata: LedgerMetadata) -> LedgerRecord:
        self.asked.append(ledger_id)
        if len(self.asked) <= self.taken:
            raise LedgerExistException(f"ledger {ledger_id} exists")
        return LedgerRecord(ledger_id, metadata, 0)


async def created(store: Store, options: LedgerOptions) -> LedgerRecord:
    context: Any = SimpleNamespace(ledger_manager=store)
    first = options.given_id or creation._new_id(options)
    return await creation._create(context, options, first, METADATA)


@pytest.mark.asyncio
@pytest.mark.parametrize("options", [LedgerOptions(scope_id=7), LedgerOptions(uuid_version=4)])
async def test_an_id_that_is_taken_is_drawn_again(options: LedgerOptions) -> None:
    store = Store(taken=3)
    record = await created(store, options)
    assert len(set(store.asked)) == 4
    assert record.ledger_id == store.asked[-1]
    if options.scope_id:
        assert {each.scope_id for each in store.asked} == {7}


@pytest.mark.asyncio
async def test_a_source_of_ids_that_repeats_ends_with_the_error() -> None:
    store = Store(taken=1000)
    with pytest.raises(LedgerExistException):
        await created(store, LedgerOptions(scope_id=7))
    assert len(store.asked) == 8


@pytest.mark.asyncio
async def test_an_id_that_was_given_is_not_replaced() -> None:
    store = Store(taken=1)
    with pytest.raises(LedgerExistException):
        await created(store, LedgerOptions(ledger_id=5, scope_id=7))
    assert store.asked == [LedgerId(7, 5)]
