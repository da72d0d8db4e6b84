"""Thin clients under measurement: each with a connection of its own to the gateway. Arguments: the gateway's URI."""

from __future__ import annotations

import asyncio
import sys
import time
from contextlib import AsyncExitStack
from typing import Any

import grpc
import uvloop

from benchmarks.load_process import commands, rss_bytes, serve_async
from benchmarks.metadata_sample import LAST_ENTRY_ID, LENGTH, SAMPLE
from bookgate.ledger.ledger_id import LedgerId
from bookgate.ledger.metadata_store import CreateRequest, LedgerRecord
from bookgate.protos.bookkeeper.gateway.v1 import ledger_metadata_service_pb2 as wire
from bookgate.protos.bookkeeper.gateway.v1.ledger_metadata_service_pb2_grpc import LedgerMetadataServiceStub
from bookgate.thinclient.gateways.factory import RpcLedgerManagerFactory
from bookgate.thinclient.gateways.ledger_manager import RpcLedgerManager
from bookgate.thinclient.handles.metadata_cas import close_by_writer, update

_OWN_CONNECTION = [("grpc.use_local_subchannel_pool", 1)]


class ThinLoad:
    """The operations; times in seconds."""

    def __init__(self, uri: str) -> None:
        self._uri = uri
        self._address = uri.removeprefix("grpc://")
        self._clients: list[RpcLedgerManagerFactory] = []
        self._made: list[LedgerRecord] = []
        self._heard: dict[int, int] = {}
        self._more = asyncio.Event()
        self._streams: list[asyncio.Future[None]] = []

    async def open(self, clients: int) -> int:
        """Connects clients until there are that many; each has used its connection once."""
        while len(self._clients) < clients:
            wanted = min(50, clients - len(self._clients))
            fresh = [RpcLedgerManagerFactory(self._uri, timeout=60) for _ in range(wanted)]
            await asyncio.gather(*(client.initialize() for client in fresh))
            self._clients += fresh
        return len(self._clients)

    async def close(self) -> None:
        await asyncio.gather(*(client.close() for client in self._clients))
        self._clients.clear()

    async def create(self, clients: int, seconds: float) -> float:
        """All clients create one ledger after the other; how many a second, together."""
        await self.open(clients)
        began = time.monotonic()

        async def run(manager: RpcLedgerManager) -> int:
            created = 0
            while time.monotonic() - began < seconds:
                await manager.create(None, SAMPLE)
                created += 1
            return created

        count = sum(await asyncio.gather(*(run(client.ledger_manager) for client in self._clients[:clients])))
        return count / (time.monotonic() - began)

    async def create_bulk(self, clients: int, seconds: float, batch: int) -> float:
        """The same, a batch a call."""
        await self.open(clients)
        began = time.monotonic()

        async def run(manager: RpcLedgerManager) -> int:
            created = 0
            while time.monotonic() - began < seconds:
                results = await manager.create_many([CreateRequest(None, SAMPLE)] * batch)
                created += sum(isinstance(result, LedgerRecord) for result in results)
            return created

        count = sum(await asyncio.gather(*(run(client.ledger_manager) for client in self._clients[:clients])))
        return count / (time.monotonic() - began)

    async def make_open(self, count: int) -> None:
        """Creates ledgers for `close_open`."""
        await self.open(1)
        results = await self._clients[0].ledger_manager.create_many([CreateRequest(None, SAMPLE)] * count)
        self._made = [result for result in results if isinstance(result, LedgerRecord)]
        assert len(self._made) == count

    async def close_open(self, clients: int) -> dict[str, float]:
        """All clients close one of the open ledgers after the other: elapsed time, and CPU."""
        await self.open(clients)
        began, cpu = time.monotonic(), time.process_time()

        async def run(manager: RpcLedgerManager, own: list[LedgerRecord]) -> None:
            for record in own:
                await update(manager, record, close_by_writer(record.ledger_id, LAST_ENTRY_ID, LENGTH))

        await asyncio.gather(
            *(
                run(client.ledger_manager, self._made[first::clients])
                for first, client in enumerate(self._clients[:clients])
            )
        )
        return {"seconds": time.monotonic() - began, "cpu": time.process_time() - cpu}

    async def read_all(self, ids: list[int]) -> int:
        """Reads each once; how many there are."""
        await self.open(1)
        results = await self._clients[0].ledger_manager.read_many([LedgerId.unscoped(number) for number in ids])
        return sum(isinstance(result, LedgerRecord) for result in results)

    async def read_bulk(self, ids: list[int], seconds: float, batch: int, clients: int) -> float:
        """Clients read batches of the ids round and round; ledgers a second."""
        await self.open(clients)
        began = time.monotonic()

        async def run(manager: RpcLedgerManager, position: int) -> int:
            read = 0
            while time.monotonic() - began < seconds:
                some = [LedgerId.unscoped(ledger_id) for ledger_id in ids[position : position + batch]]
                results = await manager.read_many(some)
                read += sum(isinstance(result, LedgerRecord) for result in results)
                position = (position + batch) % len(ids)
            return read

        starts = [(index * len(ids) // clients) // batch * batch for index in range(clients)]
        pairs = zip(self._clients[:clients], starts, strict=True)
        count = sum(await asyncio.gather(*(run(client.ledger_manager, start) for client, start in pairs)))
        return count / (time.monotonic() - began)

    async def read_bulk_undecoded(self, ids: list[int], seconds: float, batch: int, clients: int) -> float:
        """The same by clients that parse the messages and leave the metadata in them as it is."""
        await self.open(clients)
        began = time.monotonic()

        async def run(channel: grpc.aio.Channel, position: int) -> int:
            stub: Any = LedgerMetadataServiceStub(channel)
            read = 0
            while time.monotonic() - began < seconds:
                some = ids[position : position + batch]
                request = wire.BatchReadRequest(ledger_ids=some, batched_answers=True)
                async for response in stub.BatchRead(request):
                    read += len(response.batch)
                position = (position + batch) % len(ids)
            return read

        starts = [(index * len(ids) // clients) // batch * batch for index in range(clients)]
        async with AsyncExitStack() as stack:
            channels = [
                await stack.enter_async_context(grpc.aio.insecure_channel(self._address, options=_OWN_CONNECTION))
                for _ in range(clients)
            ]
            count = sum(await asyncio.gather(*(run(*each) for each in zip(channels, starts, strict=True))))
        return count / (time.monotonic() - began)

    async def read_single(self, ids: list[int], seconds: float, clients: int) -> list[float]:
        """Clients read one ledger after the other; seconds each read took."""
        await self.open(clients)
        end = time.monotonic() + seconds
        took: list[float] = []

        async def run(manager: RpcLedgerManager, position: int) -> None:
            while (began := time.monotonic()) < end:
                await manager.read(LedgerId.unscoped(ids[position % len(ids)]))
                took.append(time.monotonic() - began)
                position += 1

        await asyncio.gather(*(run(c.ledger_manager, 37 * i) for i, c in enumerate(self._clients[:clients])))
        return took

    async def walk(self, with_metadata: bool = False, before: int | None = None) -> dict[str, float]:
        """Lists all ledgers."""
        await self.open(1)
        manager = self._clients[0].ledger_manager
        began, count, first = time.monotonic(), 0, 0.0
        pages: Any = (manager.ledger_records if with_metadata else manager.ledger_ranges)(end_before=before)
        async for page in pages:
            first = first or time.monotonic() - began
            count += len(page)
        return {"seconds": time.monotonic() - began, "count": count, "first": first, "rss": rss_bytes("self")}

    async def subscribe(self, ids: list[int], streams: int, each: int) -> float:
        """`streams` clients with `each` subscriptions, spread over the ids; seconds until all have heard once."""
        await self.open(streams)
        self._heard.clear()
        began = time.monotonic()
        for index, client in enumerate(self._clients[:streams]):
            for number in range(each):
                ledger_id = LedgerId.unscoped(ids[(index * each + number) % len(ids)])
                await client.ledger_manager.register_listener(ledger_id, self._listen)
        await self._until(0, streams * each)
        return time.monotonic() - began

    async def watch(self, ledger_id: int, connections: int, each: int) -> int:
        """Connections with `each` Watch streams, all for one ledger; returns once all have its present state."""
        request = wire.LedgerMetadataRequest(ledger_id=ledger_id)

        async def run(stub: Any) -> None:
            call = stub.Watch()
            await call.write(request)
            async for response in call:
                if response.event == wire.WatchEvent.STATE:
                    self._heard[response.version] = self._heard.get(response.version, 0) + 1
                    self._more.set()

        for opened in range(1, connections + 1):
            channel = grpc.aio.insecure_channel(self._address, options=_OWN_CONNECTION)
            stub = LedgerMetadataServiceStub(channel)
            self._streams += [asyncio.ensure_future(run(stub)) for _ in range(each)]
            # Not in one burst: that many new streams at once is another matter.
            await self._until(0, opened * each)
        return connections * each

    async def hear(self, version: int, count: int) -> float:
        """Waits until `count` listeners have heard of a version; the moment at which the last one had."""
        await self._until(version, count)
        return time.time()

    def _listen(self, ledger_id: LedgerId, record: LedgerRecord | None) -> None:
        if record is not None:
            self._heard[record.version] = self._heard.get(record.version, 0) + 1
            self._more.set()

    async def _until(self, version: int, count: int) -> None:
        async with asyncio.timeout(120):
            while self._heard.get(version, 0) < count:
                self._more.clear()
                await self._more.wait()


async def main() -> None:
    loop = asyncio.get_running_loop()
    await serve_async(ThinLoad(sys.argv[1]), lambda: loop.run_in_executor(None, commands))


if __name__ == "__main__":
    uvloop.run(main())
