"""Idle and busy clients of a gateway, for the scale benchmark. Arguments: the gateway's URI.

Each has a connection of its own and holds what every client of the library holds: the stream on which it watches the
bookies, and the list of gateways that it asks for now and then. Not its job: counting what they cost (`scale_gateway`).
"""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import uvloop

from benchmarks.load_process import commands, serve_async
from benchmarks.metadata_sample import SAMPLE
from bookgate.ledger.errors import BKException
from bookgate.ledger.ledger_id import LedgerId
from bookgate.ledger.metadata_store import BookieSet, LedgerRecord
from bookgate.thinclient.gateways.factory import RpcLedgerManagerFactory

_CONNECT_AT_ONCE = 50
_CALLS_AT_ONCE = 50
_PATIENCE_SECONDS = 60.0


class ScaleClients:
    """The operations; each returns how many calls failed, unless it says otherwise."""

    def __init__(self, uri: str) -> None:
        self._uri = uri
        self._clients: list[RpcLedgerManagerFactory] = []
        self._ends: list[Callable[[], None]] = []
        self._told = 0
        self._news = asyncio.Event()

    async def connect(self, clients: int) -> int:
        """Connects so many more; each watches the bookies."""
        return await self._several([self._connect] * clients, _CONNECT_AT_ONCE)

    async def _connect(self) -> None:
        client = RpcLedgerManagerFactory(self._uri, timeout=_PATIENCE_SECONDS)
        await client.initialize()
        self._clients.append(client)
        self._ends.append(await client.service_discovery.watch_bookies(BookieSet.WRITABLE, lambda _: None))

    async def discover(self, calls: int) -> int:
        """Asks for all bookies, as each client does now and then."""

        async def ask(number: int) -> None:
            await self._client(number).service_discovery.bookies(BookieSet.ALL)

        return await self._calls(ask, calls)

    async def create(self, ledgers: int) -> int:
        """The clients create so many ledgers in turn."""

        async def create(number: int) -> None:
            await self._client(number).ledger_manager.create(None, SAMPLE)

        return await self._calls(create, ledgers)

    async def read(self, ids: list[int], rounds: int) -> int:
        """Reads each ledger so many times, one a call."""

        async def read(number: int) -> None:
            await self._client(number).ledger_manager.read(LedgerId.unscoped(ids[number % len(ids)]))

        return await self._calls(read, len(ids) * rounds)

    async def subscribe(self, first: int, each: int) -> float:
        """Every client subscribes to `each` ledgers of its own, from an id on; seconds until all are told."""
        self._told = 0
        began, wanted = time.monotonic(), len(self._clients) * each
        for index, client in enumerate(self._clients):
            for number in range(each):
                ledger_id = LedgerId.unscoped(first + index * each + number)
                await client.ledger_manager.register_listener(ledger_id, self._listen)
        async with asyncio.timeout(600):
            while self._told < wanted:
                self._news.clear()
                await self._news.wait()
        return time.monotonic() - began

    def _listen(self, _ledger_id: LedgerId, _record: LedgerRecord | None) -> None:
        self._told += 1
        self._news.set()

    async def walk(self, with_metadata: bool, before: int | None) -> dict[str, float]:
        """Lists ledgers; how many there were, and seconds."""
        manager = self._clients[0].ledger_manager
        began, count = time.monotonic(), 0
        pages: Any = (manager.ledger_records if with_metadata else manager.ledger_ranges)(end_before=before)
        async for page in pages:
            count += len(page)
        return {"seconds": time.monotonic() - began, "count": count}

    def passed_over(self) -> float:
        """How often a gateway was passed over since it had failed."""
        return sum(client.gauges["GATEWAYS_PASSED_OVER"]() for client in self._clients)

    def _client(self, number: int) -> RpcLedgerManagerFactory:
        return self._clients[number % len(self._clients)]

    async def _calls(self, call: Callable[[int], Awaitable[None]], count: int) -> int:
        return await self._several([lambda number=n: call(number) for n in range(count)], _CALLS_AT_ONCE)  # type: ignore[misc]

    @staticmethod
    async def _several(calls: Sequence[Callable[[], Awaitable[None]]], at_once: int) -> int:
        waiting, failed = iter(calls), 0

        async def run() -> None:
            nonlocal failed
            for call in waiting:
                try:
                    await call()
                except BKException as error:
                    failed += 1
                    print(f"a call failed: {error}", file=sys.stderr)

        await asyncio.gather(*(run() for _ in range(at_once)))
        return failed


async def main() -> None:
    loop = asyncio.get_running_loop()
    await serve_async(ScaleClients(sys.argv[1]), lambda: loop.run_in_executor(None, commands))


if __name__ == "__main__":
    uvloop.run(main())
