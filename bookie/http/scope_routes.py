"""Which scopes the bookie holds, over HTTP."""

from __future__ import annotations

import asyncio
from bisect import bisect_right
from collections.abc import Sequence
from typing import Annotated, Any

from pydantic import Field

from bookgate.bookie.collection.garbage_collector import GarbageCollector
from bookgate.bookie.collection.scope_usage import ScopeUsage, scope_usage
from bookgate.gateway.http.api import WHOLE, Call, LedgerHalf, NoBody, Query, Route, get
from bookgate.ledger.ledger_id import number_of

_MAX_SCOPES = 100_000
_ANSWER = {
    "type": "object",
    "required": ["scopes", "next"],
    "properties": {
        "scopes": {
            "type": "array",
            "items": {
                "type": "object",
                "required": ["ledger_scope_id", "ledgers", "bytes"],
                "properties": {name: {"type": "integer"} for name in ("ledger_scope_id", "ledgers", "bytes")},
            },
        },
        "next": {"type": ["integer", "null"]},
    },
}


class ScopesQuery(Query):
    start_after: LedgerHalf | None = Field(None, description="scopes above it; the answer's `next` goes on")
    limit: Annotated[int, Field(ge=1, le=_MAX_SCOPES), WHOLE] = 10_000


def scopes_route(collector: GarbageCollector) -> Route:
    async def scopes(call: Call[ScopesQuery, NoBody]) -> Any:
        call.caller.take("listed_ids_per_second", 0)
        found = await asyncio.to_thread(lambda: scope_usage(collector.logs.examined()))
        call.caller.owe("listed_ids_per_second", len(found))
        return _page(found, call.query)

    what = "Scopes of which it holds ledgers: how many, and their bytes"
    return get("/api/v1/bookie/scopes", what, scopes, query=ScopesQuery, answer=_ANSWER)


def _page(found: Sequence[ScopeUsage], query: ScopesQuery) -> dict[str, Any]:
    """In the order of their bits: scope 0, the positive ones, the negative ones."""
    numbers = [number_of(each.scope_id, 0) for each in found]
    begin = 0 if query.start_after is None else bisect_right(numbers, number_of(query.start_after, 0))
    page = found[begin : begin + query.limit]
    told = [{"ledger_scope_id": each.scope_id, "ledgers": each.ledgers, "bytes": each.bytes} for each in page]
    return {"scopes": told, "next": page[-1].scope_id if begin + len(page) < len(found) else None}
