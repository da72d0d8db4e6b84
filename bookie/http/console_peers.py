"""Other bookies for the console: the last ten minutes of each, one of them in full, its log, its read-only switch.

A browser may contact the server of its page only, so this server asks the others over HTTP, with the token of its
caller: the other server decides. The token goes over TLS only, or to this machine; where it can't go, a question is
asked without it, and a change is refused.

Not its job: what a bookie reports about itself (`console_charts`, `state_routes`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

from pydantic import Field
from starlette.requests import Request

from bookgate.bookie.http.console_log import LOG, LOG_ANSWER, LogQuery
from bookgate.bookie.http.state_routes import ReadOnlyBody
from bookgate.gateway.console.console import SinceQuery
from bookgate.gateway.console.paths import CONSOLE
from bookgate.gateway.console.stale_while_refresh import Recent
from bookgate.gateway.http.access import Need
from bookgate.gateway.http.api import Call, NoBody, Query, Route, change, get
from bookgate.gateway.http.errors import HttpError
from bookgate.gateway.http.routes.ledgers import STORE_AWAY
from bookgate.ledger.bookie_info import HTTP, version_of
from bookgate.ledger.errors import BKException
from bookgate.ledger.metadata_store import BookieSet, LedgerManagerFactory, RegisteredBookie
from bookgate.runtime.clock import monotonic
from bookgate.thinclient.config import ClientConfig
from bookgate.thinclient.tools.admin_client import AdminHttp, endpoint_url

_ASKED_AT_ONCE = 16
_SECONDS = 5.0
_FRESH_SECONDS = 2.0
_DETAILS = {
    "state": "/api/v1/bookie/state",
    "space": "/api/v1/bookie/info",
    "collection": "/api/v1/bookie/gc_details",
    "configuration": "/api/v1/config/server_config",
    "garbageCollection": f"{CONSOLE}/collection",
}
"""What the page of a bookie shows, and where that bookie tells it."""
_NOT_HANDED_ON = "that bookie refuses or does not answer"


class BookieQuery(Query):
    bookie_id: str = Field(min_length=1, max_length=255, description="the bookie")


class BookieLogQuery(BookieQuery, LogQuery):
    pass


class Peers:
    """See the module. Made on the event loop; `close` it before the metadata."""

    def __init__(
        self,
        factory: LedgerManagerFactory,
        config: Callable[[], ClientConfig],
        clock: Callable[[], float] = monotonic,
    ) -> None:
        self._discovery = factory.service_discovery
        self._config = config
        self._token: str | None = None
        self._threads = ThreadPoolExecutor(_ASKED_AT_ONCE, "console-peers")
        self._rates = Recent(self._gather_rates, clock, _FRESH_SECONDS, wait_seconds=_SECONDS + 1)

    async def close(self) -> None:
        await self._rates.close()
        self._threads.shutdown(wait=False, cancel_futures=True)

    async def rates(self, token: str | None) -> dict[str, Any]:
        """By bookie its charts and points, None for one that does not tell; asked with the latest caller's token."""
        self._token = token
        return await self._rates.get() or {}

    async def _gather_rates(self) -> dict[str, Any]:
        known = await self._ours()
        answers = await asyncio.gather(*(self._ask(bookie, f"{CONSOLE}/rates", self._token) for bookie in known))
        return {bookie.bookie_id: answer for bookie, answer in zip(known, answers, strict=True)}

    async def details(self, bookie_id: str, token: str | None) -> dict[str, Any]:
        """What a bookie tells of itself, each part None where it does not. Raises HttpError."""
        bookie = await self._find(bookie_id)
        answers = await asyncio.gather(*(self._ask(bookie, path, token) for path in _DETAILS.values()))
        return dict(zip(_DETAILS, answers, strict=True))

    async def set_read_only(self, bookie_id: str, read_only: bool, token: str | None) -> Any:
        """Hands the change on. Raises HttpError."""
        admin = self._admin(await self._find(bookie_id), token)
        return await self._handed_on(admin.put, "/api/v1/bookie/state/readonly", {"readOnly": read_only})

    async def log(self, bookie_id: str, query: LogQuery, token: str | None) -> Any:
        """The latest lines of its log. Raises HttpError."""
        admin = _without_exposed_token(self._admin(await self._find(bookie_id), token))
        return await self._handed_on(admin.get, f"{LOG}?level={query.level}&limit={query.limit}")

    async def _handed_on(self, work: Any, *given: Any) -> Any:
        try:
            return await self._in_thread(work, *given)
        except (BKException, TimeoutError) as error:
            raise HttpError(502, str(error) or "it does not answer in time") from None

    async def _ours(self) -> Sequence[RegisteredBookie]:
        """Registered bookies that have a console of this kind."""
        found = [
            *await self._discovery.bookies(BookieSet.WRITABLE),
            *await self._discovery.bookies(BookieSet.READ_ONLY),
        ]
        by_id = {bookie.bookie_id: bookie for bookie in found if bookie.info.endpoint(HTTP) and version_of(bookie.info)}
        return [by_id[each] for each in sorted(by_id)]

    async def _find(self, bookie_id: str) -> RegisteredBookie:
        for bookie in await self._ours():
            if bookie.bookie_id == bookie_id:
                return bookie
        raise HttpError(404, f"bookie {bookie_id} is not registered, or has no HTTP admin of this kind")

    def _admin(self, bookie: RegisteredBookie, token: str | None) -> AdminHttp:
        endpoint = bookie.info.endpoint(HTTP)
        assert endpoint is not None, "those without are not found"
        config = self._config()
        # The thread has to end with the question: all share a few, and a stop waits for them.
        return AdminHttp(endpoint_url(endpoint), token, config.bookie_tls_ca or config.tls_ca, _SECONDS)

    async def _ask(self, bookie: RegisteredBookie, path: str, token: str | None) -> Any:
        try:
            return await self._in_thread(_without_exposed_token(self._admin(bookie, token)).get, path)
        except (BKException, TimeoutError):
            return None

    async def _in_thread(self, work: Any, *given: Any) -> Any:
        async with asyncio.timeout(_SECONDS):
            return await asyncio.get_running_loop().run_in_executor(self._threads, work, *given)


