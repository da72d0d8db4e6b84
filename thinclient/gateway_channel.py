"""The metadata gateways of one client: balance, failover, and the one layer that repeats calls.

Calls go round robin over the gateways; one that failed is asked last until a short pause is over. A call is repeated,
with exponential back-off and jitter, until its deadline. What may be repeated differs:

* a call that changes nothing is repeated after any failure of transport or store; one gateway that keeps silent gets
  no more than its share of the time, so that the others are asked as well;
* a call that changes something is repeated only when it surely was not carried out: there was no connection, or the
  gateway refused it for lack of room. Otherwise UnknownOutcomeException is raised, and whoever knows what the call
  means may find out.

Not its job: what calls mean (`metadata`, `discovery`).
"""

from __future__ import annotations

import asyncio
import os
import random
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, TypeVar

import grpc
from grpc.aio import AioRpcError, Channel

from ledger.errors import (
    BKException,
    ClientClosedException,
    IllegalOpException,
    IncorrectParameterException,
    MetaStoreException,
    TooManyRequestsException,
    UnauthorizedAccessException,
    UnknownOutcomeException,
)
from protos.bookkeeper.gateway.v1.ledger_metadata_service_pb2_grpc import LedgerMetadataServiceStub
from protos.bookkeeper.gateway.v1.service_discovery_pb2_grpc import ServiceDiscoveryStub

if TYPE_CHECKING:  # the asynchronous faces of the stubs exist for the type checker only
    from protos.bookkeeper.gateway.v1.ledger_metadata_service_pb2_grpc import LedgerMetadataServiceAsyncStub
    from protos.bookkeeper.gateway.v1.service_discovery_pb2_grpc import ServiceDiscoveryAsyncStub

T = TypeVar("T")

_FIRST_PAUSE = 0.05
_LONGEST_PAUSE = 1.0
_CONNECT_TIMEOUT = 2.5
_MAX_MESSAGE = 64 * 1024 * 1024
_OPTIONS = [
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 1000),
    ("grpc.use_local_subchannel_pool", 1),
    ("grpc.max_receive_message_length", _MAX_MESSAGE),
    ("grpc.enable_retries", 0),
    ("grpc.keepalive_time_ms", 30_000),
    ("grpc.keepalive_timeout_ms", 10_000),
]
_REFUSED = grpc.StatusCode.RESOURCE_EXHAUSTED
_TRANSIENT = (
    grpc.StatusCode.UNAVAILABLE,
    grpc.StatusCode.DEADLINE_EXCEEDED,
    grpc.StatusCode.CANCELLED,
    grpc.StatusCode.ABORTED,
    _REFUSED,
)
_DENIED = (grpc.StatusCode.UNAUTHENTICATED, grpc.StatusCode.PERMISSION_DENIED)


def parse_gateways(uri: str) -> tuple[bool, list[str]]:
    """`grpc://host:port,host:port` (or `grpcs://`, or no scheme) as (TLS?, addresses).

    Raises IncorrectParameterException.
    """
    scheme, separator, rest = uri.strip().partition("://")
    if not separator:
        scheme, rest = "grpc", uri.strip()
    if scheme not in ("grpc", "grpcs"):
        raise IncorrectParameterException(
            f"gateway address {uri!r}: scheme {scheme!r} is unknown; it is grpc:// or grpcs://"
        )
    addresses = [address.strip() for address in rest.rstrip("/").split(",") if address.strip()]
    if not addresses:
        raise IncorrectParameterException(f"gateway address {uri!r} names no gateway; write grpc://host:4181,host:4181")
    for address in addresses:
        host, _, port = address.rpartition(":")
        if not host or not port.isdigit() or not 0 < int(port) < 65536:
            raise IncorrectParameterException(f"gateway address {address!r} is not host:port")
    return scheme == "grpcs", list(dict.fromkeys(addresses))


_grpc_process: int | None = None
"""The process that has used gRPC first; None before."""


def _check_process() -> None:
    """gRPC's threads do not survive a fork: a child of a process that has used it would wait for ever."""
    global _grpc_process
    _grpc_process = _grpc_process or os.getpid()
    if _grpc_process != os.getpid():
        raise IllegalOpException(
            f"process {_grpc_process} used gRPC before it forked process {os.getpid()}, which therefore can't; "
            "fork before the first client connects, or start the process with `spawn`"
        )


