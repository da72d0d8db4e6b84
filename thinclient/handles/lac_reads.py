"""Reads the LAC from bookies: carries out `TryLastConfirmedRead` and `LongPollRead` of the core.

Responses that arrive after a call has ended still contain a LAC, which is passed to `learn`. A cancelled long poll
stays at its bookie until that responds, at most for the given time; only the LAC of that response is used.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

from bookgate.ledger.entry import Entry, decode_entry
from bookgate.ledger.errors import BKException, DigestMatchException
from bookgate.ledger.ledger_id import NO_ENTRY
from bookgate.ledger.metadata_store import LedgerRecord
from bookgate.ledger.unbounded import is_provisional, may_show
from bookgate.ledger.wire.messages import EOK, LAST_ENTRY, READ_ENTRY, ReadRequest, ReadResponse, Response, Status
from bookgate.ledger.wire.v3 import encode_request
from bookgate.thinclient.core.entry_read import write_set_bookies
from bookgate.thinclient.core.last_confirmed import TryLastConfirmedRead
from bookgate.thinclient.core.tailing import LastConfirmedAndEntry, LongPollRead, PollTimes
from bookgate.thinclient.handles.context import ClientContext, LedgerSecrets, status_error

Learn = Callable[[int], None]
"""Called with each LAC that a bookie reports."""

_NOTHING_CONFIRMED = (Status.ENOENTRY, Status.ENOLEDGER, Status.ENOTCONFIRMED)
"""Valid responses of a bookie that holds no entry, or in an unbounded ledger none that it knows to be confirmed."""


async def try_read_last_confirmed(
    context: ClientContext, record: LedgerRecord, secrets: LedgerSecrets, known: int, learn: Learn
) -> int:
    """The first LAC above `known` that a bookie reports, else the highest known once all have responded.

    Raises LedgerRecoveryException if no bookie gives a valid response, UnauthorizedAccessException.
    """
    read = TryLastConfirmedRead(record.ledger_id, record.metadata, known)
    loop = asyncio.get_running_loop()
    done: asyncio.Future[None] = loop.create_future()

    def sink(index: int, response: Response | None, error: BKException | None) -> None:
        bookie_id = read.bookies[index]
        try:
            if error is not None:
                raise error
            lac, _ = _lac_and_entry(response, bookie_id, record, secrets, None)
        except BKException as failed:
            if response is not None and response.status in _NOTHING_CONFIRMED:
                read.on_answer(index, NO_ENTRY)
            else:
                read.on_error(index, failed)
        else:
            read.on_answer(index, lac)
            learn(lac)
        if read.done and not done.done():
            done.set_result(None)

    deadline = loop.time() + context.config.read_timeout_seconds
    ledger_id = record.ledger_id.number
    for index, bookie_id in enumerate(read.bookies):
        request = ReadRequest(context.pool.next_txn_id(), ledger_id, LAST_ENTRY)
        connection = context.pool.connection(bookie_id, ledger_id)
        connection.send(READ_ENTRY, request.txn_id, encode_request(request), deadline, sink, index)
    await done
    if read.error is not None:
        raise read.error
    return read.result


class LongPoll:
    """One wait for an entry above the LAC. Await `result`; `cancel` it if it is not needed any more."""

    def __init__(
        self,
        context: ClientContext,
        record: LedgerRecord,
        secrets: LedgerSecrets,
        entry_id: int,
        known: int,
        learn: Learn,
        *,
        timeout: float | None = None,
        parallel: bool = False,
    ) -> None:
        """Starts the wait. `timeout`: seconds for which each bookie may delay its response."""
        config = context.config
        self._context = context
        self._record = record
        self._secrets = secrets
        self._learn = learn
        self._timeout = config.long_poll_timeout_seconds if timeout is None else timeout
        self._loop = asyncio.get_running_loop()
        times = PollTimes(config.first_speculative_lac_timeout_seconds, config.max_speculative_lac_timeout_seconds)
        self._read = LongPollRead(
            record.metadata, entry_id, known, parallel=parallel, times=times, health=context.read_health
        )
        self.result: asyncio.Future[LastConfirmedAndEntry] = self._loop.create_future()
        self._timer: asyncio.TimerHandle | None = None
        self._began = self._loop.time()
        self._go_on(self._read.begin(self._loop.time()))

    def cancel(self) -> None:
        """Ends the wait."""
        self.result.cancel()
        if self._timer is not None:
            self._timer.cancel()

    def _go_on(self, to_ask: Sequence[str]) -> None:
        for bookie_id in to_ask:
            self._poll(bookie_id)
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self.result.done():
            return
        if self._read.done:
            stats = self._context.metrics.operations["READ_LAST_CONFIRMED_AND_ENTRY"]
            (stats.success if self._read.error is None else stats.failure)(self._loop.time() - self._began)
        if self._read.error is not None:
            self.result.set_exception(self._read.error)
        elif self._read.result is not None:
            self.result.set_result(self._read.result)
        elif self._read.next_time is not None:
            self._timer = self._loop.call_at(self._read.next_time, self._on_time)

    def _poll(self, bookie_id: str) -> None:
        pool, ledger_id = self._context.pool, self._record.ledger_id.number
        request = ReadRequest(
            pool.next_txn_id(),
            ledger_id,
            LAST_ENTRY,
            previous_lac=self._read.previous_lac,
            timeout_ms=int(self._timeout * 1000),
            piggyback=True,
        )
        # The bookie may use the whole timeout; the time for its response starts only then.
        deadline = self._loop.time() + self._timeout + self._context.config.read_timeout_seconds
        connection = pool.connection(bookie_id, ledger_id)
        frame = encode_request(request)
        connection.send(READ_ENTRY, request.txn_id, frame, deadline, self._on_answer, bookie_id)

    def _on_time(self) -> None:
        self._timer = None
        self._go_on(self._read.on_time(self._loop.time()))

    def _on_answer(self, bookie_id: str, response: Response | None, error: BKException | None) -> None:
        now = self._loop.time()
        try:
            if error is not None:
                raise error
            lac, entry = _lac_and_entry(response, bookie_id, self._record, self._secrets, self._read.entry_id)
        except BKException as failed:
            if not self.result.done():
                self._go_on(self._read.on_error(bookie_id, failed, now))
            return
        self._learn(lac)
        if not self.result.done():
            self._go_on(self._read.on_answer(bookie_id, lac, entry, now))


def _lac_and_entry(
    response: Response | None, bookie_id: str, record: LedgerRecord, secrets: LedgerSecrets, wanted: int | None
) -> tuple[int, Entry | None]:
    """The LAC in the response to a read of entry -1, and the entry if it is the wanted one, from one of its write set.

    A bookie without long polls responds with its last entry, under id -1: only the LAC in it counts. Long polls go to
    the whole ensemble. Outside of its write set a bookie of an unbounded ledger may hold another entry under this id,
    of an earlier term in which it had another place.
    """
    if not isinstance(response, ReadResponse) or response.status != EOK:
        status = Status.EBADREQ if response is None else response.status
        raise status_error(status, bookie_id, record.ledger_id, "the read of the last entry")
    lac = NO_ENTRY if response.max_lac is None else response.max_lac
    if not response.body:
        return lac, None
    asked = response.entry_id if response.entry_id == wanted else None
    try:
        entry = decode_entry(secrets.digest, response.body, record.ledger_id.number, asked)
    except DigestMatchException as error:
        raise DigestMatchException(f"bookie {bookie_id}: {error}") from error
    lac = max(lac, entry.last_add_confirmed)
    if not may_show(record.metadata, entry.entry_id, response.term) or is_provisional(record.metadata, entry.entry_id):
        return lac, None
    if asked is None or bookie_id not in write_set_bookies(record.metadata, asked):
        return lac, None
    return lac, entry if lac >= asked else None
