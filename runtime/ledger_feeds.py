"""Listeners to changes of ledgers, for any store.

States of the feed: lost ⇄ running. The store calls `began` once it is notified of every change, and `lost` when it may
miss one. A listener added while the feed runs is notified of that soon, and of no change before.

Not its job: how a store is notified of changes.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection
from dataclasses import dataclass

from bookgate.ledger.replication_store import (
    FeedBegan,
    FeedLost,
    LedgerFeed,
    LedgerFeedEvent,
    LedgerFeedListener,
    LedgersTouched,
)
from bookgate.runtime.logs import log_bug

_LOG = logging.getLogger(__name__)


@dataclass(slots=True, eq=False)
class _Feed(LedgerFeed):
    feeds: LedgerFeeds
    listener: LedgerFeedListener
    notified_began: bool = False

    async def catch_up(self) -> None:
        await self.feeds.catch_up()

    def close(self) -> None:
        self.feeds.remove(self)

    def tell(self, event: LedgerFeedEvent) -> None:
        try:
            self.listener(event)
        except Exception as error:
            log_bug(_LOG, "ledger_feed_listener_failed", error)


class LedgerFeeds:
    """The listeners of one store. Belongs to one event loop."""

    def __init__(self, interest_changed: Callable[[], None], catch_up: Callable[[], Awaitable[None]]) -> None:
        """Args:
        interest_changed: Called when the first listener is added and the last one removed.
        catch_up: Returns when everything that had changed at its call was reported here.
        """
        self._interest_changed = interest_changed
        self.catch_up = catch_up
        self._feeds: dict[_Feed, None] = {}
        self._running = False

    def __len__(self) -> int:
        return len(self._feeds)

    def add(self, listener: LedgerFeedListener) -> LedgerFeed:
        """Creates a feed; `close` removes it."""
        feed = _Feed(self, listener)
        self._feeds[feed] = None
        asyncio.get_running_loop().call_soon(self._notify_began)
        if len(self._feeds) == 1:
            self._interest_changed()
        return feed

    def remove(self, feed: _Feed) -> None:
        if feed in self._feeds:
            del self._feeds[feed]
            if not self._feeds:
                self._running = False
                self._interest_changed()

    def clear(self) -> None:
        """Removes all listeners without calling them."""
        self._feeds.clear()
        self._running = False

    def began(self) -> None:
        """Every change from now on will be reported."""
        self._running = bool(self._feeds)
        self._notify_began()

    def lost(self) -> None:
        """Changes may be missed. No effect if the feed does not run."""
        self._running = False
        for feed in list(self._feeds):
            if feed.notified_began:
                feed.notified_began = False
                feed.tell(FeedLost())

    def touched(self, ledger_ids: Collection[int]) -> None:
        """These ledgers may have changed."""
        for feed in list(self._feeds):
            if feed.notified_began:
                feed.tell(LedgersTouched(ledger_ids))

    def _notify_began(self) -> None:
        for feed in list(self._feeds):
            if self._running and not feed.notified_began:
                feed.notified_began = True
                feed.tell(FeedBegan())
