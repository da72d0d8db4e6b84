"""The ServiceDiscovery service: gRPC on top of the store's `ServiceDiscovery`.

WatchBookies always sends complete sets, the latest one whenever the client can take more. Its revision numbers this
gateway's own responses, so it is comparable only within one gateway.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from typing import NamedTuple

import grpc

from bookgate.gateway.services.caller import require_still
from bookgate.gateway.services.messages import bookie_message, bookie_messages
from bookgate.gateway.services.status import Context, abort_with
from bookgate.ledger.bookie_info import check_stored_bookie_id
from bookgate.ledger.errors import BookieHandleNotAvailableException, IncorrectParameterException
from bookgate.ledger.metadata_store import BookieSet, LedgerManagerFactory, RegisteredBookie
from bookgate.protos.bookkeeper.common.v1.status_pb2 import StatusCode
from bookgate.protos.bookkeeper.gateway.v1 import service_discovery_pb2 as pb
from bookgate.protos.bookkeeper.gateway.v1.service_discovery_pb2_grpc import ServiceDiscoveryServicer
from bookgate.runtime.security.actions import Action

_SETS = {
    pb.BookieSet.WRITABLE: BookieSet.WRITABLE,
    pb.BookieSet.READ_ONLY: BookieSet.READ_ONLY,
    pb.BookieSet.ALL: BookieSet.ALL,
}


class _BookieStream:
    """The latest set that one WatchBookies stream has not sent yet."""

    def __init__(self) -> None:
        self.wake = asyncio.Event()
        self.latest: Sequence[RegisteredBookie] | None = None
        self.draining = False

    def put(self, bookies: Sequence[RegisteredBookie]) -> None:
        self.latest = bookies
        self.wake.set()

    def end(self) -> None:
        self.draining = True
        self.wake.set()


class _Messages(NamedTuple):
    """A set as it is sent. All clients ask for the same few sets, which seldom change."""

    bookies: Sequence[RegisteredBookie]
    messages: list[pb.Bookie]


class DiscoveryService(ServiceDiscoveryServicer):
    """The service; see the module. One per gateway."""

    def __init__(self, factory: LedgerManagerFactory) -> None:
        self._factory = factory
        self._streams: dict[_BookieStream, None] = {}
        self._revision = 0
        self._messages: dict[BookieSet, _Messages] = {}
        self._draining = False

    @property
    def stream_count(self) -> int:
        return len(self._streams)

    # The generated base class names the methods as the proto file does.
    # ruff: noqa: N802

    async def ListBookies(self, request: pb.ListBookiesRequest, context: Context) -> pb.ListBookiesResponse:
        bookie_set = _SETS.get(request.bookie_set)
        if bookie_set is None:
            return pb.ListBookiesResponse(code=StatusCode.BAD_REQUEST, message=_unknown_set(request.bookie_set))
        try:
            bookies = await self._factory.service_discovery.bookies(bookie_set)
        except Exception as error:
            return await abort_with(context, "ListBookies", error)
        return pb.ListBookiesResponse(
            code=StatusCode.SUCCESS, bookies=self._encoded(bookie_set, bookies), revision=self._next_revision()
        )

    async def WatchBookies(
        self, request: pb.WatchBookiesRequest, context: Context
    ) -> AsyncIterator[pb.WatchBookiesResponse]:
        bookie_set = _SETS.get(request.bookie_set)
        if bookie_set is None:
            yield pb.WatchBookiesResponse(code=StatusCode.BAD_REQUEST, message=_unknown_set(request.bookie_set))
            return
        stream = _BookieStream()
        stream.draining = self._draining
        self._streams[stream] = None
        stop_watching = None
        try:
            stop_watching = await self._factory.service_discovery.watch_bookies(bookie_set, stream.put)
            async for response in self._sets(bookie_set, stream):
                require_still(Action.DISCOVERY_READ)
                yield response
            await context.abort(grpc.StatusCode.UNAVAILABLE, "this gateway is stopping; watch at another one")
        except Exception as error:
            await abort_with(context, "WatchBookies", error)
        finally:
            self._streams.pop(stream, None)
            if stop_watching is not None:
                stop_watching()

    async def GetBookieServiceInfo(
        self, request: pb.GetBookieServiceInfoRequest, context: Context
    ) -> pb.GetBookieServiceInfoResponse:
        if not request.bookie_id:
            return pb.GetBookieServiceInfoResponse(code=StatusCode.BAD_REQUEST, message="bookie_id is missing")
        try:
            # The id becomes a part of a node's path: `readonly/…` would be another bookie's registration.
            check_stored_bookie_id(request.bookie_id)
            bookie = await self._factory.service_discovery.bookie_service_info(request.bookie_id)
        except IncorrectParameterException as error:
            return pb.GetBookieServiceInfoResponse(code=StatusCode.BAD_REQUEST, message=str(error))
        except BookieHandleNotAvailableException as error:
            return pb.GetBookieServiceInfoResponse(code=StatusCode.UNEXPECTED, message=str(error))
        except Exception as error:
            return await abort_with(context, "GetBookieServiceInfo", error)
        return pb.GetBookieServiceInfoResponse(code=StatusCode.SUCCESS, bookie=bookie_message(bookie))

    async def GetClusterInfo(self, request: pb.GetClusterInfoRequest, context: Context) -> pb.GetClusterInfoResponse:
        try:
            info = await self._factory.service_discovery.cluster_info()
            revision = await self._caught_up() if request.catch_up else None
        except Exception as error:
            return await abort_with(context, "GetClusterInfo", error)
        return pb.GetClusterInfoResponse(
            code=StatusCode.SUCCESS,
            instance_id=info.instance_id,
            ledger_manager=info.ledger_manager,
            features=info.features,
            revision=revision,
        )

    async def _caught_up(self) -> int:
        await self._factory.catch_up(None)
        return await self._factory.revision()

    def drain(self) -> None:
        """Ends every WatchBookies stream."""
        self._draining = True
        for stream in self._streams:
            stream.end()

    def _encoded(self, bookie_set: BookieSet, bookies: Sequence[RegisteredBookie]) -> list[pb.Bookie]:
        kept = self._messages.get(bookie_set)
        if kept is None or kept.bookies != bookies:
            kept = self._messages[bookie_set] = _Messages(bookies, bookie_messages(bookies))
        return kept.messages

    async def _sets(self, bookie_set: BookieSet, stream: _BookieStream) -> AsyncIterator[pb.WatchBookiesResponse]:
        while not stream.draining:
            await stream.wake.wait()
            stream.wake.clear()
            bookies, stream.latest = stream.latest, None
            if bookies is not None:
                yield pb.WatchBookiesResponse(
                    code=StatusCode.SUCCESS,
                    bookies=self._encoded(bookie_set, bookies),
                    revision=self._next_revision(),
                )

    def _next_revision(self) -> int:
        self._revision += 1
        return self._revision


def _unknown_set(number: int) -> str:
    return f"there is no set of bookies with number {number}"
