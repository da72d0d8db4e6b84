"""A worker's budget gives way to bookies that it reads from, be they busy or slow."""

from __future__ import annotations

import random
from types import SimpleNamespace
from typing import Any, cast

import pytest

from bookgate.bookie.replication.copies.budget import CopyLimits
from bookgate.bookie.replication.repairs.tools import WorkerTools
from bookgate.ledger.errors import TooManyRequestsException
from bookgate.ledger.metadata_store import LedgerManagerFactory
from bookgate.ledger.wire.messages import Status
from bookgate.thinclient.config import ClientConfig
from tests.unit.thinclient.fakes import fake_cluster, ledger_of, payloads

FULL = 1e9


@pytest.mark.asyncio
async def test_a_source_that_has_too_much_to_do_lowers_the_rate() -> None:
    async with fake_cluster() as cluster:
        ledger = await ledger_of(cluster, 10)
        await ledger.close()
        # The store of marks and locks is asked for nothing here.
        parts: Any = {"service_discovery": cluster.discovery, "ledger_manager": cluster.metadata, "catch_up": print}
        factory = cast("LedgerManagerFactory", SimpleNamespace(replication_metadata=None, **parts))
        tools = WorkerTools(factory, ClientConfig(), random.Random(1), CopyLimits(worker=FULL, bookie=FULL))
        try:
            record = cluster.metadata.records[ledger.ledger_id]
            async with tools.repair.client.open_record(record, b"planted-p") as reader:
                await payloads(reader)
                assert tools.budget.rate == FULL
                for busy in cluster.bookies:
                    busy.override = lambda _request: Status.ETOOMANYREQUESTS
                with pytest.raises(TooManyRequestsException):
                    await payloads(reader)
            assert FULL / 2 <= tools.budget.rate < 0.6 * FULL
        finally:
            await tools.close()
