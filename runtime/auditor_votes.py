"""One vote for auditor, for any store: its state, and its listener. The rules of the election belong to the store."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable

from bookgate.ledger.replication_store import AuditorVote, VoteListener, VoteState
from bookgate.runtime.logs import log_bug, log_event

_LOG = logging.getLogger(__name__)


class Vote(AuditorVote):
    """A vote of this process, by its name in the store. WAITING until the store says more; LOST is final."""

    def __init__(
        self, voter: str, name: str, listener: VoteListener, take_back: Callable[[Vote], Awaitable[None]]
    ) -> None:
        self.voter = voter
        self.name = name
        self._listener = listener
        self._take_back = take_back
        self._state: VoteState | None = None

    @property
    def state(self) -> VoteState:
        return self._state or VoteState.WAITING

    @property
    def over(self) -> bool:
        return self._state is VoteState.LOST

    async def withdraw(self) -> None:
        self.become(VoteState.LOST, quietly=True)
        await self._take_back(self)

    def become(self, state: VoteState, *, quietly: bool = False) -> None:
        """Notifies the listener of a new state; after LOST it is not called any more."""
        if state is self._state or self.over:
            return
        self._state = state
        log_event(_LOG, "auditor_vote", voter=self.voter, vote=self.name, state=state.value)
        if quietly:
            return
        try:
            self._listener(state)
        except Exception as error:
            log_bug(_LOG, "vote_listener_failed", error)
