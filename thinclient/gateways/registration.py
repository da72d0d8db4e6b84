"""Registers a bookie through gateways: the shared `RegistrationManager`, without a metadata store.

A registration is a lease, kept by a stream to one gateway (`registration_stream`, which knows when to leave that
gateway). Each new stream has a higher epoch, which permits the next gateway to take over the registration. If the old
stream is still open, it stays open until the new gateway has the registration (make before break), so discovery always
lists the bookie as long as one gateway works within the rest of the lease. A gateway of another cluster, or one whose
store has no cookie of the bookie, is skipped.

States of a keeper: seeking a gateway → held by a stream → leaving (seeking the next while the stream stays open) → held
…; `unregister` ends it. Only the first registration can fail; later ones are retried for ever.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging

from grpc.aio import AioRpcError

from bookgate.ledger.bookie_info import BookieServiceInfo, Lease, check_bookie_id
from bookgate.ledger.errors import (
    BKException,
    BookieHandleNotAvailableException,
    ClientClosedException,
    IncorrectParameterException,
    LedgerExistException,
    MetadataVersionException,
    MetaStoreException,
)
from bookgate.ledger.metadata_store import Membership, RegistrationManager, ServiceDiscovery, Versioned
from bookgate.protos.bookkeeper.common.v1.status_pb2 import StatusCode
from bookgate.protos.bookkeeper.gateway.v1 import registration_service_pb2 as wire
from bookgate.protos.bookkeeper.gateway.v1 import service_discovery_pb2 as discovery
from bookgate.runtime.background import keep_running
from bookgate.runtime.logs import log_event
from bookgate.thinclient.gateways.channel import Attempts, GatewayChannel
from bookgate.thinclient.gateways.failures import failure_in_words, unasked_cancellations
from bookgate.thinclient.gateways.gateway import Gateway
from bookgate.thinclient.gateways.registration_stream import PATIENCE_LEASES, Refused, RegisterStream

_LOG = logging.getLogger(__name__)

_RETRY_SECONDS = 1.0
_FIRST_PATIENCE_LEASES = 2.0
_FIRST_REGISTRATION_SECONDS = 60.0
"""Limit on the first registration, which may have to wait until an entry of the bookie's previous life expires."""


