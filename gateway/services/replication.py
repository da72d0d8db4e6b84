"""The ReplicationService: auto-recovery's metadata for auditors and workers without access to the metadata store.

It serves `bookgate.ledger.replication_store` of this gateway's store. Locks and votes belong to one owner: they need a
session (`replication_sessions`), and work only at the process that has it; everything else works at any gateway.
Source: docs/protocol/gateway.md#auto-recovery.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import aclosing
from dataclasses import replace
from typing import Any, TypeVar

import grpc

from bookgate.gateway.services.caller import caller, ledger_resource, require_still
from bookgate.gateway.services.ledger_access import to_be_written
from bookgate.gateway.services.ledger_feed import LedgerFeedStream
from bookgate.gateway.services.messages import status_code
from bookgate.gateway.services.replication_sessions import ReplicationSession, ReplicationSessions, VoteEvent
from bookgate.gateway.services.status import Context, abort_with
from bookgate.gateway.services.store_budget import StoreBudget
from bookgate.ledger.bookie_info import check_bookie_id, check_length, is_bookie_id
from bookgate.ledger.errors import (
    BKException,
    IllegalOpException,
    IncorrectParameterException,
    LockLostException,
    MetadataFormatException,
    MetaStoreException,
    TooManyRequestsException,
    UnknownOutcomeException,
)
from bookgate.ledger.ledger_id import MAX_UNSCOPED, LedgerId
from bookgate.ledger.metadata_bounds import require_no_new_faults
from bookgate.ledger.metadata_codec import from_format, without_password
from bookgate.ledger.metadata_store import LedgerManagerFactory
from bookgate.ledger.replication import PeriodicCheck
from bookgate.ledger.replication_messages import held_lock, number_in, number_in_scope, stored_mark
from bookgate.ledger.replication_store import (
    DelayChanged,
    DrainsChanged,
    LockLost,
    MarksChanged,
    RecordKind,
    ReplicationEvent,
    ReplicationMetadata,
    SwitchChanged,
    VoteState,
)
from bookgate.protos.bookkeeper.common.v1.status_pb2 import StatusCode
from bookgate.protos.bookkeeper.gateway.v1 import replication_service_pb2 as pb
from bookgate.protos.bookkeeper.gateway.v1.replication_service_pb2_grpc import ReplicationServiceServicer
from bookgate.runtime.security.actions import Action

R = TypeVar("R")

DEFAULT_LEASE_SECONDS = 10.0
_MOST_MARKS = 1_000
_MOST_RECORD_BYTES = 64 * 1024
_MOST_WAITING = 1_000
"""Maximum number of changes queued for one owner; the stream of a slower owner is ended, and it starts again."""
_LEAVE_SECONDS = 2.0

_SESSION_ID = re.compile(r"[A-Za-z0-9-]{16,64}")
_VOTE_STATES = {
    VoteState.WAITING: pb.VOTE_STATE_WAITING,
    VoteState.ELECTED: pb.VOTE_STATE_ELECTED,
    VoteState.LOST: pb.VOTE_STATE_LOST,
}


class _SessionUnknownException(BKException):
    """The session of a request has ended."""


class _Responses:
    """The responses queued for the owner of one stream; None ends it."""

    def __init__(self) -> None:
        self._queue: asyncio.Queue[pb.AttendResponse | None] = asyncio.Queue()

    def put(self, response: pb.AttendResponse | None) -> None:
        if self._queue.qsize() >= _MOST_WAITING:
            response = None
        self._queue.put_nowait(response)

    def tell(self, what: ReplicationEvent | VoteEvent) -> None:
        self.put(_change(what))

    async def get(self) -> pb.AttendResponse | None:
        return await self._queue.get()


class ReplicationService(ReplicationServiceServicer):
    """The service; see the module. One per gateway."""

    def __init__(
        self,
        factory: LedgerManagerFactory,
        budget: StoreBudget,
        ledger_changed: Callable[[LedgerId], None],
        lease_seconds: float = DEFAULT_LEASE_SECONDS,
        max_metadata_bytes: int = 1 << 20,
    ) -> None:
        """`ledger_changed` is called for every ledger whose metadata may have been written here."""
        self._factory = factory
        self._budget = budget
        self._ledger_changed = ledger_changed
        self._lease_ms = int(lease_seconds * 1000)
        self._max_metadata_bytes = max_metadata_bytes
        self._sessions = ReplicationSessions(lease_seconds)
        self._streams: dict[_Responses, None] = {}
        self._feeds: dict[LedgerFeedStream, None] = {}
        self._claims: set[asyncio.Task[pb.ClaimResponse]] = set()
        self._draining = False

    # The generated base class names the methods as the proto file does.
    # ruff: noqa: N802

    @property
    def leases(self) -> int:
        """Number of owners for whom this gateway holds locks and votes."""
        return len(self._sessions)

    @property
    def feed_count(self) -> int:
        """Number of owners that follow the changes of ledgers here."""
        return len(self._feeds)

    @property
    def _store(self) -> ReplicationMetadata:
        return self._factory.replication_metadata

    def drain(self) -> None:
        """Asks every owner to switch to another gateway; ends the streams that are still open after a short while."""
        self._draining = True
        for responses in list(self._streams):
            responses.put(pb.AttendResponse(draining=True))
            asyncio.get_running_loop().call_later(_LEAVE_SECONDS, responses.put, None)
        for feed in list(self._feeds):
            feed.end()

    async def close(self) -> None:
        """Ends every session."""
        await self._sessions.close()

    # --- sessions -----------------------------------------------------------------------------------------------

    async def Attend(
        self, request_iterator: AsyncIterator[pb.AttendRequest], context: Context
    ) -> AsyncIterator[pb.AttendResponse]:
        if self._draining:
            await context.abort(grpc.StatusCode.UNAVAILABLE, "this gateway is stopping; attend at another one")
        responses = _Responses()
        self._streams[responses] = None
        reader = asyncio.get_running_loop().create_task(self._read(request_iterator, responses))
        try:
            while (response := await responses.get()) is not None:
                yield response
            if reader.done() and (error := reader.exception()) is not None:
                raise error
        except Exception as error:
            await abort_with(context, "Attend", error)
        finally:
            self._streams.pop(responses, None)
            reader.cancel()

    async def _read(self, requests: AsyncIterator[pb.AttendRequest], responses: _Responses) -> None:
        session: ReplicationSession | None = None
        try:
            async for request in requests:
                # An owner that may no longer repair loses what the session holds.
                require_still(Action.REPLICATION_WORK)
                if session is None:
                    session = self._open(request, responses)
                if session is None or session.over:
                    refusal = "" if session is None else "the session is over"
                    responses.put(self._heartbeat(request, StatusCode.SESSION_UNKNOWN, refusal))
                    return
                self._sessions.heard(session)
                responses.put(self._heartbeat(request))
        except (IncorrectParameterException, IllegalOpException) as error:
            responses.put(pb.AttendResponse(code=_code(error), sequence=1, message=str(error)))
        finally:
            if session is not None:
                session.leave(responses.tell)
            responses.put(None)

    def _open(self, request: pb.AttendRequest, responses: _Responses) -> ReplicationSession | None:
        if not _SESSION_ID.fullmatch(request.session_id):
            raise IncorrectParameterException("the first request needs a session id: 16 to 64 letters, digits and -")
        session = self._sessions.find(request.session_id)
        if session is None:
            if request.resume:
                return None
            session = self._sessions.open(self._store, request.session_id)
        elif not session.is_of(who := caller()):
            # The owner of a stolen session id keeps what the session holds.
            session.write_down(StatusCode.Name(StatusCode.SESSION_UNKNOWN), who)
            return None
        session.attend(responses.tell)
        return session

    def _heartbeat(
        self, request: pb.AttendRequest, code: StatusCode = StatusCode.SUCCESS, message: str = ""
    ) -> pb.AttendResponse:
        return pb.AttendResponse(code=code, sequence=request.sequence, lease_ms=self._lease_ms, message=message)

    async def Claim(self, request: pb.ClaimRequest, context: Context) -> pb.ClaimResponse:
        async def work() -> pb.ClaimResponse:
            session = self._session(request.session_id)
            if request.end:
                await self._sessions.end(session)
                return pb.ClaimResponse()
            return await _claim(session, request)

        async def to_the_end() -> pb.ClaimResponse:
            # Even if its caller has gone: the session then holds what was taken, until the owner releases it.
            task = asyncio.get_running_loop().create_task(work())
            self._claims.add(task)
            task.add_done_callback(self._claim_done)
            return await asyncio.shield(task)

        return await self._answer(context, "Claim", pb.ClaimResponse, to_the_end)

    def _claim_done(self, task: asyncio.Task[pb.ClaimResponse]) -> None:
        self._claims.discard(task)
        if not task.cancelled():
            # Perhaps nobody waits for it any more.
            task.exception()

    async def WriteLedger(self, request: pb.WriteLedgerRequest, context: Context) -> pb.WriteLedgerResponse:
        async def work() -> pb.WriteLedgerResponse:
            session = self._session(request.session_id)
            if request.metadata.ByteSize() > self._max_metadata_bytes:
                raise IncorrectParameterException(f"the metadata has more than {self._max_metadata_bytes} bytes")
            try:
                metadata = without_password(from_format(request.metadata))
            except MetadataFormatException as error:
                raise IncorrectParameterException(str(error)) from error
            ledger_id = LedgerId.of_number(session.locked_ledger(request.token))
            if (who := caller()) is not None:
                who.subject = str(ledger_resource(ledger_id, None))
            stored = (await self._factory.ledger_manager.read(ledger_id)).metadata
            if who is not None:
                metadata = to_be_written(metadata, stored)
            metadata = replace(metadata, format_version=stored.format_version)
            require_no_new_faults(metadata, stored, self._max_metadata_bytes)
            try:
                record = await session.write_ledger(request.token, metadata, request.expected_version)
            finally:
                self._ledger_changed(ledger_id)
            return pb.WriteLedgerResponse(version=record.version)

        return await self._answer(context, "WriteLedger", pb.WriteLedgerResponse, work)

    def _session(self, session_id: str) -> ReplicationSession:
        session = self._sessions.find(session_id)
        if session is None or session.over or not session.is_of(caller()):
            raise _SessionUnknownException("the session is over, and what it held")
        return session

    # --- served at any gateway ----------------------------------------------------------------------------------

    async def Mark(self, request: pb.MarkRequest, context: Context) -> pb.MarkResponse:
        async def work() -> pb.MarkResponse:
            ctime = request.ctime_ms if request.HasField("ctime_ms") else None
            await self._check_replicas(request)
            return pb.MarkResponse(
                mark=stored_mark(await self._store.mark(number_in(request), request.replicas, ctime))
            )

        return await self._answer(context, "Mark", pb.MarkResponse, work)

    async def _check_replicas(self, request: pb.MarkRequest) -> None:
        """Raises IncorrectParameterException for an id that no bookie can have, unless the ledger names it: another
        client of the store may have written it there, and the ledger still has to be marked.
        """
        wrong = {each for each in request.replicas if not is_bookie_id(each)}
        if wrong:
            ledger_id = LedgerId.of_number(number_in(request))
            wrong -= (await self._factory.ledger_manager.read(ledger_id)).metadata.bookies
        for bookie_id in sorted(wrong):
            check_bookie_id(bookie_id)

    async def ListMarks(self, request: pb.ListMarksRequest, context: Context) -> pb.ListMarksResponse:
        async def work() -> pb.ListMarksResponse:
            if request.HasField("ledger_id"):
                mark = await self._store.read_mark(number_in(request))
                return pb.ListMarksResponse(marks=[] if mark is None else [stored_mark(mark)])
            start = request.start_after if request.HasField("start_after") else None
            if request.HasField("start_after_scoped"):
                start = number_in_scope(request.start_after_scoped)
            size = min(max(request.page_size, 1), _MOST_MARKS)
            async with aclosing(self._store.marks(start, size)) as pages:  # type: ignore[type-var]
                async for page in pages:
                    told = (mark for mark in page if request.every_scope or mark.value.ledger_id <= MAX_UNSCOPED)
                    return pb.ListMarksResponse(marks=map(stored_mark, told))
            return pb.ListMarksResponse()

        return await self._answer(context, "ListMarks", pb.ListMarksResponse, work)

    async def DeleteMark(self, request: pb.DeleteMarkRequest, context: Context) -> pb.DeleteMarkResponse:
        async def work() -> pb.DeleteMarkResponse:
            deleted = await self._store.delete_mark(number_in(request), request.expected_version)
            return pb.DeleteMarkResponse(deleted=deleted)

        return await self._answer(context, "DeleteMark", pb.DeleteMarkResponse, work)

    async def ListClaims(self, request: pb.ListClaimsRequest, context: Context) -> pb.ListClaimsResponse:
        async def work() -> pb.ListClaimsResponse:
            holders = await self._store.lock_holders()
            locks = [held_lock(number, holder) for number, holder in sorted(holders.items())]
            return pb.ListClaimsResponse(locks=locks, auditor=await self._store.auditor())

        return await self._answer(context, "ListClaims", pb.ListClaimsResponse, work)

    async def GetSettings(self, request: pb.GetSettingsRequest, context: Context) -> pb.GetSettingsResponse:
        async def work() -> pb.GetSettingsResponse:
            times = {check.value: await self._store.check_time(check) for check in PeriodicCheck}
            return pb.GetSettingsResponse(
                enabled=await self._store.is_enabled(),
                lost_bookie_delay_seconds=await self._store.lost_bookie_delay(),
                check_times={name: time for name, time in times.items() if time is not None},
            )

        return await self._answer(context, "GetSettings", pb.GetSettingsResponse, work)

    async def ChangeSettings(self, request: pb.ChangeSettingsRequest, context: Context) -> pb.ChangeSettingsResponse:
        async def work() -> pb.ChangeSettingsResponse:
            change = request.WhichOneof("change")
            if change == "enabled":
                await self._store.set_enabled(request.enabled)
            elif change == "lost_bookie_delay_seconds":
                delay = await self._store.set_lost_bookie_delay(
                    request.lost_bookie_delay_seconds, only_if_absent=request.only_if_absent
                )
                return pb.ChangeSettingsResponse(lost_bookie_delay_seconds=delay)
            elif change == "check_ended":
                ended = request.check_ended
                await self._store.set_check_time(_named(PeriodicCheck, ended.check), ended.ctime_ms)
            else:
                raise IncorrectParameterException("the request names no change")
            return pb.ChangeSettingsResponse()

        return await self._answer(context, "ChangeSettings", pb.ChangeSettingsResponse, work)

    async def ListRecords(self, request: pb.ListRecordsRequest, context: Context) -> pb.ListRecordsResponse:
        async def work() -> pb.ListRecordsResponse:
            kind = _named(RecordKind, request.kind)
            if request.HasField("key"):
                record = await self._store.read_record(kind, request.key)
                found = {} if record is None else {request.key: record}
            else:
                found = dict(await self._store.records(kind))
            return pb.ListRecordsResponse(
                records=[
                    pb.StoredRecord(key=key, value=each.value, version=each.version) for key, each in found.items()
                ]
            )

        return await self._answer(context, "ListRecords", pb.ListRecordsResponse, work)

    async def WriteRecord(self, request: pb.WriteRecordRequest, context: Context) -> pb.WriteRecordResponse:
        async def work() -> pb.WriteRecordResponse:
            if len(request.value) > _MOST_RECORD_BYTES:
                raise IncorrectParameterException(f"a record has at most {_MOST_RECORD_BYTES} bytes")
            version = request.expected_version if request.HasField("expected_version") else None
            kind = _named(RecordKind, request.kind)
            return pb.WriteRecordResponse(
                version=await self._store.write_record(kind, request.key, request.value, version)
            )

        return await self._answer(context, "WriteRecord", pb.WriteRecordResponse, work)

    async def RemoveRecord(self, request: pb.RemoveRecordRequest, context: Context) -> pb.RemoveRecordResponse:
        async def work() -> pb.RemoveRecordResponse:
            kind = _named(RecordKind, request.kind)
            await self._store.remove_record(kind, request.key, request.expected_version)
            return pb.RemoveRecordResponse()

        return await self._answer(context, "RemoveRecord", pb.RemoveRecordResponse, work)

    async def WatchLedgers(
        self, request_iterator: AsyncIterator[pb.WatchLedgersRequest], context: Context
    ) -> AsyncIterator[pb.WatchLedgersResponse]:
        if self._draining:
            await context.abort(grpc.StatusCode.UNAVAILABLE, "this gateway is stopping; ask another one")
        feed = LedgerFeedStream(self._factory)
        self._feeds[feed] = None
        try:
            async with aclosing(feed.serve(request_iterator)) as responses:  # type: ignore[type-var]
                async for response in responses:
                    yield response
        except IllegalOpException as error:
            yield pb.WatchLedgersResponse(code=_code(error), message=str(error))
        except Exception as error:
            await abort_with(context, "WatchLedgers", error)
        finally:
            del self._feeds[feed]

    async def _answer(
        self, context: Context, method: str, response: Callable[..., R], work: Callable[[], Awaitable[R]]
    ) -> R:
        """Returns the response of `work`: a domain outcome as its code, any other error as a gRPC status."""
        try:
            async with self._budget.call(method):
                return await work()
        except (MetaStoreException, UnknownOutcomeException, TooManyRequestsException) as error:
            return await abort_with(context, method, error)
        except BKException as error:
            return response(code=_code(error), message=str(error))
        except Exception as error:
            return await abort_with(context, method, error)


async def _claim(session: ReplicationSession, request: pb.ClaimRequest) -> pb.ClaimResponse:
    action = request.WhichOneof("action")
    if action == "try_lock":
        holder = check_length(request.try_lock.holder, "the holder of a lock")
        lock = await session.try_lock(request.number, number_in(request.try_lock), holder)
        return pb.ClaimResponse(token=None if lock is None else lock.token)
    if action == "release_lock":
        await session.release(request.number, number_in(request.release_lock))
    elif action == "check_lock":
        return pb.ClaimResponse(held=await session.is_held(request.check_lock))
    elif action == "stand":
        await session.stand(request.number, check_length(request.stand, "the name of a candidate"))
    elif action == "withdraw":
        await session.withdraw(request.withdraw)
    else:
        raise IncorrectParameterException("the request names no action")
    return pb.ClaimResponse()


def _code(error: BKException) -> StatusCode:
    if isinstance(error, LockLostException):
        return StatusCode.LOCK_LOST
    if isinstance(error, _SessionUnknownException):
        return StatusCode.SESSION_UNKNOWN
    if isinstance(error, IllegalOpException):
        return StatusCode.ILLEGAL_OPERATION
    return status_code(error)


def _change(what: ReplicationEvent | VoteEvent) -> pb.AttendResponse:
    if isinstance(what, MarksChanged):
        return pb.AttendResponse(marks_changed=True)
    if isinstance(what, SwitchChanged):
        return pb.AttendResponse(enabled=what.enabled)
    if isinstance(what, DelayChanged):
        return pb.AttendResponse(delay_written=pb.DelayWritten(seconds=what.seconds))
    if isinstance(what, DrainsChanged):
        return pb.AttendResponse(drains_changed=True)
    if isinstance(what, LockLost):
        return pb.AttendResponse(lock_lost=what.lock.token)
    number, state = what
    return pb.AttendResponse(vote_changed=pb.VoteChanged(vote=number, state=_VOTE_STATES[state]))


def _named(kind: Callable[[str], Any], name: str) -> Any:
    try:
        return kind(name)
    except ValueError:
        raise IncorrectParameterException(f"{name!r} is not known here") from None
