"""What the console tells of a scope in which somebody has written marks of streams that no client writes."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import httpx
import pytest

from bookgate.gateway.console.stream_routes import console_stream_routes
from bookgate.gateway.http.access import Access
from bookgate.gateway.http.api import create_app
from bookgate.ledger.ledger_id import LedgerId
from bookgate.ledger.metadata import LedgerMetadata
from bookgate.ledger.metadata_store import LedgerManagerFactory
from bookgate.ledger.payload_codec import RecordPosition
from bookgate.ledger.streams import (
    CURSOR_KEY,
    CURSORS_KEY,
    DEFAULT_SCOPE,
    SETTINGS_KEY,
    STREAM_KEY,
    CommittedCursor,
    StreamSettings,
    cursor_record_id,
    encoded_cursor_names,
    encoded_stream,
    stream_record_id,
)
from bookgate.ledger.unbounded import create_unbounded
from tests.unit.gateway.console.test_console import PATH, store

LEDGER = LedgerId(DEFAULT_SCOPE, 1)
WHOLE = {
    STREAM_KEY: encoded_stream("whole", LEDGER),
    SETTINGS_KEY: StreamSettings().encoded(),
    CURSORS_KEY: encoded_cursor_names(("forged", "good")),
}


async def create(factory: LedgerManagerFactory, ledger_id: LedgerId, custom: Mapping[str, bytes]) -> None:
    metadata = LedgerMetadata.new(["bookie-1"], 1, 1, custom_metadata=custom).close(-1, 0)
    await factory.ledger_manager.create(ledger_id, metadata)


async def told(factory: LedgerManagerFactory, path: str, **query: str) -> Any:
    app = create_app(console_stream_routes(factory), Access(None, loopback=True), {})
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://localhost") as http:
        answer = await http.get(f"{PATH}/{path}", params=query)
    assert answer.status_code == 200, answer.text

    def refuse(text: str) -> None:
        raise AssertionError(f"{text}, which no browser reads")

    return json.loads(answer.text, parse_constant=refuse)


@pytest.mark.asyncio
@pytest.mark.parametrize(
    "forged",
    [
        {STREAM_KEY: b"[" * 5000},
        {STREAM_KEY: json.dumps({"name": "\ud800", "ledger": "0" * 32}).encode()},
        {SETTINGS_KEY: b'{"max_age_seconds":NaN}'},
        {SETTINGS_KEY: b'{"max_age_seconds":1e999}'},
        {CURSORS_KEY: json.dumps({"names": ["\ud800"]}).encode()},
    ],
)
async def test_a_record_that_can_not_be_read_is_left_out(tmp_path: Path, forged: dict[str, bytes]) -> None:
    async with store(tmp_path) as factory:
        await create(factory, LedgerId(DEFAULT_SCOPE, 7), {**WHOLE, **forged})
        await create(factory, stream_record_id("whole"), WHOLE)
        assert [each["name"] for each in (await told(factory, "streams"))["streams"]] == ["whole"]


@pytest.mark.asyncio
async def test_a_cursor_that_can_not_be_read_is_shown_as_damaged(tmp_path: Path) -> None:
    good = CommittedCursor("whole", LEDGER.qualified_name, "good", RecordPosition(3, 1), 5).encoded()
    async with store(tmp_path) as factory:
        await factory.ledger_manager.create(LEDGER, create_unbounded(LedgerMetadata.new(["bookie-1"], 1, 1)))
        await create(factory, stream_record_id("whole"), WHOLE)
        await create(factory, cursor_record_id("whole", "good"), {CURSOR_KEY: good})
        await create(factory, cursor_record_id("whole", "forged"), {CURSOR_KEY: good.replace(b"3", b"null")})
        cursors = (await told(factory, "stream", name="whole"))["cursors"]
        assert [(each["name"], each["entryId"], "problem" in each) for each in cursors] == [
            ("forged", None, True),
            ("good", "3", False),
        ]
