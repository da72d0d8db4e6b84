"""Ledgers over HTTP, as the metadata store knows them: list, metadata, delete.

A listing is never held completely. Ids alone are streamed as the store returns them, unless a page is requested; with
metadata there are always pages, which are read and sent part by part. The next page is given in a `Link` header
(rel="next") and begins after the last id, so that ledgers created or deleted between two pages shift nothing. A
ledger's password is never shown. What a caller is shown it owes to its rates, ids that were passed over included.

A ledger is deleted in the version whose owner was looked at, or not at all.
"""

from __future__ import annotations

import base64
import json
from collections.abc import AsyncGenerator, AsyncIterator, Iterator, Mapping, Sequence
from contextlib import aclosing, suppress
from dataclasses import replace
from typing import Annotated, Any
from urllib.parse import urlencode

from pydantic import Field
from starlette.responses import JSONResponse, Response, StreamingResponse

from bookgate.gateway.http.access import path_of
from bookgate.gateway.http.api import JSON, WHOLE, Boolean, Call, LedgerHalf, NoBody, Query, Route, change, get
from bookgate.gateway.http.caller import Caller, ScopeListing, visible_ranges
from bookgate.gateway.http.errors import HttpError
from bookgate.gateway.stores.listed_ledgers import Listed, read_pages
from bookgate.ledger.errors import (
    MetadataFormatException,
    MetadataVersionException,
    NoSuchLedgerExistsOnMetadataServerException,
)
from bookgate.ledger.ledger_id import LedgerId
from bookgate.ledger.metadata import DigestType, LedgerMetadata
from bookgate.ledger.metadata_codec import encode
from bookgate.ledger.metadata_store import LedgerManager, LedgerManagerFactory, LedgerRecord, RawLedgerRecord
from bookgate.ledger.unbounded import deleted_before
from bookgate.runtime.cooperative_yield import giving_way
from bookgate.runtime.security.actions import Action

PAGE = 100
"""Ledgers of a page unless asked otherwise, as in BookKeeper."""

_MAX_PAGE = 1000
_MAX_PAGES = 10_000

_IDS_A_PART = 2000
_PART = 64 * 1024
"""Characters of a listing with metadata after which they are sent."""
_BASE64_PIECE = 48 * 1024
"""A multiple of three bytes, so that the pieces are one text."""
_NO_CUSTOM_METADATA = '"customMetadata":{}'

_DELETIONS = 10
"""Tries, where the ledger changes meanwhile."""

_DIGEST_NAMES = {DigestType.HMAC: "MAC"}

_METADATA = {
    "type": "object",
    "required": ["metadataFormatVersion", "ensembleSize", "state", "allEnsembles", "length", "lastEntryId", "closed"],
}

STORE_AWAY = {
    429: "over a limit, of whoever asks or of this server at its gateways; Retry-After says when",
    503: "the metadata store is out of reach; try again, or at another bookie or gateway",
}
NO_LEDGER = {404: "there is no such ledger", **STORE_AWAY}
NO_ENTRIES = {**NO_LEDGER, 503: "metadata or bookies are out of reach"}
"""Of what reads entries, or recovers a ledger."""


class LedgerQuery(Query):
    """Names a ledger."""

    ledger_id: LedgerHalf = Field(description="the ledger")
    ledger_scope_id: LedgerHalf = Field(0, description="its scope; 0 for BookKeeper's own ids")

    def name(self) -> LedgerId:
        return ledger_id(self.ledger_scope_id, self.ledger_id)


PageNumber = Annotated[int, Field(ge=1, le=_MAX_PAGES), WHOLE]
PageSize = Annotated[int, Field(ge=1, le=_MAX_PAGE), WHOLE]


class ListQuery(Query):
    print_metadata: Boolean = Field(False, description="with metadata, in pages")
    decode_meta: Boolean = Field(True, description="false: metadata as stored (without password), base64")
    page: PageNumber | None = Field(None, description="from 1; slower than start_after")
    start_after: LedgerHalf | None = Field(None, description="ledgers behind this id only")
    limit: PageSize | None = Field(None, description=f"of a page; default {PAGE}")
    ledger_scope_id: LedgerHalf = Field(0, description="the scope; 0 for BookKeeper's own ids")

    @property
    def is_paged(self) -> bool:
        return self.print_metadata or self.page is not None or self.limit is not None


def ledger_id(scope_id: int, number: int) -> LedgerId:
    """Raises HttpError for an id that no ledger can have."""
    try:
        return LedgerId(scope_id, number)
    except ValueError as error:
        raise HttpError(404, str(error)) from None


