"""The console of one server: its routes, its pages, and the state kept between requests."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Annotated, Any

from pydantic import Field

from bookgate.gateway.console.auto_recovery import RecoveryPanel, auto_recovery_route
from bookgate.gateway.console.cluster_routes import ClusterView, Server, cluster_routes
from bookgate.gateway.console.ledger_census import LedgerStateCounts, census_route
from bookgate.gateway.console.ledger_export import ledger_export_route
from bookgate.gateway.console.ledger_routes import console_ledger_routes
from bookgate.gateway.console.paths import CONSOLE
from bookgate.gateway.console.problems import Spaces
from bookgate.gateway.console.rates import Chart, Rates, gauge, rate_of
from bookgate.gateway.console.stream_routes import console_stream_routes
from bookgate.gateway.http.access import Access
from bookgate.gateway.http.api import MAX_INT64, WHOLE, Call, NoBody, Query, Route, get
from bookgate.gateway.metrics import GatewayNumbers
from bookgate.ledger.metadata_store import LedgerManagerFactory
from bookgate.runtime.clock import monotonic, time_of_day


class SinceQuery(Query):
    since: Annotated[int, Field(ge=0, le=MAX_INT64), WHOLE] = Field(
        0, description="points after this time only, milliseconds since 1970"
    )


class Console:
    """See the module. Made on the event loop that serves it; `close` it before the store."""

    def __init__(
        self,
        server: Server,
        factory: LedgerManagerFactory,
        access: Access,
        charts: Sequence[Chart] = (),
        spaces: Callable[[], Awaitable[Spaces]] | None = None,
        clock: Callable[[], float] = monotonic,
        wall_clock: Callable[[], float] = time_of_day,
    ) -> None:
        """`charts` are shown before those of the gateway."""
        own = _gateway_charts(server.gateway) if server.gateway is not None else []
        self._factory = factory
        self._recovery = RecoveryPanel(factory, clock)
        self._view = ClusterView(server, factory, access, self._recovery, spaces, clock, wall_clock)
        self._ledger_counts = LedgerStateCounts(factory.ledger_manager, clock)
        self._rates = Rates([*charts, *own], clock, wall_clock)

    def start(self) -> None:
        self._rates.start()

    async def close(self) -> None:
        await self._rates.close()
        await self._ledger_counts.close()
        await self._recovery.close()
        await self._view.close()

    def rows(self) -> list[Route]:
        async def rates(call: Call[SinceQuery, NoBody]) -> Any:
            return self._rates.shown(call.query.since)

        return [
            *cluster_routes(self._view),
            *console_ledger_routes(self._factory),
            *console_stream_routes(self._factory),
            ledger_export_route(self._factory.ledger_manager),
            census_route(self._ledger_counts),
            auto_recovery_route(self._recovery),
            get(
                f"{CONSOLE}/rates",
                "What this server did in the last ten minutes",
                rates,
                query=SinceQuery,
                answer={"type": "object", "required": ["charts", "points"]},
            ),
        ]


def _gateway_charts(metrics: GatewayNumbers) -> list[Chart]:
    readings = {each.name: each for each in metrics.readings()}
    return [
        Chart(
            "Metadata calls",
            "count/s",
            (
                rate_of("gateway_requests", "answered", lambda: metrics.requests()[0]),
                rate_of("gateway_failures", "failed", lambda: metrics.requests()[1]),
            ),
        ),
        Chart(
            "Watches",
            "count",
            tuple(
                gauge(f"gateway_{name}", label, readings[name].read)
                for name, label in (("watch_streams", "streams"), ("watched_ledgers", "ledgers"))
                if name in readings
            ),
        ),
    ]
