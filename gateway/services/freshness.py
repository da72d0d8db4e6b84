"""Up to which revision of the store everything held here is known to be current.

A client that moves between gateways says which revision it has seen; nothing older may be answered (M4). What is held
here (cached metadata, watched ledgers) lags behind the store until the store's events were delivered. `reach` makes
sure of it with one catch-up for all callers that wait; a caller is served only by a catch-up that began after it came.
A revision beyond all that the store has is refused: the client has seen a later state of it, so it was put back to an
older one, or is another's. It costs a catch-up, and an answer to it would deny what is known to have happened.
"""

from __future__ import annotations

import asyncio

from bookgate.ledger.errors import WrongClusterException
from bookgate.ledger.metadata_store import LedgerManagerFactory


class RevisionBarrier:
    """See the module. One a gateway."""

    def __init__(self, factory: LedgerManagerFactory) -> None:
        self._factory = factory
        self._reached = 0
        self._wanted = 0
        self._running: asyncio.Task[None] | None = None
        self._next: asyncio.Task[None] | None = None

    async def wait_for(self, revision: int) -> None:
        """Returns once all that is held here is at least as new as `revision`.

        Raises MetaStoreException, WrongClusterException for a revision that the store has not come to.
        """
        if revision <= self._reached:
            return
        self._wanted = max(self._wanted, revision)
        if self._next is None:
            self._next = asyncio.get_running_loop().create_task(self._catch_up(self._running))
            self._next.add_done_callback(_nobody_may_wait)
        # Others wait for it too, so a caller that goes away does not cancel it.
        await asyncio.shield(self._next)
        if revision > self._reached:
            raise WrongClusterException(
                f"the metadata store is at revision {self._reached} and the client has seen revision {revision}: it "
                "was put back to an older state, or is another cluster's; a client that is started anew is served"
            )

    async def _catch_up(self, before: asyncio.Task[None] | None) -> None:
        if before is not None:
            await asyncio.wait([before])
        self._running, self._next = self._next, None
        wanted, self._wanted = self._wanted, 0
        try:
            await self._factory.catch_up(None)
            confirmed = await self._factory.revision()
            self._reached = max(self._reached, min(wanted, confirmed))
        finally:
            if self._next is None:
                self._running = None


def _nobody_may_wait(task: asyncio.Task[None]) -> None:
    """Where every caller has gone, a failure is nobody's any more."""
    if not task.cancelled():
        task.exception()
