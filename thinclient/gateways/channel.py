"""The metadata gateways of one client: load balancing, failover, and the layer that repeats single calls.

Calls go round robin over the healthy gateways: those with a connection, and those not tried yet. A gateway that failed,
or reports the loss of its store, is tried last (`gateway`). A gateway that stops responding without closing its
connections (its machine or process is halted) is detected by HTTP/2 pings within a second.

A call is repeated, with exponential back-off and jitter, until its deadline. What may be repeated differs:

* a read is repeated after any failure of transport or store. If the response takes long and another gateway has a
  connection, that one is asked as well, and the first response counts;
* a change is repeated only if it was certainly not carried out: there was no connection, the gateway rejected it for
  lack of capacity, or says so itself (trailing metadata `bookgate-not-done`). Otherwise LostAnswerException is raised,
  an UnknownOutcomeException; callers that know the meaning of the call may determine the outcome.

A channel that `fails_fast` ends a call early while no gateway has ever responded and all reject connections
(`connection_diagnosis`): a wrong address is reported at once. Gateways that have responded before are waited for.

Further gateways are learnt from discovery (`membership`); they are used once they have a connection. Certificate files
that have changed are used for the next connection; if they can't be used, the former ones stay in effect. The
`retry_policy` has the number of repeats and the pauses, also for the layers above, which repeat operations of several
calls.

Not its job: what a failure means (`failures`), what calls mean (`ledger_manager`, `discovery`, `registration`).
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import TypeVar

import grpc
from grpc.aio import AioRpcError

from bookgate.ledger.connection_state import ConnectionListeners, ConnectionState
from bookgate.ledger.errors import (
    BKException,
    ClientClosedException,
    IncorrectParameterException,
    MetaStoreException,
    TooManyRequestsException,
    UnknownOutcomeException,
)
from bookgate.runtime.logs import log_event
from bookgate.runtime.tls.files import LastGood
from bookgate.thinclient.gateways.failures import (
    REFUSED,
    LostAnswerException,
    check_transient,
    surely_not_done,
    unasked_cancellations,
)
from bookgate.thinclient.gateways.gateway import Gateway
from bookgate.thinclient.gateways.grpc_channels import OpenChannel, open_channel
from bookgate.thinclient.gateways.retry_policy import DEFAULT_RETRIES, RetryPolicy, doubling
from bookgate.thinclient.gateways.tokens import TokenSource, may_carry_tokens
from bookgate.thinclient.gateways.uri import ClientTlsFiles, parse_gateways

T = TypeVar("T")

_LOG = logging.getLogger(__name__)
_MOST_GATEWAYS = 16
"""Gateways are added from discovery only up to this total: each is a connection."""
_LOOK_SECONDS = 1.0
"""Minimum seconds between two checks of certificate files."""
_RETIRED_SECONDS = 300.0
"""A gateway that discovery no longer lists is closed after that time. It has no connection for new calls once it
drains, but finishes the calls under way, which a close would cancel.
"""


def _listener_failed(error: Exception) -> None:
    log_event(_LOG, "connection_listener_failed", logging.WARNING, error=repr(error))


class Attempts:
    """The attempts of one call: the gateway to try next, until the deadline; None for a call that never gives up."""

    def __init__(self, owner: GatewayChannel, what: str, timeout: float | None) -> None:
        self._owner = owner
        self._what = what
        self._loop = asyncio.get_running_loop()
        self._timeout = timeout
        self._deadline = None if timeout is None else self._loop.time() + timeout
        self._pauses = owner.pauses()
        self._round: list[Gateway] = []
        self._errors: dict[str, str] = {}
        self._hopeless: set[str] = set()
        self._rounds = 0
        self._current: Gateway | None = None

    @property
    def remaining(self) -> float:
        """Seconds to the deadline."""
        return 3600.0 if self._deadline is None else self._deadline - self._loop.time()

    @property
    def share(self) -> float:
        """Seconds for the current gateway, such that those not tried yet in this round get as much."""
        return max(self.remaining / (1 + len(self._round)), 0.001)

    async def next(self) -> Gateway:
        """A gateway with a connection. At the deadline raises MetaStoreException, with every address and its error."""
        while True:
            self._owner.check_open()
            if not self._round:
                if self._errors:
                    await self._wait()
                self._rounds += 1
                self._round = self._owner.in_order()
            if self.remaining <= 0:
                raise self.exhausted()
            gateway = self._round.pop(0)
            await self._let_rest(gateway)
            retries = self._owner.retries
            # While there are other gateways to try, the connection continues to be established in the background.
            patience = retries.metadata_connect_patience_seconds if self._round else retries.metadata_connect_seconds
            if gateway.connected or await gateway.connect(min(self.remaining, patience)):
                self._current = gateway
                return gateway
            found = await gateway.why_not_connected(self.remaining)
            self.failed(gateway, found.reason, hopeless=found.hopeless)
            if self._is_hopeless():
                raise self.exhausted()

    def _is_hopeless(self) -> bool:
        """Whether a first call must end: all gateways have rejected the connection twice."""
        return (
            self._owner.fails_fast
            and not self._owner.has_answered
            and self._rounds > 1
            and not self._round
            and self._hopeless >= set(self._owner.addresses)
        )

    def failed(self, gateway: Gateway, reason: str, *, hopeless: bool = False) -> None:
        """Records a failed attempt; a hopeless one would fail again unless somebody changes something at the
        gateway.
        """
        self._errors[gateway.address] = reason
        (self._hopeless.add if hopeless else self._hopeless.discard)(gateway.address)
        gateway.failed(self._loop.time(), reason)
        self._owner.noticed()
        self._owner.passed_over += 1
        self._owner.trouble.set()

    def progressed(self) -> None:
        """Data arrived: deadline and back-off start again."""
        self._pauses = self._owner.pauses()
        self._errors.clear()
        if self._current is not None:
            self._owner.answered(self._current)
        if self._timeout is not None:
            self._deadline = self._loop.time() + self._timeout

    def exhausted(self) -> BKException:
        """The error of a call whose deadline has passed."""
        errors = "; ".join(f"{address}: {reason}" for address, reason in self._errors.items()) or "no answer"
        within = "" if self._timeout is None or self._is_hopeless() else f" within {self._timeout:g} s"
        message = f"no metadata gateway could {self._what}{within} ({errors})"
        if self._errors and all(REFUSED.name in reason for reason in self._errors.values()):
            return TooManyRequestsException(message)
        return MetaStoreException(message)

    async def _let_rest(self, gateway: Gateway) -> None:
        """Waits while a gateway accepts no call of this client; resting gateways come last in a round."""
        rest = gateway.rests_until - self._loop.time()
        if rest <= 0:
            return
        pause = rest * self._owner.rng.uniform(1.0, 1.5)
        if self.remaining <= pause:
            raise self.exhausted()
        await asyncio.sleep(pause)

    async def _wait(self) -> None:
        pause = next(self._pauses) * self._owner.rng.uniform(0.5, 1.0)
        if self.remaining <= pause:
            raise self.exhausted()
        await asyncio.sleep(pause)


class GatewayChannel:
    """All gateways known to a client. Belongs to one event loop."""

    def __init__(
        self,
        uri: str,
        timeout: float,
        rng: random.Random,
        tls: ClientTlsFiles = ClientTlsFiles(),  # noqa: B008 (frozen)
        connector: OpenChannel = open_channel,
        retries: RetryPolicy = DEFAULT_RETRIES,
        tokens: TokenSource | None = None,
        *,
        fails_fast: bool = False,
    ) -> None:
        """Raises IncorrectParameterException for an invalid address, unusable TLS files, a token without TLS."""
        parsed = parse_gateways(uri, tls)
        self._certificates = None if parsed.tls is None else LastGood(parsed.tls, parsed.tls.credentials)
        self._next_look = 0.0
        """Loop time of the next check whether certificate files have changed."""
        self._connector = connector
        self._tls = parsed.tls
        self._tokens = tokens if parsed.token_file is None else TokenSource(file=parsed.token_file)
        for address in parsed.addresses:
            if not self._may_be_asked(address):
                raise IncorrectParameterException(
                    f"a token is sent over TLS only: write grpcs:// for {address}, or leave the token out"
                )
        self._retired: dict[Gateway, float] = {}
        """When each was left, in loop time."""
        self._turn = rng.randrange(len(parsed.addresses))
        self._closed = False
        self.timeout = timeout
        self.rng = rng
        self.retries = retries
        self._gateways = [self._gateway(address) for address in parsed.addresses]
        self.revision = 0
        """The highest store revision seen: no response may be older."""
        self.cluster: str | None = None
        """Instance id of the cluster that a bookie belongs to: a listing of another cluster is an error."""
        self.fails_fast = fails_fast
        """Whether a call ends before its deadline when no gateway has ever answered and all turn connections down."""
        self.has_answered = False
        self.connection = ConnectionListeners(_listener_failed)
        self.passed_over = 0
        """Number of times that a gateway was skipped because it failed a call or had no connection."""
        self.trouble = asyncio.Event()
        """Set when a gateway failed: discovery may know others."""

    def _may_be_asked(self, address: str) -> bool:
        return self._tokens is None or may_carry_tokens(address, tls=self._tls is not None)

    def _gateway(self, address: str, *, learnt: bool = False) -> Gateway:
        return Gateway(
            address,
            None if self._certificates is None else self._certificates.value,
            self._connector,
            self.retries,
            learnt=learnt,
            tls=self._tls,
            tokens=self._tokens,
        )

    def __repr__(self) -> str:
        return f"<GatewayChannel to {', '.join(self.addresses)}>"

    @property
    def addresses(self) -> Sequence[str]:
        return [gateway.address for gateway in self._gateways]

    @property
    def ready(self) -> int:
        """Number of gateways that take their regular turn."""
        now = asyncio.get_running_loop().time()
        return sum(each.healthy(now) for each in self._gateways)

    def answered(self, gateway: Gateway) -> None:
        """Records that a gateway has responded."""
        gateway.answered()
        self.has_answered = True
        self.connection.become(ConnectionState.CONNECTED)

    def noticed(self) -> None:
        """Records that a gateway has failed."""
        if all(gateway.has_failed for gateway in self._gateways):
            self.connection.become(ConnectionState.SUSPENDED)

    def pauses(self) -> Iterator[float]:
        """Seconds to wait after each round in which every gateway failed."""
        return doubling(self.retries.metadata_first_pause_seconds, self.retries.metadata_longest_pause_seconds)

    async def learn(self, addresses: Iterable[str]) -> None:
        """Applies the addresses that discovery returned: adds new gateways, drops discovered ones that it no longer
        lists.
        """
        named = set(addresses)
        if self._closed:
            return
        gone = [gateway for gateway in self._gateways if gateway.learnt and gateway.address not in named]
        self._gateways = [gateway for gateway in self._gateways if gateway not in gone]
        new = sorted(filter(self._may_be_asked, named - set(self.addresses)))
        room = max(_MOST_GATEWAYS - len(self._gateways), 0)
        for address in self.rng.sample(new, min(room, len(new))):
            self._gateways.append(self._gateway(address, learnt=True))
        now = asyncio.get_running_loop().time()
        self._retired |= dict.fromkeys(gone, now)
        for gateway, since in list(self._retired.items()):
            if now - since >= _RETIRED_SECONDS and not gateway.connected:
                del self._retired[gateway]
                await gateway.close()

    def _renew(self, now: float) -> None:
        """Begins a gateway without a connection anew if the certificate files have changed since: its channel would
        connect with the former ones for ever.
        """
        if self._certificates is None or all(gateway.connected for gateway in self._gateways):
            return
        if now >= self._next_look:
            self._next_look = now + _LOOK_SECONDS
            self._certificates.refresh()
        for index, gateway in enumerate(self._gateways):
            if gateway.credentials is not self._certificates.value and not gateway.connected:
                self._gateways[index] = self._gateway(gateway.address, learnt=gateway.learnt)
                self._retired[gateway] = now

    def in_order(self) -> list[Gateway]:
        """All gateways: healthy ones first, the next one in turn at the head."""
        now = asyncio.get_running_loop().time()
        self._renew(now)
        self._turn += 1
        start = self._turn % len(self._gateways)
        rotated = self._gateways[start:] + self._gateways[:start]
        return sorted(rotated, key=lambda gateway: (not gateway.healthy(now), not gateway.connected and gateway.learnt))

    def check_open(self) -> None:
        """Raises ClientClosedException if the channel is closed."""
        if self._closed:
            raise ClientClosedException("the client is closed")

    @contextmanager
    def outstanding(self, what: str) -> Iterator[None]:
        """Wraps a call: one that gRPC cancels is not a cancellation of its caller, but a failure of transport, or the
        end of this client.
        """
        try:
            with unasked_cancellations():
                yield
        except AioRpcError as error:
            if not self._closed or error.code() is not grpc.StatusCode.CANCELLED:
                raise
            raise ClientClosedException(f"the client was closed while a gateway was asked to {what}") from None

    def attempts(self, what: str, timeout: float | None) -> Attempts:
        """The attempts of a call that the caller makes itself (a stream)."""
        return Attempts(self, what, timeout)

    async def call(
        self,
        what: str,
        invoke: Callable[[Gateway, float], Awaitable[T]],
        *,
        changes: bool = False,
        only_at: Gateway | None = None,
    ) -> T:
        """Makes a unary call.

        Args:
            what: The operation, for messages.
            invoke: Called with a gateway and the seconds left.
            changes: The call is a change, which is not repeated if it may have been carried out.
            only_at: Send to this gateway only, once. It is used to resend a change whose response was lost; if the
                resend fails, the outcome of the first attempt is still unknown.

        Returns:
            The response.

        Raises:
            MetaStoreException: No gateway responds.
            LostAnswerException: A call with `changes` was sent and its response lost.
            UnauthorizedAccessException: The gateway denies access.
        """
        attempts = Attempts(self, what, self.timeout)
        if changes:
            return await self._change(attempts, what, invoke, only_at)
        return await self._ask(attempts, what, invoke)

    async def change_repeatedly(self, what: str, invoke: Callable[[Gateway, float], Awaitable[T]]) -> tuple[T, bool]:
        """Makes a change that may be resent after its response was lost, because the caller can recognise its own
        change.

        Returns:
            The response, and whether an earlier attempt may have been carried out.

        Raises:
            BKException: Of the first attempt, as `call` does.
            UnknownOutcomeException: A later attempt failed.
        """
        for attempt in range(self.retries.metadata_change_attempts):
            try:
                return await self.call(what, invoke, changes=True), attempt > 0
            except UnknownOutcomeException as error:
                lost = error
            except BKException as error:
                # This attempt did nothing, whatever the reason; the outcome of an earlier attempt is still unknown.
                if attempt == 0:
                    raise
                raise UnknownOutcomeException(f"{lost}; {error}") from error
        raise lost

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
                self.answered(gateway)
                return answer

    async def _ask(self, attempts: Attempts, what: str, invoke: Callable[[Gateway, float], Awaitable[T]]) -> T:
        """A call that changes nothing: the first response counts."""
        running: dict[asyncio.Future[T], Gateway] = {}
        try:
            while True:
                gateway = self._another(running) if running else await attempts.next()
                if gateway is not None:
                    running[asyncio.ensure_future(invoke(gateway, attempts.share))] = gateway
                may_hedge = len(running) == 1 and len(self._gateways) > 1
                patience = self.retries.metadata_hedge_seconds if may_hedge else None
                done, _ = await asyncio.wait(running, timeout=patience, return_when=asyncio.FIRST_COMPLETED)
                for call in [call for call in running if call in done]:
                    gateway = running.pop(call)
                    try:
                        with self.outstanding(what):
                            answer = call.result()
                    except AioRpcError as error:
                        attempts.failed(gateway, check_transient(gateway, what, error))
                        continue
                    self.answered(gateway)
                    for slow in running.values():
                        attempts.failed(slow, "it was slow")
                    return answer
        finally:
            for call in running:
                call.cancel()

    def _another(self, running: dict[asyncio.Future[T], Gateway]) -> Gateway | None:
        """A healthy gateway with a connection that is not in use for this call; at most two are at a time."""
        if len(running) > 1:
            return None
        now = asyncio.get_running_loop().time()
        asked = set(running.values())
        return next((g for g in self.in_order() if g not in asked and g.connected and g.healthy(now)), None)

    async def close(self) -> None:
        """Closes all channels; calls in progress fail."""
        self._closed = True
        self.connection.become(ConnectionState.CLOSED)
        for gateway in (*self._gateways, *self._retired):
            await gateway.close()
