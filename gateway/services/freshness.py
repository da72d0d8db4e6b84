"""Guarantees that everything this gateway holds is at least as new as a given store revision.

A client that moves between gateways sends the revision it has seen; no response may be older (M4). The state held here
(cached metadata, watched ledgers) lags behind the store until the store's events are delivered. `wait_for` ensures it
is current, with one catch-up shared by all waiting callers; a caller is served only by a catch-up that began after its
call. A revision beyond the store's own is rejected: the client has seen a later state, so the store was restored to an
older one or belongs to another cluster. Detecting this costs a catch-up, and a response would deny changes that are
known to have happened.
"""

from __future__ import annotations

from bookgate.gateway.stores.shared_run import SharedRun
from bookgate.ledger.errors import WrongClusterException
from bookgate.ledger.metadata_store import LedgerManagerFactory


class RevisionBarrier:
    """The barrier; see the module. One per gateway."""

    def __init__(self, factory: LedgerManagerFactory) -> None:
        self._factory = factory
        self._reached = 0
        self._wanted = 0
        self._catching_up = SharedRun(self._catch_up)

    async def wait_for(self, revision: int) -> None:
        """Returns once everything held here is at least as new as `revision`.

        Raises MetaStoreException, and WrongClusterException for a revision that the store has not reached.
        """
        if revision <= self._reached:
            return
        self._wanted = max(self._wanted, revision)
        await self._catching_up.wait()
        if revision > self._reached:
            raise WrongClusterException(
                f"the metadata store is at revision {self._reached} and the client has seen revision {revision}: it "
                "was put back to an older state, or is another cluster's; a client that is started anew is served"
            )

    async def _catch_up(self) -> None:
        wanted, self._wanted = self._wanted, 0
        await self._factory.catch_up(None)
        confirmed = await self._factory.revision()
        self._reached = max(self._reached, min(wanted, confirmed))
