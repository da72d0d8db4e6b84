"""Servers leave out of full collections what is there when they begin to serve."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import pytest

from bookgate.bookie.commands import bookie as command
from bookgate.bookie.instances import instance
from bookgate.gateway.config import GatewayConfig
from bookgate.gateway.process.serve import serve
from tests.stores import made

pytestmark = pytest.mark.asyncio

LOADED_OBJECTS = 10_000


@pytest.fixture(autouse=True)
def nothing_frozen() -> Iterator[None]:
    gc.unfreeze()
    yield
    gc.unfreeze()


class Server:
    """A bookie that ends at once; `left_out` is what a collection would not look at while it serves."""

    addresses = status = cast(Any, {})
    left_out = 0

    async def start(self) -> None:
        assert gc.get_freeze_count() == 0, "what a start makes is to be left out too"

    async def run_until_stopped(self) -> None:
        self.left_out = gc.get_freeze_count()

    async def stop(self) -> None:
        pass

    def request_stop(self) -> None:
        pass


async def test_a_bookie() -> None:
    server = Server()
    await command._serve(cast(Any, server), lambda: None, stop_with_parent=False)
    assert server.left_out > LOADED_OBJECTS


async def test_a_bookie_among_several(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("report_to_parent", "stop_with_parent"):
        monkeypatch.setattr(instance, name, lambda *_: None)
    server = Server()
    await instance._serve(cast(Any, server))
    assert server.left_out > LOADED_OBJECTS


async def test_a_gateway(tmp_path: Path) -> None:
    settings = GatewayConfig.load(None, {"metadata_uri": made(f"sqlite://{tmp_path}/metadata.db"), "port": 0})
    stop, serving = asyncio.Event(), asyncio.Event()
    server = asyncio.ensure_future(serve(settings, stop, lambda _: serving.set(), share_port=False))
    await serving.wait()
    stop.set()
    await server
    assert gc.get_freeze_count() > LOADED_OBJECTS
