"""The sessions by which auditors and workers hold locks and votes at this gateway, kept alive by leases.

States of a session: attended (its stream is open) ⇄ left (the stream broke) → over; attended → over. It is over when
the owner has sent nothing for the duration of a lease, or when the gateway closes; its locks and votes are then
released in the store. If the store itself ends a lock or vote, the owner is informed. The store knows this gateway as
the holder; only this process knows the session of a lock. Anyone who knows a session id can act as its owner, so only
its digest is kept.

A request to take a lock may arrive after its owner gave up on the request and released the lock: the request numbers
show this, and the request is rejected. So is a request to cast a vote that is over, withdrawn or ended by the store:
its owner no longer follows that vote, and a second one in its place would keep all later candidates waiting.

Not its job: the messages (`replication`).
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
from collections import OrderedDict
from collections.abc import Callable
from functools import partial

from bookgate.gateway.services.caller import Caller, caller
from bookgate.ledger.errors import BKException, IncorrectParameterException, LockLostException
from bookgate.ledger.metadata import LedgerMetadata
from bookgate.ledger.metadata_store import LedgerRecord
from bookgate.ledger.replication_store import (
    AuditorVote,
    LedgerLock,
    LockLost,
    ReplicationEvent,
    ReplicationMetadata,
    VoteState,
)
from bookgate.runtime.background import keep_running
from bookgate.runtime.logs import log_event
from bookgate.runtime.security.actions import Action
from bookgate.runtime.security.decision import Resource

_LOG = logging.getLogger(__name__)

_RETRY_SECONDS = 0.5
_MOST_RELEASED = 10_000
_MOST_KEPT = 10_000
"""Maximum number of ended locks and votes that are kept for an owner whose stream broke."""
_DIGITS_LOGGED = 12

VoteEvent = tuple[int, VoteState]
"""The number of a vote and its state."""

Tell = Callable[[ReplicationEvent | VoteEvent], None]
"""Called with each event for a session's owner."""


class LateRequestException(IncorrectParameterException):
    """A request to take a lock that was released since, or to cast a vote that is over."""


class ReplicationSession:
    """One session; see the module."""

    def __init__(self, store: ReplicationMetadata, digest: str, expires: float) -> None:
        self.digest = digest
        self.expires = expires
        self.over = False
        self._who = caller()
        """The caller that opened it; None in a gateway without security."""
        self._store = store
        self._locks: dict[int, LedgerLock] = {}
        self._votes: dict[int, AuditorVote] = {}
        self._released: OrderedDict[int, int] = OrderedDict()
        self._votes_over = 0
        """The highest number of a vote that was withdrawn or lost."""
        self._busy = asyncio.Lock()
        self._tell: Tell | None = None
        self._latest: dict[object, ReplicationEvent | VoteEvent] = {}
        self._end_watch = store.watch(self._on_event)

    def is_of(self, who: Caller | None) -> bool:
        """Whether this caller may act as its owner."""
        return _name(self._who) == _name(who)

    def write_down(self, outcome: str, who: Caller | None = None) -> None:
        """Writes a line to the audit trail. `who` is the caller if not the one that opened the session."""
        if (whose := who or self._who) is not None:
            whose.done(Action.REPLICATION_WORK, Resource(name=f"session:{self.digest[:_DIGITS_LOGGED]}"), outcome, 0.0)

    def attend(self, tell: Tell) -> None:
        """A stream of the owner has begun: it receives the events it may have missed, and later ones."""
        self._tell = tell
        for event in self._latest.values():
            tell(event)

    def leave(self, tell: Tell) -> None:
        """The stream has ended; ignored if another one has replaced it."""
        if self._tell == tell:
            self._tell = None

    @property
    def lock_tokens(self) -> frozenset[str]:
        return frozenset(lock.token for lock in self._locks.values())

    async def try_lock(self, number: int, ledger_id: int, holder: str) -> LedgerLock | None:
        """The lock that the session has or takes; None if another owner has it."""
        async with self._busy:
            if number <= self._released.get(ledger_id, 0):
                raise LateRequestException(f"the lock of ledger {ledger_id} was given back since")
            lock = self._locks.get(ledger_id) or await self._store.try_lock(ledger_id, holder)
            if lock is None:
                return None
            self._locks[ledger_id] = lock
            if self.over:
                await self._give_back()
                return None
            return lock

    async def release(self, number: int, ledger_id: int) -> None:
        """Releases the lock of a ledger, if the session has it."""
        async with self._busy:
            self._released.pop(ledger_id, None)
            self._released[ledger_id] = number
            if len(self._released) > _MOST_RELEASED:
                self._released.popitem(last=False)
            lock = self._locks.pop(ledger_id, None)
            if lock is not None:
                await self._store.release(lock)

    async def is_held(self, token: str) -> bool:
        lock = self._lock(token)
        return lock is not None and await self._store.is_held(lock)

    def locked_ledger(self, token: str) -> int:
        """The ledger of a lock. Raises LockLostException for a lock that this session does not hold."""
        lock = self._lock(token)
        if lock is None:
            raise LockLostException("the lock is not this session's any more: nothing was written under it")
        return lock.ledger_id

    async def write_ledger(self, token: str, metadata: LedgerMetadata, expected_version: int) -> LedgerRecord:
        """Writes as the store does. Raises LockLostException also for a lock that this session does not hold."""
        lock = self._lock(token)
        if lock is None:
            raise LockLostException("the lock is not this session's any more: nothing was written under it")
        return await self._store.write_ledger(lock, metadata, expected_version)

    async def stand(self, number: int, voter: str) -> None:
        """Casts the vote `number`; a repetition is the same vote. Raises LateRequestException for one that is over."""
        async with self._busy:
            if number <= self._votes_over:
                raise LateRequestException(f"vote {number} was withdrawn or lost since")
            if number in self._votes:
                return
            self._votes[number] = await self._store.stand_for_auditor(voter, partial(self._on_vote, number))
            if self.over:
                await self._give_back()

    async def withdraw(self, number: int) -> None:
        async with self._busy:
            vote = self._vote_is_over(number)
            if vote is not None:
                await vote.withdraw()

    async def end(self) -> None:
        """Releases all locks and votes; retried while the store is unreachable."""
        self.over = True
        self._end_watch()
        while True:
            async with self._busy:
                try:
                    await self._give_back()
                except BKException as error:
                    log_event(_LOG, "claims_not_given_back", logging.WARNING, error=error, note="it is tried again")
                else:
                    return
            await asyncio.sleep(_RETRY_SECONDS)

    async def _give_back(self) -> None:
        while self._locks:
            # The store itself retries a release that failed.
            await self._store.release(self._locks.popitem()[1])
        while self._votes:
            await self._votes.popitem()[1].withdraw()

    def _lock(self, token: str) -> LedgerLock | None:
        return next((lock for lock in self._locks.values() if lock.token == token), None)

    def _on_event(self, event: ReplicationEvent) -> None:
        if isinstance(event, LockLost):
            if self._locks.get(event.lock.ledger_id) != event.lock:
                return
            del self._locks[event.lock.ledger_id]
        self._say(event)

    def _on_vote(self, number: int, state: VoteState) -> None:
        if state is VoteState.LOST:
            self._vote_is_over(number)
        self._say((number, state))

    def _vote_is_over(self, number: int) -> AuditorVote | None:
        """Forgets the vote, and remembers that it is not to be cast again."""
        self._votes_over = max(self._votes_over, number)
        return self._votes.pop(number, None)

    def _say(self, what: ReplicationEvent | VoteEvent) -> None:
        """Sends an event, and keeps it for the next stream: events on a broken stream may not have arrived."""
        kind: object = type(what)
        if isinstance(what, LockLost):
            kind = what.lock
        elif isinstance(what, tuple):
            kind = what[0]
        self._latest.pop(kind, None)
        self._latest[kind] = what
        if len(self._latest) > _MOST_KEPT:
            self._latest.pop(next(kept for kept in self._latest if isinstance(kept, (LedgerLock, int))))
        if self._tell is not None:
            self._tell(what)


