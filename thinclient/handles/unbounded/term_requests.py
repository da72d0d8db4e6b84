"""Requests with a term: the adds of a writer or a take-over, the reads of a take-over, and their responses.

A response counts for its term only; the cores ignore those of another term (U2). A bookie that does not support terms
responds without one, and has stored an entry that the next term could not fence off: it counts as failed.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import NamedTuple

from bookgate.ledger.errors import BKException, IllegalOpException, WriteException
from bookgate.ledger.ledger_id import LedgerId
from bookgate.ledger.wire.fast_requests import TermAddEncoder
from bookgate.ledger.wire.messages import (
    ADD_ENTRY,
    EOK,
    HIGH_PRIORITY,
    LAST_ENTRY,
    READ_ENTRY,
    AddRequest,
    AddResponse,
    ReadRequest,
    Response,
)
from bookgate.ledger.wire.v3 import encode_request
from bookgate.thinclient.core.unbounded.adds import Add, Place
from bookgate.thinclient.handles.context import ClientContext, LedgerSecrets, status_error

AddAnswer = Callable[[Place, Add, Response | None, BKException | None], None]
ReadAnswer = Callable[[str, Response | None, BKException | None], None]


class TermAddSender:
    """Sends adds of one ledger in one term. Consecutive equal requests are encoded once."""

    def __init__(
        self,
        context: ClientContext,
        ledger_id: LedgerId,
        secrets: LedgerSecrets,
        term: int,
        on_answer: AddAnswer,
        *,
        recovery: bool = False,
    ) -> None:
        self._pool = context.pool
        self._timeout = context.config.add_timeout_seconds
        self._number = ledger_id.number
        self._key = secrets.master_key
        self._term = term
        self._recovery = recovery
        priority = HIGH_PRIORITY if recovery else 0
        self._encoder = TermAddEncoder(self._number, self._key, term, recovery=recovery, priority=priority)
        self._on_answer = on_answer
        self._loop = asyncio.get_running_loop()
        self._last: _Frame | None = None

    def send(self, add: Add, packet: bytes, place: Place, *, truncate: bool) -> None:
        """Sends the add to one bookie; the response is reported with the place."""
        frame = self._last
        if frame is None or frame.add is not add or frame.truncate != truncate:
            frame = self._last = self._encode(add, packet, truncate)
        deadline = self._loop.time() + self._timeout
        connection = self._pool.connection(place.bookie_id, self._number)
        connection.send(ADD_ENTRY, frame.txn_id, frame.data, deadline, self._answered, (place, add))

    def _encode(self, add: Add, packet: bytes, truncate: bool) -> _Frame:
        txn_id = self._pool.next_txn_id()
        if not truncate:
            data = self._encoder.encode_add(txn_id, add.entry_id, packet, add.lafr)
            return _Frame(add, truncate, txn_id, data)
        request = AddRequest(
            txn_id,
            self._number,
            add.entry_id,
            self._key,
            packet,
            self._recovery,
            priority=HIGH_PRIORITY if self._recovery else 0,
            term=self._term,
            lafr=add.lafr,
            truncate=truncate,
        )
        return _Frame(add, truncate, txn_id, encode_request(request))

    def _answered(self, sent: tuple[Place, Add], response: Response | None, error: BKException | None) -> None:
        self._on_answer(*sent, response, error)


class _Frame(NamedTuple):
    add: Add
    truncate: bool
    txn_id: int
    data: bytes


def add_failure(
    ledger_id: LedgerId, place: Place, add: Add, response: Response | None, error: BKException | None
) -> BKException | None:
    """The error if the add counts as failed at the bookie; None if the response confirms that it is stored."""
    if type(response) is AddResponse and response.status == EOK and response.term is not None:
        return None
    if response is None:
        return error or WriteException(f"bookie {place.bookie_id} gave no answer")
    if response.status != EOK:
        return status_error(
            response.status, place.bookie_id, ledger_id, f"the add of entry {add.entry_id}", WriteException
        )
    if answered_term(response) is None:
        return IllegalOpException(f"bookie {place.bookie_id} does not honour the terms of ledger {ledger_id}")
    return None


def answered_term(response: Response | None) -> int | None:
    """The term of a response, if any."""
    return response.term if isinstance(response, AddResponse) else getattr(response, "term", None)


def send_term_read(
    context: ClientContext,
    ledger_id: LedgerId,
    secrets: LedgerSecrets,
    term: int,
    entry_id: int,
    bookie_id: str,
    on_answer: ReadAnswer,
) -> None:
    """Reads an entry, or with `LAST_ENTRY` fences; in both cases the bookie records the term."""
    pool, number = context.pool, ledger_id.number
    request = ReadRequest(
        pool.next_txn_id(),
        number,
        entry_id,
        fence=entry_id == LAST_ENTRY,
        master_key=secrets.master_key,
        priority=HIGH_PRIORITY,
        term=term,
    )
    deadline = asyncio.get_running_loop().time() + context.config.read_timeout_seconds
    connection = pool.connection(bookie_id, number)
    connection.send(READ_ENTRY, request.txn_id, encode_request(request), deadline, on_answer, bookie_id)
