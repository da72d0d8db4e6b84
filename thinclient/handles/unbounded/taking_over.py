"""Takes an unbounded ledger over: runs `core.unbounded.taking_over` against bookies and the metadata.

A failure leaves the ledger IN_RECOVERY; any client may try again, with a higher term. Source:
docs/protocol/unbounded-ledgers.md#taking-over.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections import deque
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, cast

from bookgate.ledger.entry import Entry, encode_entry
from bookgate.ledger.errors import BKException, IllegalOpException, NotEnoughBookiesException
from bookgate.ledger.ledger_id import NO_ENTRY
from bookgate.ledger.metadata_store import LedgerRecord
from bookgate.ledger.unbounded import terms_of
from bookgate.ledger.wire.messages import EOK, LAST_ENTRY, ReadResponse, Response
from bookgate.runtime.logs import log_event
from bookgate.thinclient.core.recovery import Failed, FenceRead, Replace
from bookgate.thinclient.core.recovery_reads import Answer, Missing, RecoveryRead, Unreadable
from bookgate.thinclient.core.unbounded.adds import Add, Horizon, Place, RetryLater
from bookgate.thinclient.core.unbounded.changes import Holder, taken, taking
from bookgate.thinclient.core.unbounded.taking_over import Effect, Patience, TakenOver, TakeOver, TakeOverAdd
from bookgate.thinclient.handles.context import ClientContext, LedgerSecrets, status_error
from bookgate.thinclient.handles.ended_by_bugs import EndedByBugs, ended_by_bugs
from bookgate.thinclient.handles.metadata_cas import update
from bookgate.thinclient.handles.recovery_answers import MISSING_STATUSES, entries_behind, entry_of, takes_runs
from bookgate.thinclient.handles.unbounded.bookie_finder import BookieFinder
from bookgate.thinclient.handles.unbounded.term_requests import (
    TermAddSender,
    add_failure,
    answered_term,
    is_stored,
    send_term_read,
)

_log = logging.getLogger(__name__)

_OTHER_TERM = -1
"""Represents the term of a response without one."""


async def take_over(
    context: ClientContext, record: LedgerRecord, secrets: LedgerSecrets, rng: random.Random
) -> tuple[LedgerRecord, TakenOver]:
    """Takes the ledger over with the term after that of `record`.

    Returns:
        The stored metadata, OPEN with the new term, and the position at which the writer continues.

    Raises:
        TermSupersededException: Another client was faster.
        LedgerClosedException: The ledger is closed.
        LedgerRecoveryException: Too few bookies responded; the caller may try again.
        BKException: An error of the metadata.
    """
    number = rng.getrandbits(63) or 1
    manager, retries = context.ledger_manager, context.config.retries
    record = await update(manager, record, taking(record.metadata, number), retries)
    term = terms_of(record.metadata).term
    log_event(_log, "take_over_began", ledger=record.ledger_id, term=term)
    try:
        with context.metrics.timed("LEDGER_RECOVER"):
            found = await _Run(context, record, secrets).run()
            record = await update(
                manager, record, taken(Holder(term, number), record.metadata, found.fragments), retries
            )
    except BKException as error:
        log_event(_log, "take_over_failed", logging.WARNING, ledger=record.ledger_id, term=term, error=error)
        raise
    log_event(_log, "ledger_taken_over", ledger=record.ledger_id, term=term, truncate_entry=found.truncate_entry_id)
    return record, found


class _Run(EndedByBugs[TakenOver]):
    """One take-over in progress."""

    def __init__(self, context: ClientContext, record: LedgerRecord, secrets: LedgerSecrets) -> None:
        super().__init__(record.ledger_id)
        self._context = context
        self._record = record
        self._secrets = secrets
        config = context.config
        batch = config.recovery_read_batch_entries
        self._core = TakeOver(record.ledger_id, record.metadata, batch, runs=takes_runs(config))
        self._adds = TermAddSender(
            context, record.ledger_id, secrets, self._core.term, self._on_add_answer, recovery=True
        )
        self._finder = BookieFinder(context)
        self._placing: asyncio.Task[None] | None = None
        self._retry: asyncio.TimerHandle | None = None
        self._patience = Patience(config.ensemble_change_timeout_seconds)

    async def run(self) -> TakenOver:
        self._begin()
        try:
            return await self._result
        finally:
            if self._placing is not None:
                self._placing.cancel()
            if self._retry is not None:
                self._retry.cancel()

    @ended_by_bugs
    def _begin(self) -> None:
        self._perform(self._core.begin())

    def _perform(self, effects: Sequence[Effect]) -> None:
        queue = deque(effects)
        while queue and not self._result.done():
            match queue.popleft():
                case FenceRead(index, bookie_id):
                    self._read(LAST_ENTRY, bookie_id, partial(self._on_fence_answer, index))
                case RecoveryRead(entry_id, bookie_id, following):
                    self._read(entry_id, bookie_id, partial(self._on_read_answer, entry_id), following)
                case TakeOverAdd(add, payload, places):
                    add.packet = add.packet or self._packet(add, payload)
                    self._adds.send(add, places, truncate=add.truncate)
                case Replace() as wanted:
                    self._placing = self._start(self._replace(wanted))
                case RetryLater(failed):
                    self._retry_later(failed)
                case TakenOver() as found:
                    self._result.set_result(found)
                case Failed(error):
                    self._result.set_exception(error)

    def _packet(self, add: Add, payload: bytes) -> bytes:
        number = self._ledger_id.number
        return encode_entry(self._secrets.digest, number, add.entry_id, add.last_add_confirmed, add.length, payload)

    async def _replace(self, wanted: Replace) -> None:
        found = await self._finder.replacements(self._record, wanted, self._core.avoided)
        self._perform(self._core.on_replacements(found))

    def _retry_later(self, failed: Mapping[str, BKException]) -> None:
        """Schedules a retry: bookies without a replacement failed, and a take-over must reach all of them."""
        if self._retry is not None:
            self._retry.cancel()
        config = self._context.config
        if not self._patience.is_over(self._core.last_replicated, self._loop.time()):
            pause = min(config.failed_bookie_interval_seconds, config.ensemble_change_timeout_seconds)
            self._retry = self._loop.call_later(pause, self._retry_now)
            return
        reasons = "; ".join(f"{bookie}: {error}" for bookie, error in failed.items())
        self._result.set_exception(
            NotEnoughBookiesException(
                f"ledger {self._ledger_id} can't be taken over: what its last writer left must be on all bookies of "
                f"its last fragment, and there is none in place of those that fail ({reasons}). Try again later",
                ledger_id=self._ledger_id,
                bookies=failed,
            )
        )

    @ended_by_bugs
    def _retry_now(self) -> None:
        self._perform(self._core.retry())

    def _read(self, entry_id: int, bookie_id: str, on_answer: Any, following: int = 0) -> None:
        term = self._core.term
        send_term_read(self._context, self._ledger_id, self._secrets, term, entry_id, bookie_id, on_answer, following)

    # Responses

    @ended_by_bugs
    def _on_fence_answer(
        self, index: int, bookie_id: str, response: Response | None, error: BKException | None
    ) -> None:
        answer: Horizon | Unreadable
        refused = self._refused(bookie_id, response, error, "the fencing read")
        if refused is not None:
            answer = refused
        else:
            told = cast(ReadResponse, response)
            answer = Horizon(
                NO_ENTRY if told.max_lac is None else told.max_lac, NO_ENTRY if told.lafr is None else told.lafr
            )
        self._perform(self._core.on_fence_answer(index, answer, _term_of(response)))

    @ended_by_bugs
    def _on_read_answer(
        self, entry_id: int, bookie_id: str, response: Response | None, error: BKException | None
    ) -> None:
        refused = self._refused(bookie_id, response, error, f"the recovery read of entry {entry_id}")
        answer: Answer
        following: Sequence[Entry] = ()
        if refused is not None:
            answer = refused
        elif response is not None and response.status in MISSING_STATUSES:
            answer = Missing.MISSING
        else:
            found, number = cast(ReadResponse, response), self._ledger_id.number
            answer = entry_of(self._secrets, number, entry_id, bookie_id, found)
            following = entries_behind(self._secrets, number, entry_id, found)
        self._perform(self._core.on_read_answer(entry_id, bookie_id, answer, _term_of(response), following))

    @ended_by_bugs
    def _on_add_answer(self, place: Place, add: Add, response: Response | None, error: BKException | None) -> None:
        if is_stored(response):
            effects = self._core.on_add_ack(add, place, _term_of(response))
            if effects:
                self._perform(effects)
            return
        failure = add_failure(self._ledger_id, place, add, response, error)
        self._context.health.on_error(place.bookie_id, failure)
        self._perform(self._core.on_add_failure(place, failure, add))

    def _refused(
        self, bookie_id: str, response: Response | None, error: BKException | None, what: str
    ) -> Unreadable | None:
        """The reason why a response is unusable; None if it is usable."""
        if response is None:
            return Unreadable(error or BKException(f"bookie {bookie_id} gave no answer"))
        if response.status not in (EOK, *MISSING_STATUSES):
            return Unreadable(status_error(response.status, bookie_id, self._ledger_id, what))
        if answered_term(response) is None:
            return Unreadable(
                IllegalOpException(f"bookie {bookie_id} does not honour the terms of ledger {self._ledger_id}")
            )
        return None


def _term_of(response: Response | None) -> int:
    term = answered_term(response)
    return _OTHER_TERM if term is None else term
