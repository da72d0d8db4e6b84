"""HTTP admin of a bookie: the paths and bodies of BookKeeper's own (docs/admin.md#paths), in one table.

How requests are checked and refused, and what any process has, is in `gateway.admin`; the rooms beside have the rest.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from typing import Any

from prometheus_client import CollectorRegistry
from starlette.applications import Starlette
from starlette.responses import Response

from bookie.admin.client_rows import OwnClient, client_rows
from bookie.admin.console_charts import bookie_charts
from bookie.admin.console_collection import console_collection_rows
from bookie.admin.console_entries import console_entry_rows
from bookie.admin.gc_rows import gc_rows
from bookie.admin.state_rows import StateView, state_rows
from bookie.admin.storage_rows import storage_rows
from bookie.config import BookieConfig
from bookie.exposition import CONTENT_TYPE, render
from bookie.garbage_collector import GarbageCollector
from bookie.statistics import BookieStatistics
from bookie.storage import Storage
from gateway.admin.access import Access, is_loopback
from gateway.admin.api import Call, Row, create_app
from gateway.admin.cluster_rows import cluster_rows
from gateway.admin.console.cluster_rows import Server
from gateway.admin.console.console import Console
from gateway.admin.console.pages import console_routes
from gateway.admin.ledger_rows import ledger_rows
from gateway.admin.openapi import document
from gateway.admin.passed_on import LISTINGS, PassedOn
from gateway.admin.process_rows import process_rows
from gateway.metrics import GatewayNumbers
from gateway.version import own_version
from ledger.manager import LedgerManagerFactory


@dataclass(frozen=True)
class BookieView:
    """What the admin interface may ask of a bookie."""

    config: BookieConfig
    state: StateView
    gc: GarbageCollector
    metrics: CollectorRegistry
    storage: Storage
    factory: LedgerManagerFactory
    client: OwnClient
    check_cookie: Callable[[], Awaitable[object]]
    requests: BookieStatistics
    gateway: GatewayNumbers | None
    """Of the gateway that it hosts."""
    bookie_id: str
    listings: PassedOn | None = None
    """Who answers what lists ledgers, where that is not this process."""


def bookie_rows(view: BookieView, console: Console) -> list[Row]:
    """Everything a bookie answers, or has answered."""
    rows = [
        *process_rows(view.config, lambda: render(view.metrics), CONTENT_TYPE),
        *ledger_rows(view.factory.ledger_manager),
        *client_rows(view.client, lambda: view.state.mode.read_only),
        *cluster_rows(view.factory),
        *state_rows(view.state),
        *gc_rows(view.gc),
        *storage_rows(view.storage, view.check_cookie, may_expand=view.config.allow_storage_expansion),
        *console.rows(),
        *console_entry_rows(view.client),
        *console_collection_rows(view.gc),
    ]
    listings = view.listings
    if listings is None:
        return rows

    async def passed_on(call: Call[Any, Any]) -> Response:
        return await listings.answer(call.request)

    return [replace(row, handle=passed_on) if row.path in LISTINGS else row for row in rows]


def create_bookie_app(view: BookieView) -> tuple[Starlette, Console]:
    """The ASGI application of one bookie, and its console, which is to be started and closed.

    Raises IncorrectParameterException for a token file of no use.
    """
    config, mode = view.config, view.state.mode
    access = Access(config.http_bearer_token(), loopback=is_loopback(config.host))
    server = Server(
        "bookie",
        view.bookie_id,
        own_version(),
        config.metadata_uri,
        lambda: mode.shutting_down,
        view.gateway,
        ("bookie", "entries", "space", "collection"),
    )
    charts = bookie_charts(view.requests, view.storage.statistics)
    console = Console(server, view.factory, access, charts, view.client.spaces)
    rows = bookie_rows(view, console)
    description = document("Bookgate bookie", rows, has_token=access.has_token)
    return create_app(rows, access, description, console_routes()), console
