"""The fast path for reading one entry: one request to the replica that a ranged read would ask first.

A ranged read of one entry costs several times the request itself. Most such reads end with the first replica's good
copy, and do not need its bookkeeping. `SingleReads.read` returns the entry in that case, and None in every other: no
response in time, an error, a bad copy. The caller then uses a `range_read`, which starts from the beginning and alone
decides that an entry can't be read; it avoids the bookie if the error was the bookie's fault.

Invariants: P1 (every returned entry was verified). The caller ensures P10 by checking what may be read. Source:
docs/protocol/client-protocol.md#reading-one-entry. Not its job: other replicas, ranges (`range_read`).
"""

from __future__ import annotations

import asyncio
from typing import NamedTuple

from bookgate.ledger.entry import Entry, decode_entry
from bookgate.ledger.errors import BKException, DigestMatchException, EntryNotConfirmedException
from bookgate.ledger.ledger_id import NO_ENTRY
from bookgate.ledger.metadata_store import LedgerRecord
from bookgate.ledger.wire.fast_requests import ReadRequestEncoder
from bookgate.ledger.wire.messages import EOK, READ_ENTRY, ReadResponse, Response
from bookgate.thinclient.core.replica_orders import ReplicaOrders
from bookgate.thinclient.handles.context import ClientContext, LedgerSecrets, check_term
from bookgate.thinclient.metrics import SAMPLED


class FoundEntry(NamedTuple):
    """An entry, and the highest LAC in the response."""

    entry: Entry
    max_lac: int


class _Asked(NamedTuple):
    entry_id: int
    bookie_id: str
    asked_at: float
    found: asyncio.Future[FoundEntry | None]


class SingleReads:
    """Reads of single entries with one ledger's metadata. Belongs to one event loop."""

    __slots__ = (
        "_context",
        "_heard",
        "_known_lac",
        "_loop",
        "_orders",
        "_outstanding",
        "_reads",
        "_secrets",
        "_timer",
        "record",
    )

    def __init__(self, context: ClientContext, record: LedgerRecord, secrets: LedgerSecrets) -> None:
        self.record = record
        self._context = context
        self._secrets = secrets
        self._loop = asyncio.get_running_loop()
        self._reads = ReadRequestEncoder(record.ledger_id.number)
        self._known_lac: int | None = None
        self._orders = ReplicaOrders(
            record.metadata,
            record.ledger_id.number,
            context.read_health,
            with_batches=False,
            without_batches=set(),
        )
        self._outstanding: dict[int, _Asked] = {}
        self._heard: dict[str, float] = {}
        """Time of each bookie's last good response, in loop time."""
        self._timer: asyncio.TimerHandle | None = None

    async def read(self, entry_id: int, known_lac: int | None = None) -> FoundEntry | None:
        """The entry, if the first replica returns a good copy of it before a ranged read would ask another replica too.

        `known_lac` is passed to the bookie, in unbounded ledgers.
        """
        context, now = self._context, self._loop.time()
        if known_lac != self._known_lac:
            self._known_lac = known_lac
            self._reads = ReadRequestEncoder(self.record.ledger_id.number, known_lac=known_lac)
        orders = self._orders.enter(entry_id, now)
        bookie_id = orders[entry_id % len(orders)][0]
        txn_id = context.pool.next_txn_id()
        asked = _Asked(entry_id, bookie_id, now, self._loop.create_future())
        self._outstanding[txn_id] = asked
        connection = context.pool.connection(bookie_id, self.record.ledger_id.number)
        frame, deadline = self._reads.encode(txn_id, entry_id), now + context.config.read_timeout_seconds
        connection.send(READ_ENTRY, txn_id, frame, deadline, self._on_answer, asked)
        if self._timer is None and context.config.speculative_read_timeout_seconds:
            self._schedule()
        try:
            return await asked.found
        finally:
            self._outstanding.pop(txn_id, None)

    def _on_answer(self, asked: _Asked, response: Response | None, error: BKException | None) -> None:
        if asked.found.done():
            return
        if error is not None or not isinstance(response, ReadResponse) or response.status != EOK:
            asked.found.set_result(None)
            return
        ledger_id = self.record.ledger_id.number
        try:
            entry = decode_entry(self._secrets.digest, response.body or b"", ledger_id, asked.entry_id)
            check_term(self.record, asked.entry_id, asked.bookie_id, response)
        except (DigestMatchException, EntryNotConfirmedException):
            asked.found.set_result(None)
            return
        now = self._heard[asked.bookie_id] = self._loop.time()
        stats = self._context.metrics.read_entry
        stats.successes += 1
        if not asked.entry_id & SAMPLED:
            stats.succeeded.record(now - asked.asked_at)
        # In v2 a response has no LAC of its own.
        told = NO_ENTRY if response.max_lac is None else response.max_lac
        asked.found.set_result(FoundEntry(entry, max(entry.last_add_confirmed, told)))

    def _schedule(self) -> None:
        seconds = self._context.config.speculative_read_timeout_seconds / 4
        self._timer = self._loop.call_later(seconds, self._tick)

    def _tick(self) -> None:
        """Gives up on replicas that take too long; one that has responded to any read since gets more time."""
        self._timer = None
        now = self._loop.time()
        asked_before = now - self._context.config.speculative_read_timeout_seconds
        for asked in self._outstanding.values():
            is_late = asked.asked_at <= asked_before and self._heard.get(asked.bookie_id, -1.0) < asked.asked_at
            if is_late and not asked.found.done():
                self._context.metrics.count("SPECULATIVE_READ_COUNT")
                self._orders.avoid(asked.bookie_id, now)
                asked.found.set_result(None)
        if self._outstanding:
            self._schedule()
