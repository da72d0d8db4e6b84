"""Requests with a term: the adds of a writer or a take-over, the reads of a take-over, and their responses.

A response counts for its term only; the cores ignore those of another term (U2). A bookie that does not support terms
responds without one, and has stored an entry that the next term could not fence off: it counts as failed.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from functools import partial
from typing import TypeGuard

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
from bookgate.thinclient.bookies.connection import Send, Sink
from bookgate.thinclient.core.unbounded.adds import Add, Place
from bookgate.thinclient.handles.context import ClientContext, LedgerSecrets, status_error

AddAnswer = Callable[[Place, Add, Response | None, BKException | None], None]
ReadAnswer = Callable[[str, Response | None, BKException | None], None]


class TermAddSender:
    """Sends adds of one ledger in one term."""

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

    def send(self, add: Add, places: Sequence[Place], *, truncate: bool) -> None:
        """Sends the add, whose packet is `Add.packet`, to bookies; each response is reported with its place."""
        txn_id = self._pool.next_txn_id()
        if truncate:
            frame = encode_request(self._truncating(txn_id, add))
        else:
            frame = self._encoder.encode_add(txn_id, add.entry_id, add.packet, add.lafr)
        deadline = self._loop.time() + self._timeout
        for place in places:
            send, sink = place.route or self._route(place)
            send(ADD_ENTRY, txn_id, frame, deadline, sink, add)

    def _route(self, place: Place) -> tuple[Send, Sink]:
        """Where requests to a bookie go, and what hears of the responses."""
        connection = self._pool.connection(place.bookie_id, self._number)
        route = place.route = (connection.send, partial(self._on_answer, place))
        return route

    def _truncating(self, txn_id: int, add: Add) -> AddRequest:
        return AddRequest(
            txn_id,
            self._number,
            add.entry_id,
            self._key,
            add.packet,
            self._recovery,
            priority=HIGH_PRIORITY if self._recovery else 0,
            term=self._term,
            lafr=add.lafr,
            truncate=True,
        )


def is_stored(response: Response | None) -> TypeGuard[AddResponse]:
    """Whether the response confirms that an add is stored, at the term that it names."""
    return type(response) is AddResponse and response.status == EOK and response.term is not None


def add_failure(
    ledger_id: LedgerId, place: Place, add: Add, response: Response | None, error: BKException | None
) -> BKException:
    """The error with which an add counts as failed at the bookie, unless its response says that it is stored.

    A refused request is over. One that is stored at no term is not: the bookie can't be told to truncate.
    """
    if response is None:
        return error or WriteException(f"bookie {place.bookie_id} gave no answer")
    if response.status != EOK:
        what = f"the add of entry {add.entry_id}"
        error = status_error(response.status, place.bookie_id, ledger_id, what, WriteException)
        return error.of_request_over()
    return IllegalOpException(f"bookie {place.bookie_id} does not honour the terms of ledger {ledger_id}")


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
    following: int = 0,
) -> None:
    """Reads an entry and at most so many `following` ones, or with `LAST_ENTRY` fences; the bookie records the term."""
    pool, number = context.pool, ledger_id.number
    request = ReadRequest(
        pool.next_txn_id(),
        number,
        entry_id,
        fence=entry_id == LAST_ENTRY,
        master_key=secrets.master_key,
        priority=HIGH_PRIORITY,
        term=term,
        following=following,
    )
    deadline = asyncio.get_running_loop().time() + context.config.read_timeout_seconds
    connection = pool.connection(bookie_id, number)
    connection.send(READ_ENTRY, request.txn_id, encode_request(request), deadline, on_answer, bookie_id)
