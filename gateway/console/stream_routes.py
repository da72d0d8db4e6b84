"""Streams for the console: those of a scope in pages, and one with its fragments and cursors, as the metadata tell.

A page looks at a bounded number of the scope's ledgers, as a search of ledgers does. Not its job: what only bookies
know (how many records there are, how far a cursor is behind in records).
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import aclosing
from typing import Any

from pydantic import Field

from bookgate.gateway.console.ledger_routes import Conditions, PageSize, read_ledgers
from bookgate.gateway.console.paths import CONSOLE
from bookgate.gateway.http.api import Call, LedgerHalf, NoBody, Query, Route, get
from bookgate.gateway.http.caller import Caller
from bookgate.gateway.http.errors import HttpError
from bookgate.gateway.http.routes.ledgers import NO_LEDGER, STORE_AWAY
from bookgate.ledger.errors import BKException, IncorrectParameterException, MetadataFormatException
from bookgate.ledger.ledger_id import LedgerId
from bookgate.ledger.metadata_store import LedgerManager, LedgerManagerFactory, LedgerRecord
from bookgate.ledger.streams import (
    CURSOR_KEY,
    DEFAULT_SCOPE,
    CommittedCursor,
    Retention,
    StreamSettings,
    cursor_names_of,
    cursor_record_id,
    stream_of,
    stream_record_id,
)
from bookgate.ledger.unbounded import deleted_before, terms_of
from bookgate.runtime.security.actions import Action

_PAGE = 100
_SEARCHED = 5000
"""Ledgers that one answer may look at."""


class StreamsQuery(Query):
    start_after: LedgerHalf | None = Field(None, description="streams whose records are behind this id only")
    limit: PageSize = Field(_PAGE, description="of a page")
    ledger_scope_id: LedgerHalf = Field(DEFAULT_SCOPE, description="the scope that holds the streams")


class StreamQuery(Query):
    name: str = Field(min_length=1, max_length=255, description="of the stream")
    ledger_scope_id: LedgerHalf = Field(DEFAULT_SCOPE, description="the scope that holds it")


def console_stream_routes(factory: LedgerManagerFactory) -> list[Route]:
    manager = factory.ledger_manager

    async def listing(call: Call[StreamsQuery, NoBody]) -> Any:
        query = call.query
        call.caller.begin_listing()
        asked = Conditions.model_validate(query.model_dump(include={"start_after", "ledger_scope_id"}))
        streams: list[dict[str, Any]] = []
        examined, last = 0, query.start_after
        async with aclosing(read_ledgers(manager, call.caller, asked)) as found:  # type: ignore[type-var]
            async for number, outcome in found:
                if len(streams) >= query.limit or examined >= _SEARCHED:
                    told = {"streams": streams, "examined": examined, "next": str(last)}
                    return call.caller.metadata_answer(told, examined)
                examined, last = examined + 1, number
                if isinstance(outcome, LedgerRecord) and (row := _row_of(outcome)) is not None:
                    streams.append(row)
        return call.caller.metadata_answer({"streams": streams, "examined": examined, "next": None}, examined)

    async def one(call: Call[StreamQuery, NoBody]) -> Any:
        call.caller.take("metadata_bytes_per_second", 0)
        try:
            record_id = stream_record_id(call.query.name, call.query.ledger_scope_id)
        except IncorrectParameterException as error:
            # The document cannot say which names there may be: a stream with any other is not there.
            raise HttpError(404, str(error)) from None
        record = await manager.read(record_id)
        call.caller.check_ledger(Action.LEDGER_READ, record)
        row = _row_of(record)
        if row is None:
            raise HttpError(404, f"ledger {record.ledger_id} is no record of a stream")
        ledger = await manager.read(LedgerId.parse(row["ledgerId"]))
        call.caller.check_ledger(Action.LEDGER_READ, ledger)
        cursors = await _cursors(manager, call.caller, record, row)
        told = {**row, **_ledger_of(ledger), "cursors": cursors, "may": _may(call.caller, record, ledger)}
        return call.caller.metadata_answer(told)

    return [
        get(
            f"{CONSOLE}/streams",
            "A page of the streams of a scope; it may have none and a `next` page all the same",
            listing,
            query=StreamsQuery,
            answer={
                "type": "object",
                "required": ["streams", "examined", "next"],
                "properties": {
                    "streams": {"type": "array", "items": {"type": "object", "required": ["name", "ledgerId"]}},
                    "examined": {"type": "integer"},
                    "next": {"type": ["string", "null"]},
                },
            },
            failures=STORE_AWAY,
        ),
        get(
            f"{CONSOLE}/stream",
            "One stream with its fragments and cursors",
            one,
            query=StreamQuery,
            answer={"type": "object", "required": ["name", "ledgerId", "term", "fragments", "cursors", "may"]},
            failures=NO_LEDGER,
        ),
    ]


def _row_of(record: LedgerRecord) -> dict[str, Any] | None:
    """What the list tells of a stream; None for a ledger that is no record of one."""
    custom = record.metadata.custom_metadata
    try:
        found = stream_of(custom)
        if found is None:
            return None
        settings, cursors = StreamSettings.of(custom), cursor_names_of(custom)
    except MetadataFormatException:
        return None
    name, ledger_id = found
    return {
        "name": name,
        "ledgerId": ledger_id.qualified_name,
        "created": record.creation_ms,
        "retention": _retention_of(settings.retention),
        "cursors": list(cursors),
    }


def _retention_of(retention: Retention) -> dict[str, Any]:
    return {
        "maxAgeSeconds": retention.max_age_seconds,
        "maxBytes": retention.max_bytes,
        "deleteConsumed": retention.delete_consumed,
        "keepForCursors": retention.keep_for_cursors,
    }


def _ledger_of(record: LedgerRecord) -> dict[str, Any]:
    metadata = record.metadata
    terms = terms_of(metadata)
    return {
        "state": metadata.state.name,
        "term": terms.term,
        "firstEntryId": str(deleted_before(metadata)),
        "bytesBeforeLastFragment": terms.length_before,
        "fragments": [
            {"firstEntryId": str(each.first_entry_id), "bookies": list(each.ensemble)} for each in metadata.fragments
        ],
    }


def _may(caller: Caller, record: LedgerRecord, ledger: LedgerRecord) -> dict[str, bool]:
    """Which changes of the stream the policy lets the caller make, so that a page offers no others. Those of one cursor
    stand with it.
    """
    return {
        "trim": caller.may(Action.LEDGER_WRITE, ledger) and caller.may(Action.ENTRY_READ, ledger),
        "retention": caller.may(Action.LEDGER_WRITE, record),
        "delete": all(caller.may(Action.LEDGER_DELETE, each) for each in (record, ledger)),
    }


async def _cursors(
    manager: LedgerManager, caller: Caller, record: LedgerRecord, row: dict[str, Any]
) -> list[dict[str, Any]]:
    """The cursors of a stream that the caller may read, by name; those of an earlier stream of this name are none."""
    scope_id = record.ledger_id.scope_id
    names = sorted(row["cursors"])
    ids = [cursor_record_id(row["name"], cursor, scope_id) for cursor in names]
    answers: Sequence[LedgerRecord | BKException] = await manager.read_many(ids) if ids else ()
    found: list[dict[str, Any]] = []
    for name, answer in zip(names, answers, strict=True):
        if not isinstance(answer, LedgerRecord) or CURSOR_KEY not in answer.metadata.custom_metadata:
            continue
        if not caller.may(Action.LEDGER_READ, answer):
            continue
        try:
            cursor = CommittedCursor.of(answer.metadata.custom_metadata)
        except MetadataFormatException as error:
            found.append(_damaged(name, error))
            continue
        if cursor.ledger == row["ledgerId"]:
            entry_id, number = cursor.position
            may = {
                "move": caller.may(Action.LEDGER_WRITE, answer),
                "delete": caller.may(Action.LEDGER_DELETE, answer) and caller.may(Action.LEDGER_WRITE, record),
            }
            told = {"name": cursor.name, "entryId": str(entry_id), "record": number, "committed": cursor.committed_ms}
            found.append({**told, "may": may})
    return found


def _damaged(name: str, error: MetadataFormatException) -> dict[str, Any]:
    """A cursor whose record can't be read. It can be neither moved nor deleted by its record, so nothing is offered."""
    may = {"move": False, "delete": False}
    return {"name": name, "entryId": None, "record": None, "committed": None, "problem": str(error), "may": may}
