"""Entries over HTTP where some ids have nothing to show: below a trim, and the truncate entries of take-overs."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from bookgate import BookKeeper, LedgerOptions
from bookgate.bookie.http import client_routes, console_ledgers
from bookgate.bookie.server import BookieServer
from bookgate.ledger.ledger_id import LedgerId
from bookgate.thinclient.config import ClientConfig
from tests.integration.bookie.in_process import running_bookie

pytestmark = pytest.mark.asyncio

CONSOLE = "/api/v1/console"


@asynccontextmanager
async def client_of(bookie: BookieServer) -> AsyncIterator[BookKeeper]:
    settings = ClientConfig(gateways=f"grpc://{bookie.addresses['gateway']}")
    async with BookKeeper.connect(config=settings) as client:
        yield client


class Shown:
    """What a bookie tells of one ledger over HTTP."""

    def __init__(self, http: httpx.AsyncClient, ledger_id: LedgerId) -> None:
        self._http = http
        self._ids = {"ledger_id": ledger_id.low, "ledger_scope_id": ledger_id.scope_id}

    async def ask(self, path: str, **query: Any) -> httpx.Response:
        return await self._http.get(path, params={**self._ids, **query})

    async def told(self, path: str, **query: Any) -> Any:
        answer = await self.ask(path, **query)
        assert answer.status_code == 200, answer.text
        return answer.json()


@asynccontextmanager
async def shown(bookie: BookieServer, ledger_id: LedgerId) -> AsyncIterator[Shown]:
    async with httpx.AsyncClient(base_url=f"http://{bookie.addresses['http']}", timeout=30) as http:
        yield Shown(http, ledger_id)


async def test_a_trimmed_ledger_is_shown_from_its_first_entry_on(tmp_path: Path) -> None:
    async with running_bookie(tmp_path) as bookie, client_of(bookie) as client:
        async with await client.create_unbounded_ledger(LedgerOptions(1, 1, 1), max_fragment_entries=5) as ledger:
            for number in range(8):
                await ledger.append(b"record %d" % number)
        await client.trim_ledger(ledger.ledger_id, 5)
        async with shown(bookie, ledger.ledger_id) as page:
            entries = await page.told(f"{CONSOLE}/entries", start_entry_id=0, limit=2)
            assert [each["id"] for each in entries["entries"]] == ["5", "6"]
            assert entries["next"] == "7"
            found = await page.told(f"{CONSOLE}/entry_search", text="record", limit=2)
            assert [each["id"] for each in found["entries"]] == ["5", "6"]
            assert (found["examined"], found["next"]) == (2, "7")
            # What names its range is told that some of it is gone.
            assert (await page.ask("/api/v1/ledger/read")).status_code == 404
            assert list(await page.told("/api/v1/ledger/read", start_entry_id=5)) == ["5", "6", "7"]
            assert (await page.told(f"{CONSOLE}/entry", entry_id=5))["digest"] == "ok"
            for path in ("entry", "entry_payload"):
                answer = await page.ask(f"{CONSOLE}/{path}", entry_id=4)
                assert (answer.status_code, "deleted by a trim" in answer.json()["error"]) == (404, True)


async def test_a_range_that_ends_at_a_truncate_entry_is_read_and_searched_to_its_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client_routes, "PAGE", 5)
    monkeypatch.setattr(console_ledgers, "_SEARCHED_ENTRIES", 1)
    async with running_bookie(tmp_path) as bookie, client_of(bookie) as client:
        async with await client.create_unbounded_ledger(LedgerOptions(1, 1, 1)) as ledger:
            for number in range(5):
                await ledger.append(b"record %d" % number)
        # Its truncate entry is entry 5.
        async with await client.take_over(ledger.ledger_id) as ledger:
            await ledger.append(b"later")
        async with shown(bookie, ledger.ledger_id) as page:
            first = await page.ask("/api/v1/ledger/read", end_entry_id=5)
            assert list(first.json()) == ["0", "1", "2", "3", "4"]
            assert "start_entry_id=5" in first.headers["Link"]
            last = await page.ask("/api/v1/ledger/read", start_entry_id=5, end_entry_id=5)
            assert (last.status_code, last.json(), "Link" in last.headers) == (200, {}, False)
            for begun in range(6):
                answer = await page.told(f"{CONSOLE}/entry_search", text="no", start_entry_id=begun)
                assert (answer["examined"], answer["next"]) == (1, str(begun + 1))
            assert (await page.told(f"{CONSOLE}/entry_search", text="no", start_entry_id=6))["next"] is None
