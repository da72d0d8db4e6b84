"""Runs `core.recovery` and `core.last_confirmed` against bookies: effects become requests, responses become events."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Sequence
from functools import partial
from typing import Any

from bookgate.ledger.entry import decode_entry, decode_lac, encode_entry
from bookgate.ledger.errors import BKException, DigestMatchException, WriteException
from bookgate.ledger.metadata_store import LedgerRecord
from bookgate.ledger.wire import messages
from bookgate.ledger.wire.fast_requests import AddRequestEncoder, ReadRequestEncoder
from bookgate.ledger.wire.messages import (
    ADD_ENTRY,
    EOK,
    HIGH_PRIORITY,
    LAST_ENTRY,
    READ_ENTRY,
    Operation,
    Response,
)
from bookgate.ledger.wire.v3 import encode_request
from bookgate.runtime.logs import log_event
from bookgate.thinclient.bookies.connection import Send, Sink
from bookgate.thinclient.core.ensemble_change import Failures, Replacements
from bookgate.thinclient.core.last_confirmed import LastConfirmedRead
from bookgate.thinclient.core.recovery import Effect, Failed, FenceRead, Finished, LedgerRecovery, RecoveryAdd, Replace
from bookgate.thinclient.core.recovery_reads import Answer, Missing, RecoveryRead, Unreadable
from bookgate.thinclient.core.writing import Member, PendingAdd
from bookgate.thinclient.handles.context import ClientContext, LedgerSecrets, status_error
from bookgate.thinclient.handles.ended_by_bugs import EndedByBugs, ended_by_bugs
from bookgate.thinclient.handles.ensemble_changer import RecentFailures, find_replacements, writer_rules
from bookgate.thinclient.handles.metadata_cas import begin_recovery, end_recovery, update
from bookgate.thinclient.handles.recovery_answers import MISSING_STATUSES, entries_behind, entry_of, takes_runs

_log = logging.getLogger(__name__)


async def recover(context: ClientContext, record: LedgerRecord, secrets: LedgerSecrets) -> LedgerRecord:
    """Marks a ledger IN_RECOVERY, fences, recovers and closes it; returns its closed record.

    Raises LedgerRecoveryException, TimeoutException or UnauthorizedAccessException; the ledger then stays IN_RECOVERY.
    """
    record = await update(context.ledger_manager, record, begin_recovery, context.config.retries)
    if record.metadata.is_closed:
        return record
    finished = await _Run(context, record, secrets).run()
    transform = end_recovery(finished.last_entry_id, finished.length, finished.fragments)
    return await update(context.ledger_manager, record, transform, context.config.retries)


class _Run(EndedByBugs[Finished]):
    """One recovery in progress."""

    def __init__(self, context: ClientContext, record: LedgerRecord, secrets: LedgerSecrets) -> None:
        super().__init__(record.ledger_id)
        self._context = context
        self._pool = context.pool
        self._config = context.config
        self._record = record
        self._secrets = secrets
        self._machine = LedgerRecovery(
            record.ledger_id,
            record.metadata,
            writer_rules(self._config),
            self._config.recovery_read_batch_entries,
            runs=takes_runs(self._config),
        )
        number, key = record.ledger_id.number, secrets.master_key
        self._reads = ReadRequestEncoder(number, key, HIGH_PRIORITY)
        self._adds = AddRequestEncoder(number, key, recovery=True, priority=HIGH_PRIORITY)
        self._routes: dict[Member, tuple[Send, Sink]] = {}
        self._failures = RecentFailures(self._config.failed_bookie_interval_seconds, self._loop.time)
        self._replacing: asyncio.Task[None] | None = None

    async def run(self) -> Finished:
        self._begin()
        try:
            return await self._result
        finally:
            if self._replacing is not None:
                self._replacing.cancel()

    @ended_by_bugs
    def _begin(self) -> None:
        self._perform(self._machine.begin())

    def _perform(self, effects: Sequence[Effect]) -> None:
        queue = deque(effects)
        while queue and not self._result.done():
            match queue.popleft():
                case FenceRead(index, bookie_id):
                    self._read(LAST_ENTRY, bookie_id, partial(self._on_fence_answer, index))
                case RecoveryRead(entry_id, bookie_id, following):
                    self._read(entry_id, bookie_id, partial(self._on_read_answer, entry_id), following)
                case RecoveryAdd(add, payload, members):
                    self._add(add, payload, members)
                case Replace(ensemble, failed):
                    self._replacing = self._start(self._replace(ensemble, failed))
                case Finished() as finished:
                    self._result.set_result(finished)
                case Failed(error):
                    self._result.set_exception(error)

    async def _replace(self, ensemble: tuple[str, ...], failed: Failures) -> None:
        for bookie_id in failed.values():
            self._failures.note(bookie_id)
        found: Replacements = {}
        try:
            avoid = self._failures.bookies
            found = await find_replacements(self._context, self._record, ensemble, failed, avoid)
        except Exception as error:  # including errors of a placement policy
            # Recovery continues with the remaining bookies, if they are enough.
            log_event(_log, "ensemble_not_changed", logging.WARNING, ledger=self._ledger_id, error=error)
        self._perform(self._machine.on_replacements(found))

    def _read(self, entry_id: int, bookie_id: str, sink: Any, following: int = 0) -> None:
        txn_id = self._pool.next_txn_id()
        if entry_id == LAST_ENTRY:
            ledger_id, key = self._ledger_id.number, self._secrets.master_key
            frame = encode_request(messages.ReadRequest(txn_id, ledger_id, LAST_ENTRY, True, key))
        else:
            frame = self._reads.encode(txn_id, entry_id, following)
        deadline = self._loop.time() + self._config.read_timeout_seconds
        connection = self._pool.connection(bookie_id, self._ledger_id.number)
        connection.send(READ_ENTRY, txn_id, frame, deadline, sink, bookie_id)

    def _add(self, add: PendingAdd, payload: bytes, members: Sequence[Member]) -> None:
        ledger_id = self._ledger_id.number
        packet = encode_entry(
            self._secrets.digest, ledger_id, add.entry_id, add.last_add_confirmed, add.length, payload
        )
        txn_id = self._pool.next_txn_id()
        frame = self._adds.encode(txn_id, add.entry_id, packet)
        deadline = self._loop.time() + self._config.add_timeout_seconds
        for member in members:
            send, sink = self._routes.get(member) or self._route(member)
            send(ADD_ENTRY, txn_id, frame, deadline, sink, add)

    def _route(self, member: Member) -> tuple[Send, Sink]:
        """Where a member's adds go, and what hears of the responses."""
        connection = self._pool.connection(member.bookie_id, self._ledger_id.number)
        route = self._routes[member] = (connection.send, partial(self._on_add_answer, member))
        return route

    @ended_by_bugs
    def _on_fence_answer(
        self, index: int, bookie_id: str, response: Response | None, error: BKException | None
    ) -> None:
        answer = self._answer(LAST_ENTRY, bookie_id, response, error)
        self._perform(self._machine.on_fence_answer(index, answer))

    @ended_by_bugs
    def _on_read_answer(
        self, entry_id: int, bookie_id: str, response: Response | None, error: BKException | None
    ) -> None:
        answer = self._answer(entry_id, bookie_id, response, error)
        following = entries_behind(self._secrets, self._ledger_id.number, entry_id, response)
        self._perform(self._machine.on_read_answer(entry_id, answer, following))

    @ended_by_bugs
    def _on_add_answer(
        self, member: Member, add: PendingAdd, response: Response | None, error: BKException | None
    ) -> None:
        if response is not None and response.status == EOK:
            effects = self._machine.on_add_ack(add, member)
            if effects:
                self._perform(effects)
            return
        if response is not None:
            what = f"recovery add of entry {add.entry_id}"
            error = status_error(response.status, member.bookie_id, self._ledger_id, what, WriteException)
        error = error or WriteException(f"bookie {member.bookie_id} gave no answer")
        self._context.health.on_error(member.bookie_id, error)
        self._perform(self._machine.on_add_failure(add, member, error))

    def _answer(self, entry_id: int, bookie_id: str, response: Response | None, error: BKException | None) -> Answer:
        if response is None:
            return Unreadable(error or BKException(f"bookie {bookie_id} gave no answer"))
        if response.status in MISSING_STATUSES:
            return Missing.MISSING
        if response.status != EOK:
            what = "the fencing read" if entry_id == LAST_ENTRY else f"the recovery read of entry {entry_id}"
            return Unreadable(status_error(response.status, bookie_id, self._ledger_id, what))
        return entry_of(self._secrets, self._ledger_id.number, entry_id, bookie_id, response)


