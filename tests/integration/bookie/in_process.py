"""A bookie in this process, for tests that need settings of their own or look at both ends."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

from bookgate.bookie.config.bookie import load_config
from bookgate.bookie.server import BookieServer
from tests.stores import made


@contextlib.asynccontextmanager
async def running_bookie(root: Path, **settings: Any) -> AsyncIterator[BookieServer]:
    """Serves while the block runs. A second block on the same directory starts the same bookie again."""
    values: dict[str, Any] = {"port": 0, "gateway_port": 0, "http_port": 0, "bookie_id": "bookie"}
    values.update(metadata_uri=f"sqlite://{root}/metadata.db", host="127.0.0.1")
    config = load_config(data_dir=root, **{**values, **settings})
    made(config.metadata_uri)
    server = BookieServer(config)
    try:
        await server.start()
        yield server
    finally:
        await server.stop()


def entry_address(server: BookieServer) -> str:
    """`host:port` of the entry protocol."""
    address = server.addresses["bookie"]
    assert address is not None, "every bookie has one"
    return address


async def until(condition: Callable[[], object], seconds: float = 20.0) -> None:
    """Returns once the condition holds. Raises TimeoutError."""
    async with asyncio.timeout(seconds):
        while True:
            if condition():
                return
            await asyncio.sleep(0.005)