class _Keeper:
    """Keeps one bookie registered."""

    def __init__(
        self,
        gateways: GatewayChannel,
        lease_id: str,
        info: BookieServiceInfo,
        read_only: bool,
        membership: Membership | None,
    ) -> None:
        self._gateways = gateways
        self._membership = membership
        self._lease_id = lease_id
        self._epoch = 0
        self._wanted = (info, read_only)
        self._stream: RegisterStream | None = None
        self._task: asyncio.Task[None] | None = None
        self._moved = asyncio.Event()

    async def start(self) -> None:
        """Returns once registered, and keeps the registration from then on. Raises BKException."""
        attempts = self._gateways.attempts(f"register bookie {self._wanted[0].bookie_id}", _FIRST_REGISTRATION_SECONDS)
        while self._stream is None:
            try:
                await self._move(await attempts.next(), attempts, _FIRST_PATIENCE_LEASES)
            except Refused as refused:
                if refused.code == StatusCode.BAD_REQUEST:
                    raise IncorrectParameterException(str(refused)) from None
                raise LedgerExistException(str(refused)) from None
        self._task = keep_running("registration at gateways", self._keep)

    async def update(self, info: BookieServiceInfo, read_only: bool) -> None:
        """Registers again with other endpoints, or in the other list. Returns once that is done."""
        self._wanted = (info, read_only)
        async with asyncio.timeout(self._gateways.timeout):
            while True:
                self._moved.clear()
                stream = self._stream
                try:
                    if stream is not None:
                        await stream.change(self._request())
                        return
                except (ConnectionError, Refused) as error:
                    log_event(_LOG, "not_registered", bookie=info.bookie_id, error=error)
                # Repeated on the next stream, which may have begun with the previous request.
                if self._stream is stream:
                    await self._moved.wait()

    async def end(self) -> None:
        """Unregisters the bookie. If no gateway is reachable, the lease expires by itself."""
        await self.stop()
        stream, self._stream = self._stream, None
        if stream is None:
            return
        try:
            with contextlib.suppress(ConnectionError, Refused, TimeoutError):
                async with asyncio.timeout(self._gateways.timeout / 2):
                    await stream.change(wire.RegisterRequest(unregister=True))
        finally:
            stream.close()

    async def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    def _request(self) -> wire.RegisterRequest:
        info, read_only = self._wanted
        endpoints = [
            discovery.Endpoint(
                id=each.id,
                host=each.host,
                port=each.port,
                protocol=each.protocol,
                auth=each.auth,
                extensions=each.extensions,
            )
            for each in info.endpoints
        ]
        bookie = discovery.Bookie(bookie_id=info.bookie_id, endpoints=endpoints, properties=dict(info.properties))
        return wire.RegisterRequest(bookie=bookie, read_only=read_only)

    async def _move(self, gateway: Gateway, attempts: Attempts, patience: float = PATIENCE_LEASES) -> None:
        """Registers at a gateway and leaves the former one. Records a failure. Raises Refused."""
        try:
            with unasked_cancellations():
                await self._verify(gateway)
        except (AioRpcError, BKException) as error:
            words = failure_in_words(gateway, "verify the cluster", error) if isinstance(error, AioRpcError) else error
            attempts.failed(gateway, str(words))
            return
        self._epoch += 1
        sent, first = self._wanted, self._request()
        first.sequence = 1
        first.lease.lease_id, first.lease.epoch = self._lease_id, self._epoch
        stream = RegisterStream(gateway, first, patience)
        try:
            done = (stream.registered, stream.ended)
            await asyncio.wait(done, timeout=attempts.remaining, return_when=asyncio.FIRST_COMPLETED)
            if not stream.registered.done():
                raise ConnectionError(stream.ended.result() if stream.ended.done() else "no time is left")
            stream.registered.result()
            while sent is not self._wanted:
                # The wanted registration changed meanwhile, and may have been sent to the former gateway only.
                sent = self._wanted
                await stream.change(self._request())
        except BaseException as error:
            stream.close()
            if not isinstance(error, ConnectionError):
                raise
            attempts.failed(gateway, str(error))
            return
        attempts.progressed()
        log_event(_LOG, "registered", bookie=self._wanted[0].bookie_id, gateway=gateway.address)
        former, self._stream = self._stream, stream
        if former is not None:
            former.close()
        self._moved.set()

    async def _verify(self, gateway: Gateway) -> None:
        """Raises WrongClusterException if the gateway is of another cluster, or of one without this bookie's cookie."""
        membership, timeout = self._membership, self._gateways.timeout
        if membership is None:
            return
        cluster = await gateway.discovery.GetClusterInfo(discovery.GetClusterInfoRequest(), timeout=timeout)
        request = wire.ReadCookieRequest(bookie_id=membership.bookie_id)
        cookie = await gateway.registration.ReadCookie(request, timeout=timeout)
        _check(cluster.code, cluster.message, "describe the cluster")
        _check(cookie.code, cookie.message, "read the bookie's cookie")
        membership.check(cluster.instance_id, cookie.cookie if cookie.HasField("cookie") else None)

    async def _keep(self) -> None:
        attempts = self._gateways.attempts("keep the bookie registered", None)
        while self._stream is not None:
            stream = self._stream
            # Shielded, because the next waiter needs the result too.
            reason = await asyncio.shield(stream.ended)
            log_event(
                _LOG,
                "gateway_left",
                logging.WARNING,
                bookie=self._wanted[0].bookie_id,
                gateway=stream.gateway.address,
                reason=reason,
            )
            attempts.failed(stream.gateway, reason)
            while self._stream is stream:
                try:
                    await self._move(await attempts.next(), attempts)
                except ClientClosedException:
                    return
                except (Refused, BKException) as error:
                    log_event(
                        _LOG,
                        "not_registered",
                        logging.WARNING,
                        bookie=self._wanted[0].bookie_id,
                        error=error,
                        note="it is tried again",
                    )
                    await asyncio.sleep(_RETRY_SECONDS)


