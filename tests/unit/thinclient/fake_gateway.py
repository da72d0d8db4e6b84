"""A gateway in memory behind real gRPC, with faults: lost answers, refusals, streams that break off."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import grpc

from bookgate.ledger.errors import (
    LedgerExistException,
    MetadataVersionException,
    NoSuchLedgerExistsOnMetadataServerException,
)
from bookgate.ledger.id_set import encode_ids
from bookgate.ledger.ledger_id import LedgerId
from bookgate.ledger.metadata import LedgerMetadata
from bookgate.ledger.metadata_codec import from_format, to_format
from bookgate.ledger.metadata_store import LedgerRecord
from bookgate.protos.bookkeeper.common.v1.status_pb2 import StatusCode
from bookgate.protos.bookkeeper.gateway.v1 import ledger_metadata_service_pb2 as wire
from bookgate.protos.bookkeeper.gateway.v1 import ledger_metadata_service_pb2_grpc as wire_grpc
from bookgate.protos.bookkeeper.gateway.v1 import service_discovery_pb2 as discovery
from bookgate.protos.bookkeeper.gateway.v1 import service_discovery_pb2_grpc as discovery_grpc
from bookgate.thinclient.gateways.factory import RpcLedgerManagerFactory
from bookgate.thinclient.gateways.ledger_manager import RpcLedgerManager
from bookgate.thinclient.gateways.parallel_listing import DEFAULT_SIZES, ListingSizes
from bookgate.thinclient.gateways.retry_policy import DEFAULT_RETRIES, RetryPolicy
from tests.unit.thinclient.fakes import InMemoryLedgerManager

METADATA = LedgerMetadata.new(["a", "b", "c"], 3, 2, password=b"planted-p", custom_metadata={"k": b"v"})
SEVEN = LedgerId.unscoped(7)

Context = grpc.aio.ServicerContext[Any, Any]

_CODES = {
    LedgerExistException: StatusCode.LEDGER_EXISTS,
    MetadataVersionException: StatusCode.BAD_VERSION,
    NoSuchLedgerExistsOnMetadataServerException: StatusCode.LEDGER_NOT_FOUND,
}


_NOT_DONE = (("bookgate-not-done", "1"),)


class FakeGateway(wire_grpc.LedgerMetadataServiceServicer, discovery_grpc.ServiceDiscoveryServicer):
    """One gateway; several may share a store."""

    def __init__(self, store: InMemoryLedgerManager) -> None:
        self.store = store
        self.calls: list[str] = []
        self.called = asyncio.Event()
        self.requests: list[object] = []
        self.lose_answers = 0
        """So many changes are carried out and answered with UNAVAILABLE."""
        self.tokens: dict[bytes, wire.LedgerMetadataResponse] = {}
        """What was answered to a creation."""
        self.forget_tokens = False
        """As a gateway that keeps none."""
        self.instance: str | None = None
        """Told with the answers to creations and reads; None: a gateway older than that."""
        self.named: list[str | bytes | None] = []
        """Which process each creation was meant for."""
        self.on_create: Callable[[], None] = lambda: None
        self.on_lost: Callable[[], None] = lambda: None
        """When the answer to a creation gets lost."""
        self.not_done = False
        """What is refused is marked as surely not done."""
        self.endpoints: list[discovery.Endpoint] = []
        """Further ones of the bookie that is listed."""
        self.refuse: grpc.StatusCode | None = None
        """Every call ends with this status and nothing is done."""
        self.silent = False
        """Calls are taken in and not answered, or once they are `released`."""
        self.released = asyncio.Event()
        self.revision = 0
        """Stands in answers that report a failure."""
        self.page_size = 2
        self.break_after_pages: int | None = None
        self.forget_end = False
        self.stand_still = False
        """A listing that breaks off keeps silent instead."""
        self.watch_requests: list[wire.LedgerMetadataRequest] = []
        self.watches: list[asyncio.Queue[wire.LedgerMetadataResponse | None]] = []
        self.watch_started = asyncio.Event()
        self.refused_watches: list[Any] = []
        """What the next subscriptions are refused with."""
        self.watches_stay = False
        """Watches of bookies do not end after the first set."""
        self.address = ""
        self._server: grpc.aio.Server | None = None

    async def start(self) -> None:
        self._server = grpc.aio.server()
        wire_grpc.add_LedgerMetadataServiceServicer_to_server(self, self._server)
        discovery_grpc.add_ServiceDiscoveryServicer_to_server(self, self._server)
        port = self._server.add_insecure_port(self.address or "127.0.0.1:0")
        self.address = self.address or f"127.0.0.1:{port}"
        await self._server.start()

    def start_anew(self, instance: str) -> None:
        """As another process at this address."""
        self.instance = instance
        self.tokens.clear()

    async def stop(self, grace_seconds: float | None = None) -> None:
        if self._server is not None:
            await self._server.stop(grace_seconds)
            self._server = None

    async def note(self, name: str, request: object, context: Context) -> None:
        self.calls.append(name)
        self.called.set()
        self.requests.append(request)
        if self.refuse is not None:
            if self.not_done:
                context.set_trailing_metadata(_NOT_DONE)
            await context.abort(self.refuse, "refused by the test")
        if self.silent:
            await self.released.wait()
        if self.instance is not None:
            context.set_trailing_metadata((("bookgate-instance", self.instance),))

    async def _answer(
        self, change: Awaitable[LedgerRecord | None], context: Context | None
    ) -> wire.LedgerMetadataResponse:
        try:
            record = await change
        except tuple(_CODES) as error:
            return wire.LedgerMetadataResponse(code=_CODES[type(error)], message=str(error), revision=self.revision)
        if self.lose_answers and context is not None:
            self.lose_answers -= 1
            await context.abort(grpc.StatusCode.UNAVAILABLE, "answer lost")
        return response_of(record) if record is not None else wire.LedgerMetadataResponse()

    async def Create(self, request: wire.LedgerMetadataRequest, context: Context) -> wire.LedgerMetadataResponse:
        await self._check_named("Create", request, context)
        if request.request_token not in self.tokens:
            self.tokens[request.request_token] = await self._create(request)
        answer = self.tokens[request.request_token]
        if self.forget_tokens:
            self.tokens.clear()
        await self._lose(context)
        return answer

    async def _check_named(self, name: str, request: object, context: Context) -> None:
        await self.note(name, request, context)
        self.named.append(dict(context.invocation_metadata() or ()).get("bookgate-instance"))
        if self.instance is not None and self.named[-1] not in (None, self.instance):
            await context.abort(grpc.StatusCode.FAILED_PRECONDITION, "another instance", _NOT_DONE)

    async def _create(self, request: wire.LedgerMetadataRequest) -> wire.LedgerMetadataResponse:
        self.on_create()
        ledger_id = ledger_id_of(request) if request.HasField("ledger_id") else None
        return await self._answer(self.store.create(ledger_id, from_format(request.metadata)), None)

    async def _lose(self, context: Context) -> None:
        if self.lose_answers:
            self.lose_answers -= 1
            self.on_lost()
            await context.abort(grpc.StatusCode.UNAVAILABLE, "answer lost")

    async def Read(self, request: wire.LedgerMetadataRequest, context: Context) -> wire.LedgerMetadataResponse:
        await self.note("Read", request, context)
        return await self._answer(self.store.read(ledger_id_of(request)), None)

    async def Write(self, request: wire.LedgerMetadataRequest, context: Context) -> wire.LedgerMetadataResponse:
        await self.note("Write", request, context)
        metadata = from_format(request.metadata)
        return await self._answer(self.store.write(ledger_id_of(request), metadata, request.expected_version), context)

    async def Remove(self, request: wire.LedgerMetadataRequest, context: Context) -> wire.LedgerMetadataResponse:
        await self.note("Remove", request, context)
        return await self._answer(self.store.remove(ledger_id_of(request)), context)

    async def ListScopes(self, request: wire.ListScopesRequest, context: Context) -> wire.ListScopesResponse:
        await self.note("ListScopes", request, context)
        found = sorted({each.scope_id for each in self.store.records if each.scope_id > request.start_after})
        return wire.ListScopesResponse(scope_ids=found, end=True)

    async def BatchCreate(self, request: wire.BatchCreateRequest, context: Context) -> wire.BatchCreateResponse:
        await self._check_named("BatchCreate", request, context)
        responses = []
        for each in request.requests:
            if each.request_token not in self.tokens:
                self.tokens[each.request_token] = await self._create(each)
            responses.append(self.tokens[each.request_token])
        if self.forget_tokens:
            self.tokens.clear()
        await self._lose(context)
        return wire.BatchCreateResponse(responses=responses)

    async def Iterate(
        self, request: wire.GetLedgerRangesRequest, context: Context
    ) -> AsyncIterator[wire.GetLedgerRangesResponse]:
        await self.note("Iterate", request, context)
        ids = sorted(i.low for i in self.store.records)
        if request.HasField("start_after"):
            ids = [i for i in ids if i > request.start_after]
        if request.HasField("end_before"):
            ids = [i for i in ids if i < request.end_before]
        size = request.limit_per_response or self.page_size
        pages = [ids[i : i + size] for i in range(0, len(ids), size)] or [[]]
        for number, page in enumerate(pages):
            if self.break_after_pages is not None and number >= self.break_after_pages:
                if self.stand_still:
                    await asyncio.Event().wait()
                await context.abort(grpc.StatusCode.UNAVAILABLE, "broke off")
            records = [self.store.records[LedgerId.unscoped(i)] for i in page]
            yield wire.GetLedgerRangesResponse(
                count=len(page),
                serialized_ranges=encode_ids(page),
                last_ledger_id=page[-1] if page else 0,
                end=number == len(pages) - 1 and not self.forget_end,
                ledgers=[response_of(record) for record in records] if request.include_metadata else [],
            )

    async def BatchRead(
        self, request: wire.BatchReadRequest, context: Context
    ) -> AsyncIterator[wire.LedgerMetadataResponse]:
        await self.note("BatchRead", request, context)
        for number, ledger_id in enumerate(request.ledger_ids):
            if self.break_after_pages is not None and number >= self.break_after_pages:
                await context.abort(grpc.StatusCode.UNAVAILABLE, "broke off")
            response = await self._answer(self.store.read(LedgerId(request.ledger_scope_id, ledger_id)), None)
            response.ledger_id, response.ledger_scope_id = ledger_id, request.ledger_scope_id
            yield response

    async def Watch(
        self, request_iterator: AsyncIterator[wire.LedgerMetadataRequest], context: Context
    ) -> AsyncIterator[wire.LedgerMetadataResponse]:
        queue: asyncio.Queue[wire.LedgerMetadataResponse | None] = asyncio.Queue()
        self.watches.append(queue)
        self.watch_started.set()

        async def take() -> None:
            async for request in request_iterator:
                self.watch_requests.append(request)
                record = self.store.records.get(ledger_id_of(request))
                subscribed = request.watch_action == wire.WatchAction.SUBSCRIBE
                if subscribed and self.refused_watches:
                    code = self.refused_watches.pop(0)
                    ledger_id, scope_id = request.ledger_id, request.ledger_scope_id
                    queue.put_nowait(
                        wire.LedgerMetadataResponse(
                            code=code, ledger_id=ledger_id, ledger_scope_id=scope_id, message="refused by the test"
                        )
                    )
                    continue
                known = request.expected_version if request.HasField("expected_version") else None
                if subscribed and record is not None and record.version != known:
                    queue.put_nowait(response_of(record))

        taking = asyncio.ensure_future(take())
        try:
            while (response := await queue.get()) is not None:
                yield response
        finally:
            taking.cancel()

    async def ListBookies(
        self, request: discovery.ListBookiesRequest, context: Context
    ) -> discovery.ListBookiesResponse:
        await self.note("ListBookies", request, context)
        bookie = discovery.Bookie()
        bookie.CopyFrom(BOOKIE)
        bookie.endpoints.extend(self.endpoints)
        return discovery.ListBookiesResponse(bookies=[bookie])

    async def GetBookieServiceInfo(
        self, request: discovery.GetBookieServiceInfoRequest, context: Context
    ) -> discovery.GetBookieServiceInfoResponse:
        await self.note("GetBookieServiceInfo", request, context)
        if request.bookie_id != BOOKIE.bookie_id:
            return discovery.GetBookieServiceInfoResponse(code=StatusCode.UNEXPECTED, message="not registered")
        return discovery.GetBookieServiceInfoResponse(bookie=BOOKIE)

    async def WatchBookies(
        self, request: discovery.WatchBookiesRequest, context: Context
    ) -> AsyncIterator[discovery.WatchBookiesResponse]:
        await self.note("WatchBookies", request, context)
        yield discovery.WatchBookiesResponse(bookies=[BOOKIE], revision=len(self.calls))
        if self.watches_stay:
            await asyncio.Event().wait()

    async def GetClusterInfo(
        self, request: discovery.GetClusterInfoRequest, context: Context
    ) -> discovery.GetClusterInfoResponse:
        await self.note("GetClusterInfo", request, context)
        return discovery.GetClusterInfoResponse(
            instance_id="instance",
            ledger_manager="hierarchical",
            features=["f"],
            revision=self.revision if request.catch_up and self.revision else None,
        )


BOOKIE = discovery.Bookie(
    bookie_id="alpha",
    endpoints=[discovery.Endpoint(id="bookie", host="127.0.0.1", port=3181, protocol="bookie-rpc")],
    properties={"rack": "r1"},
    writable=True,
)


def ledger_id_of(request: wire.LedgerMetadataRequest) -> LedgerId:
    return LedgerId(request.ledger_scope_id, request.ledger_id)


def response_of(record: LedgerRecord) -> wire.LedgerMetadataResponse:
    return wire.LedgerMetadataResponse(
        ledger_id=record.ledger_id.low,
        ledger_scope_id=record.ledger_id.scope_id,
        version=record.version,
        metadata=to_format(record.metadata),
    )


@asynccontextmanager
async def fake_gateways(count: int = 1) -> AsyncIterator[tuple[str, list[FakeGateway]]]:
    """Gateways over one store, and their client address."""
    store = InMemoryLedgerManager()
    gateways = [FakeGateway(store) for _ in range(count)]
    for gateway in gateways:
        await gateway.start()
    try:
        yield "grpc://" + ",".join(gateway.address for gateway in gateways), gateways
    finally:
        for gateway in gateways:
            await gateway.stop()


@asynccontextmanager
async def connected(
    count: int = 1,
    timeout: float = 10,
    retries: RetryPolicy = DEFAULT_RETRIES,
    sizes: ListingSizes = DEFAULT_SIZES,
) -> AsyncIterator[tuple[RpcLedgerManager, list[FakeGateway]]]:
    """A client's ledger manager, and the gateways that it knows."""
    async with fake_gateways(count) as (uri, gateways):
        factory = RpcLedgerManagerFactory(uri, timeout, random.Random(1), retries=retries, sizes=sizes)
        try:
            yield factory.ledger_manager, gateways
        finally:
            await factory.close()
