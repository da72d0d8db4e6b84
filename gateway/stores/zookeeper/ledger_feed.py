"""The feed of changed ledgers: one watch on all nodes below the ledgers root, as long as there are listeners.

States: unwatched → asked → watched; after each reconnect *asked* again, since the server forgets watches with the
connection, and changes in between were not reported. A server without such watches (before 3.6) is not asked again by
this process, because it may close the connection. If the connection was lost before the response, the next attempt
waits, longer each time, for the same reason.

Nodes below the root that are no ledgers are reported too, and recognised by their paths. If nodes have access control,
a server reports only those that this process may read. Source: docs/protocol/auto-recovery.md#index.
"""

from __future__ import annotations

import asyncio
import logging

from bookgate.gateway.stores.zookeeper.kazoo_thread import TreeListener
from bookgate.gateway.stores.zookeeper.ledger_paths import LedgerPaths
from bookgate.gateway.stores.zookeeper.session import ZooKeeperSession
from bookgate.ledger.errors import BKException, IllegalOpException
from bookgate.runtime.background import keep_running
from bookgate.runtime.ledger_feeds import LedgerFeeds
from bookgate.runtime.logs import log_event

_LOG = logging.getLogger(__name__)

_LONGEST_PAUSE_SECONDS = 600.0


class ZooKeeperLedgerFeed:
    """Used by the manager; the factory reports restored connections."""

    def __init__(self, session: ZooKeeperSession, paths: LedgerPaths) -> None:
        self._session = session
        self._root = paths.root
        self._listener = TreeListener(paths.ledger_id_at, self._changed)
        self.feeds = LedgerFeeds(self._interest_changed, lambda: session.sync(paths.root))
        self._unanswered = 0
        """Attempts since the last response."""
        self._has_none = False
        self._asking: asyncio.Task[None] | None = None

    def reconnected(self) -> None:
        """The watch is gone."""
        self.feeds.lost()
        if len(self.feeds):
            self._interest_changed()

    async def close(self) -> None:
        """Reports nothing any more."""
        self.feeds.clear()
        if self._asking is not None:
            self._asking.cancel()
            await asyncio.gather(self._asking, return_exceptions=True)

    def _changed(self, ledger_id: int) -> None:
        self.feeds.touched((ledger_id,))

    def _interest_changed(self) -> None:
        if self._asking is not None:
            self._asking.cancel()
            self._asking = None
        if not len(self.feeds):
            self._session.unwatch_tree(self._root)
        elif not self._has_none:
            self._asking = keep_running("watch of all ledgers", self._watch)

    async def _watch(self) -> None:
        while True:
            pause = min(2.0**self._unanswered, _LONGEST_PAUSE_SECONDS) if self._unanswered else 0.0
            await asyncio.sleep(pause)
            self._unanswered += 1
            try:
                await self._session.watch_tree(self._root, self._listener)
            except IllegalOpException as error:
                self._has_none = True
                log_event(_LOG, "ledgers_not_watched", logging.WARNING, error=error, note="audits list all ledgers")
                return
            except BKException as error:
                log_event(_LOG, "ledgers_not_watched", logging.WARNING, error=error, note="it is tried again")
                continue
            self._unanswered = 0
            self.feeds.began()
            return
