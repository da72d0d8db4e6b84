"""The Watch RPC: client streams on top of the watch hub.

A stream has a reader (requests in) and a writer (responses out). The writer takes from the hub only when the client has
taken the previous responses, so a slow client receives the latest states, not a backlog. The reader pauses while too
many responses are queued that belong to no subscription: rejections and removals. Messages about the stream as a whole
travel beside the responses: BOOKMARK when nothing was sent for a while, SUSPENDED and RESUMED when the store connection
is lost and regained (a slow reader receives only the latest of these), DRAINING at once when the gateway stops. A
request that can't be served gets a response with its status code; the stream continues.

Store listeners follow the hub: after each change of subscriptions, `follow` adds or removes the listener of that
ledger as the hub requires, one operation per ledger at a time.
"""

from __future__ import annotations

import asyncio
import logging
from collections import defaultdict, deque
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import suppress

import grpc

from bookgate.gateway.limits import GatewayLimits
from bookgate.gateway.services.caller import AccessDeniedException, Caller, caller
from bookgate.gateway.services.encoded_responses import EncodedLedger, encode_ledger
from bookgate.gateway.services.freshness import RevisionBarrier
from bookgate.gateway.services.messages import failure, required_ledger_id
from bookgate.gateway.services.status import Context, abort_with
from bookgate.gateway.services.watch_answers import (
    DamagedLedger,
    WatchResponse,
    answer_message,
    may_watch,
    named,
    refusal,
    require_watch,
    view_of_scope,
)
from bookgate.gateway.services.watch_hub import StreamId, TooManySubscriptions, WatchHub
from bookgate.gateway.stores.ledger_listeners import LedgerFollower
from bookgate.ledger.errors import (
    BKException,
    MetadataFormatException,
    MetaStoreException,
    NoSuchLedgerExistsOnMetadataServerException,
)
from bookgate.ledger.ledger_id import LedgerId
from bookgate.ledger.metadata_store import LedgerManagerFactory, LedgerRecord
from bookgate.protos.bookkeeper.gateway.v1.ledger_metadata_service_pb2 import (
    LedgerMetadataRequest,
    LedgerMetadataResponse,
    WatchAction,
    WatchEvent,
)
from bookgate.runtime.logs import log_event
from bookgate.runtime.security.policy import Policy
from bookgate.runtime.security.principal import Principal

_LOG = logging.getLogger(__name__)

BOOKMARK_SECONDS = 10.0
_ANSWERS_A_TURN = 256
_DIRECT_LIMIT = 1000
_LEDGERS_A_TURN = 200
_POLICY_SECONDS = 1.0
"""Maximum seconds until a changed policy applies to existing subscriptions."""


class _Stream:
    """One client's stream: what is to be sent besides the hub's responses, and the event that wakes its writer."""

    def __init__(self) -> None:
        self.caller = caller()
        self.policy = None if self.caller is None else self.caller.policy
        """The policy with which all its subscriptions were checked."""
        self.recorded: Policy | None = None
        """The last policy that ended subscriptions: the audit trail has one line per policy, not per subscription."""
        self.wake = asyncio.Event()
        self.direct: deque[LedgerMetadataResponse] = deque()
        self.taken = asyncio.Event()
        """Set whenever the client has received a response."""
        self.error: Exception | None = None
        self.draining = False
        self.store_event: LedgerMetadataResponse | None = None
        """The latest SUSPENDED or RESUMED that was not sent yet."""
        self.waits_since: float | None = None
        """Loop time since which the client has taken none of the changes waiting for it."""
        self.received = 0
        """Number of requests received."""
        self.handled = 0
        """Number of requests handled: what the hub has for the stream is at least as new as these demand."""

    def say_of_store(self, response: LedgerMetadataResponse) -> None:
        self.store_event = response
        self.wake.set()

    def say(self, response: LedgerMetadataResponse) -> None:
        self.direct.append(response)
        self.wake.set()

    def next_direct(self) -> LedgerMetadataResponse | None:
        if self.store_event is not None:
            event, self.store_event = self.store_event, None
            return event
        return self.direct.popleft() if self.direct else None


class _Listener(LedgerFollower):
    """The store listener of one ledger, shared by all streams of this gateway."""

    __slots__ = ("_ledger_id", "_on_damaged", "_on_state", "epoch", "in_doubt")

    def __init__(
        self,
        ledger_id: LedgerId,
        epoch: int,
        on_state: Callable[[LedgerId, int, LedgerRecord | None], None],
        on_damaged: Callable[[LedgerId, int, MetadataFormatException], None],
    ) -> None:
        self._ledger_id = ledger_id
        self._on_state = on_state
        self._on_damaged = on_damaged
        self.epoch = epoch
        """The hub's period that it serves."""
        self.in_doubt = True
        """Whether the last read failed, or none has ended yet: the known state may be older than the revision of the
        gateway.
        """

    def __call__(self, ledger_id: LedgerId, record: LedgerRecord | None) -> None:
        self._on_state(ledger_id, self.epoch, record)

    def outdated(self) -> None:
        return

    def reading(self) -> None:
        return

    def was_read(self, error: BKException | None, holds: bool) -> None:
        is_damaged = isinstance(error, MetadataFormatException)
        self.in_doubt = error is not None and not is_damaged
        if isinstance(error, MetadataFormatException):
            self._on_damaged(self._ledger_id, self.epoch, error)


