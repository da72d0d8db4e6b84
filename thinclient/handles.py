"""A ledger in the hands of an application: `WriteHandle` to append, `ReadHandle` to read.

The rules stand in `core`; here they meet connections, time and the application's futures. Everything runs on the
event loop that the client was made on.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterable, AsyncIterator, Iterable, Sequence
from functools import partial
from types import TracebackType
from typing import Any, Self

from ledger.entry import HEADER_SIZE, Entry, decode_entry, encode_entry
from ledger.errors import (
    BKException,
    DigestMatchException,
    IncorrectParameterException,
    LedgerClosedException,
    LedgerFencedException,
    ReadException,
    WriteException,
)
from ledger.ledger_id import NO_ENTRY, LedgerId
from ledger.manager import LedgerRecord
from ledger.metadata import LedgerMetadata
from ledger.protocol_v3 import AddRequestEncoder, encode_request
from ledger.requests import Operation, ReadRequest, ReadResponse, Response, Status
from thinclient.context import ClientContext, LedgerSecrets, status_error
from thinclient.core.reading import RangeReader, ReadEffect
from thinclient.core.writing import LedgerWriter, PendingAdd
from thinclient.metadata_update import close_by_writer, update
from thinclient.recovery_driver import read_last_confirmed
from thinclient.window import InFlightWindow

Payload = bytes | bytearray | memoryview

_APPENDS_A_TURN = 128
"""Bulk appends between two turns of the event loop, so that answers are taken in while frames go out."""


class WriteHandle:
    """The one writer of a ledger. Use it as an async context manager, or call `close`."""

    def __init__(self, context: ClientContext, record: LedgerRecord, secrets: LedgerSecrets) -> None:
        metadata = record.metadata
        self._context = context
        self._record = record
        self._loop = asyncio.get_running_loop()
        ensemble = metadata.last_fragment.ensemble
        self._writer = LedgerWriter(record.ledger_id, ensemble, metadata.write_quorum_size, metadata.ack_quorum_size)
        self._number = record.ledger_id.ledger_id
        self._digest = secrets.digest
        self._encoder = AddRequestEncoder(self._number, secrets.master_key)
        self._window = InFlightWindow(context.config.max_in_flight_entries, context.config.max_in_flight_bytes)
        self._ensemble = ensemble
        self._targets = [
            (context.pool.connection(bookie_id).send, partial(self._on_answer, index))
            for index, bookie_id in enumerate(ensemble)
        ]
        self._max_payload = context.config.max_packet_size - HEADER_SIZE - secrets.digest.length
        self._add_timeout = context.config.add_timeout
        self._bulk_turn = asyncio.Lock()
        self._closing: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if error is None:
            await self.close()
            return
        # The body's own error is what the caller must see; a ledger that stays open can be recovered.
        await asyncio.gather(self.close(), return_exceptions=True)

    @property
    def ledger_id(self) -> LedgerId:
        return self._record.ledger_id

    @property
    def metadata(self) -> LedgerMetadata:
        return self._record.metadata

    @property
    def record(self) -> LedgerRecord:
        return self._record

    @property
    def last_add_confirmed(self) -> int:
        """The highest entry id up to which everything is acknowledged; -1 for none."""
        return self._writer.last_add_confirmed

    @property
    def length(self) -> int:
        """Payload bytes of the entries up to the last add confirmed."""
        return self._writer.confirmed_length

    @property
    def failed_bookies(self) -> dict[str, BKException]:
        """Bookies of the ensemble that failed and are no longer written to."""
        return self._writer.failed_bookies

    async def append(self, payload: Payload) -> int:
        """Appends an entry; returns its id once it is acknowledged. Concurrent calls are pipelined.

        Waits while the bounds of `ClientConfig` on what is under way are reached. Raises LedgerFencedException,
        NotEnoughBookiesException, … when the ledger takes no more entries; LedgerClosedException after `close`.
        """
        data = self._check(payload)
        await self._window.wait_to_enter(len(data))
        return await self._begin_with_future(data)

    def append_nowait(self, payload: Payload) -> asyncio.Future[int]:
        """Appends without waiting for room; the caller bounds what it has under way. The future gives the entry id."""
        data = self._check(payload)
        self._window.enter(len(data))
        return self._begin_with_future(data)

    async def append_all(self, payloads: Iterable[Payload] | AsyncIterable[Payload]) -> int:
        """Appends many entries, pipelined within the bounds; returns the last id once all are acknowledged.

        Concurrent calls keep their entries together, in the order of the calls. Without a payload it returns the last
        entry id so far. When it fails, entries up to `last_add_confirmed` are
        acknowledged and kept.
        """
        async with self._bulk_turn:
            last = await self._begin_all(payloads)
        if last is None:
            return self._writer.last_add_pushed
        await self._confirmed(last)
        return last.entry_id

    async def _begin_all(self, payloads: Iterable[Payload] | AsyncIterable[Payload]) -> PendingAdd | None:
        """Sends many entries; returns the last of them."""
        last: PendingAdd | None = None
        if isinstance(payloads, AsyncIterable):
            async for payload in payloads:
                last = await self._append_one_of_many(payload)
            return last
        for count, payload in enumerate(payloads):
            if count % _APPENDS_A_TURN == _APPENDS_A_TURN - 1:
                await asyncio.sleep(0)
            last = await self._append_one_of_many(payload)
        return last

    async def close(self) -> None:
        """Waits for outstanding appends to be acknowledged or to fail, then closes the ledger in the metadata.

        The ledger ends at `last_add_confirmed`, for every reader and for good. Repeated calls share the first one's
        outcome. Raises LedgerFencedException when another client has taken the ledger over (it closes it),
        MetadataVersionException when it was closed otherwise, MetaStoreException when the metadata is out of reach.
        """
        if self._closing is None:
            self._closing = self._loop.create_task(self._close())
        await asyncio.shield(self._closing)

    async def _close(self) -> None:
        await self._window.wait_until_idle()
        if isinstance(self._writer.error, LedgerFencedException):
            raise self._writer.error
        transform = close_by_writer(self.ledger_id, self.last_add_confirmed, self.length)
        self._record = await update(self._context.ledger_manager, self._record, transform)

    # Adding

    def _check(self, payload: Payload) -> bytes:
        """The bytes to append, once it is certain that they can be: nothing is counted before."""
        if self._writer.error is not None:
            # One error serves many callers; without this each would hang its frames on the same traceback.
            raise self._writer.error.with_traceback(None)
        if self._closing is not None:
            raise LedgerClosedException(f"ledger {self.ledger_id} is closed; entries can't be appended any more")
        data = payload if isinstance(payload, bytes) else _bytes(payload)
        if len(data) > self._max_payload:
            raise IncorrectParameterException(
                f"an entry of {len(data)} bytes is too large for ledger {self.ledger_id}: at most "
                f"{self._max_payload} bytes fit (the bookies' frame limit is {self._context.config.max_frame_size})"
            )
        return data

    def _begin_with_future(self, payload: bytes) -> asyncio.Future[int]:
        add = self._begin(payload)
        future: asyncio.Future[int] = self._loop.create_future()
        add.token = future
        return future

    async def _append_one_of_many(self, payload: Payload) -> PendingAdd:
        data = self._check(payload)
        if not self._window.try_enter(len(data)):
            await self._window.wait_to_enter(len(data))
        return self._begin(data)

    def _begin(self, payload: bytes) -> PendingAdd:
        """Sends an entry for which the window has counted already."""
        size = len(payload)
        try:
            if self._closing is not None:
                raise LedgerClosedException(f"ledger {self.ledger_id} was closed before the entry could be appended")
            add = self._writer.begin_add(size)
        except BKException as error:
            self._window.leave(1, size)
            self._window.release(size)
            self._window.fail(error)
            raise
        packet = encode_entry(self._digest, self._number, add.entry_id, add.last_add_confirmed, add.length, payload)
        txn_id = self._context.pool.next_txn_id()
        frame = self._encoder.encode(txn_id, add.entry_id, packet)
        deadline = self._loop.time() + self._add_timeout
        for index in add.indexes:
            send, sink = self._targets[index]
            send(Operation.ADD_ENTRY, txn_id, frame, deadline, sink, add)
        return add

    def _on_answer(self, index: int, add: PendingAdd, response: Response | None, error: BKException | None) -> None:
        add.unsettled -= 1
        if not add.unsettled:
            self._window.release(add.size)
        if response is not None and response.status == 0:
            confirmed = self._writer.on_ack(add, index)
            if confirmed:
                self._settle(confirmed, None)
            return
        if response is not None:
            what = f"the add of entry {add.entry_id}"
            error = status_error(response.status, self._ensemble[index], self.ledger_id, what, WriteException)
        failed = self._writer.on_failure(index, error or WriteException())
        if self._writer.error is not None:
            self._settle(failed, self._writer.error)
            self._window.fail(self._writer.error)

    def _settle(self, adds: Sequence[PendingAdd], error: BKException | None) -> None:
        """Tells the application, in entry order."""
        size = 0
        for add in adds:
            size += add.size
            future: Any = add.token
            if future is None or future.done():
                continue
            if error is None:
                future.set_result(add.entry_id)
            else:
                future.set_exception(error)
        self._window.leave(len(adds), size)

    async def _confirmed(self, add: PendingAdd) -> None:
        """Waits until an add that has no future yet is confirmed. Raises what made it fail."""
        if self._writer.last_add_confirmed >= add.entry_id:
            return
        if self._writer.error is not None and not self._writer.pending_count:
            raise self._writer.error.with_traceback(None)
        future: asyncio.Future[int] = self._loop.create_future()
        add.token = future
        await future


class ReadHandle:
    """A ledger that is read. What lies above `last_add_confirmed` is never returned."""

    def __init__(
        self, context: ClientContext, record: LedgerRecord, secrets: LedgerSecrets, last_add_confirmed: int
    ) -> None:
        self._context = context
        self._record = record
        self._secrets = secrets
        self._last_add_confirmed = last_add_confirmed
        self._listening = False

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.close()

    @property
    def ledger_id(self) -> LedgerId:
        return self._record.ledger_id

    @property
    def metadata(self) -> LedgerMetadata:
        return self._record.metadata

    @property
    def record(self) -> LedgerRecord:
        return self._record

    @property
    def last_add_confirmed(self) -> int:
        """The highest entry that may be read as far as this handle knows; -1 for none."""
        return self._last_add_confirmed

    @property
    def is_closed(self) -> bool:
        """The ledger has its final end."""
        return self.metadata.is_closed

    @property
    def length(self) -> int:
        """Payload bytes of a closed ledger, 0 of one that is not closed."""
        return self.metadata.length

    async def listen(self) -> None:
        """Follows the ledger's metadata until `close`: a ledger that gets closed shows its end here."""
        if not self._listening and not self.is_closed:
            self._listening = True
            await self._context.ledger_manager.register_listener(self.ledger_id, self._on_metadata)

    async def close(self) -> None:
        """Ends what the handle keeps up; the ledger itself is not touched."""
        if self._listening:
            self._listening = False
            await self._context.ledger_manager.unregister_listener(self.ledger_id, self._on_metadata)

    async def read_last_confirmed(self) -> int:
        """Asks for the newest last add confirmed: the metadata's of a closed ledger, else the bookies'."""
        if not self.is_closed:
            self._adopt(await self._context.ledger_manager.read(self.ledger_id))
        if not self.is_closed:
            read = await read_last_confirmed(self._context, self._record, self._secrets)
            self._last_add_confirmed = max(self._last_add_confirmed, read.result)
        return self._last_add_confirmed

    async def read(self, first: int, last: int) -> AsyncIterator[Entry]:
        """The entries first … last in order, with read-ahead. See `read_batches` for errors."""
        async for batch in self.read_batches(first, last):
            for entry in batch:
                yield entry

    async def read_batches(self, first: int, last: int, max_entries: int = 1000) -> AsyncIterator[list[Entry]]:
        """The entries first … last in order, in lists of at most `max_entries`.

        `last` may be first - 1 for an empty range. Raises IncorrectParameterException for a range that is none,
        ReadException beyond `last_add_confirmed`; otherwise the error of an entry that no replica could serve, after
        everything before it was delivered.
        """
        self._check_range(first, last, max_entries)
        session = _ReadSession(self._context, self._record, self._secrets, first, last)
        while not session.reader.finished:
            batch = await session.next_batch(max_entries)
            if batch:
                yield batch
            elif session.reader.failure is not None:
                raise session.reader.failure

    def _check_range(self, first: int, last: int, max_entries: int) -> None:
        if first < 0 or last < first - 1 or max_entries < 1:
            raise IncorrectParameterException(
                f"entries {first} to {last} of ledger {self.ledger_id}, {max_entries} at a time, are no range to read"
            )
        if last > self._last_add_confirmed:
            raise ReadException(
                f"entry {last} of ledger {self.ledger_id} can't be read: the last confirmed entry known here is "
                f"{self._last_add_confirmed}"
            )

    def _on_metadata(self, _ledger_id: LedgerId, record: LedgerRecord | None) -> None:
        if record is not None:
            self._adopt(record)

    def _adopt(self, record: LedgerRecord) -> None:
        if record.version > self._record.version:
            self._record = record
            if record.metadata.is_closed:
                self._last_add_confirmed = record.metadata.last_entry_id


