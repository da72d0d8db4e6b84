"""What the console does with one ledger beside showing it: search its payloads, hand one out whole, decode, recover.

A search reads a bounded number of entries an answer and says how far it has got: `next` may come without a match.
"""

from __future__ import annotations

import asyncio
from contextlib import aclosing
from typing import Annotated, Any, Literal

from pydantic import Field
from starlette.responses import Response

from bookgate.bookie.http.client_routes import EntryNumber, OwnClient
from bookgate.bookie.http.console_entries import EntryQuery, shown_in_page
from bookgate.bookie.http.decoding_process import decoded_apart
from bookgate.bookie.http.payload_decoding import DecodingException
from bookgate.gateway.console.paths import CONSOLE
from bookgate.gateway.http.access import Need
from bookgate.gateway.http.api import JSON, WHOLE, Body, Call, NoBody, NoQuery, Route, change, get
from bookgate.gateway.http.errors import HttpError
from bookgate.gateway.http.routes.ledgers import NO_ENTRIES, LedgerQuery
from bookgate.ledger.errors import NoSuchEntryException

_READS = 4
"""Searches in the making at once."""
_DECODINGS = 2
"""Processes that decode at once."""
_SEARCHED_ENTRIES = 5000
_SEARCHED_BYTES = 16 * 1024 * 1024
_BATCH = 200
_MAX_PAYLOADS = 100
_LARGEST_DECODED = 2 * 1024 * 1024
"""Bytes of a request to decode, schema and payloads together."""


class SearchQuery(LedgerQuery):
    start_entry_id: EntryNumber = Field(0, description="first entry")
    text: str = Field(
        min_length=1, max_length=1000, description="what the payload holds: text, or 0x… for bytes in hex"
    )
    limit: Annotated[int, Field(ge=1, le=100), WHOLE] = Field(50, description="of a page")

    def wanted(self) -> bytes:
        """Raises HttpError."""
        if not self.text.lower().startswith("0x"):
            return self.text.encode("utf-8", "surrogateescape")
        try:
            content = bytes.fromhex(self.text[2:])
        except ValueError:
            raise HttpError(400, f"parameter text: {self.text!r} is no hex; give pairs of digits behind 0x") from None
        if not content:
            raise HttpError(400, "parameter text: there is nothing behind 0x")
        return content


class DecodeBody(Body):
    format: Literal["avro", "protobuf"] = Field(description="how the payloads are encoded")
    schema_text: str = Field(
        alias="schema", min_length=1, description="Avro: the schema, JSON; Protobuf: a FileDescriptorSet in base64"
    )
    message: str = Field("", description="Protobuf: full name of the message type")
    skip: int = Field(
        0, ge=0, le=1024, description="bytes in front of what is encoded; 5 where a schema registry is used"
    )
    payloads: list[str] = Field(max_length=_MAX_PAYLOADS, description="in base64")


def console_ledger_action_routes(own: OwnClient) -> list[Route]:
    reading, decoding = asyncio.Semaphore(_READS), asyncio.Semaphore(_DECODINGS)

    async def search(call: Call[SearchQuery, NoBody]) -> Any:
        query, wanted = call.query, call.query.wanted()
        found: list[dict[str, Any]] = []
        size = 0
        async with reading, await own.open(query, call.caller) as handle:
            confirmed = await handle.read_last_confirmed()
            first = max(query.start_entry_id, handle.first_entry_id)
            last = min(confirmed, first + _SEARCHED_ENTRIES - 1)
            if first <= last:
                async with aclosing(handle.read_batches(first, last, _BATCH)) as batches:
                    async for batch in batches:
                        for entry in batch:
                            following = entry.entry_id + 1
                            size += len(entry.payload)
                            if wanted in bytes(entry.payload):
                                found.append(shown_in_page(handle, entry))
                            if len(found) >= query.limit or size >= _SEARCHED_BYTES:
                                return _found(found, first, following, confirmed)
        # Not behind the last entry that was read: the range may end with truncate entries, which are not shown.
        return _found(found, first, max(first, last + 1), confirmed)

    async def payload(call: Call[EntryQuery, NoBody]) -> Response:
        query = call.query
        async with reading, await own.open(query, call.caller) as handle:
            if query.entry_id > await handle.read_last_confirmed():
                raise NoSuchEntryException(f"ledger {query.ledger_id} has no confirmed entry {query.entry_id}")
            # Nothing for a truncate entry of an unbounded ledger, which has no payload.
            content = b"".join([bytes(entry.payload) async for entry in handle.read(query.entry_id, query.entry_id)])
        name = f"ledger-{query.ledger_id}-entry-{query.entry_id}.bin"
        headers = {"Content-Disposition": f'attachment; filename="{name}"'}
        return Response(content, media_type="application/octet-stream", headers=headers)

    async def decode(call: Call[NoQuery, DecodeBody]) -> Any:
        try:
            async with decoding:
                answer = await decoded_apart(call.body.model_dump_json(by_alias=True).encode())
        except DecodingException as error:
            return {"decoded": [], "problem": str(error)}
        return Response(answer, media_type=JSON)

    async def recover(call: Call[LedgerQuery, NoBody]) -> Any:
        record = await own.recover(call.query, call.caller)
        return {"state": record.metadata.state.name, "lastEntryId": str(record.metadata.last_entry_id)}

    return [
        get(
            f"{CONSOLE}/entry_search",
            "Entries whose payload holds a text or bytes",
            search,
            query=SearchQuery,
            answer={"type": "object", "required": ["entries", "examined", "next", "lastConfirmed"]},
            need=Need.CONTENT,
            failures=NO_ENTRIES,
        ),
        get(
            f"{CONSOLE}/entry_payload",
            "The payload of one entry, whole",
            payload,
            query=EntryQuery,
            answer=None,
            media_type="application/octet-stream",
            need=Need.CONTENT,
            failures=NO_ENTRIES,
        ),
        change(
            "POST",
            f"{CONSOLE}/decode",
            "Payloads that were shown, by an Avro or a Protobuf schema",
            decode,
            body=DecodeBody,
            largest_body=_LARGEST_DECODED,
            need=Need.CONTENT,
            answer={"type": "object", "required": ["decoded", "problem"]},
        ),
        change(
            "PUT",
            f"{CONSOLE}/ledger/recover",
            "Recovers a ledger that is not closed: takes it from its writer and closes it",
            recover,
            query=LedgerQuery,
            answer={"type": "object", "required": ["state", "lastEntryId"]},
            failures=NO_ENTRIES,
        ),
    ]


def _found(entries: list[dict[str, Any]], first: int, following: int, confirmed: int) -> dict[str, Any]:
    return {
        "entries": entries,
        "examined": following - first,
        "next": str(following) if following <= confirmed else None,
        "lastConfirmed": str(confirmed),
    }