def ledger_routes(factory: LedgerManagerFactory) -> list[Route]:
    manager = factory.ledger_manager

    async def listing(call: Call[ListQuery, NoBody]) -> Response:
        query = call.query
        call.caller.begin_listing()
        seen = call.caller.listing(query.ledger_scope_id)
        runs = visible_ranges(manager, seen, query.start_after)
        if query.is_paged:
            return await _page(manager, call, seen, runs)
        return await _whole(runs, call.caller)

    async def metadata(call: Call[LedgerQuery, NoBody]) -> Response:
        call.caller.take("metadata_bytes_per_second", 0)
        record = await manager.read(call.query.name())
        call.caller.check_ledger(Action.LEDGER_READ, record)
        return call.caller.metadata_answer({str(call.query.ledger_id): shown(record)})

    async def delete(call: Call[LedgerQuery, NoBody]) -> Any:
        name = call.query.name()
        call.caller.take("changes_per_second")
        await remove_ledger(factory, call.caller, name)
        return f"Deleted ledger: {name}"

    by_id = {"type": "object", "additionalProperties": {"anyOf": [{"type": "null"}, {"type": "string"}, _METADATA]}}
    return [
        get("/api/v1/ledger/list", "Ledgers", listing, query=ListQuery, answer=by_id, failures=STORE_AWAY),
        get(
            "/api/v1/ledger/metadata",
            "Metadata of a ledger",
            metadata,
            query=LedgerQuery,
            answer={"type": "object", "additionalProperties": _METADATA},
            failures=NO_LEDGER,
        ),
        change(
            "DELETE",
            "/api/v1/ledger/delete",
            "Delete a ledger for good",
            delete,
            query=LedgerQuery,
            answer={"type": "string"},
            failures={**NO_LEDGER, 409: "the ledger changes all the time"},
        ),
    ]


async def remove_ledger(factory: LedgerManagerFactory, caller: Caller, name: LedgerId) -> None:
    """Deletes a ledger for somebody who may, in the version whose owner was looked at.

    Raises:
        HttpError: The caller may not.
        NoSuchLedgerExistsOnMetadataServerException: It is not there.
        MetadataVersionException: It changes all the time.
    """
    manager = factory.ledger_manager
    for _ in range(_DELETIONS):
        # Removing what is not there is no error in every store, and the operator should know of a wrong id.
        record = await manager.read(name)
        caller.check_ledger(Action.LEDGER_DELETE, record)
        try:
            await manager.remove_record(record)
        except (MetadataVersionException, NoSuchLedgerExistsOnMetadataServerException):
            # A replica of the store that lags would show the same version again, or a former ledger of the id.
            await factory.catch_up(None)
        else:
            return
    raise MetadataVersionException(f"ledger {name} changes all the time, and was not deleted; try again")


async def _page(
    manager: LedgerManager, call: Call[ListQuery, NoBody], listing: ScopeListing, runs: AsyncIterator[Sequence[int]]
) -> Response:
    query = call.query
    limit = query.limit or PAGE
    passed, ids, more = await _slice(runs, ((query.page or 1) - 1) * limit, limit)
    call.caller.owe("listed_ids_per_second", passed + len(ids))
    headers = {}
    if more:
        following = {**dict(call.request.query_params), "start_after": ids[-1]}
        following.pop("page", None)
        if not query.print_metadata:
            following["limit"] = limit
        headers["Link"] = f'<{path_of(call.request)}?{urlencode(following)}>; rel="next"'
    if not query.print_metadata:
        return JSONResponse(dict.fromkeys(map(str, ids)), headers=headers)
    return await streamed(_with_metadata(manager, call, listing, ids), JSON, headers)


async def _with_metadata(
    manager: LedgerManager, call: Call[ListQuery, NoBody], listing: ScopeListing, ids: Sequence[int]
) -> AsyncGenerator[str, None]:
    """The JSON object, in parts."""
    query = call.query
    part, size, separator = ["{"], 0, ""
    async with aclosing(read_pages(manager, query.ledger_scope_id, ids)) as pages:
        async for page in pages:
            pieces = _members_of_page(page, listing, separator, query.decode_meta)
            while True:
                async with giving_way():
                    piece = next(pieces, None)
                if piece is not None:
                    part.append(piece)
                    size += len(piece)
                    separator = ","
                if size >= _PART or (piece is None and size):
                    listing.require_still()
                    yield "".join(part)
                    await call.caller.pay("metadata_bytes_per_second", size)
                    part, size = [], 0
                if piece is None:
                    break
    yield "".join((*part, "}"))


def _members_of_page(page: Sequence[Listed], listing: ScopeListing, separator: str, decoded: bool) -> Iterator[str]:
    """Members of a JSON object, in pieces of which each takes little time."""
    for listed in page:
        if not listing.shows(listed):
            continue
        for piece in _member(listed, decoded):
            yield separator + piece
            separator = ""
        separator = separator if isinstance(listed.outcome, NoSuchLedgerExistsOnMetadataServerException) else ","