class Gateway:
    """One gateway: its channel, made on first use, and its stubs."""

    def __init__(self, address: str, tls: bool) -> None:
        self.address = address
        self._tls = tls
        self._channel: Channel | None = None
        self._metadata: LedgerMetadataServiceAsyncStub | None = None
        self._discovery: ServiceDiscoveryAsyncStub | None = None
        self.asked_last_until = 0.0

    @property
    def channel(self) -> Channel:
        if self._channel is None:
            _check_process()
            if self._tls:
                credentials = grpc.ssl_channel_credentials()
                self._channel = grpc.aio.secure_channel(self.address, credentials, options=_OPTIONS)
            else:
                self._channel = grpc.aio.insecure_channel(self.address, options=_OPTIONS)
        return self._channel

    @property
    def metadata(self) -> LedgerMetadataServiceAsyncStub:
        if self._metadata is None:
            self._metadata = LedgerMetadataServiceStub(self.channel)
        return self._metadata

    @property
    def discovery(self) -> ServiceDiscoveryAsyncStub:
        if self._discovery is None:
            self._discovery = ServiceDiscoveryStub(self.channel)
        return self._discovery

    async def connect(self, timeout: float) -> bool:
        """True once there is a connection; False when it is refused or not there in time."""
        channel = self.channel
        state = channel.get_state(try_to_connect=True)
        try:
            async with asyncio.timeout(timeout):
                while state is not grpc.ChannelConnectivity.READY:
                    if state in (grpc.ChannelConnectivity.TRANSIENT_FAILURE, grpc.ChannelConnectivity.SHUTDOWN):
                        return False
                    await channel.wait_for_state_change(state)
                    state = channel.get_state(try_to_connect=True)
        except TimeoutError:
            return False
        return True

    async def close(self) -> None:
        """Ends every call of this channel."""
        if self._channel is not None:
            await self._channel.close()


class Attempts:
    """The attempts of one call: whom to ask next, until the deadline; None for a call that never gives up."""

    def __init__(self, owner: GatewayChannel, what: str, timeout: float | None) -> None:
        self._owner = owner
        self._what = what
        self._loop = asyncio.get_running_loop()
        self._timeout = timeout
        self._deadline = None if timeout is None else self._loop.time() + timeout
        self._pause = _FIRST_PAUSE
        self._round: list[Gateway] = []
        self._errors: dict[str, str] = {}

    @property
    def remaining(self) -> float:
        """Seconds to the deadline."""
        return 3600.0 if self._deadline is None else self._deadline - self._loop.time()

    @property
    def share(self) -> float:
        """Seconds for the gateway at hand, so that those not asked yet in this round get as much."""
        return max(self.remaining / (1 + len(self._round)), 0.001)

    async def next(self) -> Gateway:
        """A gateway with a connection. Raises MetaStoreException, with every address and its error, at the deadline."""
        while True:
            self._owner.check_open()
            if not self._round:
                if self._errors:
                    await self._wait()
                self._round = self._owner.in_order()
            if self.remaining <= 0:
                raise self.exhausted()
            gateway = self._round.pop(0)
            if await gateway.connect(min(self.remaining, _CONNECT_TIMEOUT)):
                return gateway
            self.failed(gateway, "no connection")

    def failed(self, gateway: Gateway, reason: str) -> None:
        """Notes a failed attempt."""
        self._errors[gateway.address] = reason
        gateway.asked_last_until = self._loop.time() + _LONGEST_PAUSE

    def progressed(self) -> None:
        """Something came: time and pauses begin anew."""
        self._pause = _FIRST_PAUSE
        self._errors.clear()
        if self._timeout is not None:
            self._deadline = self._loop.time() + self._timeout

    def exhausted(self) -> BKException:
        """The error of a call whose time is up."""
        errors = "; ".join(f"{address}: {reason}" for address, reason in self._errors.items()) or "no answer"
        within = "" if self._timeout is None else f" within {self._timeout:g} s"
        message = f"no metadata gateway could {self._what}{within} ({errors}). Is one running at these addresses?"
        if self._errors and all(_REFUSED.name in reason for reason in self._errors.values()):
            return TooManyRequestsException(message)
        return MetaStoreException(message)

    async def _wait(self) -> None:
        pause = self._pause * self._owner.rng.uniform(0.5, 1.0)
        self._pause = min(self._pause * 2, _LONGEST_PAUSE)
        if self.remaining <= pause:
            raise self.exhausted()
        await asyncio.sleep(pause)


