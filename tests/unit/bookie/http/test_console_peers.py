"""Bookies that accept a connection and say nothing: they hold up neither the others nor the end of this process."""

from __future__ import annotations

import asyncio
import socket
from types import SimpleNamespace
from typing import Any, cast

import pytest

from bookgate.bookie.http import console_peers
from bookgate.bookie.http.console_peers import Peers
from bookgate.ledger.bookie_info import HTTP, VERSION_PROPERTY, BookieServiceInfo, Endpoint
from bookgate.ledger.metadata_store import BookieSet
from bookgate.thinclient.config import ClientConfig

pytestmark = pytest.mark.asyncio


async def test_a_question_that_is_given_up_has_no_thread_any_more(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(console_peers, "_SECONDS", 0.2)
    with socket.create_server(("127.0.0.1", 0)) as mute:
        endpoint = Endpoint("http", "127.0.0.1", mute.getsockname()[1], HTTP)
        info = BookieServiceInfo("mute", (endpoint,), {VERSION_PROPERTY: "1"})

        async def bookies(which: BookieSet) -> list[Any]:
            return [SimpleNamespace(bookie_id="mute", info=info)] if which is BookieSet.WRITABLE else []

        factory = SimpleNamespace(service_discovery=SimpleNamespace(bookies=bookies))
        peers = Peers(cast(Any, factory), lambda: ClientConfig(gateways="grpc://127.0.0.1:1"))
        assert await peers.rates(None) == {"mute": None}
        await peers.close()
        async with asyncio.timeout(10):
            await asyncio.to_thread(peers._threads.shutdown)
