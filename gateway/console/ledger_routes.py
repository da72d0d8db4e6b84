"""Ledgers for the console: a paged, searchable list, and one ledger with its fragments.

A page continues after the last id examined, so it costs the same anywhere and for any number of ledgers. A search reads
metadata until the page is full, but of a bounded number of ledgers per response: `next` may come with an empty page,
and then shows how far the search has got. Ids and entry numbers are strings, because a browser's numbers are exact only
up to 2**53.
"""

from __future__ import annotations

import codecs
from collections.abc import AsyncIterator, Mapping
from contextlib import aclosing
from typing import Annotated, Any, Literal

from pydantic import Field

from bookgate.gateway.console.auto_recovery import repair_of, repairs_of
from bookgate.gateway.console.ledger_census import DAMAGED
from bookgate.gateway.console.paths import CONSOLE
from bookgate.gateway.http.api import MAX_INT64, WHOLE, Call, LedgerHalf, NoBody, Query, Route, get
from bookgate.gateway.http.caller import Caller, visible_ranges
from bookgate.gateway.http.routes.ledgers import NO_LEDGER, STORE_AWAY, LedgerQuery
from bookgate.gateway.stores.listed_ledgers import Listed, read_pages
from bookgate.ledger.errors import BKException, MetadataFormatException, NoSuchLedgerExistsOnMetadataServerException
from bookgate.ledger.metadata import DigestType, LedgerMetadata, LedgerState
from bookgate.ledger.metadata_store import LedgerManager, LedgerManagerFactory, LedgerRecord
from bookgate.ledger.quorum import write_sets
from bookgate.runtime.cooperative_yield import giving_way
from bookgate.runtime.security.actions import Action

_PAGE = 50
_MAX_PAGE = 500
_SEARCHED = 5000
"""Ledgers that one answer may look at."""
STEP = 200
"""Ledgers that are read at once."""
_SHOWN_IN_LIST = 200
"""Bytes of a value of custom metadata, and in the view of one ledger:"""
SHOWN = 64 * 1024
_SHOWN_KEYS = 8

Length = Annotated[int, Field(ge=0, le=MAX_INT64), WHOLE]
_CONDITIONS = ("state", "metadata", "bookie", "min_length", "max_length", "created_after", "created_before")

PageSize = Annotated[int, Field(ge=1, le=_MAX_PAGE), WHOLE]


class Conditions(Query):
    """Which ledgers of a scope are wanted, and from where on."""

    start_after: LedgerHalf | None = Field(None, description="ledgers behind this id only")
    state: Literal["OPEN", "IN_RECOVERY", "CLOSED"] | None = Field(None, description="of this state only")
    metadata: str | None = Field(
        None,
        min_length=1,
        max_length=500,
        description="with this text in a key or a value of their custom metadata; key=text looks into that key's value",
    )
    bookie: str | None = Field(
        None, min_length=1, max_length=255, description="that this bookie stands in an ensemble of"
    )
    min_length: Length | None = Field(None, description="closed ones of at least so many payload bytes")
    max_length: Length | None = Field(
        None, description="closed ones of at most so many payload bytes; 0 for empty ones"
    )
    created_after: Length | None = Field(None, description="created then or later, milliseconds since 1970")
    created_before: Length | None = Field(None, description="created before then, milliseconds since 1970")
    ledger_scope_id: LedgerHalf = Field(0, description="the scope; 0 for BookKeeper's own ids")

    @property
    def is_search(self) -> bool:
        """Whether any condition is given: then ledgers that can't be read are left out."""
        return any(getattr(self, name) is not None for name in _CONDITIONS)

    def matches(self, record: LedgerRecord) -> bool:
        metadata = record.metadata
        if self.state is not None and metadata.state is not LedgerState[self.state]:
            return False
        if self.bookie is not None and not any(self.bookie in each.ensemble for each in metadata.fragments):
            return False
        return self._has_size(metadata) and self._has_age(record.creation_ms) and self._has_metadata(metadata)

    def _has_size(self, metadata: LedgerMetadata) -> bool:
        if self.min_length is None and self.max_length is None:
            return True
        most = metadata.length if self.max_length is None else self.max_length
        return metadata.is_closed and (self.min_length or 0) <= metadata.length <= most

    def _has_age(self, created_ms: int | None) -> bool:
        if self.created_after is None and self.created_before is None:
            return True
        if created_ms is None or created_ms < (self.created_after or 0):
            return False
        return self.created_before is None or created_ms < self.created_before

    def _has_metadata(self, metadata: LedgerMetadata) -> bool:
        return self.metadata is None or _holds(metadata.custom_metadata, self.metadata)