async def read_last_confirmed(
    context: ClientContext, record: LedgerRecord, secrets: LedgerSecrets
) -> LastConfirmedRead:
    """Asks the last ensemble for the LAC, without fencing. Raises ReadException, TimeoutException, Unauthorized…."""
    read = LastConfirmedRead(record.ledger_id, record.metadata)
    loop = asyncio.get_running_loop()
    done: asyncio.Future[None] = loop.create_future()

    def sink(index: int, response: Response | None, error: BKException | None) -> None:
        _take_lac_answer(read, record, secrets, index, response, error)
        if read.done and not done.done():
            done.set_result(None)

    deadline = loop.time() + context.config.read_timeout_seconds
    for index, bookie_id in enumerate(read.bookies):
        request = messages.ReadLacRequest(context.pool.next_txn_id(), record.ledger_id.number)
        connection = context.pool.connection(bookie_id, record.ledger_id.number)
        connection.send(Operation.READ_LAC, request.txn_id, encode_request(request), deadline, sink, index)
    await done
    if read.error is not None:
        raise read.error
    return read


def _take_lac_answer(
    read: LastConfirmedRead,
    record: LedgerRecord,
    secrets: LedgerSecrets,
    index: int,
    response: Response | None,
    error: BKException | None,
) -> None:
    bookie_id, ledger_id = read.bookies[index], record.ledger_id
    if response is None:
        read.on_error(index, error or BKException(f"bookie {bookie_id} gave no answer"))
    elif response.status in MISSING_STATUSES:
        read.on_answer(index, -1, False)
    elif response.status != EOK or not isinstance(response, messages.ReadLacResponse):
        read.on_error(index, status_error(response.status, bookie_id, ledger_id, "the LAC read"))
    else:
        try:
            lac, has_entries = _lac_of(response, secrets, ledger_id.number)
        except DigestMatchException as damaged:
            read.on_error(index, DigestMatchException(f"bookie {bookie_id}: {damaged}"))
        else:
            read.on_answer(index, lac, has_entries)


def _lac_of(response: messages.ReadLacResponse, secrets: LedgerSecrets, ledger_id: int) -> tuple[int, bool]:
    lac = -1
    if response.lac_body:
        lac = decode_lac(secrets.digest, response.lac_body, ledger_id)
    if response.last_entry_body:
        lac = max(lac, decode_entry(secrets.digest, response.last_entry_body, ledger_id, None).last_add_confirmed)
    return lac, bool(response.last_entry_body)
