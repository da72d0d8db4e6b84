"""Ledgers as a file: all that match the conditions of a search, as CSV or JSON.

The file is sent while the metadata is read, a step at a time, so memory does not grow with the number of ledgers. The
caller pays for each step before the next one. A file that breaks off, because the store is lost, ends its connection in
the middle: browsers call such a download failed. Not its job: which ledgers match (`ledger_routes`).
"""

from __future__ import annotations

import csv
import io
import json
import re
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any, Literal

from pydantic import Field
from starlette.responses import Response

from bookgate.gateway.console.ledger_routes import SHOWN, STEP, Conditions, read_ledgers, row_of
from bookgate.gateway.console.paths import CONSOLE
from bookgate.gateway.http.api import JSON, Call, NoBody, Route, get
from bookgate.gateway.http.routes.ledgers import STORE_AWAY, streamed
from bookgate.ledger.metadata_store import LedgerManager
from bookgate.runtime.cooperative_yield import giving_way

_COLUMNS = (
    "ledgerId",
    "ledgerScopeId",
    "state",
    "length",
    "lastEntryId",
    "ensembleSize",
    "writeQuorumSize",
    "ackQuorumSize",
    "fragmentCount",
    "digestType",
    "created",
    "customMetadata",
    "problem",
)
_FORMULA = ("=", "+", "-", "@", "\t", "\r", "\n")
"""What begins so, a spreadsheet may take for a formula."""
_NUMBER = re.compile(r"-?[0-9]+")

_PART = 64 * 1024
"""Characters that are gathered at most before they are sent, beside one ledger's."""


class ExportQuery(Conditions):
    format: Literal["csv", "json"] = Field(description="of the file")


@dataclass(frozen=True)
class _Form:
    """How a file is put together."""

    media_type: str
    head: str
    row: Callable[[Mapping[str, Any]], str]
    between: str
    tail: str


def ledger_export_route(manager: LedgerManager) -> Route:
    async def export(call: Call[ExportQuery, NoBody]) -> Response:
        call.caller.begin_listing()
        name = call.query.format
        headers = {"Content-Disposition": f'attachment; filename="ledgers.{name}"'}
        return await streamed(_parts(manager, call), _FORMS[name].media_type, headers)

    return get(
        f"{CONSOLE}/ledgers_export",
        "All ledgers that match, as a CSV or JSON file",
        export,
        query=ExportQuery,
        answer={"type": "array", "items": {"type": "object", "required": ["ledgerId", "state"]}},
        as_text=(_FORMS["csv"].media_type,),
        failures=STORE_AWAY,
    )


async def _parts(manager: LedgerManager, call: Call[ExportQuery, NoBody]) -> AsyncGenerator[str, None]:
    """The text of the file. Its beginning comes with the first step, so the store has answered by then."""
    query, caller, form = call.query, call.caller, _FORMS[call.query.format]
    part, between, examined = form.head, "", 0
    async with aclosing(read_ledgers(manager, caller, query)) as found:  # type: ignore[type-var]
        async for number, outcome in found:
            examined += 1
            async with giving_way():
                row = row_of(query, number, outcome, SHOWN, None)
                if row is not None:
                    part += between + form.row(row)
                    between = form.between
            if examined < STEP and len(part) < _PART:
                continue
            if part:
                yield part
            await caller.pay("listed_ids_per_second", examined)
            await caller.pay("metadata_bytes_per_second", len(part))
            part, examined = "", 0
    caller.owe("listed_ids_per_second", examined)
    caller.owe("metadata_bytes_per_second", len(part))
    yield part + form.tail


def _json_row(row: Mapping[str, Any]) -> str:
    return json.dumps(row, separators=(",", ":"))


def _csv_row(row: Mapping[str, Any]) -> str:
    custom = row.get("customMetadata")
    told = {**row, "customMetadata": None if custom is None else _pairs(custom)}
    return _csv_line([_cell(told.get(name)) for name in _COLUMNS])


def _pairs(custom: list[dict[str, Any]]) -> str:
    """Custom metadata in one cell, what is no text in hex."""
    shown = {each["key"]: ("0x" if each["encoding"] == "hex" else "") + each["value"] for each in custom}
    return json.dumps(shown, ensure_ascii=False)


def _cell(value: Any) -> Any:
    """A text that a spreadsheet would run is marked as text, as spreadsheets do it: by an apostrophe."""
    if isinstance(value, str) and value.startswith(_FORMULA) and not _NUMBER.fullmatch(value):
        return f"'{value}"
    return value


def _csv_line(cells: list[Any]) -> str:
    line = io.StringIO()
    csv.writer(line).writerow(cells)
    return line.getvalue()


_FORMS = {
    "csv": _Form("text/csv", _csv_line(list(_COLUMNS)), _csv_row, "", ""),
    "json": _Form(JSON, "[", _json_row, ",\n", "]\n"),
}
