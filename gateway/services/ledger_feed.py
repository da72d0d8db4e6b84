"""One client's stream of changed ledgers: the feed of this gateway's store, passed on in batches.

What is told while a response is on its way waits as one set of ids, however often they change, and a loss of the feed
takes the place of all that was told before. Each response is read after the store's revision was brought up to what it
tells, so that a client that asks any gateway for nothing older reads the change. Errors of the store end the stream.

Not its job: the messages of other calls (`replication`).
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

from bookgate.gateway.services.caller import require_still
from bookgate.ledger.errors import IllegalOpException
from bookgate.ledger.ledger_numbers import LedgerNumbers
from bookgate.ledger.metadata_store import LedgerManagerFactory
from bookgate.ledger.replication_messages import scoped_field
from bookgate.ledger.replication_store import FeedBegan, FeedLost, LedgerFeed, LedgerFeedEvent, LedgersTouched
from bookgate.protos.bookkeeper.gateway.v1 import replication_service_pb2 as pb
from bookgate.runtime.security.actions import Action

_BATCH_SECONDS = 0.02
_MOST_IDS = 100_000
"""In one response; some hundred kilobytes."""


class LedgerFeedStream:
    """See the module. One per call."""

    def __init__(self, factory: LedgerManagerFactory) -> None:
        self._factory = factory
        self._lost = self._began = False
        self._touched = LedgerNumbers()
        self._answered: list[int] = []
        self._news = asyncio.Event()
        self._ended = False

    def end(self) -> None:
        """The gateway is about to stop: the client goes to another one."""
        self._ended = True
        self._news.set()

    async def serve(self, requests: AsyncIterator[pb.WatchLedgersRequest]) -> AsyncIterator[pb.WatchLedgersResponse]:
        """The responses, until the client goes.

        Raises IllegalOpException, AccessDeniedException where the policy has changed, and the store's errors.
        """
        feed = self._factory.replication_metadata.watch_ledgers(self._hear)
        if feed is None:
            raise IllegalOpException("this metadata store can't tell which ledgers change")
        reader = asyncio.get_running_loop().create_task(self._answer(feed, requests))
        reader.add_done_callback(lambda _: self.end())
        try:
            while not self._ended:
                await self._news.wait()
                await asyncio.sleep(_BATCH_SECONDS)
                while (response := self._next()) is not None:
                    require_still(Action.REPLICATION_READ)
                    await self._factory.catch_up(None)
                    response.revision = await self._factory.revision()
                    yield response
            if reader.done() and not reader.cancelled() and (error := reader.exception()) is not None:
                raise error
        finally:
            reader.cancel()
            feed.close()

    def _next(self) -> pb.WatchLedgersResponse | None:
        """Takes what is to be told; None for nothing."""
        self._news.clear()
        if not (self._lost or self._began or self._touched or self._answered):
            return None
        response = pb.WatchLedgersResponse(lost=self._lost, began=self._began, every_scope=self._began)
        self._lost = self._began = False
        for number in self._touched.take_first(_MOST_IDS):
            if (scoped := scoped_field(number)) is None:
                response.ledger_ids.append(number)
            else:
                response.scoped_ledgers.append(scoped)
        if not self._touched:
            response.answered.extend(self._answered)
            self._answered.clear()
        return response

    async def _answer(self, feed: LedgerFeed, requests: AsyncIterator[pb.WatchLedgersRequest]) -> None:
        async for request in requests:
            await feed.catch_up()
            self._answered.append(request.sequence)
            self._news.set()

    def _hear(self, event: LedgerFeedEvent) -> None:
        match event:
            case FeedBegan():
                self._began = True
            case FeedLost():
                self._lost, self._began = True, False
                self._touched.clear()
            case LedgersTouched(ledger_ids):
                self._touched.update(ledger_ids)
        self._news.set()
