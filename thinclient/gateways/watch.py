"""Watching ledgers: all watches of a client share one stream to one gateway.

The stream exists while there is a listener. When it breaks, is silent for longer than the gateway's bookmarks allow, or
the gateway drains, the client subscribes at another gateway from the versions seen last, so that no state is missed and
none is delivered twice (M3). A listener receives only the latest record, in growing versions, and a removal exactly
once.

A gateway may refuse a subscription, by its policy or its limits, also one that it had accepted. Listeners are told
nothing of that: it is logged once, and the client asks again, after pauses that grow, until the gateway has told of the
ledger or nobody listens any more.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass

from grpc.aio import AioRpcError

from bookgate.ledger.errors import BKException, ClientClosedException
from bookgate.ledger.ledger_id import LedgerId
from bookgate.ledger.metadata_store import LedgerMetadataListener, LedgerRecord
from bookgate.protos.bookkeeper.common.v1.status_pb2 import StatusCode
from bookgate.protos.bookkeeper.gateway.v1 import ledger_metadata_service_pb2 as wire
from bookgate.runtime.background import keep_running
from bookgate.runtime.logs import log_event
from bookgate.thinclient.gateways.channel import GatewayChannel
from bookgate.thinclient.gateways.failures import failure_in_words, unasked_cancellations
from bookgate.thinclient.gateways.gateway import Gateway
from bookgate.thinclient.gateways.messages import code_error, record_of, scoped
from bookgate.thinclient.gateways.retry_policy import doubling

_LOG = logging.getLogger(__name__)

_LONGEST_SILENCE = 25.0
"""Seconds; a gateway sends a bookmark at least every 10."""
_FIRST_PAUSE, _LONGEST_PAUSE = 1.0, 60.0
"""Seconds between two requests for a ledger that a gateway refuses."""
_TOLD = (StatusCode.SUCCESS, StatusCode.LEDGER_NOT_FOUND, StatusCode.LEDGER_METADATA_ERROR)
"""Codes of a subscription that the gateway serves; any other refuses it."""

_Outgoing = asyncio.Queue[wire.LedgerMetadataRequest | None]


@dataclass(slots=True, eq=False)
class _Listening:
    """A listener, and what it may be told."""

    listener: LedgerMetadataListener
    since: int
    """The store revision that its client had seen when it was added."""
    request: int
    """The number on the stream of the last request that asked for it."""
    told: LedgerRecord | None = None
    """What it received last."""

    def awaits(self, response: wire.LedgerMetadataResponse) -> bool:
        """Whether the response may be told: one sent before the gateway had the request may be older than what the
        client has seen.
        """
        if response.requests_handled:
            return response.requests_handled >= self.request
        return self.since <= response.revision  # an older gateway: what it sent later may still be older


@dataclass(slots=True)
class _Refusal:
    """A ledger whose watch is refused."""

    pauses: Iterator[float]
    timer: asyncio.TimerHandle | None = None
    """Until the next request."""


class MetadataWatch:
    """The listeners of one client."""

    def __init__(self, gateways: GatewayChannel) -> None:
        self._gateways = gateways
        self._loop = asyncio.get_running_loop()
        self._listeners: dict[LedgerId, list[_Listening]] = {}
        self._refusals: dict[LedgerId, _Refusal] = {}
        self._outgoing: _Outgoing = asyncio.Queue()
        self._requested = 0
        """Number of requests on the current stream."""
        self._task: asyncio.Task[None] | None = None

    def add(self, ledger_id: LedgerId, listener: LedgerMetadataListener) -> None:
        """The listener receives the current state soon, then every change."""
        # Even if the ledger has other listeners: this client may have seen a newer state elsewhere than they received.
        added = _Listening(listener, self._gateways.revision, self._requested + 1)
        self._listeners.setdefault(ledger_id, []).append(added)
        self._request(self._subscription(ledger_id))
        if self._task is None:
            self._task = keep_running("watch of ledgers", self._run)

    def remove(self, ledger_id: LedgerId, listener: LedgerMetadataListener) -> None:
        """Removes a listener; an unknown one is ignored."""
        listeners = self._listeners.get(ledger_id, [])
        found = next((each for each in listeners if each.listener == listener), None)
        if found is not None:
            listeners.remove(found)
            if not listeners:
                self._unsubscribe(ledger_id)
        if not self._listeners and self._task is not None:
            self._task.cancel()
            self._task = None

    async def close(self) -> None:
        """Ends the stream; listeners receive nothing more."""
        for ledger_id in list(self._listeners):
            self._forget(ledger_id)
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    async def _run(self) -> None:
        attempts = self._gateways.attempts("watch ledgers", None)
        while True:
            try:
                gateway = await attempts.next()
            except ClientClosedException:
                return
            reason = "the stream ended"
            try:
                with unasked_cancellations():
                    async for response in self._responses(gateway):
                        attempts.progressed()
                        _note_health(gateway, response.event)
                        if response.event == wire.WatchEvent.DRAINING:
                            reason = "it is about to stop"
                            break
                        self._take(response)
            except TimeoutError:
                reason = f"silent for {_LONGEST_SILENCE:g} s"
            except AioRpcError as error:
                reason = failure_in_words(gateway, "watch ledgers", error)
            gateway.suspended = False
            attempts.failed(gateway, reason)

    async def _responses(self, gateway: Gateway) -> AsyncIterator[wire.LedgerMetadataResponse]:
        outgoing = self._outgoing = asyncio.Queue()
        self._requested = 0
        for ledger_id, listeners in self._listeners.items():
            self._request(self._subscription(ledger_id))
            for each in listeners:
                each.request = self._requested
        call = gateway.metadata.Watch(self._requests(self._outgoing))
        stream = aiter(call)
        try:
            while True:
                try:
                    async with asyncio.timeout(_LONGEST_SILENCE):
                        response = await anext(stream)
                except StopAsyncIteration:
                    return
                yield response
        finally:
            call.cancel()
            # gRPC's task that sends the requests outlives a stream that the gateway has ended.
            outgoing.put_nowait(None)

    @staticmethod
    async def _requests(queue: _Outgoing) -> AsyncIterator[wire.LedgerMetadataRequest]:
        while (request := await queue.get()) is not None:
            yield request

    def _request(self, request: wire.LedgerMetadataRequest) -> None:
        self._requested += 1
        self._outgoing.put_nowait(request)

    def _subscription(self, ledger_id: LedgerId) -> wire.LedgerMetadataRequest:
        """Requests the current state if a listener has received nothing yet, or another ledger than the others, else
        only states newer than the oldest that one of them has received.
        """
        request = scoped(wire.LedgerMetadataRequest(min_revision=self._gateways.revision), ledger_id)
        listeners = self._listeners.get(ledger_id, ())
        told = [each.told for each in listeners if each.told is not None]
        if told and len(told) == len(listeners) and len({each.incarnation for each in told}) == 1:
            known = min(told, key=lambda each: each.version)
            request.expected_version = known.version
            if known.incarnation is not None:
                request.incarnation = known.incarnation
        return request

    def _take(self, response: wire.LedgerMetadataResponse) -> None:
        self._gateways.revision = max(self._gateways.revision, response.revision)
        if response.event not in (wire.WatchEvent.STATE, wire.WatchEvent.REMOVED):
            return
        ledger_id = LedgerId(response.ledger_scope_id, response.ledger_id)
        if response.code in _TOLD:
            # The timer, if it runs, is for a listener that this response may not be told to.
            self._refusals.pop(ledger_id, None)
        if response.code == StatusCode.LEDGER_NOT_FOUND:
            self._take_removal(ledger_id, response)
        elif response.code == StatusCode.SUCCESS:
            try:
                record = record_of(response)
            except BKException:
                return  # damaged metadata of one ledger: nothing to report, and other ledgers must not suffer
            self._take_record(record, response)
        elif response.code == StatusCode.LEDGER_METADATA_ERROR:
            # Listeners receive records only; the next one that can be parsed will be delivered.
            log_event(_LOG, "watched_ledger_damaged", logging.WARNING, ledger=ledger_id, error=response.message)
        elif ledger_id in self._listeners:
            self._take_refusal(ledger_id, response)

    def _take_refusal(self, ledger_id: LedgerId, response: wire.LedgerMetadataResponse) -> None:
        """Asks again after a pause: a policy may change, and others may leave room."""
        refusal = self._refusals.get(ledger_id)
        if refusal is None:
            error = code_error(response.code, response.message, "watch it")
            log_event(_LOG, "watch_refused", logging.WARNING, ledger=ledger_id, error=error)
            refusal = self._refusals[ledger_id] = _Refusal(doubling(_FIRST_PAUSE, _LONGEST_PAUSE))
        if refusal.timer is None:
            pause = next(refusal.pauses) * self._gateways.rng.uniform(0.5, 1.0)
            refusal.timer = self._loop.call_later(pause, self._ask_again, ledger_id, refusal)

    def _ask_again(self, ledger_id: LedgerId, refusal: _Refusal) -> None:
        refusal.timer = None
        if ledger_id in self._listeners:
            self._request(self._subscription(ledger_id))

    def _take_removal(self, ledger_id: LedgerId, response: wire.LedgerMetadataResponse) -> None:
        """A listener whose request the gateway had not handled hears the response to that: the client may have seen
        the ledger since. Of older gateways nobody knows, and every listener is told.
        """
        listeners = self._listeners.get(ledger_id, [])
        told = [each for each in listeners if not response.requests_handled or each.awaits(response)]
        left = [each for each in listeners if each not in told]
        if left:
            self._listeners[ledger_id] = left
        else:
            self._forget(ledger_id)
        for each in told:
            self._tell(ledger_id, each.listener, None)

    def _take_record(self, record: LedgerRecord, response: wire.LedgerMetadataResponse) -> None:
        """Who knows a former ledger of this id hears of its removal, which the gateway tells nobody who subscribes
        without a version: another listener of this client may have.
        """
        listeners = self._listeners.get(record.ledger_id)
        if listeners is None:
            return
        for each in list(listeners):
            if each not in listeners or not each.awaits(response):
                continue
            if each.told is not None and record.is_another(each.told):
                listeners.remove(each)
                self._tell(record.ledger_id, each.listener, None)
            elif each.told is None or each.told.version < record.version:
                each.told = record
                self._tell(record.ledger_id, each.listener, record)
        if not listeners and self._listeners.get(record.ledger_id) is listeners:
            self._unsubscribe(record.ledger_id)

    def _tell(self, ledger_id: LedgerId, listener: LedgerMetadataListener, record: LedgerRecord | None) -> None:
        try:
            listener(ledger_id, record)
        except Exception as error:  # the stream serves other listeners too
            message = f"a listener of ledger {ledger_id} failed"
            self._loop.call_exception_handler({"message": message, "exception": error})

    def _unsubscribe(self, ledger_id: LedgerId) -> None:
        self._forget(ledger_id)
        self._request(scoped(wire.LedgerMetadataRequest(watch_action=wire.WatchAction.UNSUBSCRIBE), ledger_id))

    def _forget(self, ledger_id: LedgerId) -> None:
        refusal = self._refusals.pop(ledger_id, None)
        if refusal is not None and refusal.timer is not None:
            refusal.timer.cancel()
        self._listeners.pop(ledger_id, None)


def _note_health(gateway: Gateway, event: wire.WatchEvent) -> None:
    """A gateway without its store is asked last until it has it back."""
    if event == wire.WatchEvent.SUSPENDED:
        gateway.suspended = True
    elif event == wire.WatchEvent.RESUMED:
        gateway.suspended = False
