"""What one audit marks, by listings and by the index."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from bookgate.bookie.replication.audits.audit import Audits, AuditStatistics
from bookgate.bookie.replication.audits.index_keeper import IndexKeeper, IndexOptions, IndexStatistics
from bookgate.gateway.stores.drivers import create_factory
from bookgate.ledger.ledger_id import LedgerId
from bookgate.ledger.metadata import LedgerMetadata
from tests.integration.bookie.replication.test_auditor_metrics import register
from tests.stores import made

pytestmark = pytest.mark.asyncio

LEDGERS = (("back", "other"), ("emptied", "other"), ("gone", "back"), ("emptied", "back"))


@pytest.mark.parametrize("indexed", [False, True])
async def test_a_bookie_that_came_back_during_the_scan_is_not_marked_for(tmp_path: Path, indexed: bool) -> None:
    factory = create_factory(made(f"sqlite://{tmp_path}/metadata.db"))
    await factory.initialize()
    index = IndexKeeper(factory, None, IndexOptions(), IndexStatistics())
    try:
        for number, names in enumerate(LEDGERS):
            await factory.ledger_manager.create(LedgerId.unscoped(number), LedgerMetadata.new(names, 2, 1))
        await register(factory, "back", "emptied", "other")
        if indexed:
            index.start()
            async with asyncio.timeout(30):
                while await index.naming(frozenset()) is None:  # noqa: ASYNC110 - nobody is told
                    await asyncio.sleep(0.01)
        audits = Audits(factory, None, index, AuditStatistics(), lambda: None)
        await audits.of(["back", "emptied", "gone"], emptied=["emptied"])
        found = [mark.value async for page in factory.replication_metadata.marks() for mark in page]
        marked = {mark.ledger_id: tuple(mark.replicas) for mark in found}
        assert marked == {1: ("emptied",), 2: ("gone",), 3: ("emptied",)}
    finally:
        index.stop()
        await index.ended()
        await factory.close()
