"""Locks and votes of auto-recovery at a gateway: one session after the other, and what is held in it.

States: *none*, until the first lock, vote or listener needs a session; *opening*; *open*; then over, and opening again
at another gateway. Locks and votes are lost with their session, and their holders are notified.

If the response to a claim is lost:

* a claim is sent again to the same gateway, which knows what the session holds. If that fails, a lock is released under
  a higher number, so that the request is rejected should it arrive late; until that is done this client does not lock
  the ledger again;
* a write of a ledger is sent again to the same gateway with the same expected version; BAD_VERSION is success if the
  ledger is as written, at the next version.

Not its job: marks, switches and records (`replication`), one session's stream (`replication_session`).
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, TypeVar

from grpc.aio import AioRpcError

from bookgate.ledger.creator import is_as_written
from bookgate.ledger.errors import (
    BKException,
    ClientClosedException,
    IllegalOpException,
    LockLostException,
    MetadataVersionException,
    MetaStoreException,
    UnknownOutcomeException,
)
from bookgate.ledger.ledger_id import LedgerId, ledger_name
from bookgate.ledger.metadata import LedgerMetadata
from bookgate.ledger.metadata_codec import to_format
from bookgate.ledger.metadata_store import LedgerManager, LedgerRecord
from bookgate.ledger.replication import check_markable
from bookgate.ledger.replication_messages import id_field, scoped_field
from bookgate.ledger.replication_store import (
    AuditorVote,
    DelayChanged,
    DrainsChanged,
    LedgerLock,
    LockLost,
    MarksChanged,
    SwitchChanged,
    VoteListener,
    VoteState,
)
from bookgate.protos.bookkeeper.common.v1.status_pb2 import StatusCode
from bookgate.protos.bookkeeper.gateway.v1 import replication_service_pb2 as wire
from bookgate.runtime.auditor_votes import Vote
from bookgate.runtime.background import keep_running
from bookgate.runtime.replication_listeners import ReplicationListeners
from bookgate.thinclient.gateways.channel import GatewayChannel
from bookgate.thinclient.gateways.failures import check_transient, surely_not_done, unasked_cancellations
from bookgate.thinclient.gateways.gateway import Gateway
from bookgate.thinclient.gateways.messages import code_error
from bookgate.thinclient.gateways.replication_session import RpcReplicationSession

R = TypeVar("R")
Send = Callable[[Gateway, float], Awaitable[R]]

_RETRY_SECONDS = 0.1
_CLOSE_SECONDS = 1.0

_VOTE_STATES = {
    wire.VOTE_STATE_WAITING: VoteState.WAITING,
    wire.VOTE_STATE_ELECTED: VoteState.ELECTED,
    wire.VOTE_STATE_LOST: VoteState.LOST,
}


class RpcReplicationClaims:
    """The locks and votes of one client at the gateways."""

    def __init__(self, gateways: GatewayChannel, ledger_manager: LedgerManager) -> None:
        self._gateways = gateways
        self._ledgers = ledger_manager
        self.listeners = ReplicationListeners(self._attend, always_notified=True)
        self._locks: dict[int, LedgerLock] = {}
        self._votes: dict[int, Vote] = {}
        self._busy: set[int] = set()
        """Ledgers whose lock is being claimed or released."""
        self._numbers = 0
        self._delay: DelayChanged | None = None
        self._delay_known = False
        self._session: RpcReplicationSession | None = None
        self._refusal: str | None = None
        self._changed = asyncio.Event()
        self._keeper: asyncio.Task[None] | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    async def close(self) -> None:
        """Releases locks and votes if the gateway responds at once; otherwise they end with the lease."""
        self.listeners.clear()
        for task in [*self._tasks, *([self._keeper] if self._keeper else [])]:
            task.cancel()
        await asyncio.gather(*self._tasks, *([self._keeper] if self._keeper else []), return_exceptions=True)
        session, self._session = self._session, None
        if session is None:
            return
        try:
            if session.ready.done() and not session.over.done():
                request = wire.ClaimRequest(session_id=session.session_id, end=True)
                with contextlib.suppress(AioRpcError), unasked_cancellations():
                    await session.gateway.replication.Claim(request, timeout=_CLOSE_SECONDS)
        finally:
            await session.close()

    # --- locks --------------------------------------------------------------------------------------------------

    async def try_lock(self, ledger_id: int, holder: str) -> LedgerLock | None:
        if check_markable(ledger_id) in self._locks or ledger_id in self._busy:
            return None
        self._busy.add(ledger_id)
        what = f"lock ledger {ledger_name(ledger_id)}"
        number = self._next_number()
        session: RpcReplicationSession | None = None
        try:
            session = await self._attended(what)
            request = wire.ClaimRequest(number=number, try_lock=_lock_of(ledger_id, holder))
            response = await self._claim(session, what, request)
            if session.over.done():
                raise MetaStoreException(f"could not {what}: the session at the gateway has ended")
        except BaseException:
            if session is None:
                self._busy.discard(ledger_id)
            else:
                self._give_back_soon(session, ledger_id)
            raise
        self._busy.discard(ledger_id)
        if not response.HasField("token"):
            return None
        lock = LedgerLock(ledger_id, response.token)
        self._locks[ledger_id] = lock
        return lock

    async def release(self, lock: LedgerLock) -> None:
        if self._locks.get(lock.ledger_id) != lock or self._session is None:
            return
        session = self._session
        del self._locks[lock.ledger_id]
        self._busy.add(lock.ledger_id)
        try:
            await self._claim(
                session, f"release ledger {ledger_name(lock.ledger_id)}", self._release_request(lock.ledger_id)
            )
        except BaseException:
            self._give_back_soon(session, lock.ledger_id)
            raise
        self._busy.discard(lock.ledger_id)

    async def is_held(self, lock: LedgerLock) -> bool:
        if self._locks.get(lock.ledger_id) != lock or self._session is None:
            return False
        session = self._session
        request = wire.ClaimRequest(number=self._next_number(), check_lock=lock.token)
        response = await self._claim(session, f"check the lock of ledger {ledger_name(lock.ledger_id)}", request)
        if not response.held:
            self._lose(lock)
        return response.held and self._locks.get(lock.ledger_id) == lock

    async def write_ledger(self, lock: LedgerLock, metadata: LedgerMetadata, expected_version: int) -> LedgerRecord:
        what = f"write ledger {ledger_name(lock.ledger_id)} under its lock"
        if self._locks.get(lock.ledger_id) != lock or self._session is None:
            raise LockLostException(f"could not {what}: the lock is lost")
        if not -(1 << 63) <= expected_version < 1 << 63:
            raise MetadataVersionException(
                f"ledger {ledger_name(lock.ledger_id)} is never at version {expected_version}"
            )
        session, ledger_id = self._session, LedgerId.of_number(lock.ledger_id)
        request = wire.WriteLedgerRequest(
            session_id=session.session_id,
            token=lock.token,
            metadata=to_format(metadata),
            expected_version=expected_version,
        )
        response, again = await self._at(session, what, lambda g, t: g.replication.WriteLedger(request, timeout=t))
        if response.code == StatusCode.SUCCESS:
            return LedgerRecord(ledger_id, metadata, response.version)
        if again:
            return await self._resolve_write(ledger_id, metadata, expected_version, what)
        if response.code == StatusCode.SESSION_UNKNOWN:
            session.end(response.message)
        if response.code in (StatusCode.SESSION_UNKNOWN, StatusCode.LOCK_LOST):
            self._lose(lock)
            raise LockLostException(f"could not {what}: {response.message}")
        raise code_error(response.code, response.message, what)

    async def _resolve_write(
        self, ledger_id: LedgerId, metadata: LedgerMetadata, expected_version: int, what: str
    ) -> LedgerRecord:
        """Determines whether an earlier attempt, whose response was lost, has written."""
        stored = await self._ledgers.read(ledger_id)
        if stored.version == expected_version + 1 and is_as_written(stored.metadata, metadata):
            return stored
        raise UnknownOutcomeException(
            f"could not {what}: an answer was lost, and the ledger is at version {stored.version} now"
        )

    # --- the auditor --------------------------------------------------------------------------------------------

    async def stand_for_auditor(self, voter: str, listener: VoteListener) -> AuditorVote:
        what = "stand for auditor"
        session, number = await self._attended(what), self._next_number()

        async def take_back(vote: Vote) -> None:
            if self._votes.pop(number, None) is None:
                return
            try:
                await self._withdraw(session, number)
            except BaseException:
                self._withdraw_soon(session, number)
                raise

        vote = Vote(voter, f"{session.gateway.address}/{number}", listener, take_back)
        # Stored before the request, because its state may be reported before the response.
        self._votes[number] = vote
        try:
            await self._claim(session, what, wire.ClaimRequest(number=number, stand=voter))
        except BaseException:
            vote.become(VoteState.LOST, quietly=True)
            self._votes.pop(number, None)
            self._withdraw_soon(session, number)
            raise
        return vote

    def _withdraw_soon(self, session: RpcReplicationSession, number: int) -> None:
        """Withdraws a vote that may stand, of which nobody hears any more: it would keep later candidates waiting."""
        self._start(lambda: self._until_over(session, lambda: self._withdraw(session, number)))

    async def _withdraw(self, session: RpcReplicationSession, number: int) -> None:
        if not session.over.done():
            request = wire.ClaimRequest(number=self._next_number(), withdraw=number)
            await self._claim(session, "withdraw the vote", request)

    # --- changes ------------------------------------------------------------------------------------------------

    def _take(self, response: wire.AttendResponse) -> None:
        """Handles a change reported by the session's gateway."""
        change = response.WhichOneof("change")
        if change == "marks_changed":
            self.listeners.tell(MarksChanged())
        elif change == "enabled":
            self.listeners.tell(SwitchChanged(response.enabled))
        elif change == "delay_written":
            self._take_delay(response.delay_written)
        elif change == "drains_changed":
            self.listeners.tell(DrainsChanged())
        elif change == "lock_lost":
            lost = [lock for lock in self._locks.values() if lock.token == response.lock_lost]
            for lock in lost:
                self._lose(lock)
        elif change == "vote_changed":
            vote = self._votes.get(response.vote_changed.vote)
            state = _VOTE_STATES.get(response.vote_changed.state)
            if vote is not None and state is not None:
                self._vote_is(response.vote_changed.vote, vote, state)

    def _stream_begins(self) -> None:
        self._delay_known = False

    def _take_delay(self, written: wire.DelayWritten) -> None:
        """Reports the delay; a new stream begins with the current one, which is reported only if it differs from the
        last.
        """
        told = DelayChanged(written.seconds if written.HasField("seconds") else None)
        known, self._delay_known = self._delay_known, True
        if known or told != self._delay:
            self._delay = told
            self.listeners.tell(told)

    def _vote_is(self, number: int, vote: Vote, state: VoteState) -> None:
        if state is VoteState.LOST:
            self._votes.pop(number, None)
        vote.become(state)

    def _lose(self, lock: LedgerLock) -> None:
        if self._locks.get(lock.ledger_id) == lock:
            del self._locks[lock.ledger_id]
            self.listeners.tell(LockLost(lock))

    # --- the session --------------------------------------------------------------------------------------------

    def _attend(self) -> None:
        if self._keeper is None:
            self._keeper = keep_running("session for auto-recovery", self._keep)

    async def _keep(self) -> None:
        """Keeps sessions open, one after the other."""
        attempts = self._gateways.attempts("attend to auto-recovery", None)
        while True:
            try:
                gateway = await attempts.next()
            except ClientClosedException:
                return
            session_id = self._gateways.rng.randbytes(16).hex()
            session = RpcReplicationSession(gateway, session_id, self._take, self._stream_begins)
            self._session = session
            opened: list[asyncio.Future[Any]] = [session.ready, session.over]
            await asyncio.wait(opened, return_when=asyncio.FIRST_COMPLETED)
            if not session.over.done():
                attempts.progressed()
                self._refusal = None
                self._wake()
            reason = await asyncio.shield(session.over)
            await session.close()
            attempts.failed(gateway, reason)
            if session.refused:
                self._refusal = reason
            self._lose_all()
            self._wake()

    def _lose_all(self) -> None:
        self._session = None
        for number, vote in list(self._votes.items()):
            self._vote_is(number, vote, VoteState.LOST)
        for lock in list(self._locks.values()):
            self._lose(lock)

    def _wake(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()

    async def _attended(self, what: str) -> RpcReplicationSession:
        """The session, once there is one. Raises MetaStoreException, IllegalOpException."""
        self._gateways.check_open()
        self._attend()
        try:
            async with asyncio.timeout(self._gateways.timeout):
                while True:
                    session = self._session
                    if session is not None and session.ready.done() and not session.over.done():
                        return session
                    if self._refusal is not None:
                        raise IllegalOpException(f"could not {what}: {self._refusal}")
                    await self._changed.wait()
        except TimeoutError:
            raise MetaStoreException(
                f"no metadata gateway has opened a session for auto-recovery within {self._gateways.timeout:g} s"
            ) from None

    async def _claim(self, session: RpcReplicationSession, what: str, request: wire.ClaimRequest) -> wire.ClaimResponse:
        """Makes a claim. It may be sent again, because the gateway knows what the session holds."""
        request.session_id = session.session_id
        response, _ = await self._at(session, what, lambda g, t: g.replication.Claim(request, timeout=t))
        if response.code == StatusCode.SESSION_UNKNOWN:
            session.end(response.message)
            raise MetaStoreException(f"could not {what}: {response.message}")
        check(response.code, response.message, what)
        return response

    async def _at(self, session: RpcReplicationSession, what: str, send: Send[R]) -> tuple[R, bool]:
        """The response of the session's gateway, and whether an earlier attempt may have been carried out."""
        loop = asyncio.get_running_loop()
        deadline, sent, reason = loop.time() + self._gateways.timeout, False, "no time is left"
        while not session.over.done() and (left := deadline - loop.time()) > 0:
            try:
                with self._gateways.outstanding(what):
                    return await send(session.gateway, left), sent
            except AioRpcError as error:
                not_done = surely_not_done(error)
                reason = check_transient(session.gateway, what, error, changes=not not_done)
                sent = sent or not not_done
            await asyncio.sleep(_RETRY_SECONDS)
        if session.over.done():
            reason = f"the session has ended: {session.over.result()}"
        message = f"could not {what} at gateway {session.gateway.address}: {reason}"
        raise UnknownOutcomeException(f"{message}; it may have happened") if sent else MetaStoreException(message)

    def _give_back_soon(self, session: RpcReplicationSession, ledger_id: int) -> None:
        """Releases a lock that may be held; retries until the gateway responds or the session is over."""

        async def give_back() -> None:
            request = self._release_request(ledger_id)
            await self._until_over(
                session, lambda: self._claim(session, f"release ledger {ledger_name(ledger_id)}", request)
            )
            self._busy.discard(ledger_id)

        self._start(give_back)

    async def _until_over(self, session: RpcReplicationSession, work: Callable[[], Awaitable[object]]) -> None:
        while not session.over.done():
            try:
                await work()
                return
            except BKException:
                await asyncio.sleep(_RETRY_SECONDS)

    def _release_request(self, ledger_id: int) -> wire.ClaimRequest:
        released = wire.ReleaseLock(ledger_id=id_field(ledger_id), scoped=scoped_field(ledger_id))
        return wire.ClaimRequest(number=self._next_number(), release_lock=released)

    def _next_number(self) -> int:
        self._numbers += 1
        return self._numbers

    def _start(self, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
        task = keep_running("claims given back", work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


def _lock_of(number: int, holder: str) -> wire.TryLock:
    return wire.TryLock(ledger_id=id_field(number), holder=holder, scoped=scoped_field(number))


def check(code: int, message: str, what: str) -> None:
    """Raises the error in a response."""
    if code != StatusCode.SUCCESS:
        raise code_error(code, message, what)