class ReplicationSessions:
    """All sessions of one gateway."""

    def __init__(self, lease_seconds: float) -> None:
        self._lease_seconds = lease_seconds
        self._sessions: dict[str, ReplicationSession] = {}
        self._endings: set[asyncio.Task[None]] = set()
        self._timers: dict[str, asyncio.TimerHandle] = {}

    def __len__(self) -> int:
        return len(self._sessions)

    def open(self, store: ReplicationMetadata, session_id: str) -> ReplicationSession:
        """A new session, or the existing one with this id."""
        digest = _digest(session_id)
        session = self._sessions.get(digest)
        if session is None:
            session = ReplicationSession(store, digest, self._deadline())
            self._sessions[digest] = session
            self._set_timer(session)
            log_event(_LOG, "replication_lease", state="opened", lease=digest[:_DIGITS_LOGGED])
            session.write_down("OPENED")
        return session

    def find(self, session_id: str) -> ReplicationSession | None:
        """The session, or None if it is over."""
        return self._sessions.get(_digest(session_id))

    def heard(self, session: ReplicationSession) -> None:
        """The owner has sent something: renews the lease."""
        session.expires = self._deadline()

    async def end(self, session: ReplicationSession) -> None:
        """Ends a session at its owner's request; returns when it holds nothing any more."""
        if self._sessions.get(session.digest) is session:
            session.write_down("ENDED")
            await asyncio.shield(self._end(session))

    async def close(self) -> None:
        """Ends every session, as far as the store can be reached."""
        for session in list(self._sessions.values()):
            self._end(session)
        if self._endings:
            _, late = await asyncio.wait(self._endings, timeout=1.0)
            for task in late:
                task.cancel()
            await asyncio.gather(*late, return_exceptions=True)

    def _deadline(self) -> float:
        return asyncio.get_running_loop().time() + self._lease_seconds

    def _set_timer(self, session: ReplicationSession) -> None:
        loop = asyncio.get_running_loop()
        self._timers[session.digest] = loop.call_at(session.expires, self._look, session)

    def _look(self, session: ReplicationSession) -> None:
        if session.expires > asyncio.get_running_loop().time():
            self._set_timer(session)
            return
        log_event(_LOG, "replication_lease", logging.WARNING, state="over", lease=session.digest[:_DIGITS_LOGGED])
        session.write_down("LOST")
        self._end(session)

    def _end(self, session: ReplicationSession) -> asyncio.Task[None]:
        self._timers.pop(session.digest).cancel()
        del self._sessions[session.digest]
        task = keep_running("end of a replication lease", session.end)
        self._endings.add(task)
        task.add_done_callback(self._endings.discard)
        return task


def _digest(session_id: str) -> str:
    return hashlib.sha256(session_id.encode()).hexdigest()


def _name(who: Caller | None) -> str | None:
    return None if who is None else str(who.principal)