class SearchQuery(Conditions):
    limit: PageSize = Field(_PAGE, description="of a page")


def _holds(custom: Mapping[str, bytes], text: str) -> bool:
    key, separator, wanted = text.partition("=")
    if separator and key in custom:
        return wanted.encode() in custom[key]
    return any(text in name or text.encode() in value for name, value in custom.items())


def console_ledger_routes(factory: LedgerManagerFactory) -> list[Route]:
    manager = factory.ledger_manager

    async def search(call: Call[SearchQuery, NoBody]) -> Any:
        query = call.query
        call.caller.begin_listing()
        ledgers: dict[int, dict[str, Any]] = {}
        examined, last = 0, query.start_after
        more: str | None = None
        is_search = query.is_search
        step = STEP if is_search else query.limit + 1
        async with aclosing(read_ledgers(manager, call.caller, query, step)) as found:  # type: ignore[type-var]
            async for number, outcome in found:
                # One more ledger than the page holds is looked at, for whether there is a next page.
                if len(ledgers) >= query.limit or examined >= _SEARCHED:
                    more = str(last)
                    break
                examined, last = examined + 1, number
                row = row_of(query, number, outcome)
                if row is not None:
                    ledgers[number] = row
        repairs = await repairs_of(factory, query.ledger_scope_id, list(ledgers))
        told = [{**row, "repair": repairs.get(number)} for number, row in ledgers.items()]
        return call.caller.metadata_answer({"ledgers": told, "examined": examined, "next": more}, examined)

    async def one(call: Call[LedgerQuery, NoBody]) -> Any:
        call.caller.take("metadata_bytes_per_second", 0)
        record = await manager.read(call.query.name())
        call.caller.check_ledger(Action.LEDGER_READ, record)
        metadata = record.metadata
        told = {
            **_line(record, SHOWN, None),
            "version": record.version,
            "metadataFormatVersion": metadata.format_version,
            "fragments": _fragments(metadata),
            "writeSets": [list(indexes) for indexes in write_sets(metadata.ensemble_size, metadata.write_quorum_size)],
            "repair": await repair_of(factory, record.ledger_id),
        }
        return call.caller.metadata_answer(told)

    line = {"type": "object", "required": ["ledgerId", "state"]}
    return [
        get(
            f"{CONSOLE}/ledgers",
            "A page of ledgers, searched by state, bookie, size, age and custom metadata",
            search,
            query=SearchQuery,
            answer={
                "type": "object",
                "required": ["ledgers", "examined", "next"],
                "properties": {
                    "ledgers": {"type": "array", "items": line},
                    "examined": {"type": "integer"},
                    "next": {"type": ["string", "null"]},
                },
            },
            failures=STORE_AWAY,
        ),
        get(
            f"{CONSOLE}/ledger",
            "One ledger with its fragments, and whether it needs repair",
            one,
            query=LedgerQuery,
            answer={"type": "object", "required": ["ledgerId", "state", "fragments", "writeSets"]},
            failures=NO_LEDGER,
        ),
    ]


