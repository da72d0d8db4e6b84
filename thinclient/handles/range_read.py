"""One ranged read in progress: carries out the effects of `core.reading.RangeReader`, and passes it the responses.

Single reads use the bookie's connection, batch reads the separate connection for protocol v2.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from bookgate.ledger.entry import Entry, decode_entries, decode_entry
from bookgate.ledger.entry_columns import EntryColumns, decode_columns
from bookgate.ledger.errors import BKException, DigestMatchException, IncorrectParameterException, ReadException
from bookgate.ledger.ledger_id import NO_ENTRY
from bookgate.ledger.metadata_store import LedgerRecord
from bookgate.ledger.wire import v2
from bookgate.ledger.wire.fast_requests import ReadRequestEncoder
from bookgate.ledger.wire.messages import (
    EOK,
    READ_ENTRY,
    BatchReadRequest,
    BatchReadResponse,
    Operation,
    ReadResponse,
    Response,
    Status,
)
from bookgate.thinclient.config import ClientConfig
from bookgate.thinclient.core.reading import BatchLimits, BatchReadEffect, RangeReader, ReadEffect
from bookgate.thinclient.handles.context import ClientContext, LedgerSecrets, check_term, status_error
from bookgate.thinclient.metrics import SAMPLED

_BATCHES_AHEAD = 4
"""Number of batches into which the read-ahead is divided, so that several replicas work at once."""
_LEAST_BATCH = 64 * 1024


class ReadSession:
    """One ranged read in progress. The caller must `close` it; later responses are dropped."""

    __slots__ = (
        "_closed",
        "_columns",
        "_ledger_id",
        "_loop",
        "_max_batch_bytes",
        "_metrics",
        "_pool",
        "_reads",
        "_secrets",
        "_tell",
        "_tick_seconds",
        "_timeout",
        "_timer",
        "_wake",
        "max_lac",
        "reader",
        "record",
    )

    def __init__(
        self,
        context: ClientContext,
        record: LedgerRecord,
        secrets: LedgerSecrets,
        first: int,
        last: int,
        without_batches: set[str] | None = None,
        columns: bool = False,
        known_lac: int | None = None,
    ) -> None:
        """Starts the read.

        Args:
            context: The client's context.
            record: The metadata, with the bookies that hold the entries.
            secrets: The secrets of the ledger.
            first: The first entry id.
            last: The last entry id, included.
            without_batches: Bookies without batch reads; this read adds those that it finds.
            columns: The caller takes entries with `next_columns`.
            known_lac: In an unbounded ledger, the confirmed entry id that single reads pass to bookies (`ledger_view`).
        """
        config, self._ledger_id = context.config, record.ledger_id
        self.record = record
        self._pool = context.pool
        self._metrics = context.metrics
        self._tell = context.metrics.on_read_answer
        self._secrets = secrets
        self._reads = ReadRequestEncoder(record.ledger_id.number, known_lac=known_lac)
        self._columns = columns
        self._timeout = config.read_timeout_seconds
        self._max_batch_bytes = config.read_ahead_bytes
        self._loop = asyncio.get_running_loop()
        self._wake: asyncio.Future[None] | None = None
        self._tick_seconds = config.speculative_read_timeout_seconds / 4
        self._timer: asyncio.TimerHandle | None = None
        self._closed = False
        self.max_lac = NO_ENTRY
        """The highest LAC in any good response."""
        self.reader = RangeReader(
            record.metadata,
            first,
            last,
            preferred_index=record.ledger_id.number,
            max_entries=config.read_ahead_entries,
            max_bytes=config.read_ahead_bytes,
            # Batch reads belong to protocol v2, which has no scopes.
            batches=_batch_limits(config) if first < last and not self._ledger_id.scope_id else None,
            without_batches=without_batches,
            speculate_after=config.speculative_read_timeout_seconds,
            health=context.read_health,
            batches_to=known_lac,
        )

    async def next_batch(self, max_entries: int) -> list[Entry]:
        """The next entries: `max_entries`, or fewer at the end, before a failure, or if they are large."""
        batch: list[Entry] = []
        reader = self.reader
        enough = reader.taken_bytes + self._max_batch_bytes
        while True:
            self._send(reader.next_reads(self._loop.time()))
            taken = reader.take(max_entries - len(batch))
            if taken:
                batch = batch + taken if batch else taken
                if reader.finished:
                    return batch
                self._send(reader.next_reads(self._loop.time()))
            full = len(batch) >= max_entries or reader.taken_bytes >= enough
            if full or reader.finished or reader.failure is not None:
                return batch
            if not taken:
                self._wake = self._loop.create_future()
                await self._wake
                self._wake = None

    async def next_columns(self, max_entries: int) -> EntryColumns | None:
        """The next entries as they arrived from a bookie, at most `max_entries`; None at the end or before a
        failure.
        """
        reader = self.reader
        while True:
            self._send(reader.next_reads(self._loop.time()))
            taken = reader.take_run(max_entries)
            if taken:
                self._send(reader.next_reads(self._loop.time()))
                if isinstance(taken, EntryColumns):
                    return taken
                more = reader.take(max_entries - len(taken))
                return EntryColumns.of(self._ledger_id.low, taken[0].entry_id, [*taken, *more])
            if reader.finished or reader.failure is not None:
                return None
            self._wake = self._loop.create_future()
            await self._wake
            self._wake = None

    def close(self) -> None:
        """Stops sending requests and ignores later responses."""
        self._closed = True
        if self._timer is not None:
            self._timer.cancel()

    def _send(self, effects: Sequence[ReadEffect | BatchReadEffect]) -> None:
        if not effects:
            return
        deadline = self._loop.time() + self._timeout
        for effect in effects:
            if type(effect) is ReadEffect:
                self._send_single(effect, deadline)
            else:
                self._send_batch(effect, deadline)  # type: ignore[arg-type]  # there are two
        if self._timer is None and self._tick_seconds:
            self._timer = self._loop.call_later(self._tick_seconds, self._tick)

    def _send_single(self, effect: ReadEffect, deadline: float) -> None:
        txn_id = self._pool.next_txn_id()
        frame = self._reads.encode(txn_id, effect.entry_id)
        connection = self._pool.connection(effect.bookie_id, self._ledger_id.number)
        connection.send(READ_ENTRY, txn_id, frame, deadline, self._on_answer, effect)

    def _send_batch(self, effect: BatchReadEffect, deadline: float) -> None:
        txn_id = self._pool.next_txn_id()
        request = BatchReadRequest(txn_id, self._ledger_id.number, effect.entry_id, effect.max_count, effect.max_size)
        connection = self._pool.batch_connection(effect.bookie_id, self._ledger_id.number)
        frame = v2.encode_request(request)
        connection.send(Operation.BATCH_READ_ENTRY, txn_id, frame, deadline, self._on_batch, effect)

    def _tick(self) -> None:
        self._timer = None
        if self._closed or self.reader.finished:
            return
        now = self._loop.time()
        self._metrics.count("SPECULATIVE_READ_COUNT", self.reader.on_time(now))
        self._send(self.reader.next_reads(now))
        if self._timer is None:
            self._timer = self._loop.call_later(self._tick_seconds, self._tick)

    def _on_answer(self, effect: ReadEffect, response: Response | None, error: BKException | None) -> None:
        if self._closed:
            return
        entry_id, bookie_id = effect
        try:
            if error is None:
                entry = self._open(entry_id, bookie_id, response)
                now = self._loop.time()
                self._tell_of(bookie_id, entry_id, len(entry.payload), now)
                if not entry_id & SAMPLED:
                    self._metrics.read_entry.succeeded.record(now - self.reader.asked_at(entry_id, now))
                self.reader.on_entries(bookie_id, [entry], now)
                self._metrics.read_entry.successes += 1
        except BKException as unreadable:
            error = unreadable
        if error is not None:
            self._failed(entry_id, bookie_id, error)
        if self._wake is not None and not self._wake.done():
            self._wake.set_result(None)

    def _on_batch(self, effect: BatchReadEffect, response: Response | None, error: BKException | None) -> None:
        if self._closed:
            return
        try:
            if error is None:
                entries = self._open_batch(effect, response)
                self._metrics.read_entry.successes += len(entries)
                self._metrics.count("BATCH_READ")
                now = self._loop.time()
                if self._tell is not None:
                    size = sum(len(entry.payload) for entry in entries)
                    self._tell_of(effect.bookie_id, effect.entry_id, size, now)
                self.reader.on_entries(effect.bookie_id, entries, now)
        except BKException as unreadable:
            error = unreadable
        if error is not None:
            self._failed(effect.entry_id, effect.bookie_id, error)
        if self._wake is not None and not self._wake.done():
            self._wake.set_result(None)

    def _tell_of(self, bookie_id: str, entry_id: int, size: int, now: float) -> None:
        """Reports a response time; one that can't be measured is left out, since a time too short would be
        misleading.
        """
        seconds = None if self._tell is None else self.reader.waited(entry_id, bookie_id, now)
        if self._tell is not None and seconds is not None:
            self._tell(bookie_id, size, seconds, None)

    def _failed(self, entry_id: int, bookie_id: str, error: BKException) -> None:
        now = self._loop.time()
        if isinstance(error, DigestMatchException):
            self._metrics.count("READ_ENTRY_DM")
        if self._tell is not None:
            self._tell(bookie_id, 0, now - self.reader.asked_at(entry_id, now), error)
        self.reader.on_error(entry_id, bookie_id, error, now)
        self._send(self.reader.next_reads(now))

    def _open(self, entry_id: int, bookie_id: str, response: Response | None) -> Entry:
        if not isinstance(response, ReadResponse) or response.status != EOK:
            status = Status.EBADREQ if response is None else response.status
            raise status_error(status, bookie_id, self._ledger_id, f"the read of entry {entry_id}")
        try:
            entry = decode_entry(self._secrets.digest, response.body or b"", self._ledger_id.number, entry_id)
        except DigestMatchException as error:
            raise DigestMatchException(f"bookie {bookie_id}: {error}") from error
        check_term(self.record, entry_id, bookie_id, response)
        lac = response.max_lac
        self.max_lac = max(self.max_lac, entry.last_add_confirmed, lac if lac is not None else NO_ENTRY)
        return entry

    def _open_batch(self, effect: BatchReadEffect, response: Response | None) -> Sequence[Entry]:
        """The good prefix of a batch, at least one entry."""
        first, bookie_id, ledger_id = effect.entry_id, effect.bookie_id, self._ledger_id
        if not isinstance(response, BatchReadResponse) or response.status != EOK:
            status = Status.EBADREQ if response is None else response.status
            default = IncorrectParameterException if status == Status.EBADREQ else ReadException
            raise status_error(status, bookie_id, ledger_id, f"the batch read from entry {first}", default)
        entries: Sequence[Entry]
        decode = decode_columns if self._columns else decode_entries
        entries, error = decode(self._secrets.digest, response.bodies, ledger_id.number, first)
        if not entries:
            raise DigestMatchException(f"bookie {bookie_id}: {error or f'a batch from entry {first} without entries'}")
        self.max_lac = max(self.max_lac, entries[-1].last_add_confirmed)
        return entries


def _batch_limits(config: ClientConfig) -> BatchLimits | None:
    if not config.batch_reads:
        return None
    size = max(_LEAST_BATCH, config.read_ahead_bytes // _BATCHES_AHEAD)
    return BatchLimits(config.batch_read_entries, min(size, config.max_frame_size_bytes))
