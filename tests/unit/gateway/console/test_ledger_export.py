"""Ledgers as a file: what is in it, that a spreadsheet runs none of it, and that it is never held as a whole."""

from __future__ import annotations

import csv
import io
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any, cast

import httpx
import pytest
from starlette.requests import Request
from starlette.responses import StreamingResponse

from bookgate.gateway.console.ledger_export import ExportQuery, ledger_export_route
from bookgate.gateway.console.paths import CONSOLE
from bookgate.gateway.http.access import Access
from bookgate.gateway.http.api import Call, NoBody, create_app
from bookgate.ledger.errors import MetadataFormatException, MetaStoreException
from bookgate.ledger.ledger_id import LedgerId
from bookgate.ledger.metadata import LedgerMetadata
from bookgate.ledger.metadata_store import CreateRequest, LedgerManager
from tests.unit.gateway.console.test_console import metadata, store

FORMULA = '=HYPERLINK("http://evil";"a, b")'


class Slow:
    """A manager that counts what is read of it, and fails from some ledger on."""

    def __init__(self, manager: LedgerManager, fails_from: int | None = None) -> None:
        self._manager = manager
        self._fails_from = fails_from
        self.read = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._manager, name)

    async def read_listed(self, ids: Sequence[LedgerId], page_bytes: int) -> Sequence[Any]:
        self.read += len(ids)
        if self._fails_from is not None and self.read > self._fails_from:
            return [MetaStoreException("the store is away") for _ in ids]
        return await self._manager.read_listed(ids, page_bytes)


class Damaged(Slow):
    """One whose metadata say what can't be read of them."""

    async def read_listed(self, ids: Sequence[LedgerId], page_bytes: int) -> Sequence[Any]:
        return [MetadataFormatException(FORMULA) for _ in ids]


async def exported(manager: Any, **query: Any) -> httpx.Response:
    app = create_app([ledger_export_route(manager)], Access(None, loopback=True), {})
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://localhost") as http:
        return await http.get(f"{CONSOLE}/ledgers_export", params=query)


@pytest.mark.asyncio
async def test_what_matches_is_saved_whole_as_json_and_as_csv(tmp_path: Path) -> None:
    async with store(tmp_path) as factory:
        manager = factory.ledger_manager
        long = b"x" * 1000
        made = [metadata(topic=b"a").close(9, 100), metadata(topic=b"b", seal=b"\xff", long=long), metadata()]
        await manager.create_many([CreateRequest(None, each) for each in made])
        answer = await exported(manager, format="json")
        assert answer.headers["Content-Disposition"] == 'attachment; filename="ledgers.json"'
        assert answer.headers["Content-Type"] == "application/json"
        assert [(each["ledgerId"], each["state"], each["length"]) for each in answer.json()] == [
            ("0", "CLOSED", 100),
            ("1", "OPEN", None),
            ("2", "OPEN", None),
        ]
        assert answer.json()[1]["customMetadata"][0] == {
            "key": "long",
            "value": long.decode(),
            "encoding": "text",
            "size": 1000,
        }
        answer = await exported(manager, format="csv", metadata="topic")
        assert answer.headers["Content-Disposition"] == 'attachment; filename="ledgers.csv"'
        assert answer.headers["Content-Type"] == "text/csv; charset=utf-8"
        rows = list(csv.DictReader(io.StringIO(answer.text)))
        assert [(each["ledgerId"], each["lastEntryId"], each["ackQuorumSize"]) for each in rows] == [
            ("0", "9", "2"),
            ("1", "", "2"),
        ]
        assert rows[0]["customMetadata"] == '{"topic": "a"}'
        assert '"seal": "0xff"' in rows[1]["customMetadata"]
        assert (await exported(manager, format="json", start_after=1, state="OPEN")).json()[0]["ledgerId"] == "2"


@pytest.mark.asyncio
async def test_where_nothing_matches_the_file_has_no_row(tmp_path: Path) -> None:
    async with store(tmp_path) as factory:
        await factory.ledger_manager.create(None, metadata())
        assert (await exported(factory.ledger_manager, format="json", state="CLOSED")).json() == []
        text = (await exported(factory.ledger_manager, format="csv", state="CLOSED")).text
        assert (text.count("\r\n"), text.startswith("ledgerId,")) == (1, True)


@pytest.mark.asyncio
async def test_a_spreadsheet_runs_nothing_of_it(tmp_path: Path) -> None:
    """Not what applications wrote, nor what a store says; and a number stays one, also below 0."""
    async with store(tmp_path) as factory:
        custom = {FORMULA: FORMULA.encode()}
        made = LedgerMetadata.new(["b1"], 1, 1, custom_metadata=custom).close(-1, 0)
        await factory.ledger_manager.create(LedgerId(-5, 7), made)
        text = (await exported(factory.ledger_manager, format="csv", ledger_scope_id=-5)).text
        (row,) = csv.DictReader(io.StringIO(text))
        assert (row["ledgerScopeId"], row["lastEntryId"]) == ("-5", "-1")
        assert row["customMetadata"].startswith('{"=HYPERLINK')
        damaged = (await exported(Damaged(factory.ledger_manager), format="csv", ledger_scope_id=-5)).text
        (row,) = csv.DictReader(io.StringIO(damaged))
        assert row["problem"] == f"'{FORMULA}"
        assert (await exported(Damaged(factory.ledger_manager), format="json", ledger_scope_id=-5)).json() == [
            {"ledgerId": "7", "state": "DAMAGED", "problem": FORMULA}
        ]


async def answered(manager: Any, **query: Any) -> AsyncIterator[str]:
    """The parts of an answer, as they are asked for."""
    call = Call(ExportQuery.model_validate(query), NoBody(), Request({"type": "http", "headers": []}))
    answer = cast(StreamingResponse, await ledger_export_route(manager).handle(call))
    return cast(AsyncIterator[str], answer.body_iterator)


@pytest.mark.asyncio
async def test_no_more_is_read_than_was_taken(tmp_path: Path) -> None:
    async with store(tmp_path) as factory:
        await factory.ledger_manager.create_many([CreateRequest(None, metadata(a=b"b")) for _ in range(2000)])
        slow = Slow(factory.ledger_manager)
        parts = await answered(slow, format="csv")
        assert (await anext(parts)).count("\n") == 201
        assert slow.read <= 400
        text = "".join([part async for part in parts])
        assert text.count("\n") == 1800
        assert slow.read == 2000


@pytest.mark.asyncio
async def test_a_store_that_is_away_is_a_status_and_later_the_end_of_the_answer(tmp_path: Path) -> None:
    async with store(tmp_path) as factory:
        await factory.ledger_manager.create_many([CreateRequest(None, metadata()) for _ in range(1000)])
        refused = await exported(Slow(factory.ledger_manager, fails_from=0), format="json")
        assert refused.status_code == 503
        assert "away" in refused.json()["error"]
        parts = await answered(Slow(factory.ledger_manager, fails_from=600), format="json")
        with pytest.raises(MetaStoreException):
            [part async for part in parts]
