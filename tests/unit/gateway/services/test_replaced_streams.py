"""A bookie that opens a second stream at a gateway whose store is still at work for the first one."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from bookgate.gateway.services.registration import RegistrationService
from bookgate.ledger.bookie_info import BookieServiceInfo, Lease
from bookgate.protos.bookkeeper.gateway.v1 import registration_service_pb2 as pb
from bookgate.protos.bookkeeper.gateway.v1.service_discovery_pb2 import Bookie

pytestmark = pytest.mark.asyncio


class Store:
    """A factory and its registrations: each registration waits for `open`."""

    connected = True

    def __init__(self) -> None:
        self.nodes: dict[str, BookieServiceInfo] = {}
        self.calls = 0
        self.open = asyncio.Event()
        self.on_registered: Any = lambda: None

    @property
    def registration_manager(self) -> Store:
        return self

    async def register_bookie(self, info: BookieServiceInfo, *, read_only: bool) -> None:
        self.calls += 1
        await self.open.wait()
        self.nodes[info.bookie_id] = info
        self.on_registered()

    async def unregister_bookie(self, bookie_id: str, lease: Lease | None = None) -> None:
        self.nodes.pop(bookie_id, None)


class Stream:
    """A bookie's stream with the gateway."""

    def __init__(self, service: RegistrationService, epoch: int) -> None:
        self._epoch = epoch
        self._requests: asyncio.Queue[pb.RegisterRequest] = asyncio.Queue()
        self._sequence = 0
        self.answers: list[pb.RegisterResponse] = []
        self.task = asyncio.ensure_future(self._take(service))

    async def _take(self, service: RegistrationService) -> None:
        context: Any = None
        async for answer in service.Register(self._incoming(), context):
            self.answers.append(answer)

    async def _incoming(self) -> AsyncIterator[pb.RegisterRequest]:
        while True:
            yield await self._requests.get()

    def send(self, *, unregister: bool = False) -> None:
        self._sequence += 1
        request = pb.RegisterRequest(sequence=self._sequence, unregister=unregister)
        request.lease.lease_id, request.lease.epoch = "one-life", self._epoch
        if not unregister:
            request.bookie.CopyFrom(Bookie(bookie_id="b:1"))
        self._requests.put_nowait(request)


async def turns() -> None:
    for _ in range(20):
        await asyncio.sleep(0)


async def both_streams(store: Any) -> tuple[RegistrationService, Stream, Stream]:
    """The store is at work for the first one, and the second waits for that."""
    service = RegistrationService(store)
    first, second = Stream(service, 1), Stream(service, 2)
    first.send()
    await turns()
    second.send()
    await turns()
    return service, first, second


async def test_who_leaves_over_the_second_stream_is_gone() -> None:
    store: Any = Store()
    service, first, second = await both_streams(store)
    second.send(unregister=True)
    await turns()
    assert store.calls == 1
    store.open.set()
    await turns()
    assert store.nodes == {}
    assert service.leases == 0
    await asyncio.gather(first.task, second.task)


async def test_a_replaced_stream_starts_no_work() -> None:
    store: Any = Store()
    service, first, second = await both_streams(store)
    store.on_registered = first.send
    store.open.set()
    await turns()
    store.on_registered = lambda: None
    store.nodes.clear()
    first.send()
    await turns()
    assert (store.calls, service.leases) == (2, 1)
    assert first.task.done()
    assert first.answers[-1].message == "the lease is over"
    second.task.cancel()
    await service.close()
