"""`watch_ledger`: what an application sees of a ledger's life."""

from __future__ import annotations

import asyncio

import pytest

from bookgate import BookKeeper
from bookgate.bookie.standalone.cluster import StandaloneCluster
from bookgate.ledger.metadata import LedgerState
from bookgate.thinclient.blocking import client as blocking
from tests.integration.cluster import standalone_cluster

__all__ = ["standalone_cluster"]


@pytest.mark.asyncio
async def test_from_open_to_closed_to_deleted(standalone_cluster: StandaloneCluster) -> None:
    async with await BookKeeper.connect(standalone_cluster.gateway_uri) as client:
        ledger = await client.create_ledger()
        seen: list[LedgerState] = []
        opened, closed = asyncio.Event(), asyncio.Event()

        async def watch() -> None:
            async for record in client.watch_ledger(ledger.ledger_id):
                seen.append(record.metadata.state)
                (closed if record.metadata.is_closed else opened).set()

        watching = asyncio.create_task(watch())
        await asyncio.wait_for(opened.wait(), 10)
        await ledger.close()
        await asyncio.wait_for(closed.wait(), 10)
        await client.delete_ledger(ledger.ledger_id)
        await asyncio.wait_for(watching, 10)
        assert seen == [LedgerState.OPEN, LedgerState.CLOSED]


def test_without_asyncio(standalone_cluster: StandaloneCluster) -> None:
    with blocking.BookKeeper.connect(standalone_cluster.gateway_uri) as client:
        with client.create_ledger() as ledger:
            ledger.append(b"one")
        records = client.watch_ledger(ledger.ledger_id)
        assert next(iter(records)).metadata.last_entry_id == 0
        client.delete_ledger(ledger.ledger_id)
        assert list(records) == []
