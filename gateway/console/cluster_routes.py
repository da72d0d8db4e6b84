"""The cluster for the console: this server, the metadata store, all bookies, and the problems found.

While the store is unreachable, the last known bookies are shown, and `stale` is set. A bookie that is away is shown
where it was.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from typing import Any

from bookgate.gateway.console.auto_recovery import Absences, RecoveryPanel, absences
from bookgate.gateway.console.last_seen import LastSeen
from bookgate.gateway.console.paths import CONSOLE
from bookgate.gateway.console.problems import (
    ConsoleProblem,
    Spaces,
    bookie_problems,
    insecure_problem,
    recovery_problems,
    refused_file_problems,
    store_problem,
)
from bookgate.gateway.console.stale_while_refresh import Recent
from bookgate.gateway.http.access import Access
from bookgate.gateway.http.api import Call, NoBody, NoQuery, Route, get
from bookgate.gateway.http.routes.process import masked_uri
from bookgate.gateway.metrics import GatewayNumbers
from bookgate.ledger.bookie_info import HTTP, TLS_EXTENSION, version_of
from bookgate.ledger.bookie_registry import store_in_words
from bookgate.ledger.errors import BKException
from bookgate.ledger.metadata_store import BookieSet, ClusterInfo, LedgerManagerFactory, RegisteredBookie
from bookgate.runtime.clock import time_of_day

_STORE_SECONDS = 3.0
"""So long the store is waited for: a console that waits does not say what is wrong."""


@dataclass(frozen=True)
class Server:
    """What the server is that shows the console. `features`: what it can tell beside metadata, by name:

    `bookie` (its state and switch), `entries`, `streams` (their changes), `space`, `collection`.
    """

    kind: str
    name: str
    version: str
    metadata_uri: str
    draining: Callable[[], bool]
    gateway: GatewayNumbers | None
    """Of the gateway that it hosts or is."""
    features: tuple[str, ...] = ()
    open_doors: tuple[str, ...] = ()
    """Those at which other machines are let in without anybody being authenticated."""


class ClusterView:
    """See the module. `spaces` asks every bookie, None on a server that can't. `close` it before the store."""

    def __init__(
        self,
        server: Server,
        factory: LedgerManagerFactory,
        access: Access,
        recovery: RecoveryPanel,
        spaces: Callable[[], Awaitable[Spaces]] | None,
        clock: Callable[[], float],
        wall_clock: Callable[[], float] = time_of_day,
    ) -> None:
        self._server = server
        self._factory = factory
        self._access = access
        self._recovery = recovery
        self._spaces = Recent(spaces, clock) if spaces is not None else None
        self._bookies: Sequence[RegisteredBookie] = ()
        self._info: ClusterInfo | None = None
        self._away = Absences({}, {})
        self._last_seen = LastSeen(wall_clock)

    async def close(self) -> None:
        if self._spaces is not None:
            await self._spaces.close()

    async def shown(self) -> dict[str, Any]:
        error = await self._ask_store()
        spaces: Spaces = (await self._spaces.get() if self._spaces is not None else None) or {}
        found = bookie_problems(self._bookies, spaces)
        problems: list[ConsoleProblem] = [store_problem(error)] if error else found
        counted = None if error else await self._recovery.survey()
        if counted is not None:
            problems += recovery_problems(counted.lacking, counted.unrecoverable)
        if self._server.open_doors:
            problems.append(insecure_problem(self._server.open_doors))
        problems += refused_file_problems(self._access.refused_files)
        return {
            "server": self._server_shown(),
            "store": self._store_shown(error),
            "gateway": _readings(self._server.gateway),
            "bookies": [self._bookie_shown(bookie, spaces) for bookie in self._bookies],
            "recovery": counted and {"lacking": counted.lacking, "unrecoverable": counted.unrecoverable},
            "stale": error is not None,
            "problems": [{**asdict(problem), "severity": problem.severity.value} for problem in problems],
        }

    async def _ask_store(self) -> str | None:
        """Why the store is unreachable; None if it responded."""
        discovery = self._factory.service_discovery
        try:
            async with asyncio.timeout(_STORE_SECONDS):
                self._bookies = sorted(await discovery.bookies(BookieSet.ALL), key=lambda bookie: bookie.bookie_id)
                self._last_seen.take(self._bookies)
                self._info = self._info or await discovery.cluster_info()
                with suppress(BKException):
                    self._away = await absences(self._factory)
        except BKException as problem:
            return str(problem)
        except TimeoutError:
            return f"it did not answer within {_STORE_SECONDS:.0f} seconds"
        return None

    def _server_shown(self) -> dict[str, Any]:
        server = self._server
        return {
            "kind": server.kind,
            "name": server.name,
            "version": server.version,
            "state": "draining" if server.draining() else "serving",
            "features": list(server.features),
            "changes": self._access.changes,
        }

    def _bookie_shown(self, bookie: RegisteredBookie, spaces: Spaces) -> dict[str, Any]:
        info = self._last_seen.info(bookie)
        space = spaces.get(bookie.bookie_id)
        return {
            "id": bookie.bookie_id,
            "state": "writable" if bookie.writable else "read-only" if bookie.read_only else "unavailable",
            "missedSince": self._away.missed.get(bookie.bookie_id),
            "awaySince": self._last_seen.away_since_ms(bookie.bookie_id),
            "isDraining": bookie.bookie_id in self._away.draining,
            "answers": space is not None if bookie.bookie_id in spaces else None,
            "freeBytes": space[0] if space else None,
            "totalBytes": space[1] if space else None,
            "version": version_of(info),
            "console": _console_of(bookie),
            "endpoints": [
                {
                    "protocol": endpoint.protocol,
                    "address": endpoint.address,
                    "auth": list(endpoint.auth),
                    "extensions": list(endpoint.extensions),
                }
                for endpoint in info.endpoints
            ],
        }

    def _store_shown(self, error: str | None) -> dict[str, Any]:
        info, factory = self._info, self._factory
        return {
            "uri": masked_uri(self._server.metadata_uri),
            "connected": error is None and factory.connected,
            "connectionsLost": factory.connection_epoch,
            "error": error,
            "instanceId": info and info.instance_id,
            "metadataStore": info and store_in_words(info.ledger_manager),
            "features": list(info.features) if info else [],
        }


def cluster_routes(view: ClusterView) -> list[Route]:
    async def cluster(_call: Call[NoQuery, NoBody]) -> Any:
        return await view.shown()

    required = ["server", "store", "bookies", "problems"]
    return [
        get(
            f"{CONSOLE}/cluster",
            "This server, the store, all bookies, and what is wrong",
            cluster,
            answer={"type": "object", "required": required},
        )
    ]


def _console_of(bookie: RegisteredBookie) -> str | None:
    """The address of the bookie's own console, if it runs and has one."""
    endpoint = bookie.info.endpoint(HTTP)
    if endpoint is None or version_of(bookie.info) is None:
        return None
    return f"{'https' if TLS_EXTENSION in endpoint.extensions else 'http'}://{endpoint.address}/"


def _readings(metrics: GatewayNumbers | None) -> list[dict[str, Any]] | None:
    if metrics is None:
        return None
    return [{"name": each.name, "text": each.text, "value": each.read()} for each in metrics.readings()]
