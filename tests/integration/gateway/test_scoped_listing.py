"""Listings of a scope whose ids are any 64 bits: through store, gateway and client, all of them, in one order."""

from __future__ import annotations

from collections.abc import AsyncIterator
from itertools import product
from pathlib import Path

import pytest
import pytest_asyncio

from bookgate.gateway.server import GatewayServer
from bookgate.gateway.stores.drivers import create_factory
from bookgate.ledger.id_set import unsigned
from bookgate.ledger.ledger_id import LedgerId
from bookgate.ledger.metadata_store import CreateRequest, LedgerRecord
from bookgate.thinclient.gateways.factory import RpcLedgerManagerFactory
from bookgate.thinclient.gateways.ledger_manager import RpcLedgerManager
from tests.integration.gateway.conftest import some_metadata
from tests.stores import made

pytestmark = pytest.mark.asyncio

SCOPE = 7
IDS = [-(2**63), -(2**63) + 5, -7, -1, 0, 3, 20, 2**63 - 1]


@pytest_asyncio.fixture
async def ledgers(tmp_path: Path) -> AsyncIterator[RpcLedgerManager]:
    """A client's view of a gateway over the embedded store, with these ledgers."""
    factory = create_factory(made(f"sqlite://{tmp_path}/metadata.db"))
    await factory.initialize()
    server = GatewayServer(factory)
    client = RpcLedgerManagerFactory(f"grpc://127.0.0.1:{await server.start()}")
    await client.initialize()
    requests = [CreateRequest(LedgerId(SCOPE, number), some_metadata()) for number in IDS]
    assert all(isinstance(each, LedgerRecord) for each in await client.ledger_manager.create_many(requests))
    yield client.ledger_manager
    await client.close()
    await server.stop(0)
    await factory.close()


async def test_every_id_is_listed_once_between_any_ends(ledgers: RpcLedgerManager) -> None:
    for after, before in product([None, *IDS], [None, *IDS]):
        low = -1 if after is None else unsigned(after)
        high = 1 << 64 if before is None else unsigned(before)
        expected = [each for each in sorted(IDS, key=unsigned) if low < unsigned(each) < high]
        found = [number async for run in ledgers.ledger_ranges(SCOPE, after, before) for number in run]
        assert found == expected, f"after {after}, before {before}"


@pytest.mark.parametrize("page_size", [1, 3, 100])
async def test_pages_go_on_over_the_border_between_the_signs(ledgers: RpcLedgerManager, page_size: int) -> None:
    pages = [page async for page in ledgers.ledger_records(SCOPE, page_size=page_size)]
    assert [record.ledger_id.low for page in pages for record in page] == sorted(IDS, key=unsigned)


async def test_ledgers_are_read_by_ids_of_both_signs(ledgers: RpcLedgerManager) -> None:
    wanted = [LedgerId(SCOPE, number) for number in IDS]
    records = await ledgers.read_many(wanted)
    assert [each.ledger_id for each in records if isinstance(each, LedgerRecord)] == wanted
