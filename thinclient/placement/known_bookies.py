"""The writable bookies as a client knows them: placement chooses from this set without a call each time.

States: *unasked* until the first choice; *asked*, while the watch begun by this choice has delivered nothing yet: all
concurrent choices share one call; *told*, from the watch's first delivery on: its latest set is used. The set may lag
by the delivery time of updates, and while no gateway is reachable; a chosen bookie that is gone is replaced by an
ensemble change. If the set is insufficient for a choice, the choice is repeated with a set read from discovery (`ask`).

Not its job: the choice (`chooser`), restarting a broken watch (service discovery does).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

from bookgate.ledger.errors import ClientClosedException
from bookgate.ledger.metadata_store import BookieSet, RegisteredBookie, ServiceDiscovery


class KnownBookies:
    """The known bookies; see the module. Belongs to one event loop."""

    def __init__(self, discovery: ServiceDiscovery) -> None:
        self._discovery = discovery
        self._told: Sequence[RegisteredBookie] | None = None
        self._asking: asyncio.Task[Sequence[RegisteredBookie]] | None = None
        self._stop_watching: Callable[[], None] | None = None
        self._closed = False

    @property
    def told(self) -> Sequence[RegisteredBookie] | None:
        """The set that the watch delivered last; None before the first."""
        return self._told

    async def ask(self) -> Sequence[RegisteredBookie]:
        """Reads the set from discovery; concurrent callers share one call. Raises its BKException."""
        if self._closed:
            raise ClientClosedException("the client is closed")
        if self._asking is None:
            self._asking = asyncio.get_running_loop().create_task(self._ask())
            self._asking.add_done_callback(self._asked)
        try:
            return await asyncio.shield(self._asking)
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if not self._closed or (task is not None and task.cancelling()):
                raise
            raise ClientClosedException("the client was closed while service discovery was asked for bookies") from None

    async def close(self) -> None:
        """Ends the watch; waiting callers get ClientClosedException."""
        self._closed = True
        if self._asking is not None:
            self._asking.cancel()
            await asyncio.gather(self._asking, return_exceptions=True)
        if self._stop_watching is not None:
            self._stop_watching()

    async def _ask(self) -> Sequence[RegisteredBookie]:
        if self._stop_watching is None:
            self._stop_watching = await self._discovery.watch_bookies(BookieSet.WRITABLE, self._tell)
        return await self._discovery.bookies(BookieSet.WRITABLE)

    def _asked(self, asking: asyncio.Task[Sequence[RegisteredBookie]]) -> None:
        self._asking = None
        if not asking.cancelled():
            asking.exception()  # all callers may have been cancelled

    def _tell(self, bookies: Sequence[RegisteredBookie]) -> None:
        self._told = bookies
