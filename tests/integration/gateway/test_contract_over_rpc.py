"""The contract of the stores, kept by clients of gateways: two clients, and two gateways on one store behind them."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from dataclasses import replace
from pathlib import Path

import pytest
import pytest_asyncio

from bookgate.gateway.server import GatewayServer
from bookgate.gateway.stores.drivers import create_factory
from tests.integration.gateway.conftest import ALL_STORES, some_metadata, unused_store
from tests.integration.gateway.test_store_contract import (
    Factories,
    TestBookies,
    TestCluster,
    TestListeners,
    TestListing,
    TestManyLedgers,
)
from tests.integration.gateway.test_store_contract import TestLedgers as StoreLedgers
from tests.stores import made

pytestmark = pytest.mark.asyncio

__all__ = ["TestBookies", "TestCluster", "TestLedgers", "TestListeners", "TestListing", "TestManyLedgers"]


class TestLedgers(StoreLedgers):
    async def test_metadata_format_version_is_kept(self, factories: Factories) -> None:
        """How the store keeps it is the gateway's business: the client sees the same metadata either way."""
        manager = factories[0].ledger_manager
        for version in (1, 2, 3):
            metadata = replace(some_metadata(app=b"x"), format_version=version)
            found = await manager.read((await manager.create(None, metadata)).ledger_id)
            assert found.metadata.custom_metadata == {"app": b"x"}
            assert found.metadata.format_version == 3


@pytest.fixture(params=ALL_STORES)
def store_uri(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return made(unused_store(request, tmp_path))


@pytest_asyncio.fixture
async def metadata_uri(store_uri: str) -> AsyncIterator[str]:
    """What the tests of the contract make their factories from."""
    async with AsyncExitStack() as stack:
        ports = []
        for _ in range(2):
            factory = create_factory(store_uri)
            stack.push_async_callback(factory.close)
            await factory.initialize()
            gateway = GatewayServer(factory)
            stack.push_async_callback(gateway.stop, 0)
            ports.append(await gateway.start())
        yield "grpc://" + ",".join(f"127.0.0.1:{port}" for port in ports)