def _without_exposed_token(admin: AdminHttp) -> AdminHttp:
    """The same, without the token where others could read it on the way."""
    return admin if admin.may_carry_token else replace(admin, token=None)


def console_peer_routes(peers: Peers, token_of: Callable[[Request], str | None]) -> list[Route]:
    """`token_of`: what a caller authenticated with."""

    async def rates(call: Call[SinceQuery, NoBody]) -> Any:
        told = await peers.rates(token_of(call.request))
        return {"bookies": {name: _since(answer, call.query.since) for name, answer in told.items()}}

    async def details(call: Call[BookieQuery, NoBody]) -> Any:
        return await peers.details(call.query.bookie_id, token_of(call.request))

    async def log(call: Call[BookieLogQuery, NoBody]) -> Any:
        return await peers.log(call.query.bookie_id, call.query, token_of(call.request))

    async def set_read_only(call: Call[BookieQuery, ReadOnlyBody]) -> Any:
        return await peers.set_read_only(call.query.bookie_id, call.body.read_only, token_of(call.request))

    not_there = {404: "no such bookie is registered", **STORE_AWAY}
    return [
        get(
            f"{CONSOLE}/cluster_rates",
            "What each bookie did in the last ten minutes",
            rates,
            query=SinceQuery,
            answer={"type": "object", "required": ["bookies"]},
            failures=STORE_AWAY,
        ),
        get(
            f"{CONSOLE}/bookie",
            "What one bookie tells of itself",
            details,
            query=BookieQuery,
            answer={"type": "object", "required": list(_DETAILS)},
            failures=not_there,
        ),
        get(
            f"{CONSOLE}/bookie/log",
            "The latest lines of one bookie's log",
            log,
            query=BookieLogQuery,
            answer=LOG_ANSWER,
            need=Need.CONTENT,
            failures={**not_there, 502: _NOT_HANDED_ON},
        ),
        change(
            "PUT",
            f"{CONSOLE}/bookie/readonly",
            "Make any bookie read-only, or writable",
            set_read_only,
            query=BookieQuery,
            body=ReadOnlyBody,
            answer={"type": "object", "required": ["readOnly"]},
            failures={**not_there, 502: _NOT_HANDED_ON},
        ),
    ]


def _since(answer: Mapping[str, Any] | None, since_ms: int) -> Mapping[str, Any] | None:
    if answer is None:
        return None
    return {**answer, "points": [point for point in answer["points"] if point[0] > since_ms]}
