"""Listings over HTTP are made and sent in small parts, however much metadata a ledger has."""

from __future__ import annotations

import asyncio
import base64
import json
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import pytest

from bookgate.gateway.http.access import Access
from bookgate.gateway.http.api import create_app
from bookgate.gateway.http.routes.ledgers import ledger_routes
from bookgate.ledger.metadata import LedgerMetadata
from bookgate.ledger.metadata_codec import decode
from tests.unit.thinclient.fakes import InMemoryLedgerManager

pytestmark = pytest.mark.asyncio

LARGEST_PART = 160 * 1024
PLAIN = LedgerMetadata.new(["bookie-1"], 1, 1, password=b"secret")
LARGE = {"first": bytes(range(256)) * 4000, 'a "quoted" one': b"", "last": b"x" * 200_001}
LEDGERS = [LARGE, {}, {"k": b"v"}, LARGE]


async def asked(manager: InMemoryLedgerManager, query: str) -> tuple[Any, list[int]]:
    """The answer, and the size of each part."""
    app = create_app(ledger_routes(cast(Any, SimpleNamespace(ledger_manager=manager))), Access(None, loopback=True), {})
    parts: list[bytes] = []
    requests: list[dict[str, Any]] = [{"type": "http.request", "body": b"", "more_body": False}]

    async def receive() -> dict[str, Any]:
        if not requests:
            await asyncio.Event().wait()  # the client stays
        return requests.pop()

    async def send(message: Any) -> None:
        if message["type"] == "http.response.start":
            assert message["status"] == 200
        else:
            parts.append(message.get("body", b""))

    scope = {
        "type": "http",
        "http_version": "1.1",
        "method": "GET",
        "scheme": "http",
        "path": "/api/v1/ledger/list",
        "raw_path": b"/api/v1/ledger/list",
        "query_string": query.encode(),
        "headers": [(b"host", b"127.0.0.1")],
        "client": ("127.0.0.1", 1),
        "server": ("127.0.0.1", 8080),
    }
    await cast(Any, app)(scope, receive, send)
    return json.loads(b"".join(parts)), list(map(len, parts))


async def manager_with(ledgers: list[dict[str, bytes]]) -> InMemoryLedgerManager:
    manager = InMemoryLedgerManager()
    for custom in ledgers:
        await manager.create(None, replace(PLAIN, custom_metadata=custom))
    return manager


async def test_metadata_decoded() -> None:
    answer, sizes = await asked(await manager_with(LEDGERS), "print_metadata=true")
    assert max(sizes) < LARGEST_PART
    found = [
        {key: base64.b64decode(value) for key, value in ledger["customMetadata"].items()} for ledger in answer.values()
    ]
    assert (list(answer), found) == ([str(n) for n in range(len(LEDGERS))], LEDGERS)
    assert answer["1"]["allEnsembles"] == {"0": [{"id": "bookie-1"}]}
    assert {"ledgerId", "ctime", "version"} <= answer["0"].keys()


async def test_metadata_as_stored() -> None:
    answer, sizes = await asked(await manager_with(LEDGERS), "print_metadata=true&decode_meta=false")
    assert max(sizes) < LARGEST_PART
    stored = [decode(base64.b64decode(each)) for each in answer.values()]
    assert [each.custom_metadata for each in stored] == LEDGERS
    assert {each.password for each in stored} == {b""}


async def test_of_no_ledger() -> None:
    assert (await asked(InMemoryLedgerManager(), "print_metadata=true"))[0] == {}


async def test_ids() -> None:
    answer, sizes = await asked(await manager_with([{}] * 5000), "")
    assert answer == dict.fromkeys(map(str, range(5000)))
    assert len(sizes) > 3
