"""The feed of changed ledgers through gateways: one stream to one gateway, as long as there are listeners.

States: no stream ⇄ a stream, which reports when the feed of the gateway's store has begun and when it is lost. When the
stream ends, or does not respond in time, the feed is lost, and another stream is opened at another gateway. A gateway
whose store has no feed, or that is too old to know the call, is not asked again for a while: the next one may have a
feed.

Not its job: reading the reported ledgers (`ledger_manager`), which reads nothing older than what was reported here.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator

import grpc
from grpc.aio import AioRpcError

from bookgate.ledger.errors import ClientClosedException, MetaStoreException
from bookgate.ledger.replication_messages import number_in_scope
from bookgate.protos.bookkeeper.common.v1.status_pb2 import StatusCode
from bookgate.protos.bookkeeper.gateway.v1 import replication_service_pb2 as wire
from bookgate.runtime.background import keep_running
from bookgate.runtime.ledger_feeds import LedgerFeeds
from bookgate.runtime.logs import log_event
from bookgate.thinclient.gateways.channel import GatewayChannel
from bookgate.thinclient.gateways.failures import failure_in_words, unasked_cancellations
from bookgate.thinclient.gateways.gateway import Gateway

_LOG = logging.getLogger(__name__)

_WHAT = "watch all ledgers"
_NO_FEED_PAUSE_SECONDS = 60.0


class _NoFeedError(Exception):
    """The gateway can't report which ledgers change."""


class RpcLedgerFeed:
    """See the module."""

    def __init__(self, gateways: GatewayChannel) -> None:
        self._gateways = gateways
        self.feeds = LedgerFeeds(self._interest_changed, self._catch_up)
        self._stream: _Stream | None = None
        self._said = False
        self._task: asyncio.Task[None] | None = None

    async def close(self) -> None:
        """Reports nothing any more."""
        self.feeds.clear()
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    def _interest_changed(self) -> None:
        if self._task is not None:
            self._task.cancel()
            self._task = None
        if len(self.feeds):
            self._task = keep_running("feed of ledgers", self._follow)

    async def _catch_up(self) -> None:
        """Raises MetaStoreException."""
        stream = self._stream
        if stream is None:
            raise MetaStoreException(f"no metadata gateway is asked to {_WHAT}")
        try:
            async with asyncio.timeout(self._gateways.timeout):
                await stream.catch_up()
        except TimeoutError:
            stream.end()
            raise MetaStoreException(
                f"gateway {stream.gateway.address} did not answer within {self._gateways.timeout:g} s"
            ) from None

    async def _follow(self) -> None:
        attempts = self._gateways.attempts(_WHAT, None)
        while True:
            try:
                gateway = await attempts.next()
            except ClientClosedException:
                return
            self._stream = stream = _Stream(gateway, self._gateways, self.feeds)
            reason, has_none = "the stream ended", False
            try:
                await stream.run()
            except AioRpcError as error:
                reason = failure_in_words(gateway, _WHAT, error)
                has_none = error.code() is grpc.StatusCode.UNIMPLEMENTED
            except _NoFeedError as error:
                reason, has_none = str(error), True
            finally:
                self._stream = None
                stream.end()
                self.feeds.lost()
            if has_none:
                await self._without_feed(gateway, reason)
                continue
            if stream.told:
                attempts.progressed()
            attempts.failed(gateway, reason)

    async def _without_feed(self, gateway: Gateway, reason: str) -> None:
        """Skips the gateway for the feed only: it serves all other calls like any other gateway."""
        if not self._said:
            self._said = True
            log_event(_LOG, "gateway_without_ledger_feed", logging.WARNING, gateway=gateway.address, reason=reason)
        await asyncio.sleep(_NO_FEED_PAUSE_SECONDS)


class _Stream:
    """One stream. It reports changes in the order of their arrival."""

    def __init__(self, gateway: Gateway, gateways: GatewayChannel, feeds: LedgerFeeds) -> None:
        self.gateway = gateway
        self._gateways = gateways
        self._feeds = feeds
        self.told = False
        """The gateway has sent something."""
        self._waiting: dict[int, asyncio.Future[None]] = {}
        self._sequence = 0
        self._requests: asyncio.Queue[wire.WatchLedgersRequest | None] = asyncio.Queue()
        self._call: grpc.aio.StreamStreamCall[wire.WatchLedgersRequest, wire.WatchLedgersResponse] | None = None

    async def run(self) -> None:
        """Returns when the stream has ended. Raises AioRpcError, _NoFeedError."""
        self._call = call = self.gateway.replication.WatchLedgers(self._sent())
        try:
            with unasked_cancellations():
                async for response in call:
                    if response.code == StatusCode.ILLEGAL_OPERATION:
                        raise _NoFeedError(response.message)
                    if response.code != StatusCode.SUCCESS:
                        return
                    self._take(response)
        finally:
            call.cancel()

    def end(self) -> None:
        """Ends the stream; waiting callers get an error."""
        self._requests.put_nowait(None)
        if self._call is not None:
            self._call.cancel()
        waiting, self._waiting = list(self._waiting.values()), {}
        for each in waiting:
            if not each.done():
                each.set_exception(MetaStoreException(f"the stream from gateway {self.gateway.address} has ended"))

    async def catch_up(self) -> None:
        """Returns when all earlier changes were reported."""
        self._sequence += 1
        number, answer = self._sequence, asyncio.get_running_loop().create_future()
        self._waiting[number] = answer
        self._requests.put_nowait(wire.WatchLedgersRequest(sequence=number))
        try:
            await answer
        finally:
            self._waiting.pop(number, None)

    async def _sent(self) -> AsyncIterator[wire.WatchLedgersRequest]:
        while (request := await self._requests.get()) is not None:
            yield request

    def _take(self, response: wire.WatchLedgersResponse) -> None:
        self.told = True
        self._gateways.revision = max(self._gateways.revision, response.revision)
        if response.lost:
            self._feeds.lost()
        if response.began:
            if not response.every_scope:
                raise _NoFeedError("it is older, and does not tell of ledgers with a scope")
            self._feeds.began()
        if response.ledger_ids or response.scoped_ledgers:
            self._feeds.touched([*response.ledger_ids, *map(number_in_scope, response.scoped_ledgers)])
        for number in response.answered:
            answer = self._waiting.pop(number, None)
            if answer is not None and not answer.done():
                answer.set_result(None)