async def read_ledgers(
    manager: LedgerManager, caller: Caller, query: Conditions, step: int = STEP
) -> AsyncIterator[tuple[int, LedgerRecord | BKException]]:
    """The ledgers that the caller may see, whether they match or not, `step` read at once: in the order of their ids,
    each with its record or the reason why it can't be read. Raises HttpError, MetaStoreException.
    """
    scope_id = query.ledger_scope_id
    listing = caller.listing(scope_id)
    async with aclosing(visible_ranges(manager, listing, query.start_after)) as runs:  # type: ignore[type-var]
        async for ids in runs:
            for start in range(0, len(ids), step):
                async with aclosing(read_pages(manager, scope_id, ids[start : start + step])) as pages:
                    async for page in pages:
                        for listed in page:
                            # What was told before may have had to be paid.
                            listing.require_still()
                            if not listing.shows(listed):
                                continue
                            yield listed.number, await _decoded(listed)


async def _decoded(listed: Listed) -> LedgerRecord | BKException:
    if isinstance(listed.outcome, BKException):
        return listed.outcome
    async with giving_way():
        try:
            return listed.outcome.record()
        except MetadataFormatException as damaged:
            return damaged


def row_of(
    query: Conditions,
    number: int,
    outcome: LedgerRecord | BKException,
    shown: int = _SHOWN_IN_LIST,
    keys: int | None = _SHOWN_KEYS,
) -> dict[str, Any] | None:
    """What a list tells of a ledger; None if it does not match, or is gone. `shown` and `keys` as in `_line`."""
    if isinstance(outcome, LedgerRecord):
        return _line(outcome, shown, keys) if query.matches(outcome) else None
    if query.is_search or isinstance(outcome, NoSuchLedgerExistsOnMetadataServerException):
        return None
    return {"ledgerId": str(number), "state": DAMAGED, "problem": str(outcome)}


def _line(record: LedgerRecord, shown: int, keys: int | None) -> dict[str, Any]:
    """The list's row of a ledger. Sizes are in bytes; unknown for a ledger that is not closed. Of the custom metadata
    it has so many `keys` (None: all), and so many bytes of each value are `shown`.
    """
    metadata = record.metadata
    custom = sorted(metadata.custom_metadata.items())
    return {
        "ledgerId": str(record.ledger_id.low),
        "ledgerScopeId": str(record.ledger_id.scope_id),
        "state": metadata.state.name,
        "length": metadata.length if metadata.is_closed else None,
        "lastEntryId": str(metadata.last_entry_id) if metadata.is_closed else None,
        "ensembleSize": metadata.ensemble_size,
        "writeQuorumSize": metadata.write_quorum_size,
        "ackQuorumSize": metadata.ack_quorum_size,
        "fragmentCount": len(metadata.fragments),
        "created": record.creation_ms,
        "digestType": _digest_name(metadata.digest_type),
        "customMetadata": [{"key": key, **_text_or_hex(value, shown)} for key, value in custom[:keys]],
        "customMetadataCount": len(custom),
    }


def _digest_name(digest: DigestType | None) -> str | None:
    """BookKeeper's name of the digest; None if the metadata has none."""
    if digest is None:
        return None
    return "MAC" if digest is DigestType.HMAC else digest.name


def _text_or_hex(value: bytes, shown: int) -> dict[str, Any]:
    """A value as text if it is valid text, else in hex; shortened if it is long."""
    part = value[:shown]
    try:
        # Not strict about a character that the cut has halved.
        decoder = codecs.getincrementaldecoder("utf-8")()
        text, encoding = decoder.decode(part, final=len(part) == len(value)), "text"
    except UnicodeDecodeError:
        text, encoding = part.hex(), "hex"
    return {"value": text, "encoding": encoding, "size": len(value)}


def _fragments(metadata: LedgerMetadata) -> list[dict[str, Any]]:
    """First and last entry of each fragment; the last fragment of a ledger that is not closed has no known end."""
    found = []
    following = [fragment.first_entry_id for fragment in metadata.fragments[1:]]
    ends = [*(first - 1 for first in following), metadata.last_entry_id if metadata.is_closed else None]
    for fragment, end in zip(metadata.fragments, ends, strict=True):
        found.append(
            {
                "firstEntryId": str(fragment.first_entry_id),
                "lastEntryId": None if end is None else str(end),
                "ensemble": list(fragment.ensemble),
            }
        )
    return found