class _ReadSession:
    """One ranged read under way: carries out what the `RangeReader` wants and feeds it the answers."""

    def __init__(
        self, context: ClientContext, record: LedgerRecord, secrets: LedgerSecrets, first: int, last: int
    ) -> None:
        config, self._ledger_id = context.config, record.ledger_id
        self._pool = context.pool
        self._secrets = secrets
        self._timeout = config.read_timeout
        self._max_batch_bytes = config.read_ahead_bytes
        self._loop = asyncio.get_running_loop()
        self._wake: asyncio.Future[None] | None = None
        self.reader = RangeReader(
            record.metadata,
            first,
            last,
            preferred_index=record.ledger_id.ledger_id,
            max_entries=config.read_ahead_entries,
            max_bytes=config.read_ahead_bytes,
        )

    async def next_batch(self, max_entries: int) -> list[Entry]:
        """The next entries: as many as asked for, fewer at the end, before a failure, or when they are large."""
        batch: list[Entry] = []
        batch_bytes = 0
        while True:
            self._send(self.reader.next_reads())
            taken = self.reader.take(max_entries - len(batch))
            batch += taken
            batch_bytes += sum(len(entry.payload) for entry in taken)
            if taken:
                self._send(self.reader.next_reads())
            full = len(batch) >= max_entries or batch_bytes >= self._max_batch_bytes
            if full or self.reader.finished or self.reader.failure is not None:
                return batch
            if not taken:
                self._wake = self._loop.create_future()
                await self._wake
                self._wake = None

    def _send(self, effects: Sequence[ReadEffect]) -> None:
        if not effects:
            return
        deadline = self._loop.time() + self._timeout
        ledger_id = self._ledger_id.ledger_id
        for effect in effects:
            txn_id = self._pool.next_txn_id()
            frame = encode_request(ReadRequest(txn_id, ledger_id, effect.entry_id))
            connection = self._pool.connection(effect.bookie_id)
            connection.send(Operation.READ_ENTRY, txn_id, frame, deadline, self._on_answer, effect)

    def _on_answer(self, effect: ReadEffect, response: Response | None, error: BKException | None) -> None:
        entry_id, bookie_id = effect
        try:
            if error is None:
                self.reader.on_entry(self._open(entry_id, bookie_id, response))
        except BKException as unreadable:
            error = unreadable
        if error is not None:
            self.reader.on_error(entry_id, bookie_id, error)
            self._send(self.reader.next_reads())
        if self._wake is not None and not self._wake.done():
            self._wake.set_result(None)

    def _open(self, entry_id: int, bookie_id: str, response: Response | None) -> Entry:
        if not isinstance(response, ReadResponse) or response.status != Status.EOK:
            status = Status.EBADREQ if response is None else response.status
            raise status_error(status, bookie_id, self._ledger_id, f"the read of entry {entry_id}")
        try:
            return decode_entry(self._secrets.digest, response.body or b"", self._ledger_id.ledger_id, entry_id)
        except DigestMatchException as error:
            raise DigestMatchException(f"bookie {bookie_id}: {error}") from error


def _bytes(payload: object) -> bytes:
    """A copy, which its owner can't change while it waits. Raises IncorrectParameterException for other types."""
    if isinstance(payload, bytearray | memoryview):
        return bytes(payload)
    raise IncorrectParameterException(f"an entry is bytes, bytearray or memoryview, not {type(payload).__name__}")


def known_last_entry(record: LedgerRecord) -> int:
    """The last confirmed entry that the metadata alone tells."""
    metadata = record.metadata
    return metadata.last_entry_id if metadata.is_closed else max(NO_ENTRY, metadata.last_fragment.first_entry_id - 1)
