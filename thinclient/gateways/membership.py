"""The list of gateways, from discovery: each bookie that hosts a gateway registers it as an endpoint.

Discovery is consulted at the start, every minute, and when a gateway has failed, so a client configured with one
gateway survives its loss. If discovery fails it is consulted again later; known gateways are kept.
"""

from __future__ import annotations

import asyncio
import contextlib

from bookgate.ledger.bookie_info import GATEWAY_GRPC
from bookgate.ledger.errors import BKException
from bookgate.ledger.metadata_store import BookieSet, ServiceDiscovery
from bookgate.runtime.background import keep_running
from bookgate.thinclient.gateways.channel import GatewayChannel

_EVERY_SECONDS = 60.0
_AT_LEAST_APART_SECONDS = 5.0


class GatewayList:
    """The list; see the module. Belongs to one event loop."""

    def __init__(self, gateways: GatewayChannel, service_discovery: ServiceDiscovery) -> None:
        self._gateways = gateways
        self._discovery = service_discovery
        self._task: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Returns after the first result of discovery."""
        await self._refresh()
        if self._task is None:
            self._task = keep_running("list of gateways", self._refresh_forever)

    async def close(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def _refresh_forever(self) -> None:
        while True:
            apart = _AT_LEAST_APART_SECONDS * self._gateways.rng.uniform(0.5, 1.0)
            await asyncio.sleep(apart)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_EVERY_SECONDS * self._gateways.rng.uniform(0.5, 1.0)):
                    await self._gateways.trouble.wait()
            await self._refresh()

    async def _refresh(self) -> None:
        self._gateways.trouble.clear()
        with contextlib.suppress(BKException):
            bookies = await self._discovery.bookies(BookieSet.ALL)
            endpoints = [endpoint for bookie in bookies for endpoint in bookie.info.endpoints]
            await self._gateways.learn(each.address for each in endpoints if each.protocol == GATEWAY_GRPC)