class GatewayChannel:
    """All gateways that a client knows. Belongs to one event loop."""

    def __init__(self, uri: str, timeout: float, rng: random.Random) -> None:
        tls, addresses = parse_gateways(uri)
        self._gateways = [Gateway(address, tls) for address in addresses]
        self._turn = rng.randrange(len(addresses))
        self._closed = False
        self.timeout = timeout
        self.rng = rng
        self.revision = 0
        """The highest store revision seen: no answer may be older."""

    @property
    def addresses(self) -> Sequence[str]:
        return [gateway.address for gateway in self._gateways]

    def in_order(self) -> list[Gateway]:
        """All gateways: next in turn first, those that failed lately last."""
        self._turn += 1
        start = self._turn % len(self._gateways)
        now = asyncio.get_running_loop().time()
        rotated = self._gateways[start:] + self._gateways[:start]
        return sorted(rotated, key=lambda gateway: gateway.asked_last_until > now)

    def check_open(self) -> None:
        """Raises ClientClosedException once it is closed."""
        if self._closed:
            raise ClientClosedException("the client is closed")

    @contextmanager
    def outstanding(self, what: str) -> Iterator[None]:
        """Around a call: gRPC cancels whoever waits for it when the channel is closed, which is no cancellation."""
        try:
            yield
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if not self._closed or (task is not None and task.cancelling()):
                raise
            raise ClientClosedException(f"the client was closed while a gateway was asked to {what}") from None

    def attempts(self, what: str, timeout: float | None) -> Attempts:
        """The attempts of a call that the caller carries out itself (a stream)."""
        return Attempts(self, what, timeout)

    async def call(self, what: str, invoke: Callable[[Gateway, float], Awaitable[T]], *, changes: bool = False) -> T:
        """Carries out a unary call: `invoke` gets a gateway and the seconds left.

        Raises MetaStoreException when none answers, UnknownOutcomeException when a call that `changes` something was
        sent and its answer lost, UnauthorizedAccessException.
        """
        attempts = Attempts(self, what, self.timeout)
        while True:
            gateway = await attempts.next()
            try:
                with self.outstanding(what):
                    return await invoke(gateway, max(attempts.remaining, 0.001) if changes else attempts.share)
            except AioRpcError as error:
                reason = check_transient(gateway, what, error, changes=changes)
                if changes and error.code() is not _REFUSED:
                    raise UnknownOutcomeException(
                        f"gateway {gateway.address} was asked to {what} and its answer was lost ({reason}); it may or "
                        "may not have happened"
                    ) from error
                attempts.failed(gateway, reason)

    async def close(self) -> None:
        """Closes all channels; calls under way fail."""
        self._closed = True
        for gateway in self._gateways:
            await gateway.close()


def check_transient(gateway: Gateway, what: str, error: AioRpcError, *, changes: bool = False) -> str:
    """The failure in words if asking again may help. Raises the typed error otherwise."""
    reason = f"{error.code().name}: {error.details() or 'no details'}"
    if error.code() in _TRANSIENT:
        return reason
    message = f"gateway {gateway.address} could not {what}: {reason}"
    if error.code() in _DENIED:
        raise UnauthorizedAccessException(message) from error
    if changes and error.code() in (grpc.StatusCode.INTERNAL, grpc.StatusCode.UNKNOWN):
        raise UnknownOutcomeException(f"{message}; it may or may not have happened") from error
    raise MetaStoreException(message) from error


def failure_in_words(gateway: Gateway, what: str, error: AioRpcError) -> str:
    """For what never gives up: also what asking again hardly cures is tried again, after a pause."""
    try:
        return check_transient(gateway, what, error)
    except BKException as permanent:
        return str(permanent)
