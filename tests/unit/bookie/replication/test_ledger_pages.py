"""What an auditor is told of: ordinary ledgers that exist and can be read."""

from __future__ import annotations

import pytest

from bookgate.bookie.replication.ledger_pages import all_pages
from bookgate.ledger.metadata import LedgerMetadata
from bookgate.ledger.unbounded import create_unbounded
from tests.unit.thinclient.fakes import InMemoryLedgerManager


@pytest.mark.asyncio
async def test_unbounded_ledgers_are_left_out() -> None:
    manager = InMemoryLedgerManager()
    ordinary = LedgerMetadata.new(("a:1", "b:1"), 2, 2)
    kept = [await manager.create(None, metadata) for metadata in (ordinary, create_unbounded(ordinary), ordinary)]
    told: list[object] = []
    pages = [page async for page in all_pages(manager, lambda *damaged: told.append(damaged))]
    assert ([record for page in pages for record in page], told) == ([kept[0], kept[2]], [])