def _member(listed: Listed, decoded: bool) -> Iterator[str]:
    """A ledger as member of a JSON object: none if it was deleted meanwhile, with null if it is damaged."""
    if isinstance(listed.outcome, NoSuchLedgerExistsOnMetadataServerException):
        return
    record = None
    if isinstance(listed.outcome, RawLedgerRecord):
        with suppress(MetadataFormatException):
            record = listed.outcome.record()
    name = f'"{listed.number}":'
    if record is None:
        yield name + "null"
    elif not decoded:
        yield name + '"'
        yield from _base64(_stored(record.metadata))
        yield '"'
    else:
        without = replace(record, metadata=replace(record.metadata, custom_metadata={}))
        # Quotes inside of texts are escaped, so this is the name of the member and nothing else.
        before, _, behind = _json(shown(without)).partition(_NO_CUSTOM_METADATA)
        yield f'{name}{before}"customMetadata":{{'
        for number, (key, value) in enumerate(record.metadata.custom_metadata.items()):
            yield f'{"," if number else ""}{_json(key)}:"'
            yield from _base64(value)
            yield '"'
        yield "}" + behind


def _json(told: Any) -> str:
    return json.dumps(told, ensure_ascii=False, separators=(",", ":"))


def _base64(data: bytes) -> Iterator[str]:
    for start in range(0, len(data), _BASE64_PIECE):
        yield base64.b64encode(data[start : start + _BASE64_PIECE]).decode()


async def _slice(runs: AsyncIterator[Sequence[int]], skip: int, limit: int) -> tuple[int, list[int], bool]:
    """How many ids were passed over, `limit` ids behind the first `skip`, and whether there are more."""
    found: list[int] = []
    passed = 0
    async with aclosing(runs) as listed:  # type: ignore[type-var]
        async for ids in listed:
            here = min(skip - passed, len(ids))
            passed += here
            found.extend(ids[here : here + limit + 1 - len(found)])
            if len(found) > limit:
                return passed, found[:limit], True
    return passed, found, False


async def _whole(runs: AsyncIterator[Sequence[int]], caller: Caller) -> Response:
    """All ids, as they come."""

    async def members() -> AsyncGenerator[str, None]:
        async with aclosing(runs) as listed:  # type: ignore[type-var]
            async for ids in listed:
                for start in range(0, len(ids), _IDS_A_PART):
                    async with giving_way():
                        part = _members(ids[start : start + _IDS_A_PART])
                    yield part
                await caller.pay("listed_ids_per_second", len(ids))

    return await sent_by_parts(members())


async def sent_by_parts(
    members: AsyncGenerator[str, None],
    headers: Mapping[str, str] | None = None,
    brackets: str = "{}",
    first: str | None = None,
) -> Response:
    """A JSON object of these members, or with the brackets `[]` an array, sent as they come (`streamed`); `first` was
    taken already.
    """

    async def parts() -> AsyncGenerator[str, None]:
        async with aclosing(members):
            yield brackets[0] + (await anext(members, "") if first is None else first)
            async for more in members:
                yield "," + more
            yield brackets[1]

    return await streamed(parts(), JSON, headers)


async def streamed(
    parts: AsyncGenerator[str, None], media_type: str, headers: Mapping[str, str] | None = None
) -> Response:
    """An answer whose parts are sent as they come; there is at least one.

    A store that fails at the first of them is still answered with a status; later, the answer breaks off in the middle,
    so that nobody takes it for complete.
    """
    first = await anext(parts)

    async def whole() -> AsyncIterator[str]:
        async with aclosing(parts):
            yield first
            async for more in parts:
                yield more

    return StreamingResponse(whole(), media_type=media_type, headers=headers)


def _members(ids: Sequence[int]) -> str:
    return ",".join(f'"{number}":null' for number in ids)


def shown(record: LedgerRecord) -> dict[str, Any]:
    """Metadata under the names that BookKeeper's JSON has; -1 for a creation time that nobody knows."""
    metadata = record.metadata
    digest = metadata.digest_type
    return {
        "metadataFormatVersion": metadata.format_version,
        "ensembleSize": metadata.ensemble_size,
        "writeQuorumSize": metadata.write_quorum_size,
        "ackQuorumSize": metadata.ack_quorum_size,
        "state": metadata.state.name,
        "closed": metadata.is_closed,
        "length": metadata.length,
        "lastEntryId": metadata.last_entry_id,
        "ctime": -1 if record.creation_ms is None else record.creation_ms,
        "digestType": None if digest is None else _DIGEST_NAMES.get(digest, digest.name),
        "allEnsembles": {
            str(fragment.first_entry_id): [{"id": bookie} for bookie in fragment.ensemble]
            for fragment in metadata.fragments
        },
        "customMetadata": {key: base64.b64encode(value).decode() for key, value in metadata.custom_metadata.items()},
        "ledgerId": record.ledger_id.low,
        "ledgerScopeId": record.ledger_id.scope_id,
        "version": record.version,
        **({} if metadata.terms is None else {"term": metadata.terms.term, "deletedBefore": deleted_before(metadata)}),
    }


def _stored(metadata: LedgerMetadata) -> bytes:
    return encode(replace(metadata, password=b"") if metadata.password is not None else metadata)
