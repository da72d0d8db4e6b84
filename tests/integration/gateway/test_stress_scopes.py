"""A scope of very many ledgers with random ids: a listing has each once, in order."""

from __future__ import annotations

import contextlib
import random
import sqlite3
from pathlib import Path

import pytest

from bookgate.gateway.server import GatewayServer
from bookgate.gateway.stores.drivers import create_factory
from bookgate.gateway.stores.sqlite.change_feed import ledger_key
from bookgate.ledger.id_set import unsigned
from bookgate.ledger.ledger_id import LedgerId
from bookgate.ledger.metadata_codec import encode
from bookgate.thinclient.gateways.factory import RpcLedgerManagerFactory
from tests.integration.gateway.conftest import some_metadata
from tests.integration.gateway.stress import size
from tests.stores import made

SCOPE = -5


@pytest.mark.asyncio
async def test_random_ids_are_listed_in_order(tmp_path: Path) -> None:
    rng = random.Random(1)
    ids = sorted({rng.getrandbits(64) - 2**63 for _ in range(size(20_000, 1_000_000))}, key=unsigned)
    uri = made(f"sqlite://{tmp_path}/metadata.db")
    metadata = encode(some_metadata())
    with contextlib.closing(sqlite3.connect(tmp_path / "metadata.db")) as connection, connection:
        insert = "INSERT INTO ledgers (key, version, created_revision, metadata, created_ms) VALUES (?, 0, 1, ?, 0)"
        in_any_order = rng.sample(ids, len(ids))
        connection.executemany(insert, ((ledger_key(LedgerId(SCOPE, each)), metadata) for each in in_any_order))
    factory = create_factory(uri)
    await factory.initialize()
    server = GatewayServer(factory)
    client = RpcLedgerManagerFactory(f"grpc://127.0.0.1:{await server.start()}")
    try:
        listed = [each async for run in client.ledger_manager.ledger_ranges(SCOPE) for each in run]
        assert listed == ids
        middle = ids[len(ids) // 2]
        rest = [each async for run in client.ledger_manager.ledger_ranges(SCOPE, start_after=middle) for each in run]
        assert rest == ids[len(ids) // 2 + 1 :]
        assert [each async for run in client.ledger_manager.ledger_ranges() for each in run] == []
    finally:
        await client.close()
        await server.stop(0)
        await factory.close()
