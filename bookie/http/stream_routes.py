"""Streams over HTTP, for programs and the console: create, trim, retention and deletion, and named cursors.

The bookie is a client of its own cluster, as for entries, which does what the caller may do and nothing else
(`callers_ledgers`). Parameters and answers are those of `bookgate stream … --json`. A request names the stream by its
name and the scope; the body says what is to be.

Not its job: to take a stream over. The writer holds the term, and a term that a request took would end with its answer:
it could only shut the writer out. Nor appending and reading of records, for which there is the client.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Annotated, Any

from pydantic import ConfigDict, Field

from bookgate.bookie.http.client_routes import OwnClient, password_of
from bookgate.gateway.console.stream_routes import StreamQuery
from bookgate.gateway.http.api import MAX_INT64, Body, Call, NoBody, Route, change, get
from bookgate.gateway.http.caller import Caller
from bookgate.gateway.http.errors import HttpError
from bookgate.gateway.http.routes.ledgers import STORE_AWAY
from bookgate.ledger.errors import (
    CursorMovedException,
    IncorrectParameterException,
    NoSuchLedgerExistsOnMetadataServerException,
    NotEnoughBookiesException,
)
from bookgate.ledger.payload_codec import RecordPosition
from bookgate.ledger.streams import MAX_NAME_BYTES, Retention, cursor_record_id, stream_record_id
from bookgate.runtime.security.actions import Action
from bookgate.thinclient.handles.ledger_options import ledger_options
from bookgate.thinclient.streams.cursor import Cursor
from bookgate.thinclient.streams.directory import Streams
from bookgate.thinclient.streams.places import Start, place_of
from bookgate.thinclient.streams.stream import Stream

STREAM = "/api/v1/stream"

_AT_ONCE = 4
"""Requests that are worked on at once: each is a client of its own."""
_LONGEST_PLACE = 100

_AWAY = {**STORE_AWAY, 503: "metadata or bookies are out of reach"}
_NO_STREAM = {404: "there is no such stream", **_AWAY}
_CHANGED = {**_NO_STREAM, 409: "the stream was deleted and created again, or changes all the time"}

Place = Annotated[
    str,
    Field(
        min_length=1,
        max_length=_LONGEST_PLACE,
        json_schema_extra={
            "anyOf": [
                {"enum": ["earliest", "latest"]},
                {"pattern": "^[0-9]{1,18}(:[0-9]{1,9})?$"},
                {"format": "date-time"},
            ]
        },
    ),
]
Position = Annotated[str, Field(pattern="^[0-9]{1,18}:[0-9]{1,9}$", max_length=_LONGEST_PLACE)]
Bookies = Annotated[int, Field(ge=1, le=1000)]


class CursorQuery(StreamQuery):
    cursor: str = Field(min_length=1, max_length=MAX_NAME_BYTES, description="the name of the cursor")


class RetentionBody(Body):
    max_age_seconds: Annotated[float, Field(gt=0, allow_inf_nan=False)] | None = Field(
        None, description="records that are older are deleted; without it there is no limit"
    )
    max_bytes: Annotated[int, Field(gt=0, le=MAX_INT64)] | None = Field(
        None, description="the oldest records beyond so many payload bytes are deleted; without it there is no limit"
    )
    delete_consumed: bool = Field(False, description="what all cursors have committed is deleted")
    keep_for_cursors: bool = Field(True, description="what a cursor has not committed is kept")

    def retention(self) -> Retention:
        return Retention(self.max_age_seconds, self.max_bytes, self.delete_consumed, self.keep_for_cursors)


class CreateBody(RetentionBody):
    ensemble_size: Bookies = Field(3, description="bookies that the stream is spread over at a time")
    write_quorum_size: Bookies | None = Field(None, description="copies of each entry")
    ack_quorum_size: Bookies | None = Field(None, description="copies that acknowledge an append")
    password: str = Field("", description="of the stream, which writers and readers need")


class TrimBody(Body):
    before: Place | None = Field(
        None,
        description="the first record to keep: earliest, latest, an entry's id, ENTRY:RECORD, or a time with its zone; "
        "without it, what the retention does not keep is deleted",
    )


class MoveBody(Body):
    model_config = ConfigDict(json_schema_extra={"dependentRequired": {"expected": ["to"]}})

    to: Place | None = Field(
        None,
        description="where the cursor is to be, as `before` of a trim; without it, one that is there stays, and one "
        "that is not is created at the earliest record",
    )
    expected: Position | None = Field(
        None, description="ENTRY:RECORD: move the cursor only if it is there, and stands there; else 409"
    )

    def expected_position(self) -> RecordPosition | None:
        """Raises HttpError."""
        if self.expected is None:
            return None
        if self.to is None:
            raise HttpError(400, "body: expected goes with to")
        entry_id, number = map(int, self.expected.split(":"))
        return RecordPosition(entry_id, number)


def stream_routes(own: OwnClient) -> list[Route]:
    working = asyncio.Semaphore(_AT_ONCE)

    @asynccontextmanager
    async def directory(query: StreamQuery, caller: Caller, impossible: int = 404) -> AsyncIterator[Streams]:
        """The streams of the scope, as the caller may use them. Raises HttpError, with the status `impossible` for a
        name that no stream, or no cursor, can have.
        """
        try:
            stream_record_id(query.name, query.ledger_scope_id)
            if isinstance(query, CursorQuery):
                cursor_record_id(query.name, query.cursor, query.ledger_scope_id)
        except IncorrectParameterException as error:
            raise HttpError(impossible, str(error)) from None
        async with working, own.acting_for(caller) as client:
            yield Streams(client, scope_id=query.ledger_scope_id)

    @asynccontextmanager
    async def opened(call: Call[Any, Any], *of_its_ledger: Action) -> AsyncIterator[Stream]:
        """The stream, for somebody who may do this to its ledger. Raises HttpError."""
        async with directory(call.query, call.caller) as streams:
            stream = await streams.open(call.query.name)
            if of_its_ledger:
                record = await own.record_of(stream.ledger_id)
                for action in of_its_ledger:
                    call.caller.check_ledger(action, record)
                # Whoever may read its entries need not know its password.
                stream = await streams.open(call.query.name, password_of(record))
            yield stream

    async def require_change(call: Call[Any, Any]) -> None:
        """Before a cursor is made, or it or the stream is deleted, which writes the stream's record too: all of it is
        done, or nothing. Raises HttpError.
        """
        record_id = stream_record_id(call.query.name, call.query.ledger_scope_id)
        call.caller.check_ledger(Action.LEDGER_WRITE, await own.record_of(record_id))

    async def create(call: Call[StreamQuery, CreateBody]) -> Any:
        body = call.body
        options = ledger_options(
            body.ensemble_size, body.write_quorum_size, body.ack_quorum_size, password=body.password.encode()
        )
        # Its ledger, and its record.
        call.caller.take("creates_per_second", 2)
        async with directory(call.query, call.caller, impossible=409) as streams:
            try:
                made = await streams.create(call.query.name, options, retention=body.retention())
            except NotEnoughBookiesException as error:
                raise HttpError(409, str(error)) from None
        return {"stream": made.name, "ledger_id": str(made.ledger_id)}

    async def delete(call: Call[StreamQuery, NoBody]) -> Any:
        call.caller.take("changes_per_second")
        query = call.query
        async with directory(query, call.caller) as streams:
            stream = await streams.open(query.name)
            await require_change(call)
            # Asked before the cursors go. The ledger is gone where a deletion was interrupted, which this one ends.
            for ledger_id in (stream_record_id(query.name, query.ledger_scope_id), stream.ledger_id):
                with suppress(NoSuchLedgerExistsOnMetadataServerException):
                    call.caller.check_ledger(Action.LEDGER_DELETE, await own.record_of(ledger_id))
            await streams.delete(query.name)
        return {"stream": query.name, "deleted": True}

    async def trim(call: Call[StreamQuery, TrimBody]) -> Any:
        before = None if call.body.before is None else _place(call.body.before, "before")
        call.caller.take("changes_per_second")
        async with opened(call, Action.ENTRY_READ, Action.LEDGER_WRITE) as stream:
            if before is None:
                first = await stream.apply_retention()
            else:
                first = await stream.trim(await stream.position_of(before))
        return {"stream": stream.name, "first_entry_id": first}

    async def retention(call: Call[StreamQuery, RetentionBody]) -> Any:
        call.caller.take("changes_per_second")
        async with opened(call) as stream:
            await stream.set_retention(call.body.retention())
        return {"stream": stream.name, **call.body.model_dump()}

    async def cursor(call: Call[CursorQuery, NoBody]) -> Any:
        call.caller.take("metadata_bytes_per_second", 0)
        async with opened(call) as stream:
            return call.caller.metadata_answer(_told(stream, await _existing(stream, call.query.cursor)))

    async def move(call: Call[CursorQuery, MoveBody]) -> Any:
        body, expected = call.body, call.body.expected_position()
        start = Start.EARLIEST if body.to is None else _place(body.to, "to")
        call.caller.take("changes_per_second")
        async with opened(call, *(() if isinstance(start, RecordPosition) else (Action.ENTRY_READ,))) as stream:
            wanted = await stream.position_of(start)
            if expected is not None:
                found = await _existing(stream, call.query.cursor)
                _require_at(found, expected)
            else:
                if await stream.find_cursor(call.query.cursor) is None:
                    await require_change(call)
                    call.caller.take("creates_per_second")
                found = await stream.cursor(call.query.cursor, wanted)
            if body.to is not None and found.position != wanted:
                await found.reset(wanted)
            return _told(stream, found)

    async def delete_cursor(call: Call[CursorQuery, NoBody]) -> Any:
        call.caller.take("changes_per_second")
        async with opened(call) as stream:
            await require_change(call)
            if not await stream.delete_cursor(call.query.cursor):
                raise _no_cursor(stream, call.query.cursor)
        return {"stream": stream.name, "cursor": call.query.cursor, "deleted": True}

    of_cursor = {"type": "object", "required": ["stream", "cursor", "entry_id", "record", "committed_ms"]}
    no_cursor = {**_CHANGED, 404: "there is no such stream, or no such cursor"}
    return [
        change(
            "POST",
            f"{STREAM}/create",
            "Create a stream",
            create,
            query=StreamQuery,
            body=CreateBody,
            body_required=False,
            answer={"type": "object", "required": ["stream", "ledger_id"]},
            failures={
                **_AWAY,
                409: "there is a stream of this name, or none can have it; a quota bounds the caller's ledgers; the "
                "ensemble needs more bookies than there are",
            },
        ),
        change(
            "DELETE",
            f"{STREAM}/delete",
            "Delete a stream with its cursors for good",
            delete,
            query=StreamQuery,
            answer={"type": "object", "required": ["stream", "deleted"]},
            failures=_CHANGED,
        ),
        change(
            "PUT",
            f"{STREAM}/trim",
            "Delete the first records of a stream, as far as complete fragments reach",
            trim,
            query=StreamQuery,
            body=TrimBody,
            body_required=False,
            answer={"type": "object", "required": ["stream", "first_entry_id"]},
            failures=_CHANGED,
        ),
        change(
            "PUT",
            f"{STREAM}/retention",
            "Change what is deleted of a stream; what the body lacks has no limit",
            retention,
            query=StreamQuery,
            body=RetentionBody,
            answer={"type": "object", "required": ["stream", *RetentionBody.model_fields]},
            failures=_CHANGED,
        ),
        get(
            f"{STREAM}/cursor",
            "Where a cursor of a stream stands",
            cursor,
            query=CursorQuery,
            answer=of_cursor,
            failures={**_NO_STREAM, 404: no_cursor[404]},
        ),
        change(
            "PUT",
            f"{STREAM}/cursor",
            "Create a cursor of a stream, or move it, also back",
            move,
            query=CursorQuery,
            body=MoveBody,
            body_required=False,
            answer=of_cursor,
            failures={**no_cursor, 409: "the cursor stands elsewhere, or a consumer has moved it meanwhile"},
        ),
        change(
            "DELETE",
            f"{STREAM}/cursor",
            "Delete a cursor of a stream",
            delete_cursor,
            query=CursorQuery,
            answer={"type": "object", "required": ["stream", "cursor", "deleted"]},
            failures=no_cursor,
        ),
    ]


def _place(text: str, key: str) -> Any:
    """Raises HttpError."""
    try:
        return place_of(text)
    except IncorrectParameterException as error:
        raise HttpError(400, f"body: {key}: {error}") from None


async def _existing(stream: Stream, name: str) -> Cursor:
    """Raises HttpError where there is none."""
    found = await stream.find_cursor(name)
    if found is None:
        raise _no_cursor(stream, name)
    return found


def _no_cursor(stream: Stream, name: str) -> HttpError:
    return HttpError(404, f"stream {stream.name!r} has no cursor {name!r}")


def _require_at(cursor: Cursor, expected: RecordPosition) -> None:
    """Raises CursorMovedException where it stands elsewhere."""
    if cursor.position != expected:
        entry_id, number = cursor.position
        raise CursorMovedException(
            f"cursor {cursor.name!r} stands at {entry_id}:{number}, and not at {expected.entry_id}:{expected.number}"
        )


def _told(stream: Stream, cursor: Cursor) -> dict[str, Any]:
    entry_id, number = cursor.position
    return {
        "stream": stream.name,
        "cursor": cursor.name,
        "entry_id": entry_id,
        "record": number,
        "committed_ms": cursor.committed_ms,
    }
