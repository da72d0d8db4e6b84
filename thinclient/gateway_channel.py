"""The metadata gateways of one client: balance, failover, and the one layer that repeats calls.

Calls go round robin over the healthy gateways: those with a connection, and those not tried yet. One that failed is
asked last, for a pause that grows, and then only once it has a connection again, which is made in the background; one
that says that it has lost its store is asked last until it has it back. A gateway that dies without a word (its machine
or its process stands still) is found out by HTTP/2 pings within a second.

A call is repeated, with exponential back-off and jitter, until its deadline. What may be repeated differs:

* a call that changes nothing is repeated after any failure of transport or store. When the answer takes long and
  another gateway has a connection, that one is asked as well, and the first answer counts;
* a call that changes something is repeated only when it surely was not carried out: there was no connection, the
  gateway refused it for lack of room, or says so itself (trailing metadata `bookgate-not-done`). Otherwise
  LostAnswerException is raised, an UnknownOutcomeException, and whoever knows what the call means may find out.

More gateways than the configured ones are learnt from discovery (`gateway_list`); they are asked once they have a
connection. Not its job: what calls mean (`metadata`, `discovery`, `registration`).
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TypeVar

import grpc
from grpc.aio import AioRpcError, Channel, UnaryUnaryCall

from ledger.errors import (
    BKException,
    ClientClosedException,
    MetaStoreException,
    TooManyRequestsException,
    UnauthorizedAccessException,
    UnknownOutcomeException,
)
from protos.bookkeeper.gateway.v1.ledger_metadata_service_pb2_grpc import LedgerMetadataServiceStub
from protos.bookkeeper.gateway.v1.registration_service_pb2_grpc import RegistrationServiceStub
from protos.bookkeeper.gateway.v1.service_discovery_pb2_grpc import ServiceDiscoveryStub
from reporting.logs import log_event
from thinclient.gateway_uri import TlsFiles, parse_gateways
from thinclient.grpc_channels import OpenChannel, open_channel

if TYPE_CHECKING:  # the asynchronous faces of the stubs exist for the type checker only
    from protos.bookkeeper.gateway.v1.ledger_metadata_service_pb2_grpc import LedgerMetadataServiceAsyncStub
    from protos.bookkeeper.gateway.v1.registration_service_pb2_grpc import RegistrationServiceAsyncStub
    from protos.bookkeeper.gateway.v1.service_discovery_pb2_grpc import ServiceDiscoveryAsyncStub

T = TypeVar("T")

_FIRST_PAUSE = 0.05
_LONGEST_PAUSE = 1.0
_LONGEST_ASKED_LAST = 10.0
_CONNECT_TIMEOUT = 2.5
_CONNECT_PATIENCE = 0.4
"""Seconds for a connection while there are other gateways to ask; it is made on in the background."""

_HEDGE_AFTER = 0.4
"""Seconds without an answer after which another gateway is asked as well."""

_MOST_GATEWAYS = 16
"""Gateways that are learnt from discovery only up to so many in all: each is a connection."""

_REFUSED = grpc.StatusCode.RESOURCE_EXHAUSTED
_TRANSIENT = (
    grpc.StatusCode.UNAVAILABLE,
    grpc.StatusCode.DEADLINE_EXCEEDED,
    grpc.StatusCode.CANCELLED,
    grpc.StatusCode.ABORTED,
    _REFUSED,
)
_NOT_DONE = "bookgate-not-done"
"""Key of trailing metadata by which a gateway says that it surely did not carry out a change."""

INSTANCE = "bookgate-instance"
"""Key of trailing metadata by which a gateway process tells its id; callers name the one they mean by it."""

_TELLS_NO_INSTANCE = "none"

_log = logging.getLogger(__name__)

_NEVER_SENT = ("failed to connect to all addresses", "DNS resolution failed")
"""gRPC's own words where a call found no connection."""

_DENIED = (grpc.StatusCode.UNAUTHENTICATED, grpc.StatusCode.PERMISSION_DENIED)


class LostAnswerException(UnknownOutcomeException):
    """A change was sent to a gateway and its answer lost. A gateway that still lives knows the change by its token."""

    def __init__(self, message: str, gateway: Gateway) -> None:
        super().__init__(message)
        self.gateway = gateway


