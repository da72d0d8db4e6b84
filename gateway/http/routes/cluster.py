"""The cluster over HTTP: number and list of its bookies."""

from __future__ import annotations

from contextlib import aclosing
from typing import Any, Literal

from pydantic import Field

from bookgate.gateway.http.api import Boolean, Call, NoBody, Query, Route, get
from bookgate.gateway.http.routes.ledgers import STORE_AWAY
from bookgate.ledger.bookie_info import BOOKIE_RPC
from bookgate.ledger.errors import IllegalOpException
from bookgate.ledger.metadata_store import BookieSet, LedgerManagerFactory, RegisteredBookie
from bookgate.ledger.replication_store import ReplicationMetadata


class BookiesQuery(Query):
    type: Literal["rw", "ro"] = Field("rw", description="writable or read-only bookies")
    print_hostnames: Boolean = Field(False, description="with their hosts")


def cluster_routes(factory: LedgerManagerFactory) -> list[Route]:
    discovery = factory.service_discovery

    async def bookies(call: Call[BookiesQuery, NoBody]) -> Any:
        wanted = BookieSet.READ_ONLY if call.query.type == "ro" else BookieSet.WRITABLE
        found = await discovery.bookies(wanted)
        return {bookie.bookie_id: _host(bookie) if call.query.print_hostnames else None for bookie in found}

    async def cluster_info(_call: Call[Query, NoBody]) -> Any:
        known = await discovery.bookies(BookieSet.ALL)
        writable = sum(bookie.writable for bookie in known)
        read_only = sum(bookie.read_only and not bookie.writable for bookie in known)
        return {
            **await _auto_recovery(factory),
            "totalBookiesCount": len(known),
            "writableBookiesCount": writable,
            "readonlyBookiesCount": read_only,
            "unavailableBookiesCount": len(known) - writable - read_only,
        }

    return [
        get(
            "/api/v1/bookie/list_bookies",
            "Registered bookies",
            bookies,
            query=BookiesQuery,
            answer={"type": "object", "additionalProperties": {"type": ["string", "null"]}},
            failures=STORE_AWAY,
        ),
        get("/api/v1/bookie/cluster_info", "Bookies by state, counted", cluster_info, failures=STORE_AWAY),
    ]


async def _auto_recovery(factory: LedgerManagerFactory) -> dict[str, Any]:
    try:
        store = factory.replication_metadata
    except IllegalOpException:
        enabled, auditor, marked = False, None, False
    else:
        enabled, auditor, marked = await store.is_enabled(), await store.auditor(), await _is_anything_marked(store)
    return {
        "auditorElected": auditor is not None,
        "auditorId": auditor or "",
        "clusterUnderReplicated": marked,
        "ledgerReplicationEnabled": enabled,
    }


async def _is_anything_marked(store: ReplicationMetadata) -> bool:
    async with aclosing(store.marks(page_size=1)) as pages:  # type: ignore[type-var]
        return await anext(pages, None) is not None


def _host(bookie: RegisteredBookie) -> str | None:
    return next((endpoint.host for endpoint in bookie.info.endpoints if endpoint.protocol == BOOKIE_RPC), None)
