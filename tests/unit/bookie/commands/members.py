"""A cluster in SQLite with bookies that are known by a cookie, or registered by somebody else than a command."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from typer.testing import CliRunner, Result

from bookgate.bookie.membership.cookie import Cookie
from bookgate.gateway.stores.drivers import create_factory
from bookgate.ledger.bookie_info import BookieServiceInfo
from bookgate.thinclient.commands.main import app


def command(*arguments: object) -> Result:
    return CliRunner().invoke(app, [*map(str, arguments), "--json"])


async def write_cookies(uri: str, *bookies: str) -> None:
    factory = create_factory(uri)
    await factory.initialize()
    try:
        for bookie_id in bookies:
            cookie = Cookie.build(bookie_id, [Path("/journal")], [Path("/ledgers")], "cluster")
            await factory.registration_manager.write_cookie(bookie_id, cookie.encode(), None)
    finally:
        await factory.close()


async def cookie_of(uri: str, bookie_id: str) -> Any:
    factory = create_factory(uri)
    await factory.initialize()
    try:
        return await factory.registration_manager.read_cookie(bookie_id)
    finally:
        await factory.close()


@contextlib.contextmanager
def registered(uri: str, bookie_id: str) -> Iterator[None]:
    """The bookie is registered meanwhile, by a session of its own."""
    there, over = threading.Event(), threading.Event()

    async def stay() -> None:
        factory = create_factory(uri)
        await factory.initialize()
        try:
            info = replace(BookieServiceInfo.legacy("127.0.0.1:3181"), bookie_id=bookie_id)
            await factory.registration_manager.register_bookie(info, read_only=False)
            there.set()
            await asyncio.to_thread(over.wait)
        finally:
            await factory.close()

    thread = threading.Thread(target=asyncio.run, args=(stay(),))
    thread.start()
    try:
        assert there.wait(20)
        yield
    finally:
        over.set()
        thread.join()