class Gateway:
    """One gateway: its channel, made on first use, and its stubs."""

    def __init__(
        self,
        address: str,
        credentials: grpc.ChannelCredentials | None,
        connector: OpenChannel = open_channel,
        *,
        learnt: bool = False,
    ) -> None:
        self.address = address
        self.learnt = learnt
        """Known from discovery only: perhaps out of this client's reach."""
        self.suspended = False
        """It has lost its metadata store, and said so."""
        self.instance: str | None = None
        """Id of the process that answered last; `none` where it told none, None while nothing was heard."""
        self._credentials = credentials
        self._connector = connector
        self._channel: Channel | None = None
        self._metadata: LedgerMetadataServiceAsyncStub | None = None
        self._discovery: ServiceDiscoveryAsyncStub | None = None
        self._registration: RegistrationServiceAsyncStub | None = None
        self._failures = 0
        self._asked_last_until = 0.0

    @property
    def channel(self) -> Channel:
        if self._channel is None:
            self._channel = self._connector(self.address, self._credentials)
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

    @property
    def registration(self) -> RegistrationServiceAsyncStub:
        if self._registration is None:
            self._registration = RegistrationServiceStub(self.channel)
        return self._registration

    @property
    def connected(self) -> bool:
        return self._channel is not None and self._channel.get_state() is grpc.ChannelConnectivity.READY

    def healthy(self, now: float) -> bool:
        """To be asked in its turn. One that is not for want of a connection gets it made in the background."""
        untried = self._failures == 0 and not self.learnt
        if not untried and not self.connected:
            self.channel.get_state(try_to_connect=True)
            return False
        return self._asked_last_until <= now and not self.suspended

    def failed(self, now: float, reason: str) -> None:
        """Asked last for a while."""
        if not self._failures:
            log_event(_log, "gateway_failed", gateway=self.address, error=reason)
        self._failures += 1
        self._asked_last_until = now + min(_LONGEST_PAUSE * 2 ** (self._failures - 1), _LONGEST_ASKED_LAST)

    def answered(self) -> None:
        if self._failures:
            log_event(_log, "gateway_answers", gateway=self.address, failures=self._failures)
        self._failures = 0
        self._asked_last_until = 0.0

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

    async def answer(self, call: UnaryUnaryCall[Any, T]) -> T:
        """The call's answer, noting which process gave it."""
        try:
            answer = await call
        except AioRpcError as error:
            self.instance = instance_told(error.trailing_metadata()) or self.instance
            raise
        self.instance = instance_told(await call.trailing_metadata()) or _TELLS_NO_INSTANCE
        return answer

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
        self._current: Gateway | None = None

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
            patience = _CONNECT_PATIENCE if self._round else _CONNECT_TIMEOUT
            if gateway.connected or await gateway.connect(min(self.remaining, patience)):
                self._current = gateway
                return gateway
            self.failed(gateway, "no connection")

    def failed(self, gateway: Gateway, reason: str) -> None:
        """Notes a failed attempt."""
        self._errors[gateway.address] = reason
        gateway.failed(self._loop.time(), reason)
        self._owner.trouble.set()

    def progressed(self) -> None:
        """Something came: time and pauses begin anew."""
        self._pause = _FIRST_PAUSE
        self._errors.clear()
        if self._current is not None:
            self._current.answered()
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

    def __init__(
        self,
        uri: str,
        timeout: float,
        rng: random.Random,
        tls: TlsFiles = TlsFiles(),  # noqa: B008 (frozen)
        connector: OpenChannel = open_channel,
    ) -> None:
        """Raises IncorrectParameterException for an address that is none, or TLS files that can't be used."""
        parsed = parse_gateways(uri, tls)
        self._credentials = None if parsed.tls is None else parsed.tls.credentials()
        self._connector = connector
        self._gateways = [Gateway(address, self._credentials, connector) for address in parsed.addresses]
        self._retired: list[Gateway] = []
        self._turn = rng.randrange(len(self._gateways))
        self._closed = False
        self.timeout = timeout
        self.rng = rng
        self.revision = 0
        """The highest store revision seen: no answer may be older."""
        self.trouble = asyncio.Event()
        """Set when a gateway failed: there may be others."""

    @property
    def addresses(self) -> Sequence[str]:
        return [gateway.address for gateway in self._gateways]

    async def learn(self, addresses: Iterable[str]) -> None:
        """Takes over what discovery says: new gateways are tried, learnt ones that it no longer names are left."""
        named = set(addresses)
        if self._closed:
            return
        gone = [gateway for gateway in self._gateways if gateway.learnt and gateway.address not in named]
        self._gateways = [gateway for gateway in self._gateways if gateway not in gone]
        new = sorted(named - set(self.addresses))
        room = max(_MOST_GATEWAYS - len(self._gateways), 0)
        for address in self.rng.sample(new, min(room, len(new))):
            self._gateways.append(Gateway(address, self._credentials, self._connector, learnt=True))
        # Streams on a gateway that is about to stop end by themselves.
        self._retired += gone
        for gateway in [gateway for gateway in self._retired if not gateway.connected]:
            self._retired.remove(gateway)
            await gateway.close()

    def in_order(self) -> list[Gateway]:
        """All gateways: healthy ones first, next in turn at the head."""
        self._turn += 1
        start = self._turn % len(self._gateways)
        now = asyncio.get_running_loop().time()
        rotated = self._gateways[start:] + self._gateways[:start]
        return sorted(rotated, key=lambda gateway: (not gateway.healthy(now), not gateway.connected and gateway.learnt))

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

    async def call(
        self,
        what: str,
        invoke: Callable[[Gateway, float], Awaitable[T]],
        *,
        changes: bool = False,
        only_at: Gateway | None = None,
    ) -> T:
        """Carries out a unary call: `invoke` gets a gateway and the seconds left.

        `only_at` is asked once and no other: the gateway that may have carried out this change already. Whatever comes
        of this attempt, that of the first is not known. Raises MetaStoreException when none answers,
        LostAnswerException when a call that `changes` something was sent and its answer lost,
        UnauthorizedAccessException.
        """
        attempts = Attempts(self, what, self.timeout)
        if changes:
            return await self._change(attempts, what, invoke, only_at)
        return await self._ask(attempts, what, invoke)

    async def _change(
        self,
        attempts: Attempts,
        what: str,
        invoke: Callable[[Gateway, float], Awaitable[T]],
        only_at: Gateway | None,
    ) -> T:
        while True:
            gateway = only_at or await attempts.next()
            try:
                with self.outstanding(what):
                    answer = await invoke(gateway, max(attempts.remaining, 0.001))
            except AioRpcError as error:
                reason = check_transient(gateway, what, error, changes=not surely_not_done(error))
                attempts.failed(gateway, reason)
                if only_at or not surely_not_done(error):
                    raise LostAnswerException(
                        f"gateway {gateway.address} was asked to {what} and its answer was lost ({reason}); it may or "
                        "may not have happened",
                        gateway,
                    ) from error
            else:
                gateway.answered()
                return answer

    async def _ask(self, attempts: Attempts, what: str, invoke: Callable[[Gateway, float], Awaitable[T]]) -> T:
        """A call that changes nothing: the first answer counts."""
        running: dict[asyncio.Future[T], Gateway] = {}
        try:
            while True:
                gateway = self._another(running) if running else await attempts.next()
                if gateway is not None:
                    running[asyncio.ensure_future(invoke(gateway, attempts.share))] = gateway
                patience = _HEDGE_AFTER if len(running) == 1 and len(self._gateways) > 1 else None
                done, _ = await asyncio.wait(running, timeout=patience, return_when=asyncio.FIRST_COMPLETED)
                for call in [call for call in running if call in done]:
                    gateway = running.pop(call)
                    try:
                        with self.outstanding(what):
                            answer = call.result()
                    except AioRpcError as error:
                        attempts.failed(gateway, check_transient(gateway, what, error))
                        continue
                    gateway.answered()
                    for slow in running.values():
                        attempts.failed(slow, "it was slow")
                    return answer
        finally:
            for call in running:
                call.cancel()

    def _another(self, running: dict[asyncio.Future[T], Gateway]) -> Gateway | None:
        """A healthy gateway with a connection that is not being asked; at most two are at a time."""
        if len(running) > 1:
            return None
        now = asyncio.get_running_loop().time()
        asked = set(running.values())
        return next((g for g in self.in_order() if g not in asked and g.connected and g.healthy(now)), None)

    async def close(self) -> None:
        """Closes all channels; calls under way fail."""
        self._closed = True
        for gateway in (*self._gateways, *self._retired):
            await gateway.close()


def instance_told(trailing: Iterable[tuple[str, str | bytes]] | None) -> str | None:
    """The id of the gateway process that sent this trailing metadata, if it told one."""
    return next((str(value) for key, value in trailing or () if key == INSTANCE), None)


def surely_not_done(error: AioRpcError) -> bool:
    """True for a change that the gateway refused, or that never reached it."""
    if error.code() is _REFUSED:
        return True
    if any(key == _NOT_DONE for key, _ in error.trailing_metadata() or ()):
        return True
    details = error.details() or ""
    return error.code() is grpc.StatusCode.UNAVAILABLE and details.startswith(_NEVER_SENT)


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
