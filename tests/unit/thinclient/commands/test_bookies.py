"""`bookgate bookie info` where bookies are absent."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from bookgate.gateway.stores.drivers import create_factory
from bookgate.thinclient.commands.main import app
from tests.stores import made


@pytest.fixture
def store(tmp_path: Path) -> str:
    return made(f"sqlite://{tmp_path}/metadata.db")


def info(store: str, *arguments: str) -> Result:
    return CliRunner().invoke(app, ["bookie", "info", "--gateways", store, *arguments])


def know(store: str, bookie_id: str) -> None:
    """Gives the cluster a bookie that has a cookie and no registration."""

    async def work() -> None:
        factory = create_factory(store)
        await factory.initialize()
        try:
            await factory.registration_manager.write_cookie(bookie_id, b"cookie", None)
        finally:
            await factory.close()

    asyncio.run(work())


def test_a_cluster_without_bookies_is_told(store: str) -> None:
    result = info(store)
    assert (result.exit_code, result.stdout) == (1, "")
    assert result.stderr == "error: no bookie is registered; start one: bookgate bookie start\n"


def test_a_bookie_that_is_not_registered_is_an_error_in_a_column_of_its_own(store: str) -> None:
    know(store, "bookie-1")
    result = info(store)
    assert result.exit_code == 1
    assert result.stdout == "bookie\tfree\ttotal\tused\terror\nbookie-1\t\t\t\tnot registered\n"
    told = json.loads(info(store, "--json").stdout)
    assert told["bookies"] == [
        {"bookie_id": "bookie-1", "total_bytes": None, "free_bytes": None, "error": "not registered"}
    ]
