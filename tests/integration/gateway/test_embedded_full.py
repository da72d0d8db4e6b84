"""The embedded store on a disk without room: it can be read, takes no change, and says so until there is room."""

from __future__ import annotations

import asyncio
import logging
import sqlite3
from collections.abc import Callable
from pathlib import Path

import httpx
import pytest
from prometheus_client import CollectorRegistry

from bookgate.gateway.config import GatewayConfig
from bookgate.gateway.process.http import HttpServer
from bookgate.gateway.stores.sqlite import store
from bookgate.gateway.stores.sqlite.factory import SqliteLedgerManagerFactory
from bookgate.ledger.errors import MetaStoreException
from tests.integration.gateway.conftest import some_metadata, unscoped
from tests.stores import made, with_changing_connection

pytestmark = pytest.mark.asyncio


def most_pages(more: int | None) -> Callable[[sqlite3.Connection], None]:
    """Lets the file grow by so many pages, None: as it will. SQLite answers as where the file system has no room."""

    def limit(connection: sqlite3.Connection) -> None:
        pages = connection.execute("PRAGMA page_count").fetchone()[0]
        connection.execute(f"PRAGMA max_page_count = {1 << 30 if more is None else pages + more}")

    return limit


def read_only(only: int) -> Callable[[sqlite3.Connection], None]:
    """SQLite answers changes as where the file, or its file system, is read-only."""
    return lambda connection: connection.execute(f"PRAGMA query_only = {only}").close()


async def test_a_file_that_has_become_read_only_is_told_and_read(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store, "_LOOK_FOR_ROOM_SECONDS", 0.02)
    made(f"sqlite://{tmp_path}/metadata.db")
    factory = SqliteLedgerManagerFactory(str(tmp_path / "metadata.db"))
    await factory.initialize()
    manager = factory.ledger_manager
    await manager.create(unscoped(1), some_metadata())
    await with_changing_connection(factory.store, read_only(1))
    with caplog.at_level(logging.INFO):
        for _ in range(2):
            with pytest.raises(MetaStoreException, match="give it and its directory to this process's user"):
                await manager.create(unscoped(2), some_metadata())
    assert sum("event=metadata_not_writable" in record.getMessage() for record in caplog.records) == 1
    assert (factory.connected, factory.writable) == (True, False)
    assert (await manager.read(unscoped(1))).version == 0
    await with_changing_connection(factory.store, read_only(0))
    for _ in range(1500):
        if factory.writable:
            break
        await asyncio.sleep(0.02)
    await manager.create(unscoped(2), some_metadata())
    await factory.close()


async def test_a_full_disk_is_told_and_the_store_read_until_there_is_room(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store, "_LOOK_FOR_ROOM_SECONDS", 0.02)
    uri = made(f"sqlite://{tmp_path}/metadata.db")
    factory = SqliteLedgerManagerFactory(str(tmp_path / "metadata.db"))
    await factory.initialize()
    settings = GatewayConfig.load(None, {"metadata_uri": uri})
    http = HttpServer(settings, factory, CollectorRegistry(), asyncio.Event())
    port = await http.start("127.0.0.1", 0)
    manager = factory.ledger_manager
    await manager.create(unscoped(1), some_metadata())

    async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}") as client:
        assert (await client.get("/ready")).status_code == 200
        await with_changing_connection(factory.store, most_pages(0))
        with caplog.at_level(logging.INFO):
            for _ in range(2):
                with pytest.raises(MetaStoreException, match="full"):
                    await manager.create(unscoped(2), some_metadata(large=bytes(100_000)))
        answer = await client.get("/ready")
        assert (answer.status_code, "disk is full" in answer.text) == (503, True)
        assert sum("event=metadata_disk_full" in record.getMessage() for record in caplog.records) == 1
        assert factory.connected
        assert (await manager.read(unscoped(1))).version == 0

        await with_changing_connection(factory.store, most_pages(None))
        for _ in range(1500):
            if factory.writable:
                break
            await asyncio.sleep(0.02)
        assert (await client.get("/ready")).status_code == 200
    await manager.create(unscoped(2), some_metadata(large=bytes(100_000)))
    await http.stop()
    await factory.close()