class WatchService:
    """All Watch streams of one gateway."""

    def __init__(
        self,
        factory: LedgerManagerFactory,
        bookmark_seconds: float = BOOKMARK_SECONDS,
        limits: GatewayLimits = GatewayLimits(),  # noqa: B008 (a frozen value)
        freshness: RevisionBarrier | None = None,
    ) -> None:
        self._factory = factory
        self._freshness = freshness or RevisionBarrier(factory)
        self._bookmark_seconds = bookmark_seconds
        self.hub = WatchHub(limits.subscriptions_a_stream, limits.subscriptions)
        self._streams: dict[_Stream, None] = {}
        self._of_caller: defaultdict[Principal, dict[_Stream, None]] = defaultdict(dict)
        self._listening: dict[LedgerId, _Listener] = {}
        self._follow_lock = asyncio.Lock()
        self._suspended = False
        self._draining = False
        self._states_told = 0

    @property
    def stream_count(self) -> int:
        return len(self._streams)

    def lag_seconds(self) -> float:
        """Seconds for which the slowest stream has taken none of the changes waiting for it; 0 if nothing waits."""
        waiting = [stream.waits_since for stream in self._streams if stream.waits_since is not None]
        return max(0.0, asyncio.get_running_loop().time() - min(waiting)) if waiting else 0.0

    async def serve(
        self, requests: AsyncIterator[LedgerMetadataRequest], context: Context
    ) -> AsyncIterator[WatchResponse]:
        """Serves one stream until the client leaves, the gateway drains or the store fails a request."""
        stream = _Stream()
        self._streams[stream] = None
        if stream.caller is not None:
            self._of_caller[stream.caller.principal][stream] = None
        self.hub.open_stream(stream)
        stream.draining = self._draining
        if self._suspended:
            stream.say_of_store(LedgerMetadataResponse(event=WatchEvent.SUSPENDED))
        reader = asyncio.get_running_loop().create_task(self._read_requests(stream, requests))
        try:
            async for response in self._responses(stream):
                yield response
                if stream.caller is not None and isinstance(response, bytes):
                    # States that change meanwhile are sent once, in their latest form.
                    await stream.caller.pay("metadata_bytes_per_second", len(response))
            if stream.error is not None:
                raise stream.error
            await context.abort(grpc.StatusCode.UNAVAILABLE, "this gateway is stopping; subscribe at another one")
        except Exception as error:
            await abort_with(context, "Watch", error)
        finally:
            reader.cancel()
            self._streams.pop(stream, None)
            if stream.caller is not None:
                self._leave(stream, stream.caller.principal)
            await asyncio.shield(self._forget(stream))

    def _leave(self, stream: _Stream, principal: Principal) -> None:
        streams = self._of_caller[principal]
        streams.pop(stream, None)
        if not streams:
            del self._of_caller[principal]

    def drain(self) -> None:
        """Asks every client to subscribe elsewhere, then ends the streams."""
        self._draining = True
        for stream in self._streams:
            stream.draining = True
            stream.wake.set()

    def store_lost(self) -> None:
        """Informs every client that changes may be delayed."""
        self._suspended = True
        self._tell_all(LedgerMetadataResponse(event=WatchEvent.SUSPENDED))

    async def store_regained(self) -> None:
        """Catches up with the store, then informs every client."""
        await self._factory.catch_up(None)
        self._suspended = False
        self._tell_all(LedgerMetadataResponse(event=WatchEvent.RESUMED, revision=await self._factory.revision()))

    def _tell_all(self, response: LedgerMetadataResponse) -> None:
        for stream in self._streams:
            stream.say_of_store(response)

    # --- requests in --------------------------------------------------------------------------------------------

    async def _read_requests(self, stream: _Stream, requests: AsyncIterator[LedgerMetadataRequest]) -> None:
        try:
            async for request in requests:
                await self._room(stream)
                stream.received += 1
                await self._handle(stream, request)
        except grpc.RpcError:
            return
        except Exception as error:
            stream.error = error
            stream.wake.set()

    async def _room(self, stream: _Stream) -> None:
        while len(stream.direct) >= _DIRECT_LIMIT or self.hub.removals(stream) >= _DIRECT_LIMIT:
            stream.taken.clear()
            await stream.taken.wait()

    async def _handle(self, stream: _Stream, request: LedgerMetadataRequest) -> None:
        try:
            if request.watch_action == WatchAction.UNSUBSCRIBE:
                ledger_id = required_ledger_id(request)
                self.hub.unsubscribe(stream, ledger_id)
                await self.follow(ledger_id)
            else:
                await self._subscribe(stream, request)
        except TooManySubscriptions as error:
            stream.say(refusal(request, str(error)))
        except MetaStoreException:
            raise
        except BKException as error:
            response = failure(error, named(request))
            response.requests_handled = stream.received
            stream.say(response)

    async def _subscribe(self, stream: _Stream, request: LedgerMetadataRequest) -> None:
        ledger_id = required_ledger_id(request)
        if stream.caller is not None:
            view_of_scope(stream.caller, ledger_id)
            if not self.hub.is_subscribed(stream, ledger_id):
                self._check_room(stream.caller)
        version = request.expected_version if request.HasField("expected_version") else None
        incarnation = request.incarnation if version is not None and request.HasField("incarnation") else None
        read = None
        if request.min_revision:
            read = await self._read_newer(ledger_id, request.min_revision, version, incarnation)
        stream.handled = stream.received
        woken = self.hub.subscribe(stream, ledger_id, version, incarnation, read)
        if read is None:
            self._wake(woken)
        else:
            self._tell(woken)
        try:
            await self.follow(ledger_id)
        except BKException:
            # The store can't hold this id: the client gets the reason, and no subscription.
            self.hub.unsubscribe(stream, ledger_id)
            raise

    def _check_room(self, who: Caller) -> None:
        """Raises TooManySubscriptions if the caller's streams have reached its limit."""
        most = who.most("subscriptions")
        if most is not None and sum(map(self.hub.subscriptions_of, self._of_caller[who.principal])) >= most:
            raise TooManySubscriptions(f"{who.principal} has {most} subscriptions here, its limit")

    async def _read_newer(
        self, ledger_id: LedgerId, min_revision: int, version: int | None, incarnation: int | None
    ) -> EncodedLedger | None:
        """A state of at least `min_revision`, unless that of the hub is. The client has seen `version`, of the ledger
        with `incarnation`.
        """
        await self._freshness.wait_for(min_revision)
        epoch, in_doubt = self.hub.epoch(ledger_id), self._is_in_doubt(ledger_id)
        lags = in_doubt or (version is not None and self.hub.lags(ledger_id, version, incarnation))
        if epoch is None or self.hub.record(ledger_id) is None or not lags:
            return None
        # Either the ledger was recreated under its id, or the listener could not read it yet.
        try:
            record = await self._factory.ledger_manager.read(ledger_id)
        except NoSuchLedgerExistsOnMetadataServerException:
            if in_doubt:
                # The response to this subscription only: the hub's state is too old for it.
                raise
            # The store's listener is about to report the removal to everyone, or already has.
            return None
        except MetadataFormatException as error:
            if in_doubt:
                self._on_damaged(ledger_id, epoch, error)
            return None
        # In a later period the store's listener was asked again, after this read began.
        return encode_ledger(record) if self.hub.epoch(ledger_id) == epoch else None

    def _is_in_doubt(self, ledger_id: LedgerId) -> bool:
        listener = self._listening.get(ledger_id)
        return listener is None or listener.in_doubt

    # --- the policy ---------------------------------------------------------------------------------------------

    async def follow_policy(self) -> None:
        """While it runs, ends subscriptions that a changed policy denies; they may have no event that would do so."""
        while True:
            await asyncio.sleep(_POLICY_SECONDS)
            for stream in [each for each in self._streams if each.caller and each.caller.policy is not each.policy]:
                await self._look_again(stream)

    async def _look_again(self, stream: _Stream) -> None:
        who = stream.caller
        assert who is not None, "streams of nobody are under no policy"
        policy = who.policy
        for number, ledger_id in enumerate(self.hub.subscribed(stream), 1):
            await _give_way(number)
            if len(stream.direct) >= _DIRECT_LIMIT:
                return  # the rest once the client has received some
            record = self.hub.record(ledger_id)
            # A ledger whose state is not yet known is checked once it is known.
            if record is None or not self.hub.is_subscribed(stream, ledger_id) or may_watch(who, record):
                continue
            if stream.recorded is not policy:
                stream.recorded = policy
                with suppress(AccessDeniedException):
                    require_watch(who, record)
            denied = AccessDeniedException(f"{who.principal} may not watch ledger {ledger_id} any more: a new policy")
            stream.say(failure(denied, ledger_id))
            self.hub.unsubscribe(stream, ledger_id)
            await self._stop_following(ledger_id)
        stream.policy = policy

    # --- store listeners ----------------------------------------------------------------------------------------

    async def follow(self, ledger_id: LedgerId) -> None:
        """Adds or removes the store listener of one ledger, as the hub requires now."""
        async with self._follow_lock:
            epoch = self.hub.epoch(ledger_id)
            former = self._listening.get(ledger_id)
            if epoch == (former and former.epoch):
                return
            manager = self._factory.ledger_manager
            if former is not None:
                del self._listening[ledger_id]
                await manager.unregister_listener(ledger_id, former)
            if epoch is not None:
                listener = _Listener(ledger_id, epoch, self._on_state, self._on_damaged)
                await manager.register_listener(ledger_id, listener)
                self._listening[ledger_id] = listener

    async def _forget(self, stream: _Stream) -> None:
        for number, ledger_id in enumerate(self.hub.close_stream(stream), 1):
            await _give_way(number)
            await self._stop_following(ledger_id)

    async def _stop_following(self, ledger_id: LedgerId) -> None:
        try:
            await self.follow(ledger_id)
        except BKException as error:
            log_event(_LOG, "listener_not_removed", logging.WARNING, ledger=ledger_id, error=error)

    def _on_state(self, ledger_id: LedgerId, epoch: int, record: LedgerRecord | None) -> None:
        if self.hub.epoch(ledger_id) != epoch:
            return  # of a former ledger, or nobody wants it any more
        if record is None:
            self._listening.pop(ledger_id, None)
        # Encoded once for all subscribers.
        self._tell(self.hub.state(ledger_id, None if record is None else encode_ledger(record)))

    def _on_damaged(self, ledger_id: LedgerId, epoch: int, error: MetadataFormatException) -> None:
        if self.hub.epoch(ledger_id) == epoch:
            self._tell(self.hub.state(ledger_id, DamagedLedger(ledger_id, error)))

    def _tell(self, streams: Sequence[StreamId]) -> None:
        """Wakes the streams that have something to take since the hub has learnt a state."""
        self._states_told += 1
        self._wake(streams)

    @staticmethod
    def _wake(streams: Sequence[StreamId]) -> None:
        now = asyncio.get_running_loop().time()
        for stream in streams:
            assert isinstance(stream, _Stream)
            if stream.waits_since is None:
                stream.waits_since = now
            stream.wake.set()

    # --- responses out ------------------------------------------------------------------------------------------

    async def _responses(self, stream: _Stream) -> AsyncIterator[WatchResponse]:
        """Yields all responses of one stream, until it has failed or the gateway drains."""
        while True:
            stream.wake.clear()
            if stream.draining:
                yield LedgerMetadataResponse(event=WatchEvent.DRAINING)
                return
            while (response := stream.next_direct()) is not None:
                yield response
                stream.taken.set()
            if self.hub.has_answers(stream):
                async for answer in self._turn(stream):
                    yield answer
                # Without its reader the stream ends though there is more to tell: it would serve no further request.
                if stream.error is None:
                    continue
            stream.waits_since = None
            if stream.error is not None:
                return
            if not await _woken(stream.wake, self._bookmark_seconds) and not self._suspended:
                yield LedgerMetadataResponse(event=WatchEvent.BOOKMARK, revision=await self._factory.revision())

    async def _turn(self, stream: _Stream) -> AsyncIterator[WatchResponse]:
        """Yields some responses, whose revision is read after their states were learnt.

        A client that sends this revision to another gateway therefore gets nothing older there than it has seen here
        (M4).
        """
        loop, told, revision = asyncio.get_running_loop(), -1, 0
        for _ in range(_ANSWERS_A_TURN):
            while told != self._states_told:
                told = self._states_told
                revision = await self._factory.revision()
            answer = self.hub.take(stream)
            if answer is None:
                return
            response, shown = answer_message(answer, revision, stream.handled, stream.caller)
            if not shown:
                # Before the client takes it: by then it may have subscribed anew, and that is another subscription.
                self.hub.unsubscribe(stream, answer.ledger_id)
            if not shown or answer.record is None:
                # Before it as well, and shielded: a stream that ends from here on no longer knows the ledger. A removed
                # one still has its listener in the store if another ledger has its id by now.
                await asyncio.shield(self._stop_following(answer.ledger_id))
            yield response
            stream.taken.set()
            stream.waits_since = loop.time()


async def _give_way(number: int) -> None:
    """Yields to other tasks after some iterations, so that they need not wait for a whole loop."""
    if number % _LEDGERS_A_TURN == 0:
        await asyncio.sleep(0)


async def _woken(wake: asyncio.Event, timeout_seconds: float) -> bool:
    try:
        async with asyncio.timeout(timeout_seconds):
            await wake.wait()
    except TimeoutError:
        return False
    return True
