"""Sends a writer's last add confirmed at intervals, when `core.explicit_lac` requires it, to the bookies that it names.

States: idle (nothing to send; no timer) → running, by `start` with the next entry → idle. Responses are only counted: a
bookie that missed one LAC receives the next. Not its job: durability.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field

from bookgate.ledger.entry import encode_lac
from bookgate.ledger.errors import BKException
from bookgate.ledger.metadata import LedgerMetadata
from bookgate.ledger.wire import messages
from bookgate.ledger.wire.messages import Operation, Response, Status
from bookgate.ledger.wire.v3 import encode_request
from bookgate.runtime.clock import precise
from bookgate.thinclient.core.explicit_lac import ConfirmedWriter, ExplicitLacRule
from bookgate.thinclient.handles.context import ClientContext, LedgerSecrets


class ExplicitLacTimer:
    """The timer of one writer; `stop` ends it for good."""

    def __init__(
        self,
        context: ClientContext,
        writer: Callable[[], ConfirmedWriter],
        number: int,
        secrets: LedgerSecrets,
        metadata: LedgerMetadata,
    ) -> None:
        """`writer` is a method of the handle: it keeps the handle alive, so that closing the client can end both."""
        self._context = context
        self._writer = writer
        self._number = number
        self._secrets = secrets
        self._ack_quorum_size = metadata.ack_quorum_size
        self._rule = ExplicitLacRule()
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None
        self.idle = True
        """If true, `start` must be called with the next entry."""

    def start(self) -> None:
        """Starts the timer; called when an entry is sent."""
        self.idle = False
        self._timer = self._loop.call_later(self._context.config.explicit_lac_interval_seconds, self._tick)

    async def send_now(self) -> None:
        """Sends the present LAC if the bookies may not know it, and waits until an ack quorum has it, or all have
        responded or failed. No bookie may get it if all of the ensemble have entries of an earlier term.
        """
        lac = self._writer().last_add_confirmed
        if self.idle or not self._writer().lac_receivers(lac):
            return
        stored: asyncio.Future[None] = self._loop.create_future()
        self._send(lac, stored)
        await stored

    def stop(self) -> None:
        self.idle = False
        if self._timer is not None:
            self._timer.cancel()

    def _tick(self) -> None:
        writer = self._writer()
        lac = self._rule.due(writer.last_add_confirmed, writer.previous_last_add_confirmed)
        if lac is not None:
            self._send(lac)
        if self._rule.has_said_all(writer.last_add_pushed):
            self.idle = True
        else:
            self.start()

    def _send(self, lac: int, done: asyncio.Future[None] | None = None) -> None:
        pool = self._context.pool
        body = encode_lac(self._secrets.digest, self._number, lac)
        request = messages.WriteLacRequest(pool.next_txn_id(), self._number, lac, self._secrets.master_key, body)
        frame = encode_request(request)
        deadline = self._loop.time() + self._context.config.add_timeout_seconds
        receivers = self._writer().lac_receivers(lac)
        written = _Written(self._context, self._ack_quorum_size, len(receivers), done)
        for bookie_id in receivers:
            connection = pool.connection(bookie_id, self._number)
            connection.send(Operation.WRITE_LAC, request.txn_id, frame, deadline, _on_answer, written)


@dataclass(slots=True)
class _Written:
    """The responses to one explicit LAC that are still outstanding."""

    context: ClientContext
    acks_missing: int
    unanswered: int
    done: asyncio.Future[None] | None = None
    """Somebody waits for it."""
    began: float = field(default_factory=precise)


def _on_answer(written: _Written, response: Response | None, _error: BKException | None) -> None:
    written.unanswered -= 1
    stats = written.context.metrics.operations["WRITE_LAC"]
    if response is not None and response.status == Status.EOK:
        written.acks_missing -= 1
        if not written.acks_missing:
            stats.success(precise() - written.began)
    if not written.unanswered and written.acks_missing > 0:
        stats.failure(precise() - written.began)
    if written.done is not None and not written.done.done() and not (written.acks_missing > 0 and written.unanswered):
        written.done.set_result(None)