class RpcRegistrationManager(RegistrationManager):
    """The shared interface on top of the gateways' RegistrationService."""

    def __init__(self, gateways: GatewayChannel, service_discovery: ServiceDiscovery) -> None:
        self._gateways = gateways
        self._discovery = service_discovery
        self._lease_id = gateways.rng.randbytes(16).hex()
        self._keepers: dict[str, _Keeper] = {}

    async def cluster_instance_id(self) -> str:
        return (await self._discovery.cluster_info()).instance_id

    async def register_bookie(self, info: BookieServiceInfo, *, read_only: bool) -> None:
        check_bookie_id(info.bookie_id)
        keeper = self._keepers.get(info.bookie_id)
        if keeper is None:
            own = self.membership is not None and self.membership.bookie_id == info.bookie_id
            membership = self.membership if own else None
            keeper = _Keeper(self._gateways, self._lease_id, info, read_only, membership)
            await keeper.start()
            self._keepers[info.bookie_id] = keeper
            return
        try:
            await keeper.update(info, read_only)
        except TimeoutError:
            raise MetaStoreException(
                f"no metadata gateway has registered bookie {info.bookie_id} anew within {self._gateways.timeout:g} s; "
                "it will be tried on"
            ) from None

    async def unregister_bookie(self, bookie_id: str, lease: Lease | None = None) -> None:
        keeper = self._keepers.pop(bookie_id, None)
        if keeper is not None:
            await keeper.end()

    async def is_registered(self, info: BookieServiceInfo, *, read_only: bool) -> bool:
        """Reads discovery, from any gateway."""
        try:
            found = await self._discovery.bookie_service_info(info.bookie_id)
        except BookieHandleNotAvailableException:
            return False
        return found.info == info and (found.writable, found.read_only) == (not read_only, read_only)

    async def read_cookie(self, bookie_id: str) -> Versioned[bytes] | None:
        request = wire.ReadCookieRequest(bookie_id=bookie_id)
        what = f"read the cookie of bookie {bookie_id}"
        response = await self._gateways.call(
            what, lambda gateway, timeout: gateway.registration.ReadCookie(request, timeout=timeout)
        )
        _check(response.code, response.message, what)
        return Versioned(response.cookie, response.version) if response.HasField("cookie") else None

    async def write_cookie(self, bookie_id: str, cookie: bytes, expected_version: int | None) -> None:
        """Writes the cookie. If the response is lost, the stored cookie decides, since only one process holds a bookie
        id.
        """
        what = f"write the cookie of bookie {bookie_id}"
        request = wire.WriteCookieRequest(bookie_id=bookie_id, cookie=cookie)
        if expected_version is not None:
            request.expected_version = expected_version
        response, again = await self._gateways.change_repeatedly(
            what, lambda gateway, timeout: gateway.registration.WriteCookie(request, timeout=timeout)
        )
        if response.code == StatusCode.BAD_VERSION and again:
            stored = await self.read_cookie(bookie_id)
            version = 0 if expected_version is None else expected_version + 1
            if stored == Versioned(cookie, version):
                return
        _check(response.code, response.message, what)

    async def remove_cookie(self, bookie_id: str, expected_version: int) -> None:
        what = f"remove the cookie of bookie {bookie_id}"
        request = wire.RemoveCookieRequest(bookie_id=bookie_id, expected_version=expected_version)
        response, again = await self._gateways.change_repeatedly(
            what, lambda gateway, timeout: gateway.registration.RemoveCookie(request, timeout=timeout)
        )
        if response.code == StatusCode.BAD_VERSION and again and await self.read_cookie(bookie_id) is None:
            return
        _check(response.code, response.message, what)

    async def close(self) -> None:
        """Removes every registration made here."""
        keepers, self._keepers = list(self._keepers.values()), {}
        await asyncio.gather(*(keeper.end() for keeper in keepers), return_exceptions=True)


def _check(code: int, message: str, what: str) -> None:
    if code == StatusCode.SUCCESS:
        return
    if code == StatusCode.BAD_REQUEST:
        raise IncorrectParameterException(message or f"the gateway refused to {what}")
    if code == StatusCode.BAD_VERSION:
        raise MetadataVersionException(message or f"could not {what}: it is not at the expected version")
    raise MetaStoreException(f"the gateway could not {what}: {message or StatusCode.Name(code)}")
