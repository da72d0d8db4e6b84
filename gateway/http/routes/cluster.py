"""The cluster over HTTP: its bookies, and auto-recovery, which is not there."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field

from bookgate.gateway.http.api import AnyQuery, Boolean, Call, NoBody, Query, Route, change, get
from bookgate.gateway.http.errors import HttpError
from bookgate.gateway.http.routes.ledgers import STORE_AWAY
from bookgate.ledger.bookie_info import BOOKIE_RPC
from bookgate.ledger.metadata_store import BookieSet, LedgerManagerFactory, RegisteredBookie


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
            "auditorElected": False,
            "auditorId": "",
            "clusterUnderReplicated": False,
            "ledgerReplicationEnabled": False,
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
        *_auto_recovery_routes(),
    ]


def _host(bookie: RegisteredBookie) -> str | None:
    return next((endpoint.host for endpoint in bookie.info.endpoints if endpoint.protocol == BOOKIE_RPC), None)


_AUTO_RECOVERY = (
    ("GET", "status", "Whether auto-recovery is on"),
    ("PUT", "status", "Turn it on or off"),
    ("PUT", "bookie", "Copy a bookie's ledgers to others"),
    ("GET", "list_under_replicated_ledger", "Ledgers that lack copies"),
    ("GET", "who_is_auditor", "Which bookie audits"),
    ("PUT", "trigger_audit", "Audit now"),
    ("GET", "lost_bookie_recovery_delay", "How long a lost bookie is waited for"),
    ("PUT", "lost_bookie_recovery_delay", "Set that"),
    ("PUT", "decommission", "Empty a bookie for good"),
)


def _auto_recovery_routes() -> list[Route]:
    async def not_enabled(_call: Call[Query, NoBody]) -> Any:
        raise HttpError(501, "auto-recovery is not enabled: this version does not have it; run BookKeeper's own")

    only = {"query": AnyQuery, "failures": {501: "auto-recovery is not enabled"}, "works": False}
    return [
        get(f"/api/v1/autorecovery/{name}", summary, not_enabled, **only)
        if verb == "GET"
        else change(verb, f"/api/v1/autorecovery/{name}", summary, not_enabled, **only)
        for verb, name, summary in _AUTO_RECOVERY
    ]
