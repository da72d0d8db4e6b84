"""Service discovery over RPC: which bookies exist, without a metadata store in the client."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager

from grpc.aio import AioRpcError

from bookgate.ledger.bookie_info import BookieServiceInfo, Endpoint
from bookgate.ledger.errors import (
    BKException,
    BookieHandleNotAvailableException,
    ClientClosedException,
    IncorrectParameterException,
    MetaStoreException,
)
from bookgate.ledger.metadata_store import BookieSet, BookiesListener, ClusterInfo, RegisteredBookie, ServiceDiscovery
from bookgate.protos.bookkeeper.common.v1.status_pb2 import StatusCode
from bookgate.protos.bookkeeper.gateway.v1 import service_discovery_pb2 as wire
from bookgate.runtime.background import keep_running
from bookgate.thinclient.gateways.channel import GatewayChannel
from bookgate.thinclient.gateways.failures import failure_in_words, unasked_cancellations

_log = logging.getLogger(__name__)

_SETS = {
    BookieSet.WRITABLE: wire.BookieSet.WRITABLE,
    BookieSet.READ_ONLY: wire.BookieSet.READ_ONLY,
    BookieSet.ALL: wire.BookieSet.ALL,
}


class NoRevisionException(MetaStoreException):
    """The gateway is older than this client, and does not tell how new its answers are."""


@contextmanager
def may_lack_revision() -> Iterator[None]:
    """Goes on where a gateway that is older than this client tells no revision: both are upgraded in any order."""
    try:
        yield
    except NoRevisionException as error:
        _log.info("%s: what is read may be older than what others have seen", error)


def _check(code: int, message: str, what: str) -> None:
    if code == StatusCode.SUCCESS:
        return
    if code == StatusCode.BAD_REQUEST:
        raise IncorrectParameterException(message or f"the gateway refused to {what}")
    raise MetaStoreException(f"the gateway could not {what}: {message or StatusCode.Name(code)}")


def _bookie(message: wire.Bookie) -> RegisteredBookie:
    endpoints = tuple(
        Endpoint(e.id, e.host, e.port, e.protocol, tuple(e.auth), tuple(e.extensions)) for e in message.endpoints
    )
    # Earlier gateways include the lease.
    info = BookieServiceInfo(message.bookie_id, endpoints, dict(message.properties)).without_lease()
    return RegisteredBookie(info, message.writable, message.read_only)


def bookies_of(messages: Iterable[wire.Bookie]) -> tuple[RegisteredBookie, ...]:
    """Bookies from a gateway's messages, ordered by id."""
    return tuple(sorted(map(_bookie, messages), key=lambda bookie: bookie.bookie_id))


class RpcServiceDiscovery(ServiceDiscovery):
    """The shared interface on top of the gateways' ServiceDiscovery service."""

    def __init__(self, gateways: GatewayChannel) -> None:
        self._gateways = gateways
        self._watches: dict[asyncio.Task[None], None] = {}

    def __repr__(self) -> str:
        return f"<RpcServiceDiscovery by {self._gateways!r}>"

    async def bookies(self, bookie_set: BookieSet) -> Sequence[RegisteredBookie]:
        request = wire.ListBookiesRequest(bookie_set=_SETS[bookie_set])
        response = await self._gateways.call(
            "list bookies",
            lambda gateway, timeout: gateway.answer(gateway.discovery.ListBookies(request, timeout=timeout)),
        )
        _check(response.code, response.message, "list bookies")
        return bookies_of(response.bookies)

    async def bookie_service_info(self, bookie_id: str) -> RegisteredBookie:
        request = wire.GetBookieServiceInfoRequest(bookie_id=bookie_id)
        what = f"look up bookie {bookie_id}"
        response = await self._gateways.call(
            what, lambda gateway, timeout: gateway.discovery.GetBookieServiceInfo(request, timeout=timeout)
        )
        if response.code == StatusCode.SUCCESS:
            return _bookie(response.bookie)
        raise BookieHandleNotAvailableException(response.message or f"bookie {bookie_id} is not registered")

    async def watch_bookies(self, bookie_set: BookieSet, listener: BookiesListener) -> Callable[[], None]:
        task = keep_running("watch of bookies", lambda: self._follow(bookie_set, listener))
        self._watches[task] = None
        task.add_done_callback(self._watches.pop)

        def stop() -> None:
            task.cancel()

        return stop

    async def _follow(self, bookie_set: BookieSet, listener: BookiesListener) -> None:
        """Passes complete sets from a stream to the listener for ever; reopens a broken stream at another gateway."""
        attempts = self._gateways.attempts("watch bookies", None)
        request = wire.WatchBookiesRequest(bookie_set=_SETS[bookie_set])
        while True:
            try:
                gateway = await attempts.next()
            except ClientClosedException:
                return
            reason = "the stream ended"
            try:
                with unasked_cancellations():
                    async for response in gateway.discovery.WatchBookies(request):
                        _check(response.code, response.message, "watch bookies")
                        attempts.progressed()
                        listener(bookies_of(response.bookies))
            except AioRpcError as error:
                reason = failure_in_words(gateway, "watch bookies", error)
            except BKException as error:
                reason = str(error)
            attempts.failed(gateway, reason)

    async def cluster_info(self) -> ClusterInfo:
        response = await self._describe_cluster("describe the cluster", wire.GetClusterInfoRequest())
        return ClusterInfo(response.instance_id, response.ledger_manager, tuple(response.features))

    async def current_revision(self) -> int:
        """A revision of the metadata store that is not older than this call.

        Raises MetaStoreException; NoRevisionException if the gateway is too old to tell.
        """
        what = "catch up with the metadata store"
        response = await self._describe_cluster(what, wire.GetClusterInfoRequest(catch_up=True))
        if not response.HasField("revision"):
            raise NoRevisionException(f"can't {what}: the gateway tells no revision; it is older than this client")
        return response.revision

    async def _describe_cluster(self, what: str, request: wire.GetClusterInfoRequest) -> wire.GetClusterInfoResponse:
        response = await self._gateways.call(
            what, lambda gateway, timeout: gateway.answer(gateway.discovery.GetClusterInfo(request, timeout=timeout))
        )
        _check(response.code, response.message, what)
        return response

    async def close(self) -> None:
        """Ends all watches."""
        for task in list(self._watches):
            task.cancel()
        await asyncio.gather(*self._watches, return_exceptions=True)
