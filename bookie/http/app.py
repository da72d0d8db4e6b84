"""HTTP admin of a bookie, with the paths and bodies of BookKeeper's own (docs/admin.md#paths), in one table.

Validation, errors and the routes of every process are in `bookgate.gateway.http`; the neighbouring modules have the
rest.
"""

from __future__ import annotations

import socket
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from typing import Any

from prometheus_client import CollectorRegistry
from starlette.applications import Starlette
from starlette.responses import Response

from bookgate.bookie.collection.garbage_collector import GarbageCollector
from bookgate.bookie.config.bookie import BookieConfig
from bookgate.bookie.http.client_routes import OwnClient, client_routes
from bookgate.bookie.http.collection_routes import gc_routes
from bookgate.bookie.http.console_charts import bookie_charts
from bookgate.bookie.http.console_collection import console_collection_routes
from bookgate.bookie.http.console_entries import console_entry_routes
from bookgate.bookie.http.console_ledgers import console_ledger_action_routes
from bookgate.bookie.http.console_log import console_log_route
from bookgate.bookie.http.console_peers import Peers, console_peer_routes
from bookgate.bookie.http.scope_routes import scopes_route
from bookgate.bookie.http.state_routes import StateView, state_routes
from bookgate.bookie.http.storage_routes import storage_routes
from bookgate.bookie.http.stream_routes import stream_routes
from bookgate.bookie.metrics.exposition import CONTENT_TYPE, render
from bookgate.bookie.statistics import BookieStatistics
from bookgate.bookie.storage.storage import LedgerStorage
from bookgate.gateway.console.cluster_routes import Server
from bookgate.gateway.console.console import Console
from bookgate.gateway.console.pages import console_routes
from bookgate.gateway.http.access import Access
from bookgate.gateway.http.api import Call, Route, create_app
from bookgate.gateway.http.openapi import document
from bookgate.gateway.http.routes.autorecovery import auto_recovery_routes
from bookgate.gateway.http.routes.cluster import cluster_routes
from bookgate.gateway.http.routes.ledgers import ledger_routes
from bookgate.gateway.http.routes.process import process_routes
from bookgate.gateway.http.routes.session import session_routes
from bookgate.gateway.metrics import GatewayNumbers
from bookgate.gateway.process.passed_on import LISTINGS, PassedOn
from bookgate.ledger.metadata_store import LedgerManagerFactory
from bookgate.runtime.security.access_control import AccessControl
from bookgate.runtime.security.authenticators import is_loopback
from bookgate.runtime.version import own_version


@dataclass(frozen=True)
class HostedBookie:
    """What the admin interface may ask of a bookie."""

    config: BookieConfig
    state: StateView
    gc: GarbageCollector
    metrics: CollectorRegistry
    storage: LedgerStorage
    factory: LedgerManagerFactory
    client: OwnClient
    peers: Peers
    check_cookie: Callable[[], Awaitable[object]]
    requests: BookieStatistics
    gateway: GatewayNumbers | None
    """Of the gateway that it hosts."""
    bookie_id: str
    control: AccessControl | None = None
    """Who is asked whether a caller may; None: everybody may."""
    listings: PassedOn | None = None
    """Who answers what lists ledgers, where that is not this process."""


def bookie_routes(view: HostedBookie, console: Console, access: Access) -> list[Route]:
    """Everything a bookie answers, or has answered."""
    rows = [
        *process_routes(view.config, lambda: render(view.metrics), CONTENT_TYPE),
        *ledger_routes(view.factory),
        *client_routes(view.client, lambda: view.state.mode.read_only),
        *stream_routes(view.client),
        *cluster_routes(view.factory),
        *auto_recovery_routes(view.factory),
        *state_routes(view.state),
        *gc_routes(view.gc),
        *storage_routes(view.storage, view.check_cookie, may_expand=view.config.allow_storage_expansion),
        scopes_route(view.gc),
        *console.rows(),
        *session_routes(access),
        *console_entry_routes(view.client),
        *console_ledger_action_routes(view.client),
        console_log_route(),
        *console_peer_routes(view.peers, access.bearer),
        *console_collection_routes(view.gc),
    ]
    listings = view.listings
    if listings is None:
        return rows

    async def passed_on(call: Call[Any, Any]) -> Response:
        return await listings.answer(call.request, call.caller)

    return [replace(row, handle=passed_on) if row.path in LISTINGS else row for row in rows]


def create_bookie_app(view: HostedBookie) -> tuple[Starlette, Console]:
    """The ASGI application of one bookie, and its console, which is to be started and closed.

    Raises IncorrectParameterException for a token file of no use.
    """
    config, mode = view.config, view.state.mode
    names = (config.advertised_host(), socket.gethostname(), *config.http_host_names)
    access = Access(config.http_bearer_token(), loopback=is_loopback(config.host), names=names, control=view.control)
    server = Server(
        "bookie",
        view.bookie_id,
        own_version(),
        config.metadata_uri,
        lambda: mode.shutting_down,
        view.gateway,
        ("bookie", "entries", "streams", "space", "collection", "peers"),
        tuple(config.open_doors),
    )
    charts = bookie_charts(view.requests, view.storage.statistics)
    console = Console(server, view.factory, access, charts, view.client.spaces)
    rows = bookie_routes(view, console, access)
    description = document("Bookgate bookie", rows, access)
    return create_app(rows, access, description, console_routes()), console
