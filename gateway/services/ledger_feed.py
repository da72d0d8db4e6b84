"""One client's stream of changed ledgers: the feed of this gateway's store, forwarded in batches.

Changes during a response collect in one set of ids, however often a ledger changes; a loss of the feed replaces all of
them. The store's revision is brought up to date before each response, so a client that demands this revision from any
gateway reads the change. Errors of the store end the stream.

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
"""Maximum number of ids in one response; some hundred kilobytes."""
_MOST_ANSWERS = 1_000
"""Requests whose answers wait to be sent; a client that does not read is heard no further."""


class LedgerFeedStream:
    """See the module. One per call."""

    def __init__(self, factory: LedgerManagerFactory) -> None:
        self._factory = factory
        self._lost = self._began = False
        self._touched = LedgerNumbers()
        self._answered: list[int] = []
        self._taken = asyncio.Event()
        self._news = asyncio.Event()
        self._ended = False

    def end(self) -> None:
        """Ends the stream because the gateway stops; the client switches to another one."""
        self._ended = True
        self._news.set()

    async def serve(self, requests: AsyncIterator[pb.WatchLedgersRequest]) -> AsyncIterator[pb.WatchLedgersResponse]:
        """Yields the responses until the client leaves.

        Raises IllegalOpException, AccessDeniedException if the policy has changed, and the store's errors.
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
        """Builds the next response from the pending changes; None if there are none."""
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
            self._taken.set()
        return response

    async def _answer(self, feed: LedgerFeed, requests: AsyncIterator[pb.WatchLedgersRequest]) -> None:
        async for request in requests:
            await feed.catch_up()
            self._answered.append(request.sequence)
            self._news.set()
            while len(self._answered) >= _MOST_ANSWERS:
                self._taken.clear()
                await self._taken.wait()

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
